"""The search for the first slower commit or release: each probe is a verdict like that of --rlperf-against=GOOD."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping
from functools import partial

import pytest

from pytest_rlperf.errors import SideError, for_log
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.notes import RunProgress
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.options import Config, usage_error
from pytest_rlperf.reach.coverage import Coverage
from pytest_rlperf.report.terminal import bisection_lines, comparison_lines, not_slower_lines
from pytest_rlperf.run.conclusion import error_line
from pytest_rlperf.run.drivers import Beginning
from pytest_rlperf.run.end_of_run import repeated, typed
from pytest_rlperf.run.forwarding import ReportForwarder
from pytest_rlperf.run.hooks import MeasuredRun
from pytest_rlperf.run.lanes import make_lanes
from pytest_rlperf.run.loop import TestLoop, make_project
from pytest_rlperf.run.test import OpenTest
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.sides.specs import Candidate
from pytest_rlperf.spawn.guardian import Guardian

GOOD, BAD, SKIP = "good", "bad", "skip"


# ----------------------------------------------------------------------- the search: candidates by number, 0 is good


def ends(last: int, verdicts: Mapping[int, str]) -> tuple[int, int]:
    """Return the last good candidate before the first bad one, and the first bad one; ``last`` is bad."""
    bad = min((number for number, verdict in verdicts.items() if verdict == BAD), default=last)
    return max((number for number, verdict in verdicts.items() if verdict == GOOD), default=0), bad


def next_probe(last: int, verdicts: Mapping[int, str]) -> int | None:
    """Return the candidate to compare next: the last, then always the middle; None if the search is over.

    If candidates were skipped, it is the one farthest from all that are known: a row of commits that do not build is
    soon left behind.
    """
    if last not in verdicts:
        return last
    good, bad = ends(last, verdicts)
    known = {good, bad, *verdicts}

    def rank(number: int) -> tuple[int, int]:
        return min(abs(number - other) for other in known), -abs(2 * number - good - bad)

    return max((number for number in range(good + 1, bad) if number not in verdicts), key=rank, default=None)


def verdict_on(found: Collection[Outcome | str]) -> str:
    """Return the verdict on a candidate by its tests: bad if one is slower, else skip if one is undecided.

    A candidate that is faster is good: the slowdown is not in it yet.
    """
    statuses = {None if isinstance(outcome, str) else outcome.verdict.status for outcome in found}
    if Status.SLOWER in statuses:
        return BAD
    return GOOD if statuses <= {Status.SAME, Status.FASTER} else SKIP


# ----------------------------------------------------------------------- its run


class BisectRun(MeasuredRun):
    """The hooks of `rlperf bisect`."""

    def __init__(self, config: pytest.Config, settings: Config, began: Beginning) -> None:
        super().__init__(config, settings, began)
        assert settings.bisect is not None
        self._range = settings.bisect
        self._candidates: list[Candidate] = []
        self._verdicts: dict[int, str] = {}
        self._compared: tuple[int, int] | None = None
        self._found: dict[str, Outcome | str] = {}
        self._tests: list[str] = []  # those that are slower on the last candidate
        self._comparisons: list[pytest.TestReport] = []

    @property
    def _is_over(self) -> bool:
        """Whether the first slower candidate, and the last one that is not, are known and compared."""
        last = len(self._candidates) - 1
        return next_probe(last, self._verdicts) is None and self._compared == ends(last, self._verdicts)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Store nothing; fail unless one candidate is known to be the first slower one."""
        if exitstatus == pytest.ExitCode.OK and self._verdicts:
            good, bad = ends(len(self._candidates) - 1, self._verdicts)
            if not (self._tests and self._is_over and bad == good + 1):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the commit found and how it compares with the one before, or the range that is left."""
        if not self._verdicts:
            return  # the run ended before anything was compared, with its own message
        good, bad = ends(len(self._candidates) - 1, self._verdicts)
        name, options = partial(typed, self._config), repeated(self._config)
        found = self._found if self._is_over else {}
        lines = bisection_lines(self._candidates[good : bad + 1], [*map(name, self._tests)], found, options)
        if not self._tests:
            lines = not_slower_lines(self._candidates[0], self._candidates[-1], self._found, name, options)
        elif self._is_over:
            super().pytest_terminal_summary(terminalreporter)
        terminalreporter.section("rlperf bisect")
        for line in lines:
            terminalreporter.write_line(for_log(line))
        # pytest's last line counts reports, and no test is reported.
        terminalreporter.stats["comparison" if len(self._comparisons) == 1 else "comparisons"] = self._comparisons

    def _measure(self, session: pytest.Session, progress: RunProgress) -> None:
        """Probe until no probe is left, or the budget is spent."""
        started_s = time.monotonic()
        progress.begin(self._range)
        try:
            self._candidates = self._find_candidates(session, progress)
            last = len(self._candidates) - 1
            while (number := next_probe(last, self._verdicts)) is not None:
                if number < last and time.monotonic() - started_s > (self._settings.total_time_s or math.inf):
                    return
                self._compare(session, progress, 0, number)
                verdict = verdict_on(self._found.values())
                self._show(verdict, self._candidates[number])
                self._verdicts[number] = verdict
                if number == last and not self._keep_slower(session):
                    return
        except SideError as error:
            raise usage_error(f"rlperf bisect {self._settings.bisect}: {error}") from None
        finally:
            progress.clear()
        if self._compared != (step := ends(last, self._verdicts)):
            self._compare(session, progress, *step)

    def _find_candidates(self, session: pytest.Session, progress: RunProgress) -> list[Candidate]:
        """Return the candidates, the good one first."""
        guardian = Guardian()
        try:
            project = make_project(session, self._began, self._settings)
            with guardian.guarding_commands():
                return Preparation(project, guardian.new_directory, progress.show).find_candidates(self._range)
        finally:
            guardian.close()

    def _compare(self, session: pytest.Session, progress: RunProgress, base: int, head: int) -> None:
        """Compare two candidates as a run against the first one does."""
        loop = ProbeLoop(self._config, self._run, self._began, make_lanes(self._config, self._run), progress)
        self._found = loop.compare(session, self._candidates[base], self._candidates[head])
        self._compared = base, head
        title = self._candidates[head].title
        self._comparisons.append(pytest.TestReport(title, ("", None, title), {}, "passed", None, "call"))

    def _show(self, verdict: str, candidate: Candidate) -> None:
        """Show a verdict on a candidate."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            for line in comparison_lines(f"{verdict} {candidate.title}", self._found):
                reporter.write_line(for_log(line))

    def _keep_slower(self, session: pytest.Session) -> list[str]:
        """Keep the tests that are slower on the last candidate, and return their keys."""
        slower = {key: outcome for key, outcome in self._found.items() if verdict_on([outcome]) == BAD}
        if slower:
            self._found = slower
            session.items[:] = [item for item in session.items if result_key(item) in slower]
        self._tests = list(slower)
        return self._tests


