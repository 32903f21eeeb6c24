"""Commands that show what was measured: ``rlperf show``, ``merge``, ``tree`` and ``history``."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf import units
from pytest_rlperf.cli.command import (
    Command,
    Exit,
    UsageError,
    chosen,
    content_of,
    exit_code,
    has_color,
    outcomes_of,
    print_text,
    read,
    results_of,
    source_of,
    table_width,
    width,
)
from pytest_rlperf.errors import SideError, TimerFileError, shown
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.stored import Baseline, LoggedCommit
from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.sides.git import DEEPEN, Repository, find_repository, short
from pytest_rlperf.writing import OutputError, latest_run, write_file

if TYPE_CHECKING:
    from pytest_rlperf.baseline.history import Sessions
    from pytest_rlperf.cli.command import Recorded
    from pytest_rlperf.report.history import HistoryReport
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.summary import Summary

_FORMATS = ("text", "markdown", "github", "pytest-benchmark")


# --------------------------------------------------------------------------- show


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="FILE or TEST",
        help="a run, a baseline, or - for standard input (default: this project's latest run), then tests to show "
        "in detail, by a part of their ids or a pattern, such as run.json test_gae",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every test's phases, and what its figures rest on"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default=_FORMATS[0],
        help="print a table as text (the default) or markdown, the job summary, or pytest-benchmark's JSON, such as "
        "--format=github",
    )
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a run's report instead, such as report.html")
    parser.epilog = "For example: rlperf show --html report.html run.json"


def _run_show(arguments: argparse.Namespace) -> int:
    tests = list(arguments.what)
    file = tests.pop(0) if tests and not _names_test(tests[0]) else None
    path, recorded = read(_latest(tests) if file is None else file)
    keys = chosen(results_of(recorded), tests)
    if arguments.html is not None:
        _write_page(arguments.html, recorded, keys, path)
    if arguments.format != _FORMATS[0]:
        print_text(_formatted(recorded, keys, arguments.format, path))
    elif arguments.html is not None:
        print_text(_wrote(arguments.html))
    else:
        title = "" if path == file else f"{shown(path)}:\n\n"
        print_text(title + _rendered(recorded, keys, verbose=arguments.verbose or bool(tests)))
    outcomes, results = outcomes_of(recorded), results_of(recorded)
    return exit_code([outcomes[key] for key in keys if key in outcomes], [results[key] for key in keys])


def _names_test(argument: str) -> bool:
    """Whether an argument is not a run file: a test's id, or part of one."""
    is_file = argument == "-" or os.path.exists(argument)  # noqa: PTH110 - does not raise for a long path
    return argument.partition("::")[0].endswith(".py") or not (is_file or argument.endswith(".json"))


def _latest(tests: list[str]) -> str:
    """Return the path of this project's latest run; UsageError if there is none."""
    from pytest_rlperf.report.wording import seen_from_here

    directory = Path.cwd()
    path = latest_run(directory)
    if path is None:
        missing = f"{tests[0]} is not a file, and " if tests else ""
        raise UsageError(
            f"{missing}pytest's cache has no run, in {directory} or above: run `pytest --rlperf` there first, "
            "or name a file that --rlperf-json wrote"
        )
    return seen_from_here(path)


def _write_page(page: Path, recorded: Recorded, keys: list[str], path: str) -> None:
    """Write the report on a run's tests as a page."""
    from pytest_rlperf.report.html import check_html
    from pytest_rlperf.report.run_json import RunFile

    if not isinstance(recorded, RunFile):
        raise UsageError(f"--html shows verdicts, and {path} has none: leave it out, or name a run")
    try:
        check_html(page, "--html")
        write_file("--html", page, _page(recorded, [recorded.tests[key] for key in keys]))
    except OutputError as error:
        raise UsageError(str(error)) from None


def _wrote(page: Path) -> str:
    """Return the line that names a page, in place of the text for a terminal."""
    return f"wrote {shown(str(page))}\n"


def _page(run: RunFile, outcomes: Sequence[Outcome]) -> str:
    """Return the HTML report on some of a run's outcomes."""
    from pytest_rlperf.report.html import render_html

    against = [] if run.against is None else [f"--rlperf-against={run.against}"]
    command = shlex.join(["pytest", *against, "--rlperf"])
    summary = summary_of(run, outcomes)
    return render_html(outcomes, summary, tolerances=run.tolerances, command=command, provenance=run.provenance)


def _formatted(recorded: Recorded, keys: list[str], form: str, path: str) -> str:
    """Return verdicts in a form other than the table; UsageError if there are none."""
    from pytest_rlperf.report.github import COMMENT_BYTES, GitHubRun, grid, render_summary_markdown
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.tables import verdict_table

    if not isinstance(recorded, RunFile):
        raise UsageError(f"--format={form} shows verdicts, and {path} has none: leave it out, or name a run")
    outcomes = [recorded.tests[key] for key in keys]
    if form == "pytest-benchmark":
        from pytest_rlperf.report.exports import benchmark_document

        return json.dumps(benchmark_document(outcomes, recorded.machine, recorded.provenance), indent=1) + "\n"
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
    """Return the texts below the table for some of a run's outcomes."""
    from pytest_rlperf.report.summary import NextStep, Summary
    from pytest_rlperf.report.wording import SAVING, improved

    faster = sum(outcome.verdict.status is Status.FASTER and outcome.baseline is not None for outcome in outcomes)
    steps = [NextStep(improved(faster), (SAVING,))] if faster else []
    return Summary(run.machine_lines(), run.compared, run.notes, steps)


SHOW = Command("show", "Show a run or a baseline as pytest showed it.", _add_show_arguments, _run_show)


