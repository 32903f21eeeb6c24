"""``rlperf history``: the course of tests, from the baselines in git; and ``rlperf anchor``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import CHOICE, Command, Exit, UsageError, chosen, print_text

if TYPE_CHECKING:
    from pytest_rlperf.baseline.history import Sessions
    from pytest_rlperf.model.history import LoggedCommit
    from pytest_rlperf.report.history import HistoryReport
    from pytest_rlperf.sides.git import Repository


_STORE = "pytest --rlperf-save-baseline stores one, and git commit keeps it"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tests", nargs="*", metavar="TEST", help=CHOICE)
    _add_baseline(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots")
    parser.epilog = "For example: rlperf history test_gae --html history.html"


def _add_baseline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baseline", default="default", metavar="NAME", help="the baseline (default: 'default')")
    parser.add_argument(
        "--baseline-dir", default="baselines", metavar="DIR", help="the directory of the baselines (default: baselines)"
    )


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.errors import SideError
    from pytest_rlperf.options import parse_name
    from pytest_rlperf.report.files import OutputError, write_file
    from pytest_rlperf.report.history import render_history
    from pytest_rlperf.report.html import check_html, render_history_page

    try:
        directory = Path(arguments.baseline_dir, parse_name(arguments.baseline))
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        if arguments.html is not None:
            check_html(arguments.html, "--html")
        report = _report(arguments, directory)
        if arguments.html is not None:
            write_file("--html", arguments.html, render_history_page(report))
    except (OutputError, SideError) as error:
        raise UsageError(str(error)) from None
    print_text(render_history(report))
    return Exit.NOTHING_SLOWER


def _report(arguments: argparse.Namespace, directory: Path) -> HistoryReport:
    from pytest_rlperf import units
    from pytest_rlperf.baseline.history import read_sessions
    from pytest_rlperf.baseline.machine import slug
    from pytest_rlperf.judge.history import courses
    from pytest_rlperf.model.history import LoggedCommit
    from pytest_rlperf.report.history import HistoryReport
    from pytest_rlperf.sides.git import find_repository

    repository = find_repository(Path())
    sessions = read_sessions(repository, directory)
    if not sessions.tests and not sessions.links:
        if sessions.skipped:
            raise UsageError(f"no version of {directory} can be read: {sessions.skipped[-1]}")
        raise UsageError(f"no commit of {repository.top} has a baseline in {directory}: {_STORE}")
    tests = chosen(sorted({*sessions.tests, *sessions.links}), arguments.tests)
    commits = [LoggedCommit(*fields) for fields in repository.course()]
    found = courses(
        {test: list(sessions.tests.get(test, {}).values()) for test in tests},
        {test: sessions.links[test] for test in tests if test in sessions.links},
        commits,
    )
    machines = dict.fromkeys(line.machine for course in found for line in course.lines if line.machine is not None)
    source = f"read {units.counted(len(commits), 'commit')} of {repository.top}, and {directory}"
    notes = _notes(repository, commits, sessions)
    names = {machine: slug(machine).rpartition("-")[2] for machine in machines}  # the end of its file's
    return HistoryReport(tuple(found), names, source, notes)


def _notes(repository: Repository, commits: Sequence[LoggedCommit], sessions: Sessions) -> tuple[str, ...]:
    from pytest_rlperf.sides.git import DEEPEN, short

    notes = []
    if repository.is_shallow():
        notes.append(f"this clone is shallow: history begins at {short(commits[0].sha)}; {DEEPEN}")
    return (*notes, *(f"left out {skipped}" for skipped in sessions.skipped))


HISTORY = Command("history", "Show the course of tests over commits, and the changes in it.", _add_arguments, _run)


# --------------------------------------------------------------------------- rlperf anchor


def _add_anchor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ref", nargs="?", metavar="REF", help="the commit to keep; without it, the anchor is shown")
    parser.add_argument("--reason", metavar="TEXT", help="why it is this commit: a release, an accepted slowdown")
    _add_baseline(parser)
    parser.epilog = 'For example: rlperf anchor v1.2.0 --reason "the release"; then pytest --rlperf-against=anchor'


def _run_anchor(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.baseline.anchor import read_anchor, write_anchor
    from pytest_rlperf.baseline.store import BaselineError
    from pytest_rlperf.errors import SideError
    from pytest_rlperf.options import parse_name, parse_reason
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.wording import anchor_text
    from pytest_rlperf.sides.git import find_repository, git_user

    try:
        directory = Path(arguments.baseline_dir, parse_name(arguments.baseline))
        if arguments.ref is None:
            if arguments.reason is not None:
                raise UsageError("--reason is for a new anchor: rlperf anchor REF --reason TEXT")
            anchor = read_anchor(directory)
            if anchor is None:
                raise UsageError(f"there is no anchor in {directory}: rlperf anchor REF --reason TEXT sets one")
        elif arguments.reason is None:
            raise UsageError("a new anchor needs a reason, which its file keeps: --reason TEXT")
        else:
            commit = find_repository(Path()).resolve(arguments.ref)
            anchor = write_anchor(directory, commit.sha, parse_reason(arguments.reason), git_user(Path()))
    except (BaselineError, SideError, ValueError) as error:
        raise UsageError(str(error)) from None
    print_text(shown(f"the anchor of baseline {arguments.baseline!r} is {anchor_text(anchor)}") + "\n")
    return Exit.NOTHING_SLOWER


ANCHOR = Command(
    "anchor", "Show or set the commit that --rlperf-against=anchor compares with.", _add_anchor_arguments, _run_anchor
)
