"""rlox's components; its own CartPole is of Rust."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pytest_rlperf.suite.libraries.transitions import (
    ACT_DIM,
    BATCH_SIZE,
    IN_AGENT,
    IN_BUFFER,
    OBS_DIM,
    random_transitions,
)


def vecenv(num_envs: int) -> Any:
    """Return a GymVecEnv without statistics of episodes, which others do not keep."""
    from rlox import GymVecEnv

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    return GymVecEnv(SYNTHETIC_ID, num_envs, record_episode_stats=False)


def native_vecenv(num_envs: int) -> Any:
    """Return a VecEnv of CartPole."""
    _keep_to_one_thread()
    from rlox import VecEnv

    return VecEnv(num_envs, seed=0, env_id="CartPole-v1")


def replay() -> Any:
    """Return a full buffer."""
    return _filled(IN_BUFFER)


def gae(n_steps: int, n_envs: int) -> Any:
    """Return the function for many envs, in float32."""
    _keep_to_one_thread()
    from rlox import compute_gae_batched_f32

    return compute_gae_batched_f32


def sac() -> Any:
    """Return an agent."""
    from rlox.algorithms import SAC

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    return SAC(SYNTHETIC_ID, buffer=_filled(IN_AGENT), batch_size=BATCH_SIZE, hidden=256)


def ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent."""
    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    return _ppo(SYNTHETIC_ID, num_envs, n_steps)


def native_ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent in CartPole."""
    return _ppo("CartPole-v1", num_envs, n_steps)


def _ppo(env_id: str, num_envs: int, n_steps: int) -> Any:
    _keep_to_one_thread()
    from rlox.algorithms import PPO

    return PPO(env_id, n_envs=num_envs, n_steps=n_steps)


def _filled(count: int) -> Any:
    _keep_to_one_thread()
    from rlox import ReplayBuffer

    buffer = ReplayBuffer(count, OBS_DIM, ACT_DIM)
    obs, actions, rewards, next_obs, terminated = random_transitions(count)
    ended = terminated.astype(np.uint8)
    buffer.push_batch(obs.ravel(), next_obs.ravel(), actions.ravel(), rewards, ended, np.zeros_like(ended))
    return buffer


def _keep_to_one_thread() -> None:
    """Have rlox start one thread, unless it has started its threads already."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
