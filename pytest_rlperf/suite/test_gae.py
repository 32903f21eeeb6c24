"""Generalized advantage estimation over a rollout."""

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.components.reference.gae import compute_gae


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
def test_gae(rlperf_gae: Measure, n_steps: int, n_envs: int) -> None:
    """One backward scan in NumPy."""
    rlperf_gae(compute_gae, n_steps=n_steps, n_envs=n_envs)
