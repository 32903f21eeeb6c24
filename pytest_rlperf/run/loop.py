"""The loop over a run's tests: workers measure each one, and it passes or fails like any other test."""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

import pytest

from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.notes import (
    AddedPackages,
    ComparedWithAnchor,
    FewerLanes,
    MeasuredFresh,
    Note,
    NotForked,
    ShortOfTime,
    TextNote,
)
from pytest_rlperf.model.progress import RunProgress
from pytest_rlperf.model.selfcheck import Selfcheck
from pytest_rlperf.model.sides import Project, Sides
from pytest_rlperf.model.spans import Trace
from pytest_rlperf.options import ANCHOR, Config
from pytest_rlperf.report.statuses import GRAVEST_FIRST
from pytest_rlperf.report.wording import collision_text
from pytest_rlperf.run import diagnostics
from pytest_rlperf.run.baselines import tree_top
from pytest_rlperf.run.forwarding import ReportForwarder
from pytest_rlperf.run.lanes import Lanes, count_lanes
from pytest_rlperf.run.live_comparison import Measuring
from pytest_rlperf.run.one_test import OneTest, essence, failure_of, properties_of
from pytest_rlperf.run.outcomes import RunState, Series
from pytest_rlperf.run.selfcheck import check_self
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.process import LeftEarlyError, Process, Worker, WorkerLostError
from pytest_rlperf.workers.stems import (
    INTERRUPTED_LIMIT_S,
    BaseSide,
    BaseSides,
    DoubtfulError,
    Processes,
    Stems,
    Surroundings,
    WorkerGroup,
)

_REFRESH_S = 0.1
_PATIENCE_LEAST_S = 10.0
_BUDGET_S = 1800.0  # for all tests where none is given
_LEAST_PAIR_S = 3.0  # of that for each of a test's fewest pairs
_INSTANT_S = 1e-6
_PATIENCE = 4.0  # times --rlperf-max-time: how long a worker may take for one answer before it counts as hung

MeasureTest: TypeAlias = Callable[["TestInLane"], m.Conclude]
"""Measures a test, and returns how its call ends."""


class Beginning(NamedTuple):
    """How the run's process started: its sys.path, its variables, and the modules that the run loaded for itself."""

    path: list[str]
    variables: dict[str, str]
    ours: frozenset[str]


class Judged(NamedTuple):
    """The results of a test, from before its reports are made."""

    outcome: Outcome | None = None
    selfcheck: Selfcheck | None = None
    notes: tuple[Note, ...] = ()
    traces: tuple[Trace, ...] = ()


class Fabricated(NamedTuple):
    """The text of a failure that no worker can report."""

    text: str


class Finished(NamedTuple):
    """The end of a test in its reporter, and the error that ends the run, if there is one."""

    done: m.Done | None = None
    error: BaseException | None = None


class LatestStep:
    """Keeps the latest step of one test, for the thread that shows progress."""

    def __init__(self, test: str) -> None:
        self.test = test
        self.step: str | None = None

    def begin(self, test: str) -> None:
        """Name the test that the next steps belong to."""
        self.test = test

    def show(self, step: str) -> None:
        """Keep the current step."""
        self.step = step

    def clear(self) -> None:
        """Leave the screen alone: this writes nothing."""


