"""Between trees and time lines: intervals nested to a tree, a tree laid out as bars, and spans put on tracks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_rlperf.model import Timing
from pytest_rlperf.model.spans import Span
from pytest_rlperf.traces.building import Draft, check_depth, levels

# Traces give whole microseconds, or round a beginning and a duration separately.
_SLACK_NS = 1000


# --------------------------------------------------------------------------- intervals to a tree


@dataclass(frozen=True)
class Interval:
    """Something that ran between two moments; ``opened`` and ``closed`` are its places in the file's order.

    They decide the order of events at equal moments.
    """

    name: str
    start_ns: int
    end_ns: int
    opened: int
    closed: int
    place: str


def nested(name: str, intervals: Iterable[Interval]) -> Draft:
    """Return the tree of one thread's intervals, each below the last one begun that it lies within.

    An interval that begins within another and ends after it cannot have run within it on one stack. It is parallel,
    below whatever contains both. The root lasts from the first beginning to the last end.
    """
    root = Draft(name, count=1)
    ordered = sorted(intervals, key=lambda one: (one.start_ns, -one.end_ns, one.opened))
    root.total_ns = max(one.end_ns for one in ordered) - ordered[0].start_ns
    open_: list[tuple[Interval, Draft]] = []
    for one in ordered:
        while open_ and _is_over(open_[-1][0], one):
            open_.pop()
        beside = False
        while open_ and open_[-1][0].end_ns + _SLACK_NS < one.end_ns:
            open_.pop()
            beside = True
        draft = (open_[-1][1] if open_ else root).child(one.name)
        draft.enter(one.end_ns - one.start_ns)
        draft.is_parallel |= beside
        open_.append((one, draft))
        check_depth(len(open_), one.place)
    return root


def _is_over(one: Interval, other: Interval) -> bool:
    """Whether ``one`` had ended when ``other``, which did not begin before it, began."""
    if one.end_ns == other.start_ns:
        return one.closed < other.opened  # clocks are coarse: the order in the file decides
    if one.end_ns < other.start_ns:
        return True
    within_ns, beyond_ns = one.end_ns - other.start_ns, other.end_ns - one.end_ns
    return within_ns <= _SLACK_NS and beyond_ns > within_ns


# --------------------------------------------------------------------------- a tree as bars


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


# --------------------------------------------------------------------------- spans on tracks


class Placed(NamedTuple):
    """A span in whole nanoseconds, so that the spans of one track nest exactly."""

    name: str
    path: str
    start_ns: int
    end_ns: int


def by_track(spans: Sequence[Span]) -> dict[str, list[Placed]]:
    """Return each track's spans by their start, outer ones first; tracks are in the order of their first spans.

    Viewers draw the spans of one track only where they nest. Spans that overlap, as a device's do whose edges lie on
    several streams, go on further tracks of the same name with a number.
    """
    found: dict[str, list[Placed]] = {span.track: [] for span in spans}
    open_: dict[str, list[Placed]] = {}
    for span in sorted(spans, key=_by_start):
        start_ns, end_ns = round(1e9 * span.start_s), round(1e9 * span.end_s)
        placed = Placed(span.name, span.path, start_ns, max(start_ns, end_ns))
        found.setdefault(_track_with_room(span.track, placed, open_), []).append(placed)
    return found


def _by_start(span: Span) -> tuple[int, int, int]:
    return round(1e9 * span.start_s), -round(1e9 * span.end_s), span.path.count("/")


def _track_with_room(track: str, placed: Placed, open_: dict[str, list[Placed]]) -> str:
    """Return the first track of that name on which a span lies within the open ones, and open it there."""
    name, number = track, 1
    while True:
        stack = open_.setdefault(name, [])
        while stack and stack[-1].end_ns <= placed.start_ns:
            stack.pop()
        if not stack or placed.end_ns <= stack[-1].end_ns:
            stack.append(placed)
            return name
        number += 1
        name = f"{track} ({number})"
