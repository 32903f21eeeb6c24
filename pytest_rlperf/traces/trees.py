"""Trees under construction, walks through finished trees that no depth can exhaust, and trees as bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_rlperf.model.timing import Mode, Timing
from pytest_rlperf.traces.reading import Malformed

# Python's stack holds about a thousand calls; callers may walk a tree recursively.
DEEPEST = 500


@dataclass
class Draft:
    """A timing that still grows."""

    name: str
    count: int = 0
    total_ns: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    last_ns: int | None = None
    mode: Mode = Mode.SUM
    recent_ns: tuple[int, ...] = ()
    is_parallel: bool = False
    children: list[Draft] = field(default_factory=list)
    _by_name: dict[str, Draft] = field(default_factory=dict)

    def child(self, name: str) -> Draft:
        """Return the one child called ``name``, made where there is none."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = Draft(name)
            self.children.append(known)
        return known

    def frozen(self) -> Timing:
        """Return this timing and everything below it, as of now."""
        order = [self]
        for draft in order:
            order.extend(draft.children)
        done: dict[int, Timing] = {}
        for draft in reversed(order):
            done[id(draft)] = Timing(
                draft.name,
                draft.count,
                draft.total_ns,
                draft.min_ns,
                draft.max_ns,
                draft.last_ns,
                tuple(done.pop(id(child)) for child in draft.children),
                draft.mode,
                draft.recent_ns,
                draft.is_parallel,
            )
        return done[id(self)]


def check_depth(depth: int, place: str) -> None:
    """Raise Malformed where ``depth`` is more than DEEPEST."""
    if depth > DEEPEST:
        raise Malformed(f"{place}: the tree is nested more than {DEEPEST} deep", "keep fewer levels")


def planted(rows: Iterable[tuple[int, Draft, str]]) -> Timing | None:
    """Return the tree of drafts given parents first, each with its depth and its place; None where there are none."""
    above: list[Draft] = []
    root = None
    for depth, draft, place in rows:
        if (depth == 0) != (root is None) or depth > len(above):
            raise Malformed(f"{place}: a depth of {depth} does not follow one of {len(above) - 1}")
        check_depth(depth, place)
        del above[depth:]
        if above:
            above[-1].children.append(draft)
        else:
            root = draft
        above.append(draft)
    return None if root is None else root.frozen()


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
