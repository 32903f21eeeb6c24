"""One SAC gradient step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_rlperf.components.adapters import Updater, adapter_for
from pytest_rlperf.components.arrays import to_numpy
from pytest_rlperf.components.sizes import check_count
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Harvest, Pace, Workload
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.timers.probes import UpdateSections
from pytest_rlperf.timers.probes.reached import reached
from pytest_rlperf.timers.probes.steps import after_steps

_SAC_UPDATE = hierarchical_timer("sac_update")


def sac_workload(agent: Any, batch_size: int | None) -> Workload:
    """Return the workload of one gradient step of ``agent``, or of a thunk that does one.

    The check does one update: of the parameters trained by the optimizers that the agent holds, or the thunk refers to,
    some must change and all must stay finite; where it is known how many optimizer steps an update takes, it must take
    as many.
    """
    __tracebackhide__ = True
    updater = _updater(agent, batch_size)
    update = updater.update
    sections = UpdateSections(updater.owner)
    told = sections.around(update)

    def call() -> object:
        with _SAC_UPDATE:
            return update()

    def told_call() -> object:
        with _SAC_UPDATE:
            return told()

    def check() -> None:
        __tracebackhide__ = True
        check_more = getattr(updater, "check", None)  # what only a library's own adapter can tell
        if check_more is not None:
            check_more()
        before = {name: to_numpy(tensor).copy() for name, tensor in _parameters(updater.owner).items()}
        with counted_steps() as steps:
            update()
        after = {name: to_numpy(tensor) for name, tensor in _parameters(updater.owner).items()}
        _compare(before, after)
        if updater.steps is not None and len(steps) != updater.steps:
            raise ComponentError(
                f"one update took {len(steps)} optimizer steps, expected {updater.steps}: is it one gradient step of "
                "every part?"
            )

    harvest = Harvest(told_call, (sections,)) if sections else None
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


class _AnyUpdater:
    """Updates by whatever it was given; how many optimizer steps that takes is not known."""

    def __init__(self, owner: object, update: Callable[[], object]) -> None:
        self.owner = owner
        self.update = update
        self.steps: int | None = None


def _updater(agent: Any, batch_size: int | None) -> Updater:
    __tracebackhide__ = True
    if batch_size is not None:
        check_count("batch_size", batch_size)
    make = adapter_for("sac", agent)
    method = getattr(agent, "update", None)
    if make is None and not callable(method):
        if callable(agent):
            return _AnyUpdater(agent, agent)
        raise ComponentError(
            f"rlperf_sac_update needs an agent with update(batch_size), or a thunk that does one update, "
            f"not {type(agent).__qualname__}"
        )
    if batch_size is None:
        raise ComponentError("rlperf_sac_update(agent) also needs batch_size=…, which an update samples")
    if make is not None:
        updater: Updater = make(agent, batch_size)
        return updater
    assert callable(method)
    return _AnyUpdater(agent, lambda: method(batch_size))


@contextmanager
def counted_steps() -> Iterator[list[object]]:
    """Yield a list that gets the optimizer of every step that is taken while the body runs."""
    if "torch" not in sys.modules:
        yield []
        return
    steps: list[object] = []
    undo = after_steps(steps.append)
    try:
        yield steps
    finally:
        undo()


def _parameters(agent: Any) -> dict[str, Any]:
    """Return the trainable tensors an agent holds: its optimizers' where it has any, else all there are."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    held: dict[str, Any] = {}
    optimized: dict[str, Any] = {}
    for path, value in reached("agent", agent):
        if isinstance(value, torch.nn.Module):
            held |= {f"{path}.{name}": parameter for name, parameter in value.named_parameters()}
        elif isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
            held[path] = value
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [tensor for group in value.param_groups for tensor in group["params"]]
            optimized |= {f"{path}.params[{index}]": tensor for index, tensor in enumerate(tensors)}
    return optimized or held


def _compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Compare an agent's parameters around one update."""
    __tracebackhide__ = True
    import numpy as np

    broken = [name for name, array in after.items() if not np.isfinite(array).all()]
    if broken:
        raise ComponentError(f"after one update {broken[0]} holds NaN or infinity")
    if after and all(name in before and np.array_equal(before[name], after[name]) for name in after):
        raise ComponentError(
            f"one update changed none of the agent's {len(after)} trained parameters: is the buffer filled past its "
            "warm-up, and does update() do a gradient step?"
        )
