"""A simulated machine of many lanes: whatever its processes do, tests end, and all that they had is given back."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import builders
import pytest
from fake_drivers import FakeDriver, FakeGuardian, FakeServer, checked, collected, fake_processes, open_test, usual
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_live_comparison import SIDES

from pytest_rlperf import wire
from pytest_rlperf.judge.findings import growth
from pytest_rlperf.judge.live import judge_records
from pytest_rlperf.model.judged import Policy, Verdict
from pytest_rlperf.model.live import PairRecord
from pytest_rlperf.run import pairs, schedule
from pytest_rlperf.run.compare import LiveComparison
from pytest_rlperf.run.drivers import PAIR_NAMES, Drivers
from pytest_rlperf.run.endpoints import RetryFreshError, StoppedError
from pytest_rlperf.run.schedule import AnyOf, Held, Job, Lane, Lanes, Schedule, Spawn, Steps
from pytest_rlperf.run.test import OpenTest

_TURNS_MOST = 20_000
_LANES = (1, 2, 16, 64)


class History(NamedTuple):
    """What a machine is like, and how often, of a hundred times, a process dies, says nothing more, or is late."""

    seed: int
    lanes: int
    room: int
    tests: int
    pairs: tuple[int, int]
    dies: int
    hangs: int
    late: int
    change: float


HISTORIES = st.builds(
    History,
    seed=st.integers(0, 2**32),
    lanes=st.sampled_from(_LANES),
    room=st.integers(1, 64),
    tests=st.integers(1, 6),
    pairs=st.tuples(st.integers(2, 4), st.integers(4, 8)),
    dies=st.sampled_from([0, 0, 2, 10]),
    hangs=st.sampled_from([0, 0, 1, 5]),
    late=st.sampled_from([0, 30, 90]),
    change=st.sampled_from([0.0, 0.02, 0.2]),
)


VERDICTS = [judge_records([builders.pair(change)] * 4, Policy(), final=True) for change in (0.0, 0.2)]


class WatchedLanes(Lanes):
    """Lanes of which no CPU may be had twice at once, and none beside the whole machine."""

    def __init__(self, count: int) -> None:
        super().__init__(count, range(count))
        self.had: list[int | None] = []

    def grant(self) -> tuple[Lane, Held] | None:
        found = super().grant()
        if found is not None:
            lane, held = found
            assert held.cpu not in self.had
            assert not (lane.whole and self.had)
            self.had.append(held.cpu)
        return found

    def give_back(self, cpus: Sequence[int | None], width: int) -> None:
        super().give_back(cpus, width)
        for cpu in cpus:
            self.had.remove(cpu)
        assert 0 <= self._used <= self.count


class SimulatedDriver(FakeDriver):
    """A driver that is ended at once where it does not answer."""

    def abort(self, failing: str, limit_s: float, hint: str) -> str:
        self.end(0)
        return f"{self.name} {failing}"


class Machine:
    """Drivers that answer when a tick has it so, in the order of their orders; or die, or never answer."""

    def __init__(self, history: History, scratch: Path, patch: pytest.MonkeyPatch) -> None:
        self.history = history
        self.draw = random.Random(history.seed)
        self.lanes = WatchedLanes(history.lanes)
        self.lanes.fit(1, min(history.room, history.lanes) - 1)
        self.clock = builders.Seconds()
        self.processes, self.known = fake_processes(scratch, patch)
        patch.setattr("pytest_rlperf.run.drivers.PairDriver", SimulatedDriver)
        patch.setattr(FakeGuardian, "new_directory", lambda guardian: scratch)
        patch.setattr(schedule, "_REFRESH_S", 0.0)
        patch.setattr(pairs, "judge_records", self._judge)
        patch.setattr(growth, "hints", lambda live: self._happens(50) and not live.longer)
        patch.setattr(growth, "find", lambda live, policy: SimpleNamespace(figures={}) if self._happens(50) else None)
        self.known.answer = self._answer
        self.known.collected = lambda settings: None if self._happens(self.history.hangs) else collected(settings)
        self.known.lost_at = self.draw.choice([None, None, None, wire.Load, wire.ForkDriver])
        self.pool: Drivers = self.processes.drivers(SIDES, *PAIR_NAMES)
        self.taken: Counter[str] = Counter()
        self._pending: dict[FakeDriver, list[wire.Message]] = {}
        self._measuring: dict[FakeDriver, tuple[str, int | None]] = {}
        self._has: dict[FakeDriver, str] = {}
        self._turns = itertools.count()

    def _judge(self, records: Sequence[PairRecord], policy: Policy, *, final: bool, **more: Any) -> Verdict | None:
        """Return a verdict after some pair, and after one that confirms: when that is is not what this is about."""
        least, most = policy.pairs
        if not final and len(records) <= most and (len(records) < least or self._happens(60)):
            return None
        return self.draw.choice(VERDICTS)

    def _happens(self, of_100: int) -> bool:
        return self.draw.randrange(100) < of_100

    # ------------------------------------------------------------------ its processes

    def _answer(self, driver: FakeDriver, order: wire.Order[Any]) -> object:
        """Do what the history has for an order; an answer that is late comes at a tick."""
        self._measuring.pop(driver, None)
        if isinstance(order, wire.Open):
            self._has[driver] = order.key
        if self._happens(self.history.dies):
            self._pending.pop(driver, None)
            driver.die()
            return None
        waiting = self._pending.setdefault(driver, [])
        if waiting and self._happens(50):
            waiting.clear()  # broken off: nothing else comes of it
        if self._happens(self.history.hangs):
            return wire.Waiting()
        if isinstance(order, wire.TakePair):
            self._take(driver, order)
        answer = wire.Answer(order.number, self._value(driver, order))
        if waiting or self._happens(self.history.late):
            waiting.append(answer)
            return wire.Step("under way")
        self._said(driver)
        return answer

    def _value(self, driver: FakeDriver, order: wire.Order[Any]) -> object:
        match order:
            case wire.TakePair():
                change = self.history.change * self.draw.choice([1.0, 1.0, 1.0, -1.0])
                return wire.Taken(builders.pair(self.draw.gauss(change, 0.005)), [], [None, None])
            case wire.WarmAll():
                found = usual(driver, order)
                assert isinstance(found, wire.Warmed)
                return found
            case wire.ImportAll():
                return ["dirty"] if self._happens(20) else []
            case wire.CheckAll():
                return [checked(imported=self.draw.sample(["one", "two", "three"], self.draw.randrange(3)))] * 2
            case wire.GoOn() | wire.Relay():
                return []
        return usual(driver, order)

    def _take(self, driver: FakeDriver, order: wire.TakePair) -> None:
        """Let a pair measure: on a CPU that is its own, and beside few others of its test."""
        test = self._has[driver]
        self.taken[test] += 1
        assert order.cpu in self.lanes.had
        self._measuring[driver] = test, order.cpu
        assert Counter(cpu for _, cpu in self._measuring.values())[order.cpu] == 1
        assert Counter(name for name, _ in self._measuring.values())[test] <= self.lanes.pairs_most

    def _said(self, driver: FakeDriver) -> None:
        self._measuring.pop(driver, None)

    def _tick(self) -> None:
        """Let some of those that are late answer; where none is, time goes by."""
        assert next(self._turns) < _TURNS_MOST, "a job never ends"
        late = [driver for driver, messages in self._pending.items() if messages and not driver.is_ended]
        if not late:
            self.clock.now += 7.0
            return
        for driver in self.draw.sample(late, self.draw.randint(1, len(late))):
            driver.say(self._pending[driver].pop(0))
            self._said(driver)

    # ------------------------------------------------------------------ its tests

    def run(self) -> list[OpenTest]:
        """Compare all tests, and return them."""
        tests = [self._test(number) for number in range(self.history.tests)]
        Schedule(self.lanes, self.processes.awaited, self._tick, self.clock).run(self._all(tests))
        return tests

    def _test(self, number: int) -> OpenTest:
        test = open_test(self.lanes)
        test.key, test.order = f"test {number}", number
        test.policy = Policy(pairs=self.history.pairs)
        test.needs_machine = self.draw.choice([None, False, False, True])
        return test

    def _all(self, tests: Sequence[OpenTest]) -> Steps[None]:
        jobs: list[Job[None]] = []
        for test in tests:
            jobs.append((yield Spawn(self._one(test))))
        if self._happens(10):
            return  # the others are broken off
        while waited := [job for job in jobs if not job.is_done]:
            yield AnyOf(waited)
        for job in jobs:
            job.outcome()

    def _one(self, test: OpenTest) -> Steps[None]:
        """Compare one test as a run does: again in new interpreters where that is in doubt."""
        for test.fresh in (False, True):
            try:
                with closing(test):
                    yield from LiveComparison(test, self.pool).compare()
                    yield from test.conclude(wire.Leave())
                    return
            except (StoppedError, RetryFreshError):
                test.forget_reporter()


def check_history(history: History, scratch: Path) -> None:
    """Run a history: every job ends, nothing is held at the end, and of no test are there too many pairs."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(history, scratch, patch)
        machine.run()
        assert machine.lanes.had == []
        assert machine.lanes.free == machine.lanes.room
        assert not any(driver.is_taken for driver in machine.known.drivers)
        for driver in machine.known.drivers:
            driver.connection.close()
            driver.die()
        for server in machine.known.servers:
            assert isinstance(server, FakeServer)
            server.connection.close()
        # A pair whose driver is lost is taken again, and all of a test's are where it begins anew.
        if not (history.dies or history.hangs):
            assert max(machine.taken.values(), default=0) <= history.pairs[1] + 1


_SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=40, derandomize=True, **_SETTINGS)
@given(history=HISTORIES)
def test_every_job_ends_and_gives_back_what_it_had(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    """Whatever processes do: no lane is had twice, and no driver stays with a test that is over."""
    check_history(history, tmp_path_factory.getbasetemp())


@pytest.mark.slow  # the same histories, and many more
@settings(max_examples=10_000, derandomize=True, **_SETTINGS)
@given(history=HISTORIES)
def test_every_job_ends_in_ten_thousand_histories(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    """As above."""
    check_history(history, tmp_path_factory.getbasetemp())
