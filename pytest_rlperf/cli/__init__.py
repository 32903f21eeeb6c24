"""``rlperf`` on the command line: reads what was recorded, and starts the shipped suite; it never measures itself."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from pytest_rlperf.cli.accept import COMMAND as ACCEPT
from pytest_rlperf.cli.command import Exit, Parser
from pytest_rlperf.cli.diff import COMMAND as DIFF
from pytest_rlperf.cli.machine import COMMAND as MACHINE
from pytest_rlperf.cli.show import COMMAND as SHOW
from pytest_rlperf.cli.suite import COMMAND as SUITE
from pytest_rlperf.cli.trees import COMMAND as TREE

COMMANDS = (SHOW, DIFF, ACCEPT, TREE, SUITE, MACHINE)
_EPILOG = """\
files are written by pytest:
  pytest --rlperf --rlperf-json=run.json    a run: figures, verdicts, and what they rest on
  pytest --rlperf-save-baseline             a baseline, below baselines/

for example:
  rlperf show run.json                      the table again, as pytest showed it
  rlperf diff baselines run.json
  rlperf COMMAND -h                         what a command takes

exit codes: 0 nothing is slower, 1 something is SLOWER, 4 the command cannot be followed, 5 nothing was measured
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code, one of :class:`Exit`."""
    parser = _parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if not given:
        parser.print_help(sys.stderr)
        return Exit.USAGE
    arguments, others = parser.parse_known_args(given)
    if others and not arguments.command.passes_on:
        arguments.parser.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    try:
        code: int = arguments.command.run(arguments.parser, arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has seen enough. Python flushes once more on its way out: that must not fail either.
        with suppress(io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NOTHING_SLOWER
    return code


def _parser() -> Parser:
    parser = Parser(
        "rlperf",
        description="Looks at what measured runs have recorded, and measures RL libraries.",
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
