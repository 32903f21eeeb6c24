import numpy as np


def raises():
    raise ZeroDivisionError("in the component")


def refuse(output):
    assert output, f"{output} is wrong"


def nan_gae(rewards, values, dones, last_values):
    return rewards * np.nan


def flat_gae(rewards, values, dones, last_values):
    return rewards[0]


def odd_gae(rewards, x):
    return rewards


class Buffer:
    def __init__(self, size):
        self.size = size

    def sample(self, batch_size):
        if not self.size:
            raise ValueError("the buffer is empty")
        return np.zeros((min(batch_size, self.size), 3))


class Collector:
    def collect(self, n_steps):
        return (np.zeros((n_steps - 1, 2)),)


def test_good_first(rlperf):
    rlperf(int)


def test_raises(rlperf):
    rlperf(raises)


def test_checked(rlperf):
    rlperf(int, check=refuse)


def test_no_items(rlperf):
    rlperf(int, items=0)


def test_no_unit(rlperf):
    rlperf(int, unit=5)


def test_no_callable(rlperf):
    rlperf(3)


def test_no_env(rlperf_vecenv_step):
    rlperf_vecenv_step(object())


def test_small_batch(rlperf_replay_sample):
    rlperf_replay_sample(Buffer(7), 8)


def test_empty(rlperf_replay_sample):
    rlperf_replay_sample(Buffer(0), 8)


def test_no_batch(rlperf_replay_sample):
    rlperf_replay_sample(Buffer(7), 0)


def test_nan(rlperf_gae):
    rlperf_gae(nan_gae, n_steps=8, n_envs=2)


def test_shape(rlperf_gae):
    rlperf_gae(flat_gae, n_steps=8, n_envs=2)


def test_names(rlperf_gae):
    rlperf_gae(odd_gae, n_steps=8, n_envs=2)


def test_rollout(rlperf_ppo_collect):
    rlperf_ppo_collect(Collector(), 8)


def test_good_last(rlperf):
    rlperf(int)
