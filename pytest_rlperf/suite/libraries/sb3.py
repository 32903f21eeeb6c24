"""Stable-Baselines3's components."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytest_rlperf.suite.libraries.transitions import BATCH_SIZE, IN_AGENT, IN_BUFFER, random_transitions


def vecenv(num_envs: int) -> Any:
    """Return a DummyVecEnv."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    return DummyVecEnv([partial(gymnasium.make, SYNTHETIC_ID)] * num_envs)


def replay() -> Any:
    """Return a buffer of one env."""
    from stable_baselines3.common.buffers import ReplayBuffer

    env = vecenv(1)
    buffer = ReplayBuffer(IN_BUFFER, env.observation_space, env.action_space, device="cpu")
    _fill(buffer, IN_BUFFER)
    return buffer


def gae(n_steps: int, n_envs: int) -> Any:
    """Return a rollout buffer, of which the rollout's copy is measured."""
    from stable_baselines3.common.buffers import RolloutBuffer

    env = vecenv(1)
    return RolloutBuffer(n_steps, env.observation_space, env.action_space, device="cpu", n_envs=n_envs)


def sac() -> Any:
    """Return an agent, its networks as they are by default."""
    from stable_baselines3 import SAC

    agent = SAC("MlpPolicy", vecenv(1), buffer_size=IN_AGENT, batch_size=BATCH_SIZE, device="cpu")
    _fill(agent.replay_buffer, IN_AGENT)
    return agent


def ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent, its networks as they are by default."""
    from stable_baselines3 import PPO

    return PPO("MlpPolicy", vecenv(num_envs), n_steps=n_steps, batch_size=BATCH_SIZE, device="cpu")


def _fill(buffer: Any, count: int) -> None:
    """Add transitions one by one: a buffer of one env takes no more."""
    transitions = random_transitions(count)
    for obs, action, reward, next_obs, terminated in zip(*transitions, strict=True):
        buffer.add(obs[None], next_obs[None], action[None], reward[None], terminated[None], [{}])
