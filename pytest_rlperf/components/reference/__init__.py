"""The embedded default: readable NumPy and PyTorch versions of the five components, which others are compared with.

Modules that need PyTorch or gymnasium are loaded at the first use of their names, so that GAE works with NumPy alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pytest_rlperf.components.reference.gae import compute_gae, gae_float64

if TYPE_CHECKING:
    from pytest_rlperf.components.reference.envs import SyntheticEnv, make_vec_env
    from pytest_rlperf.components.reference.ppo import PPO, ActorCritic, PPOLosses, Rollout
    from pytest_rlperf.components.reference.replay import Batch, ReplayBuffer
    from pytest_rlperf.components.reference.sac import SAC, SACLosses

__all__ = [
    "PPO",
    "SAC",
    "ActorCritic",
    "Batch",
    "PPOLosses",
    "ReplayBuffer",
    "Rollout",
    "SACLosses",
    "SyntheticEnv",
    "compute_gae",
    "gae_float64",
    "make_vec_env",
]

_HOMES = {
    "PPO": "ppo",
    "SAC": "sac",
    "ActorCritic": "ppo",
    "Batch": "replay",
    "PPOLosses": "ppo",
    "ReplayBuffer": "replay",
    "Rollout": "ppo",
    "SACLosses": "sac",
    "SyntheticEnv": "envs",
    "make_vec_env": "envs",
}


def __getattr__(name: str) -> Any:
    """Load the module that holds ``name``; from then on the name is an ordinary one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
