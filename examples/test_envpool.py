"""EnvPool: pools that step all envs at once, and functions for other pools."""

import envpool
import numpy as np


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=1))


def test_step_with_actions_of_my_own(rlperf_vecenv_step):
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=1)
    actions = np.zeros(8, np.int32)
    pool.reset()
    rlperf_vecenv_step(lambda: pool.step(actions), num_envs=8)


def test_step_of_those_that_are_ready(rlperf_vecenv_step):
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, batch_size=4, seed=1)
    actions = np.zeros(4, np.int32)
    pool.async_reset()

    def receive_and_send():
        *_, info = pool.recv()
        pool.send(actions, info["env_id"])

    rlperf_vecenv_step(receive_and_send, num_envs=4)
