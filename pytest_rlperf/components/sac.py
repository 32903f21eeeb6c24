"""One SAC gradient step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_rlperf.components.arrays import to_numpy
from pytest_rlperf.components.sizes import check_count
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Harvest, Workload
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.timers.probes import UpdateSections

_MOST_OBJECTS = 10_000  # looked at in search of parameters; a buffer may hold its transitions as objects
_SAC_UPDATE = hierarchical_timer("sac_update")


def sac_workload(agent: Any, batch_size: int | None) -> Workload:
    """Return the workload of ``agent.update(batch_size)``, or of a thunk that does one update.

    The check does one update of an agent's: of the parameters its optimizers train, some must change and all must stay
    finite.
    """
    __tracebackhide__ = True
    update = _update(agent, batch_size)

    def call() -> object:
        with _SAC_UPDATE:
            return update()

    sections = UpdateSections(agent)
    told = sections.around(update)

    def told_call() -> object:
        with _SAC_UPDATE:
            return told()

    def check() -> None:
        __tracebackhide__ = True
        before = {name: to_numpy(tensor).copy() for name, tensor in _parameters(agent).items()}
        update()
        after = {name: to_numpy(tensor) for name, tensor in _parameters(agent).items()}
        _compare(before, after)

    harvest = Harvest(told_call, (sections,)) if sections else None
    return Workload(component="sac_update", call=call, items=1.0, unit="update", check=check, harvest=harvest)


def _update(agent: Any, batch_size: int | None) -> Callable[[], object]:
    __tracebackhide__ = True
    method = getattr(agent, "update", None)
    if callable(method):
        if batch_size is None:
            raise ComponentError("rlperf_sac_update(agent) also needs batch_size=…, which agent.update is called with")
        check_count("batch_size", batch_size)
        return lambda: method(batch_size)
    if callable(agent):
        thunk: Callable[[], object] = agent
        return thunk
    raise ComponentError(
        f"rlperf_sac_update needs an agent with update(batch_size), or a thunk that does one update, "
        f"not {type(agent).__qualname__}"
    )


def _parameters(agent: Any) -> dict[str, Any]:
    """Return the trainable tensors an agent holds: its optimizers' where it has any, else all there are."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    held: dict[str, Any] = {}
    optimized: dict[str, Any] = {}
    for path, value in _walk(agent):
        if isinstance(value, torch.nn.Module):
            held |= {f"{path}.{name}": parameter for name, parameter in value.named_parameters()}
        elif isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
            held[path] = value
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [tensor for group in value.param_groups for tensor in group["params"]]
            optimized |= {f"{path}.params[{index}]": tensor for index, tensor in enumerate(tensors)}
    return optimized or held


def _walk(agent: Any) -> Iterator[tuple[str, Any]]:
    """Yield an agent and what it is made of: attributes, and members of containers."""
    waiting = [("agent", agent)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value = waiting.pop()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        yield path, value
        if isinstance(value, Mapping):
            waiting += [(f"{path}[{key!r}]", member) for key, member in value.items()]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{path}[{index}]", member) for index, member in enumerate(value)]
        else:
            waiting += [(f"{path}.{name}", member) for name, member in getattr(value, "__dict__", {}).items()]


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
