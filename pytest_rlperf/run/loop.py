"""The loop over a run's tests: workers measure each one, and it passes or fails like any other test."""

from __future__ import annotations

import heapq
import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from pytest_rlperf import wire as m
from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Outcome, Selfcheck
from pytest_rlperf.model.notes import (
    ComparedWithAnchor,
    FewerLanes,
    MeasuredFresh,
    Note,
    NotForked,
    RunProgress,
    ShortOfTime,
    TextNote,
)
from pytest_rlperf.model.sides import Project, Sides
from pytest_rlperf.options import ANCHOR, Config, usage_error
from pytest_rlperf.report.exports import properties
from pytest_rlperf.report.table import GRAVEST_FIRST
from pytest_rlperf.report.wording import collision_text
from pytest_rlperf.run.live_comparison import Lanes, Measuring, count_lanes
from pytest_rlperf.run.one_test import OneTest, check_self, essence, explain, failure_of, write_traces
from pytest_rlperf.run.reporting import ReportForwarder
from pytest_rlperf.run.state import RunState, Series, tree_top
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.spawn.process import LeftEarlyError, Worker, WorkerLostError
from pytest_rlperf.spawn.stems import (
    INTERRUPTED_LIMIT_S,
    PAIR_NAMES,
    BaseSides,
    DoubtfulError,
    Processes,
    Stems,
    WorkerGroup,
)

_REFRESH_S = 0.1
_SECONDS = "rlperf/seconds"  # how long tests usually take, in pytest's cache
_LEAST_LEFT = 0.25  # of a test's usual time, where it takes longer already
_PATIENCE_LEAST_S = 10.0
_BUDGET_S = 1800.0  # for all tests where none is given
_LEAST_PAIR_S = 3.0  # of that for each of a test's fewest pairs
_INSTANT_S = 1e-6
_PATIENCE = 4.0  # times --rlperf-max-time: how long a worker may take for one answer before it counts as hung


class Beginning(NamedTuple):
    """How the run's process started: its sys.path, its variables, and the modules that the run loaded for itself.

    ``readers`` are the packages from elsewhere that have read files of the tree while they were imported.
    """

    path: list[str]
    variables: dict[str, str]
    ours: frozenset[str]
    readers: Collection[str] = ()


class Judged(NamedTuple):
    """The results of a test, and how its call is to end."""

    end: m.Leave
    outcome: Outcome | None = None
    selfcheck: Selfcheck | None = None
    notes: tuple[Note, ...] = ()


Measure: TypeAlias = Callable[[Measuring], Judged]


