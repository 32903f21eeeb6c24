import pytest
from library import STEPS, Trainer


@pytest.mark.parametrize("stored", [10_000, 100_000, 1_000_000])
def test_collect(rlperf, stored):
    rlperf(Trainer(stored, stored).collect, items=STEPS, unit="env step")


def test_collect_from_the_start(rlperf):
    rlperf(Trainer(1_000_000, stored=0).collect, items=STEPS, unit="env step")
