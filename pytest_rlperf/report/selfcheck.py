"""Writes a self-check for the terminal: each test's trials in a row, and whether the machine is fit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.model.judged import Status
from pytest_rlperf.model.selfcheck import Fitness, Selfcheck, Trial
from pytest_rlperf.report.table import Cell, Column, Table, make_table
from pytest_rlperf.report.text import print_facts, print_table, rendered
from pytest_rlperf.report.wording import fitness_lines

_SHORT = {Status.UNDECIDED: "?", Status.INVALID: "INVALID"}


def render_selfcheck(checks: Sequence[Selfcheck], fitness: Fitness, *, machine: str, width: int, color: bool) -> str:
    """Return the whole report as text for a terminal ``width`` columns wide."""
    fit = Cell("yes", Status.SAME.value) if fitness.is_fit else Cell("no", Status.SLOWER.value)

    def write(console: Console) -> None:
        print_table(console, _table(checks), ruled=False)
        console.print(Text("rows: today's code against itself; +N %: with that much real work added to one side"))
        console.print(Text("each cell: the change seen, and ✓ where the verdict is right, ? where it is UNDECIDED"))
        console.print()
        reasons = [("", sentence) for sentence in fitness_lines(checks, fitness)]
        print_facts(console, [("machine", machine), ("fit", fit), *reasons])

    return rendered(write, width=width, color=color)


def _table(checks: Sequence[Selfcheck]) -> Table:
    slowdowns = [trial.slowdown for trial in checks[0].trials]
    columns = (
        Column("test", "left", folds=True),
        Column("call"),
        *(Column(f"+{100 * each:g} %" if each else "unchanged") for each in slowdowns),
        Column("finds"),
        Column("time"),
    )
    return make_table(columns, [_row(check) for check in checks])


def _row(check: Selfcheck) -> list[str]:
    smallest = check.smallest_found
    return [
        check.result.name,
        units.seconds(check.result.call_s),
        *map(_trial, check.trials),
        "none" if smallest is None else f"+{100 * smallest:g} %",
        f"{sum(trial.seconds for trial in check.trials):.0f} s",
    ]


def _trial(trial: Trial) -> str:
    """Write a trial: the change seen, and whether the verdict is right."""
    estimate, status = trial.verdict.estimate, trial.verdict.status
    seen = "" if estimate is None else f"{100 * (estimate.ratio - 1):+.1f} "
    return f"{seen}{'✓' if trial.is_found else _SHORT.get(status, status.value)}"
