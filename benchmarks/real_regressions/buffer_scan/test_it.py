import pytest
from library import STEPS, Trainer


@pytest.mark.parametrize("stored", [10_000, 100_000, 1_000_000])
def test_collect(rlperf, stored):
    rlperf(Trainer(stored).collect, items=STEPS, unit="env step")