class TestInLane:
    """One test on its way: a thread measures it, and the run reports what came of it, in order.

    It is measured in forked processes; where one of these crashes, hangs, fails or is in doubt, all begins anew in new
    interpreters, with that ``doubt``: theirs is the last word. ``failure`` is why the test cannot be measured, which no
    worker has reported where it ``is_unreported``. ``title`` and ``step`` are for the thread that shows progress.
    """

    def __init__(
        self, item: pytest.Item, following: pytest.Item | None, order: int, run: RunState, lanes: Lanes, *, forks: bool
    ) -> None:
        self.item = item
        self.reports: list[m.Reported | m.Warned] = []
        self.judged: Judged | None = None
        self.done: m.Done | None = None
        self.doubt = ""
        self.failure = ""
        self.is_unreported = False
        self.title = item.name
        self.step = ""
        self._following = following
        settings = run.settings.for_test(item)
        policy, group = run.policy(settings), self._new_group(settings)
        self.measuring = Measuring(group, settings, policy, lanes, self, order, fresh=not forks)

    def begin(self, test: str) -> None:
        """Name what the next steps belong to."""
        self.title = test

    def show(self, step: str) -> None:
        """Keep the current step."""
        self.step = step

    def _new_group(self, settings: Config) -> WorkerGroup:
        return WorkerGroup(
            result_key(self.item),
            None if self._following is None else result_key(self._following),
            self.reports.append,
            setup_s=settings.setup_time_s,
            patience_s=max(_PATIENCE_LEAST_S, _PATIENCE * settings.max_time_s),
        )

    def run(self, measure: Measure, limit_s: float) -> None:
        """Measure the test for at most ``limit_s`` and let it end; an error that stops this is an error of the test.

        SideError where a side has the other's code: all other tests would be measured with the same wrong code.
        """
        settings = self.measuring.settings
        if limit_s < settings.max_time_s:
            self.measuring = replace(self.measuring, settings=replace(settings, max_time_s=limit_s), is_short=True)
        self.doubt = self._attempt(measure)
        if self.doubt:
            self.reports.clear()
            self.judged = None
            self.measuring = replace(self.measuring, group=self._new_group(settings), fresh=True)
            self._attempt(measure)

    def _attempt(self, measure: Measure) -> str:
        """Measure the test and let it end in its workers; return why new interpreters are to do that again, if so."""
        group = self.measuring.group
        try:
            self.judged = measure(self.measuring)
            self.done = group.conclude(self.judged.end)
        except Exception as error:
            group.release()
            doubt = "" if self.measuring.fresh else _doubt_of(error)
            if not doubt:
                self._give_up(error, group.reporter)
            elif group.reporter is not None:
                with suppress(WorkerLostError):  # a new interpreter, which the test may be measured in again
                    group.reporter.leave()
            return doubt
        finally:
            group.at_end.close()
        return ""

    def _give_up(self, error: Exception, reporter: Worker | None) -> None:
        """End a test that cannot be measured, as an error of that test."""
        self.failure = _failure_text(error, reporter)
        if reporter is not None and reporter.alive:
            try:
                reporter.leave(m.Leave(failure=m.Failure(self.failure, regression=False)))
            except WorkerLostError as lost:
                self.failure += f"\n{lost}"
        # A reporter that has left by itself has reported why, unless it did not even have the test.
        self.is_unreported = reporter is None or not reporter.alive or not self.reports


