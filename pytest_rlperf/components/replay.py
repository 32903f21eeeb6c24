"""A replay buffer's sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_rlperf.components.adapters import Sampler, adapter_for
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
    sampler = _sampler(buffer, batch_size)

    def call() -> object:
        with _SAMPLE:
            return sampler.draw()

    def check() -> None:
        __tracebackhide__ = True
        batch = sampler.draw()
        found = list(sampler.shapes(batch))
        if not found:
            raise ComponentError(f"sample({batch_size}) returned no arrays: {type(batch).__qualname__}")
        for path, shape in found:
            if shape[:1] != (batch_size,):
                raise ComponentError(
                    f"sample({batch_size}) returned a batch of the wrong size: {path} has shape {shape}, "
                    f"expected {batch_size} rows"
                )

    return Workload(
        component="replay_sample",
        call=call,
        items=float(batch_size),
        unit="transition",
        check=check,
        holds=(buffer,),
    )


class _AnySampler:
    """Draws by ``sample(batch_size)``, or by a thunk; every array in a batch has a row a transition."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every array's shape."""
        for path, array in leaves(batch):
            yield path, tuple(array.shape)


def _sampler(buffer: Any, batch_size: int) -> Sampler:
    __tracebackhide__ = True
    make = adapter_for("replay", buffer)
    if make is not None:
        sampler: Sampler = make(buffer, batch_size)
        return sampler
    sample = getattr(buffer, "sample", None)
    if callable(sample):
        return _AnySampler(lambda: sample(batch_size))
    if callable(buffer):
        return _AnySampler(buffer)
    raise ComponentError(
        f"rlperf_replay_sample needs an object with sample(batch_size), or a thunk that draws a batch, not "
        f"{type(buffer).__qualname__}"
    )
