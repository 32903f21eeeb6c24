"""Lanes: how many there are, who has one next, and how a run uses them."""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import builders
import pytest

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.options import read_config
from pytest_rlperf.run.live_comparison import Lanes, count_lanes
from pytest_rlperf.run.loop import Budget


def machine(root: Path, siblings: dict[int, str], quota: str | None = None) -> tuple[Path, Path]:
    """Write what Linux shows of CPUs and of a cgroup; return the directories of both."""
    cores, cgroup = root / "cpu", root / "cgroup"
    for cpu, text in siblings.items():
        topology = cores / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    cgroup.mkdir()
    if quota is not None:
        (cgroup / "cpu.max").write_text(f"{quota}\n")
    return cores, cgroup


def test_every_core_is_a_lane(tmp_path: Path) -> None:
    """Hyper-threads of a core are one lane, on the first of them that the process may use."""
    cores, cgroup = machine(tmp_path, {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"})
    assert count_lanes([0, 1, 4, 5], cores, cgroup).cpus == (0, 1)
    assert count_lanes([4, 5], cores, cgroup).cpus == (4, 5)
    assert count_lanes([0, 4], cores, cgroup).most == 1


@pytest.mark.parametrize(
    ("limit", "quota", "most"),
    [
        ("max 100000", None, 4),
        ("150000 100000", 1.5, 1),
        ("50000 100000", 0.5, 1),
        ("300000 100000", 3.0, 3),
        ("", None, 4),
    ],
)
def test_a_quota_limits_the_lanes(tmp_path: Path, limit: str, quota: float | None, most: int) -> None:
    """A cgroup that may use fewer CPUs at once has fewer lanes, and one at least."""
    found = count_lanes([0, 1, 2, 3], *machine(tmp_path, {}, limit))
    assert (found.quota, found.most) == (quota, most)


class Holder:
    """A thread that has its lane until it is let go; it notes in ``log`` when it came."""

    def __init__(self, lane: AbstractContextManager[int | None], name: str, log: list[str]) -> None:
        self.cpu: int | None = None
        self.came = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(lane, name, log), daemon=True)
        self._thread.start()

    def _hold(self, lane: AbstractContextManager[int | None], name: str, log: list[str]) -> None:
        with lane as self.cpu:
            log.append(name)
            self.came.set()
            self._leave.wait(10)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(10)


class Queue:
    """Threads that want lanes; the names of those that had one are in ``log``."""

    def __init__(self, lanes: Lanes) -> None:
        self.log: list[str] = []
        self._lanes = lanes

    def enter(self, name: str, test: int, pair: int = 0, *, all_of_them: bool = False) -> Holder:
        holder = Holder(self._lanes.lane(test, pair, all_of_them=all_of_them), name, self.log)
        assert holder.came.wait(10)
        return holder

    def wait(self, name: str, test: int, pair: int = 0, *, all_of_them: bool = False) -> Holder:
        waiting = len(self._lanes._queue)
        holder = Holder(self._lanes.lane(test, pair, all_of_them=all_of_them), name, self.log)
        deadline_s = time.monotonic() + 10
        while len(self._lanes._queue) == waiting and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert not holder.came.is_set()
        return holder


def test_each_holder_has_a_cpu_of_its_own() -> None:
    """As many lanes are had at once as there are, each with another CPU; the next one waits."""
    lanes = Lanes(2, (4, 7))
    queue = Queue(lanes)
    first = queue.enter("first", 0, 0)
    assert lanes.free == 1
    second = queue.enter("second", 0, 1)
    assert {first.cpu, second.cpu} == {4, 7}
    third = queue.wait("third", 1)
    assert lanes.free == 0
    second.leave()
    assert third.came.wait(10)
    assert third.cpu == second.cpu
    first.leave()
    third.leave()
    assert lanes.free == 2


def test_earlier_tests_come_first_and_their_earlier_pairs() -> None:
    """Who came first does not matter, but among those of one pair."""
    queue = Queue(Lanes(1, (0,)))
    busy = queue.enter("busy", 0)
    turns = {"c1": (2, 1), "c0": (2, 0), "c0 again": (2, 0), "b4": (1, 4)}
    holders = {name: queue.wait(name, *turn) for name, turn in turns.items()}
    busy.leave()
    for name in ("b4", "c0", "c0 again", "c1"):
        assert holders[name].came.wait(10)
        holders[name].leave()
    assert queue.log == ["busy", "b4", "c0", "c0 again", "c1"]


def test_the_whole_machine_waits_for_all_and_lets_no_later_one_in() -> None:
    """Work of many threads begins once every lane is free, and is not overtaken for ever."""
    lanes = Lanes(2, (0, 1))
    queue = Queue(lanes)
    first, second = queue.enter("first", 0, 0), queue.enter("second", 0, 1)
    wide, later = queue.wait("wide", 1, all_of_them=True), queue.wait("later", 2)
    first.leave()
    assert lanes.free == 0  # the one that is idle is waited for
    assert not wide.came.is_set()
    assert not later.came.is_set()
    second.leave()
    assert wide.came.wait(10)
    assert not later.came.is_set()
    wide.leave()
    assert later.came.wait(10)
    later.leave()


def test_a_lane_is_given_back_after_an_error() -> None:
    """A test that cannot be measured does not hold up the others."""
    lanes = Lanes(2, (0, 1))
    with pytest.raises(ZeroDivisionError), lanes.lane(0, all_of_them=True):
        raise ZeroDivisionError
    assert lanes.free == 2


def test_closing_ends_all_waiting() -> None:
    """A run that is stopped leaves nobody waiting."""
    lanes = Lanes(1, (0,))
    with lanes.lane(0):
        lanes.close()
        with pytest.raises(MeasurementError, match="stopped"), lanes.lane(1):
            raise AssertionError


@pytest.mark.parametrize(
    ("args", "tests", "lanes", "each_s"),
    [
        pytest.param([], 10, 1, 180, id="few tests, each limited by --rlperf-max-time alone"),
        pytest.param([], 300, 2, 12, id="many tests share half an hour"),
        pytest.param([], 3000, 2, 9, id="so many that their fewest pairs take longer"),
        pytest.param(["--rlperf-budget=600"], 300, 2, 4, id="the user's budget"),
        pytest.param(["--rlperf-selfcheck"], 300, 1, math.inf, id="a self-check takes its time"),
    ],
)
def test_many_tests_share_a_time(
    pytester: pytest.Pytester, args: list[str], tests: int, lanes: int, each_s: float
) -> None:
    """The budget grows with the number of tests only where the fewest pairs of each would not fit."""
    budget = Budget(read_config(pytester.parseconfigure(*args)), tests, lanes, builders.Seconds())
    assert budget.next_s() == each_s


def test_tests_that_are_settled_early_leave_their_time(pytester: pytest.Pytester) -> None:
    """What is left is shared anew whenever a test begins, and one test gets no more than there is."""
    clock = builders.Seconds()
    budget = Budget(read_config(pytester.parseconfigure("--rlperf-budget=100")), 5, 2, clock)
    assert [budget.next_s(), budget.next_s()] == [40.0, 50.0]
    clock.now = 10.0
    assert budget.next_s() == 60.0
    clock.now = 70.0
    assert [budget.next_s(), budget.next_s()] == [30.0, 30.0]
    clock.now = 200.0
    assert 0 < budget.next_s() < 1e-3
