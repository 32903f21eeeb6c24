import pytest
from work import work

pytestmark = pytest.mark.rlperf(max_time=1)


def test_slower(rlperf):
    rlperf(work)


@pytest.mark.rlperf(min_change="10s")
def test_min_change(rlperf):
    rlperf(work)


@pytest.mark.rlperf(fail=False)
def test_ungated(rlperf):
    rlperf(work)


@pytest.mark.rlperf(tolerance="1000%")
def test_tolerant(rlperf):
    rlperf(work)


def test_faster(rlperf):
    rlperf(work)


def test_scattered(rlperf):
    rlperf(work)


def test_other_items(rlperf):
    rlperf(work, items=100)


def test_other_unit(rlperf):
    rlperf(work, unit="step")


@pytest.mark.rlperf(max_time=2)
def test_new(rlperf):
    assert rlperf(work, items=7, unit="row").items == 7


def test_fails_before(rlperf):
    raise ValueError("before")


def test_fails_after(rlperf):
    result = rlperf(work)
    assert not result.measured, "after"
