"""Timer trees, and two of them side by side, as aligned text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

from pytest_rlperf import units
from pytest_rlperf.model.timing import Mode, TimerTree, Timing
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.table import Cell, Column, make_table
from pytest_rlperf.report.text import table_text
from pytest_rlperf.traces.reading import laid_out, levels

_NAME = Column("name", "name", "left", overflow="cut", room=24)
_UNKNOWN = "–"
_PARALLEL = "∥"
_NOTE_PARALLEL = f"{_PARALLEL} ran beside the path above it, and is no part of its time"
_NOTE_WHOLE = "as some totals are less than their parts: they are no sums"
_NOTE_TOTALS = "change: of the mean of an entry; of the total where entries are not counted"
_LONGEST_COUNT = 999_999

_Figures: TypeAlias = list[tuple[Column, list[str]]]  # columns with their cells


def render_tree(tree: TimerTree, *, width: int | None) -> str:
    """Return a tree as a table of at most ``width`` columns, with all its figures where that is None."""
    paths = list(levels(tree.root))
    timings = [timing for _, timing in paths]
    lines = _lines([Cell(_title(timing), depth=depth) for depth, timing in paths], _figures(timings), width)
    if _whole_ns(tree.root) > tree.root.total_ns:
        lines.append(f"share: of {_time(_whole_ns(tree.root))}, {_NOTE_WHOLE}")
    if any(timing.is_parallel for timing in timings):
        lines.append(_NOTE_PARALLEL)
    if tree.gauges:
        columns = (
            replace(_NAME, title="gauge"),
            Column("value", "value"),
            Column("min", "min", priority=1),
            Column("max", "max", priority=1),
            Column("set", "set", priority=2),
        )
        rows = [
            (name, f"{gauge.value:.6g}", f"{gauge.low:.6g}", f"{gauge.high:.6g}", f"×{gauge.count}")
            for name, gauge in tree.gauges.items()
        ]
        lines += ["", *table_text(make_table(columns, rows), width, ruled=False)]
    return "".join(f"{line}\n" for line in lines)


def _figures(timings: Sequence[Timing]) -> _Figures:
    columns: _Figures = [
        (Column("total", "total"), [_time(timing.total_ns) for timing in timings]),
        (Column("self", "self", priority=2), [_time(timing.self_ns) for timing in timings]),
    ]
    if any(timing.count for timing in timings):
        columns.insert(0, (Column("count", "count", priority=1), [_count(timing) for timing in timings]))
        columns.append((Column("mean", "mean", priority=3), [_time(_mean_ns(timing)) for timing in timings]))
    if any(timing.min_ns is not None or timing.max_ns is not None for timing in timings):
        columns.append((Column("min", "min", priority=4), [_time(timing.min_ns) for timing in timings]))
        columns.append((Column("max", "max", priority=4), [_time(timing.max_ns) for timing in timings]))
    if any(timing.mode is not Mode.SUM for timing in timings):
        columns.append((Column("value", "value", priority=2), [_value(timing) for timing in timings]))
    whole_ns = _whole_ns(timings[0])
    columns.append((Column("share", "share"), [_share(timing, whole_ns) for timing in timings]))
    return columns


def _lines(names: Sequence[Cell], figures: _Figures, width: int | None) -> list[str]:
    """Return names and their figures in aligned lines."""
    rows = zip(names, *(cells for _, cells in figures), strict=True)
    return table_text(make_table([_NAME, *(column for column, _ in figures)], list(rows)), width, ruled=False)


# --------------------------------------------------------------------------- two trees


@dataclass(frozen=True)
class _Pair:
    """A path of one tree, of the other or of both."""

    depth: int
    one: Timing | None
    other: Timing | None

    @property
    def name(self) -> Cell:
        one, other = self.one, self.other
        if one is None or other is None:
            only = one or other
            assert only is not None
            return Cell(f"{'-' if other is None else '+'} {_title(only)}", depth=self.depth)
        name = _title(one) if one.name == other.name else f"{_title(one)} → {_title(other)}"
        return Cell(name, depth=self.depth)

    @property
    def change(self) -> str:
        """The second as a multiple of the first: of its mean where both have one, else of its total."""
        if self.one is None or self.other is None:
            return "added" if self.one is None else "removed"
        before, after = _mean_ns(self.one), _mean_ns(self.other)
        if before is None or after is None:
            before, after = self.one.total_ns, self.other.total_ns
        return units.change(after / before) if before else _UNKNOWN


def render_diff(one: Sequence[TimerTree], other: Sequence[TimerTree], *, width: int | None) -> str:
    """Return trees path by path beside others: the only ones of both, or those of one name."""
    if len(one) == len(other) == 1:
        return _diff(one[0].root, other[0].root, width)
    return "\n".join(
        _diff(before.root if before else None, after.root if after else None, width)
        for before, after in _aligned(one, other)
    )


def _diff(one: Timing | None, other: Timing | None, width: int | None) -> str:
    pairs = list(_pairs(one, other))
    sides = {"A": [pair.one for pair in pairs], "B": [pair.other for pair in pairs]}
    counted = any(timing is not None and timing.count for side in sides.values() for timing in side)
    columns: _Figures = []
    if counted:
        columns += [
            (Column(f"count {name}", f"count {name}", priority=3), [_count(timing) for timing in side])
            for name, side in sides.items()
        ]
    for name, side in sides.items():
        total = [_time(None if timing is None else timing.total_ns) for timing in side]
        columns.append((Column(f"total {name}", f"total {name}", priority=2 if counted else 0), total))
    if counted:
        columns += [
            (Column(f"mean {name}", f"mean {name}"), [_time(_mean_ns(timing)) for timing in side])
            for name, side in sides.items()
        ]
    columns.append((Column("change", "change"), [pair.change for pair in pairs]))
    for name, side in sides.items():
        whole_ns = _whole_ns(side[0])
        shares = [_share(timing, whole_ns) for timing in side]
        columns.append((Column(f"share {name}", f"share {name}", priority=1), shares))
    lines = _lines([pair.name for pair in pairs], columns, width)
    timings = [timing for side in sides.values() for timing in side if timing is not None]
    if counted and not all(timing.count for timing in timings):
        lines.append(_NOTE_TOTALS)
    if any(timing.is_parallel for timing in timings):
        lines.append(_NOTE_PARALLEL)
    return "".join(f"{line}\n" for line in lines)


def _pairs(one: Timing | None, other: Timing | None) -> Iterator[_Pair]:
    """Yield the paths of both trees, parents first, in the first one's order."""
    waiting = [_Pair(0, one, other)]
    while waiting:
        pair = waiting.pop()
        yield pair
        below = _aligned(pair.one.children if pair.one else (), pair.other.children if pair.other else ())
        waiting.extend(_Pair(pair.depth + 1, *both) for both in reversed(below))


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def _aligned(one: Sequence[_N], other: Sequence[_N]) -> list[tuple[_N | None, _N | None]]:
    """Return both sequences with equal names side by side; what only the second has stays behind what it followed."""
    firsts, seconds = _keyed(one), _keyed(other)
    followers: dict[Hashable, list[Hashable]] = {}
    last: Hashable = None
    for key in seconds:
        if key in firsts:
            last = key
        else:
            followers.setdefault(last, []).append(key)
    order = list(followers.get(None, []))
    for key in firsts:
        order += [key, *followers.get(key, [])]
    return [(firsts.get(key), seconds.get(key)) for key in order]


