"""One test on its way: it is measured in forked processes, or else in new interpreters, and leaves them."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import pytest

from pytest_rlperf import wire
from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Outcome, Selfcheck
from pytest_rlperf.model.notes import Note, UnderWay
from pytest_rlperf.options import Config
from pytest_rlperf.report.wording import collision_text
from pytest_rlperf.run.conclusion import essence
from pytest_rlperf.run.endpoints import BrokenError, RetryFreshError, StoppedError
from pytest_rlperf.run.on_test import OnTest
from pytest_rlperf.run.schedule import Lanes, Steps
from pytest_rlperf.run.state import RunState
from pytest_rlperf.sides.reads import ElsewhereError, StrayError


class Judged(NamedTuple):
    """The results of a test, and how its call is to end."""

    end: wire.Leave
    outcome: Outcome | None = None
    selfcheck: Selfcheck | None = None
    notes: tuple[Note, ...] = ()


Measure: TypeAlias = Callable[[OnTest], Steps[Judged]]
Observe: TypeAlias = Callable[[OnTest], "Steps[Judged | None]"]
"""Returns the results of a test that need not be measured."""


class TestInLane:
    """One test on its way; the run reports what came of it, in order.

    It is measured in forked processes; where one of these crashes, hangs, fails or is in doubt, all begins anew in new
    interpreters, with that ``doubt``: theirs is the last word. ``failure`` is why the test cannot be measured, which no
    worker has reported where it ``is_unreported``; it ``is_stray`` where the test loads or reads what is not its
    side's own. ``title`` and ``step`` are for who shows progress.
    """

    __test__ = False

    def __init__(self, item: pytest.Item, run: RunState, lanes: Lanes, *, forks: bool) -> None:
        self.item = item
        self.key = result_key(item)
        self.reports: list[wire.Reported | wire.Warned] = []
        self.judged: Judged | None = None
        self.done: wire.Done | None = None
        self.doubt = ""
        self.failure = ""
        self.is_unreported = self.is_stray = False
        self.title = item.name
        self.step = ""
        settings = run.settings.for_test(item)
        self._on = OnTest(
            self.key,
            None,
            settings,
            run.policy(settings),
            lanes,
            self.reports.append,
            self._show,
            self._begin,
            fresh=not forks,
        )

    @property
    def settings(self) -> Config:
        """The settings of the test."""
        return self._on.settings

    def _begin(self, test: str) -> None:
        self.title = test

    def _show(self, step: str) -> None:
        self.step = step

    @property
    def is_over(self) -> bool:
        """Whether the test has its results, which it has once its reporter has ended it, or never will."""
        return self.done is not None or bool(self.failure)

    @property
    def is_touched(self) -> bool | None:
        """Whether the change may matter to the test; None where that was not observed."""
        observed = self._on.observed
        if observed is None or (observed.reason is None and observed.reached is None):
            return None
        return observed.reason is None and not observed.untouched

    @property
    def has_difference(self) -> bool:
        """Whether the two sides may differ for the test, as far as they were observed."""
        return self._on.observed is None or self._on.observed.reason is None

    @property
    def under_way(self) -> UnderWay:
        """What the test is at."""
        return UnderWay(self.title, self.step, self._on.ratio)

    @property
    def verdict(self) -> Outcome | None:
        """The outcome of a test that is over and has ended as that outcome has it; None for any other."""
        if self.judged is None or self.failure or self.done is None:
            return None
        ended = "passed" if self.judged.end.failure is None else "failed"
        return self.judged.outcome if self.done.outcome == ended else None

    @property
    def weight(self) -> tuple[bool, int]:
        """How soon the test is to be measured, the lowest first: that which runs the most of a change."""
        observed = self._on.observed
        return (self.is_over, 0) if observed is None else observed.weight

    def place(self, order: int, following: TestInLane | None) -> None:
        """Give the test its place in the run."""
        self._on.order, self._on.next_key = order, None if following is None else following.key

    def observe(self, observe: Observe) -> Steps[None]:
        """Find out what the test runs; where it need not be measured, let it end. The errors are as in :meth:`run`."""
        self.doubt = yield from self._attempt(observe)

    def run(self, measure: Measure, limit_s: float) -> Steps[None]:
        """Measure the test for at most ``limit_s`` and let it end; an error that stops this is an error of the test.

        SideError where collecting the tests has loaded the other side's code: no test could be measured with its own.
        """
        if limit_s < self.settings.max_time_s:
            self._on = replace(self._on, settings=replace(self.settings, max_time_s=limit_s), is_short=True)
        if not self.doubt:
            self.doubt = yield from self._attempt(measure)
        if self.doubt:
            self.reports.clear()
            self.judged = None
            self._on.forget_reporter()
            self._on.fresh, self._on.observed = True, None
            yield from self._attempt(measure)

    def _attempt(self, measure: Measure | Observe) -> Steps[str]:
        """Measure the test and let it end in its workers; return why new interpreters are to do that again, if so."""
        try:
            self.judged = yield from measure(self._on)
            if self.judged is not None:
                self.done = yield from self._on.conclude(self.judged.end)
        except Exception as error:
            doubt = "" if self._on.fresh else _doubt_of(error)
            if not doubt:
                yield from self._give_up(error)
            return doubt
        finally:
            self._on.close()
        return ""

    def _give_up(self, error: Exception) -> Steps[None]:
        """End a test that cannot be measured, as an error of that test."""
        test, reporter = self._on, self._on.reporter
        self.is_stray = isinstance(error, StrayError)
        self.failure = _failure_text(error, "" if reporter is None else reporter.head_name)
        if reporter is not None and not test.is_reporter_lost:
            try:
                yield from test.conclude(wire.Leave(failure=wire.Failure(self.failure, regression=False)))
            except StoppedError as lost:
                self.failure += f"\n{lost}"
        # A reporter that has left by itself has reported why, unless it did not even have the test.
        self.is_unreported = reporter is None or test.is_reporter_lost or not self.reports


def _doubt_of(error: Exception) -> str:
    """Return why new interpreters are to measure a test again; empty where they need not."""
    if isinstance(error, StoppedError):
        failing = "" if error.stop.done is None else "in a forked process it failed: "
        return f"{failing}{essence(str(error))}" if error.stop.is_doubtful else ""
    is_doubtful = isinstance(error, RetryFreshError | SideError) and not isinstance(error, ElsewhereError)
    return essence(str(error)) if is_doubtful else ""


def _failure_text(error: Exception, reporter: str) -> str:
    """Return why a test cannot be measured; SideError where no other can be, either."""
    if isinstance(error, StoppedError) and error.stop.done is not None:
        return _how_it_left(error.stop.name, error.stop.done, reporter)
    if isinstance(error, StoppedError | MeasurementError):  # the second where a worker could not even be started
        return str(error)
    if isinstance(error, StrayError) and not error.concerns_all:
        return str(error)
    if isinstance(error, SideError):
        raise error
    if isinstance(error, BrokenError):
        return f"the measurement broke: {error}"
    # The other tests have their verdicts, whatever is wrong with this one.
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"the measurement broke: {type(error).__name__}: {error}\n{trace}"


def _how_it_left(name: str, done: wire.Done, reporter: str) -> str:
    """Return how a test ended in one worker while it went on in the one that reports it."""
    if done.outcome == "passed":
        return (
            f"in {name} the test ended without calling its rlperf fixture, which it called in {reporter}; it "
            "must do the same in every process, whatever it finds there"
        )
    outcome = "was not collected" if done.outcome == "missing" else done.outcome
    way_out = f"{collision_text(done.collision)}\n" if done.collision else ""
    return f"in {name} the test {outcome} where it went on in {reporter}.\n{way_out}{done.text}"
