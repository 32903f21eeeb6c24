"""``rlperf show``: a run or a baseline as pytest showed it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Command, add_choice, chosen, has_color, print_text, table_width
from pytest_rlperf.cli.files import DIRECTORY, exit_code, located, outcomes_of, read, results_of

if TYPE_CHECKING:
    from pytest_rlperf.report.reading import Recorded


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help=f"what --rlperf-json wrote, a baseline, {DIRECTORY}, or - for standard input"
    )
    add_choice(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every test's phases, and what its figures rest on"
    )


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.printable import shown

    path = located(arguments.file)
    recorded = read(path)
    keys = chosen(results_of(recorded), arguments.patterns)
    title = "" if path == arguments.file else f"{shown(path)}:\n\n"
    print_text(title + _rendered(recorded, keys, verbose=arguments.verbose))
    outcomes, results = outcomes_of(recorded), results_of(recorded)
    return exit_code([outcomes[key] for key in keys if key in outcomes], [results[key] for key in keys])


def _rendered(recorded: Recorded, keys: list[str], *, verbose: bool) -> str:
    from pytest_rlperf.baseline.machine import describe
    from pytest_rlperf.model import Baseline, Status
    from pytest_rlperf.report.accepting import SAVING, improved
    from pytest_rlperf.report.reading import RunFile
    from pytest_rlperf.report.recorded import render_baseline
    from pytest_rlperf.report.selfcheck import render_selfcheck
    from pytest_rlperf.report.summary import Summary
    from pytest_rlperf.report.terminal import render_summary

    width, color, machine = table_width(), has_color(), describe(recorded.machine)
    if isinstance(recorded, Baseline):
        table = render_baseline(recorded, keys, width=width, color=color, verbose=verbose)
        return f"{table}\nmachine   {machine}\n"
    if isinstance(recorded, RunFile):
        outcomes = [recorded.tests[key] for key in keys]
        faster = sum(outcome.verdict.status is Status.FASTER and outcome.baseline is not None for outcome in outcomes)
        commands = [f"{improved(faster)}:\n  {SAVING}"] if faster else []
        summary = Summary(machine, recorded.compared, recorded.notes, commands)
        return render_summary(outcomes, summary, width=width, color=color, verbose=verbose)
    checks = [recorded.tests[key] for key in keys]
    return render_selfcheck(checks, recorded.fitness, machine=machine, width=width, color=color)


COMMAND = Command("show", "Show a run or a baseline as pytest showed it.", _add_arguments, _run)
