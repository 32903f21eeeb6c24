import threading

import pytest


def work():
    return sum(range(1000))


def wait_for_ever():
    threading.Event().wait()


@pytest.mark.rlperf(max_time=0.5)  # a busy machine takes longer than the default to come to worker 2
def test_hangs(rlperf, worker):
    print("before hanging")
    rlperf(wait_for_ever if worker == "rlperf2" else work)


def test_after(rlperf):
    rlperf(work)


@pytest.mark.rlperf(max_time=0.0001)  # enough for the other workers to be set up
def test_other_raises(rlperf, worker):
    if worker == "rlperf2":
        raise ValueError("only there")
    rlperf(work)


@pytest.mark.rlperf(max_time=0.0001)
def test_other_skips(rlperf, worker):
    if worker == "rlperf1":
        pytest.skip("skipped there")
    rlperf(work)


@pytest.mark.rlperf(max_time=0.0001)
def test_other_calls_nothing(rlperf, worker):
    if worker != "rlperf1":
        rlperf(work)


@pytest.mark.rlperf(max_time=2)
def test_other_component_raises(rlperf, worker):
    def broken():
        raise KeyError("component broke there")

    rlperf(broken if worker == "rlperf2" else work)


def test_reporter_raises(rlperf, worker):
    if worker == "rlperf0":
        raise ValueError("only here")
    rlperf(work)


def test_reporter_skips(rlperf, worker):
    if worker == "rlperf0":
        pytest.skip("skipped here")
    rlperf(work)


def test_broad_except(rlperf):
    try:
        rlperf(work)
    except Exception:
        pytest.fail("caught what is not the test's")


def test_last(rlperf):
    rlperf(work)


def test_exits(rlperf):
    pytest.exit("enough of this", returncode=9)
