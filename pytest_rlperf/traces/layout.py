"""Where the paths of a tree go on a time line, which is what trace viewers show."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlperf.model import Timing
from pytest_rlperf.traces.building import levels


@dataclass
class Span:
    """One path as one bar: as long as it took in all, or as its children did if that is more."""

    timing: Timing
    depth: int
    above: int | None
    length_ns: int
    start_ns: int = 0
    track: int = 0


def laid_out(root: Timing) -> list[Span]:
    """Return a bar for every path, parents first, children one after the other from their parent's start on.

    Bars of one track nest. What is parallel begins with its parent, on a track of its own; tracks are numbered from 0.
    """
    spans: list[Span] = []
    open_: list[int] = []
    for depth, timing in levels(root):
        del open_[depth:]
        spans.append(Span(timing, depth, open_[-1] if open_ else None, 0))
        open_.append(len(spans) - 1)
    _stretch(spans)
    _place(spans)
    return spans


def _stretch(spans: list[Span]) -> None:
    """Give every bar its length, the last and deepest first."""
    for span in reversed(spans):
        span.length_ns = max(span.timing.total_ns, span.length_ns)
        if span.above is not None and not span.timing.is_parallel:
            spans[span.above].length_ns += span.length_ns


def _place(spans: list[Span]) -> None:
    """Give every bar its start and its track, parents first."""
    ends_ns: list[int] = []  # where the next child of each bar begins
    tracks = 0
    for span in spans:
        if span.above is not None and span.timing.is_parallel:
            tracks += 1
            span.start_ns, span.track = spans[span.above].start_ns, tracks
        elif span.above is not None:
            span.start_ns, span.track = ends_ns[span.above], spans[span.above].track
            ends_ns[span.above] += span.length_ns
        ends_ns.append(span.start_ns)
