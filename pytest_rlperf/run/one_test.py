"""One test's way from its workers to its outcome: measured by itself, live, or first one and then the other."""

from __future__ import annotations

import time
from dataclasses import replace

from pytest_rlperf.errors import SideError
from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.judge.policy import verdict as verdict_of
from pytest_rlperf.measure.counting_pass import CountingPass, counted_by
from pytest_rlperf.measure.one_side import WORKERS, expected_s, measure_one_side
from pytest_rlperf.model import Outcome, Progress, Reason, Result, Status, Verdict, reasons
from pytest_rlperf.options import Config
from pytest_rlperf.report.junit import properties
from pytest_rlperf.report.wording import failure_text
from pytest_rlperf.run.live_comparison import COUNTED_PAIRS, LiveComparison, OtherWorkError, SameCode, make_result
from pytest_rlperf.run.outcomes import Ledger
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.pool import BaseSide, BaseSides, WorkerGroup, WorkerPool
from pytest_rlperf.workers.process import LeftEarlyError, WorkerLostError


class Examination:
    """Measures and judges one test.

    ``against`` is the base side that the user named, if any; otherwise what the baseline remembers may become one.
    """

    def __init__(
        self,
        group: WorkerGroup,
        heads: WorkerPool,
        base_sides: BaseSides,
        against: BaseSide | None,
        ledger: Ledger,
        settings: Config,
        progress: Progress,
    ) -> None:
        self._group = group
        self._heads = heads
        self._base_sides = base_sides
        self._against = against
        self._ledger = ledger
        self._settings = settings
        self._progress = progress
        self._started_s = time.monotonic()

    def run(self) -> Outcome:
        """Measure the test as it has to be, and enter its outcome."""
        if self._against is not None:
            return self._compare(self._against)
        plan = self._ledger.plan(self._group.key, self._settings)
        base_side, obstacle = None, None
        if plan.commit is not None and plan.at_once:
            base_side, obstacle = self._find(plan.commit)
            if base_side is not None and not base_side.is_same_code:
                return self._settle(base_side, None)
        result = self._measure_one_side()
        settleable = plan.commit is not None and obstacle is None
        verdict = self._judge(result, settleable=settleable)
        settled = verdict.status is Status.SAME and not self._ledger.gates_outdated(result, self._settings)
        if settled or plan.commit is None:
            return self._enter_compared(result, verdict)
        if base_side is None and obstacle is None:
            base_side, obstacle = self._find(plan.commit)
        if base_side is not None:
            return self._settle(base_side, result)
        return self._enter_unsettled(result, str(obstacle))

    def _compare(self, base_side: BaseSide) -> Outcome:
        """Compare with what the user asked for."""
        saved = self._measure_one_side() if self._settings.save else None
        try:
            return self._compare_live(base_side, saved)
        except LeftEarlyError as early:
            if not base_side.owns(early.worker):
                raise
            self._group.release()
            result = saved or self._measure_one_side()
            return self._enter(result, self._not_on_base(base_side, early))

    def _settle(self, base_side: BaseSide, result: Result | None) -> Outcome:
        """Have live pairs decide what stored numbers cannot; where base will not run, the numbers are all there is."""
        saved = self._measure_one_side() if result is None and self._settings.save else result
        try:
            return self._compare_live(base_side, saved)
        except SideError as error:
            self._base_sides.give_up(base_side, error)
            obstacle = str(error)
        except (LeftEarlyError, WorkerLostError) as stopped:
            if not base_side.owns(stopped.worker):
                raise
            obstacle = f"on {base_side.sides.base.label}: {essence(str(stopped))}"
        self._group.release()
        return self._enter_unsettled(saved or self._measure_one_side(), obstacle)

    def _compare_live(self, base_side: BaseSide, saved: Result | None) -> Outcome:
        """Compare live, unless it is the same code; ``saved`` are the figures to store, where there are such."""
        base = base_side.sides.base.label
        if base_side.is_same_code:
            return self._same_code(reasons.SameCode(base, only_loaded=False), saved)
        policy = self._ledger.policy(self._settings)
        limits = PairLimits(*self._settings.pairs)
        try:
            counting = self._counting_pass(2 * COUNTED_PAIRS)
            comparison = LiveComparison(self._group, base_side, policy, limits, counting, self._progress)
            found = comparison.run(self._settings.max_time_s)
        except OtherWorkError as other:
            return self._enter(saved or self._unmeasured(), self._unjudged(Status.INCOMPARABLE, other.reason))
        except SameCode:
            return self._same_code(reasons.SameCode(base, only_loaded=True), saved)
        finally:
            base_side.trim()
        keep = saved is not None and self._settings.save
        result = saved if keep and saved is not None else found.result
        verdict, cause = found.verdict, self._cause(saved, None)
        if verdict.status is Status.SAME and cause is not None:
            verdict = replace(verdict, reason=cause)
        verdict = self._ledger.with_counts(result, found.live.base, verdict, self._settings)
        verdict = self._ledger.allow(self._group.key, verdict, base_side.sides.commit)
        return self._ledger.enter(self._group.key, result, found.live, verdict, self._seconds())

    def _cause(self, measured: Result | None, same_code: reasons.SameCode | None) -> reasons.OtherEnvironment | None:
        """Return what else has changed where the code has not, if stored numbers show a change."""
        if measured is None or self._against is not None:
            return None
        suspicion = self._judge(measured, settleable=True)
        suspicious = suspicion.suspect or suspicion.status is Status.FASTER
        if not suspicious:
            return None
        ratio = None if suspicion.estimate is None else suspicion.estimate.ratio
        return reasons.OtherEnvironment(ratio, self._ledger.versions_since(self._group.key), same_code)

    def _same_code(self, same_code: reasons.SameCode, saved: Result | None) -> Outcome:
        """Enter a test whose sides do not differ."""
        reason = self._cause(saved, same_code) or same_code
        return self._enter(saved or self._unmeasured(), self._unjudged(Status.SAME, reason))

    def _unmeasured(self) -> Result:
        """Return a result without figures."""
        (worker,) = self._group.engage((self._heads, 1))[0]
        called = worker.called
        assert called is not None
        return Result(self._group.key, called.component, called.unit, called.items, (), (), 0.0, ())

    def _not_on_base(self, base_side: BaseSide, early: LeftEarlyError) -> Verdict:
        """Say that base cannot run the test: NEW where a name is missing there, else INCOMPARABLE."""
        status = Status.NEW if early.done.name_missing else Status.INCOMPARABLE
        error = essence(early.done.text) if early.done.text.strip() else ""
        return self._unjudged(status, reasons.NotOnBase(base_side.sides.base.label, early.done.outcome, error))

    def _unjudged(self, status: Status, reason: Reason) -> Verdict:
        """Return the verdict where no times were compared."""
        return verdict_of(self._ledger.policy(self._settings), status, reason)

    def _find(self, commit: str) -> tuple[BaseSide | None, str | None]:
        """Return the code of a commit as a base side, or why it cannot be had."""
        try:
            base_side = self._base_sides.of_commit(commit, self._progress.show)
            if not base_side.is_same_code:
                base_side.check_collected([self._group.key])
        except SideError as error:
            return None, str(error)
        except WorkerLostError as lost:
            return None, str(lost)
        return base_side, None

    def _measure_one_side(self) -> Result:
        """Measure the test by itself."""
        self._progress.show("starting workers", expected_s(WORKERS))
        (workers,) = self._group.engage((self._heads, WORKERS))
        measured = measure_one_side(
            workers,
            self._settings.max_time_s,
            self._progress,
            long=self._ledger.told_by_mean(self._group.key),
            counting=self._counting_pass(WORKERS),
        )
        return replace(make_result(self._group.key, self._group.called, measured), counting=counted_by(workers))

    def _counting_pass(self, workers: int) -> CountingPass:
        asked = self._settings.counters
        return CountingPass(self._settings.max_time_s, workers, is_wanted=asked.are_counted, gates=bool(asked.gates))

    def _judge(self, result: Result, *, settleable: bool) -> Verdict:
        return self._ledger.judge(self._group.key, result, self._ledger.policy(self._settings), settleable=settleable)

    def _enter_unsettled(self, result: Result, obstacle: str) -> Outcome:
        """Enter a test that live pairs should have decided, by its stored numbers."""
        return self._enter_compared(
            _noted(result, f"not settled live: {obstacle}"), self._judge(result, settleable=False)
        )

    def _enter_compared(self, result: Result, verdict: Verdict) -> Outcome:
        """Enter a test that was compared with stored numbers, by its counts too."""
        verdict = self._ledger.with_counts(result, None, verdict, self._settings)
        return self._enter(
            result, self._ledger.allow(self._group.key, verdict, self._ledger.commit_of(self._group.key))
        )

    def _enter(self, result: Result, verdict: Verdict) -> Outcome:
        return self._ledger.enter(self._group.key, result, None, verdict, self._seconds())

    def _seconds(self) -> float:
        return time.monotonic() - self._started_s


def essence(text: str) -> str:
    """Return the line of a failure that says what it was: the error of a traceback, else the first."""
    lines = [line.strip() for line in text.strip().splitlines()] or ["it says no more"]
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return errors[0] if errors else lines[0]


def _noted(result: Result, note: str) -> Result:
    return replace(result, notes=(*result.notes, note))


def failure_of(outcome: Outcome, ledger: Ledger) -> m.Failure | None:
    """Return why a test must fail, if it must."""
    # Storing is what NEW and INCOMPARABLE ask for; a strict run must be able to store its first baseline.
    cured = ledger.settings.save and outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE)
    if cured or not outcome.verdict.fails(ledger.settings.strict):
        return None
    text = failure_text(outcome, ledger.origin(outcome))
    if outcome.verdict.status is Status.SLOWER:
        return m.Failure(text, regression=True)
    return m.Failure(f"{text}\n--rlperf-strict fails what is neither SAME nor FASTER", regression=False)


def properties_of(outcome: Outcome | None) -> list[tuple[str, object]]:
    """Return what JUnit XML and other report writers get to know of a verdict."""
    return [] if outcome is None else list(properties(outcome))
