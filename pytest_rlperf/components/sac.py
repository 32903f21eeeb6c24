"""One SAC gradient step."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import attribute, check_count, check_takes, finished, signature_of, to_numpy
from pytest_rlperf.components.contracts import Updater, timed_call
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import Harvest, Workload
from pytest_rlperf.probes.objects import reached
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.probes.torch import after_steps, before_steps
from pytest_rlperf.timers import hierarchical_timer

_SAC_UPDATE = hierarchical_timer("sac_update")
_BATCHES = ("batch", "batches", "minibatch", "data", "samples", "transitions", "experience", "experiences")

_Found = dict[int, tuple[str, Any]]  # tensors by their identity, each with its path


def sac_workload(agent: Any, batch_size: int | None) -> Workload:
    """Return the workload of one gradient step of ``agent``, or of a thunk that does one.

    The check does one update: of the parameters trained by the optimizers that the agent holds, the thunk refers to, or
    that take a step, some must change and all must stay finite (see ``Training``); where it is known how many
    optimizer steps an update takes, it must take as many.
    """
    __tracebackhide__ = True
    updater = _updater(agent, batch_size)
    update = updater.update
    sections = UpdateSections(updater.owner)
    call = timed_call(_SAC_UPDATE, update)
    call_in_sections = timed_call(_SAC_UPDATE, sections.around(update))

    def check() -> object:
        __tracebackhide__ = True
        return _check(updater)

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


def _check(updater: Updater) -> object:
    """Do one update, and check it; return what it returned."""
    __tracebackhide__ = True
    updater.check()
    training = Training(updater.owner)
    with training.watched():
        output = finished(updater.update(), "the update")
    training.check()
    if updater.steps is not None and len(training.steps) != updater.steps:
        raise ComponentError(
            f"one update took {len(training.steps)} optimizer steps, expected {updater.steps}: is it one gradient step "
            "of every part?"
        )
    return output


class _AnyUpdater(Updater):
    """Updates by a function; how many optimizer steps that takes is not known."""

    def __init__(self, owner: object, update: Callable[[], object]) -> None:
        self.owner = owner
        self._update = update

    def update(self) -> object:
        """Do one update."""
        return self._update()


def _updater(agent: Any, batch_size: int | None) -> Updater:
    __tracebackhide__ = True
    if batch_size is not None:
        check_count("batch_size", batch_size)
    make = adapter_for(lambda library: library.sac, agent)
    method = attribute(agent, "update")
    if make is None and not callable(method):
        return _thunk_updater(agent)
    if batch_size is None:
        raise ComponentError("rlperf_sac_update(agent) also needs batch_size=…, which an update samples")
    if make is not None:
        return make(agent, batch_size)
    assert callable(method)
    thunk = "a thunk does any update: rlperf_sac_update(lambda: agent.update(…))"
    check_takes(f"rlperf_sac_update calls agent.update({batch_size})", method, (batch_size,), thunk)
    return _AnyUpdater(agent, partial(_update, method, batch_size))


def _thunk_updater(thunk: Any) -> Updater:
    __tracebackhide__ = True
    if not callable(thunk):
        raise ComponentError(
            f"rlperf_sac_update needs an agent with update(batch_size), or a thunk that does one update, "
            f"not {type(thunk).__qualname__}: rlperf_sac_update(lambda: …)"
        )
    instead = "give a thunk of one update, rlperf_sac_update(lambda: update(batch)), or the agent itself"
    check_takes("rlperf_sac_update calls a thunk without arguments", thunk, (), instead)
    return _AnyUpdater(thunk, thunk)


def _update(method: Callable[[int], object], batch_size: int) -> object:
    """Do one update; ComponentError where it fails and its parameter is a batch, not a size."""
    __tracebackhide__ = True
    try:
        return method(batch_size)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        if _first_parameter(method) not in _BATCHES:
            raise
        raise ComponentError(
            f"agent.update({batch_size}) was given a batch size, and takes a batch: give a thunk that draws one, "
            f"rlperf_sac_update(lambda: agent.update(buffer.sample({batch_size})))"
        ) from error


def _first_parameter(method: Callable[..., object]) -> str | None:
    signature = signature_of(method)
    return None if signature is None else next(iter(signature.parameters), None)


# --------------------------------------------------------------------------- what an update trains


@dataclass(frozen=True)
class _Look:
    """A tensor as it was at one time; it is kept, so that no other object gets its identity."""

    path: str
    array: Any
    checksum: int
    finite: bool


class Training:
    """The effect of one update, of the agent or thunk ``owner``, on the values that it trains.

    Trained are the parameters of the optimizers that ``owner`` refers to or, without such, all parameters it refers to
    that require a gradient, and those of any other of PyTorch's optimizers that takes a step. Where there are none,
    nothing is checked: NumPy and JAX have no optimizers that could be watched.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        looks = _looks(_tensors(owner))
        # An optimizer that the update makes gives the same tensors other paths, and a functional update gives the same
        # paths other tensors.
        self._known = {id(look.array): look for look in looks}
        self._paths = {look.path: look for look in looks}
        self._stepped: _Found = {}
        self.steps: list[object] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the optimizers of the update that is the body."""
        with _hooked(before_steps, self._remember), counted_steps() as self.steps:
            yield

    def check(self) -> None:
        """Check the update; ComponentError unless it has changed something and left all parameters finite."""
        __tracebackhide__ = True
        after = _looks(self._stepped | _tensors(self._owner))
        for look in after:
            if not look.finite:
                raise ComponentError(f"after one update {look.path} holds NaN or infinity")
        # One that is new was neither changed nor left as it was.
        before = (self._known.get(id(look.array)) or self._paths.get(look.path, look) for look in after)
        if after and all(was.checksum == look.checksum for was, look in zip(before, after, strict=True)):
            raise ComponentError(
                f"one update changed none of the agent's {len(after)} trained parameters: is the buffer filled past "
                "its warm-up, and does update() do a gradient step?"
            )

    def _remember(self, optimizer: Any) -> None:
        """Note what an optimizer trains, before its step, where that is not known yet."""
        found = _trained(type(optimizer).__qualname__, optimizer)
        new = {identity: tensor for identity, tensor in found.items() if identity not in self._stepped | self._known}
        self._known |= {id(look.array): look for look in _looks(new)}
        self._stepped = found | self._stepped


@contextmanager
def counted_steps() -> Iterator[list[object]]:
    """Yield a list that gets the optimizer of every step that is taken while the body runs."""
    steps: list[object] = []
    with _hooked(after_steps, steps.append):
        yield steps


@contextmanager
def _hooked(
    attach: Callable[[Callable[[Any], None]], Callable[[], None]], hook: Callable[[Any], None]
) -> Iterator[None]:
    """Have ``hook`` called with optimizer steps while the body runs; without PyTorch there are none."""
    if "torch" not in sys.modules:
        yield
        return
    undo = attach(hook)
    try:
        yield
    finally:
        undo()


def _tensors(owner: object) -> _Found:
    """Return the trainable tensors an agent holds: its optimizers' where it has any, else all there are."""
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


def _looks(found: _Found) -> list[_Look]:
    """Look at tensors; those that cannot be read are left out: on ``meta``, lazy, sparse, freed."""
    looks = []
    for path, array in found.values():
        with suppress(Exception):  # each kind that cannot be read raises an error of its own
            # Of a copy, as PyTorch resizes no storage that NumPy has had a view of.
            values = np.ascontiguousarray(to_numpy(array.detach().to("cpu", copy=True)))
            checksum = zlib.crc32(values.view(np.uint8).data)
            looks.append(_Look(path, array, checksum, bool(np.isfinite(values).all())))
    return looks
