"""A replay buffer's sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import NO_ARRAYS, arrays_in, attribute, check_count, check_takes, finished
from pytest_rlperf.components.contracts import Sampler, timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.timers import hierarchical_timer

_SAMPLE = hierarchical_timer("sample")


def replay_workload(buffer: Any, batch_size: int | None = None) -> Workload:
    """Return the workload of ``buffer.sample(batch_size)``, or of a thunk that draws such a batch.

    The check draws one batch: every array in it must have ``batch_size`` rows.
    """
    __tracebackhide__ = True
    if batch_size is None:
        raise ComponentError("rlperf_replay_sample(buffer) also needs batch_size=…, the rows of a batch")
    check_count("batch_size", batch_size)
    sampler = _sampler(buffer, batch_size)
    call = timed_call(_SAMPLE, sampler.draw)

    def check() -> object:
        __tracebackhide__ = True
        batch = finished(sampler.draw(), f"sample({batch_size})")
        found = list(sampler.shapes(batch))
        if not found:
            raise ComponentError(
                f"sample({batch_size}) returned no arrays: {type(batch).__qualname__}; {NO_ARRAYS}. For other batches: "
                f"rlperf(lambda: buffer.sample({batch_size}), items={batch_size}, unit='transition', check=…)"
            )
        for path, shape in found:
            if shape[:1] != (batch_size,):
                raise ComponentError(
                    f"sample({batch_size}) returned a batch of the wrong size: {path} has shape {shape}, "
                    f"expected {batch_size} rows"
                )
        return batch

    items = float(batch_size)
    return Workload("replay_sample", call=call, items=items, unit="transition", check=check, holds=(buffer,))


class _AnySampler(Sampler):
    """Draws by a function: of a buffer's ``sample`` with its argument, or a thunk.

    Every array in a batch has a row a transition, or the batch is a list of transitions, each a tuple or the like.
    """

    def draw(self) -> Any:
        """Draw a batch."""
        return self.buffer()

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every array's shape, or the list's."""
        shapes = [(path, tuple(array.shape)) for path, array in arrays_in(batch)]
        has_rows = bool(shapes) and all(shape[:1] == (self.batch_size,) for _, shape in shapes)
        if not has_rows and isinstance(batch, list) and batch and all(map(_holds_fields, batch)):
            shapes = [("the list of transitions", (len(batch),))]
        yield from shapes


def _holds_fields(member: Any) -> bool:
    """Whether a member of a list can be a transition: no array or number."""
    return isinstance(member, tuple | Mapping) or dataclasses.is_dataclass(member)


def _sampler(buffer: Any, batch_size: int) -> Sampler:
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.replay, buffer)
    if make is not None:
        return make(buffer, batch_size)
    sample = attribute(buffer, "sample")
    thunk = f"a thunk draws any batch: rlperf_replay_sample(lambda: buffer.sample(…), batch_size={batch_size})"
    if callable(sample):
        check_takes(f"rlperf_replay_sample calls buffer.sample({batch_size})", sample, (batch_size,), thunk)
        return _AnySampler(partial(sample, batch_size), batch_size)
    if callable(buffer):
        check_takes("rlperf_replay_sample calls a thunk without arguments", buffer, (), thunk)
        return _AnySampler(buffer, batch_size)
    raise ComponentError(
        f"rlperf_replay_sample needs an object with sample(batch_size), or a thunk that draws a batch, not "
        f"{type(buffer).__qualname__}"
    )
