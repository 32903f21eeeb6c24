"""The embedded reference; its other components are measured by the suite's tests without a library."""

from __future__ import annotations

from typing import Any


def vecenv(num_envs: int) -> Any:
    """Return gymnasium's SyncVectorEnv."""
    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID, make_vec_env

    return make_vec_env(SYNTHETIC_ID, num_envs)


def ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent in such envs."""
    from pytest_rlperf.components.reference import PPO

    return PPO(vecenv(num_envs))
