"""PPO rollouts in a synchronous vector env of gymnasium's CartPole, and updates on one of the synthetic env."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work


@pytest.fixture
def agent_in() -> Iterator[Callable[[str], Any]]:
    """Return a function that makes an agent in 8 envs."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'pytest-rlperf[rl]'")
    pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'pytest-rlperf[rl]'")
    from pytest_rlperf.components.reference.ppo import PPO, make_vec_env

    with ExitStack() as stack:
        yield lambda env_id: PPO(stack.enter_context(closing(make_vec_env(env_id, 8))))


def test_ppo_collect(rlperf_ppo_collect: Measure, agent_in: Callable[[str], Any]) -> None:
    """One rollout of 128 steps with its advantages."""
    rlperf_ppo_collect(agent_in("CartPole-v1"), n_steps=128)


def test_ppo_update(rlperf_ppo_update: Measure, agent_in: Callable[[str], Any]) -> None:
    """Four epochs on a rollout of 128 steps, in minibatches of 256."""
    rlperf_ppo_update(agent_in(work.ENV_ID), n_steps=128)
