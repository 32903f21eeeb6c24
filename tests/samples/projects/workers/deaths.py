import ctypes
import os
import signal
import sys

import pytest


def work():
    return sum(range(1000))


calls = 0


def after(count, fatal):
    def call():
        global calls
        calls += 1
        if calls == count:
            fatal()
        return work()

    return call


@pytest.fixture
def dies_in_setup():
    print("last words in setup")
    os._exit(3)


@pytest.fixture
def dies_in_teardown(worker):
    yield
    print("last words in teardown")
    if worker == "rlperf0":
        os._exit(9)


@pytest.fixture(scope="session")
def precious():
    return object()


def test_setup(rlperf, dies_in_setup):
    rlperf(work)


def test_after_setup(rlperf, precious):
    rlperf(work)


def test_call(rlperf):
    print("last words in the call")
    print("last error words", file=sys.stderr)
    os._exit(4)


@pytest.mark.rlperf(max_time=0.5)
def test_measured(rlperf, worker):
    print("last words of", worker)
    rlperf(after(1, lambda: os._exit(5)) if worker == "rlperf2" else work)


def test_after_measured(rlperf, precious):
    rlperf(work)


@pytest.mark.rlperf(max_time=0.5)
def test_killed(rlperf, worker):
    if worker == "rlperf0":
        print("last words before the kill")
        rlperf(after(50, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    rlperf(work)


@pytest.mark.rlperf(max_time=0.0001)  # enough for the other workers to be set up
def test_segfault(rlperf, worker):
    if worker == "rlperf1":
        print("last words before the fault")
        ctypes.string_at(0)
    rlperf(work)


def test_capfd(rlperf, capfd, worker):
    print("last words under capfd", flush=True)
    if worker == "rlperf0":
        os._exit(6)
    rlperf(work)


def test_teardown(rlperf, dies_in_teardown):
    rlperf(work)


def test_last(rlperf, precious):
    rlperf(work)