class TestInLane:
    """One test on its way: a thread measures it, and its ``events`` wait until the run reports them, in order.

    ``order`` is its place in the run. A test is measured in forked processes; where one of these crashes, hangs, fails
    or is in doubt, ``fresh`` is set and all begins anew in new interpreters: theirs is the last word.
    """

    def __init__(
        self, item: pytest.Item, following: pytest.Item | None, order: int, run: RunState, *, forks: bool
    ) -> None:
        self.item = item
        self.order = order
        self.events: SimpleQueue[m.Reported | m.Warned | Judged | Fabricated | Finished] = SimpleQueue()
        self.progress = LatestStep(item.name)
        self.failure = ""  # why the test cannot be measured
        self.settings = run.settings.for_test(item)
        self.fresh = not forks
        self._following = following
        self._reports: list[m.Reported | m.Warned] = []
        self.group = self._new_group()

    def _new_group(self) -> WorkerGroup:
        return WorkerGroup(
            result_key(self.item),
            None if self._following is None else result_key(self._following),
            self._reports.append,
            setup_s=self.settings.setup_time_s,
            patience_s=max(_PATIENCE_LEAST_S, _PATIENCE * self.settings.max_time_s),
        )

    def run(self, measure: MeasureTest, against: str | None) -> None:
        """Measure the test and let it end in its workers; an error that stops this is an error of the test."""
        finished = Finished()
        try:
            finished = self._run(measure)
        except SideError as error:  # all other tests would be measured with the same wrong code
            finished = Finished(error=pytest.UsageError(f"--rlperf-against={against}: {error}"))
        except BaseException as error:
            finished = Finished(error=error)
        finally:
            self.group.close()
            self.events.put(finished)

    def _run(self, measure: MeasureTest) -> Finished:
        doubt = ""
        try:
            if not self.fresh:
                return self._measured(measure)
        except (LeftEarlyError, WorkerLostError, DoubtfulError, SideError) as error:
            doubt = _doubt_of(error, self.group)
            if not doubt:
                return self._give_up_after(error)
        except Exception as error:
            return self._give_up_after(error)
        if doubt:
            self._begin_anew()
        try:
            finished = self._measured(measure)
        except SideError:
            raise
        except Exception as error:
            return self._give_up_after(error)
        if doubt:
            self.events.put(Judged(notes=(MeasuredFresh(self.group.key, doubt),)))
        return finished

    def _begin_anew(self) -> None:
        """Let go of forked workers and of what they reported, for new interpreters."""
        self.group.release()
        self.group.close()
        self._reports.clear()
        self.fresh = True
        self.group = self._new_group()

    def _measured(self, measure: MeasureTest) -> Finished:
        """Measure the test, and pass on what its workers reported."""
        done = self.group.conclude(measure(self))
        self._pass_on()
        return Finished(done)

    def _pass_on(self) -> None:
        for report in self._reports:
            self.events.put(report)
        self._reports.clear()

    def _give_up_after(self, error: Exception) -> Finished:
        """End a test that cannot be measured, as an error of that test."""
        group = self.group
        if isinstance(error, LeftEarlyError):
            worker = error.worker
            text = _how_it_left(error, group.reporter or worker)
            missing = worker is group.reporter and error.done.outcome == "missing"
            if missing:
                text = f"collected here, but not in the process that measures it: {error.done.text}"
            self._give_up(worker, text, missing=missing)
        elif isinstance(error, WorkerLostError):
            self._give_up(error.worker, str(error))
        elif isinstance(error, MeasurementError):  # a worker could not even be started
            self._give_up(None, str(error))
        elif isinstance(error, SideError):
            raise error
        else:  # the other tests have their verdicts, whatever is wrong with this one
            self._give_up(None, unexpected_text(error))
        return Finished()

    def _give_up(self, culprit: Process | None, text: str, *, missing: bool = False) -> None:
        """End a test that ``culprit`` made impossible to measure."""
        self.failure = text
        self.group.release()
        reporter = self.group.reporter or (culprit if isinstance(culprit, Worker) else None)
        fabricated = False
        if reporter is None or not reporter.alive or missing:
            fabricated = True
        elif reporter.running:
            try:
                reporter.conclude(m.Conclude(None, m.Failure(text, regression=False)))
            except WorkerLostError as lost:
                fabricated, text = True, f"{text}\n{lost}"
        # Otherwise the reporter has left by itself, and reported why.
        self._pass_on()
        if fabricated:
            self.events.put(Fabricated(text))


