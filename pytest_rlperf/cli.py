"""``rlperf`` on the command line: reads what was recorded, and starts the shipped suite; it never measures itself."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model import TimerTree
from pytest_rlperf.timers import formats

_TEXT = "text"
_UNREADABLE = 2  # as argparse has it for a command that cannot be followed


@dataclass(frozen=True)
class Command:
    """A subcommand: its name and help, the arguments it takes, and what it does with them.

    One that ``passes_on`` has the arguments that it does not know in ``others``.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.ArgumentParser, argparse.Namespace], int]
    passes_on: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0, or 2 where something cannot be read."""
    parser = argparse.ArgumentParser(
        "rlperf", description="Looks at recorded timings of RL components, and measures RL libraries."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name, help=command.help, description=command.help, allow_abbrev=not command.passes_on
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command, parser=subparser)
    arguments, others = parser.parse_known_args(argv)
    if others and not arguments.command.passes_on:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    try:
        code: int = arguments.command.run(arguments.parser, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has seen enough. Python flushes once more on its way out: that must not fail either.
        with suppress(io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


# --------------------------------------------------------------------------- rlperf tree


def _add_tree_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="a file of timings, of any format below, or - for standard input"
    )
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two files path by path")
    parser.add_argument("--tree", metavar="NAME", help="only trees of this name, where a file holds several")
    parser.add_argument(
        "--workers", action="store_true", help="also the trees that were merged into each, as they came"
    )
    parser.add_argument(
        "--format",
        choices=[_TEXT, *formats.FORMATS],
        default=_TEXT,
        help="what to write: a table (text, the default), or the trees in one of the formats that are read",
    )


def _run_tree(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.diff and (arguments.files or arguments.format != _TEXT):
        parser.error("--diff takes two files, and shows them as text: drop other files and --format")
    if not arguments.diff and not arguments.files:
        parser.error("name a file, or two after --diff")
    paths: list[str] = arguments.diff or arguments.files
    read: dict[int, list[TimerTree]] = {}
    for number, path in enumerate(paths):
        try:
            read[number] = _chosen(_read(path), path, arguments)
        except TimerFileError as error:
            _complain(error)
    complete = len(read) == len(paths)
    try:
        if arguments.diff:
            if complete:
                _print_diff(paths, read[0], read[1])
        elif arguments.format == _TEXT:
            _print_trees(paths, read)
        elif complete:  # a document that lacks something looks like one that has it all
            _print(formats.write([tree for trees in read.values() for tree in trees], arguments.format))
    except TimerFileError as error:
        _complain(error)
        return _UNREADABLE
    return 0 if complete else _UNREADABLE


def _read(path: str) -> list[TimerTree]:
    return formats.parse(sys.stdin.buffer.read(), "standard input") if path == "-" else formats.read(path)


def _chosen(trees: list[TimerTree], path: str, arguments: argparse.Namespace) -> list[TimerTree]:
    """Return the trees that the arguments ask for."""
    if arguments.workers:
        trees = _with_workers(trees)
    chosen = [tree for tree in trees if arguments.tree in {None, tree.name}]
    if not chosen:
        if not trees:
            raise TimerFileError(f"{path} holds no trees: record some timings first")
        names = ", ".join(repr(tree.name) for tree in trees)
        raise TimerFileError(f"{path} has no tree {arguments.tree!r}: choose one of {names}")
    return chosen


def _with_workers(trees: Sequence[TimerTree]) -> list[TimerTree]:
    found: list[TimerTree] = []
    for tree in trees:
        found += [tree, *_with_workers(tree.workers)]
    return found


def _print_trees(paths: Sequence[str], read: dict[int, list[TimerTree]]) -> None:
    from pytest_rlperf.report.tree import render_tree, shown

    width = _width()
    parts = []
    for number, trees in read.items():
        tables = [render_tree(tree, width=width) for tree in trees]
        heading = f"{shown(paths[number])}:\n" if len(paths) > 1 else ""
        parts.append(heading + "\n".join(tables))
    _print("\n".join(parts))


def _print_diff(paths: Sequence[str], one: list[TimerTree], other: list[TimerTree]) -> None:
    from pytest_rlperf.report.tree import render_diff, shown

    legend = "".join(f"{side}  {shown(path)}\n" for side, path in zip("AB", paths, strict=True))
    _print(f"{legend}\n{render_diff(one, other, width=_width())}")


# --------------------------------------------------------------------------- rlperf suite


def _add_suite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] [pytest's options]"
    parser.epilog = "For example: rlperf suite -k sac --rlperf-max-time=5"


def _run_suite(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Become pytest, on the suite."""
    command = [sys.executable, "-m", "pytest", "--rlperf", "--pyargs", "pytest_rlperf.suite", *arguments.others]
    os.execv(sys.executable, command)  # noqa: S606 - Python itself, and no shell


# --------------------------------------------------------------------------- what every command needs


def _width() -> int | None:
    """Return the terminal's columns, None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _complain(error: TimerFileError) -> None:
    from pytest_rlperf.report.tree import shown

    encoding = sys.stderr.encoding or "utf-8"
    text = f"rlperf: error: {shown(str(error))}\n"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))


COMMANDS = (
    Command("tree", "Show timer trees from files, compare two, or convert them.", _add_tree_arguments, _run_tree),
    Command(
        "suite",
        "Measure the components of every RL library that is installed; pytest's options can be given.",
        _add_suite_arguments,
        _run_suite,
        passes_on=True,
    ),
)

if __name__ == "__main__":
    sys.exit(main())
