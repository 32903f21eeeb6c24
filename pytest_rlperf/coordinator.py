"""One measured test: workers measure it, the result is compared and judged, and it passes or fails like any other."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from pytest_rlperf.errors import MeasurementError, PerformanceRegression
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.ledger import Ledger
from pytest_rlperf.measure import messages as m
from pytest_rlperf.measure.kernel import make_kernels
from pytest_rlperf.measure.pool import Pool
from pytest_rlperf.measure.process import Launch, LeftEarlyError, Worker, WorkerLostError
from pytest_rlperf.measure.slices import Meter
from pytest_rlperf.measure.solo import WORKERS, Solo, expected_s, measure_solo
from pytest_rlperf.model import Outcome, Result, Shape, SliceKind, SliceRecord, Status, Warm, Workload
from pytest_rlperf.options import Config
from pytest_rlperf.relay import Relay
from pytest_rlperf.report.rows import failure_text

_PATIENCE_LEAST_S = 10.0
_PATIENCE = 4.0  # times --rlperf-max-time: how long a worker may take for one answer before it counts as hung


class Progress(Protocol):
    """Shows what goes on while a test is measured."""

    def show(self, test: str, step: str, seconds_left: float) -> None:
        """Show a test's current step, and about how long it will take."""

    def clear(self) -> None:
        """Make room for what pytest writes."""


class Coordinator:
    """Runs measured tests in workers and reports them as if they had run here.

    ``path`` is sys.path as this process started; ``progress`` is told the test, the step and the seconds left.
    """

    def __init__(self, config: pytest.Config, ledger: Ledger, path: list[str], progress: Progress) -> None:
        self._config = config
        self._ledger = ledger
        self._path = path
        self._progress = progress
        self.relay = Relay(config, progress.clear)

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        pool = Pool(self._launch(session), self.relay.forward)
        limit_s = share_s(self._ledger.settings, len(session.items))
        try:
            for item, following in zip(session.items, [*session.items[1:], None], strict=True):
                item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
                self.relay.begin(item)
                self._run_item(pool, item, following, limit_s)
                self.relay.finish(_properties(self._ledger.outcomes.get(result_key(item))))
                item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            self._progress.clear()
            pool.close()

    def _launch(self, session: pytest.Session) -> Launch:
        invocation = self._config.invocation_params
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        covered = self._config.pluginmanager.hasplugin("pytest_cov")
        return Launch(
            args=[*(["--no-cov"] if covered else []), *map(str, invocation.args)],
            files=list(dict.fromkeys(str(item.path) for item in session.items)),
            path=self._path,
            directory=invocation.dir,
            markup=bool(reporter is not None and reporter.hasmarkup),
            share_terminal=self._config.option.capture in ("no", "tee-sys"),
        )

    def _run_item(self, pool: Pool, item: pytest.Item, following: pytest.Item | None, limit_s: float) -> None:
        """Run one test in every worker, the first of which reports it."""
        key = result_key(item)
        settings = self._ledger.settings.for_test(item)
        max_time_s = min(settings.max_time_s, limit_s)
        started_s = time.monotonic()
        workers: list[Worker] = []
        try:
            self._progress.show(item.name, "starting workers", expected_s(WORKERS))
            workers = pool.ensure(WORKERS)
            for worker in workers:
                worker.start_run(
                    key,
                    None if following is None else result_key(following),
                    reporter=worker is workers[0],
                    patience_s=max(_PATIENCE_LEAST_S, _PATIENCE * settings.max_time_s),
                )
            self._progress.show(item.name, "setting up", expected_s(WORKERS))
            called = [worker.wait_called() for worker in workers]
            solo = measure_solo(
                workers,
                max_time_s,
                lambda step, left_s: self._progress.show(item.name, step, left_s),
                long=self._ledger.told_by_mean(key),
            )
            result = make_result(key, called[0], solo)
            outcome = self._ledger.enter(key, settings, result, time.monotonic() - started_s)
            self._finish(workers, m.Conclude(result, _failure(self._ledger, outcome)))
        except LeftEarlyError as early:
            text = _departure(early)
            missing = early.worker is workers[0] and early.done.outcome == "missing"
            if missing:
                text = f"collected here, but not in the process that measures it: {early.done.text}"
            self._give_up(workers, early.worker, text, missing=missing)
        except WorkerLostError as lost:
            self._give_up(workers, lost.worker, str(lost))
        except MeasurementError as error:  # a worker could not even be started
            self._give_up(workers, None, str(error))

    def _finish(self, workers: list[Worker], order: m.Conclude) -> None:
        """Let every worker leave the test, the reporter last and with its result."""
        for worker in workers[1:]:
            worker.start_unwinding()
        for worker in workers[1:]:
            worker.unwind()
        done = workers[0].conclude(order)
        self._ledger.modules.update(done.modules)

    def _give_up(self, workers: list[Worker], culprit: Worker | None, text: str, *, missing: bool = False) -> None:
        """End a test that ``culprit`` made impossible to measure, as an error of that test."""
        for worker in workers[1:]:
            try:
                if worker.alive:
                    worker.unwind()
            except WorkerLostError:
                continue  # one reason is enough; the pool replaces it
        reporter = workers[0] if workers else culprit
        if reporter is None or not reporter.alive:
            self.relay.fabricate(text)
        elif reporter.running:
            try:
                reporter.conclude(m.Conclude(None, m.Failure(text, regression=False)))
            except WorkerLostError as lost:
                self.relay.fabricate(f"{text}\n{lost}")
        elif missing:
            self.relay.fabricate(text)
        # Otherwise the reporter has left by itself, and reported why.