class TestLoop:
    """Runs measured tests in workers, several at once in lanes, and reports them as if they had run here in order.

    ``began`` is how this process started.
    """

    def __init__(
        self, config: pytest.Config, run: RunState, began: Beginning, lanes: Lanes, progress: RunProgress
    ) -> None:
        self._config = config
        self._run = run
        self._began = began
        self._path = began.path
        self._lanes = lanes
        self._progress = progress
        settings = run.settings
        # To find where the time goes takes a second, and only these outputs show it.
        self._explains = config.get_verbosity() > 0 or settings.json is not None or settings.html is not None
        self._reports = ReportForwarder(config, progress.clear)

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        project = make_project(session, self._path, self._run.settings)
        today = project.side("working tree", sys.executable, project.path, ())
        lanes = self._lanes
        self._run.series = Series(session.items)
        processes = Processes(self._surroundings(project, session.items))
        try:
            with processes.guarding_commands():
                sides = self._prepare_sides(project)
            if self._run.settings.selfcheck:
                stems = processes.stems(today, today, names=("other worker", "head worker"))
                self._run_tests(session, partial(self._check_self, stems), lanes, processes)
            else:
                head = today if sides is None else sides.head
                solo = processes.stems(None, head, sides, names=("", "worker"))
                base_sides = BaseSides(project, processes)
                against = None if sides is None else self._base_side(base_sides, sides, session)
                self._run_tests(session, partial(self._compare, solo, base_sides, against), lanes, processes)
            self._note_fresh(processes)
        except SideError as error:  # there is no place for temporary files
            raise pytest.UsageError(str(error)) from None
        except KeyboardInterrupt:
            processes.close(INTERRUPTED_LIMIT_S)
            raise
        finally:
            self._progress.clear()
            processes.close()

    def _note_fresh(self, processes: Processes) -> None:
        """Note why processes could not be forked, where they were to be."""
        for reason in processes.not_forked():
            self._run.note(NotForked(reason))

    def _prepare_sides(self, project: Project) -> Sides | None:
        """Return the sides of --rlperf-against; UsageError where its code cannot be had."""
        spec = self._run.settings.against
        if spec is None:
            return None
        from pytest_rlperf.sides.prepare import prepare_sides  # which a run without a base need not load

        self._progress.begin(spec)
        try:
            sides = self._anchored(project) if spec == ANCHOR else prepare_sides(spec, project, self._progress.show)
        except (SideError, BaselineError) as error:
            raise pytest.UsageError(f"--rlperf-against={spec}: {error}") from None
        finally:
            self._progress.clear()
        self._run.note(*map(TextNote, sides.notes))
        if sides.additions is not None:
            self._run.note(AddedPackages(sides.base.label, sides.additions))
        return sides

    def _anchored(self, project: Project) -> Sides:
        """Return the sides of a comparison with the baseline's anchor; SideError where its code cannot be had."""
        baselines, name = self._run.baselines, self._run.settings.baseline
        anchor = baselines.anchor
        assert anchor is not None  # or the run was refused
        from pytest_rlperf.sides.prepare import commit_sides

        self._run.note(ComparedWithAnchor(name, anchor, baselines.last_commit()))
        return commit_sides(anchor.commit, project, self._progress.show, "anchor")

    def _base_side(self, base_sides: BaseSides, sides: Sides, session: pytest.Session) -> BaseSide:
        """Start the base side of --rlperf-against; UsageError where none of the tests can be collected there."""
        base_side = base_sides.add(sides)
        # One shard may well have new tests alone.
        if not base_side.is_same_code and self._run.shard is None:
            self._progress.begin(sides.base.label)
            self._progress.show("starting workers")
            try:
                base_side.check_collected([result_key(item) for item in session.items])
            except (SideError, WorkerLostError) as error:
                raise pytest.UsageError(f"--rlperf-against={self._run.settings.against}: {error}") from None
            finally:
                self._progress.clear()
        return base_side

    def _run_tests(self, session: pytest.Session, measure: MeasureTest, lanes: Lanes, processes: Processes) -> None:
        """Measure as many tests at once as there are lanes, and report them one after another."""
        items = session.items
        budget = Budget(self._run.settings, len(items), lanes.count)
        forks = processes.surroundings.forks
        tests = [
            TestInLane(item, following, order, self._run, forks=forks)
            for order, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True))
        ]
        threads = ThreadPoolExecutor(lanes.count)
        try:
            # With one lane a test begins when the one before it is reported: what it prints comes in the right place.
            at_once = tests if lanes.count > 1 else []
            for test in at_once:
                threads.submit(self._measure, test, measure, budget)
            for number, test in enumerate(tests):
                show_count(self._progress, self._run, number, len(tests))
                if not at_once:
                    threads.submit(self._measure, test, measure, budget)
                self._report(test)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            # Nothing is left to cancel where all tests are reported.
            lanes.close()
            processes.cancel()
            threads.shutdown(cancel_futures=True)

    def _measure(self, test: TestInLane, measure: MeasureTest, budget: Budget) -> None:
        """Measure one test in its part of the run's time."""
        test.settings = replace(test.settings, max_time_s=min(test.settings.max_time_s, budget.next_s()))
        test.run(measure, self._run.settings.against)

    def _report(self, test: TestInLane) -> None:
        """Report one test as if it ran here, while it does or after it did."""
        item = test.item
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._reports.begin(item)
        while True:
            match self._next_event(test):
                case Judged() as judged:
                    self._keep(test, judged)
                case Fabricated(text):
                    self._reports.fabricate(text)
                case Finished(done, error):
                    if error is not None:
                        raise error
                    if done is not None:
                        self._end(test, done)
                    break
                case message:
                    try:
                        self._reports.forward(message)
                    except m.UnreadableError as error:
                        self._reports.fabricate(f"a worker sent a report that cannot be read: {error}")
        self._progress.clear()
        self._reports.finish(properties_of(self._run.outcomes.tests.get(test.group.key)))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _end(self, test: TestInLane, done: m.Done) -> None:
        self._run.outcomes.modules.update(done.modules)
        if done.dropped:
            size = f"{done.dropped / 1e6:.1f} MB"
            self._run.note(TextNote(f"{test.group.key}: its calls printed too much, and {size} of it were dropped"))

    def _next_event(self, test: TestInLane) -> m.Reported | m.Warned | Judged | Fabricated | Finished:
        """Return a test's next event, and show its steps until there is one."""
        while True:
            try:
                return test.events.get(timeout=_REFRESH_S)
            except Empty:
                if test.progress.step is not None:
                    self._progress.begin(test.progress.test)
                    self._progress.show(test.progress.step)

    def _keep(self, test: TestInLane, judged: Judged) -> None:
        outcomes = self._run.outcomes
        if judged.outcome is not None:
            outcomes.add(judged.outcome)
        if judged.selfcheck is not None:
            outcomes.selfchecks[test.group.key] = judged.selfcheck
        outcomes.traces += judged.traces
        self._run.note(*judged.notes)

    def _compare(self, solo: Stems, base_sides: BaseSides, against: BaseSide | None, test: TestInLane) -> m.Conclude:
        """Measure a test and compare it with the base side or the baseline."""
        group, settings, progress = test.group, test.settings, test.progress
        outcome, notes = OneTest(self._measuring(test), solo, base_sides, against, self._run).measure()
        own_s = self._run.settings.for_test(test.item).max_time_s
        if settings.max_time_s < own_s and outcome.verdict.was_cut_short:
            notes = (*notes, ShortOfTime(group.key, settings.max_time_s))
        traces: list[Trace] = []
        if settings.trace is not None or (outcome.result.measured and self._explains):
            with nullcontext() if group.has_machine else self._lanes.lane(test.order):
                if outcome.result.measured and self._explains:
                    outcome = diagnostics.explain(group, outcome, progress)
                if settings.trace is not None:
                    traces = diagnostics.trace(group, outcome, progress)
        test.events.put(Judged(outcome, None, notes, tuple(traces)))
        return m.Conclude(outcome.result, failure_of(outcome, self._run))

    def _check_self(self, stems: Stems, test: TestInLane) -> m.Conclude:
        """Compare a test with itself."""
        found = check_self(self._measuring(test), stems)
        test.events.put(Judged(selfcheck=found))
        return m.Conclude(found.result, None)

    def _measuring(self, test: TestInLane) -> Measuring:
        policy = self._run.policy(test.settings)
        return Measuring(test.group, test.settings, policy, self._lanes, test.progress, test.order, test.fresh)

    def _surroundings(self, project: Project, items: Sequence[pytest.Item]) -> Surroundings:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        return Surroundings(
            variables=self._began.variables,
            ours=self._began.ours,
            fixtures={name for item in items for name in getattr(item, "fixturenames", ())},
            forks=sys.platform == "linux" and self._run.settings.workers == "auto" and not self._other_python(),
            top=tree_top(project.rootdir),
            markup=bool(terminal is not None and terminal.hasmarkup),
            share_terminal=self._config.option.capture in ("no", "tee-sys"),
            start_limit_s=self._run.settings.setup_time_s,
        )

    def _other_python(self) -> bool:
        """Whether base runs on another interpreter, which loads nothing alike."""
        against = self._run.settings.against
        return against is not None and against.startswith("python:")


