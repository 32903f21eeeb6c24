from __future__ import annotations

from typing import Any

import pytest
from library_checks import assert_parts, harvested
from wording import Wording

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError

pytestmark = pytest.mark.torch

rlox: Any = pytest.importorskip("rlox")
torch: Any = pytest.importorskip("torch")
gymnasium: Any = pytest.importorskip("gymnasium")

from rlox.algorithms.ppo import PPO  # noqa: E402 - where it is installed
from rlox.algorithms.sac import SAC  # noqa: E402


def test_env_steps_are_those_of_the_envs() -> None:
    """Env steps are counted as gymnasium's envs count them, episodes ended in between."""
    taken: list[str] = []

    class Counted(gymnasium.Wrapper):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            taken.append("step")
            return super().step(action)

        def reset(self, **kwargs: Any) -> Any:
            taken.append("reset")
            return super().reset(**kwargs)

    env = rlox.GymVecEnv("CartPole-v1", n_envs=4)
    env._env.envs = [Counted(one) for one in env._env.envs]
    workload = vecenv_workload(env)
    workload.check()
    workload.processed(1)
    taken.clear()
    for _ in range(100):
        workload.call()
    assert workload.processed(100) == taken.count("step") == 400
    assert taken.count("reset") > 4


class OtherReset(rlox.GymVecEnv):  # type: ignore[misc]
    """Leaves ended envs to another call, or to nobody."""

    def __init__(self, mode: str) -> None:
        super().__init__("CartPole-v1", n_envs=2)
        makers = [lambda: gymnasium.make("CartPole-v1")] * 2
        self._env = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=gymnasium.vector.AutoresetMode(mode))


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_no_auto_reset_is_told(mode: str) -> None:
    """A vector env that does not reset within the step that ends an episode would be counted wrong."""
    with pytest.raises(ComponentError, match=r"gave no terminal_obs for it: the env was not reset within the step"):
        vecenv_workload(OtherReset(mode)).check()


def test_an_agent_that_cannot_update_so(wording: Wording) -> None:
    """The size of the batch is the agent's to have, and its buffer's to hold."""
    agent = SAC("Pendulum-v1", hidden=8, batch_size=16, buffer_size=10)
    for batch_size in (32, 16):
        with wording.raises(ComponentError):
            sac_workload(agent, batch_size)


@pytest.mark.parametrize("changes", [{}, {"normalize_obs": True, "normalize_rewards": True}])
def test_the_phases_of_a_ppo_rollout(changes: dict[str, Any]) -> None:
    """A rollout's parts are seen from outside, steps of Rust's envs included, and afterwards all is as it was."""
    agent = PPO("CartPole-v1", n_envs=8, **changes)
    env = agent.collector.env
    before = dict(vars(agent.collector)), set(vars(agent.policy)), rlox.compute_gae_batched
    workload = ppo_workload(agent, 64, None)
    workload.check()
    harvested(workload, 2)
    phases = harvested(workload, 5)
    assert_parts(phases, "ppo_collect", ("policy", "env_step", "store", "gae"))
    assert phases["ppo_collect/env_step"].count == 64
    assert phases["ppo_collect/gae"].count == 1
    assert agent.collector.env is env
    assert (set(before[0]), before[1], before[2]) == (
        set(vars(agent.collector)),
        set(vars(agent.policy)),
        rlox.compute_gae_batched,
    )
