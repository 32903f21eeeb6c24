"""The tests of a run: workers measure each one, and it passes or fails like any other test."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.errors import SideError, for_log
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Status
from pytest_rlperf.model.notes import (
    LeftoversRemoved,
    MeasuredFresh,
    NotForked,
    Plan,
    RunProgress,
    ShortOfMemory,
    TextNote,
)
from pytest_rlperf.model.sides import Project, Sides
from pytest_rlperf.options import Config, renamed, usage_error
from pytest_rlperf.report.exports import properties
from pytest_rlperf.report.table import GRAVEST_FIRST
from pytest_rlperf.run.budget import Budget, TimeLeft
from pytest_rlperf.run.cache import SECONDS, cache_of
from pytest_rlperf.run.conclusion import failure_of
from pytest_rlperf.run.drivers import INTERRUPTED_LIMIT_S, PAIR_NAMES, Beginning, Drivers, Processes
from pytest_rlperf.run.endpoints import QUIT_LIMIT_S, StoppedError
from pytest_rlperf.run.forwarding import ReportForwarder
from pytest_rlperf.run.measure import Measurement
from pytest_rlperf.run.schedule import AnyOf, Job, Lanes, Schedule, Spawn, Steps
from pytest_rlperf.run.series import Series
from pytest_rlperf.run.shared_memory import SharedMemory
from pytest_rlperf.run.state import RunState
from pytest_rlperf.run.test import OpenTest
from pytest_rlperf.sides.git import tree_top
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.sides.specs import has_todays_packages
from pytest_rlperf.spawn.guardian import Guardian, remove_temporary_files
from pytest_rlperf.spawn.segments import segments


@dataclass
class TestLoop:
    """Runs measured tests in workers, several at once in lanes, and reports them as if they had run here in order.

    ``began`` is how this process started.
    """

    __test__ = False

    config: pytest.Config
    run_state: RunState
    began: Beginning
    lanes: Lanes
    progress: RunProgress
    _started: Processes | None = None
    _current: OpenTest | None = None  # the test whose report is next
    _tests: Sequence[OpenTest] = ()
    _left: TimeLeft = field(init=False)
    _items: Mapping[str, pytest.Item] = field(default_factory=dict)  # by the keys of tests
    _counted: tuple[int, int] = (0, 0)

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        project = make_project(session, self.began, self.run_state.settings)
        self.run_state.series = Series(session.items)
        processes = self._started = self._processes(project, session.items)
        limit_s = QUIT_LIMIT_S
        preparation = Preparation(project, processes.guardian.new_directory, self.progress.show)
        try:
            if has_todays_packages(self.run_state.settings.against):
                processes.load_early()
            with processes.guardian.guarding_commands():
                sides = self._prepare_sides(preparation)
                alone = sides or preparation.alone()
                base_sides = {} if sides is not None else self._base_sides(preparation, processes, session.items)
            self.run_state.note(*map(TextNote, alone.notes))
            settings = self.run_state.settings
            names = ("other worker", "head worker") if settings.selfcheck else ("worker",)
            measurement = Measurement(
                self.run_state,
                solo=processes.drivers(alone, *names),
                base_sides=base_sides,
                against=None if sides is None else processes.drivers(sides, *PAIR_NAMES),
                explains=self.config.get_verbosity() > 0 or settings.json is not None or settings.html is not None,
            )
            self._run_tests(session, measurement, processes)
            self.run_state.note(*map(NotForked, processes.not_forked()))
            if self.lanes.pair_bytes is not None and self.lanes.room < self.lanes.count:
                self.run_state.note(ShortOfMemory(self.lanes.room, self.lanes.count, self.lanes.pair_bytes))
            self.run_state.note_reach()
        except (SideError, BaselineError, StoppedError) as error:
            spec = self.run_state.settings.against  # without one there is no place for temporary files
            option = f"--rlperf-against={spec}"
            raise usage_error(error if spec is None else f"{renamed(option) or option}: {error}") from None
        except KeyboardInterrupt:
            limit_s = INTERRUPTED_LIMIT_S
            raise
        finally:
            self.progress.clear()
            processes.start_closing(limit_s)

    def close(self) -> None:
        """End all processes that the run has started, and show what went wrong, if anything.

        Call it after the reports: a summary is shown while processes still run the teardowns of tests.
        """
        if self._started is None:
            return
        try:
            is_closed = self._started.close()
        except KeyboardInterrupt:  # nobody waits for teardowns any more
            self._started.start_closing(0.0)
            is_closed = self._started.close()
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if not is_closed and reporter is not None:
            fault = "the process that cleans up after tests did not answer, and was ended: was it stopped?"
            reporter.write_line(for_log(f"rlperf: {fault}"))

    def _prepare_sides(self, preparation: Preparation) -> Sides | None:
        """Return the sides of --rlperf-against; SideError or BaselineError if its code cannot be had."""
        spec = self.run_state.settings.against
        if spec is None:
            return None
        self.progress.begin(spec)
        return preparation.against(spec)

    def _base_sides(
        self, preparation: Preparation, processes: Processes, items: Sequence[pytest.Item]
    ) -> dict[str, Drivers | SideError]:
        """Return the drivers for the commit of each stored figure and today's code, or why its code cannot be had.

        All are prepared before the loop begins: git, environments and builds would block it.
        """
        found: dict[str, Drivers | SideError] = {}
        if self.run_state.settings.selfcheck:
            return found
        self.progress.begin(f"baseline {self.run_state.baselines.store.name}")
        for commit in dict.fromkeys(self.run_state.baselines.commit_of(result_key(item)) for item in items):
            if commit is not None:
                try:
                    found[commit] = processes.drivers(preparation.commit(commit), *PAIR_NAMES)
                except SideError as error:
                    found[commit] = error
        return found

    # ------------------------------------------------------------------ all tests

    def _run_tests(self, session: pytest.Session, measurement: Measurement, processes: Processes) -> None:
        """Measure as many tests at once as there are lanes, and report them one after another."""
        lanes, shared_memory = self.lanes, SharedMemory()
        self._items = {result_key(item): item for item in session.items}
        tests = self._tests = [self._test(item, forks=processes.forks) for item in session.items]
        cache = cache_of(self.config)
        usual_s = {} if cache is None else cache.get(SECONDS, {})
        self._left = TimeLeft([test.key for test in tests], usual_s, lanes.count)
        try:
            jobs = self._all(session, tests, measurement)
            Schedule(lanes, processes.awaited, self._show_step).run(jobs)
            self._remove_leftovers(tests, shared_memory, processes.guardian)
            strays = [test.failed.text for test in tests if test.failed is not None and test.failed.is_stray]
            if tests and len(strays) == len(tests):
                raise SideError(strays[0])
        finally:
            if cache is not None:
                cache.set(SECONDS, self._left.learned_s())

    def _remove_leftovers(self, tests: Sequence[OpenTest], shared_memory: SharedMemory, guardian: Guardian) -> None:
        """Remove what the tests' processes have left on the machine; living processes keep their files and memory."""
        # One proof in a thousand is a coincidence, and other programs' memory must stay.
        beginnings = {name for test in tests for name, proofs in test.leaves.items() if proofs > 1}
        segments_left = {segment for test in tests for segment in test.segments}
        removed = [
            LeftoversRemoved("shared_blocks", shared_memory.remove(beginnings), "/dev/shm"),  # noqa: S108 - of the system
            LeftoversRemoved("segments", len(segments_left.difference(segments()))),
        ]
        if (scratch := guardian.scratch) is not None:
            files = remove_temporary_files(str(scratch), psutil.pid_exists)
            removed.append(LeftoversRemoved("temporary_files", files, str(scratch.parent)))
        self.run_state.note(*(each for each in removed if each.count))

    def _test(self, item: pytest.Item, *, forks: bool) -> OpenTest:
        run, settings = self.run_state, self.run_state.settings.for_test(item)
        return OpenTest(result_key(item), settings, run.policy(settings), self.lanes, item.name, fresh=not forks)

    def _all(self, session: pytest.Session, tests: Sequence[OpenTest], measurement: Measurement) -> Steps[None]:
        """Observe all tests, then measure and report them, first those that run the most of the change.

        As many tests are observed at once as there are lanes.
        """
        waiting, jobs = [] if self.run_state.settings.selfcheck else [*tests], list[Job[None]]()
        while waiting or jobs:
            while waiting and len(jobs) < self.lanes.room:
                test = self._current = waiting.pop(0)
                jobs.append((yield from Spawn(measurement.attempt(test, is_turn=False))))
            for job in (yield from AnyOf(jobs)):
                jobs.remove(job)
                job.outcome()
        ordered = sorted(tests, key=lambda test: test.weight)
        for order, (test, following) in enumerate(zip(ordered, [*ordered[1:], None], strict=True)):
            test.order, test.next_key = order, None if following is None else following.key
            if test.is_over:
                self._left.leave_out(test.key)
        self._show_plan(ordered)
        yield from self._in_order(session, ordered, measurement)

    def _in_order(self, session: pytest.Session, tests: Sequence[OpenTest], measurement: Measurement) -> Steps[None]:
        """Begin as many tests as there are lanes, and report each one once those before it are reported."""
        budget = Budget(self.run_state.settings, sum(not test.is_over for test in tests), self.lanes.count)
        jobs: list[Job[None]] = []
        for number, test in enumerate(tests):
            self._current = test
            reports = self._begin_report(test)
            while len(jobs) <= number or not jobs[number].is_done:
                # With one lane a test begins when the one before it is reported, so its output appears in order.
                while len(jobs) < len(tests) and sum(not job.is_done for job in jobs) < self.lanes.room:
                    if self.lanes.count == 1 and len(jobs) > number:
                        break
                    jobs.append((yield from Spawn(self._measured(tests[len(jobs)], measurement, budget))))
                self._show_count(number, len(tests))
                if not jobs[number].is_done:
                    yield from AnyOf([job for job in jobs if not job.is_done])
            jobs[number].outcome()
            self._keep(test)
            self._report(test, reports)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _measured(self, test: OpenTest, measurement: Measurement, budget: Budget) -> Steps[None]:
        """Measure one test within its part of the run's time, unless it is over.

        SideError if collecting the tests has loaded the other side's code: no test could be measured with its own code.
        """
        if test.is_over:
            return
        self._left.begin(test.key)
        test.budget, limit_s = budget, budget.next_s()
        if limit_s < test.settings.max_time_s:
            test.settings, test.is_short = replace(test.settings, max_time_s=limit_s), True
        try:
            if not test.doubt:
                yield from measurement.attempt(test)
            if test.doubt:
                test.begin_anew()
                yield from measurement.attempt(test)
        finally:
            self._left.end(test.key)
        self._settle(test)

    def _show_plan(self, tests: Sequence[OpenTest]) -> None:
        """Show what the run is about to do, and the verdicts that need no measurement."""
        run, against = self.run_state, self.run_state.settings.against is not None
        measured = [test for test in tests if not test.is_over]
        paired = [
            test
            for test in measured
            if test.has_difference and (against or run.baselines.commit_of(test.key) is not None)
        ]
        pairs = [test.settings.pairs for test in paired]
        touched = [test.is_touched for test in tests]
        self.progress.plan(
            Plan(
                len(tests),
                None if set(touched) <= {None} else len(tests) - touched.count(False),
                len(measured),
                0 if run.settings.selfcheck else len(paired),
                (min((least for least, _ in pairs), default=0), max((most for _, most in pairs), default=0)),
                self.lanes.count,
                self._left.left_s(),
                run.shard,
            )
        )
        for test in tests:
            self._settle(test)

    def _settle(self, test: OpenTest) -> None:
        """Show a verdict as soon as it is there."""
        outcome = test.verdict
        if outcome is not None and outcome.verdict.status is not Status.ERROR:
            self.progress.settle(outcome, fails=failure_of(outcome, self.run_state) is not None)

    def _show_count(self, done: int, total: int) -> None:
        """Show how many tests are reported, the verdicts so far, and the time left."""
        statuses = Counter(outcome.verdict.status for outcome in self.run_state.outcomes.tests.values())
        verdicts = {status.value: statuses[status] for status in GRAVEST_FIRST if statuses[status]}
        self.progress.count(done, total, verdicts, self._left.left_s())
        self._counted = done, total

    def _show_step(self) -> None:
        """Show the steps of the tests under way, first the step of the test that is reported next."""
        current_first = sorted(self._tests, key=lambda test: test is not self._current)
        if steps := [test.under_way for test in current_first if test.step]:
            self._show_count(*self._counted)
            self.progress.measuring(steps)

    def _begin_report(self, test: OpenTest) -> ReportForwarder | None:
        """Begin to report one test as if it ran here."""
        return ReportForwarder(self.config, self._items[test.key])

    def _report(self, test: OpenTest, reports: ReportForwarder | None) -> None:
        """Report one test that is measured."""
        assert reports is not None
        reports.forward_all(test.reports)
        if test.failed is not None and test.failed.is_unreported:
            reports.fabricate(test.failed.text)
        outcome = self.run_state.outcomes.tests.get(test.key)
        reports.finish([] if outcome is None else list(properties(outcome)))

    def _keep(self, test: OpenTest) -> None:
        """Keep the results of a test that is measured."""
        run, judged = self.run_state, test.judged
        if judged is not None:
            if judged.outcome is not None:
                run.outcomes.add(judged.outcome)
            if judged.selfcheck is not None:
                run.outcomes.selfchecks[test.key] = judged.selfcheck
            run.note(*judged.notes)
        if test.doubt and test.failed is None:
            run.note(MeasuredFresh(test.key, test.doubt))
        if test.done is not None:
            run.outcomes.modules.update(test.done.modules)

    def _processes(self, project: Project, items: Sequence[pytest.Item]) -> Processes:
        settings, terminal = self.run_state.settings, self.config.pluginmanager.get_plugin("terminalreporter")
        loads_alike = settings.against is None or not settings.against.startswith("python:")  # on one interpreter
        return Processes(
            began=self.began,
            fixtures={name for item in items for name in getattr(item, "fixturenames", ())},
            forks=sys.platform == "linux" and settings.workers == "auto" and loads_alike,
            top=tree_top(project.rootdir),
            markup=bool(terminal is not None and terminal.hasmarkup),
            share_terminal=self.config.getoption("capture", "no") in ("no", "tee-sys"),
            start_limit_s=settings.setup_timeout_s,
        )


def make_project(session: pytest.Session, began: Beginning, settings: Config) -> Project:
    """Return today's tree as this session sees it."""
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
        baseline_dir=settings.baseline.parent,
        variables=began.variables,
    )
