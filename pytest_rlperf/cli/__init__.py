"""``rlperf`` on the command line: it writes first tests, reads run files, and starts pytest to measure."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from pytest_rlperf.cli.command import Command, Exit, Parser, UsageError, complain
from pytest_rlperf.cli.init import INIT
from pytest_rlperf.cli.show import HISTORY, MERGE, SHOW, TREE
from pytest_rlperf.errors import did_you_mean, see

_EPILOG = """\
files are written by pytest:
  pytest --rlperf --rlperf-json=run.json    a run: figures, verdicts, and what they rest on
  pytest --rlperf-save-baseline             a baseline, below baselines/

for example:
  rlperf show                               the latest run again
  rlperf show tests/test_perf.py::test_gae  one test of it, with all that is known
  rlperf show --html report.html run.json   a page of an older run, kept by --rlperf-json
  rlperf COMMAND -h                         what a command takes

exit codes: 0 nothing is slower, 1 something is SLOWER, 4 a usage error, 5 nothing was measured
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
        from pytest_rlperf.options import renamed

        known = f"the commands are: {', '.join(names)}{did_you_mean(given[0], names)}"
        text = renamed(f"rlperf {given[0]}") or f"there is no command {given[0]!r}; {known}"
        parser.error(f"{text}{see('reference.md#commands')}")
    arguments, others = parser.parse_known_args(given)
    if (words := getattr(arguments, "what", None)) is not None:  # argparse takes no words that come after an option
        words += [each for each in others if not each.startswith("-")]
        others = [each for each in others if each.startswith("-")]
    if others and not arguments.command.passes_on:
        arguments.parser.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    try:
        code: int = arguments.command.run(arguments)
    except UsageError as error:
        complain(error)
        return Exit.USAGE
    return code


def make_parser() -> Parser:
    """Return the parser of the command line, from which shell completions are made."""
    parser = Parser(
        "rlperf",
        description="Write first tests, show measured runs, find the commit that made a test slower.",
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


def _becomes_pytest(name: str, help: str, example: str, start: Callable[[str], list[str]], takes: str = "") -> Command:
    """Return a command that becomes pytest, with options that ``start`` makes from the argument that it ``takes``."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.usage = " ".join(filter(None, ("%(prog)s [-h]", takes, "[pytest's options]")))
        parser.epilog = f"For example: {example}"
        if takes:
            parser.add_argument(
                "argument", metavar=takes, help="the range to search, up to HEAD or the installed release"
            )

    def run(arguments: argparse.Namespace) -> int:
        options = start(arguments.argument if takes else "")
        command = [sys.executable, "-m", "pytest", *options, *arguments.others]
        os.execv(sys.executable, command)  # noqa: S606 - Python itself, without a shell

    return Command(name, help, add_arguments, run, passes_on=True)


SUITE = _becomes_pytest(
    "suite",
    "Measure the components of every RL library that is installed.",
    "rlperf suite -k sac --rlperf-max-time=5",
    lambda _: ["--rlperf", "--pyargs", "pytest_rlperf.suite"],
)
BISECT = _becomes_pytest(
    "bisect",
    "Find the first slower commit, or release of a dependency (pip:NAME==GOOD..BAD); end with 0 if found, 1 if not.",
    "rlperf bisect v1.2.0..v1.3.0 tests/test_perf.py::test_gae",
    lambda between: [f"--rlperf:bisect={between}"],
    takes="GOOD[..BAD]",
)
CHECK_MACHINE = _becomes_pytest(
    "check-machine",
    "Show the smallest slowdown that this machine finds in your tests.",
    "rlperf check-machine -k gae",
    lambda _: ["--rlperf:check-machine"],
)

COMMANDS = (INIT, SHOW, BISECT, CHECK_MACHINE, MERGE, HISTORY, TREE, SUITE)
