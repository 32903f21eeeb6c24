"""Writes Markdown as GitHub renders it, from text that may be anybody's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_rlperf.report.statuses import EMOJI
from pytest_rlperf.report.table import Cell, Table

_LONGEST = 300  # characters of one name or message
_LONGEST_COMMAND = 2000
MOST_LINES = 20  # of a list or a block
_SAFE = frozenset(" ,.;/+-=%")
_INDENT = "&nbsp;" * 4


def code(text: str) -> str:
    """Return text as code, in one line; GitHub looks for neither mentions nor references there."""
    return f"<code>{_entities(_one_line(text))}</code>"


def escape(text: str) -> str:
    """Return text as nothing but text, in one line: no markup, no link, no mention, no reference."""
    # A space without width splits the words that GitHub looks for in the rendered text.
    return re.sub(r"(&#64;|&#35;|GH(?=-))", r"\1&#8203;", _entities(_one_line(text))).replace("www.", "www&#46;")


def grid(table: Table) -> str:
    """Return a table; the kinds of its cells are ``"code"``, ``"strong"`` and the values of statuses."""
    if not table.rows:
        return ""
    rows = [
        [column.title for column in table.columns],
        [":--" if column.align == "left" else "--:" for column in table.columns],
        *([_cell(cell) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cell(cell: Cell) -> str:
    if not cell.text:
        return ""
    text = code(cell.text) if cell.kind == "code" else escape(cell.text)
    if cell.kind in EMOJI:
        text = f"{EMOJI[cell.kind]} {text}"
    return f"{_INDENT * cell.depth}**{text}**" if cell.kind == "strong" else f"{_INDENT * cell.depth}{text}"


def fenced(language: str, lines: Sequence[str]) -> str:
    """Return lines as a block of code whose fence is longer than any in it."""
    if not lines:
        return ""
    text = "\n".join([*(_one_line(line, _LONGEST_COMMAND) for line in lines[:MOST_LINES]), *_more(lines)])
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def folded(title: str, text: str) -> str:
    """Return Markdown folded away below a title, itself Markdown; nothing where there is nothing to fold."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" if text else ""


def listed(title: str, lines: Sequence[str]) -> str:
    """Return a list of lines, themselves Markdown, below a title; nothing where there are none."""
    if not lines:
        return ""
    return "\n".join([f"{title}:", "", *(f"- {line}" for line in [*lines[:MOST_LINES], *_more(lines)])])


def _more(lines: Sequence[str]) -> list[str]:
    return [f"… and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []


def _one_line(text: str, longest: int = _LONGEST) -> str:
    """Return text cut to a length one can read; characters that cannot be seen, line breaks too, are spelt out."""
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _entities(text: str) -> str:
    return "".join(char if char.isalnum() or char in _SAFE or char > "\x7f" else f"&#{ord(char)};" for char in text)