def _departure(early: LeftEarlyError) -> str:
    """Say how a test ended in one worker while it went on in the first."""
    number, done = early.worker.number, early.done
    if done.outcome == "missing":
        return f"worker {number} did not collect the test: {done.text}"
    if done.outcome == "passed":
        return (
            f"in worker {number} the test ended without calling its rlperf fixture, which it called in worker 0; it "
            "must do the same in every process, whatever it finds there"
        )
    return f"in worker {number} the test {done.outcome} where it went on in worker 0.\n{done.text}"


@dataclass
class InlineEngine:
    """Measures in this process, for a debugger: one worker's worth of figures, which never convict."""

    ledger: Ledger
    progress: Progress
    limit_s: float
    kernels: dict[SliceKind, Callable[[], object]] = field(default_factory=make_kernels)

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Measure, judge, and fail the test where a strict run must."""
        __tracebackhide__ = True
        key, settings = result_key(item), self.ledger.settings.for_test(item)
        started_s = time.monotonic()
        turns = _InlineTurns(Meter(workload, self.kernels))
        try:
            solo = measure_solo(
                [turns],
                min(settings.max_time_s, self.limit_s),
                lambda step, left_s: self.progress.show(item.name, step, left_s),
                long=self.ledger.told_by_mean(key),
            )
        finally:
            turns.meter.thaw()
            self.progress.clear()
        called = m.Called(workload.component, workload.unit, workload.items)
        result = make_result(key, called, solo)
        outcome = self.ledger.enter(key, settings, result, time.monotonic() - started_s)
        failure = _failure(self.ledger, outcome)
        if failure is not None:
            raise (PerformanceRegression if failure.regression else MeasurementError)(failure.message)
        return result


class _InlineTurns:
    """A meter of this process, taking turns by itself."""

    number = 0
    seed = 0

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._checked = (0.0, 0.0)

    def start_check(self) -> None:
        __tracebackhide__ = True
        self._checked = self.meter.check(), self.meter.workload.processed(1)

    def wait_checked(self) -> tuple[float, float]:
        return self._checked

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None) -> Warm:
        __tracebackhide__ = True
        return self.meter.warm_up(shape, limit_s, long)

    def take(self, kind: SliceKind) -> SliceRecord:
        __tracebackhide__ = True
        return self.meter.take(kind)

    def cpu_s(self) -> float:
        return 0.0  # nobody else has a turn to disturb


def make_result(key: str, called: m.Called, solo: Solo) -> Result:
    """Return the result of a test from what its workers found."""
    return Result(
        nodeid=key,
        component=called.component,
        unit=called.unit,
        items=statistics.fmean(worker.items_per_call for worker in solo.workers),
        workers=solo.workers,
        phases=solo.phases,
        traced_call_s=solo.traced_call_s,
        notes=solo.notes,
    )


def share_s(settings: Config, tests: int) -> float:
    """Return the seconds of the run's budget that fall to each of ``tests`` tests; infinite without a budget."""
    return math.inf if settings.budget_s is None or not tests else settings.budget_s / tests


def _failure(ledger: Ledger, outcome: Outcome) -> m.Failure | None:
    """Return why a test must fail, if it must."""
    # Storing is what NEW and INCOMPARABLE ask for; a strict run must be able to store its first baseline.
    cured = ledger.settings.save and outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE)
    if cured or not outcome.verdict.fails(ledger.settings.strict):
        return None
    text = failure_text(outcome, ledger.origin(outcome))
    if outcome.verdict.status is Status.SLOWER:
        return m.Failure(text, regression=True)
    return m.Failure(f"{text}\n--rlperf-strict fails what is neither SAME nor FASTER", regression=False)


def _properties(outcome: Outcome | None) -> list[tuple[str, object]]:
    """Return what JUnit XML and other report writers get to know of a verdict."""
    if outcome is None:
        return []
    properties: list[tuple[str, object]] = [
        ("rlperf_verdict", outcome.verdict.status.value),
        ("rlperf_call_s", f"{outcome.result.call_s:.6g}"),
    ]
    if outcome.verdict.estimate is not None:
        properties.append(("rlperf_ratio", f"{outcome.verdict.estimate.ratio:.4f}"))
    return properties
