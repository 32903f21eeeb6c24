"""PPO rollouts in a synchronous vector env of gymnasium's CartPole."""

from typing import Any

import pytest

from pytest_rlperf import Measure


@pytest.fixture
def agent() -> Any:
    """Return an agent in 8 envs."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'pytest-rlperf[rl]'")
    pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'pytest-rlperf[rl]'")
    from pytest_rlperf.components.reference import PPO, make_vec_env

    envs = make_vec_env("CartPole-v1", 8)
    yield PPO(envs)
    envs.close()


def test_ppo_collect(rlperf_ppo_collect: Measure, agent: Any) -> None:
    """One rollout of 128 steps with its advantages."""
    rlperf_ppo_collect(agent, n_steps=128)
