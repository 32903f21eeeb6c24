"""The end of a run: its files, its summary, and the commands to type next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.errors import for_log, shown
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.notes import Saved
from pytest_rlperf.options import Config
from pytest_rlperf.report.components import render_components
from pytest_rlperf.report.github import GitHubRun, place_of, write_github
from pytest_rlperf.report.run_json import RunFile, document_of, selfcheck_document, written
from pytest_rlperf.report.summary import NextStep, Summary, next_steps
from pytest_rlperf.report.terminal import render_selfcheck, render_summary
from pytest_rlperf.report.wording import note_lines
from pytest_rlperf.run.cache import cache_of
from pytest_rlperf.run.state import RunState
from pytest_rlperf.writing import (
    CACHE,
    LATEST_RUN,
    TRACE_OPTION,
    OutputError,
    check_file,
    check_files_in,
    latest_run,
    write_file,
)

_JSON = "--rlperf-json"
_HTML = "--rlperf-html"
_REPEATED = ("--rlperf-tolerance", "--rlperf-findings")


def check_outputs(settings: Config) -> None:
    """Raise OutputError if a file cannot be written, before any time is spent on measuring."""
    if settings.json is not None:
        check_file(_JSON, settings.json)
    if settings.trace is not None:
        check_files_in(TRACE_OPTION, settings.trace)
    if settings.html is not None:
        from pytest_rlperf.report.html import check_html  # which most runs need not load

        check_html(settings.html)


def repeated(config: pytest.Config) -> list[str]:
    """Return the options of the command line by which tests were found and judged, for a command that does so again."""
    found = []
    for word, following in pairwise([*config.invocation_params.args, ""]):
        name, has_value, _ = word.partition("=")
        if name in _REPEATED:
            found.append(word if has_value else f"{word}={following}")
        elif word == "--pyargs":
            found.append(word)
    return found


def typed(config: pytest.Config, key: str) -> str:
    """Return the key of a test as a command names the test: by its path from here, or by its module with --pyargs."""
    if config.getoption("pyargs"):
        return key
    path, *others = key.partition("::")
    return "".join([os.path.relpath(config.rootpath / path), *others])


@dataclass
class EndOfRun:
    """Reports a run at its end: its outcomes, its notes, and the places where its tests failed.

    ``items`` are the tests to be measured, by their ids.
    """

    config: pytest.Config
    settings: Config
    run: RunState
    items: dict[str, pytest.Item] = field(default_factory=dict)
    _places: dict[str, tuple[str, int]] = field(default_factory=dict)
    _kept: bool = False
    _has_page: bool = False

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

        ``failed`` are the keys of tests that failed, and the ids of files that cannot be collected. ``finished`` are
        the keys of tests that came to their end.
        """
        settings = self.settings
        unmeasured = {*finished} - {*failed, *self.run.outcomes.keys}
        document = written(self._document(failed, unmeasured))
        if self.run.outcomes.keys:
            self._keep(document)
        files: tuple[tuple[str, Path | None, Callable[[], str]], ...] = (
            (_JSON, settings.json, lambda: document),
            (_HTML, settings.html, self._page),
        )
        errors = []
        for option, path, text in files:
            if path is not None:
                try:
                    write_file(option, path, text())
                    self._has_page |= option == _HTML
                except OutputError as error:
                    errors.append(str(error))
        return errors

    def _keep(self, document: str) -> None:
        """Keep the run's JSON in pytest's cache, for ``rlperf show``, if there is a cache and it can be written."""
        cache = cache_of(self.config)
        if cache is not None:
            with suppress(OSError, OutputError):
                place = cache.mkdir(CACHE) / LATEST_RUN
                write_file("pytest's cache", place, document)
                self._kept = latest_run(Path.cwd()) == place  # there `rlperf show` looks for it

    def _document(self, failed: Collection[str], unmeasured: Collection[str]) -> dict[str, Any]:
        """Return the run's JSON; ``unmeasured`` are the keys of tests without figures that have not failed."""
        run = self.run
        if run.fitness is not None:
            return selfcheck_document(run.baselines.machine, run.outcomes.selfchecks, run.fitness)
        notes = note_lines([note for note in run.notes if not isinstance(note, Saved)], verbose=True)
        # If a node was lost, the coordinator has more tests than a merged run.
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
            changed=len(run.coverage.changed),
            untested=tuple(run.coverage.untested),
            tolerances=self._tolerances(),
        )

    def _tolerances(self) -> dict[str, float]:
        """Return the tests' tolerances by key."""
        policy, settings = self.run.policy, self.settings
        return {result_key(item): policy(settings.for_test(item)).tolerance for item in self.items.values()}

    def _page(self) -> str:
        """Return the HTML report; OutputError without jinja2."""
        from pytest_rlperf.report.html import render_html

        return render_html(
            self._outcomes,
            self._summary(verbose=True),
            tolerances=self._tolerances(),
            command=self._command([], "--rlperf"),
            provenance=self.run.provenance(),
        )

    def show(self, reporter: pytest.TerminalReporter, failed: Collection[str]) -> None:
        """Show the table, the phases, and commands to type next; ``failed`` is as in :meth:`write`."""
        run = self.run
        width, color = reporter.config.get_terminal_writer().fullwidth, reporter.hasmarkup
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
        if self._has_page:
            reporter.write_line(f"wrote {shown(str(self.settings.html))}")
        for command in self._write_github(summary, failed):
            reporter.write_line(command)  # GitHub's runner obeys the command: its parts are escaped

    def _write_github(self, summary: Summary, failed: Collection[str]) -> list[str]:
        """Write GitHub's files, if this is one of its jobs, and return the commands to print."""
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
        against = self.settings.against is not None or self.settings.bisect is not None
        steps = next_steps(
            self._outcomes,
            command,
            saved=saved is not None,
            against=against,
            verbose=verbose,
            kept=kept,
            has_page=self._has_page,
            alone=self._command([], *([] if against else ["--rlperf"]), *repeated(self.config)),
            typed=partial(typed, self.config),
        )
        if saved is not None and saved.stored:
            commit = "commit that file; " if saved.settleable else ""
            steps.insert(0, NextStep(f"{commit}from now on this compares with it", (f"{command} --rlperf",)))
        return steps

    def _command(self, paths: Collection[str], *flags: str) -> str:
        """Return the command that runs tests against the same base; a test's key can be appended to it."""
        against = [] if self.settings.against is None else [f"--rlperf-against={self.settings.against}"]
        settings = self.config.option.override_ini or []
        baseline = [word for each in settings if each.startswith("rlperf_baseline=") for word in ("-o", each)]
        return shlex.join(["pytest", *paths, *against, *baseline, *flags])

    @property
    def _paths(self) -> list[str]:
        """The paths of tests as they were typed; none if pytest's settings name them."""
        pyargs = ["--pyargs"] if self.config.option.pyargs else []
        return [*pyargs, *self.config.args] if self.config.args_source is self.config.ArgsSource.ARGS else []
