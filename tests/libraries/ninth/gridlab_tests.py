"""Gridlab's components, at the suite's sizes."""

from typing import Any

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work


def gridlab_vecenv(num_envs: int) -> Any:
    import gymnasium
    from gridlab import Grids

    return Grids(lambda: gymnasium.make(work.ENV_ID), num_envs)


def gridlab_replay(transitions: int) -> Any:
    from gridlab import Memory

    return Memory(work.random_transitions(transitions).obs)


def gridlab_gae(n_steps: int, n_envs: int) -> Any:
    from gridlab import credit

    return credit


@pytest.mark.parametrize("num_envs", [8])
def test_gridlab_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env."""
    rlperf_vecenv_step(lambda: gridlab_vecenv(num_envs))


def test_gridlab_replay_sample(rlperf_replay_sample: Measure) -> None:
    """One batch."""
    rlperf_replay_sample(gridlab_replay(work.IN_BUFFER), batch_size=work.BATCH_SIZE)


def test_gridlab_gae(rlperf_gae: Measure) -> None:
    """Advantages of a rollout."""
    rlperf_gae(gridlab_gae(128, 8), n_steps=128, n_envs=8)