@dataclass
class TestLoop:
    """Runs measured tests in workers, several at once in lanes, and reports them as if they had run here in order.

    ``began`` is how this process started.
    """

    config: pytest.Config
    run_state: RunState
    began: Beginning
    lanes: Lanes
    progress: RunProgress

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        project = make_project(session, self.began, self.run_state.settings)
        self.run_state.series = Series(session.items)
        processes = self._processes(project, session.items)
        preparation = Preparation(project, processes.guardian.new_directory, self.progress.show)
        try:
            with processes.guardian.guarding_commands():
                sides = self._prepare_sides(preparation)
                alone = sides or preparation.alone()
            if self.run_state.settings.selfcheck:
                stems = processes.stems(alone, "other worker", "head worker")
                self._run_tests(session, partial(self._check_self, stems), processes)
            else:
                solo = processes.stems(alone, "worker")
                against = None if sides is None else processes.stems(sides, *PAIR_NAMES)
                measure = partial(self._compare, solo, BaseSides(preparation, processes), against)
                self._run_tests(session, measure, processes)
            self.run_state.note(*map(NotForked, processes.not_forked()))
        except (SideError, BaselineError, WorkerLostError) as error:
            spec = self.run_state.settings.against  # without one there is no place for temporary files
            raise usage_error(error if spec is None else f"--rlperf-against={spec}: {error}") from None
        except KeyboardInterrupt:
            processes.close(INTERRUPTED_LIMIT_S)
            raise
        finally:
            self.progress.clear()
            if not processes.close():
                text = "the process that ends what tests leave running did not answer, and was ended: was it stopped?"
                self.run_state.note(TextNote(text))

    def _prepare_sides(self, preparation: Preparation) -> Sides | None:
        """Return the sides of --rlperf-against; SideError or BaselineError where its code cannot be had."""
        spec = self.run_state.settings.against
        if spec is None:
            return None
        self.progress.begin(spec)
        sides = self._anchored(preparation) if spec == ANCHOR else preparation.against(spec)
        self.run_state.note(*map(TextNote, sides.notes))
        return sides

    def _anchored(self, preparation: Preparation) -> Sides:
        """Return the sides of a comparison with the baseline's anchor; SideError where its code cannot be had."""
        baselines, name = self.run_state.baselines, self.run_state.settings.baseline
        anchor = baselines.anchor
        if anchor is None:
            raise SideError(
                f"the baseline {name!r} has no anchor: rlperf anchor REF --reason TEXT sets one, and so does the first "
                "--rlperf-save-baseline of committed code"
            )
        self.run_state.note(ComparedWithAnchor(name, anchor, baselines.last_commit()))
        return preparation.commit(anchor.commit, "anchor")

    def _run_tests(self, session: pytest.Session, measure: Measure, processes: Processes) -> None:
        """Measure as many tests at once as there are lanes, and report them one after another."""
        items, lanes, forks = session.items, self.lanes, processes.forks
        budget = Budget(self.run_state.settings, len(items), lanes.count)
        tests = [
            TestInLane(item, following, order, self.run_state, lanes, forks=forks)
            for order, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True))
        ]
        cache = getattr(self.config, "cache", None)
        usual_s = {} if cache is None else cache.get(_SECONDS, {})
        left = TimeLeft([test.measuring.group.key for test in tests], usual_s, lanes.count)
        threads = ThreadPoolExecutor(lanes.count)
        # With one lane a test begins when the one before it is reported: what it prints comes in the right place.
        measured: Iterable[Future[None]] = (
            threads.submit(self._measure, test, measure, budget, left) for test in tests
        )
        try:
            if lanes.count > 1:
                measured = list(measured)
            for number, (test, end) in enumerate(zip(tests, measured, strict=True)):
                self._report(test, end, partial(self._show_count, number, len(tests), left))
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            # Nothing is left to cancel where all tests are reported.
            lanes.close()
            processes.cancel()
            threads.shutdown(cancel_futures=True)
            if cache is not None:
                cache.set(_SECONDS, left.learned_s())

    def _show_count(self, done: int, total: int, left: TimeLeft) -> None:
        """Show how many tests are reported, the verdicts so far, and the time left."""
        statuses = Counter(outcome.verdict.status for outcome in self.run_state.outcomes.tests.values())
        verdicts = {status.value: statuses[status] for status in GRAVEST_FIRST if statuses[status]}
        self.progress.count(done, total, verdicts, left.left_s())

    def _measure(self, test: TestInLane, measure: Measure, budget: Budget, left: TimeLeft) -> None:
        """Measure one test in its part of the run's time."""
        left.begin(test.measuring.group.key)
        try:
            test.run(measure, budget.next_s())
        finally:
            left.end(test.measuring.group.key)

    def _report(self, test: TestInLane, measured: Future[None], count: Callable[[], None]) -> None:
        """Report one test as if it ran here, once it is measured; ``count`` shows meanwhile how far the run is."""
        reports = ReportForwarder(self.config, test.item)
        self._await(test, measured, count)
        reports.forward_all(test.reports)
        if test.is_unreported:
            reports.fabricate(test.failure)
        outcome = self.run_state.outcomes.tests.get(test.measuring.group.key)
        reports.finish([] if outcome is None else list(properties(outcome)))

    def _await(self, test: TestInLane, measured: Future[None], count: Callable[[], None]) -> None:
        """Show a test's steps until it is measured, and keep its results."""
        while not wait([measured], _REFRESH_S).done:
            count()
            if test.step:
                self.progress.begin(test.title)
                self.progress.show(test.step)
        measured.result()
        key, run, judged, done = test.measuring.group.key, self.run_state, test.judged, test.done
        if judged is not None:
            if judged.outcome is not None:
                run.outcomes.add(judged.outcome)
            if judged.selfcheck is not None:
                run.outcomes.selfchecks[key] = judged.selfcheck
            run.note(*judged.notes)
        if test.doubt and not test.failure:
            run.note(MeasuredFresh(key, test.doubt))
        if done is not None:
            run.outcomes.modules.update(done.modules)

    def _compare(self, solo: Stems, base_sides: BaseSides, against: Stems | None, test: Measuring) -> Judged:
        """Measure a test and compare it with the base side or the baseline."""
        group, settings, progress = test.group, test.settings, test.progress
        outcome, notes = OneTest(test, solo, base_sides, against, self.run_state).measure()
        if test.is_short and outcome.verdict.was_cut_short:
            notes = (*notes, ShortOfTime(group.key, settings.max_time_s))
        # To find where the time goes takes a second, and only these outputs show it.
        explains = self.config.get_verbosity() > 0 or settings.json is not None or settings.html is not None
        if explains and outcome.result.measured:
            with nullcontext() if group.has_machine else test.lanes.lane(test.order):
                outcome = explain(group, outcome, progress)
        if settings.trace is not None and outcome.result.measured:
            with nullcontext() if group.has_machine else test.lanes.lane(test.order):
                notes = (*notes, *write_traces(group, settings.trace, progress))
        end = m.Leave(outcome.result, failure_of(outcome, self.run_state))
        return Judged(end, outcome, notes=notes)

    def _check_self(self, stems: Stems, test: Measuring) -> Judged:
        """Compare a test with itself."""
        found = check_self(test, stems)
        return Judged(m.Leave(found.result), selfcheck=found)

    def _processes(self, project: Project, items: Sequence[pytest.Item]) -> Processes:
        settings, terminal = self.run_state.settings, self.config.pluginmanager.get_plugin("terminalreporter")
        loads_alike = settings.against is None or not settings.against.startswith("python:")  # on one interpreter
        return Processes(
            variables=self.began.variables,
            ours=self.began.ours,
            readers=self.began.readers,
            fixtures={name for item in items for name in getattr(item, "fixturenames", ())},
            forks=sys.platform == "linux" and settings.workers == "auto" and loads_alike,
            top=tree_top(project.rootdir),
            markup=bool(terminal is not None and terminal.hasmarkup),
            share_terminal=self.config.option.capture in ("no", "tee-sys"),
            start_limit_s=settings.setup_time_s,
        )


