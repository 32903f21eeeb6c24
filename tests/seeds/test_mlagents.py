"""ML-Agents' timers: a tree for each thread, gauges, metadata, trees of subprocesses, and its file."""

from __future__ import annotations

import json
import math
import multiprocessing
import threading
import time
from typing import Any

import pytest

from pytest_rlperf.compat import mlagents as timers


@pytest.fixture(autouse=True)
def _empty() -> None:
    timers.reset_timers()


def counts(node: timers.TimerNode) -> dict[str, Any]:
    """Return the number of entries of each path below a node, in nested mappings."""
    return {name: (child.count, counts(child)) for name, child in node.children.items()}


def test_timed_and_hierarchical_timer() -> None:
    """Decorated functions and scopes are paths within each other, and an exception ends a scope like any other."""

    @timers.timed
    def act() -> str:
        return "acted"

    with timers.hierarchical_timer("episode"):
        for _ in range(3):
            with timers.hierarchical_timer("step"):
                assert act() == "acted"
        with pytest.raises(RuntimeError), timers.hierarchical_timer("fails"):
            raise RuntimeError
    name = act.__qualname__
    assert counts(timers.get_timer_root()) == {"episode": (1, {"step": (3, {name: (3, {})}), "fails": (1, {})})}


def test_a_stack_that_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests put a stack of their own in the place of the thread's, and scopes take one as an argument."""
    replaced, given = timers.TimerStack(), timers.TimerStack()
    with monkeypatch.context() as patch:
        patch.setattr(timers, "_get_thread_timer", lambda: replaced)
        with timers.hierarchical_timer("step"):
            timers.set_gauge("reward", 1.0)
        with timers.hierarchical_timer("step", given):
            pass
    assert counts(replaced.root) == counts(given.root) == {"step": (1, {})}
    assert replaced.gauges["reward"].value == 1.0
    assert counts(timers.get_timer_root()) == {}


def test_gauges_and_metadata() -> None:
    """A gauge has its last value, its extremes and how often it was set; NaN is no value, and texts are kept."""
    for value in (2.0, 5.0, math.nan, 1.0):
        timers.set_gauge("reward", value)
    timers.add_metadata("torch", "2.13")
    tree = timers.get_timer_tree()
    assert tree["gauges"] == {"reward": {"value": 1.0, "min": 1.0, "max": 5.0, "count": 3}}
    assert tree["metadata"]["torch"] == "2.13"
    assert tree["metadata"].keys() >= {"timer_format_version", "start_time_seconds", "python_version"}


def test_threads_have_trees_of_their_own() -> None:
    """What a thread times is found by the thread, and is no part of another's tree."""

    def work() -> None:
        with timers.hierarchical_timer("work"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    stack = timers.get_timer_stack_for_thread(thread)
    assert stack is not None
    assert counts(stack.root) == {"work": (1, {})}
    assert counts(timers.get_timer_root()) == {}


def _step(connection: Any) -> None:
    timers.reset_timers()
    with timers.hierarchical_timer("env.step"):
        pass
    connection.send(timers.get_timer_root())


def test_trees_of_subprocesses_are_merged_and_marked() -> None:
    """A worker sends its tree, and the parent adds it as parallel below the path that is open."""
    context = multiprocessing.get_context("fork")
    with timers.hierarchical_timer("workers") as node:
        for _ in range(2):
            receiver, sender = context.Pipe(duplex=False)
            worker = context.Process(target=_step, args=(sender,))
            worker.start()
            node.merge(receiver.recv(), root_name="worker_root")
            worker.join()
    merged = timers.get_timer_tree()["children"]["workers"]["children"]["worker_root"]
    assert (merged["count"], merged["is_parallel"]) == (2, True)
    assert (merged["children"]["env.step"]["count"], merged["children"]["env.step"]["is_parallel"]) == (2, True)
    assert "is_parallel" not in timers.get_timer_tree()["children"]["workers"]


def test_the_file_has_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node has total, count and self, and those that have some children; the root gauges and metadata."""
    now = iter([0.0, 1.0, 2.0, 5.0, 7.0, 10.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    timers.reset_timers()
    with timers.hierarchical_timer("outer"), timers.hierarchical_timer("inner"):
        pass
    timers.set_gauge("reward", 1.0)
    tree = json.loads(json.dumps(timers.get_timer_tree()))
    assert list(tree) == ["name", "gauges", "metadata", "total", "count", "self", "children"]
    assert (tree["name"], tree["total"], tree["count"], tree["self"]) == ("root", 10.0, 1, 4.0)
    inner = {"total": 3.0, "count": 1, "self": 3.0}
    assert tree["children"] == {"outer": {"total": 6.0, "count": 1, "self": 3.0, "children": {"inner": inner}}}
