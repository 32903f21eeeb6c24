import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

calls = Counter()


def gae(rewards, values, dones, last_values, gamma, lam):
    calls["gae"] += 1
    advantages, running = np.zeros_like(rewards), 0.0
    following = last_values
    for t in reversed(range(len(rewards))):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * following * alive - values[t]
        running = advantages[t] = delta + gamma * lam * alive * running
        following = values[t]
    return advantages


class Buffer:
    def sample(self, batch_size):
        calls["replay"] += 1
        return {"observations": np.zeros((batch_size, 3)), "rewards": np.zeros(batch_size)}


class Collector:
    def collect(self, n_steps):
        calls["ppo"] += 1
        return {"rewards": np.zeros((n_steps, 2))}


def count(name):
    def call():
        calls[name] += 1

    return call


def test_rlperf(rlperf):
    result = rlperf(count("rlperf"), setup=count("setup"), check=lambda output: count("check")(), items=3)
    assert result.items == 3
    assert not result.measured
    assert calls["rlperf"] == calls["setup"] == calls["check"] == 1


def test_gae(rlperf_gae):
    assert rlperf_gae(gae, n_steps=16, n_envs=2).items == 32
    assert calls["gae"] == 1


def test_replay(rlperf_replay_sample):
    assert rlperf_replay_sample(Buffer(), batch_size=8).items == 8
    assert calls["replay"] == 1


weights = np.zeros(3)


def update():
    calls["sac"] += 1
    weights[:] += 0.5


def test_sac(rlperf_sac_update):
    rlperf_sac_update(update)
    assert calls["sac"] == 1


def test_ppo(rlperf_ppo_collect):
    rlperf_ppo_collect(Collector(), n_steps=4)
    assert calls["ppo"] == 1


def test_vecenv(rlperf_vecenv_step):
    gym = pytest.importorskip("gymnasium")

    class Env(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            calls["vecenv"] += 1
            return self.observation_space.sample(), 0.0, False, False, {}

    assert rlperf_vecenv_step(lambda: gym.vector.SyncVectorEnv([Env])).items == 1
    assert 1 <= calls["vecenv"] <= 100  # its check steps until an episode ends, or so often


def test_wrong_component(rlperf):
    with pytest.raises(ValueError, match="wrong"):
        rlperf(lambda: 1, check=lambda output: int("wrong"))


def test_twice(rlperf):
    rlperf(lambda: None)
    rlperf(lambda: None)


def test_nothing_else_is_loaded():
    loaded = {name for name in sys.modules if name.startswith("pytest_rlperf.")}
    assert not loaded & {"pytest_rlperf.run.hooks", "pytest_rlperf.run.loop", "pytest_rlperf.run.drivers"}
