"""Samples from a ring buffer of 100k transitions."""

from typing import Any

import numpy as np
import pytest

from pytest_rlperf import Measure

OBS_DIM, ACT_DIM, CAPACITY = 17, 6, 100_000


@pytest.fixture(scope="module")
def buffer() -> Any:
    """Return a full buffer of random transitions."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'pytest-rlperf[rl]'")
    from pytest_rlperf.components.reference import ReplayBuffer

    generator = np.random.default_rng(0)
    buffer = ReplayBuffer(CAPACITY, OBS_DIM, ACT_DIM)
    buffer.add(
        generator.normal(size=(CAPACITY, OBS_DIM)).astype(np.float32),
        generator.uniform(-1, 1, size=(CAPACITY, ACT_DIM)).astype(np.float32),
        generator.normal(size=CAPACITY).astype(np.float32),
        generator.normal(size=(CAPACITY, OBS_DIM)).astype(np.float32),
        generator.random(CAPACITY) < 0.01,
    )
    return buffer


def test_replay_sample(rlperf_replay_sample: Measure, buffer: Any) -> None:
    """One batch of 256 as PyTorch tensors."""
    rlperf_replay_sample(buffer, batch_size=256)
