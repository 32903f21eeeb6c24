"""Untrusted bytes read as checked values, each of which knows its place in the document; and the trees made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import msgspec

from pytest_rlperf.model.timing import Timing

LARGEST = 2**63 - 1  # of a count or a number of nanoseconds: 292 years
LARGEST_FILE = 2**29  # bytes
_SAVE_AGAIN = "save it again with the tool that wrote it"
_LONGEST_SHOWN = 200
T = TypeVar("T")


class Malformed(Exception):  # noqa: N818 - a finding about a document, turned into TimerFileError where its file is known
    """A fault in a document, with its place; ``way_out`` is the text of what to do."""

    def __init__(self, finding: str, way_out: str = _SAVE_AGAIN) -> None:
        super().__init__(finding)
        self.way_out = way_out


Whole = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A count, or a number of nanoseconds."""


def converted(value: object, kind: type[T]) -> T:
    """Return a JSON value as one of a class; Malformed where it is none."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise Malformed(_shown(str(error))) from None


def opened(data: bytes) -> Any:
    """Return the value of JSON; Malformed where ``data`` are none, or too much."""
    if len(data) > LARGEST_FILE:
        raise Malformed(f"it is larger than {LARGEST_FILE} bytes", "keep a shorter part of the run")
    try:
        return json.loads(data)
    except ValueError as error:
        finding = f"this is not JSON: {_shown(str(error))}"
        raise Malformed(finding, "where it is still being written or was cut off, save it again") from None


def _shown(text: str) -> str:
    """Return text of a file as a message shows it: short, and harmless to a terminal."""
    harmless = ascii(text)[1:-1]
    return harmless if len(harmless) <= _LONGEST_SHOWN else f"{harmless[:_LONGEST_SHOWN]}…"


# --------------------------------------------------------------------------- trees, and trees as bars

# Python's stack holds about a thousand calls; callers may walk a tree recursively.
DEEPEST = 500


def planted(rows: Sequence[tuple[int, Timing]]) -> Timing:
    """Return the tree of timings given parents first, each with its depth; Malformed where these make no one tree."""
    before = -1
    for number, (depth, _) in enumerate(rows):
        if not (number == 0 == depth or 0 < depth <= before + 1):
            raise Malformed(f"timing {number}: a depth of {depth} does not follow one of {before}")
        if depth > DEEPEST:
            raise Malformed(f"timing {number}: the tree is nested more than {DEEPEST} deep", "keep fewer levels")
        before = depth
    below: dict[int, list[Timing]] = {}  # by depth, the last child first
    for depth, timing in reversed(rows):
        children = below.pop(depth + 1, [])
        below.setdefault(depth, []).append(replace(timing, children=tuple(reversed(children))))
    return below[0][0]


def levels(root: Timing) -> Iterator[tuple[int, Timing]]:
    """Yield a timing and all below it with their depths, parents first."""
    waiting = [(0, root)]
    while waiting:
        depth, timing = waiting.pop()
        yield depth, timing
        waiting.extend((depth + 1, child) for child in reversed(timing.children))


# --------------------------------------------------------------------------- a tree as bars on a time line


@dataclass
class Bar:
    """One path of a tree; it is as long as its total or as its children together, whichever is longer."""

    timing: Timing
    depth: int
    above: int | None
    length_ns: int
    start_ns: int = 0
    track: int = 0


def laid_out(root: Timing) -> list[Bar]:
    """Return a bar for every path, parents first, children one after the other from their parent's start on.

    Bars of one track nest. A parallel path begins with its parent, on a track of its own; tracks count from 0.
    """
    bars: list[Bar] = []
    open_: list[int] = []
    for depth, timing in levels(root):
        del open_[depth:]
        bars.append(Bar(timing, depth, open_[-1] if open_ else None, 0))
        open_.append(len(bars) - 1)
    _stretch(bars)
    _place(bars)
    return bars


def _stretch(bars: list[Bar]) -> None:
    """Give every bar its length, the last and deepest first."""
    for bar in reversed(bars):
        bar.length_ns = max(bar.timing.total_ns, bar.length_ns)
        if bar.above is not None and not bar.timing.is_parallel:
            bars[bar.above].length_ns += bar.length_ns


def _place(bars: list[Bar]) -> None:
    """Give every bar its start and its track, parents first."""
    ends_ns: list[int] = []  # where the next child of each bar begins
    tracks = 0
    for bar in bars:
        if bar.above is not None and bar.timing.is_parallel:
            tracks += 1
            bar.start_ns, bar.track = bars[bar.above].start_ns, tracks
        elif bar.above is not None:
            bar.start_ns, bar.track = ends_ns[bar.above], bars[bar.above].track
            ends_ns[bar.above] += bar.length_ns
        ends_ns.append(bar.start_ns)
