"""An env of many agents with PettingZoo's parallel interface, and a rollout of a policy that they share."""

import numpy as np


class Actions:
    def sample(self):
        return np.random.randint(5)

    def seed(self, seed):
        np.random.seed(seed)


class Tag:
    """Runners on a plane, each of which is done when a tagger is close to it; PettingZoo's classes are not needed."""

    moves = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)], np.float32)

    def __init__(self, taggers=2, runners=6):
        self.taggers = [f"tagger_{number}" for number in range(taggers)]
        self.possible_agents = self.taggers + [f"runner_{number}" for number in range(runners)]
        self.agents = []

    def action_space(self, agent):
        return Actions()

    def reset(self, seed=None, options=None):
        generator = np.random.default_rng(seed)
        self.agents, self.steps = self.possible_agents[:], 0
        self.places = {agent: generator.uniform(-5, 5, 2).astype(np.float32) for agent in self.agents}
        return self.observations(), {agent: {} for agent in self.agents}

    def observations(self):
        taggers = np.concatenate([self.places[tagger] for tagger in self.taggers])
        return {agent: np.concatenate([self.places[agent], taggers]) for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        for agent, action in actions.items():
            self.places[agent] = self.places[agent] + 0.1 * self.moves[action]
        tagged = {agent: agent not in self.taggers and self.is_close(agent) for agent in self.agents}
        ended = dict.fromkeys(self.agents, self.steps == 100)
        rewards = {agent: 1.0 - 2.0 * tagged[agent] for agent in self.agents}
        observations, infos = self.observations(), {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (tagged[agent] or ended[agent])]
        return observations, rewards, tagged, ended, infos

    def is_close(self, agent):
        return any(np.linalg.norm(self.places[agent] - self.places[tagger]) < 0.5 for tagger in self.taggers)


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: Tag())


def make_collect(env, n_steps):
    weights = np.random.default_rng(0).normal(size=(6, 5))

    def collect():
        """Step the env, and begin again where no runner is left; the number of agents differs from step to step."""
        rollout = {"obs": [], "rewards": []}
        observations, _ = env.reset(seed=0)
        for _ in range(n_steps):
            actions = dict(zip(observations, np.argmax(np.stack([*observations.values()]) @ weights, 1), strict=True))
            rollout["obs"].extend(observations.values())
            observations, rewards, *_ = env.step(actions)
            rollout["rewards"].extend(rewards.values())
            observations = {agent: observations[agent] for agent in env.agents} or env.reset(seed=1)[0]
        return {name: np.stack(rows) for name, rows in rollout.items()}

    return collect


def test_collect(rlperf_ppo_collect):
    collect = make_collect(Tag(), n_steps=64)
    rlperf_ppo_collect(collect, items=len(collect()["rewards"]))
