"""Components of your own, which a fixture recognises by their methods."""

import random
from collections import deque

import numpy as np


class Actions:
    def sample(self):
        return np.random.randint(2)


class Corridors:
    """Walks of 50 steps, begun again within the step that ends one."""

    def __init__(self, num_envs):
        self.num_envs, self.action_space = num_envs, Actions()

    def reset(self):
        self.places, self.steps = np.zeros((self.num_envs, 1), np.float32), np.zeros(self.num_envs, np.int64)
        return self.places

    def step(self, actions):
        self.places = self.places + (2.0 * actions[:, None] - 1.0).astype(np.float32)
        self.steps += 1
        ended = self.steps == 50
        self.places[ended], self.steps[ended] = 0.0, 0
        return self.places, np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), {}


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(Corridors(8))


class Memory:
    def __init__(self, transitions):
        self.transitions = deque(transitions)

    def sample(self, batch_size):
        return random.sample(self.transitions, batch_size)


def fill(transitions):
    return Memory((np.random.randn(3), np.random.randn(1), 1.0) for _ in range(transitions))


def test_sample(rlperf_replay_sample):
    rlperf_replay_sample(fill(10_000), batch_size=32)


class Hidden:
    """Stands for an extension: only `weights()` shows its state."""

    __slots__ = ("__weights",)

    def __init__(self):
        self.__weights = np.zeros(4)

    def weights(self):
        return self.__weights.tobytes()

    def train(self, batch):
        self.__weights = self.__weights + np.mean([obs.sum() for obs, _, _ in batch])


def test_sac(rlperf):
    agent, memory = Hidden(), fill(1000)
    before = agent.weights()

    def trains(_):
        assert agent.weights() != before, "one update changed no weight"

    rlperf(lambda: agent.train(memory.sample(32)), unit="update", check=trains)


class Collector:
    def __init__(self, env):
        self.env, self.obs = env, env.reset()

    def collect(self, n_steps):
        rollout = {"obs": [], "rewards": []}
        for _ in range(n_steps):
            rollout["obs"].append(self.obs)
            self.obs, rewards, *_ = self.env.step(np.random.randint(2, size=self.env.num_envs))
            rollout["rewards"].append(rewards)
        return {name: np.concatenate(rows) for name, rows in rollout.items()}


def test_collect(rlperf_ppo_collect):
    rlperf_ppo_collect(Collector(Corridors(8)), n_steps=16, items=16 * 8)


class Learner:
    def __init__(self):
        self.weights = np.zeros((4, 2))

    def collect(self, n_steps):
        return {"obs": np.random.rand(n_steps, 8, 4), "rewards": np.random.rand(n_steps, 8)}

    def update(self, rollout):
        for obs, rewards in zip(rollout["obs"], rollout["rewards"], strict=True):
            self.weights += 0.01 * obs.T @ (rewards[:, None] - obs @ self.weights)


def test_ppo_update(rlperf_ppo_update):
    rlperf_ppo_update(Learner(), n_steps=16)


def test_train(rlperf_train):
    rlperf_train(Learner(), n_steps=16)
