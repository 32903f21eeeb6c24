"""The hooks of a measured run: it selects the tests, measures them, and stores and shows the results."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from types import FrameType
from typing import TypeAlias

import pytest

from pytest_rlperf import units
from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.errors import SideError, for_log, shown
from pytest_rlperf.fixtures import asks_late, is_measured, result_key, unmet
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.measured import test_name
from pytest_rlperf.model.notes import Note, RunProgress, TextNote, Unfinished
from pytest_rlperf.observe.import_watch import ImportWatch
from pytest_rlperf.options import Config, usage_error
from pytest_rlperf.pytest_benchmark import add_stats, uses_benchmark
from pytest_rlperf.report.summary import compares_nothing
from pytest_rlperf.report.table import shortened
from pytest_rlperf.report.tables import verdict_line
from pytest_rlperf.report.terminal import LiveLine, LogLines, Screen
from pytest_rlperf.report.wording import seen_from_here, tests_text
from pytest_rlperf.run.conclusion import error_line, error_of, failure_of
from pytest_rlperf.run.drivers import Beginning
from pytest_rlperf.run.end_of_run import EndOfRun, check_outputs
from pytest_rlperf.run.lanes import make_lanes
from pytest_rlperf.run.loop import TestLoop
from pytest_rlperf.run.saving import save
from pytest_rlperf.run.state import RunState
from pytest_rlperf.sides.git import short, tree_top
from pytest_rlperf.spawn.surroundings import check_surroundings
from pytest_rlperf.spawn.untouched import standard_and_own
from pytest_rlperf.writing import OutputError

_INTERRUPTS: dict[signal.Signals, signal._HANDLER] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
_BESIDE = 10  # columns of a line with a verdict: two before it, and how far the run is
_ENDING_S = 30.0  # workers and the guardian have seconds each, reports less
_TestStatus: TypeAlias = tuple[str, str, str | tuple[str, Mapping[str, bool]]]  # a category, a letter, a word


def _platform_notes(platform: str) -> list[Note]:
    """Return notes on features that this system does not offer to a run; Linux offers all of them."""
    text = f"on {'macOS' if platform == 'darwin' else platform} processes cannot be placed on CPUs: times spread more"
    return [] if platform.startswith("linux") else [TextNote(text)]


class MeasuredRun:
    """The hooks that a run has only with --rlperf."""

    def __init__(self, config: pytest.Config, settings: Config, began: Beginning) -> None:
        self._config = config
        self._settings = settings
        self._began = began
        self._screen: Screen | None = None
        self._log: LogLines | None = None  # if no terminal can rewrite a line
        self._begun_s = time.monotonic()
        notes = _platform_notes(sys.platform)
        self._failed: set[str] = set()  # keys of tests, and ids of files that cannot be collected
        self._finished: set[str] = set()
        self._xfailed: set[str] = set()
        self._asking: dict[str, str] = {}  # names of tests that are not measured, each with its fixture
        self._left_out: set[str] = set()  # keys of measured tests that -k, -m and the like have deselected
        if getattr(config.option, "dist", "no") != "no" or getattr(config.option, "numprocesses", None):
            notes.append(TextNote("pytest-xdist's distribution is off: rlperf_lanes sets how many tests run at once"))
            config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None
        coverage = config.pluginmanager.get_plugin("_cov")
        if coverage is not None and getattr(coverage.options, "cov_fail_under", None):
            notes.append(TextNote("--cov-fail-under is off: coverage is not measured in the processes that run tests"))
            coverage.options.cov_fail_under = None
        try:
            check_surroundings()
            check_outputs(settings)
            self._run = RunState(settings, config.rootpath, notes)
        except (BaselineError, OutputError, SideError) as error:
            raise usage_error(error) from None
        self._end = EndOfRun(config, settings, self._run)
        self._untouched = standard_and_own()
        watch = ImportWatch(tree_top(config.rootpath))
        config.add_cleanup(watch.end)
        self._began = began._replace(readers=watch.packages)
        _interrupt_once(config)
        store = self._run.baselines.store
        if not settings.save and store.name not in {"default", *store.names()}:
            raise usage_error(
                f"rlperf_baseline: no baseline {store.name!r} in {settings.baseline.parent}; available: "
                f"{', '.join(store.names()) or 'none yet'}. --rlperf-save-baseline makes one"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Let pytest write to a screen on which the live line gives way to all other output."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            self._screen = Screen(self._config.get_terminal_writer())

    def pytest_report_header(self) -> list[str]:
        """Show the code that the run compares with, or the baseline."""
        settings, baselines = self._settings, self._run.baselines
        found = "" if baselines.own is not None else ", none yet for this machine class"
        stored = "; figures are stored there" if settings.save else ""
        commit = f", of commit {short(baselines.commits[0])}" if baselines.commits else ""
        compared = (
            f"baseline {baselines.store.name!r} in {seen_from_here(settings.baseline.parent)}{found}{commit}{stored}"
        )
        if settings.bisect is not None:
            compared = f"the first slower one in {settings.bisect}"
        elif settings.selfcheck:
            compared = "today's code against itself"
        elif settings.against is not None:
            compared = f"live pairs against {settings.against}"
        return [for_log(f"rlperf: {compared}")]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep only the measured tests, and read their markers before any time is spent."""
        measured = dict.fromkeys(filter(_can_be_measured, items))
        dropped = [item for item in items if item not in measured]
        items[:] = measured
        self._asking = {item.name: name for item in dropped if (name := asks_late(item))}
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        for item in items:
            self._settings.for_test(item)
        if self._settings.shard is not None:
            self._keep_shard(self._settings.shard, items)

    def _keep_shard(self, wanted: tuple[int, int], items: list[pytest.Item]) -> None:
        """Deselect the tests of other shards."""
        self._run.gated = self._gated(items)
        self._run.shard = self._run.shard_of(*wanted, map(result_key, items))
        own = {*self._run.shard.tests}
        others = [item for item in items if result_key(item) not in own]
        items[:] = [item for item in items if result_key(item) in own]
        if others:
            self._config.hook.pytest_deselected(items=others)

    def _gated(self, items: Sequence[pytest.Item]) -> int:
        return sum(self._settings.for_test(item).fail for item in items)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember the measured tests that are not in this run."""
        self._left_out.update(result_key(item) for item in items if _can_be_measured(item))

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        """Show how many tests there are, and which ask for a fixture but are not measured."""
        late = [
            f"rlperf: {test} is not measured: it asks for {name} by request.getfixturevalue; name it in the signature"
            for test, name in self._asking.items()
        ]
        # In a log the plan begins with the number of tests.
        is_planned = items and self._writes_log and self._settings.bisect is None and self._settings.ray is None
        return late if is_planned else [self._how_many(items), *late]

    def _how_many(self, items: list[pytest.Item]) -> str:
        shard = self._run.shard
        if not items:
            if shard is not None and shard.collected:
                return f"rlperf: {shard.name}: none of {units.counted(len(shard.collected), 'test')}"
            return "rlperf: nothing to measure: no test that was chosen uses an rlperf fixture"
        return f"rlperf: {tests_text(len(items), shard)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure every test; undo what test modules have replaced in this process, as it runs no test."""
        self._untouched.restore()
        gc.freeze()  # pytest looks for garbage twice at its end, also in all that was imported
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        # Fixed here: each verdict stands at once, whatever later tests do. All shards' tests share the error rate.
        if self._run.shard is None:
            self._run.gated = self._gated(session.items)
        self._run.is_selection = bool(self._left_out) or any("::" in argument for argument in session.config.args)
        self._end.items = {item.nodeid: item for item in session.items}
        line = self._progress(session.items)
        if session.items and self._settings.ray is not None:
            from pytest_rlperf.run.ray_cluster import ClusterLoop

            ClusterLoop(session.config, self._run, line).run(session)
        elif session.items:
            self._measure(session, line)
        return True

    def _measure(self, session: pytest.Session, progress: RunProgress) -> None:
        """Measure the session's tests in workers of this machine."""
        loop = TestLoop(session.config, self._run, self._began, make_lanes(session.config, self._run), progress)
        session.config.add_cleanup(loop.close)  # once all is reported
        loop.run(session)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember files that cannot be collected: --continue-on-collection-errors measures the others, and fails."""
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember which tests failed, and which came to the end of their call; feed pytest-benchmark's tables."""
        item = self._end.items.get(report.nodeid)
        if item is None:
            return
        key = result_key(item)
        benchmark, outcome = getattr(report, "rlperf_benchmark", None), self._run.outcomes.tests.get(key)
        if benchmark is not None and outcome is not None and outcome.result.workers:
            add_stats(item, outcome.result, benchmark)
        self._end.add_report(item, report)
        if self._log is not None:
            self._tell(self._log, key, report)
        if report.when == "teardown":
            self._finished.add(key)
        if report.failed:
            self._failed.add(key)
            self._add_error(key, report)
        elif report.skipped and hasattr(report, "wasxfail"):
            self._xfailed.add(key)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport, config: pytest.Config
    ) -> Generator[None, _TestStatus, _TestStatus]:
        """Show a line with a test's verdict instead of its dot; a log shows the verdict when it is known.

        A test that passes without a verdict, such as UNDECIDED, is counted separately; its report stays that of a
        passed test.
        """
        category, letter, word = yield
        item = self._end.items.get(report.nodeid)
        if item is None or not letter:
            return category, letter, word
        outcome = self._verdict_of(result_key(item), report)
        if category == "passed" and outcome is not None and outcome.verdict.is_open:
            name = outcome.verdict.status.value
            category, letter, word = name.lower(), name[0], (name, {"yellow": True})
        if config.get_verbosity(pytest.Config.VERBOSITY_TEST_CASES) < 0:
            return category, letter, word
        if self._log is not None and self._log.tells_verdicts:
            return category, "", word
        if outcome is not None:
            return category, self._fitting(verdict_line(outcome)), word
        name = word if isinstance(word, str) else word[0]
        return category, self._fitting(f"{name:<34} {shown(item.name)}"), word

    def _verdict_of(self, key: str, report: pytest.TestReport) -> Outcome | None:
        """Return the outcome of a test; None if there is no verdict, or if the test has ended for another reason."""
        outcome = self._run.outcomes.tests.get(key)
        if report.when != "call" or outcome is None or outcome.verdict.status is Status.ERROR:
            return None
        fails = failure_of(outcome, self._run) is not None
        return outcome if report.outcome == ("failed" if fails else "passed") else None

    def _tell(self, log: LogLines, key: str, report: pytest.TestReport) -> None:
        """Write to the log how a test has ended, unless its verdict is there already."""
        status: _TestStatus = self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        word = status[2] if isinstance(status[2], str) else status[2][0]
        if not word:
            return  # a fixture has done its part
        outcome = self._verdict_of(key, report)
        if outcome is not None:
            log.settle(outcome, fails=report.failed)
        else:
            log.tell(key, word, {"passed": "green", "failed": "red"}.get(report.outcome, "yellow"))

    def _fitting(self, line: str) -> str:
        """Return the text as its own line, with the test's name cut between its parts if the terminal has no room."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.isatty:
            line = shortened(line, self._config.get_terminal_writer().fullwidth - _BESIDE)
        return for_log(f"\n  {line}")

    def _add_error(self, key: str, report: pytest.TestReport) -> None:
        """Record a failure that is not due to the verdict as an ERROR."""
        outcomes = self._run.outcomes
        known = outcomes.tests.get(key)
        if known is None or failure_of(known, self._run) is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            error = error_line(report.longreprtext if crash is None else crash.message)
            outcomes.add(error_of(key, reasons.TestFailed(str(report.when), error), report.duration, known))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Store results, write files, and set the exit status: a run that measured nothing is not a success."""
        finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        self._refuse_empty_comparison(session)
        fitness = self._run.fitness
        if self._settings.strict and fitness is not None and not fitness.is_fit and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._run.shard is not None and self._run.shard.collected:
            if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # others have tests, or `rlperf merge` ends with 5
                session.exitstatus = pytest.ExitCode.OK
        elif exitstatus == pytest.ExitCode.OK and not self._run.outcomes.keys:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
            self._run.note(TextNote("nothing was measured: no test called an rlperf fixture"))
        # If files or tests were named, or --lf left files out, there may be tests that were not collected.
        named = any("::" in arg or arg.endswith(".py") for arg in self._config.args)
        if not (named or getattr(self._config.option, "lf", False)):
            keys = {result_key(item) for item in session.items}
            self._run.note(*self._run.accepted.unmatched(keys | self._left_out))
        if self._settings.save and self._run.outcomes.tests:
            self._save(session, self._failed | self._xfailed, finished=finished)
        left = tuple(key for key in map(result_key, self._end.items.values()) if key not in self._finished)
        if (
            left
            and self._settings.ray is None
            and exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
        ):
            self._run.note(Unfinished(left))
        complaints = self._end.write(self._failed, self._finished)
        self._run.note(*map(TextNote, complaints))
        if complaints:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _save(self, session: pytest.Session, failed: set[str], *, finished: bool) -> None:
        if not finished:
            self._run.note(TextNote("nothing was stored: the run was interrupted"))
            return
        try:
            save(self._run, failed)
        except BaselineError as error:
            self._run.note(TextNote(str(error)))
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        except KeyboardInterrupt:  # which pytest does not expect at the end of a session
            self._run.note(TextNote("nothing was stored: the run was interrupted"))
            session.exitstatus = pytest.ExitCode.INTERRUPTED

    def _refuse_empty_comparison(self, session: pytest.Session) -> None:
        """Make it a usage error, never a pass, if no gated test could be compared.

        One shard may have only new tests: `rlperf merge` sees all tests. Storing cures a baseline that nothing can be
        compared with.
        """
        against = self._settings.against
        cured = self._run.shard is not None or (self._settings.save and against is None)
        if not cured and compares_nothing(self._run.outcomes.tests.values()):
            base = "the baseline" if against is None else against
            self._run.note(TextNote(f"nothing was compared: no gated test can be compared with {base}"))
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the table, the phases, and what to do next."""
        self._end.show(terminalreporter, self._failed)

    @property
    def _writes_log(self) -> bool:
        """Whether pytest writes to a file, a pipe, or a terminal on which no line can be rewritten."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        return reporter is not None and not (reporter.isatty and reporter.hasmarkup)

    def _progress(self, items: Sequence[pytest.Item]) -> LiveLine | LogLines:
        """Return the display of progress: on a terminal a line that is rewritten, in a log whole lines."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._writes_log:
            self._log = self._log_lines(reporter, items)
            return self._log
        if reporter is None or self._screen is None or self._config.getoption("capture", "no") == "no":
            return LogLines(lambda text, color: None)
        return LiveLine(self._screen, self._config.get_terminal_writer().fullwidth)

    def _log_lines(self, reporter: pytest.TerminalReporter, items: Sequence[pytest.Item]) -> LogLines:
        """Return the lines of a log, which replace pytest's own lines on files and tests."""
        names = Counter(test_name(key) for key in map(result_key, items))
        # A search has its own lines on each comparison.
        tells = self._config.get_verbosity(pytest.Config.VERBOSITY_TEST_CASES) == 0 and self._settings.bisect is None
        if tells:
            reporter.showfspath = False
            reporter._show_progress_info = False  # each line on a test has its own

        def write(text: str, color: str) -> None:
            reporter.ensure_newline()
            reporter.write_line(for_log(text), **({color: True} if color else {}))
            reporter.flush()

        return LogLines(
            write,
            verbosity=self._config.get_verbosity(),
            tells_verdicts=tells,
            ambiguous={key for key in map(result_key, items) if names[test_name(key)] > 1},
            begun_s=self._begun_s,
        )


