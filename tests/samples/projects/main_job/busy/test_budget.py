import pytest
from busy import busy


@pytest.mark.parametrize("number", range(3))
def test_it(rlperf, number):
    result = rlperf(lambda: busy(0.4))
    assert [worker.calls for worker in result.workers] == [1]
