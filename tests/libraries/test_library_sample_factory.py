from __future__ import annotations

from typing import Any

import pytest
from library_checks import harvested

from pytest_rlperf.components.gae import gae_workload

pytestmark = pytest.mark.torch

rl_utils: Any = pytest.importorskip("sample_factory.algo.utils.rl_utils")
torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("n_envs", [1, 5])
def test_gae(n_envs: int) -> None:
    """The function computes the reference's advantages, of one env and of several."""
    workload = gae_workload(rl_utils.gae_advantages, 32, n_envs, "numpy")
    workload.check()
    assert (workload.items, workload.unit) == (32.0 * n_envs, "transition")
    assert list(harvested(workload, 3)) == ["gae"]
