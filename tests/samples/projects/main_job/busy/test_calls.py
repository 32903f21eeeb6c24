from busy import busy


def test_too_long(rlperf):
    result = rlperf(lambda: busy(0.6))
    assert [worker.calls for worker in result.workers] == [1]
    assert len(result.notes) == 2  # this, and that there is no profile


def test_long(rlperf):
    result = rlperf(lambda: busy(0.15))
    assert len(result.workers) == 1
    assert len(result.notes) == 1


def test_short(rlperf):
    result = rlperf(int)
    assert all(worker.calls >= 100 * worker.slices for worker in result.workers)
