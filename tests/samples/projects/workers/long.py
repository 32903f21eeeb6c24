import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def say(text):
    with (HERE / "events").open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


@pytest.fixture(scope="session")
def lives():
    say("up")
    yield
    say("down")


@pytest.fixture(scope="session")
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with (HERE / "events").open("a") as file:
        file.write(f"child {process.pid}\n")


@pytest.fixture
def slow():
    say("setting up")
    time.sleep(2)


def work():
    return sum(range(1000))


def test_quick(rlperf, lives, child):
    rlperf(work)


def test_long(rlperf, lives):
    calls = 0

    def call():
        nonlocal calls
        calls += 1
        if calls == 100:
            say("measuring")
        return work()

    rlperf(call)


def test_slow_setup(rlperf, lives, slow):
    rlperf(work)


def test_after_slow_setup(rlperf, lives):
    rlperf(work)
