"""Lanes: how many there are, who has one next, and how a run uses them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import builders
import pytest
from wording import Wording

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.options import read_config
from pytest_rlperf.run.lanes import Lanes, LanesOfTest, Place, count_lanes
from pytest_rlperf.run.loop import Budget

# --------------------------------------------------------------------------- how many


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


def test_unknown_cores_are_cores_of_their_own(tmp_path: Path) -> None:
    """Where the system does not list siblings every CPU is a lane; without CPUs there is one lane."""
    cores, cgroup = machine(tmp_path, {})
    assert count_lanes([2, 3], cores, cgroup).most == 2
    assert count_lanes([], cores, cgroup).most == 1


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


# --------------------------------------------------------------------------- who comes next


class Holder:
    """A thread that has its place until it is let go; it notes in ``log`` when it came."""

    def __init__(self, place: Place, name: str, log: list[str]) -> None:
        self.cpu: int | None = None
        self.came = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(place, name, log), daemon=True)
        self._thread.start()

    def _hold(self, place: Place, name: str, log: list[str]) -> None:
        with place as self.cpu:
            log.append(name)
            self.came.set()
            self._leave.wait(10)

    def leave(self) -> None:
        """Give the place back."""
        self._leave.set()
        self._thread.join(10)


@pytest.fixture
def hold() -> Callable[[Place, str], Holder]:
    """Return a function that enters a place in a thread; what entered is in its list ``log``."""
    log: list[str] = []

    def enter(place: Place, name: str) -> Holder:
        return Holder(place, name, log)

    enter.log = log  # type: ignore[attr-defined]
    return enter


def test_each_holder_has_a_cpu_of_its_own(hold: Callable[[Place, str], Holder]) -> None:
    """As many places are entered at once as there are lanes, each with another CPU; the next one waits."""
    lanes = Lanes(2, (4, 7))
    first, second = hold(lanes.queue_up((0, 0), 1), "first"), hold(lanes.queue_up((0, 1), 1), "second")
    assert first.came.wait(10)
    assert second.came.wait(10)
    assert {first.cpu, second.cpu} == {4, 7}
    assert lanes.free == 0
    third = hold(lanes.queue_up((1, 0), 1), "third")
    assert not third.came.is_set()
    second.leave()
    assert third.came.wait(10)
    assert third.cpu == second.cpu
    first.leave()
    third.leave()
    assert lanes.free == 2


def test_earlier_tests_come_first_and_their_earlier_pairs(hold: Callable[[Place, str], Holder]) -> None:
    """Who queued first does not matter."""
    lanes = Lanes(1, (0,))
    busy = hold(lanes.queue_up((0, 0), 1), "busy")
    assert busy.came.wait(10)
    places = {name: lanes.queue_up(turn, 1) for name, turn in {"b1": (2, 1), "b0": (2, 0), "a4": (1, 4)}.items()}
    holders = {name: hold(place, name) for name, place in places.items()}
    busy.leave()
    for name in ("a4", "b0", "b1"):
        assert holders[name].came.wait(10)
        holders[name].leave()
    assert hold.log == ["busy", "a4", "b0", "b1"]  # type: ignore[attr-defined]


def test_the_whole_machine_waits_for_all_and_lets_no_later_one_in(hold: Callable[[Place, str], Holder]) -> None:
    """Work of many threads begins once every lane is free, and is not overtaken for ever."""
    lanes = Lanes(2, (0, 1))
    first, second = hold(lanes.queue_up((0, 0), 1), "first"), hold(lanes.queue_up((0, 1), 1), "second")
    assert first.came.wait(10)
    assert second.came.wait(10)
    wide, later = hold(lanes.queue_up((1, 0), 2), "wide"), hold(lanes.queue_up((2, 0), 1), "later")
    first.leave()
    assert not wide.came.is_set()
    assert not later.came.is_set()
    second.leave()
    assert wide.came.wait(10)
    assert not later.came.is_set()
    wide.leave()
    assert later.came.wait(10)
    later.leave()


@pytest.mark.parametrize(
    ("alone", "beside", "expected"),
    [
        ([], [0.03, -0.03, 0.0], True),  # nothing is known yet
        ([0.03, -0.03], [0.03, -0.03, 0.0], True),
        ([0.005, -0.005] * 4, [0.03, -0.03, 0.0], True),
        ([0.03, -0.03] * 4, [0.03, -0.03, 0.0], False),  # the machine itself is restless
        ([0.02, -0.02] * 4, [0.02, -0.02, 0.0], False),
    ],
)
def test_measuring_alone_goes_on_where_it_halves_the_variance(
    alone: list[float], beside: list[float], expected: bool
) -> None:
    """It is tried with the first tests whose pairs differ by much; what they find holds for the run."""
    first, second = (LanesOfTest(lanes, order) for lanes in [Lanes(2, (0, 1))] for order in (0, 1))
    first.note_pairs(alone, beside)
    assert second.neighbours_disturb is expected


def test_calm_tests_say_nothing_of_neighbours() -> None:
    """A test that never measured alone is no part of the comparison, whatever its spread."""
    lanes = Lanes(2, (0, 1))
    for order in range(9):
        LanesOfTest(lanes, order).note_pairs([], [0.001, -0.001, 0.0])
    restless = LanesOfTest(lanes, 9)
    restless.note_pairs([0.01, -0.01] * 4, [0.04, -0.04, 0.0])
    assert restless.neighbours_disturb


def test_a_single_lane_goes_round_the_cpus() -> None:
    """One CPU may be slower than another for a while, so that pairs take them in turn; none where none are known."""
    lanes = Lanes(1, (2, 3, 8))
    seen = []
    for pair in range(5):
        with lanes.queue_up((0, pair), 1) as cpu:
            seen.append(cpu)
    assert seen == [2, 3, 8, 2, 3]
    with Lanes(1, ()).queue_up((0, 0), 1) as cpu:
        assert cpu is None


def test_no_test_queues_before_the_one_before_it() -> None:
    """Whichever thread comes first: workers run tests in the order of the run, by which fixtures live."""
    lanes = Lanes(1, (0,))
    first = LanesOfTest(lanes, 0)
    second = LanesOfTest(lanes, 1, first)
    places: list[Place] = []
    thread = threading.Thread(target=lambda: places.append(second.one()), daemon=True)
    thread.start()
    thread.join(0.05)
    assert not places
    with first.all():
        thread.join(10)
        (place,) = places
        assert lanes.free == 0
    with place as cpu:
        assert cpu == 0


def test_a_test_that_queues_for_nothing_lets_the_next_one_pass() -> None:
    """It is over, and says so."""
    lanes = Lanes(2, (0, 1))
    first = LanesOfTest(lanes, 0)
    first.pass_on()
    with LanesOfTest(lanes, 1, first).all() as cpu:
        assert cpu == 0


def test_closing_ends_all_waiting() -> None:
    """A run that is stopped leaves nobody waiting."""
    lanes = Lanes(1, (0,))
    with lanes.queue_up((0, 0), 1):
        lanes.close()
        with pytest.raises(MeasurementError, match="stopped"), lanes.queue_up((1, 0), 1):
            raise AssertionError


# --------------------------------------------------------------------------- how a run uses them


@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5", ""])
def test_lanes_are_a_number_or_auto(pytester: pytest.Pytester, value: str, wording: Wording) -> None:
    """Any other value is a usage error that lists what is allowed."""
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest("--rlperf", f"--rlperf-lanes={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == wording


# --------------------------------------------------------------------------- the time of many tests


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
