"""Stable-Baselines3's six components."""

from typing import Any

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work


def sb3_vecenv(num_envs: int, env_id: str = work.ENV_ID) -> Any:
    """Return a DummyVecEnv."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: gymnasium.make(env_id)] * num_envs)


def sb3_replay(transitions: int) -> Any:
    """Return a full buffer of one env."""
    from stable_baselines3.common.buffers import ReplayBuffer

    env = sb3_vecenv(1)
    return sb3_filled(ReplayBuffer(transitions, env.observation_space, env.action_space, device="cpu"))


def sb3_filled(buffer: Any) -> Any:
    """Add transitions one by one: a buffer of one env takes only one at a time."""
    for obs, action, reward, next_obs, terminated in zip(*work.random_transitions(buffer.buffer_size), strict=True):
        buffer.add(obs[None], next_obs[None], action[None], reward[None], terminated[None], [{}])
    return buffer


def sb3_gae(n_steps: int, n_envs: int) -> Any:
    """Return a rollout buffer; the measured one is a copy of it that holds the rollout."""
    from stable_baselines3.common.buffers import RolloutBuffer

    env = sb3_vecenv(1)
    return RolloutBuffer(n_steps, env.observation_space, env.action_space, device="cpu", n_envs=n_envs)


def sb3_sac(transitions: int) -> Any:
    """Return an agent, its networks as they are by default."""
    from stable_baselines3 import SAC

    agent = SAC("MlpPolicy", sb3_vecenv(1), buffer_size=transitions, batch_size=work.BATCH_SIZE, device="cpu")
    sb3_filled(agent.replay_buffer)
    return agent


def sb3_ppo(num_envs: int, n_steps: int) -> Any:
    """Return an agent, its networks as they are by default."""
    from stable_baselines3 import PPO

    sizes: dict[str, Any] = {
        "n_steps": n_steps,
        "batch_size": num_envs * n_steps // work.MINIBATCHES,
        "n_epochs": work.EPOCHS,
    }
    return PPO("MlpPolicy", sb3_vecenv(num_envs), device="cpu", **sizes)


@pytest.mark.parametrize("num_envs", [8, 64])
def test_sb3_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env, in one process."""
    rlperf_vecenv_step(lambda: sb3_vecenv(num_envs))


def test_sb3_replay_sample(rlperf_replay_sample: Measure) -> None:
    """One batch of tensors."""
    rlperf_replay_sample(sb3_replay(work.IN_BUFFER), batch_size=work.BATCH_SIZE)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
def test_sb3_gae(rlperf_gae: Measure, n_steps: int, n_envs: int) -> None:
    """Advantages of a rollout buffer."""
    rlperf_gae(sb3_gae(n_steps, n_envs), n_steps=n_steps, n_envs=n_envs)


def test_sb3_sac_update(rlperf_sac_update: Measure) -> None:
    """One gradient step of critics, actor and temperature, and of the targets."""
    rlperf_sac_update(sb3_sac(work.IN_AGENT), batch_size=work.BATCH_SIZE)


def test_sb3_ppo_collect_synthetic(rlperf_ppo_collect: Measure) -> None:
    """One rollout with its advantages."""
    rlperf_ppo_collect(sb3_ppo(8, 128), n_steps=128)


def test_sb3_ppo_update(rlperf_ppo_update: Measure) -> None:
    """All epochs on one rollout."""
    rlperf_ppo_update(sb3_ppo(8, 128), n_steps=128)
