"""``rlperf tree``: timer trees from files, shown and converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_rlperf.cli.command import Command, Exit, UsageError, complain, content_of, print_text, source_of, width
from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import TimerTree

_TEXT = "text"
_FORMATS = ("json", "chrome")  # those that traces writes


def _add_tree_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file of timer trees, or - for standard input")
    parser.add_argument("--tree", metavar="NAME", help="only trees of this name, where a file holds several")
    parser.add_argument(
        "--format",
        choices=[_TEXT, *_FORMATS],
        default=_TEXT,
        help="what to write: a table (text, the default), or the trees as this package's JSON, or as a Chrome trace "
        "for Perfetto and speedscope",
    )


def _run_tree(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    paths: list[str] = arguments.files
    read: dict[int, list[TimerTree]] = {}
    for number, path in enumerate(paths):
        try:
            read[number] = _chosen(_read(path), path, arguments)
        except (TimerFileError, UsageError) as error:
            complain(error)
    complete = len(read) == len(paths)
    if arguments.format == _TEXT:
        _print_trees(paths, read)
    elif complete:  # a document that lacks something looks like one that has it all
        from pytest_rlperf import traces

        print_text(traces.write([tree for trees in read.values() for tree in trees], arguments.format))
    return Exit.NOTHING_SLOWER if complete else Exit.USAGE


def _read(path: str) -> list[TimerTree]:
    from pytest_rlperf import traces

    return traces.parse(content_of(path, traces.LARGEST_FILE, "keep a shorter part of the run"), source_of(path))


def _chosen(trees: list[TimerTree], path: str, arguments: argparse.Namespace) -> list[TimerTree]:
    """Return the trees that the arguments ask for."""
    chosen = [tree for tree in trees if arguments.tree in {None, tree.name}]
    if not chosen:
        if not trees:
            raise TimerFileError(f"{path} holds no trees: record some timings first")
        names = ", ".join(repr(tree.name) for tree in trees)
        raise TimerFileError(f"{path} has no tree {arguments.tree!r}: choose one of {names}")
    return chosen


def _print_trees(paths: Sequence[str], read: dict[int, list[TimerTree]]) -> None:
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.tree import render_tree

    columns = width()
    parts = []
    for number, trees in read.items():
        tables = [render_tree(tree, width=columns) for tree in trees]
        heading = f"{shown(paths[number])}:\n" if len(paths) > 1 else ""
        parts.append(heading + "\n".join(tables))
    print_text("\n".join(parts))


COMMAND = Command("tree", "Show timer trees from files, or convert them.", _add_tree_arguments, _run_tree)
