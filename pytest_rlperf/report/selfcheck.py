"""What a self-check says: each test's trials in a row, and whether the machine is fit for what is asked of it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.model import Fitness, Selfcheck, Status, Trial
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.wording import fitness_lines

_SHORT = {Status.UNDECIDED: "?", Status.INVALID: "INVALID"}


def render_selfcheck(checks: Sequence[Selfcheck], fitness: Fitness, *, machine: str, width: int, color: bool) -> str:
    """Return the whole report as text for a terminal ``width`` columns wide."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    )
    console.print(_table(checks))
    console.print(Text("rows: today's code against itself; +N %: with that much real work added to one side"))
    console.print(Text("each cell: the change seen, and ✓ where the verdict is right, ? where it is UNDECIDED"))
    console.print()
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True, min_width=8)
    lines.add_column(overflow="fold")
    lines.add_row("machine", Text(machine))
    lines.add_row("fit", Text("yes" if fitness.is_fit else "no", "green" if fitness.is_fit else "bold red"))
    for sentence in fitness_lines(checks, fitness):
        lines.add_row("", Text(sentence))
    console.print(lines)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _table(checks: Sequence[Selfcheck]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("test", overflow="fold")
    table.add_column("call", justify="right", no_wrap=True)
    for trial in checks[0].trials:
        table.add_column(f"+{100 * trial.slowdown:g} %" if trial.slowdown else "unchanged", justify="right")
    table.add_column("finds", justify="right")
    table.add_column("time", justify="right")
    for check in checks:
        smallest = check.smallest_found
        cells = [
            shown(check.result.name),
            units.seconds(check.result.call_s),
            *(_cell(trial) for trial in check.trials),
            "none" if smallest is None else f"+{100 * smallest:g} %",
            f"{sum(trial.seconds for trial in check.trials):.0f} s",
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _cell(trial: Trial) -> str:
    """Write a trial: the change seen, and what was made of it."""
    estimate, status = trial.verdict.estimate, trial.verdict.status
    seen = "" if estimate is None else f"{100 * (estimate.ratio - 1):+.1f} "
    return f"{seen}{'✓' if trial.is_found else _SHORT.get(status, status.value)}"
