"""Steps of a synchronous vector env of gymnasium's CartPole."""

import pytest

from pytest_rlperf import Measure


@pytest.mark.parametrize("num_envs", [8, 64])
def test_vecenv_step(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env; resets after an episode's end are not counted as steps."""
    pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'pytest-rlperf[rl]'")
    from pytest_rlperf.components.reference.ppo import make_vec_env

    result = rlperf_vecenv_step(lambda: make_vec_env("CartPole-v1", num_envs))
    assert not result.measured or result.items <= num_envs
