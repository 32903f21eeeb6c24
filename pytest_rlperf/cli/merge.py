"""``rlperf merge``: the shards of a run as one run, with one table, one summary and one exit code."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Command, Exit, UsageError, complain, has_color, listed, print_text, table_width
from pytest_rlperf.cli.files import read
from pytest_rlperf.cli.show import summary_of
from pytest_rlperf.model import Code

if TYPE_CHECKING:
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.summary import Summary

_JSON = "--json"
_HTML = "--html"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="what --rlperf-shard=K/N --rlperf-json=FILE wrote, one of each shard"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the merged run, as --rlperf-json does")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write its report, as --rlperf-html does")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every test's phases, and what its figures rest on"
    )


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.files import OutputError, check_apart, check_file
    from pytest_rlperf.report.html import check_html
    from pytest_rlperf.report.terminal import render_summary

    try:
        if arguments.json is not None:
            check_file(_JSON, arguments.json)
        if arguments.html is not None:
            check_html(arguments.html, _HTML)
        check_apart({_JSON: arguments.json, _HTML: arguments.html})
        run = _merged(arguments.files)
        outcomes = list(run.tests.values())
        summary = summary_of(run, outcomes)
        table = replace(summary, notes=[*summary.notes, *_other_failures(run)])
        # Files come before the table, since its reader may close the pipe.
        _write_files(run, summary, arguments.json, arguments.html)
    except OutputError as error:
        raise UsageError(str(error)) from None
    commands = _write_github(run, summary, arguments.json)
    text = render_summary(outcomes, table, width=table_width(), color=has_color(), verbose=arguments.verbose)
    print_text("".join([text, *(f"{command}\n" for command in commands)]))
    return _exit_code(run)


def _merged(paths: list[str]) -> RunFile:
    """Return the run whose shards lie in files; UsageError where one cannot be read, or they are not all of one run."""
    from pytest_rlperf.report.merge import MergeError, merge_shards
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.run_json import RunFile

    runs: dict[str, RunFile] = {}
    for path in paths:
        name, recorded = read(path)
        if not isinstance(recorded, RunFile):
            raise UsageError(f"{path} is no run: merge the files that --rlperf-shard=K/N --rlperf-json=FILE writes")
        if shown(name) in runs:
            raise UsageError(f"{path} is given twice: give each shard once")
        runs[shown(name)] = recorded
    try:
        return merge_shards(runs)
    except MergeError as error:
        raise UsageError(str(error)) from None


def _other_failures(run: RunFile) -> list[str]:
    """Return a note on the tests that failed for another reason than their verdict, which the table does not show."""
    by_verdict = {key for key, outcome in run.tests.items() if outcome.verdict.fails(run.strict)}
    others = [key for key in run.failed if key not in by_verdict]
    return [f"failed, as the logs of their shards show: {listed(others)}"] if others else []


def _write_files(run: RunFile, summary: Summary, json: Path | None, html: Path | None) -> None:
    """Write the files that options name; OutputError where one cannot be written."""
    from pytest_rlperf.report.files import write_file
    from pytest_rlperf.report.html import render_html
    from pytest_rlperf.report.run_json import document_of, written
    from pytest_rlperf.report.summary import reproducing

    if json is not None:
        write_file(_JSON, json, written(document_of(run)))
    if html is not None:
        created = "" if run.provenance is None else run.provenance.created
        outcomes = list(run.tests.values())
        page = render_html(outcomes, summary, tolerances={}, command=reproducing([]), created=created)
        write_file(_HTML, html, page)


def _write_github(run: RunFile, summary: Summary, json: Path | None) -> list[str]:
    """Write the job's summary and the step's outputs, where this is one of GitHub's jobs; return commands to print."""
    from pytest_rlperf.report.github import GitHubRun, write_github

    github = GitHubRun(
        summary=summary,
        command="",
        lines={},
        environment=(),
        skipped={},
        failed=run.failed,
        against=run.against is not None,
        strict=run.strict,
        json=json,
        annotates=False,
    )
    return write_github(os.environ, list(run.tests.values()), github)


def _exit_code(run: RunFile) -> Exit:
    """Return the exit code that the whole run would have had."""
    from pytest_rlperf.report.merge import without_result

    outcomes = list(run.tests.values())
    if run.failed or any(outcome.verdict.fails(run.strict) for outcome in outcomes):
        return Exit.SLOWER
    unfinished = without_result(run)
    if unfinished:
        complain(UsageError(f"{listed(list(unfinished))} ended early: run it again, and merge its new file"))
        return Exit.USAGE
    gated = [outcome for outcome in outcomes if outcome.verdict.gated]
    if gated and all(outcome.verdict.reason.code == Code.BASE for outcome in gated):
        complain(UsageError("nothing was compared: no gated test runs on the base side"))
        return Exit.USAGE
    return Exit.NOTHING_SLOWER if outcomes else Exit.NOTHING_MEASURED


MERGE = Command("merge", "Join the shards of a run: one table, one summary, one exit code.", _add_arguments, _run)
