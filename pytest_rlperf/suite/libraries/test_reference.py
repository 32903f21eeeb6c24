"""The embedded reference in the synthetic env; the suite measures its other components without a library."""

from typing import Any

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work


def reference_vecenv(num_envs: int) -> Any:
    """Return gymnasium's SyncVectorEnv."""
    from pytest_rlperf.components.reference.ppo import make_vec_env

    return make_vec_env(work.ENV_ID, num_envs)


def reference_ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent in such envs."""
    from pytest_rlperf.components.reference.ppo import PPO

    return PPO(reference_vecenv(num_envs))


@pytest.mark.parametrize("num_envs", [8, 64])
def test_reference_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env."""
    rlperf_vecenv_step(lambda: reference_vecenv(num_envs))


def test_reference_ppo_collect_synthetic(rlperf_ppo_collect: Measure) -> None:
    """One rollout with its advantages."""
    rlperf_ppo_collect(reference_ppo(8, 128), n_steps=128)
