"""One test of a run: its settings, its place, the processes that have it open, and how it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from pytest_rlperf import wire
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Outcome, Policy, Selfcheck
from pytest_rlperf.model.measured import SystemVSegment
from pytest_rlperf.model.notes import Doubt, Note, UnderWay
from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.options import Config
from pytest_rlperf.reach.touch import Reached
from pytest_rlperf.run.budget import Budget
from pytest_rlperf.run.endpoints import Answered, DriverLostError, PairDriver, StoppedError
from pytest_rlperf.run.schedule import Held, Lane, Lanes, Steps, if_broken_off
from pytest_rlperf.spawn.memory import free_bytes

T = TypeVar("T")
_PATIENCE = 4.0  # times --rlperf-max-time: how long a worker may take for one answer before it counts as hung
_PATIENCE_LEAST_S = 10.0
SEED, OTHER_SEED = 1000, 1001  # of all pairs, so that their calls repeat; of looks that must not depend on the seed


class UnpairedError(Exception):
    """Pairs would compare nothing: a call's work differs between the sides, or a side lacks a file of its own."""

    def __init__(self, reason: reasons.Incomparable | reasons.NotCopied | reasons.NotBuilt) -> None:
        super().__init__(reason)
        self.reason = reason


class Observation(msgspec.Struct, frozen=True):
    """The facts that observers have shown about a test: ``reason`` is why it need not be measured, None if it must be.

    ``is_many`` if threads, children or an accelerator did its work, None if that is not known. ``reached`` is None
    if no look was finished. ``untouched`` if no part of the change can matter, whether that spares the test or not.
    ``checked`` are the first calls of the base and of the head, imports included. It ``is_doubtful`` if another test's
    processes may have opened all the differing files that it has read. ``unwatched`` says why the files opened by
    libraries in other languages and by children are not known.
    """

    reason: reasons.SameCode | reasons.Unreached | None = None
    reached: Reached | None = None
    checked: tuple[wire.Checked, ...] = ()
    untouched: bool = False
    is_doubtful: bool = False
    unwatched: str = ""
    is_many: bool | None = None

    @property
    def named(self) -> tuple[ChangedPart, ...]:
        """The parts of the change to name in a report."""
        return () if self.reached is None else self.reached.named

    @property
    def doubt(self) -> Doubt | None:
        """Why the test may run a part of the change that it was not seen to run; None if there is no doubt."""
        if self.reason is not None or self.reached is None or self.reached.executes or self.untouched:
            return None
        if not self.reached.known:
            return Doubt.CHILDREN
        return Doubt.UNSEEN if self.reached.may else Doubt.UNEVEN


class Judged(NamedTuple):
    """The results of a test, and how its call is to end."""

    end: wire.Leave
    outcome: Outcome | None = None
    selfcheck: Selfcheck | None = None
    notes: tuple[Note, ...] = ()


class Failed(NamedTuple):
    """Why a test cannot be measured; ``is_unreported`` if no worker has reported it.

    It ``is_stray`` if the test loads or reads files that are not its side's own.
    """

    text: str
    is_unreported: bool
    is_stray: bool


