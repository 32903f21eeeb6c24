"""``rlperf anchor``: the commit that a baseline's tests are compared with for as long as it is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_rlperf.cli.command import Command, Exit, UsageError, print_text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ref", nargs="?", metavar="REF", help="the commit to keep; without it, the anchor is shown")
    parser.add_argument("--reason", metavar="TEXT", help="why it is this commit: a release, an accepted slowdown")
    parser.add_argument("--baseline", default="default", metavar="NAME", help="the baseline (default: 'default')")
    parser.add_argument(
        "--baseline-dir", default="baselines", metavar="DIR", help="the directory of the baselines (default: baselines)"
    )
    parser.epilog = 'For example: rlperf anchor v1.2.0 --reason "the release"; then pytest --rlperf-against=anchor'


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
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


ANCHOR = Command("anchor", "Show or set the commit that --rlperf-against=anchor compares with.", _add_arguments, _run)
