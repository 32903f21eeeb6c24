"""The table of the summary: the columns that there is room for, and none of their figures cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.fitting import fitting
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.rows import SINCE_FIRST, Column, columns, test_name

STATUS_STYLES = {
    Status.SAME: "green",
    Status.FASTER: "bold green",
    Status.SLOWER: "bold red",
    Status.INVALID: "bold red",
    Status.UNDECIDED: "yellow",
    Status.INCOMPARABLE: "yellow",
    Status.NEW: "cyan",
}
_GAP = 2
_NAME_TO_KEEP = 16  # columns of figures go before there is less room for a longer name
_MOST_TOLD = 3


@dataclass(frozen=True)
class _Part:
    """A column with its cells, as they are printed; all of them in ``most`` columns of a terminal."""

    column: Column
    cells: list[str]

    @property
    def rank(self) -> int:
        return self.column.rank

    @property
    def most(self) -> int:
        return max(map(cell_len, (self.column.title, *self.cells)))

    @property
    def least(self) -> int:
        """The fewest columns: names fold, a verdict as "SLOWER (accepted)" goes on below, a figure does neither."""
        if self.column.title == "test":
            return min(self.most, _NAME_TO_KEEP)
        if self.column.title == "verdict":
            return max(cell_len(word) for text in (self.column.title, *self.cells) for word in text.split())
        return self.most

    @property
    def width(self) -> int:
        return self.least + _GAP


def print_table(console: Console, outcomes: Sequence[Outcome], *, verbose: bool) -> None:
    """Print a line a test; columns that have no room are left out.

    The changes since the first figures are told below where their column is left out; ``verbose`` details have them.
    """
    width = console.width
    titled = [_Part(column, [_cell(column.text(outcome)) for outcome in outcomes]) for column in columns(outcomes)]
    parts = fitting(titled, width + _GAP)
    # Rather than cut a figure, lines are longer than a terminal that is too narrow for what always stays.
    console.width = max(width, sum(part.width for part in parts) - _GAP)
    console.print(_table(outcomes, parts, console.width))
    console.width = width
    if not verbose and SINCE_FIRST in {part.column.title for part in titled if part not in parts}:
        console.print(Text(_since_first(outcomes)))


def _cell(text: str) -> str:
    return shown(text) if text else ""  # nothing at all is shown as quotes elsewhere


def _table(outcomes: Sequence[Outcome], parts: Sequence[_Part], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for part, columns_wide in zip(parts, _widths(parts, width), strict=True):
        justify: Literal["left", "right"] = "left" if part.column.justify == "left" else "right"
        table.add_column(part.column.title, justify=justify, overflow="fold", width=columns_wide)
    for place, outcome in enumerate(outcomes):
        cells = [Text(part.cells[place]) for part in parts]
        cells[-1].stylize(STATUS_STYLES[outcome.verdict.status])
        table.add_row(*cells)
    return table


def _widths(parts: Sequence[_Part], width: int) -> list[int]:
    """Share out what is over: to the verdict if that makes it one line, and the rest to the name."""
    widths = [part.least for part in parts]
    over = width + _GAP - sum(part.width for part in parts)
    name, verdict = parts[0], parts[-1]
    if over >= verdict.most - verdict.least:
        widths[-1] = verdict.most
        over -= verdict.most - verdict.least
    widths[0] += min(over, name.most - name.least)
    return widths


def _since_first(outcomes: Sequence[Outcome]) -> str:
    """Say how tests have changed since their first figures, those that have grown the most."""
    known = [(outcome.creep.ratio, shown(test_name(outcome))) for outcome in outcomes if outcome.creep is not None]
    grown = sorted(known, key=lambda change: -change[0])
    told = [f"{name} {units.change(ratio)}" for ratio, name in grown[:_MOST_TOLD]]
    more = [f"{len(grown) - _MOST_TOLD} more with -v"] if len(grown) > _MOST_TOLD else []
    return f"{SINCE_FIRST}: {', '.join([*told, *more])}"
