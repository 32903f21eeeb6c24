import os
import sys
import time
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def say(text):
    with (HERE / "events").open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


def work():
    return sum(range(1000))


def for_a_second():
    deadline = time.perf_counter() + 0.3
    while time.perf_counter() < deadline:
        work()


@pytest.mark.timeout(0.5)
def test_longer_than_its_timeout(rlperf):
    for_a_second()
    for_a_second()
    rlperf(work)


@pytest.mark.flaky(reruns=2)
def test_fails(rlperf):
    say("ran")
    rlperf(work)
    raise ValueError("once")


def test_traced_by_nobody(rlperf):
    assert sys.gettrace() is None
    monitoring = getattr(sys, "monitoring", None)
    assert monitoring is None or monitoring.get_tool(monitoring.COVERAGE_ID) is None
    rlperf(work)


def test_warns(rlperf):
    rlperf(lambda: warnings.warn("from the component", FutureWarning))
