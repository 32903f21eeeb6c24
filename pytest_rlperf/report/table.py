"""One table: columns with titles and rows of cells, and the looks of statuses. Writers lay it out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pytest_rlperf.model.judged import Status


@dataclass(frozen=True)
class Column:
    """A column: its title, and its place where room is short.

    Of columns that have no room, those of the highest ``priority`` number are left out first, those of 0 never.
    The one column that ``folds`` gives way to the others: text that is wider than it breaks between words, or within
    them. ``usual`` is the least width of a column where there is room.
    """

    title: str
    align: Literal["left", "right"] = "right"
    priority: int = 0
    folds: bool = False
    usual: int = 0


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and how a writer may show it.

    ``kind`` is a status's value or ``"strong"``, ``depth`` is how far a row's name is indented, ``order`` is the figure
    that rows are sorted by, ``bar`` a share to draw beside the text.
    """

    text: str
    kind: str = ""
    depth: int = 0
    order: float | None = None
    bar: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows of as many cells as there are columns; ``title`` stands above them where a writer shows one."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str

    def only(self, titles: Iterable[str]) -> Table:
        """Return the table with the columns of some titles alone, in that order."""
        places = {column.title: place for place, column in enumerate(self.columns)}
        kept = [places[title] for title in titles]
        return replace(
            self,
            columns=[self.columns[place] for place in kept],
            rows=[[row[place] for place in kept] for row in self.rows],
        )

    def leading(self, *titles: str) -> Table:
        """Return the table with the columns of some titles first, as far as it has them."""
        known = [column.title for column in self.columns]
        return self.only(sorted(known, key=lambda title: (*titles, *known).index(title)))

    def without_empty(self) -> Table:
        """Return the table without the columns that have no text in any row; the first column stays."""
        filled = {place for row in self.rows for place, cell in enumerate(row) if cell.text}
        return self.only(column.title for place, column in enumerate(self.columns) if not place or place in filled)


def make_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell | str]], title: str = "") -> Table:
    """Return a table of texts and cells."""
    whole = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    return Table(columns, whole, title)


# --------------------------------------------------------------------------- statuses


class Look(NamedTuple):
    """A status as a word within a sentence, as a sign beside its name, as GitHub's emoji, and as rich's style."""

    word: str
    sign: str
    emoji: str
    style: str


# In the order in which verdicts are listed: those that want a reader's attention first.
LOOKS = {
    Status.ERROR: Look("in error", "✗", "❌", "bold red"),
    Status.SLOWER: Look("slower", "▲", "❌", "bold red"),
    Status.INVALID: Look("invalid", "!", "⚠️", "bold red"),
    Status.UNDECIDED: Look("undecided", "?", "⚠️", "yellow"),
    Status.INCOMPARABLE: Look("incomparable", "≠", "⚠️", "yellow"),
    Status.NEW: Look("new", "+", "🆕", "cyan"),
    Status.FASTER: Look("faster", "▼", "✅", "bold green"),
    Status.SAME: Look("the same", "=", "✅", "green"),
}
GRAVEST_FIRST = tuple(LOOKS)
EMOJI = {status.value: look.emoji for status, look in LOOKS.items()}
STYLES = {status.value: look.style for status, look in LOOKS.items()}
