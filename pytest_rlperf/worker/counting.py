"""The counting pass: the exact counts of a call.

It runs right after the check, when a test's state is the same in every process, and before anything is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from pytest_rlperf import units
from pytest_rlperf.counters import tally
from pytest_rlperf.counters.memory import OF_GARBAGE, quiet
from pytest_rlperf.devices import JaxDevice, clock_for, devices_of, wait_for_all
from pytest_rlperf.devices.clocks import Device, HostClock
from pytest_rlperf.model.measured import Tally, Workload
from pytest_rlperf.probes.torch import quieten_ranges
from pytest_rlperf.wire import Count
from pytest_rlperf.worker.tracing import call_plainly, look_for_phases

_ONCE = 4.0  # times the limit, for a long call that is counted once: several workers show whether it is exact
_COST_CALLS = 20  # plain calls that take as long as counting one call: every instrument has a pass, and slows it
_GARBAGE_CALLS = 6  # plain calls that take as long as counting only one call's garbage


def count(
    workload: Workload,
    order: Count,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    watched: Sequence[str] = (),
) -> Tally:
    """Count the workload's call as ordered, in about the limit; a long one once, in up to four times that.

    A first call shows how long it takes and where its phases come from. If it takes too long, it is timed once more, as
    it may have been held up. If there is no time to count one call, only garbage is counted, or nothing.
    """
    __tracebackhide__ = True
    quieten_ranges()
    with quiet():
        try:
            looks, (call_s, traced) = 1, look_for_phases(workload, clock_ns)
        except Exception as error:
            return _failed(workload, error)
        repetitions, limit_s = order.repetitions, order.limit_s
        longest_s = limit_s / (repetitions * _COST_CALLS)
        if order.looks > 1 or (not order.looks and longest_s < call_s <= limit_s):
            looks, call_s = 2, min(call_s, look_for_phases(workload, clock_ns)[0])
        chosen, notes = _chosen(order.instruments, call_s, limit_s)
        found = Tally((), notes)
        if chosen is not None:
            found = tally(
                traced.call,
                setup=workload.setup,
                probes=traced.probes,
                repetitions=repetitions if call_s <= longest_s else 1,
                devices=_devices(workload),
                environments=_environments(),
                names=chosen,
                watched=watched,
            )
            found = replace(found, notes=(*notes, *found.notes), instruments=chosen)
            wait_for_all()()  # or the calls would go on while other workers measure
    workload.processed(0)  # items processed while counting belong to no slice
    return replace(found, calls=found.calls + looks, looks=looks)


def _failed(workload: Workload, error: Exception) -> Tally:
    call_plainly(workload)  # raises if looking for phases is not to blame
    failed = f"the call fails while its phases are recorded: {type(error).__name__}: {error}"
    return Tally((), (f"not counted: {failed}",), has_failed=True)


def _chosen(
    instruments: Collection[str], call_s: float, limit_s: float
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the instruments that there is time for, None if for none, with a note if some are left out."""
    if call_s <= _ONCE * limit_s / _COST_CALLS:
        return tuple(instruments), ()
    reason = (
        f"a call takes {units.seconds(call_s)}, so counting would take about {units.seconds(_COST_CALLS * call_s)} a "
        f"worker, over the {units.seconds(_ONCE * limit_s)} that --rlperf-max-time leaves for it"
    )
    has_time = not instruments and call_s <= _ONCE * limit_s / _GARBAGE_CALLS
    return OF_GARBAGE if has_time else None, (f"not counted: {reason}",)


def _environments() -> tuple[str, ...]:
    """Return the classes of environments whose steps are counted; none if NumPy, which all of them use, is not loaded.

    The tables that name them load NumPy. A test without NumPy should not wait for it, or have it among its packages.
    """
    if "numpy" not in sys.modules:
        return ()
    from pytest_rlperf.components.libraries import environments

    return environments()


def _devices(workload: Workload) -> tuple[Device, ...] | None:
    """Return the device that the workload holds things on, as its clock drives it; None if it is the host.

    JAX counts nothing on its devices.
    """
    clock = clock_for(devices_of((*workload.holds, workload.call)))
    if isinstance(clock, HostClock):
        return None
    return () if isinstance(clock.driver, JaxDevice) else (clock.driver,)
