"""``rlperf tree``: timer trees from files, shown and converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_rlperf.cli.command import Command, Exit, UsageError, content_of, print_text, source_of, width
from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import TimerTree

_TEXT = "text"
_FORMATS = ("json", "chrome")  # those that traces writes


def _add_tree_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of timer trees, or - for standard input")
    parser.add_argument(
        "--format",
        choices=[_TEXT, *_FORMATS],
        default=_TEXT,
        help="what to write: a table (text, the default), or the trees as this package's JSON, or as a Chrome trace "
        "for Perfetto and speedscope",
    )


def _run_tree(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf import traces

    try:
        read = [(path, _read(path)) for path in arguments.files]
    except TimerFileError as error:
        raise UsageError(str(error)) from None
    if arguments.format == _TEXT:
        _print_trees(read)
    else:
        print_text(traces.write([tree for _, trees in read for tree in trees], arguments.format))
    return Exit.NOTHING_SLOWER


def _read(path: str) -> list[TimerTree]:
    from pytest_rlperf import traces

    return traces.parse(content_of(path, traces.LARGEST_FILE, "keep a shorter part of the run"), source_of(path))


def _print_trees(read: Sequence[tuple[str, list[TimerTree]]]) -> None:
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.tree import render_tree

    columns = width()
    parts = []
    for path, trees in read:
        tables = [render_tree(tree, width=columns) for tree in trees]
        heading = f"{shown(path)}:\n" if len(read) > 1 else ""
        parts.append(heading + "\n".join(tables))
    print_text("\n".join(parts))


COMMAND = Command("tree", "Show timer trees from files, or convert them.", _add_tree_arguments, _run_tree)