def _keyed(items: Iterable[_N]) -> dict[Hashable, _N]:
    """Return items by their name and how many of that name came before."""
    seen: dict[str, int] = {}
    found: dict[Hashable, _N] = {}
    for item in items:
        seen[item.name] = seen.get(item.name, 0) + 1
        found[item.name, seen[item.name]] = item
    return found


# --------------------------------------------------------------------------- cells and lines


def _title(timing: Timing) -> str:
    return f"{shown(timing.name)} {_PARALLEL}" if timing.is_parallel else shown(timing.name)


def _mean_ns(timing: Timing | None) -> float | None:
    return timing.total_ns / timing.count if timing is not None and timing.count else None


def _time(ns: float | None) -> str:
    """Write nanoseconds; less than none is what is left of a total that is no sum, such as a last entry."""
    return _UNKNOWN if ns is None or ns < 0 else units.seconds(ns / 1e9)


def _count(timing: Timing | None) -> str:
    if timing is None or not timing.count:
        return _UNKNOWN
    return str(timing.count) if timing.count <= _LONGEST_COUNT else units.quantity(timing.count)


def _whole_ns(root: Timing | None) -> int:
    """Return what shares are of: the root's total, or what its parts add up to where theirs are no sums."""
    return 0 if root is None else laid_out(root)[0].length_ns


def _share(timing: Timing | None, whole_ns: int) -> str:
    return units.percent(timing.total_ns / whole_ns, signed=False) if timing is not None and whole_ns else _UNKNOWN


def _value(timing: Timing) -> str:
    return "" if timing.mode is Mode.SUM else f"{timing.mode.value} {_time(timing.value_ns)}"
