"""An agent whose methods have other names: each is called by a function, and `setup` makes it ready."""

import numpy as np


class Agent:
    def __init__(self, n_steps, n_envs):
        self.generator = np.random.default_rng(0)
        self.weights, self.shape, self.rollout = np.zeros((4, 2)), (n_steps, n_envs), []

    def collect_rollouts(self):
        """Add the steps of a rollout to those that the next `train` uses up."""
        for _ in range(self.shape[0]):
            obs = self.generator.normal(size=(self.shape[1], 4))
            self.rollout.append((obs, np.argmax(obs @ self.weights, 1), obs.sum(1)))
        return self.rollout

    def train(self):
        for obs, actions, rewards in self.rollout:
            self.weights[:, 0] += 1e-3 * obs.T @ (rewards * (actions == 0))
        self.rollout = []
        return self.weights


def test_collect(rlperf_ppo_collect):
    agent = Agent(n_steps=128, n_envs=8)

    def collect():
        agent.rollout = []
        return agent.collect_rollouts()

    rlperf_ppo_collect(collect, items=128 * 8)


def test_update(rlperf_ppo_update):
    agent = Agent(n_steps=128, n_envs=8)
    rlperf_ppo_update(lambda: agent.train(), setup=agent.collect_rollouts)


def test_iteration(rlperf):
    agent = Agent(n_steps=128, n_envs=8)

    def iteration():
        agent.collect_rollouts()
        return agent.train()

    def check(weights):
        assert np.isfinite(weights).all()

    rlperf(iteration, items=128 * 8, unit="env step", check=check)
