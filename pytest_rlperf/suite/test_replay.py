"""Samples from a ring buffer of 100k transitions."""

from collections.abc import Callable
from typing import Any

import pytest

from pytest_rlperf import Measure


@pytest.fixture(scope="module")
def buffer(filled_buffer: Callable[[int], Any]) -> Any:
    """Return a full buffer of random transitions."""
    return filled_buffer(100_000)


def test_replay_sample(rlperf_replay_sample: Measure, buffer: Any) -> None:
    """One batch of 256 as PyTorch tensors."""
    rlperf_replay_sample(buffer, batch_size=256)
