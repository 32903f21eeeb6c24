"""Commands that show files: ``rlperf show``, and ``merge`` of a run's shards."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import (
    Command,
    Exit,
    UsageError,
    add_choice,
    chosen,
    exit_code,
    has_color,
    outcomes_of,
    print_text,
    read,
    results_of,
    table_width,
)
from pytest_rlperf.model.judged import Outcome, Status

if TYPE_CHECKING:
    from pytest_rlperf.cli.command import Recorded
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.summary import Summary


_FORMATS = ("text", "markdown", "github")


# --------------------------------------------------------------------------- show


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE or TEST",
        help="what --rlperf-json wrote, a baseline, its directory, or - for standard input; a test's id shows it "
        "in the latest run of this project, nothing shows all tests of that",
    )
    add_choice(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every test's phases, and what its figures rest on"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default=_FORMATS[0],
        help="of a run: the table (text, the default), the table for a README or an issue (markdown), or the job "
        "summary, short enough for a comment (github)",
    )
    parser.add_argument("--html", action="store_true", help="open a run's report in a browser, as --rlperf-html writes")


def _run_show(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.errors import shown

    test = arguments.file if arguments.file is not None and _names_test(arguments.file) else None
    path, recorded = read(_latest(test) if arguments.file is None or test is not None else arguments.file)
    keys = chosen(results_of(recorded), [*(arguments.patterns or ()), *([] if test is None else [test])])
    if arguments.html:
        _open_page(recorded, keys, path)
    elif arguments.format == _FORMATS[0]:
        title = "" if path == arguments.file else f"{shown(path)}:\n\n"
        print_text(title + _rendered(recorded, keys, verbose=arguments.verbose or test is not None))
    else:
        print_text(_formatted(recorded, keys, arguments.format, path))
    outcomes, results = outcomes_of(recorded), results_of(recorded)
    return exit_code([outcomes[key] for key in keys if key in outcomes], [results[key] for key in keys])


def _names_test(argument: str) -> bool:
    """Whether an argument is no file of a run: a test's id, or a part of one."""
    is_file = argument == "-" or os.path.exists(argument)  # noqa: PTH110 - which raises for no path, however long
    return argument.partition("::")[0].endswith(".py") or not (is_file or argument.endswith(".json"))


def _latest(test: str | None) -> str:
    """Return the path of this project's latest run; UsageError where there is none."""
    from pytest_rlperf.report.wording import seen_from_here
    from pytest_rlperf.writing import latest_run

    directory = Path.cwd()
    path = latest_run(directory)
    if path is None:
        missing = "" if test is None else f"{test} is no file, and "
        raise UsageError(
            f"{missing}pytest's cache has no run, in {directory} or above: run `pytest --rlperf` there first, "
            "or name a file that --rlperf-json wrote"
        )
    return seen_from_here(path)


def _open_page(recorded: Recorded, keys: list[str], path: str) -> None:
    """Write the report of a run's tests as a page, print where it is, and open it where a person looks on."""
    from pytest_rlperf.report.html import check_html
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.writing import OutputError, write_file

    if not isinstance(recorded, RunFile):
        raise UsageError(f"--html shows verdicts, which {path} has none of: leave it out, or give a run")
    try:
        page = Path(tempfile.mkdtemp(prefix="rlperf-"), "report.html")
        check_html(page, "--html")
        write_file("--html", page, _page(recorded, [recorded.tests[key] for key in keys]))
    except (OSError, OutputError) as error:
        raise UsageError(str(error)) from None
    print_text(f"{page}\n")
    if sys.stdout.isatty():
        webbrowser.open(page.as_uri())


def _page(run: RunFile, outcomes: Sequence[Outcome]) -> str:
    """Return the HTML report of some of a run's outcomes."""
    from pytest_rlperf.report.html import render_html

    against = [] if run.against is None else [f"--rlperf-against={run.against}"]
    command = shlex.join(["pytest", *against, "--rlperf"])
    summary = summary_of(run, outcomes)
    return render_html(outcomes, summary, tolerances={}, command=command, provenance=run.provenance)


