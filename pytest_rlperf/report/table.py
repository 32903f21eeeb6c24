"""Tables of columns and cells, the looks of statuses, and both as text: widths, folding and colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from pytest_rlperf.errors import shown
from pytest_rlperf.model.judged import Status

_GAP = 2
_NARROWEST = 16  # of a column that folds
_INDENT = 2
_ELLIPSIS = 3  # columns, in ASCII
_PART = re.compile(r"[^\W_]+[\W_]*|[\W_]+")  # of a name, with the signs behind it


class Column(msgspec.Struct, frozen=True):
    """A column: its title, and its rank if room is short.

    If room is short, columns of the highest ``priority`` number are left out first, those of 0 never. The one column
    that ``folds`` gives way to the others: wider text breaks between words, or within them. ``usual`` is the least
    width of a column if there is room.
    """

    title: str
    align: Literal["left", "right"] = "right"
    priority: int = 0
    folds: bool = False
    usual: int = 0


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, and how a writer may show it.

    ``kind`` is a status's value or ``"strong"``. ``depth`` is how far a row's name is indented. ``order`` is the figure
    that rows are sorted by. ``bar`` is a share to draw beside the text.
    """

    text: str
    kind: str = ""
    depth: int = 0
    order: float | None = None
    bar: float | None = None


class Table(msgspec.Struct, frozen=True):
    """Rows of as many cells as there are columns; ``title`` stands above them if a writer shows one."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str

    def only(self, titles: Iterable[str]) -> Table:
        """Return the table with only the columns of some titles, in that order."""
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
    """A status as a sign beside its name, as GitHub's emoji, and as rich's style."""

    sign: str
    emoji: str
    style: str


# In the order in which verdicts are listed: first those that need a reader's attention.
LOOKS = {
    Status.ERROR: Look("✗", "❌", "bold red"),
    Status.SLOWER: Look("▲", "❌", "bold red"),
    Status.INVALID: Look("!", "⚠️", "bold red"),
    Status.UNDECIDED: Look("?", "⚠️", "yellow"),
    Status.INCOMPARABLE: Look("≠", "⚠️", "yellow"),
    Status.NEW: Look("+", "🆕", "cyan"),
    Status.FASTER: Look("▼", "✅", "bold green"),
    Status.SAME: Look("=", "✅", "green"),
}
GRAVEST_FIRST = tuple(LOOKS)
EMOJI = {status.value: look.emoji for status, look in LOOKS.items()}
STYLES = {status.value: look.style for status, look in LOOKS.items()} | {"strong": "bold"}


# --------------------------------------------------------------------------- text for terminals and log files


def rendered(write: Callable[[Console], None], *, width: int, color: bool) -> str:
    """Return what ``write`` prints, for a terminal of ``width`` columns; no line ends in blanks."""
    buffer = io.StringIO()
    write(
        Console(
            file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
        )
    )
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def print_table(console: Console, table: Table, *, ruled: bool = True, titled: bool = True) -> None:
    """Print a table as wide as the console; see :func:`table_lines`."""
    for line in table_lines(table, console.width, ruled=ruled, titled=titled):
        console.print(line, soft_wrap=True)


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print terms, each with a text beside it; lines of the text are kept, and folded if they are too long."""
    rows = [(term if not number else "", line) for term, text in facts for number, line in enumerate(text.split("\n"))]
    columns = (Column("", "left", usual=8), Column("", "left", folds=True))
    print_table(console, make_table(columns, rows), titled=False)


def table_text(table: Table, width: int | None, *, ruled: bool = True, titled: bool = True) -> list[str]:
    """Return :func:`table_lines` as plain text without blanks at the ends of lines."""
    return [line.plain.rstrip() for line in table_lines(table, width, ruled=ruled, titled=titled)]