def _interrupt_once(config: pytest.Config) -> None:
    """Let SIGINT, SIGTERM and SIGHUP interrupt this run as Ctrl-C does: with all teardowns, the table and the files.

    Only the first signal does. Signals in the next seconds have no effect: they would break off a teardown, a removal
    or a report of the run that ends.
    """
    ending_s = 0.0  # other signals have no effect before
    if threading.current_thread() is not threading.main_thread():
        return  # a program that runs pytest in a thread handles its own signals
    # Under nohup SIGHUP stays ignored.
    usual = {number: handler for number, handler in _INTERRUPTS.items() if signal.getsignal(number) is handler}

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal ending_s
        if time.monotonic() >= ending_s:
            ending_s = time.monotonic() + _ENDING_S
            raise KeyboardInterrupt(*([] if number == signal.SIGINT else [signal.Signals(number).name]))

    def reset() -> None:
        for number, handler in usual.items():
            if number != signal.SIGINT or not ending_s:
                signal.signal(number, handler)
            else:  # more may come while the interpreter ends, which puts back what ends a process at once
                atexit.register(signal.signal, number, signal.SIG_IGN)

    def leave_copies() -> None:
        for number, handler in usual.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)

    for number in usual:
        signal.signal(number, interrupt)
    os.register_at_fork(after_in_child=leave_copies)  # processes that plugins and test modules fork end as usual
    config.add_cleanup(reset)


def _can_be_measured(item: pytest.Item) -> bool:
    """Whether a test is measured, or misspells its fixture's name and so fails a measured run as it fails any other."""
    return is_measured(item) or uses_benchmark(item) or bool(unmet(item))
