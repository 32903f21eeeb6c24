"""The parts that all subcommands of ``rlperf`` share: arguments, exit codes, terminal text, and files to read."""

from __future__ import annotations

import argparse
import enum
import fnmatch
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import msgspec

from pytest_rlperf.errors import did_you_mean, for_log, in_encoding
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.stored import Baseline

_PIPE_COLUMNS = 120  # without a terminal, tables are as wide as a log viewer shows


class Exit(enum.IntEnum):
    """The exit codes of ``rlperf``, with pytest's numbers."""

    NOTHING_SLOWER = 0
    SLOWER = 1
    USAGE = 4
    NOTHING_MEASURED = 5


class UsageError(Exception):
    """A command cannot be run; the text names the cause and what to type instead."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose usage errors end with pytest's exit code for them."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and end with exit code 4."""
        self.print_usage(sys.stderr)
        self.exit(int(Exit.USAGE), in_encoding(for_log(f"{self.prog}: error: {message}\n"), sys.stderr.encoding))


class Command(msgspec.Struct, frozen=True):
    """A subcommand: its name and help, the arguments it takes, and ``run``, which returns the exit code.

    A subcommand that ``passes_on`` gets unknown arguments in ``others``.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    passes_on: bool = False


def width() -> int | None:
    """Return the terminal's columns, None if the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_width() -> int:
    """Return how wide a table may be: as wide as the terminal, or else as a log."""
    return width() or _PIPE_COLUMNS


def has_color() -> bool:
    """Whether the output goes to a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def print_text(text: str) -> None:
    """Write text, made safe for logs, with what the encoding lacks written out; UsageError if that fails.

    A closed pipe is not an error: the command goes on to its own exit code.
    """
    try:
        sys.stdout.write(in_encoding(for_log(text, styled=has_color()), sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        raise UsageError(f"cannot write the output: {error.strerror or error}; send it to another place") from None


def discard_output() -> None:
    """Discard standard output from now on: Python flushes it again at exit, which must not fail either."""
    with suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: Exception) -> None:
    """Write an error on standard error, made safe for logs."""
    sys.stderr.write(in_encoding(for_log(f"rlperf: error: {error}\n"), sys.stderr.encoding))


def chosen(keys: Iterable[str], patterns: list[str] | None) -> list[str]:
    """Return the keys that match any of the patterns, in their order; UsageError if no key matches a pattern."""
    known = list(keys)
    if not patterns:
        return known
    for pattern in patterns:
        if not any(_matches(key, pattern) for key in known):
            names = [key.rpartition("::")[2].partition("[")[0] for key in known]
            near = did_you_mean(pattern, [*known, *names, *(name.removeprefix("test_") for name in names)])
            raise UsageError(f"{pattern}: no such test; available: {listed(known) or 'none'}{near}")
    return [key for key in known if any(_matches(key, pattern) for pattern in patterns)]


def listed(names: list[str]) -> str:
    """Return names in a sentence, at most ten of them."""
    return f"{', '.join(names[:10])}{f' and {len(names) - 10} more' if len(names) > 10 else ''}"


def _matches(key: str, pattern: str) -> bool:
    # For fnmatch, brackets are a pattern; an id's brackets stand for themselves.
    return pattern in key or fnmatch.fnmatchcase(key, pattern.replace("[", "[[]"))


if TYPE_CHECKING:
    from pytest_rlperf.report.run_json import RunFile, SelfcheckFile

    Recorded: TypeAlias = RunFile | SelfcheckFile | Baseline

LARGEST_BYTES = 64 * 1024 * 1024  # a run of 300 tests with 180 counts each has 3.4 MB
_WRITERS = "--rlperf-json writes runs, --rlperf-save-baseline writes baselines; `rlperf tree` shows files of timers"


def read(path: str) -> tuple[str, Recorded]:
    """Return a file's path and its content, fit to be shown; ``-`` is standard input.

    A directory stands for the only JSON file in it. UsageError if there is no readable file.
    """
    if os.path.isdir(path):  # noqa: PTH112 - unlike Path.is_dir, this does not raise for a long path
        files = sorted(map(str, Path(path).rglob("*.json")))
        if len(files) != 1:
            raise UsageError(f"{path} has {len(files)} JSON files; name one: {listed(files) or 'none'}")
        path = files[0]
    return path, parse(content_of(path), source_of(path))


def parse(data: bytes, source: str) -> Recorded:
    """Return the run, self-check or baseline in ``data``; UsageError, which names ``source``, if it has none."""
    from pytest_rlperf.baseline.schema import FormatError, NewerFormatError, decode
    from pytest_rlperf.report.run_json import NewerError, ReadingError, decoded, fit_to_show, read_document

    try:
        document = decoded(data)
        known = document if isinstance(document, dict) else {}
        if "kind" not in known and {"schema", "machine", "results"} <= known.keys():
            return decode(json.dumps(fit_to_show(document)).encode())
        return read_document(document)
    except (NewerError, NewerFormatError) as error:
        raise UsageError(f"{source} {error}") from None
    except (ReadingError, FormatError, RecursionError) as error:
        raise UsageError(f"{source} is not a valid run or baseline file: {error}; {_WRITERS}") from None


def content_of(path: str) -> bytes:
    """Return the content of a file, or of standard input for ``-``; UsageError if it cannot be read.

    A file with over LARGEST_BYTES, such as /dev/zero, is refused.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read(LARGEST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}; give the path of a file that can be read") from None
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{source_of(path)} is larger than {LARGEST_BYTES} bytes, the most that can be read")
    return data


def source_of(path: str) -> str:
    """Return the name of the file in messages."""
    return "standard input" if path == "-" else path


def outcomes_of(recorded: Recorded) -> dict[str, Outcome]:
    """Return the outcomes by test; none if nothing was compared."""
    from pytest_rlperf.report.run_json import RunFile

    return recorded.tests if isinstance(recorded, RunFile) else {}


def results_of(recorded: Recorded) -> dict[str, Result]:
    """Return the results by test."""
    if isinstance(recorded, Baseline):
        return {key: stored.result for key, stored in recorded.results.items()}
    return {key: test.result for key, test in recorded.tests.items()}


def exit_code(outcomes: list[Outcome], results: list[Result]) -> Exit:
    """Return a command's exit code, by the failing verdicts and the measured figures that it has shown."""
    if any(outcome.verdict.fails(strict=False) for outcome in outcomes):
        return Exit.SLOWER
    return Exit.NOTHING_SLOWER if outcomes or any(result.measured for result in results) else Exit.NOTHING_MEASURED