def table_lines(table: Table, width: int | None, *, ruled: bool = True, titled: bool = True) -> list[Text]:
    """Return a table's lines in at most ``width`` columns; None means as many as needed.

    Columns that have no room are left out. If those that always stay need more room, lines are longer than ``width``:
    figures are never cut. A ``ruled`` table has a line below its titles; one that is not ``titled`` has no titles.
    """
    table, widths = _laid_out(table, width, titled=titled)
    lines = [line for row in table.rows for line in _row_lines(row, table.columns, widths)]
    if not titled:
        return lines
    rule = [Text("─" * (sum(widths) + _GAP * (len(widths) - 1)))] if ruled else []
    return [*_row_lines([Cell(column.title) for column in table.columns], table.columns, widths), *rule, *lines]


def _laid_out(table: Table, width: int | None, *, titled: bool) -> tuple[Table, list[int]]:
    """Return a table with the columns that ``width`` has room for, and their widths."""
    while True:
        titles = [column.title if titled else "" for column in table.columns]
        texts = [[title, *(_whole(row[place]) for row in table.rows)] for place, title in enumerate(titles)]
        widths = [max(column.usual, *map(cell_len, each)) for column, each in zip(table.columns, texts, strict=True)]
        over = 0 if width is None else max(0, sum(widths) + _GAP * (len(widths) - 1) - width)
        folding = next((place for place, column in enumerate(table.columns) if column.folds), None)
        spare = 0 if folding is None else max(0, widths[folding] - _NARROWEST)
        priority = max(column.priority for column in table.columns)
        if over <= spare or not priority:
            break
        table = table.only(column.title for column in table.columns if column.priority < priority)
    if folding is not None:
        widths[folding] -= min(over, spare)
    return table, widths


def _row_lines(cells: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int]) -> Iterator[Text]:
    """Yield the lines of one row: several if a text is folded."""
    texts = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*texts, fillvalue=""):
        line: list[tuple[str, str]] = []
        for cell, column, width, part in zip(cells, columns, widths, parts, strict=True):
            blanks = " " * (width - cell_len(part))
            before, after = (blanks, "") if column.align == "right" else ("", blanks)
            line += [(" " * _GAP if line else "", ""), (before, ""), (part, STYLES.get(cell.kind, "")), (after, "")]
        yield Text.assemble(*line)


def _whole(cell: Cell) -> str:
    return " " * _INDENT * cell.depth + (shown(cell.text) if cell.text else "")


def _folded(cell: Cell, width: int) -> list[str]:
    """Return a cell's text in lines of ``width``."""
    if cell_len(_whole(cell)) <= width:
        return [_whole(cell)]
    indent = min(_INDENT * cell.depth, width // 2)
    return [" " * indent + line for line in folded(shown(cell.text), width - indent)]


def folded(text: str, width: int) -> list[str]:
    """Break a line of text into lines of ``width`` between words; a wider name breaks between its parts.

    Text to be copied, an address or text in backticks, stays whole, and may make a line longer.
    """
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in _words(text):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width or "://" in word:
            lines[-1] = joined
        else:
            start = [lines[-1]] if lines[-1] else []
            lines[-1:] = [*start, *([word] if "`" in word else _parts(word, width))]
    return lines


def shortened(text: str, width: int) -> str:
    """Cut a line of text to at most ``width`` columns, between words or parts of names, with an ellipsis."""
    if cell_len(text) <= width:
        return text
    kept = ""
    for part in _PART.findall(text):
        if cell_len(kept + part) > width - _ELLIPSIS:
            break
        kept += part
    return f"{(kept or chop_cells(text, max(1, width - _ELLIPSIS))[0]).rstrip()}…"


def _words(text: str) -> list[str]:
    """Split a text at its blanks, except those in backticks."""
    words = [""]
    for number, part in enumerate(text.split("`")):
        first, *others = [part] if number % 2 else part.split(" ")
        words[-1] += f"`{first}" if number else first
        words += others
    return words


def _parts(word: str, width: int) -> list[str]:
    """Break a word that is wider than a line: after signs that divide names, and within parts that are too wide."""
    lines = [""]
    for part in _PART.findall(word):
        if cell_len(lines[-1] + part) <= width:
            lines[-1] += part
        elif cell_len(part) <= width:
            lines.append(part)
        else:
            lines[-1:] = chop_cells(lines[-1] + part, width)
    return [line for line in lines if line]