def make_lanes(config: pytest.Config, run: RunState) -> Lanes:
    """Return the lanes of a run: one where tests write to an output that they share; note where there are fewer."""
    machine, wanted = count_lanes(), run.settings.lanes
    if config.option.capture in ("no", "tee-sys") or run.settings.selfcheck:
        wanted = 1
    cpus = max(1, len(machine.cpus))
    if wanted is None and machine.most < cpus:
        run.note(FewerLanes(machine.most, cpus, machine.quota))
    elif wanted is not None and wanted > cpus:
        run.note(FewerLanes(cpus, wanted, None))
    return Lanes(min(wanted or machine.most, cpus), machine.cpus)


def make_project(session: pytest.Session, began: Beginning, settings: Config) -> Project:
    """Return the tree of today as this session sees it."""
    config = session.config
    conftests = (getattr(module, "__file__", None) for module in config.pluginmanager._conftest_plugins)
    return Project(
        rootdir=config.rootpath,
        directory=config.invocation_params.dir,
        inipath=config.inipath,
        # Workers measure no coverage.
        args=(*["--no-cov"] * config.pluginmanager.hasplugin("pytest_cov"), *map(str, config.invocation_params.args)),
        path=tuple(began.path),
        files=tuple(dict.fromkeys(item.path for item in session.items)),
        conftests=tuple(sorted(Path(name) for name in conftests if name is not None)),
        test_patterns=tuple(config.getini("python_files")),
        also=settings.also,
        baseline_dir=settings.baseline_dir,
        variables=began.variables,
    )


