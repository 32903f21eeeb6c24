"""A replay buffer's sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_rlperf.components.arrays import leaves
from pytest_rlperf.components.sizes import check_count
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Workload
from pytest_rlperf.timers import hierarchical_timer

_SAMPLE = hierarchical_timer("sample")


def replay_workload(buffer: Any, batch_size: int) -> Workload:
    """Return the workload of ``buffer.sample(batch_size)``, or of a thunk that draws such a batch.

    The check draws one batch: every array in it must have ``batch_size`` rows.
    """
    __tracebackhide__ = True
    check_count("batch_size", batch_size)
    draw = _draw(buffer, batch_size)

    def call() -> object:
        with _SAMPLE:
            return draw()

    def check() -> None:
        __tracebackhide__ = True
        batch = draw()
        found = list(leaves(batch))
        if not found:
            raise ComponentError(f"sample({batch_size}) returned no arrays: {type(batch).__qualname__}")
        for path, array in found:
            rows = array.shape[0] if len(array.shape) else None
            if rows != batch_size:
                raise ComponentError(
                    f"sample({batch_size}) returned a batch of the wrong size: {path} has shape {tuple(array.shape)}, "
                    f"expected {batch_size} rows"
                )

    return Workload(component="replay_sample", call=call, items=float(batch_size), unit="transition", check=check)


def _draw(buffer: Any, batch_size: int) -> Callable[[], Any]:
    __tracebackhide__ = True
    sample = getattr(buffer, "sample", None)
    if callable(sample):
        return lambda: sample(batch_size)
    if callable(buffer):
        thunk: Callable[[], Any] = buffer
        return thunk
    raise ComponentError(
        f"rlperf_replay_sample needs an object with sample(batch_size), or a thunk that draws a batch, not "
        f"{type(buffer).__qualname__}"
    )