def make_lanes(config: pytest.Config, run: RunState) -> Lanes:
    """Return the lanes of a run: one where tests write to an output that they share; note where there are fewer."""
    machine, wanted = count_lanes(), run.settings.lanes
    shares_output = config.option.capture in ("no", "tee-sys") or _logs_live(config)
    if shares_output or run.settings.selfcheck:
        wanted = 1
    cpus = max(1, len(machine.cpus))
    if wanted is None and machine.most < cpus:
        run.note(FewerLanes(machine.most, cpus, machine.quota))
    elif wanted is not None and wanted > cpus:
        run.note(FewerLanes(cpus, wanted, None))
    return Lanes(min(wanted or machine.most, cpus), machine.cpus)


def _logs_live(config: pytest.Config) -> bool:
    """Whether pytest writes its tests' log to the terminal or to one file."""
    logs = config.pluginmanager.get_plugin("logging-plugin")
    return logs is not None and (logs._log_cli_enabled() or bool(_log_file(config)))


def _log_file(config: pytest.Config) -> str | None:
    path: str | None = config.getoption("log_file", None) or config.getini("log_file")
    return path


def make_project(session: pytest.Session, path: Sequence[str], settings: Config) -> Project:
    """Return the tree of today as this session sees it."""
    config = session.config
    conftests = (getattr(module, "__file__", None) for module in config.pluginmanager._conftest_plugins)
    return Project(
        rootdir=config.rootpath,
        directory=config.invocation_params.dir,
        inipath=config.inipath,
        args=(*_no_coverage(config, settings), *map(str, config.invocation_params.args)),
        path=tuple(path),
        files=tuple(dict.fromkeys(item.path for item in session.items)),
        conftests=tuple(sorted(Path(name) for name in conftests if name is not None)),
        test_patterns=tuple(config.getini("python_files")),
        packages=settings.packages,
        baseline_dir=settings.baseline_dir,
    )


