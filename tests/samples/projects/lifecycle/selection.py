import pytest


def work():
    return sum(range(1000))


def test_first(rlperf):
    rlperf(work)


def test_second_fails(rlperf):
    rlperf(work)
    assert 0


@pytest.mark.slow
def test_third_slow(rlperf):
    rlperf(work)


@pytest.mark.parametrize("odd", ["a/b", "c::d", "e f", "\u00e9"])
def test_odd(rlperf, odd):
    rlperf(work)


def test_fifth_fails(rlperf):
    assert 0


def test_sixth(rlperf):
    rlperf(work)


def test_not_measured():
    raise AssertionError("deselected")
