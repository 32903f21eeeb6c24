"""Whether one update trains something: what can be seen of that from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from pytest_rlperf.components.arrays import to_numpy
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers.probes.reached import reached
from pytest_rlperf.timers.probes.steps import after_steps, before_steps

_LARGEST_BYTES = 2**26  # of an array that is copied to be compared: buffers are larger, networks' parameters hardly


class Training:
    """What one update, of the agent or thunk ``owner``, does to what it trains.

    Trained are the parameters of the optimizers that ``owner`` refers to or, without such, all parameters it refers to,
    and those of any other of PyTorch's optimizers that takes a step. Where there are none, it may be any array of
    floats that ``owner`` refers to: NumPy and JAX have no optimizers that could be watched.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        held = _parameters(owner)
        self._known = {id(tensor) for tensor in held.values()}
        self._before = _copied(held)
        self._arrays = {} if held else _copied(_arrays(owner))
        self._others: dict[str, Any] = {}
        self.steps: list[object] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the optimizers of the update that is the body."""
        with _hooked(before_steps, self._remember), counted_steps() as self.steps:
            yield

    def check(self) -> None:
        """Check the update; ComponentError unless it has changed something and left all parameters finite."""
        __tracebackhide__ = True
        after = _parameters(self._owner) | self._others
        _check_finite(after)
        if after and not _changed(self._before, after):
            raise ComponentError(
                f"one update changed none of the agent's {len(after)} trained parameters: is the buffer filled past "
                "its warm-up, and does update() do a gradient step?"
            )
        if not after and not _changed(self._arrays, _arrays(self._owner)):
            raise ComponentError(_nothing_seen(len(self._arrays)))

    def _remember(self, optimizer: Any) -> None:
        """Note what an optimizer trains, before its step, where that is not known yet."""
        for index, tensor in enumerate(_trained(optimizer)):
            if id(tensor) not in self._known:
                self._known.add(id(tensor))
                name = f"{type(optimizer).__qualname__}.params[{index}], the {len(self._others)}th found"
                self._others[name] = tensor
                self._before[name] = to_numpy(tensor).copy()


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
    """Have ``hook`` told of optimizer steps while the body runs; without PyTorch there are none."""
    if "torch" not in sys.modules:
        yield
        return
    undo = attach(hook)
    try:
        yield
    finally:
        undo()


def _parameters(owner: object) -> dict[str, Any]:
    """Return the trainable tensors an agent holds: its optimizers' where it has any, else all there are."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    held: dict[str, Any] = {}
    optimized: dict[str, Any] = {}
    for path, value in reached("agent", owner):
        if isinstance(value, torch.nn.Module):
            held |= {f"{path}.{name}": parameter for name, parameter in value.named_parameters()}
        elif isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
            held[path] = value
        elif isinstance(value, torch.optim.Optimizer):
            optimized |= {f"{path}.params[{index}]": tensor for index, tensor in enumerate(_trained(value))}
    return optimized or held


def _trained(optimizer: Any) -> list[Any]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _arrays(owner: object) -> dict[str, Any]:
    """Return the arrays of floats, of any library, that something refers to."""
    found = {}
    for path, value in reached("agent", owner):
        size = getattr(value, "nbytes", None)
        if not isinstance(size, int) or size > _LARGEST_BYTES or not hasattr(value, "shape"):
            continue
        with suppress(AttributeError, TypeError, ValueError, RuntimeError):  # what makes no NumPy array is no such one
            array = to_numpy(value)
            if "float" in array.dtype.name:
                found[path] = array
    return found


def _copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_numpy(array).copy() for name, array in arrays.items()}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an array has changed, or is new."""
    return any(name not in before or not _equal(before[name], to_numpy(after[name])) for name in after)


def _equal(before: Any, after: Any) -> bool:
    return np.array_equal(before, after, equal_nan=True)


def _check_finite(parameters: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    for name, tensor in parameters.items():
        if not np.isfinite(to_numpy(tensor)).all():
            raise ComponentError(f"after one update {name.partition(',')[0]} holds NaN or infinity")


def _nothing_seen(arrays: int) -> str:
    """Say that nothing was trained, as far as can be seen, and what to do."""
    steps = "no PyTorch optimizer took a step" if "torch" in sys.modules else "PyTorch is not loaded"
    held = (
        f"none of the {arrays} arrays of floats that it refers to has changed"
        if arrays
        else "it refers to no parameters"
    )
    return (
        f"one update changed nothing that can be seen: {steps}, and {held}. Does it do a gradient step, past the "
        "warm-up? Let it refer to the agent, by which its parameters are found; what trains out of sight, in an "
        "extension or another process, is measured by rlperf(update, unit='update', check=…), where check tells what "
        "has to have changed"
    )
