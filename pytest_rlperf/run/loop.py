"""The loop over a run's tests: workers measure each one, and it passes or fails like any other test."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.model import Progress, Project, Sides
from pytest_rlperf.model.notes import TextNote
from pytest_rlperf.options import Config
from pytest_rlperf.run import diagnostics
from pytest_rlperf.run.baselines import tree_top
from pytest_rlperf.run.forwarding import ReportForwarder
from pytest_rlperf.run.one_test import OneTest, failure_of, properties_of
from pytest_rlperf.run.outcomes import RunState
from pytest_rlperf.run.selfcheck import SelfcheckOfTest
from pytest_rlperf.sides.prepare import prepare_sides
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.pool import BaseSide, BaseSides, WorkerGroup, WorkerPool, WorkerPools
from pytest_rlperf.workers.process import LeftEarlyError, WorkerLostError, WorkerProcess

_PATIENCE_LEAST_S = 10.0
_PATIENCE = 4.0  # times --rlperf-max-time: how long a worker may take for one answer before it counts as hung

MeasureTest: TypeAlias = Callable[[WorkerGroup, Config], m.Conclude]
"""Measures the test of a group of workers under the test's settings, and returns how its call ends."""


class TestLoop:
    """Runs measured tests in workers and reports them as if they had run here.

    ``path`` is sys.path as this process started.
    """

    def __init__(self, config: pytest.Config, run: RunState, path: list[str], progress: Progress) -> None:
        self._config = config
        self._run = run
        self._path = path
        self._progress = progress
        settings = run.settings
        # To find where the time goes takes a second, and only these outputs show it.
        self._explains = config.get_verbosity() > 0 or settings.json is not None or settings.html is not None
        self._reports = ReportForwarder(config, progress.clear)

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        project = make_project(session, self._path, self._run.settings)
        today = project.side("working tree", sys.executable, project.path, ())
        sides = self._prepare_sides(project)
        head = today if sides is None else sides.head
        pools = self._worker_pools(project)
        heads = pools.add("worker", head, sides, reports=True)
        try:
            if self._run.settings.selfcheck:
                others = pools.add("other worker", today)
                self._run_tests(session, partial(self._check_self, heads, others))
            else:
                base_sides = BaseSides(project, pools, heads, head)
                against = None if sides is None else self._base_side(base_sides, sides, session)
                self._run_tests(session, partial(self._compare, heads, base_sides, against))
        finally:
            self._progress.clear()
            pools.close()

    def _prepare_sides(self, project: Project) -> Sides | None:
        """Return the sides of --rlperf-against; UsageError where its code cannot be had."""
        spec = self._run.settings.against
        if spec is None:
            return None
        self._progress.begin(spec)
        try:
            sides = prepare_sides(spec, project, self._progress.show)
        except SideError as error:
            raise pytest.UsageError(f"--rlperf-against={spec}: {error}") from None
        finally:
            self._progress.clear()
        self._run.note(*map(TextNote, sides.notes))
        return sides

    def _base_side(self, base_sides: BaseSides, sides: Sides, session: pytest.Session) -> BaseSide:
        """Start the base side of --rlperf-against; UsageError where none of the tests can be collected there."""
        base_side = base_sides.add(sides)
        if not base_side.is_same_code:
            self._progress.begin(sides.base.label)
            self._progress.show("starting workers")
            base_side.head.start(1)
            try:
                base_side.check_collected([result_key(item) for item in session.items])
            except (SideError, WorkerLostError) as error:
                raise pytest.UsageError(f"--rlperf-against={self._run.settings.against}: {error}") from None
            finally:
                self._progress.clear()
        return base_side

    def _run_tests(self, session: pytest.Session, measure: MeasureTest) -> None:
        """Run one test after another, until the session is to stop."""
        limit_s = share_s(self._run.settings, len(session.items))
        for item, following in zip(session.items, [*session.items[1:], None], strict=True):
            self._run_test(item, following, limit_s, measure)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _run_test(self, item: pytest.Item, following: pytest.Item | None, limit_s: float, measure: MeasureTest) -> None:
        """Run one test in workers, within ``limit_s``, and report it as if it had run here."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self._reports.begin(item)
        self._progress.begin(item.name)
        settings = self._run.settings.for_test(item)
        group = WorkerGroup(
            result_key(item),
            None if following is None else result_key(following),
            setup_s=settings.setup_time_s,
            patience_s=max(_PATIENCE_LEAST_S, _PATIENCE * settings.max_time_s),
        )
        self._measure(group, replace(settings, max_time_s=min(settings.max_time_s, limit_s)), measure)
        self._reports.finish(properties_of(self._run.outcomes.tests.get(group.key)))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _measure(self, group: WorkerGroup, settings: Config, measure: MeasureTest) -> None:
        """MeasureTest a test and let it end in its workers; an error that stops this is an error of the test."""
        try:
            done = group.conclude(measure(group, settings))
            self._run.outcomes.modules.update(done.modules)
            if done.dropped:
                size = f"{done.dropped / 1e6:.1f} MB"
                self._run.note(TextNote(f"{group.key}: its calls printed too much, and {size} of it were dropped"))
        except LeftEarlyError as early:
            text = _how_it_left(early)
            missing = early.worker is group.reporter and early.done.outcome == "missing"
            if missing:
                text = f"collected here, but not in the process that measures it: {early.done.text}"
            self._give_up(group, early.worker, text, missing=missing)
        except WorkerLostError as lost:
            self._give_up(group, lost.worker, str(lost))
        except MeasurementError as error:  # a worker could not even be started
            self._give_up(group, None, str(error))
        except SideError as error:  # all other tests would be measured with the same wrong code
            raise pytest.UsageError(f"--rlperf-against={self._run.settings.against}: {error}") from None
        except (pytest.UsageError, pytest.exit.Exception, pytest.Session.Failed):
            raise
        except Exception as error:  # the other tests have their verdicts, whatever is wrong with this one
            self._give_up(group, None, unexpected_text(error))

    def _compare(
        self,
        heads: WorkerPool,
        base_sides: BaseSides,
        against: BaseSide | None,
        group: WorkerGroup,
        settings: Config,
    ) -> m.Conclude:
        """MeasureTest a test and compare it with the base side or the baseline."""
        outcome = OneTest(group, heads, base_sides, against, self._run, settings, self._progress).measure()
        if outcome.result.measured and self._explains:
            outcome = diagnostics.explain(group, base_sides, outcome, self._run, self._progress)
        if settings.trace is not None:
            diagnostics.trace(group, base_sides, outcome, self._run, self._progress)
        return m.Conclude(outcome.result, failure_of(outcome, self._run))

    def _check_self(
        self,
        heads: WorkerPool,
        others: WorkerPool,
        group: WorkerGroup,
        settings: Config,
    ) -> m.Conclude:
        """Compare a test with itself."""
        policy, limits = self._run.policy(settings), PairLimits(*settings.pairs)
        found = SelfcheckOfTest(group, heads, others, policy, limits, self._progress).run(
            settings.max_time_s, settings.slowdowns
        )
        self._run.outcomes.selfchecks[group.key] = found
        return m.Conclude(found.result, None)

    def _give_up(self, group: WorkerGroup, culprit: WorkerProcess | None, text: str, *, missing: bool = False) -> None:
        """End a test that ``culprit`` made impossible to measure, as an error of that test."""
        group.release()
        reporter = group.reporter or culprit
        if reporter is None or not reporter.alive:
            self._reports.fabricate(text)
        elif reporter.running:
            try:
                reporter.conclude(m.Conclude(None, m.Failure(text, regression=False)))
            except WorkerLostError as lost:
                self._reports.fabricate(f"{text}\n{lost}")
        elif missing:
            self._reports.fabricate(text)
        # Otherwise the reporter has left by itself, and reported why.

    def _worker_pools(self, project: Project) -> WorkerPools:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        return WorkerPools(
            tree_top(project.rootdir),
            self._reports.forward,
            markup=bool(terminal is not None and terminal.hasmarkup),
            share_terminal=self._config.option.capture in ("no", "tee-sys"),
            start_limit_s=self._run.settings.setup_time_s,
        )


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


def share_s(settings: Config, tests: int) -> float:
    """Return the seconds of the run's budget that fall to each of ``tests`` tests; infinite without a budget."""
    return math.inf if settings.budget_s is None or not tests else settings.budget_s / tests


def unexpected_text(error: Exception) -> str:
    """Return the text of an error that nothing here expects, with its traceback."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"the measurement broke: {type(error).__name__}: {error}\n{trace}"


def _how_it_left(early: LeftEarlyError) -> str:
    """Return how a test ended in one worker while it went on in the first."""
    name, done = early.worker.name, early.done
    if done.outcome == "missing":
        return f"{name} did not collect the test: {done.text}"
    if done.outcome == "passed":
        return (
            f"in {name} the test ended without calling its rlperf fixture, which it called in worker 0; it "
            "must do the same in every process, whatever it finds there"
        )
    return f"in {name} the test {done.outcome} where it went on in worker 0.\n{done.text}"
