"""rlox's six components, in the synthetic env and in CartPoles of Rust."""

import os
from typing import Any

import numpy as np
import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work

os.environ.setdefault("RAYON_NUM_THREADS", "1")  # rlox starts its threads with its first work


def rlox_vecenv(num_envs: int, env_id: str = work.ENV_ID) -> Any:
    """Return a GymVecEnv without statistics of episodes, which others do not keep."""
    from rlox import GymVecEnv

    return GymVecEnv(env_id, num_envs, record_episode_stats=False)


def rlox_native_vecenv(num_envs: int) -> Any:
    """Return a VecEnv of CartPole."""
    from rlox import VecEnv

    return VecEnv(num_envs, seed=0, env_id="CartPole-v1")


def rlox_replay(transitions: int) -> Any:
    """Return a full buffer."""
    from rlox import ReplayBuffer

    buffer = ReplayBuffer(transitions, work.OBS_DIM, work.ACT_DIM)
    buffer.push_batch(*rlox_columns(transitions))
    return buffer


def rlox_columns(transitions: int) -> Any:
    """Return the arguments of `push_batch`."""
    obs, actions, rewards, next_obs, terminated = work.random_transitions(transitions)
    ended = terminated.astype(np.uint8)
    return obs.ravel(), next_obs.ravel(), actions.ravel(), rewards, ended, np.zeros_like(ended)


def rlox_gae(n_steps: int, n_envs: int) -> Any:
    """Return the function for many envs, in float32."""
    from rlox import compute_gae_batched_f32

    return compute_gae_batched_f32


def rlox_sac(transitions: int) -> Any:
    """Return an agent."""
    from rlox.algorithms import SAC

    return SAC(work.ENV_ID, buffer=rlox_replay(transitions), batch_size=work.BATCH_SIZE, hidden=256)


def rlox_ppo(num_envs: int, n_steps: int, env_id: str = work.ENV_ID) -> Any:
    """Return an agent."""
    from rlox.algorithms import PPO

    batch_size = num_envs * n_steps // work.MINIBATCHES
    return PPO(env_id, n_envs=num_envs, n_steps=n_steps, batch_size=batch_size, n_epochs=work.EPOCHS)


def rlox_native_ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent in CartPole."""
    return rlox_ppo(num_envs, n_steps, "CartPole-v1")


@pytest.mark.parametrize("num_envs", [8, 64])
def test_rlox_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env, in one process."""
    rlperf_vecenv_step(lambda: rlox_vecenv(num_envs))


@pytest.mark.parametrize("num_envs", [8, 64])
def test_rlox_vecenv_step(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every CartPole, on one thread."""
    rlperf_vecenv_step(lambda: rlox_native_vecenv(num_envs))


def test_rlox_replay_sample(rlperf_replay_sample: Measure) -> None:
    """One batch of NumPy arrays."""
    rlperf_replay_sample(rlox_replay(work.IN_BUFFER), batch_size=work.BATCH_SIZE)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
def test_rlox_gae(rlperf_gae: Measure, n_steps: int, n_envs: int) -> None:
    """Advantages of a rollout."""
    rlperf_gae(rlox_gae(n_steps, n_envs), n_steps=n_steps, n_envs=n_envs)


def test_rlox_sac_update(rlperf_sac_update: Measure) -> None:
    """One gradient step of critics, actor and temperature, and of the targets."""
    rlperf_sac_update(rlox_sac(work.IN_AGENT), batch_size=work.BATCH_SIZE)


def test_rlox_ppo_collect_synthetic(rlperf_ppo_collect: Measure) -> None:
    """One rollout with its advantages."""
    rlperf_ppo_collect(rlox_ppo(8, 128), n_steps=128)


def test_rlox_ppo_collect(rlperf_ppo_collect: Measure) -> None:
    """One rollout of CartPoles with its advantages."""
    rlperf_ppo_collect(rlox_native_ppo(8, 128), n_steps=128)


def test_rlox_ppo_update(rlperf_ppo_update: Measure) -> None:
    """All epochs on one rollout."""
    rlperf_ppo_update(rlox_ppo(8, 128), n_steps=128)
