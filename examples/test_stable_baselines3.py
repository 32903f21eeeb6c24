"""Stable-Baselines3: its vector env, buffers, SAC and PPO; a function for a normalised batch."""

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: make_vec_env("CartPole-v1", n_envs=8))


def test_sample(rlperf_replay_sample):
    box = gym.spaces.Box(-1.0, 1.0, (17,), np.float32)
    buffer = ReplayBuffer(10_000, box, box, device="cpu")
    for _ in range(1_000):
        row = box.sample()[None]
        buffer.add(row, row, row, np.ones(1), np.zeros(1), [{}])
    rlperf_replay_sample(buffer, batch_size=256)


def test_gae(rlperf_gae):
    box = gym.spaces.Box(-1.0, 1.0, (17,), np.float32)
    buffer = RolloutBuffer(128, box, box, device="cpu", n_envs=8)
    rlperf_gae(buffer.compute_returns_and_advantage, n_steps=128, n_envs=8)


def test_sac(rlperf_sac_update):
    agent = SAC("MlpPolicy", "Pendulum-v1", device="cpu")
    rlperf_sac_update(agent, batch_size=256)


def test_collect(rlperf_ppo_collect):
    agent = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), n_steps=128, device="cpu")
    rlperf_ppo_collect(agent, n_steps=128)


def test_ppo_update(rlperf_ppo_update):
    agent = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), n_steps=128, device="cpu")
    rlperf_ppo_update(agent, n_steps=128)


def test_train(rlperf_train):
    agent = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), n_steps=128, device="cpu")
    rlperf_train(agent, n_steps=128)


def test_sample_normalised(rlperf_replay_sample):
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("Pendulum-v1"))
    agent = SAC("MlpPolicy", env, device="cpu", learning_starts=1_000).learn(500)
    rlperf_replay_sample(lambda: agent.replay_buffer.sample(256, env=env), batch_size=256)
