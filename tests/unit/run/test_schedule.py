"""The loop of a run: jobs that wait for processes, lanes and each other; how many lanes there are, and what time."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import builders
import pytest

from pytest_rlperf.model.notes import ShortOfMemory
from pytest_rlperf.options import read_config
from pytest_rlperf.report.wording import note_lines
from pytest_rlperf.run.budget import Budget
from pytest_rlperf.run.lanes import count_lanes
from pytest_rlperf.run.schedule import AnyOf, Held, Job, Lane, Lanes, Reply, Schedule, Spawn, Steps
from pytest_rlperf.spawn.memory import free_bytes as free_memory


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


class Process:
    """A process that says what it is told to, one message after another; a ``?`` is none that ends the waiting.

    It is waited for until it is overdue, and then it is gone.
    """

    def __init__(self, *messages: object, silence_s: float = math.inf) -> None:
        self.connection, self._there = Pipe()
        self.silence_s = silence_s
        self.is_gone = False
        for message in messages:
            self.say(message)

    def say(self, message: object) -> None:
        self._there.send(message)

    def read(self) -> object:
        message = self.connection.recv()
        if isinstance(message, Exception):
            raise message
        return None if message == "?" else message

    def ended(self) -> Exception:
        return ConnectionError("ended")

    def overdue(self, limit_s: float) -> Exception:
        self.is_gone = True
        return TimeoutError(f"after {limit_s:g} s")


class Loop:
    """A schedule of ``processes``, whose clock a test moves; jobs note what they do in ``log``.

    At every tick the one that has held a lane for the longest time leaves it.
    """

    def __init__(self, lanes: Lanes | None = None, *processes: Process) -> None:
        self.lanes = lanes or Lanes(1, (0,))
        self.clock = builders.Seconds()
        self.log: list[str] = []
        self.free: list[int] = []
        self.at_tick: Callable[[], None] = self._leave
        self._processes = [*processes]
        self._holding: list[Process] = []
        self._turns = itertools.count()

    def run(self, *steps: Steps[Any]) -> list[Any]:
        """Run jobs at once, and return what came of them: a result or an error."""
        awaited = lambda: [process for process in self._processes if not process.is_gone]  # noqa: E731
        return Schedule(self.lanes, awaited, self._tick, self.clock).run(self._all(*steps))

    def _tick(self) -> None:
        assert next(self._turns) < 50, "nobody says what is waited for"
        self.free.append(self.lanes.free)
        self.at_tick()

    def _leave(self) -> None:
        if self._holding:
            self._holding.pop(0).say("leave")

    def _all(self, *steps: Steps[Any]) -> Steps[list[Any]]:
        jobs: list[Job[Any]] = []
        for each in steps:
            jobs.append((yield Spawn(each)))
        while waited := [job for job in jobs if not job.is_done]:
            yield AnyOf(waited)
        return [came_of(job) for job in jobs]

    def hold(self, name: str, test: int, pair: int = 0, *, whole: bool = False) -> Steps[int | None]:
        """Hold a lane for a while, and return its CPU."""
        held: Held = yield Lane(test, pair, whole)
        with held:
            self.log.append(name)
            process = Process()
            self._processes.append(process)
            self._holding.append(process)
            yield Reply(process, 60.0)
            self.log.append(f"{name} leaves")
        return held.cpu


def came_of(job: Job[Any]) -> object:
    try:
        return job.outcome()
    except Exception as error:
        return error


def wait_for(process: Process, limit_s: float = 60.0) -> Steps[object]:
    """Return what a process says."""
    said: object = yield Reply(process, limit_s)
    return said


def test_jobs_wait_for_processes_side_by_side() -> None:
    """Each has the reply, or the error, of its own, whatever else comes before that; a job may catch the error."""

    def caught() -> Steps[str]:
        try:
            yield Reply(dying, 60.0)
        except ValueError as error:
            return f"caught {error}"
        return "nothing"

    first, second, dying = Process("?", "?", 1), Process(2), Process(ValueError("why"))
    other = Process(KeyError("lost"))
    found = Loop(None, first, second, dying, other).run(wait_for(first), wait_for(second), caught(), wait_for(other))
    assert found[:3] == [1, 2, "caught why"]
    assert isinstance(found[3], KeyError)


def test_what_nobody_waits_for_is_read() -> None:
    """Of a process that owes a reply which is of no interest any more, and also where that is an error."""
    late, lost, awaited = Process("too late"), Process(ValueError("lost")), Process()
    loop = Loop(None, late, lost, awaited)
    loop.at_tick = lambda: awaited.say("now") if not (late.connection.poll() or lost.connection.poll()) else None
    assert loop.run(wait_for(awaited)) == ["now"]


def test_a_process_that_says_nothing_is_overdue() -> None:
    """After its own limit, which begins with the wait; what it says without ending the wait does not lengthen that."""
    slow, chatty, other = Process(), Process(), Process()
    loop = Loop(None, slow, chatty, other)

    def tick() -> None:
        loop.clock.now += 10.0
        if loop.clock.now == 20.0:
            chatty.say("?")
        if loop.clock.now == 50.0:
            other.say("in time")

    loop.at_tick = tick
    found = loop.run(wait_for(slow, 15.0), wait_for(chatty, 35.0), wait_for(other, 60.0))
    assert [str(each) for each in found] == ["after 15 s", "after 35 s", "in time"]
    assert [slow.is_gone, chatty.is_gone, other.is_gone] == [True, True, False]


def test_a_process_that_says_nothing_for_long_is_overdue() -> None:
    """Whatever its limit is; but not where this process was stopped meanwhile."""
    stopped, working = Process(silence_s=15.0), Process(silence_s=15.0)
    loop = Loop(None, stopped, working)

    def tick() -> None:
        loop.clock.now += 1000.0 if loop.clock.now == 4.0 else 4.0
        working.say("?" if loop.clock.now < 1100.0 else "said")

    loop.at_tick = tick
    found = loop.run(wait_for(stopped, 5000.0), wait_for(working, 5000.0))
    assert [str(each) for each in found] == ["after 15 s", "said"]
    assert 1008.0 < loop.clock.now < 1200.0


def test_whoever_waits_for_an_ended_process_learns_it_at_once() -> None:
    """Another job may have ended it."""
    ended = Process()
    loop = Loop(None, ended)

    def end() -> Steps[None]:
        yield from ()
        ended.connection.close()
        ended.is_gone = True

    found = loop.run(wait_for(ended), end())
    assert [str(each) for each in found] == ["ended", "None"]
    assert loop.clock.now == 0.0


def test_an_answer_that_has_come_saves_its_process() -> None:
    """However late this process reads it, and whatever came before it: another job may have taken its time."""
    late, never = Process("?", "?", "in time"), Process("?", "?")
    loop = Loop(None, late, never)

    def busy() -> Steps[str]:
        yield from ()
        loop.clock.now += 1000.0
        return "busy"

    found = loop.run(wait_for(late, 15.0), wait_for(never, 15.0), busy())
    assert [str(each) for each in found] == ["in time", "after 15 s", "busy"]
    assert (late.is_gone, never.is_gone) == (False, True)


def test_a_process_that_never_stops_talking_is_overdue() -> None:
    """Others have their turn meanwhile."""

    class Talking(Process):
        def read(self) -> object:
            self.say("?")
            return super().read()

    def tick() -> None:
        loop.clock.now += 10.0

    talking, other = Talking("?"), Process("said")
    loop = Loop(None, talking, other)
    loop.at_tick = tick
    assert [str(each) for each in loop.run(wait_for(talking, 15.0), wait_for(other))] == ["after 15 s", "said"]


def test_a_job_begins_others_at_once() -> None:
    """Each runs until it waits before the one that began it goes on; those that are done are told of at once."""
    process = Process("done")
    loop = Loop(None, process)

    def inner(name: str) -> Steps[object]:
        loop.log.append(f"{name} begins")
        if name == "slow":
            yield Reply(process, 60.0)
        return name

    def outer() -> Steps[list[object]]:
        slow: Job[object] = yield Spawn(inner("slow"))
        loop.log.append("between")
        quick: Job[object] = yield Spawn(inner("quick"))
        first = yield AnyOf([slow, quick])
        then = yield AnyOf([slow])
        return [first == [quick], then == [slow], slow.outcome(), quick.outcome()]

    assert loop.run(outer()) == [[True, True, "slow", "quick"]]
    assert loop.log == ["slow begins", "between", "quick begins"]


def test_the_error_of_a_job_is_that_of_who_asks_for_its_outcome() -> None:
    """It ends no other job by itself."""

    def failing() -> Steps[None]:
        yield from ()
        raise ValueError("why")

    def outer() -> Steps[str]:
        job: Job[None] = yield Spawn(failing())
        yield AnyOf([job])
        with pytest.raises(ValueError, match="why"):
            job.outcome()
        return "goes on"

    loop = Loop()
    assert loop.run(outer()) == ["goes on"]
    found = loop.run(failing(), outer())
    assert (str(found[0]), found[1]) == ("why", "goes on")


@pytest.mark.parametrize("error", [None, ValueError("why")])
def test_the_end_of_a_run_breaks_off_the_others(error: Exception | None) -> None:
    """The last to begin is the first to end; what they hold is released, also where an error ends the run."""
    never, nudge = Process(), Process("now")
    loop = Loop(None, never, nudge)

    def noted(name: str) -> Steps[None]:
        try:
            yield Reply(never, 60.0)
        finally:
            loop.log.append(f"{name} ends")

    def outer() -> Steps[None]:
        for steps in (noted("first"), noted("second"), loop.hold("third", 0), loop.hold("waiting", 1)):
            yield Spawn(steps)
        yield Reply(nudge, 60.0)
        if error is not None:
            raise error

    assert loop.run(outer()) == [error]
    assert loop.log == ["third", "second ends", "first ends"]
    assert loop.lanes.free == 1


@pytest.mark.parametrize("has_lane", [False, True])
def test_a_job_that_is_broken_off_leaves_its_lane(has_lane: bool) -> None:
    """One that has it gives it back, and one that waits for it does not get it any more."""
    nudge = Process("now")
    loop = Loop(None, nudge)

    def outer() -> Steps[None]:
        jobs: list[Job[Any]] = []
        for number, name in enumerate(("first", "second", "third")):
            jobs.append((yield Spawn(loop.hold(name, number))))
        yield Reply(nudge, 60.0)  # by then the first has its lane
        jobs[0 if has_lane else 1].close()
        yield AnyOf([jobs[2]])

    assert loop.run(outer()) == [None]
    others = ["second", "second leaves"] if has_lane else ["first leaves"]
    assert loop.log == ["first", *others, "third", "third leaves"]
    assert loop.lanes.free == 1


def test_each_holder_has_a_cpu_of_its_own() -> None:
    """As many lanes are had at once as there are, each with another CPU; the next one waits."""
    loop = Loop(Lanes(2, (4, 7)))
    assert loop.run(*(loop.hold(name, 0) for name in ("first", "second", "third"))) == [4, 7, 4]
    assert loop.log[:4] == ["first", "second", "first leaves", "third"]
    assert (loop.free[0], loop.lanes.free) == (0, 2)


def test_lanes_take_turns_on_the_cpus() -> None:
    """Where there are more of these; one may be slower for a while. Where there are fewer, the kernel places all."""
    loop, unplaced = Loop(Lanes(1, (4, 7, 9))), Loop(Lanes(2, (4,)))
    assert loop.run(*(loop.hold("", 0) for _ in range(4))) == [4, 7, 9, 4]
    assert unplaced.run(unplaced.hold("", 0)) == [None]
    assert (loop.lanes.has_cpus, unplaced.lanes.has_cpus) == (True, False)


@pytest.mark.parametrize(("free_bytes", "lanes"), [(None, 4), (2 * 300, 3), (299, 1), (9000, 8)])
def test_pairs_have_lanes_for_which_memory_has_room(free_bytes: int | None, lanes: int) -> None:
    """As many as of one test until it is known what a pair takes; one at least, and all to work of many threads."""
    loop = Loop(Lanes(8, range(8)))
    if free_bytes is not None:
        loop.lanes.fit(300, free_bytes)
    loop.run(*(loop.hold("begins", test) for test in range(9)), loop.hold("wide", 9, whole=True))
    assert next(number for number, entry in enumerate(loop.log) if entry.endswith("leaves")) == lanes
    assert loop.log[-2:] == ["wide", "wide leaves"]
    assert loop.lanes.free == lanes


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 600\nfile 100\nfile_dirty 7"}, 400),
        ({"memory.max": "1000", "memory.current": "1200", "memory.stat": ""}, 0),
        ({"memory.max": "max", "memory.current": "700", "memory.stat": "file 0"}, None),
        ({}, None),
    ],
)
def test_a_cgroup_limits_memory(tmp_path: Path, files: dict[str, str], free_bytes: int | None) -> None:
    """Files that were read give way to processes; elsewhere what the machine has counts."""
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    found = free_memory(tmp_path)
    assert found == free_bytes if free_bytes is not None else found > 1000


@pytest.mark.parametrize(("lanes", "words"), [(1, "one pair at a time is"), (3, "3 pairs at a time are")])
def test_memory_that_limits_the_lanes_is_named(lanes: int, words: str) -> None:
    """With what a pair takes."""
    (line,) = note_lines([ShortOfMemory(lanes, 8, 412_345_678)], verbose=False)
    assert line == f"{words} measured, not 8: each takes 410 MB of memory, which has no room for more"


def test_earlier_tests_come_first_and_their_earlier_pairs() -> None:
    """Who came first does not matter, but among those of one pair."""
    loop = Loop()
    turns = {"c1": (2, 1), "c0": (2, 0), "c0 again": (2, 0), "b4": (1, 4)}
    loop.run(*(loop.hold(name, *turn) for name, turn in turns.items()))
    assert loop.log[::2] == ["b4", "c0", "c0 again", "c1"]


def test_the_whole_machine_waits_for_all_and_lets_no_later_one_in() -> None:
    """Work of many threads begins once every lane is free, and is not overtaken for ever."""
    loop = Loop(Lanes(2, (0, 1)))
    first, second, wide = loop.hold("first", 0, 0), loop.hold("second", 0, 1), loop.hold("wide", 1, whole=True)
    loop.run(first, second, loop.hold("later", 2), wide)
    alone = ["first leaves", "second leaves", "wide", "wide leaves", "later", "later leaves"]
    assert loop.log == ["first", "second", *alone]
    assert loop.free[:4] == [0] * 4  # the lane that is idle after the first has left is nobody's


def test_a_lane_is_given_back_once() -> None:
    """After an error too: a test that cannot be measured does not hold up the others."""
    process = Process(ZeroDivisionError())
    loop = Loop(Lanes(2, (0, 1)), process)

    def fail(*, released: bool) -> Steps[None]:
        held: Held = yield Lane(0, whole=True)
        with held:
            if released:
                held.release()
            yield Reply(process, 60.0)

    for released in (False, True):
        (error,) = loop.run(fail(released=released))
        assert isinstance(error, ZeroDivisionError)
        assert loop.lanes.free == 2
        process.say(ZeroDivisionError())


@pytest.mark.parametrize(
    ("args", "tests", "lanes", "each_s"),
    [
        pytest.param([], 10, 1, 180, id="few tests, each limited by --rlperf-max-time alone"),
        pytest.param([], 300, 2, 12, id="many tests share half an hour"),
        pytest.param([], 3000, 2, 9, id="so many that their fewest pairs take longer"),
        pytest.param(["--rlperf-total-time=600"], 300, 2, 4, id="the user's budget"),
        pytest.param(["--rlperf:check-machine"], 300, 1, math.inf, id="a self-check takes its time"),
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
    budget = Budget(read_config(pytester.parseconfigure("--rlperf-total-time=100")), 5, 2, clock)
    assert [budget.next_s(), budget.next_s()] == [40.0, 50.0]
    clock.now = 10.0
    assert budget.next_s() == 60.0
    clock.now = 70.0
    assert [budget.next_s(), budget.next_s()] == [30.0, 30.0]
    clock.now = 200.0
    assert 0 < budget.next_s() < 1e-3


def test_time_to_spare_is_what_the_tests_to_come_do_not_need(pytester: pytest.Pytester) -> None:
    """They may take twice as long as those so far; a self-check has no time to spare, as it has no limit."""
    clock = builders.Seconds()
    settings = read_config(pytester.parseconfigure("--rlperf-total-time=100"))
    budget = Budget(settings, 4, 2, clock)
    found = [budget.spare_s()]
    for clock.now in (0.0, 10.0, 20.0, 40.0):
        budget.next_s()
        clock.now += 10.0
        found.append(budget.spare_s())
    assert found == [0.0, 30.0, 40.0, 50.0, 50.0]
    clock.now = 110.0
    assert budget.spare_s() == 0.0
    selfcheck = Budget(dataclasses.replace(settings, selfcheck=True, total_time_s=None), 1, 1, clock)
    assert selfcheck.next_s() == math.inf
    assert selfcheck.spare_s() == 0.0
