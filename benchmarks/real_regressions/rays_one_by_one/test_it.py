import pytest
import torch
import vmas


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_navigation_step(rlperf_vecenv_step):
    env = vmas.make_env("navigation", num_envs=32, device="cpu", seed=0, n_agents=4)
    actions = env.get_random_actions()
    rlperf_vecenv_step(lambda: env.step(actions), num_envs=32)
