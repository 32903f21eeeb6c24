import pytest
from library import Simulator


@pytest.mark.parametrize("joints", [16, 64, 256])
def test_step(rlperf, joints):
    rlperf(Simulator(joints).step, unit="step")
