"""SAC gradient steps on transitions the size of HalfCheetah's."""

from typing import Any

import numpy as np
import pytest

from pytest_rlperf import Measure

OBS_DIM, ACT_DIM, FILLED = 17, 6, 10_000


@pytest.fixture
def agent() -> Any:
    """Return an agent whose buffer holds random transitions."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'pytest-rlperf[rl]'")
    from pytest_rlperf.components.reference import SAC, ReplayBuffer

    generator = np.random.default_rng(0)
    buffer = ReplayBuffer(FILLED, OBS_DIM, ACT_DIM)
    buffer.add(
        generator.normal(size=(FILLED, OBS_DIM)).astype(np.float32),
        generator.uniform(-1, 1, size=(FILLED, ACT_DIM)).astype(np.float32),
        generator.normal(size=FILLED).astype(np.float32),
        generator.normal(size=(FILLED, OBS_DIM)).astype(np.float32),
        generator.random(FILLED) < 0.01,
    )
    return SAC(OBS_DIM, ACT_DIM, buffer)


def test_sac_update(rlperf_sac_update: Measure, agent: Any) -> None:
    """One update of critics, actor, temperature and targets from a batch of 256."""
    rlperf_sac_update(agent, batch_size=256)