class Budget:
    """The time for all tests of a run, of which each gets an equal part of what is left when it begins.

    So tests that are settled early leave their time to others. ``lanes`` tests are measured at once. Without
    --rlperf-budget many tests get less than --rlperf-max-time each, but always enough for the fewest pairs.
    """

    def __init__(
        self, settings: Config, tests: int, lanes: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lanes = lanes
        self._tests_left = tests
        self._lock = threading.Lock()
        given_s = settings.budget_s
        # What imports and fixtures take is not counted, so that a pair's time is about that of a quiet machine.
        least_s = settings.pairs[0] * _LEAST_PAIR_S
        if given_s is None:
            given_s = math.inf if settings.selfcheck else max(_BUDGET_S, tests * least_s / lanes)
        self._total_s = given_s
        self._least_s = least_s if settings.budget_s is None else _INSTANT_S
        self._end_s: float | None = None

    def next_s(self) -> float:
        """Return the longest time for the test that begins now."""
        with self._lock:
            tests, self._tests_left = max(1, self._tests_left), self._tests_left - 1
            now_s = self._clock()
            self._end_s = now_s + self._total_s if self._end_s is None else self._end_s
            left_s = self._end_s - now_s
        return max(self._least_s, left_s * min(self._lanes, tests) / tests)


class TimeLeft:
    """Estimates the time that a run's tests will take: as in earlier runs here, and more and more at this run's pace.

    ``usual_s`` are the seconds by tests, as ``learned_s`` of the run before returned them. ``lanes`` tests go on at
    once.
    """

    def __init__(
        self,
        keys: Sequence[str],
        usual_s: Mapping[str, float],
        lanes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        known = [usual_s[key] for key in keys if key in usual_s]
        self._expected_s = {key: usual_s.get(key, sum(known) / len(known)) for key in keys} if known else {}
        self._usual_s, self._lanes, self._clock = usual_s, lanes, clock
        self._begun_s: dict[str, float] = {}
        self._took_s: dict[str, float] = {}

    def begin(self, key: str) -> None:
        """Note that a test begins."""
        self._begun_s[key] = self._clock()

    def end(self, key: str) -> None:
        """Note that a test is done."""
        self._took_s[key] = self._clock() - self._begun_s[key]

    def left_s(self) -> float:
        """Return the time left, 0 where no earlier run says how long tests take."""
        if not self._expected_s:
            return 0.0
        took_s, now_s = dict(self._took_s), self._clock()
        whole_s = sum(self._expected_s.values())  # which weighs as much in the pace as all that ended
        pace = (whole_s + sum(took_s.values())) / (whole_s + sum(self._expected_s[key] for key in took_s))
        ends_s = [0.0] * self._lanes
        for key, expected_s in self._expected_s.items():
            if key not in took_s:
                spent_s = now_s - self._begun_s.get(key, now_s)
                heapq.heapreplace(ends_s, ends_s[0] + max(expected_s * pace - spent_s, _LEAST_LEFT * expected_s))
        return max(ends_s)

    def learned_s(self) -> dict[str, float]:
        """Return the usual seconds of tests, which each run moves half of the way to its own."""
        moved = {key: (took_s + self._usual_s.get(key, took_s)) / 2 for key, took_s in self._took_s.items()}
        return {**self._usual_s, **moved}


def _doubt_of(error: Exception) -> str:
    """Return why new interpreters are to measure a test again; empty where they need not."""
    if isinstance(error, LeftEarlyError | WorkerLostError):
        failing = "in a forked process it failed: " if isinstance(error, LeftEarlyError) else ""
        return f"{failing}{essence(str(error))}" if error.is_doubtful else ""
    return essence(str(error)) if isinstance(error, DoubtfulError | SideError) else ""


def _failure_text(error: Exception, reporter: Worker | None) -> str:
    """Return why a test cannot be measured; SideError where no other can be, either."""
    if isinstance(error, LeftEarlyError):
        return _how_it_left(error, reporter or error.worker)
    if isinstance(error, WorkerLostError | MeasurementError):  # the second where a worker could not even be started
        return str(error)
    if isinstance(error, SideError):
        raise error
    # The other tests have their verdicts, whatever is wrong with this one.
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"the measurement broke: {type(error).__name__}: {error}\n{trace}"


def _how_it_left(early: LeftEarlyError, reporter: Worker) -> str:
    """Return how a test ended in one worker while it went on in the one that reports it."""
    name, done = early.worker.name, early.done
    if done.outcome == "passed":
        return (
            f"in {name} the test ended without calling its rlperf fixture, which it called in {reporter.name}; it "
            "must do the same in every process, whatever it finds there"
        )
    outcome = "was not collected" if done.outcome == "missing" else done.outcome
    way_out = f"{collision_text(done.collision)}\n" if done.collision else ""
    return f"in {name} the test {outcome} where it went on in {reporter.name}.\n{way_out}{done.text}"
