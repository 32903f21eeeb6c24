"""A replay buffer's sample."""

from __future__ import annotations

from typing import Any

from pytest_rlperf.components.arrays import leaves
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Workload
from pytest_rlperf.timers import hierarchical_timer

_SAMPLE = hierarchical_timer("sample")


def replay_workload(buffer: Any, batch_size: int) -> Workload:
    """Return the workload of ``buffer.sample(batch_size)``.

    The check draws one batch: every array in it must have ``batch_size`` rows.
    """
    __tracebackhide__ = True
    sample = getattr(buffer, "sample", None)
    if not callable(sample):
        raise ComponentError(
            f"rlperf_replay_sample needs an object with sample(batch_size), not {type(buffer).__qualname__}; "
            "for another way to sample measure a thunk: rlperf(draw, items=batch_size, unit='transition')"
        )

    def call() -> object:
        with _SAMPLE:
            return sample(batch_size)

    def check() -> None:
        __tracebackhide__ = True
        batch = sample(batch_size)
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
