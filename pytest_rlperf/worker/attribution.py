"""Where a call's time goes, once all timed slices are taken."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_rlperf import units
from pytest_rlperf.model.measured import Share, Workload
from pytest_rlperf.worker.shares import ProfilerBusyError, shares
from pytest_rlperf.worker.tracing import call_plainly

_PLAIN_S = 0.1  # of plain calls; profiled ones take several times as long
_LEAST_CALLS, _MOST_CALLS = 8, 600
_LONGEST_CALL_S = 0.5  # profiling longer calls would take longer than the whole measurement
_WAITS = 5


def explain(
    workload: Workload, call_s: float, wait: Callable[[], None] | None
) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    """Return the shares of a call that takes about ``call_s``, or none and notes with the reason.

    ``wait`` waits until the call's device is done; it is None for a call on the host.
    """
    if call_s > _LONGEST_CALL_S:
        return (), (f"where the time goes is unknown: a call is too long to profile, it takes {units.seconds(call_s)}",)
    calls = max(_LEAST_CALLS, min(_MOST_CALLS, round(_PLAIN_S / max(call_s, 1e-9))))
    call, device_wait_s = workload.call, 0.0
    if wait is not None:
        call = _waiting(workload.call, wait)
        device_wait_s = _waited_s(workload, wait)
    try:
        found = shares(call, setup=workload.setup, calls=calls, device_wait_s=device_wait_s)
    except ProfilerBusyError as busy:
        return (), (str(busy),)
    except Exception as error:  # from code that cannot be profiled; its measurement is complete
        call_plainly(workload)
        return (), (
            f"where the time goes is unknown: under the profiler, the call raised {type(error).__name__}: {error}",
        )
    finally:
        workload.processed(0)  # these calls belong to no slice
    return found, ()


def _waiting(call: Callable[[], object], wait: Callable[[], None]) -> Callable[[], object]:
    def call_and_wait() -> None:
        call()
        wait()

    return call_and_wait


def _waited_s(workload: Workload, wait: Callable[[], None]) -> float:
    """Return how long the host waits for the device after a call, averaged over a few calls."""
    waited_s = 0.0
    for _ in range(_WAITS):
        if workload.setup is not None:
            workload.setup()
        workload.call()
        start_s = time.perf_counter()
        wait()
        waited_s += time.perf_counter() - start_s
    return waited_s / _WAITS
