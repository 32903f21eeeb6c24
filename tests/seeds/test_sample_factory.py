"""Sample Factory's `Timing`: three ways to time, nested, printed as theirs, sent by each process."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from builders import Seconds

from pytest_rlperf.compat import sample_factory
from pytest_rlperf.compat.sample_factory import Timing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Let our Timing read a clock that stands still."""
    seconds = Seconds()
    monkeypatch.setattr(sample_factory, "_clock", seconds)
    return seconds


def test_add_time_timeit_and_time_avg_nested(clock: Seconds) -> None:
    """`add_time` accumulates, `timeit` keeps the last, `time_avg` the mean of the last few, each below its parent."""
    timing = Timing("Worker 1 profile")
    for seconds in (1.0, 2.0, 6.0):
        with timing.add_time("train"):
            with timing.timeit("last"):
                clock.sleep(seconds)
            with timing.time_avg("mean", 2):
                clock.sleep(seconds)
    assert (timing.train, timing.last, str(timing.mean)) == (18.0, 6.0, "4.0000")
    assert str(timing) == "Worker 1 profile tree view:\ntrain: 18.0000\n  last: 6.0000, mean: 4.0000"


def test_its_text_is_theirs_byte_for_byte(clock: Seconds) -> None:
    """The leaves of a level are on one line, and those with children follow, each with its own below it."""
    timing = Timing("Learner 0 profile")
    with timing.add_time("misc"):
        clock.sleep(0.5)
    with timing.add_time("train"):
        with timing.add_time("forward"), timing.add_time("head"):
            clock.sleep(1)
        with timing.add_time("losses"):
            clock.sleep(0.25)
    with timing.add_time("wait"):
        clock.sleep(0.00005)
    assert str(timing) == (
        "Learner 0 profile tree view:\n"
        "misc: 0.5000, wait: 0.0001\n"
        "train: 1.2500\n"
        "  losses: 0.2500\n"
        "  forward: 1.0000\n"
        "    head: 1.0000"
    )


def _work(name: str, sent: Any) -> None:
    timing = Timing(name)
    with timing.add_time("train"), timing.time_avg("step"):
        pass
    sent.send(timing)


def test_each_process_has_a_tree_of_its_own_with_its_name() -> None:
    """Workers send theirs to the parent, which prints each as the worker would."""
    context = multiprocessing.get_context("fork")
    texts = []
    for number in range(2):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(f"Learner {number} profile", sender))
        worker.start()
        texts.append(str(receiver.recv()).splitlines()[:2])
        worker.join()
    assert [text[0] for text in texts] == ["Learner 0 profile tree view:", "Learner 1 profile tree view:"]
    assert all(text[1].startswith("train: 0.") for text in texts)


@pytest.mark.parametrize(
    "copied",
    [
        *(lambda timing, protocol=protocol: pickle.loads(pickle.dumps(timing, protocol)) for protocol in range(6)),  # noqa: S301
        copy.copy,
        copy.deepcopy,
    ],
)
def test_it_pickles_and_copies(copied: Callable[[Timing], Timing], clock: Seconds) -> None:
    """A copy has the name, the values and the tree, none of its scopes is open, and it goes on by itself."""
    timing = Timing("p", settings={"lr": 1})
    with timing.add_time("a"):
        with timing.time_avg("b", average=2):
            clock.sleep(1)
        other = copied(timing)
    assert type(other) is Timing
    with other.add_time("a"), other.time_avg("b"):
        clock.sleep(3)
    assert str(other) == "p tree view:\na: 3.0000\n  b: 2.0000"
    assert str(timing) == "p tree view:\na: 1.0000\n  b: 1.0000"
    assert other.b.values.maxlen == 2
    assert list(other) == ["settings", "_name", "a", "b"]


def test_it_pickles_while_other_threads_record() -> None:
    """A copy is of one moment: no scope begins and no value changes halfway."""
    timing = Timing()
    done = threading.Event()

    def record() -> None:
        number = 0
        while not done.is_set():
            number += 1
            with timing.add_time(f"scope {number % 100}"), timing.time_avg("mean", 1000):
                pass

    thread = threading.Thread(target=record)
    thread.start()
    try:
        for _ in range(30):
            other = pickle.loads(pickle.dumps(timing))  # noqa: S301
            assert set(other) - {"_name", "mean"} >= set(other._root.children)
    finally:
        done.set()
        thread.join()
