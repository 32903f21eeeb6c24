"""The embedded reference in the suite's synthetic env; the suite measures its other components without a library."""

from __future__ import annotations

from typing import Any

from pytest_rlperf.components.libraries import BASIS, Library
from pytest_rlperf.components.samples import Samples


def _vecenv(num_envs: int) -> Any:
    """Return gymnasium's SyncVectorEnv."""
    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID, make_vec_env

    return make_vec_env(SYNTHETIC_ID, num_envs)


def _ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent in such envs."""
    from pytest_rlperf.components.reference import PPO

    return PPO(_vecenv(num_envs))


LIBRARY = Library(
    name="reference",
    module="torch",
    requirement=BASIS,
    samples=Samples(vecenv=_vecenv, ppo=_ppo),
)
