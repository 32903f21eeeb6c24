"""A replay buffer's sample, a SAC gradient step, and what any update trains."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from pytest_rlperf.components.checks import (
    NO_ARRAYS,
    arrays_in,
    attribute,
    check_count,
    check_takes,
    finished,
    leaves,
    signature_of,
    takes_nothing,
)
from pytest_rlperf.components.contracts import Updater, timed_call
from pytest_rlperf.components.libraries import adapter_for, size_of
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import Harvest, Workload
from pytest_rlperf.probes.functions import replace_method
from pytest_rlperf.probes.objects import reached
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.probes.torch import after_steps, before_steps
from pytest_rlperf.timers import hierarchical_timer

# --------------------------------------------------------------------------- replay buffers

_SAMPLE = hierarchical_timer("sample")


def replay_workload(buffer: Any, batch_size: int | None = None) -> Workload:
    """Return the workload of ``buffer.sample(batch_size)``, or of a thunk that draws such a batch.

    The check draws one batch: every array in it must have ``batch_size`` rows.
    """
    __tracebackhide__ = True
    if batch_size is None:
        batch_size = size_of(lambda library: library.replay, buffer, "batch_size")
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
    """Raise ComponentError unless every array has a row per transition, or the batch is a list of them."""
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
    """Whether a member of a list can be a transition, not an array or number."""
    return isinstance(member, tuple | Mapping) or dataclasses.is_dataclass(member)


def _drawing(buffer: Any, batch_size: int) -> Callable[[], Any]:
    """Return a function that draws a batch: a library's adapter, the buffer's ``sample``, or a thunk."""
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.replay, buffer)
    if make is not None:
        made: Callable[[], Any] = make(buffer, batch_size)
        return made
    sample = attribute(buffer, "sample")
    function = f"rlperf_replay_sample(lambda: buffer.sample(…), batch_size={batch_size})"
    instead = f"pass a zero-argument function: {function}"
    if callable(sample):
        check_takes(f"rlperf_replay_sample calls buffer.sample({batch_size})", sample, (batch_size,), instead)
        return partial(sample, batch_size)
    if callable(buffer):
        check_takes("rlperf_replay_sample calls its function without arguments", buffer, (), function)
        given: Callable[[], Any] = buffer
        return given
    raise ComponentError(
        "rlperf_replay_sample needs an object with sample(batch_size), or a zero-argument function that draws a batch, "
        f"not {type(buffer).__qualname__}"
    )


# --------------------------------------------------------------------------- SAC updates

_SAC_UPDATE = hierarchical_timer("sac_update")
_IDLE = "is the buffer filled past its warm-up, and does update() do a gradient step?"
_BATCHES = ("batch", "minibatch", "samples", "transitions", "experiences")  # names of a parameter that is not a size


def sac_workload(agent: Any, batch_size: int | None = None) -> Workload:
    """Return the workload of one gradient step of ``agent``, or of a thunk that does one.

    The check does one update. Of the parameters trained by the optimizers that the agent holds, the thunk refers to, or
    that take a step, some must change and all must stay finite (see ``Training``). If the number of optimizer steps per
    update is known, the update must take that many.
    """
    __tracebackhide__ = True
    if batch_size is None and not takes_nothing(attribute(agent, "update")):
        batch_size = size_of(lambda library: library.sac, agent, "batch_size")
    updater = _updater(agent, batch_size)
    update = updater.update
    sections = UpdateSections(updater.owner)
    call = timed_call(_SAC_UPDATE, update)
    call_in_sections = timed_call(_SAC_UPDATE, sections.around(update))

    def check() -> object:
        __tracebackhide__ = True
        return _check(updater, batch_size)

    harvest = Harvest(call_in_sections, (sections,)) if sections else None
    return Workload(
        component="sac_update",
        call=call,
        items=1.0,
        unit="update",
        check=check,
        harvest=harvest,
        holds=(updater.owner,),
        pace=Pace.STEADY,
    )


def _check(updater: Updater, batch_size: int | None) -> object:
    """Do one update, check it, and return its output."""
    __tracebackhide__ = True
    if updater.buffers:
        with drawn(updater.owner, updater.buffers) as batches:
            updater.update()
        sizes = [next((len(array) for _, array in leaves(batch)), 0) for batch in batches]
        if sizes != [batch_size]:
            raise ComponentError(f"one update drew batches of {sizes} transitions, expected one of {batch_size}")
    training = Training(updater.owner)
    output = training.do(updater.update, _IDLE)
    if updater.steps is not None and len(training.steps) != updater.steps:
        raise ComponentError(
            f"one update took {len(training.steps)} optimizer steps, expected {updater.steps}: is it one gradient step "
            "of every part?"
        )
    return output


@contextmanager
def drawn(owner: object, buffers: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield a list that collects every batch drawn from ``buffers``, which ``owner`` holds, while the body runs."""
    batches: list[Any] = []

    def noting(sample: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            batch = sample(*args, **kwargs)
            batches.append(batch)
            return batch

        return noted

    with ExitStack() as stack:
        for buffer in buffers:
            stack.callback(replace_method(owner, buffer, "sample", noting))
        yield batches


def _updater(agent: Any, batch_size: int | None) -> Updater:
    __tracebackhide__ = True
    if batch_size is not None:
        check_count("batch_size", batch_size)
    make = adapter_for(lambda library: library.sac, agent)
    method = attribute(agent, "update")
    if make is None and not callable(method):
        return _thunk_updater(agent)
    if batch_size is None and make is None and takes_nothing(method):
        return Updater(agent, method)
    if batch_size is None:
        raise ComponentError("rlperf_sac_update(agent) also needs batch_size=…, which an update samples")
    if make is not None:
        made: Updater = make(agent, batch_size)
        return made
    assert callable(method)
    instead = "pass a zero-argument function: rlperf_sac_update(lambda: agent.update(…))"
    check_takes(f"rlperf_sac_update calls agent.update({batch_size})", method, (batch_size,), instead)
    signature = signature_of(method)
    if signature is not None and next(iter(signature.parameters), None) in _BATCHES:
        raise ComponentError(
            f"rlperf_sac_update calls agent.update({batch_size}) with a size, but update takes a batch: pass a "
            "zero-argument function that draws one, rlperf_sac_update(lambda: "
            f"agent.update(buffer.sample({batch_size})))"
        )
    return Updater(agent, lambda: method(batch_size))


def _thunk_updater(thunk: Any) -> Updater:
    __tracebackhide__ = True
    if not callable(thunk):
        raise ComponentError(
            "rlperf_sac_update needs an agent with update(batch_size), or a zero-argument function that does one "
            f"update, not {type(thunk).__qualname__}: rlperf_sac_update(lambda: …)"
        )
    instead = "pass the agent itself, or a function that does one update: rlperf_sac_update(lambda: update(batch))"
    check_takes("rlperf_sac_update calls its function without arguments", thunk, (), instead)
    return Updater(thunk, thunk)


# --------------------------------------------------------------------------- what an update trains

_Found = dict[int, tuple[str, Any]]  # tensors by their identity, each with its path


class Training:
    """The effect of one update, by the agent or thunk ``owner``, on the values that it trains.

    Trained values are the parameters of the optimizers that ``owner`` refers to. Without optimizers, they are all
    parameters it refers to that require a gradient. The parameters of any other PyTorch optimizer that takes a step
    count too. If there are none, nothing is checked: NumPy and JAX have no optimizers to watch.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._found = trainable(owner)
        self._before = _copies(self._found)
        self.steps: list[object] = []

    def do(self, update: Callable[[], object], advice: str) -> object:
        """Do the update, and return its output.

        Raise ComponentError, with ``advice``, if it changed no parameter, or if it left one that is not finite. A
        parameter that the update made is a change.
        """
        __tracebackhide__ = True
        with _hooked(before_steps, self._remember), counted_steps() as self.steps:
            output = finished(update(), "the update")
        self._found |= trainable(self._owner)
        after = _copies(self._found)
        for identity, values in after.items():
            if not values.isfinite().all():
                raise ComponentError(f"after one update {self._found[identity][0]} holds NaN or infinity")
        before = self._before
        if after and all(identity in before and values.equal(before[identity]) for identity, values in after.items()):
            raise ComponentError(f"one update changed none of the agent's {len(after)} trained parameters: {advice}")
        return output

    def _remember(self, optimizer: Any) -> None:
        """Note what an optimizer trains, before its step, if that is not known yet."""
        found = _trained(type(optimizer).__qualname__, optimizer)
        new = {identity: tensor for identity, tensor in found.items() if identity not in self._found}
        self._found |= new
        self._before |= _copies(new)


class Kept:
    """The values of the tensors that an agent or thunk trains, as they were when this was made."""

    def __init__(self, owner: object) -> None:
        self._tensors = [(tensor, tensor.detach().clone()) for _, tensor in trainable(owner).values()]

    def restore(self) -> None:
        """Restore the values in place."""
        for tensor, value in self._tensors:
            tensor.data.copy_(value)


@contextmanager
def counted_steps() -> Iterator[list[object]]:
    """Yield a list that collects the optimizer of every step taken while the body runs."""
    steps: list[object] = []
    with _hooked(after_steps, steps.append):
        yield steps


@contextmanager
def _hooked(
    attach: Callable[[Callable[[Any], None]], Callable[[], None]], hook: Callable[[Any], None]
) -> Iterator[None]:
    """Call ``hook`` at optimizer steps while the body runs; without PyTorch there are none."""
    if "torch" not in sys.modules:
        yield
        return
    undo = attach(hook)
    try:
        yield
    finally:
        undo()


def trainable(owner: object) -> _Found:
    """Return the trainable tensors that an agent holds: its optimizers' if it has any, else all of them."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    held: _Found = {}
    optimized: _Found = {}
    for path, value in reached("agent", owner):
        with suppress(Exception):  # the attributes of a proxy may raise anything
            if isinstance(value, torch.optim.Optimizer):
                optimized = _trained(path, value) | optimized
            elif isinstance(value, torch.nn.Module):
                named = [(f"{path}.{name}", each) for name, each in value.named_parameters() if each.requires_grad]
                held = {id(each): (name, each) for name, each in named} | held
            elif isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
                held.setdefault(id(value), (path, value))
    return optimized or held


def _trained(path: str, optimizer: Any) -> _Found:
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    return {id(tensor): (f"{path}.params[{index}]", tensor) for index, tensor in enumerate(tensors)}


def _copies(found: _Found) -> dict[int, Any]:
    """Return the values of tensors by identity, without unreadable ones: on ``meta``, lazy, freed."""
    copies = {}
    for identity, (_, tensor) in found.items():
        with suppress(Exception):  # each unreadable kind raises its own error
            copies[identity] = tensor.detach().to("cpu", copy=True).to_dense()
    return copies