class ProbeLoop(TestLoop):
    """Compares two candidates by the session's tests, and does not report the tests."""

    def compare(self, session: pytest.Session, base: Candidate, head: Candidate) -> dict[str, Outcome | str]:
        """Return the outcome of each test, or why there is none."""
        self._pair = base, head
        self.run_state.settings = dataclasses.replace(self.run_state.settings, against=base.spec)
        self.run_state.outcomes.tests.clear()
        self.run_state.coverage = Coverage()
        self._reasons: dict[str, str] = {}
        keys = [result_key(item) for item in session.items]
        try:
            self.run(session)
        except (SideError, pytest.UsageError) as error:
            self._reasons = dict.fromkeys(keys, str(error).partition("\n")[0])
        finally:
            self.close()
        return {key: self.run_state.outcomes.tests.get(key) or self._reasons[key] for key in keys}

    def _prepare_sides(self, preparation: Preparation) -> Sides:
        self.progress.count(0, 1, {})
        self.progress.begin(self._pair[1].title)
        try:
            return preparation.between(*self._pair)
        except SideError as error:
            raise usage_error(error) from None

    def _begin_report(self, test: OpenTest) -> None:
        """Report nothing."""

    def _report(self, test: OpenTest, reports: ReportForwarder | None) -> None:
        self._reasons[test.key] = error_line("" if test.failed is None else test.failed.text)
