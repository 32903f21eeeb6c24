"""Writes text and tables for terminals and log files: widths, folding and colours."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from pytest_rlperf.errors import harmless, shown
from pytest_rlperf.report.table import STYLES, Cell, Column, Table, make_table

_GAP = 2
_NARROWEST = 16  # of a column that folds
_INDENT = 2
_STYLES = {**STYLES, "strong": "bold"}


def rendered(write: Callable[[Console], None], *, width: int, color: bool) -> str:
    """Return what ``write`` prints, for a terminal of ``width`` columns; no line ends in blanks."""
    buffer = io.StringIO()
    write(
        Console(
            file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
        )
    )
    return "".join(f"{harmless(line.rstrip())}\n" for line in buffer.getvalue().splitlines())


def print_table(console: Console, table: Table, *, ruled: bool = True, titled: bool = True) -> None:
    """Print a table as wide as the console; see :func:`table_lines`."""
    for line in table_lines(table, console.width, ruled=ruled, titled=titled):
        console.print(line, soft_wrap=True)


def print_facts(console: Console, facts: Iterable[tuple[str, Cell | str]]) -> None:
    """Print terms, each with a text beside it, whose lines are kept and folded where they are too long."""
    rows = []
    for term, fact in facts:
        text, kind = (fact.text, fact.kind) if isinstance(fact, Cell) else (fact, "")
        for number, line in enumerate(text.split("\n")):
            rows.append((term if not number else "", Cell(line, kind)))
    columns = (Column("", "left", usual=8), Column("", "left", folds=True))
    print_table(console, make_table(columns, rows), titled=False)


def table_text(table: Table, width: int | None, *, ruled: bool = True, titled: bool = True) -> list[str]:
    """Return :func:`table_lines` as plain text without blanks at the ends of lines."""
    return [harmless(line.plain.rstrip()) for line in table_lines(table, width, ruled=ruled, titled=titled)]


def table_lines(table: Table, width: int | None, *, ruled: bool = True, titled: bool = True) -> list[Text]:
    """Return a table's lines in at most ``width`` columns, None for as many as it takes.

    Columns that have no room are left out. Where those that always stay need more, lines are longer than ``width``:
    no figure is cut. A ``ruled`` table has a line below its titles, one that is not ``titled`` has none.
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
    """Yield the lines of one row: several where a text is folded."""
    texts = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*texts, fillvalue=""):
        line: list[tuple[str, str]] = []
        for cell, column, width, part in zip(cells, columns, widths, parts, strict=True):
            blanks = " " * (width - cell_len(part))
            before, after = (blanks, "") if column.align == "right" else ("", blanks)
            line += [(" " * _GAP if line else "", ""), (before, ""), (part, _STYLES.get(cell.kind, "")), (after, "")]
        yield Text.assemble(*line)


def _whole(cell: Cell) -> str:
    return " " * _INDENT * cell.depth + (shown(cell.text) if cell.text else "")


def _folded(cell: Cell, width: int) -> list[str]:
    """Return a cell's text in lines of ``width``, broken between words where that is possible."""
    if cell_len(_whole(cell)) <= width:
        return [_whole(cell)]
    indent = min(_INDENT * cell.depth, width // 2)
    lines = [""]
    for word in shown(cell.text).split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width - indent or "://" in word:  # an address stays whole, to be clicked on
            lines[-1] = joined
        else:
            start = [lines[-1]] if lines[-1] else []
            lines[-1:] = [*start, *chop_cells(word, width - indent)]
    return [" " * indent + line for line in lines]
