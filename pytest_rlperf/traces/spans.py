"""From what began and ended when, to what ran within what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_rlperf.traces.building import Draft, check_depth

# Traces give whole microseconds, or round beginnings and durations each for itself.
_SLACK_NS = 1000


@dataclass(frozen=True)
class Interval:
    """Something that ran from one moment to another; ``opened`` and ``closed`` tell the order of equal moments."""

    name: str
    start_ns: int
    end_ns: int
    opened: int
    closed: int
    place: str


def nested(name: str, intervals: Iterable[Interval]) -> Draft:
    """Return the tree of one thread's intervals, each below the last one begun that it lies within.

    What begins within another and goes on for longer cannot have run within it on one stack: it is parallel, below
    what holds both. The root is as long as it is from the first beginning to the last end.
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
    """Whether ``one`` had ended when ``other``, which began no sooner, began."""
    if one.end_ns == other.start_ns:
        return one.closed < other.opened  # clocks are coarse: the order in the file decides
    if one.end_ns < other.start_ns:
        return True
    within_ns, beyond_ns = one.end_ns - other.start_ns, other.end_ns - one.end_ns
    return within_ns <= _SLACK_NS and beyond_ns > within_ns
