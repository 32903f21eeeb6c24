"""SAC gradient steps on transitions the size of HalfCheetah's."""

from collections.abc import Callable
from typing import Any

import pytest

from pytest_rlperf import Measure


@pytest.fixture
def agent(filled_buffer: Callable[[int], Any]) -> Any:
    """Return an agent whose buffer holds random transitions."""
    from pytest_rlperf.components.reference.sac import SAC

    buffer = filled_buffer(10_000)
    batch = buffer.sample(1)
    return SAC(batch.obs.shape[1], batch.actions.shape[1], buffer)


def test_sac_update(rlperf_sac_update: Measure, agent: Any) -> None:
    """One update of critics, actor, temperature and targets from a batch of 256."""
    rlperf_sac_update(agent, batch_size=256)
