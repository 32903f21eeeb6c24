"""The end of a measured run: its files, its summary on the terminal, and its report to GitHub."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model import Outcome
from pytest_rlperf.model.notes import Saved
from pytest_rlperf.options import Config
from pytest_rlperf.report.github import GitHubRun, place_of, write_github
from pytest_rlperf.report.matrix import render_matrix
from pytest_rlperf.report.selfcheck import render_selfcheck
from pytest_rlperf.report.summary import (
    NextStep,
    Summary,
    continuing,
    next_steps,
    reproducing,
    without_paths,
)
from pytest_rlperf.report.terminal import render_summary
from pytest_rlperf.report.wording import note_lines
from pytest_rlperf.run.outcomes import RunState
from pytest_rlperf.run.outputs import Page, write_outputs

if TYPE_CHECKING:
    import pytest


class EndOfRun:
    """Reports a run at its end, by its outcomes and notes, and by the places where its tests failed."""

    def __init__(self, config: pytest.Config, settings: Config, run: RunState) -> None:
        self._config = config
        self._settings = settings
        self._run = run
        self._items: dict[str, pytest.Item] = {}
        self._places: dict[str, tuple[str, int]] = {}

    def add_tests(self, items: Collection[pytest.Item]) -> None:
        """Keep the tests that are to be measured."""
        self._items = {item.nodeid: item for item in items}

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
        settings = {result_key(item): self._settings.for_test(item) for item in self._items.values()}
        return write_outputs(
            self._settings,
            self._run,
            notes=note_lines([note for note in self._run.notes if not isinstance(note, Saved)], verbose=True),
            failed=failed,
            unmeasured={*finished} - {*failed, *self._run.outcomes.keys},
            params={
                result_key(item): item.callspec.params for item in self._items.values() if hasattr(item, "callspec")
            },
            page=Page(
                summary=self._summary(verbose=True),
                tolerances={
                    key: self._run.policy(settings[key]).tolerance
                    for key in self._run.outcomes.tests
                    if key in settings
                },
                command=reproducing(without_paths(self._typed(), self._positional)),
                created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            ),
        )

    def show(self, reporter: pytest.TerminalReporter, failed: Collection[str]) -> None:
        """Show the table, the phases, and commands to type next; ``failed`` is as in :meth:`write`."""
        run = self._run
        width, color = reporter._tw.fullwidth, reporter.hasmarkup
        if run.fitness is not None:
            checks, machine = list(run.outcomes.selfchecks.values()), describe(run.baselines.machine)
            reporter.section("rlperf")
            reporter.write(render_selfcheck(checks, run.fitness, machine=machine, width=width, color=color))
            return
        outcomes = list(run.outcomes.tests.values())
        if not (outcomes or run.notes):
            return  # the run ended before anything was measured, with its own message
        verbose = self._config.get_verbosity() > 0
        summary, skipped = self._summary(verbose=verbose), self._skipped(reporter)
        reporter.section("rlperf")
        reporter.write(render_summary(outcomes, summary, width=width, color=color, verbose=verbose))
        matrix = render_matrix(outcomes, skipped, width=width)
        if matrix:
            reporter.section("rlperf suite")
            reporter.write(matrix)
        for command in self._write_github(summary, skipped, failed):
            reporter.write_line(command)

    def _write_github(self, summary: Summary, skipped: dict[str, str], failed: Collection[str]) -> list[str]:
        """Write GitHub's files, where this is one of its jobs, and return the commands to print."""
        github = GitHubRun(
            summary=summary,
            command=reproducing(self._typed()),
            lines=self._places,
            environment=[] if self._run.merged else self._run.baselines.changes_since(self._outcomes),
            skipped=skipped,
            failed=failed,
            against=self._settings.against is not None,
            strict=self._settings.strict,
            json=self._settings.json,
            summarizes=self._run.shard is None,
        )
        return write_github(os.environ, self._outcomes, github)

    @property
    def _outcomes(self) -> list[Outcome]:
        return list(self._run.outcomes.tests.values())

    def _summary(self, *, verbose: bool) -> Summary:
        """Return the texts under the table."""
        baselines, merged = self._run.baselines, self._run.merged
        return Summary(
            machines=[describe(baselines.machine)] if merged is None else merged.machine_lines(),
            origins=baselines.origins(self._outcomes) if merged is None else merged.compared,
            notes=note_lines(self._run.notes, verbose=verbose),
            steps=self._next(verbose=verbose),
        )

    def _next(self, *, verbose: bool) -> list[NextStep]:
        """Return the commands to type next, each with its effect."""
        saved, command = self._run.saved, continuing(self._typed())
        steps = next_steps(
            self._outcomes,
            command,
            saved=saved is not None,
            against=self._settings.against is not None,
            verbose=verbose,
        )
        if saved is not None and saved.stored:
            commit = "commit that file; " if saved.settleable else ""
            steps.insert(0, NextStep(f"{commit}from now on this compares with it", (f"{command} --rlperf",)))
        return steps

    def _skipped(self, reporter: pytest.TerminalReporter) -> dict[str, str]:
        """Return why tests were skipped, by their keys."""
        keys = {nodeid: result_key(item) for nodeid, item in self._items.items()}
        skipped = {}
        for report in reporter.getreports("skipped"):
            why = report.longrepr[-1] if isinstance(report.longrepr, (tuple, list)) else report.longreprtext
            if report.nodeid in keys:
                skipped[keys[report.nodeid]] = str(why).removeprefix("Skipped: ")
        return skipped

    def _typed(self) -> list[str]:
        """Return the arguments that were typed behind ``pytest``."""
        return [str(arg) for arg in self._config.invocation_params.args]

    def _positional(self, args: list[str]) -> list[str]:
        """Return the paths among ``args``: only pytest's parser knows which options take a value."""
        found: list[str] = self._config._parser.parse_known_args(args).file_or_dir
        return found
