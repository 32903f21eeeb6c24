"""gymnasium: a vector env in its three autoreset modes, and a single env."""

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
    rlperf_vecenv_step(lambda: gym.make("CartPole-v1"))
