"""Writes text and tables for terminals and log files: widths, folding and colours."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console
from rich.text import Text

from pytest_rlperf.report.printable import harmless, shown
from pytest_rlperf.report.statuses import STYLES
from pytest_rlperf.report.table import Cell, Column, Table, make_table

_GAP = 2
_NARROWEST = 16  # columns of a terminal, of a table's column that gives way
_INDENT = 2
_STYLES = {**STYLES, "strong": "bold"}

_Line: TypeAlias = list[tuple[str, str]]  # texts with their styles


def rendered(write: Callable[[Console], None], *, width: int, color: bool) -> str:
    """Return what ``write`` prints, for a terminal of ``width`` columns; no line ends in blanks."""
    buffer = io.StringIO()
    write(
        Console(
            file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
        )
    )
    return "".join(f"{harmless(line.rstrip())}\n" for line in buffer.getvalue().splitlines())


def print_table(console: Console, table: Table, *, ruled: bool = True, titled: bool = True, gap: int = _GAP) -> None:
    """Print a table as wide as the console; see :func:`table_lines`."""
    for line in table_lines(table, console.width, ruled=ruled, titled=titled, gap=gap):
        console.print(line, soft_wrap=True)


def print_facts(console: Console, facts: Iterable[tuple[str, Cell | str]]) -> None:
    """Print terms, each with a text beside it, whose lines are kept and folded where they are too long."""
    rows = []
    for term, fact in facts:
        cell = fact if isinstance(fact, Cell) else Cell(fact)
        for number, line in enumerate(cell.text.split("\n")):
            rows.append((term if not number else "", replace(cell, text=line)))
    columns = (Column("term", "", "left", usual=8), Column("text", "", "left", overflow="fold"))
    print_table(console, make_table(columns, rows), titled=False)


def table_text(table: Table, width: int | None, *, ruled: bool = True, titled: bool = True) -> list[str]:
    """Return :func:`table_lines` as plain text without blanks at the ends of lines."""
    lines = _lines(table, width, ruled=ruled, titled=titled, gap=_GAP)
    return [harmless("".join(text for text, _ in line).rstrip()) for line in lines]


def table_lines(
    table: Table, width: int | None, *, ruled: bool = True, titled: bool = True, gap: int = _GAP
) -> list[Text]:
    """Return a table's lines in at most ``width`` columns, None for as many as it takes.

    Columns that have no room are left out. Where those that always stay need more, lines are longer than ``width``:
    no figure is cut. A ``ruled`` table has a line below its titles, one that is not ``titled`` has none. Columns are
    ``gap`` apart.
    """
    return [Text.assemble(*line) for line in _lines(table, width, ruled=ruled, titled=titled, gap=gap)]


def _lines(table: Table, width: int | None, *, ruled: bool, titled: bool, gap: int) -> Iterator[_Line]:
    parts = _laid_out([_Part.of(table, place, titled) for place in range(len(table.columns))], width, gap)
    if titled:
        yield from _row_lines([Cell(part.column.title) for part in parts], parts, gap)
        if ruled:
            yield [("─" * (sum(part.width + gap for part in parts) - gap), "")]
    for number in range(len(table.rows)):
        yield from _row_lines([part.cells[number] for part in parts], parts, gap)


@dataclass
class _Part:
    """A column with its cells; ``most`` is what its widest text takes, ``width`` what it is given."""

    column: Column
    cells: Sequence[Cell]
    most: int
    least: int
    room: int
    width: int = 0

    @classmethod
    def of(cls, table: Table, place: int, titled: bool) -> _Part:
        """Return one of a table's columns, measured."""
        column, cells = table.columns[place], [row[place] for row in table.rows]
        texts = [column.title] if titled else []
        texts += [f"{' ' * _INDENT * cell.depth}{shown(cell.text) if cell.text else ''}" for cell in cells]
        most = max((cell_len(text) for text in texts), default=0)
        least = room = max(most, column.usual)
        if column.overflow == "words":
            least = room = max((cell_len(word) for text in texts for word in text.split()), default=0)
        elif column.overflow != "whole":
            least, room = min(most, _NARROWEST), min(most, column.room)
        return cls(column, cells, max(most, column.usual), least, room)


def _laid_out(parts: list[_Part], width: int | None, gap: int = _GAP) -> list[_Part]:
    """Return the columns that ``width`` has room for, each with its width."""
    if width is not None:
        while sum(max(part.room, part.least) + gap for part in parts) - gap > width:
            priority = max(part.column.priority for part in parts)
            if not priority:
                break
            parts = [part for part in parts if part.column.priority < priority]
    over = None if width is None else width + gap - sum(part.least + gap for part in parts)
    # Spare width goes to columns from the last: to words if it makes them one line, and the rest to the name.
    for part in reversed(parts):
        part.width = part.most
        if over is not None:
            wanted = part.most - part.least
            given = min(max(0, over), wanted)
            if part.column.overflow == "words" and given < wanted:
                given = 0
            part.width, over = part.least + given, over - given
    return parts


def _row_lines(cells: Sequence[Cell], parts: Sequence[_Part], gap: int) -> Iterator[_Line]:
    """Yield the lines of one row: several where a text is folded."""
    texts = [_fitted(cell, part) for cell, part in zip(cells, parts, strict=True)]
    for number in range(max(map(len, texts), default=0)):
        line: _Line = []
        for cell, part, folded in zip(cells, parts, texts, strict=True):
            text = folded[number] if number < len(folded) else ""
            blanks = " " * (part.width - cell_len(text))
            right = part.column.align == "right"
            line += [(" " * gap if line else "", ""), (blanks if right else "", "")]
            line += [(text, _STYLES.get(cell.kind, "")), ("" if right else blanks, "")]
        yield line


def _fitted(cell: Cell, part: _Part) -> list[str]:
    """Return a cell's text in lines of the column's width."""
    text = shown(cell.text) if cell.text else ""
    indent = _INDENT * cell.depth
    whole = " " * indent + text
    if part.column.overflow == "whole" or cell_len(whole) <= part.width:
        return [whole]
    if part.column.overflow == "cut":
        # A depth that would take the name's room is written in figures.
        text = f"{cell.depth}› {text}" if indent > part.width // 2 else whole
        return [text if cell_len(text) <= part.width else f"{set_cell_size(text, part.width - 1)}…"]
    indent = min(indent, part.width // 2)
    return [" " * indent + line for line in _folded(text, part.width - indent)]


def _folded(text: str, width: int) -> list[str]:
    """Return a text in lines of ``width``, broken between words where that is possible."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width or "://" in word:  # an address stays whole, to be clicked on
            lines[-1] = joined
        else:
            start = [lines[-1]] if lines[-1] else []
            lines[-1:] = [*start, *chop_cells(word, width)]
    return lines
