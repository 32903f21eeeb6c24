import pytest
from busy import busy


@pytest.mark.rlperf(max_time=4)
def test_more(rlperf):
    result = rlperf(lambda: busy(0.6))
    assert sum(worker.calls for worker in result.workers) > 1


@pytest.mark.rlperf(max_time=0.1)
def test_less(rlperf):
    result = rlperf(lambda: busy(0.2))
    assert [worker.calls for worker in result.workers] == [1]
