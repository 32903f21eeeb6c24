"""rlox: its envs, buffers, GAE, SAC and PPO, and functions for its collector and V-trace."""

import numpy as np
import pytest
import rlox
from rlox.algorithms.ppo import PPO
from rlox.algorithms.sac import SAC


def fill(buffer, transitions=1000):
    rng = np.random.default_rng(0)
    for _ in range(transitions):
        obs, action = rng.normal(size=3).astype("f"), rng.uniform(-2, 2, 1).astype("f")
        buffer.push(obs, action, rng.normal(), False, False, obs)


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: rlox.VecEnv(n=16, seed=0, env_id="CartPole-v1"))


def test_sample(rlperf_replay_sample):
    buffer = rlox.ReplayBuffer(10_000, 3, 1)
    fill(buffer)
    rlperf_replay_sample(buffer, batch_size=256)


@pytest.mark.parametrize("function", [rlox.compute_gae, rlox.compute_gae_batched], ids=["one", "batched"])
def test_gae(rlperf_gae, function):
    rlperf_gae(function, n_steps=128, n_envs=8)


def test_sac(rlperf_sac_update):
    agent = SAC("Pendulum-v1", batch_size=64, buffer_size=10_000)
    fill(agent.buffer)
    rlperf_sac_update(agent, batch_size=64)


def test_collect(rlperf_ppo_collect):
    rlperf_ppo_collect(PPO("CartPole-v1", n_envs=8), n_steps=128)


def test_ppo_update(rlperf_ppo_update):
    rlperf_ppo_update(PPO("CartPole-v1", n_envs=8), n_steps=128)


def test_train(rlperf_train):
    rlperf_train(PPO("CartPole-v1", n_envs=8), n_steps=128)


def test_collector(rlperf_ppo_collect):
    collector = rlox.collectors.RolloutCollector("CartPole-v1", n_envs=8)
    policy = rlox.DiscretePolicy(obs_dim=4, n_actions=2)
    rlperf_ppo_collect(lambda: collector.collect(policy, 128), items=128 * 8)


def test_vtrace(rlperf):
    arrays = [np.zeros(128, np.float32) for _ in range(4)]
    rlperf(lambda: rlox.compute_vtrace(*arrays, 0.0, 0.99), items=128, unit="transition")
