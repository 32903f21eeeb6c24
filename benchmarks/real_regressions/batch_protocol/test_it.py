import pytest
from library import ReplayBuffer


@pytest.mark.parametrize("stored", [1_000, 30_000, 300_000])
def test_sample(rlperf_replay_sample, stored):
    rlperf_replay_sample(ReplayBuffer(stored), batch_size=64)
