"""What a run reports: its tests as if they had run in this process, and at its end its files and its summary."""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import ExceptionRepr, ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from pytest_rlperf import wire as m
from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.errors import for_log
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.notes import Saved
from pytest_rlperf.options import Config
from pytest_rlperf.report.components import render_components
from pytest_rlperf.report.exports import BENCHMARK_OPTION, benchmark_document
from pytest_rlperf.report.github import GitHubRun, place_of, write_github
from pytest_rlperf.report.run_json import RunFile, document_of, selfcheck_document, written
from pytest_rlperf.report.summary import NextStep, Summary, next_steps
from pytest_rlperf.report.terminal import render_selfcheck, render_summary
from pytest_rlperf.report.wording import collision_text, note_lines
from pytest_rlperf.run.state import RunState
from pytest_rlperf.writing import (
    CACHE,
    LATEST_RUN,
    TRACE_OPTION,
    OutputError,
    check_file,
    check_files_in,
    write_file,
)

if TYPE_CHECKING:
    import pytest


# ----------------------------------------------------------------------- the end of a run


_JSON = "--rlperf-json"
_HTML = "--rlperf-html"


def check_outputs(settings: Config) -> None:
    """Raise OutputError where a file cannot be written, before any time is spent on measuring."""
    for option, path in ((_JSON, settings.json), (BENCHMARK_OPTION, settings.benchmark_json)):
        if path is not None:
            check_file(option, path)
    if settings.trace is not None:
        check_files_in(TRACE_OPTION, settings.trace)
    if settings.html is not None:
        from pytest_rlperf.report.html import check_html  # which most runs need not load

        check_html(settings.html)