def _no_coverage(config: pytest.Config, settings: Config) -> list[str]:
    """Return the arguments that keep workers from measuring coverage too, where this run might."""
    if not config.pluginmanager.hasplugin("pytest_cov"):
        return []
    # Another interpreter may lack pytest-cov, and then accepts neither this flag nor those of the run.
    other = settings.against is not None and settings.against.startswith("python:")
    return [*(["-p", "pytest_rlperf.workers.no_coverage"] if other else []), "--no-cov"]


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


def show_count(progress: RunProgress, run: RunState, done: int, total: int) -> None:
    """Show how many of a run's tests are done, and the verdicts so far."""
    statuses = Counter(outcome.verdict.status for outcome in run.outcomes.tests.values())
    progress.count(done, total, {status.value: statuses[status] for status in GRAVEST_FIRST if statuses[status]})


def unexpected_text(error: Exception) -> str:
    """Return the text of an error that nothing here expects, with its traceback."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"the measurement broke: {type(error).__name__}: {error}\n{trace}"


def _doubt_of(error: Exception, group: WorkerGroup) -> str:
    """Return why new interpreters are to measure a test again; empty where they need not."""
    if isinstance(error, LeftEarlyError):
        if error.done.outcome != "failed" or not error.worker.stem.forks:
            return ""
        return f"in a forked process it failed: {essence(error.done.text)}"
    if isinstance(error, WorkerLostError):
        worker = error.worker
        is_forked = isinstance(worker, Worker) and worker.stem.forks
        return essence(str(error)) if is_forked and not worker.is_cancelled else ""
    return essence(str(error))


def _how_it_left(early: LeftEarlyError, reporter: Worker) -> str:
    """Return how a test ended in one worker while it went on in the one that reports it."""
    name, done = early.worker.name, early.done
    if done.outcome == "missing":
        return f"{name} did not collect the test: {done.text}"
    if done.outcome == "passed":
        return (
            f"in {name} the test ended without calling its rlperf fixture, which it called in {reporter.name}; it "
            "must do the same in every process, whatever it finds there"
        )
    way_out = f"{collision_text(done.collision)}\n" if done.collision else ""
    return f"in {name} the test {done.outcome} where it went on in {reporter.name}.\n{way_out}{done.text}"
