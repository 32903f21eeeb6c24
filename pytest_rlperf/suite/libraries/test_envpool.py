"""EnvPool's CartPole of C++."""

from typing import Any

import pytest

from pytest_rlperf import Measure


def envpool_native_vecenv(num_envs: int) -> Any:
    """Return a pool that steps all envs at once, on one thread."""
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=1)


@pytest.mark.parametrize("num_envs", [8, 64])
def test_envpool_vecenv_step(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env."""
    rlperf_vecenv_step(lambda: envpool_native_vecenv(num_envs))
