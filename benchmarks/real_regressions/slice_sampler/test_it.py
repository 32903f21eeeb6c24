import pytest
from library import SliceBuffer


@pytest.mark.parametrize("stored", [10_000, 100_000, 1_000_000])
def test_sample(rlperf_replay_sample, stored):
    rlperf_replay_sample(SliceBuffer(stored), batch_size=256)
