"""A replay buffer's sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import NO_ARRAYS, arrays_in, attribute, check_count, check_takes, finished
from pytest_rlperf.components.contracts import timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.timers import hierarchical_timer

_SAMPLE = hierarchical_timer("sample")


def replay_workload(buffer: Any, batch_size: int | None) -> Workload:
    """Return the workload of ``buffer.sample(batch_size)``, or of a thunk that draws such a batch.

    The check draws one batch: every array in it must have ``batch_size`` rows.
    """
    __tracebackhide__ = True
    if batch_size is None:
        raise ComponentError("rlperf_replay_sample(buffer) also needs batch_size=…, the rows of a batch")
    check_count("batch_size", batch_size)
    draw = _drawing(buffer, batch_size)
    call = timed_call(_SAMPLE, draw)

    def check() -> object:
        __tracebackhide__ = True
        batch = finished(draw(), f"sample({batch_size})")
        _check_rows(batch, batch_size)
        return batch

    items = float(batch_size)
    return Workload("replay_sample", call=call, items=items, unit="transition", check=check, holds=(buffer,))


def _check_rows(batch: Any, batch_size: int) -> None:
    """Raise ComponentError unless every array has a row a transition, or the batch is a list of as many transitions."""
    __tracebackhide__ = True
    shapes = [(path, tuple(array.shape)) for path, array in arrays_in(batch)]
    wrong = [(path, shape) for path, shape in shapes if shape[:1] != (batch_size,)]
    if (wrong or not shapes) and isinstance(batch, list) and batch and all(map(_holds_fields, batch)):
        shapes = [("the list of transitions", (len(batch),))]
        wrong = shapes if len(batch) != batch_size else []
    if not shapes:
        raise ComponentError(
            f"sample({batch_size}) returned no arrays: {type(batch).__qualname__}; {NO_ARRAYS}. For other batches: "
            f"rlperf(lambda: buffer.sample({batch_size}), items={batch_size}, unit='transition', check=…)"
        )
    for path, shape in wrong:
        raise ComponentError(
            f"sample({batch_size}) returned a batch of the wrong size: {path} has shape {shape}, "
            f"expected {batch_size} rows"
        )


def _holds_fields(member: Any) -> bool:
    """Whether a member of a list can be a transition: no array or number."""
    return isinstance(member, tuple | Mapping) or dataclasses.is_dataclass(member)


def _drawing(buffer: Any, batch_size: int) -> Callable[[], Any]:
    """Return a function that draws a batch: by a library's adapter, by the buffer's ``sample``, or a thunk."""
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.replay, buffer)
    if make is not None:
        made: Callable[[], Any] = make(buffer, batch_size)
        return made
    sample = attribute(buffer, "sample")
    thunk = f"a thunk draws any batch: rlperf_replay_sample(lambda: buffer.sample(…), batch_size={batch_size})"
    if callable(sample):
        check_takes(f"rlperf_replay_sample calls buffer.sample({batch_size})", sample, (batch_size,), thunk)
        return partial(sample, batch_size)
    if callable(buffer):
        check_takes("rlperf_replay_sample calls a thunk without arguments", buffer, (), thunk)
        given: Callable[[], Any] = buffer
        return given
    raise ComponentError(
        f"rlperf_replay_sample needs an object with sample(batch_size), or a thunk that draws a batch, not "
        f"{type(buffer).__qualname__}"
    )