@dataclass
class EndOfRun:
    """Reports a run at its end, by its outcomes and notes, and by the places where its tests failed.

    ``items`` are the tests to be measured, by their ids.
    """

    config: pytest.Config
    settings: Config
    run: RunState
    items: dict[str, pytest.Item] = field(default_factory=dict)
    _places: dict[str, tuple[str, int]] = field(default_factory=dict)
    _kept: bool = False

    def add_report(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Keep the line of a test that GitHub is to annotate: where it failed, else where it begins."""
        crash = getattr(report.longrepr, "reprcrash", None) if report.failed else None
        if crash is not None and Path(crash.path).name == item.path.name:
            self._places[result_key(item)] = place_of(item.path, crash.lineno, os.environ)
        else:
            place = place_of(item.path, (item.location[1] or 0) + 1, os.environ)
            self._places.setdefault(result_key(item), place)

    def write(self, failed: Collection[str], finished: Collection[str]) -> list[str]:
        """Write the files that options name, and return the errors of those that could not be written.

        ``failed`` are the keys of tests that failed, and the ids of files that cannot be collected, ``finished`` the
        keys of tests that came to their end.
        """
        settings = self.settings
        unmeasured = {*finished} - {*failed, *self.run.outcomes.keys}
        document = written(self._document(failed, unmeasured))
        if self.run.outcomes.keys:
            self._keep(document)
        files: tuple[tuple[str, Path | None, Callable[[], str]], ...] = (
            (_JSON, settings.json, lambda: document),
            (_HTML, settings.html, self._page),
            (BENCHMARK_OPTION, settings.benchmark_json, self._benchmarks),
        )
        errors = []
        for option, path, text in files:
            if path is not None:
                try:
                    write_file(option, path, text())
                except OutputError as error:
                    errors.append(str(error))
        return errors

    def _keep(self, document: str) -> None:
        """Keep the run's JSON in pytest's cache, for ``rlperf show``, where there is one that can be written."""
        cache = getattr(self.config, "cache", None)
        if cache is not None:
            with suppress(OSError, OutputError):
                write_file("pytest's cache", cache.mkdir(CACHE) / LATEST_RUN, document)
                self._kept = True

    def _document(self, failed: Collection[str], unmeasured: Collection[str]) -> dict[str, Any]:
        """Return the run's JSON; ``unmeasured`` are the keys of tests without figures that have not failed."""
        run = self.run
        if run.fitness is not None:
            return selfcheck_document(run.baselines.machine, run.outcomes.selfchecks, run.fitness)
        notes = note_lines([note for note in run.notes if not isinstance(note, Saved)], verbose=True)
        # The coordinator has more tests than a merged run where a node was lost.
        file = replace(self._file(), tests=run.outcomes.tests, notes=tuple(notes))
        return document_of(replace(file, failed=tuple(failed), unmeasured=tuple(unmeasured)))

    def _file(self) -> RunFile:
        """Return the run as it is written, without its tests and notes."""
        run = self.run
        return run.merged or RunFile(
            run.baselines.machine,
            compared=tuple(run.baselines.origins(self._outcomes)),
            notes=(),
            tests={},
            provenance=run.provenance(),
            strict=run.settings.strict,
            against=run.settings.against,
            shard=run.shard,
        )

    def _page(self) -> str:
        """Return the HTML report; OutputError without jinja2."""
        from pytest_rlperf.report.html import render_html

        settings = {result_key(item): self.settings.for_test(item) for item in self.items.values()}
        return render_html(
            self._outcomes,
            self._summary(verbose=True),
            tolerances={key: self.run.policy(settings[key]).tolerance for key in settings},
            command=self._command([], "--rlperf"),
            provenance=self.run.provenance(),
        )

    def _benchmarks(self) -> str:
        """Return pytest-benchmark's JSON."""
        run, items = self.run, self.items.values()
        params = {result_key(item): item.callspec.params for item in items if hasattr(item, "callspec")}
        tests, machine = run.outcomes.tests, run.baselines.machine
        return written(benchmark_document(tests, machine, run.provenance(), params=params))

    def show(self, reporter: pytest.TerminalReporter, failed: Collection[str]) -> None:
        """Show the table, the phases, and commands to type next; ``failed`` is as in :meth:`write`."""
        run = self.run
        width, color = reporter._tw.fullwidth, reporter.hasmarkup
        if run.fitness is not None:
            checks, machine = list(run.outcomes.selfchecks.values()), describe(run.baselines.machine)
            reporter.section("rlperf")
            text = render_selfcheck(checks, run.fitness, machine=machine, width=width, color=color)
            reporter.write(for_log(text, styled=color))
            return
        outcomes = list(run.outcomes.tests.values())
        if not (outcomes or run.notes):
            return  # the run ended before anything was measured, with its own message
        verbose = self.config.get_verbosity() > 0
        summary = self._summary(verbose=verbose, kept=self._kept)
        reporter.section("rlperf")
        text = render_summary(outcomes, summary, width=width, color=color, verbose=verbose)
        reporter.write(for_log(text, styled=color))
        skipped = [report.longrepr[2] for report in reporter.stats.get("skipped", ()) if type(report.longrepr) is tuple]
        components = render_components(outcomes, skipped, width=width)
        if components:
            reporter.section("components by libraries")
            reporter.write(for_log(components))
        for command in self._write_github(summary, failed):
            reporter.write_line(command)  # to GitHub's runner, which is to obey it: its parts are escaped

    def _write_github(self, summary: Summary, failed: Collection[str]) -> list[str]:
        """Write GitHub's files, where this is one of its jobs, and return the commands to print."""
        github = GitHubRun(
            summary=summary,
            command=self._command(self._paths, "--rlperf"),
            lines=self._places,
            failed=failed,
            against=self.settings.against is not None,
            strict=self.settings.strict,
            json=self.settings.json,
            summarizes=self.run.shard is None,
        )
        return write_github(os.environ, self._outcomes, github)

    @property
    def _outcomes(self) -> list[Outcome]:
        return list(self.run.outcomes.tests.values())

    def _summary(self, *, verbose: bool, kept: bool = False) -> Summary:
        """Return the texts under the table; ``kept`` is as in :func:`next_steps`."""
        file = self._file()
        return Summary(
            machines=file.machine_lines(),
            origins=file.compared,
            notes=note_lines(self.run.notes, verbose=verbose),
            steps=self._next(verbose=verbose, kept=kept),
        )

    def _next(self, *, verbose: bool, kept: bool) -> list[NextStep]:
        """Return the commands to type next, each with its effect."""
        saved, command = self.run.saved, self._command(self._paths)
        against = self.settings.against is not None
        steps = next_steps(
            self._outcomes, command, saved=saved is not None, against=against, verbose=verbose, kept=kept
        )
        if saved is not None and saved.stored:
            commit = "commit that file; " if saved.settleable else ""
            steps.insert(0, NextStep(f"{commit}from now on this compares with it", (f"{command} --rlperf",)))
        return steps

    def _command(self, paths: Collection[str], *flags: str) -> str:
        """Return the command that runs tests against the same base; the key of a test can be put behind it."""
        against = [] if self.settings.against is None else [f"--rlperf-against={self.settings.against}"]
        return shlex.join(["pytest", *paths, *against, *flags])

    @property
    def _paths(self) -> list[str]:
        """The paths of tests as they were typed, none where pytest's settings name them."""
        pyargs = ["--pyargs"] if self.config.option.pyargs else []
        return [*pyargs, *self.config.args] if self.config.args_source is self.config.ArgsSource.ARGS else []


# ----------------------------------------------------------------------- one test


class PlainRepr(TerminalRepr):
    """A failure as plain text, with a line for the short summary."""

    def __init__(self, text: str, path: str, line: int) -> None:
        self.text = for_log(text)
        self.reprcrash = ReprFileLocation(path, line, self.text.partition("\n")[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the text as an error."""
        for line in self.text.splitlines():
            tw.line(f"E   {line}", red=True)
        tw.line()
        self.reprcrash.toterminal(tw)


class ReportForwarder:
    """Reports one test: forwards its worker's reports, and makes those that a lost worker cannot send."""

    def __init__(self, config: pytest.Config, item: pytest.Item) -> None:
        self._config = config
        self._item = item
        self._phases: list[str] = []
        self._teardown: pytest.TestReport | None = None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def forward_all(self, messages: Iterable[m.Reported | m.Warned]) -> None:
        """Pass on reports and warnings, the teardown's report by :meth:`finish`; an unreadable one fails the test."""
        for message in messages:
            if isinstance(message, m.Warned):
                self._warn(message)
                continue
            try:
                report = self._read(message.report)
            except Exception as error:  # a worker runs any code, so this is any text
                self.fabricate(f"a worker sent a report that cannot be read: {type(error).__name__}: {error}")
                continue
            if report.when == "teardown":
                self._teardown = report
            else:
                self._log(report)

    def _read(self, text: str) -> pytest.TestReport:
        """Return a report of the test; raise any error where the text has none."""
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=json.loads(text))
        # Serialising made lists of tuples, by which report writers recognise properties and skips.
        report.user_properties = [(str(name), value) for name, value in report.user_properties]
        if isinstance(report.longrepr, list):
            path, line, reason = report.longrepr
            report.longrepr = (str(path), line, str(reason))
        report.sections = [(str(title), str(content)) for title, content in report.sections]
        collision = vars(report).pop("rlperf_collision", None)
        if collision is not None and isinstance(report.longrepr, ExceptionRepr):
            report.longrepr.addsection("rlperf", collision_text(collision))
        if not isinstance(report, pytest.TestReport) or report.when not in ("setup", "call", "teardown"):
            raise ValueError("it is of no part of a test")
        report.nodeid, report.location = self._item.nodeid, self._item.location
        return report

    def fabricate(self, text: str) -> None:
        """Report a failure of the phase that a lost worker was in."""
        when = next((phase for phase in ("setup", "call") if phase not in self._phases), "teardown")
        path, line, _ = self._item.location
        longrepr = PlainRepr(text, str(path), (line or 0) + 1)
        report = self._report(when, "failed", longrepr)
        if when == "teardown":
            self._teardown = report
        else:
            self._teardown = None
            self._log(report)

    def finish(self, properties: list[tuple[str, object]]) -> None:
        """Finish the test: its teardown's report carries the properties that JUnit XML reads there."""
        report = self._teardown or self._report("teardown", "passed", None)
        report.user_properties += properties
        self._log(report)
        self._item.ihook.pytest_runtest_logfinish(nodeid=self._item.nodeid, location=self._item.location)

    def _report(self, when: str, outcome: str, longrepr: Any) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=self._item.nodeid,
            location=self._item.location,
            keywords=dict.fromkeys(self._item.keywords, 1),
            outcome=outcome,  # type: ignore[arg-type]
            longrepr=longrepr,
            when=when,  # type: ignore[arg-type]
        )

    def _log(self, report: pytest.TestReport) -> None:
        if type(report) is pytest.TestReport:
            self._phases += ["setup", "call"] if report.when == "setup" and not report.passed else [str(report.when)]
        self._item.ihook.pytest_runtest_logreport(report=report)

    def _warn(self, message: m.Warned) -> None:
        module, _, name = message.category.rpartition(".")
        category = getattr(sys.modules.get(module), name, None)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            encodable = name.encode("utf-8", "backslashreplace").decode().replace("\0", "")
            category = type(encodable, (UserWarning,), {"__module__": module})
        try:
            warning: Warning = category(message.text)
        except Exception:  # a category that takes more than a text, or another one
            category, warning = UserWarning, UserWarning(message.text)
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(warning, category, message.filename, message.line),
                "when": message.when,
                "nodeid": message.nodeid,
                "location": message.location,
            }
        )