# --------------------------------------------------------------------------- rlperf merge


def _add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="the --rlperf-json of each shard, such as shard-1.json shard-2.json"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the merged run, such as run.json")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write its report, such as report.html")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every test's phases, and what its figures rest on"
    )


def _run_merge(arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.run_json import MergeError, document_of, merge_shards, written
    from pytest_rlperf.report.summary import compares_nothing
    from pytest_rlperf.report.terminal import render_summary

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
    if run.against is not None and compares_nothing(outcomes):
        raise UsageError(f"nothing was compared: no gated test can be compared with {run.against}")
    return Exit.SLOWER if run.failed else exit_code(outcomes, [])


MERGE = Command("merge", "Join the shards of a run: one table, one exit code.", _add_merge_arguments, _run_merge)


# --------------------------------------------------------------------------- rlperf tree


_TEXT = "text"
_TREE_FORMATS = ("json", "chrome")  # those that timers.files writes


def _add_tree_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of timer trees, or - for standard input")
    parser.add_argument(
        "--format",
        choices=[_TEXT, *_TREE_FORMATS],
        default=_TEXT,
        help="print a table (text, the default), JSON, or a trace for Perfetto, such as --format=chrome",
    )


def _run_tree(arguments: argparse.Namespace) -> int:
    from pytest_rlperf.timers import files

    try:
        read = [(path, _read(path)) for path in arguments.files]
    except TimerFileError as error:
        raise UsageError(str(error)) from None
    if arguments.format == _TEXT:
        _print_trees(read)
    else:
        document = files.write([tree for _, trees in read for tree in trees], arguments.format)
        print_text(document.replace("##", r"#\u0023"))  # the same JSON, in which a log finds no command
    return Exit.NOTHING_SLOWER


def _read(path: str) -> list[TimerTree]:
    from pytest_rlperf.timers import files

    return files.parse(content_of(path), source_of(path))


def _print_trees(read: Sequence[tuple[str, list[TimerTree]]]) -> None:
    from pytest_rlperf.report.tables import render_tree

    columns = width()
    parts = []
    for path, trees in read:
        tables = [render_tree(tree, width=columns) for tree in trees]
        heading = f"{shown(path)}:\n" if len(read) > 1 else ""
        parts.append(heading + "\n".join(tables))
    print_text("\n".join(parts))


TREE = Command("tree", "Show timer trees from files, or convert them.", _add_tree_arguments, _run_tree)


# --------------------------------------------------------------------------- rlperf history


_STORE = "pytest --rlperf-save-baseline stores one, and git commit keeps it"


def _add_history_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="TEST",
        help="show only tests with this part of an id, or this pattern, such as test_gae",
    )
    parser.add_argument(
        "--baseline",
        default="baselines/default",
        metavar="DIR/NAME",
        help="the baseline to show, such as perf/nightly (default: baselines/default)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="OUT", help="write a page with plots instead, such as history.html"
    )
    parser.epilog = "For example: rlperf history test_gae --html history.html"


def _run_history(arguments: argparse.Namespace) -> int:
    from pytest_rlperf.options import parse_baseline
    from pytest_rlperf.report.history import render_history, render_history_page
    from pytest_rlperf.report.html import check_html

    try:
        directory = parse_baseline(arguments.baseline)
    except ValueError as error:
        raise UsageError(f"--baseline={arguments.baseline}: {error}") from None
    try:
        if arguments.html is not None:
            check_html(arguments.html, "--html")
        report = _history_of(arguments, directory)
        if arguments.html is not None:
            write_file("--html", arguments.html, render_history_page(report))
    except (OutputError, SideError) as error:
        raise UsageError(str(error)) from None
    print_text(render_history(report) if arguments.html is None else _wrote(arguments.html))
    return Exit.NOTHING_SLOWER


def _history_of(arguments: argparse.Namespace, directory: Path) -> HistoryReport:
    from pytest_rlperf.baseline.history import read_sessions
    from pytest_rlperf.baseline.machine import slug
    from pytest_rlperf.judge.history import courses
    from pytest_rlperf.report.history import HistoryReport

    repository = find_repository(Path())
    sessions = read_sessions(repository, directory)
    if not sessions.tests and not sessions.links:
        if sessions.skipped:
            raise UsageError(f"no version of {directory} can be read: {sessions.skipped[-1]}")
        lacks = f"no commit of {repository.top} has a baseline in {directory}"
        raise UsageError(f"{lacks}: name another by --baseline=DIR/NAME; {_STORE}")
    tests = chosen(sorted({*sessions.tests, *sessions.links}), arguments.what)
    commits = [LoggedCommit(*fields) for fields in repository.course()]
    found = courses(
        {test: list(sessions.tests.get(test, {}).values()) for test in tests},
        {test: sessions.links[test] for test in tests if test in sessions.links},
        commits,
    )
    machines = dict.fromkeys(line.machine for course in found for line in course.lines if line.machine is not None)
    source = f"read {units.counted(len(commits), 'commit')} of {repository.top}, and {directory}"
    notes = _notes(repository, commits, sessions)
    names = {machine: slug(machine).rpartition("-")[2] for machine in machines}  # the end of its file's name
    return HistoryReport(tuple(found), names, source, notes)


def _notes(repository: Repository, commits: Sequence[LoggedCommit], sessions: Sessions) -> tuple[str, ...]:
    notes = []
    if repository.is_shallow():
        notes.append(f"this clone is shallow: history begins at {short(commits[0].sha)}; {DEEPEN}")
    return (*notes, *(f"left out {skipped}" for skipped in sessions.skipped))


HISTORY = Command(
    "history", "Show how the times of tests have changed over commits.", _add_history_arguments, _run_history
)
