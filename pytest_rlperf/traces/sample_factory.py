"""Sample Factory's text: the trees that its components log when they end, read back from a log file.

A tree is a line ``NAME tree view:``, then the leaves of each level on one line and each parent on a line of its own,
with its children two blanks deeper: ``name: seconds``, four decimals. The text lacks counts, and whether the seconds
are a sum, the last entry or the mean of some. So the count reads as 0, which stands for "not known".

A flat line (``_name: NAME, key: seconds, …``) adds up the places in which a tree has a key; it is read where the log
has no tree of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.traces.reading import LARGEST, Document, Draft, Malformed, check_depth

_PREFIX = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?\](?:\[\d+\])? ")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_HEADING = " tree view:"
_FLAT = "_name: "
_ENTRY = re.compile(r"(?P<name>.*?): (?P<seconds>\d+\.\d{4})(?:, |$)")
# A line at the left margin below a tree may be something else that was printed.
_LIKE_AN_ENTRY = re.compile(r"[^,{}\[\]]*?: (?:-?\d[\d.]*|nan|-?inf)(?:, .*)?")
_CUT_ENTRY = re.compile(r"[\w.:-]+ ?")
_TICK_NS = 100_000  # the last decimal
_CUT_OFF = "it was cut off, or is still being written: save it again"


def recognises(document: Document) -> bool:
    """Whether some line heads a tree, or is a flat one."""
    heads = (line.text.endswith(_HEADING) or line.text.startswith(_FLAT) for line in _lines(document.text))
    return document.value is None and any(heads)


def read(document: Document) -> list[TimerTree]:
    """Return the trees of a log, in the order they were logged; other lines are passed over."""
    found: list[TimerTree] = []
    flat: list[TimerTree] = []
    block: _Block | None = None
    for line in _lines(document.text):
        is_heading, is_flat = line.text.endswith(_HEADING), line.text.startswith(_FLAT)
        if block is not None and (is_heading or is_flat or line.is_record or not block.takes(line)):
            found.append(block.tree())
            block = None
        if is_heading:
            block = _Block(line.text.removesuffix(_HEADING))
            if line.is_last:
                raise Malformed(f"line {line.number}: the log ends with the heading of a timer tree", _CUT_OFF)
        elif is_flat:
            flat.append(_flat_tree(line))
    if block is not None:
        found.append(block.tree())
    named = {tree.name for tree in found}
    return found + [tree for tree in flat if tree.name not in named]


@dataclass(frozen=True)
class _Line:
    """A line of a log, without the logger's prefix."""

    number: int
    text: str
    is_record: bool  # the first line of a log record
    is_last: bool  # it lacks the line feed of a line that was written to its end


def _lines(text: str) -> Iterator[_Line]:
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        line = _COLOURS.sub("", raw).rstrip("\r")
        prefix = _PREFIX.match(line)
        yield _Line(number, line if prefix is None else line[prefix.end() :], prefix is not None, number == len(lines))


class _Block:
    """A tree, line by line."""

    def __init__(self, name: str) -> None:
        self._root = Draft(name)
        self._open: list[Draft | None] = [self._root]  # by depth; None below a line of several leaves

    def takes(self, line: _Line) -> bool:
        """Add a line's entries, and return whether it is a line of a tree."""
        text = line.text.lstrip(" ")
        indent = len(line.text) - len(text)
        entries, rest = _scanned(line, text)
        if not text or (not indent and rest and not _LIKE_AN_ENTRY.fullmatch(text)):
            if line.is_last and _CUT_ENTRY.fullmatch(text):
                raise Malformed(f"line {line.number}: the log ends within a tree", _CUT_OFF)
            return False
        _check_rest(line, rest)
        depth = indent // 2 + 1
        if indent % 2 or depth > len(self._open):
            raise Malformed(f"line {line.number}: indented by {indent}, which no line above leads to")
        check_depth(depth, f"line {line.number}")
        parent = self._open[depth - 1]
        if parent is None:
            raise Malformed(f"line {line.number}: it is below several timings, not one")
        parent.children += entries
        self._open[depth:] = [entries[0] if len(entries) == 1 else None]
        return True

    def tree(self) -> TimerTree:
        """Return the tree; its root is as long as its children together."""
        self._root.total_ns = sum(child.total_ns for child in self._root.children)
        return TimerTree(self._root.frozen())


def _flat_tree(line: _Line) -> TimerTree:
    name, _, text = line.text.removeprefix(_FLAT).partition(", ")
    entries, rest = _scanned(line, text)
    _check_rest(line, rest)
    root = Draft(name, total_ns=sum(entry.total_ns for entry in entries), children=entries)
    return TimerTree(root.frozen())


def _scanned(line: _Line, text: str) -> tuple[list[Draft], str]:
    """Return the entries that ``text`` begins with, left to right, and the rest."""
    entries: list[Draft] = []
    end = 0
    while entry := _ENTRY.match(text, end):
        whole, _, decimals = entry["seconds"].partition(".")
        if len(whole) > 10 or int(whole + decimals) * _TICK_NS > LARGEST:
            raise Malformed(f"line {line.number}: {entry['name']!a} took longer than a lifetime")
        entries.append(Draft(entry["name"], 0, int(whole + decimals) * _TICK_NS))
        end = entry.end()
    return entries, text[end:]


def _check_rest(line: _Line, rest: str) -> None:
    if rest:
        finding = f"line {line.number}: {ascii(rest)[:60]} is not 'name: seconds' with four decimals"
        raise Malformed(finding, *([_CUT_OFF] if line.is_last else []))
