"""gymnasium: a vector env in its three autoreset modes, and a single env by a thunk."""

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode


@pytest.mark.parametrize("mode", AutoresetMode)
def test_step(rlperf_vecenv_step, mode):
    rlperf_vecenv_step(
        lambda: gym.make_vec(
            "CartPole-v1", num_envs=8, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )
    )


def test_single_env(rlperf_vecenv_step):
    env = gym.make("CartPole-v1")
    env.reset(seed=0)

    def step():
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()

    rlperf_vecenv_step(step, num_envs=1)
