"""The embedded default: readable NumPy and PyTorch versions of the five components, which others are compared with.

Modules that need PyTorch or gymnasium are loaded at the first use of their names, so that GAE works with NumPy alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pytest_rlperf.components.reference.gae import compute_gae, gae_float64

if TYPE_CHECKING:
    from pytest_rlperf.components.reference.ppo import PPO, ActorCritic, PPOLosses, Rollout, SyntheticEnv, make_vec_env
    from pytest_rlperf.components.reference.sac import SAC, Batch, ReplayBuffer, SACLosses

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


def __getattr__(name: str) -> Any:
    """Load the module that holds ``name``; from then on the name is an ordinary one."""
    for home in ("sac", "ppo") if name in __all__ else ():
        module = importlib.import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            value = globals()[name] = getattr(module, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