def _formatted(recorded: Recorded, keys: list[str], form: str, path: str) -> str:
    """Return verdicts in Markdown; UsageError where there are none."""
    from pytest_rlperf.report.github import COMMENT_BYTES, GitHubRun, grid, render_summary_markdown
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.tables import verdict_table

    if not isinstance(recorded, RunFile):
        raise UsageError(f"--format={form} shows verdicts, which {path} has none of: leave it out, or give a run")
    outcomes = [recorded.tests[key] for key in keys]
    if form == "markdown":
        return f"{grid(verdict_table(outcomes))}\n" if outcomes else ""
    run = GitHubRun(
        summary=summary_of(recorded, outcomes),
        command="",
        lines={},
        failed=recorded.failed,
        against=recorded.against is not None,
        strict=recorded.strict,
        json=None,
    )
    return render_summary_markdown(outcomes, run, COMMENT_BYTES)


def _rendered(recorded: Recorded, keys: list[str], *, verbose: bool) -> str:
    from pytest_rlperf.baseline.machine import describe
    from pytest_rlperf.model.stored import Baseline
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.tables import render_baseline
    from pytest_rlperf.report.terminal import render_selfcheck, render_summary

    width, color, machine = table_width(), has_color(), describe(recorded.machine)
    if isinstance(recorded, Baseline):
        table = render_baseline(recorded, keys, width=width)
        return f"{table}\nmachine   {machine}\n"
    if isinstance(recorded, RunFile):
        outcomes = [recorded.tests[key] for key in keys]
        return render_summary(outcomes, summary_of(recorded, outcomes), width=width, color=color, verbose=verbose)
    checks = [recorded.tests[key] for key in keys]
    return render_selfcheck(checks, recorded.fitness, machine=machine, width=width, color=color)


def summary_of(run: RunFile, outcomes: Sequence[Outcome]) -> Summary:
    """Return the texts below the table of some of a run's outcomes."""
    from pytest_rlperf.report.summary import NextStep, Summary
    from pytest_rlperf.report.wording import SAVING, improved

    faster = sum(outcome.verdict.status is Status.FASTER and outcome.baseline is not None for outcome in outcomes)
    steps = [NextStep(improved(faster), (SAVING,))] if faster else []
    return Summary(run.machine_lines(), run.compared, run.notes, steps)


SHOW = Command("show", "Show a run or a baseline as pytest showed it.", _add_show_arguments, _run_show)


# --------------------------------------------------------------------------- rlperf merge


def _add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="the --rlperf-json of each --rlperf-shard=K/N")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the merged run, as --rlperf-json does")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write its report, as --rlperf-html does")
    parser.add_argument("-v", "--verbose", action="store_true", help="every test's phases and what its figures rest on")


def _run_merge(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.run_json import MergeError, document_of, merge_shards, written
    from pytest_rlperf.report.summary import compares_nothing
    from pytest_rlperf.report.terminal import render_summary
    from pytest_rlperf.writing import OutputError, write_file

    try:
        run = merge_shards(dict(map(read, arguments.files)))
        outcomes = list(run.tests.values())
        summary = summary_of(run, outcomes)
        if arguments.json is not None:  # files come before the table, since its reader may close the pipe
            write_file("--json", arguments.json, written(document_of(run)))
        if arguments.html is not None:
            write_file("--html", arguments.html, _page(run, outcomes))
    except (MergeError, OutputError) as error:
        raise UsageError(str(error)) from None
    print_text(render_summary(outcomes, summary, width=table_width(), color=has_color(), verbose=arguments.verbose))
    if compares_nothing(outcomes):
        raise UsageError("nothing was compared: no gated test runs on the base side")
    return Exit.SLOWER if run.failed else exit_code(outcomes, [])


MERGE = Command("merge", "Join the shards of a run: one table, one exit code.", _add_merge_arguments, _run_merge)
