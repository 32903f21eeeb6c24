from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from wording import Wording

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError

pytestmark = pytest.mark.torch
pytest.importorskip("stable_baselines3")

import gymnasium as gym  # noqa: E402 - where it is installed
from stable_baselines3 import PPO, SAC  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


class Counting(gym.Env[Any, Any]):
    """Counts its steps and resets; an episode is seven steps long, and every second one is cut short after five."""

    def __init__(self, action_space: gym.Space[Any] = BOX, observation_space: gym.Space[Any] = BOX) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.n_steps = self.n_resets = self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_resets += 1
        self.at = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        self.at += 1
        cut_short = self.n_resets % 2 == 0 and self.at == 5
        return self.observation_space.sample(), 0.5, self.at == 7, cut_short, {}


def counting_envs(n_envs: int, **kwargs: Any) -> DummyVecEnv:
    return DummyVecEnv([lambda: Counting(**kwargs)] * n_envs)


@contextmanager
def counted(owner: Any, *names: str) -> Iterator[list[str]]:
    """Yield a list that gets the name of every one of an object's methods that is called while the body runs."""
    called: list[str] = []

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return method(*args, **kwargs)

        return count

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, counting(name, getattr(owner, name)))
        yield called


class HalfStepped(DummyVecEnv):
    """Steps all envs and returns the first half of what they say."""

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = super().step_wait()
        half = self.num_envs // 2
        assert isinstance(obs, np.ndarray)
        return obs[:half], rewards[:half], dones[:half], infos[:half]


class NeverReset(DummyVecEnv):
    """Goes on with the observation that an episode ended with."""

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = super().step_wait()
        return obs, rewards, dones, [{} for _ in infos]


@pytest.mark.parametrize("kind", [HalfStepped, NeverReset])
def test_a_vec_env_that_is_wrong(kind: type[DummyVecEnv], wording: Wording) -> None:
    """Rows and resets that are missing are told before anything is timed."""
    with wording.raises(ComponentError):
        vecenv_workload(kind([Counting] * 4)).check()


def sac_agent(kind: type[SAC] = SAC) -> SAC:
    options: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "buffer_size": 500}
    return kind("MlpPolicy", counting_envs(1), device="cpu", **options)


def test_a_sac_agent_that_has_not_learnt() -> None:
    """It gets a logger and random transitions of its env before anything is timed, and no more of either in a call."""
    agent = sac_agent()
    workload = sac_workload(agent, 16)
    assert agent.replay_buffer is not None
    assert agent.replay_buffer.size() == 64
    assert (agent._n_updates, agent._current_progress_remaining, agent.learning_starts) == (0, 1.0, 100)
    workload.check()
    before = agent._n_updates
    with counted(agent, "learn", "collect_rollouts", "set_logger") as called, counted(agent.env, "step") as stepped:
        workload.call()
        workload.call()
    assert (called, stepped, agent._n_updates - before) == ([], [], 2)
    assert workload.processed(2) == 2.0


class WithoutActor(SAC):
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.actor.optimizer, "step", lambda: None)
            super().train(gradient_steps, batch_size)


def test_a_sac_update_that_is_wrong(wording: Wording) -> None:
    """Another number of steps is told by numbers."""
    with wording.raises(ComponentError):
        sac_workload(sac_agent(WithoutActor), 16).check()


def ppo_agent(kind: type[PPO] = PPO, env: Any = None, n_steps: int = 16, **kwargs: Any) -> PPO:
    options: dict[str, Any] = {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": [16]}, "batch_size": 8} | kwargs
    return kind(env=env or counting_envs(2), n_steps=n_steps, device="cpu", **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ppo_agent(),
        lambda: ppo_agent(use_sde=True, sde_sample_freq=4),
        lambda: ppo_agent(n_steps=1, batch_size=2),
        *(
            lambda space=space: ppo_agent(env=counting_envs(2, action_space=space))
            for space in (gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2))
        ),
        lambda: ppo_agent(
            policy="MultiInputPolicy", env=counting_envs(2, observation_space=gym.spaces.Dict({"eye": BOX, "arm": BOX}))
        ),
        lambda: ppo_agent(env=VecNormalize(counting_envs(2))),
        lambda: ppo_agent().learn(64),
    ],
    ids=["box", "sde", "one-step", "discrete", "multi-discrete", "multi-binary", "dict", "normalised", "learnt"],
)
def test_a_ppo_agent(make: Callable[[], PPO]) -> None:
    """Whatever its spaces, its rollouts are its policy's, and every env step is counted."""
    agent = make()
    workload = ppo_workload(agent, agent.n_steps, None)
    workload.check()
    assert agent.env is not None
    assert workload.items == workload.processed(1) == agent.n_steps * 2
    before = sum(agent.env.get_attr("n_steps"))
    with counted(agent.env, "reset") as called:
        workload.call()
        workload.call()
    assert called == []
    assert workload.processed(2) == sum(agent.env.get_attr("n_steps")) - before


class HalfCollected(PPO):
    def collect_rollouts(self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps // 2)


class Unestimated(PPO):
    """Leaves out GAE."""

    def collect_rollouts(self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rollout_buffer, "compute_returns_and_advantage", lambda last_values, dones: None)
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)


@pytest.mark.parametrize("kind", [HalfCollected, Unestimated])
def test_a_rollout_that_is_wrong(kind: type[PPO], wording: Wording) -> None:
    """A rollout that is too short, or has no advantages, is told as that."""
    with wording.raises(ComponentError):
        ppo_workload(ppo_agent(kind), 16, None).check()
