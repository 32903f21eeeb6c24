"""What an update trains: PyTorch's parameters before and after it, and the optimizers that take a step."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import finished, to_numpy
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes.objects import reached
from pytest_rlperf.probes.torch import after_steps, before_steps

_Found = dict[int, tuple[str, Any]]  # tensors by their identity, each with its path


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
        looks = _looks(trainable(owner))
        # An optimizer that the update makes gives the same tensors other paths, and a functional update gives the same
        # paths other tensors.
        self._known = {id(look.array): look for look in looks}
        self._paths = {look.path: look for look in looks}
        self._stepped: _Found = {}
        self.steps: list[object] = []

    def do(self, update: Callable[[], object], advice: str) -> object:
        """Do the update, and return what it returned.

        ComponentError unless it has changed something, or with ``advice``, and has left all parameters finite.
        """
        __tracebackhide__ = True
        with _hooked(before_steps, self._remember), counted_steps() as self.steps:
            output = finished(update(), "the update")
        after = _looks(self._stepped | trainable(self._owner))
        for look in after:
            if not look.finite:
                raise ComponentError(f"after one update {look.path} holds NaN or infinity")
        # One that is new was neither changed nor left as it was.
        before = (self._known.get(id(look.array)) or self._paths.get(look.path, look) for look in after)
        if after and all(was.checksum == look.checksum for was, look in zip(before, after, strict=True)):
            raise ComponentError(f"one update changed none of the agent's {len(after)} trained parameters: {advice}")
        return output

    def _remember(self, optimizer: Any) -> None:
        """Note what an optimizer trains, before its step, where that is not known yet."""
        found = _trained(type(optimizer).__qualname__, optimizer)
        new = {identity: tensor for identity, tensor in found.items() if identity not in self._stepped | self._known}
        self._known |= {id(look.array): look for look in _looks(new)}
        self._stepped = found | self._stepped


class Kept:
    """The values of the tensors that an agent or thunk trains, as they were when this was made."""

    def __init__(self, owner: object) -> None:
        self._tensors = [(tensor, tensor.detach().clone()) for _, tensor in trainable(owner).values()]

    def restore(self) -> None:
        """Put them back, in place."""
        for tensor, value in self._tensors:
            tensor.data.copy_(value)


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


def trainable(owner: object) -> _Found:
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
