"""Components to measure: the components of a reinforcement-learning library, made ready as workloads."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_rlperf.model.measured import Workload

_MODULES = {
    "imports": "calls",
    "ppo_update": "ppo",
    "replay": "updates",
    "sac": "updates",
    "thunk": "calls",
    "train": "ppo",
}


def find_workload(component: str) -> Callable[..., Workload]:
    """Return the function that makes a component's workload; only its module is imported."""
    module = import_module(f"{__name__}.{_MODULES.get(component, component)}")
    made: Callable[..., Workload] = getattr(module, f"{component}_workload")
    return made
