"""``rlperf`` on the command line: writes first tests, reads files of runs, and starts the suite; it never measures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_rlperf.cli.command import Command, Exit, Parser
from pytest_rlperf.cli.init import INIT
from pytest_rlperf.cli.show import ANCHOR, HISTORY, MERGE, SHOW, TREE
from pytest_rlperf.errors import did_you_mean, see

_EPILOG = """\
files are written by pytest:
  pytest --rlperf --rlperf-json=run.json    a run: figures, verdicts, and what they rest on
  pytest --rlperf-save-baseline             a baseline, below baselines/

for example:
  rlperf show                               the latest run again; --html opens its page
  rlperf show tests/test_perf.py::test_gae  one test of it, with all that is known
  rlperf show run.json                      an older run, kept by --rlperf-json
  rlperf COMMAND -h                         what a command takes

exit codes: 0 nothing is slower, 1 something is SLOWER, 4 the command cannot be followed, 5 nothing was measured
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code, one of :class:`Exit`."""
    parser = make_parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if not given:
        parser.print_help(sys.stderr)
        return Exit.USAGE
    names = [command.name for command in COMMANDS]
    if not given[0].startswith("-") and given[0] not in names:
        known = f"there are: {', '.join(names)}{did_you_mean(given[0], names)}"
        parser.error(f"there is no command {given[0]!r}; {known}{see('reference.md#commands')}")
    arguments, others = parser.parse_known_args(given)
    if others and not arguments.command.passes_on:
        arguments.parser.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    code: int = arguments.command.run(arguments.parser, arguments)
    return code


def make_parser() -> Parser:
    """Return the parser of the command line, from which shells' completions are made."""
    parser = Parser(
        "rlperf",
        description="Writes first tests, shows the files of measured runs, and measures RL libraries.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name, help=command.help, description=command.help, allow_abbrev=not command.passes_on
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command, parser=subparser)
    return parser


def _add_suite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] [pytest's options]"
    parser.epilog = "For example: rlperf suite -k sac --rlperf-max-time=5"


def _run_suite(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Become pytest, on the suite."""
    command = [sys.executable, "-m", "pytest", "--rlperf", "--pyargs", "pytest_rlperf.suite", *arguments.others]
    os.execv(sys.executable, command)  # noqa: S606 - Python itself, and no shell


SUITE = Command(
    "suite",
    "Measure the components of every RL library that is installed; pytest's options can be given.",
    _add_suite_arguments,
    _run_suite,
    passes_on=True,
)

COMMANDS = (INIT, SHOW, MERGE, HISTORY, TREE, SUITE, ANCHOR)