@dataclass
class OpenTest:
    """One test of a run: its settings, the rules that judge it, its place, its processes, and its results.

    The first driver that opens it has the worker that reports it, to ``reports``. ``measures`` has the first of the
    head's workers that has been checked. A test that is measured by itself keeps the whole ``machine``. ``observed``
    holds what observers have shown, None before that. The test is measured in forked processes. If one of them crashes,
    hangs, fails or is in doubt, the test starts again, with that ``doubt``, in new interpreters; these are ``fresh``,
    and their result is final. ``is_short`` if the run has less time than the test may take; its pairs may have more of
    the ``budget``, if that has some to spare. It ``needs_machine`` unless one thread does all of its work; None until
    that is known. ``leaves`` counts the proofs that calls leave shared memory on the machine, by the beginnings of its
    names. ``segments`` are those of System V that workers had. ``title``, ``step`` and ``ratio``, which its pairs show
    so far, are for the display of progress.
    """

    key: str
    settings: Config
    policy: Policy
    lanes: Lanes
    title: str = ""
    fresh: bool = False
    order: int = 0
    next_key: str | None = None
    is_short: bool = False
    budget: Budget | None = None
    step: str = ""
    ratio: float | None = None
    observed: Observation | None = None
    needs_machine: bool | None = None
    leaves: Counter[str] = field(default_factory=Counter)
    segments: set[SystemVSegment] = field(default_factory=set)
    reports: list[wire.Reported | wire.Warned] = field(default_factory=list)
    reporter: PairDriver | None = None
    called: wire.Called | None = None
    is_reporter_lost: bool = False
    measures: PairDriver | None = None
    machine: Held | None = None
    doubt: str = ""
    judged: Judged | None = None
    done: wire.Done | None = None
    failed: Failed | None = None
    _open: list[PairDriver] = field(default_factory=list)

    @property
    def patience_s(self) -> float:
        """How long a worker may take for one answer."""
        return max(_PATIENCE_LEAST_S, _PATIENCE * self.settings.max_time_s)

    def show(self, step: str) -> None:
        """Show the current step."""
        self.step = step

    # ------------------------------------------------------------------ what came of it

    @property
    def is_over(self) -> bool:
        """Whether the test has its results, once its reporter has ended it, or will never have any."""
        return self.done is not None or self.failed is not None

    @property
    def is_touched(self) -> bool | None:
        """Whether the change may matter to the test; None if that was not observed."""
        observed = self.observed
        if observed is None or (observed.reason is None and observed.reached is None):
            return None
        return observed.reason is None and not observed.untouched

    @property
    def has_difference(self) -> bool:
        """Whether the two sides may differ for the test, as far as they were observed."""
        return self.observed is None or self.observed.reason is None

    @property
    def under_way(self) -> UnderWay:
        """The current step of the test."""
        return UnderWay(self.title, self.step, self.ratio)

    @property
    def verdict(self) -> Outcome | None:
        """The outcome of a test that is over and has ended as its outcome says; None for any other test."""
        if self.judged is None or self.failed is not None or self.done is None:
            return None
        ended = "passed" if self.judged.end.failure is None else "failed"
        return self.judged.outcome if self.done.outcome == ended else None

    @property
    def weight(self) -> tuple[bool, int]:
        """The place of the test in the order of measuring, the lowest first: tests that run the most of a change."""
        if self.observed is None:
            return self.is_over, 0
        return self.observed.reason is not None, -len(self.observed.named)

    def begin_anew(self) -> None:
        """Forget what forked copies have shown: new interpreters measure the test."""
        self.reports.clear()
        self.judged = self.observed = None
        self.forget_reporter()
        self.fresh = True

    # ------------------------------------------------------------------ the machine

    def lane(self, pair: int = 0, *, whole: bool = False) -> Lane:
        """Return the request for a lane, or for the machine if the test needs it."""
        return Lane(self.order, pair, whole or self.needs_machine is True)

    def in_lane(self, driver: PairDriver, steps: Steps[T]) -> Steps[T]:
        """Take steps in a lane, unless the test has the machine; the driver's workers move to the lane's CPU, if any.

        Another pair may use the CPU on which they were measured by now.
        """
        if self.machine is not None:
            return (yield from steps)
        held = yield from self.lane()
        with held:
            if held.cpu is not None:
                yield from self.ask(driver, wire.MoveAll(held.cpu))
            return (yield from steps)

    # ------------------------------------------------------------------ its processes

    def open(
        self,
        driver: PairDriver,
        seeds: Sequence[int],
        *,
        last_first: bool = False,
        reports: list[wire.Reported | wire.Warned] | None = None,
    ) -> Steps[list[wire.Called]]:
        """Bring the test to its call in a driver's workers, and return the call of each.

        Its reports are added to ``reports``, or to the test's own.
        """
        is_first = self.reporter is None
        self._open.append(driver)
        driver.is_taken, driver.show = True, self.show
        if is_first:
            self.reporter, driver.reports = driver, self.reports if reports is None else reports
        order = wire.Open(
            key=self.key,
            next_key=self.next_key,
            seeds=list(seeds),
            last_first=last_first,
            setup_s=self.settings.setup_timeout_s,
            patience_s=self.patience_s,
            reports=is_first,
        )
        called = yield from self.ask(driver, order, self.settings.setup_timeout_s)
        if self.lanes.pair_bytes is None:
            self.lanes.fit(driver.memory_bytes(), free_bytes())
        if is_first:
            self.called = called[-1]
        return called

    def ask(self, driver: PairDriver, order: wire.Order[T], limit_s: float | None = None) -> Steps[T]:
        """Give an order to a driver that has the test open, and return the answer; StoppedError without one."""
        try:
            answered: Answered = yield from driver.give(order, 2 * (self.patience_s if limit_s is None else limit_s))
        except StoppedError as stopped:
            is_lost = isinstance(stopped, DriverLostError) or (stopped.stop.is_reporter and stopped.stop.done is None)
            self.is_reporter_lost |= is_lost and driver is self.reporter
            raise
        if isinstance(order, wire.CheckAll | wire.MeasureAlone):
            self.measures = self.measures or driver
        answer: T = answered.value
        return answer

    def leave(self, driver: PairDriver, end: wire.Leave | None = None) -> Steps[wire.Done | None]:
        """Let a driver's workers leave the test, as they have done their part; return how its reporter has ended it."""
        done = yield from self.ask(driver, wire.LeaveAll(end or wire.Leave()), self.settings.setup_timeout_s)
        self._give_back(driver)
        return done

    def forget_reporter(self) -> None:
        """Let the next driver that opens the test report it."""
        self.reporter = self.called = None
        self.is_reporter_lost = False

    def conclude(self, leave: wire.Leave) -> Steps[wire.Done | None]:
        """Let every worker leave the test, the reporter last and with its result."""
        self.abandon(but_reporter=True)
        assert self.reporter is not None
        return (yield from self.leave(self.reporter, leave))

    def abandon(self, *, but_reporter: bool = False) -> None:
        """Tell drivers to leave the test, without waiting for them."""
        for driver in [*self._open]:
            if not (but_reporter and driver is self.reporter):
                self.let_go(driver)

    def let_go(self, driver: PairDriver) -> None:
        """Tell a driver to leave the test, without waiting for it."""
        if driver in self._open:
            if driver.alive:
                try:
                    driver.give(wire.LeaveAll())
                except DriverLostError:
                    driver.is_worn = True
            self._give_back(driver)

    def having(self, driver: PairDriver) -> AbstractContextManager[None]:
        """Return a context that lets a driver go if its block is broken off, unless the driver reports the test."""
        return if_broken_off(lambda: None if driver is self.reporter else self.let_go(driver))

    def _give_back(self, driver: PairDriver) -> None:
        self.measures = None if self.measures is driver else self.measures
        self._open.remove(driver)
        driver.give_back()

    def close(self) -> None:
        """Give back all that the test has, and show no step of it any more."""
        self.step = ""
        self.abandon()
        if self.machine is not None:
            self.machine.release()
            self.machine = None
