"""The parts of every subcommand of ``rlperf``: arguments, exit codes, and text that does a terminal no harm."""

from __future__ import annotations

import argparse
import enum
import fnmatch
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

_PIPE_COLUMNS = 120  # where there is no terminal to ask, tables are as wide as a log viewer shows


class Exit(enum.IntEnum):
    """The exit codes of ``rlperf``, with pytest's numbers."""

    NOTHING_SLOWER = 0
    SLOWER = 1
    USAGE = 4
    NOTHING_MEASURED = 5


class UsageError(Exception):
    """A command cannot be run; the text names the cause and what to type instead."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors end with pytest's number for them."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and end with exit code 4."""
        self.print_usage(sys.stderr)
        self.exit(int(Exit.USAGE), f"{self.prog}: error: {message}\n")


@dataclass(frozen=True)
class Command:
    """A subcommand: its name and help, the arguments it takes, and what it does with them: ``act`` gives the exit code.

    One that ``passes_on`` has the arguments that it does not know in ``others``.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.ArgumentParser, argparse.Namespace], int]
    passes_on: bool = False

    def run(self, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code; print the error where it cannot be run."""
        try:
            return self.act(parser, arguments)
        except UsageError as error:
            complain(error)
            return Exit.USAGE


def width() -> int | None:
    """Return the terminal's columns, None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_width() -> int:
    """Return how wide a table may be: as wide as the terminal, or as a log where there is none."""
    return width() or _PIPE_COLUMNS


def has_color() -> bool:
    """Whether the output goes to a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_text(text: str) -> None:
    """Write text, with what the encoding lacks written out; UsageError where it cannot be written.

    A closed pipe is no error: the command goes on to its own exit code.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        raise UsageError(f"cannot write the output: {error.strerror or error}; send it to another place") from None


def discard_output() -> None:
    """Have standard output lead nowhere: Python flushes it once more on its way out, and that must not fail either."""
    with suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: Exception) -> None:
    """Write an error on standard error, with what is not printable written out."""
    from pytest_rlperf.report.printable import shown

    encoding = sys.stderr.encoding or "utf-8"
    text = f"rlperf: error: {shown(str(error))}\n"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))


CHOICE = "only tests whose id holds this text, or matches it where it has * or ?"


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Give a command the argument that chooses tests."""
    parser.add_argument(
        "-k",
        dest="patterns",
        action="append",
        metavar="TEST",
        help=f"{CHOICE}; may be given several times",
    )


def chosen(keys: Iterable[str], patterns: list[str] | None) -> list[str]:
    """Return the keys that match any of the patterns, in their order; UsageError where none matches a pattern."""
    known = list(keys)
    if not patterns:
        return known
    for pattern in patterns:
        if not any(_matches(key, pattern) for key in known):
            raise UsageError(f"-k {pattern}: no such test; there is: {listed(known) or 'none'}")
    return [key for key in known if any(_matches(key, pattern) for pattern in patterns)]


def listed(names: list[str]) -> str:
    """Return names in a sentence, ten of them at most."""
    return f"{', '.join(names[:10])}{f' and {len(names) - 10} more' if len(names) > 10 else ''}"


def _matches(key: str, pattern: str) -> bool:
    # To fnmatch brackets are a pattern; an id's brackets are itself.
    return pattern in key or fnmatch.fnmatchcase(key, pattern.replace("[", "[[]"))
