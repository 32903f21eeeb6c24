"""Timer trees, and two of them side by side, as aligned text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rich.cells import cell_len, set_cell_size

from pytest_rlperf import units
from pytest_rlperf.model import Mode, TimerTree, Timing
from pytest_rlperf.report.fitting import fitting
from pytest_rlperf.report.printable import shown
from pytest_rlperf.traces.building import levels
from pytest_rlperf.traces.timeline import laid_out

_NARROWEST_NAME = 16
_NAME_TO_KEEP = 24  # columns of figures go before a longer name is cut to less
_GAP = 2
_UNKNOWN = "–"
_PARALLEL = "∥"
_NOTE_PARALLEL = f"{_PARALLEL} ran beside the path above it, and is no part of its time"
_NOTE_WHOLE = "as some totals are less than their parts: they are no sums"
_NOTE_TOTALS = "change: of the mean of an entry; of the total where entries are not counted"
_LONGEST_COUNT = 999_999


@dataclass(frozen=True)
class _Column:
    """A column of figures; those of the highest ``rank`` are the first to go where there is no room."""

    title: str
    cells: list[str]
    rank: int = 0

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.title, *self.cells)) + _GAP


@dataclass(frozen=True)
class _Label:
    """What stands before the figures."""

    depth: int
    text: str

    def fitted(self, width: int | None) -> str:
        """Return the text, indented by its depth, in at most ``width`` columns."""
        indent = 2 * self.depth
        if width is None:
            return " " * indent + self.text
        # A depth that would take the name's room is said in figures.
        text = f"{self.depth}› {self.text}" if indent > width // 2 else " " * indent + self.text
        return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"


def render_tree(tree: TimerTree, *, width: int | None) -> str:
    """Return a tree as a table of at most ``width`` columns, with all its figures where that is None."""
    paths = list(levels(tree.root))
    timings = [timing for _, timing in paths]
    lines = _table("name", [_Label(depth, _title(timing)) for depth, timing in paths], _figures(timings), width)
    if _whole_ns(tree.root) > tree.root.total_ns:
        lines.append(f"share: of {_time(_whole_ns(tree.root))}, {_NOTE_WHOLE}")
    if any(timing.is_parallel for timing in timings):
        lines.append(_NOTE_PARALLEL)
    if tree.gauges:
        gauges = list(tree.gauges.values())
        columns = [
            _Column("value", [f"{gauge.value:.6g}" for gauge in gauges]),
            _Column("min", [f"{gauge.low:.6g}" for gauge in gauges], 1),
            _Column("max", [f"{gauge.high:.6g}" for gauge in gauges], 1),
            _Column("set", [f"×{gauge.count}" for gauge in gauges], 2),
        ]
        lines += ["", *_table("gauge", [_Label(0, shown(name)) for name in tree.gauges], columns, width)]
    return "".join(f"{line}\n" for line in lines)


def _figures(timings: Sequence[Timing]) -> list[_Column]:
    columns = [
        _Column("total", [_time(timing.total_ns) for timing in timings]),
        _Column("self", [_time(timing.self_ns) for timing in timings], 2),
    ]
    if any(timing.count for timing in timings):
        columns.insert(0, _Column("count", [_count(timing) for timing in timings], 1))
        columns.append(_Column("mean", [_time(_mean_ns(timing)) for timing in timings], 3))
    if any(timing.min_ns is not None or timing.max_ns is not None for timing in timings):
        columns.append(_Column("min", [_time(timing.min_ns) for timing in timings], 4))
        columns.append(_Column("max", [_time(timing.max_ns) for timing in timings], 4))
    if any(timing.mode is not Mode.SUM for timing in timings):
        columns.append(_Column("value", [_value(timing) for timing in timings], 2))
    whole_ns = _whole_ns(timings[0])
    columns.append(_Column("share", [_share(timing, whole_ns) for timing in timings]))
    return columns


# --------------------------------------------------------------------------- two trees


@dataclass(frozen=True)
class _Pair:
    """A path of one tree, of the other or of both."""

    depth: int
    one: Timing | None
    other: Timing | None

    @property
    def label(self) -> _Label:
        one, other = self.one, self.other
        if one is None or other is None:
            only = one or other
            assert only is not None
            return _Label(self.depth, f"{'-' if other is None else '+'} {_title(only)}")
        return _Label(self.depth, _title(one) if one.name == other.name else f"{_title(one)} → {_title(other)}")

    @property
    def change(self) -> str:
        """What the second has become, as a multiple of the first: its mean where both know it, or else its total."""
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
    columns = []
    if counted:
        columns += [_Column(f"count {name}", [_count(timing) for timing in side], 3) for name, side in sides.items()]
    for name, side in sides.items():
        total = [_time(None if timing is None else timing.total_ns) for timing in side]
        columns.append(_Column(f"total {name}", total, 2 if counted else 0))
    if counted:
        columns += [
            _Column(f"mean {name}", [_time(_mean_ns(timing)) for timing in side]) for name, side in sides.items()
        ]
    columns.append(_Column("change", [pair.change for pair in pairs]))
    for name, side in sides.items():
        whole_ns = _whole_ns(side[0])
        columns.append(_Column(f"share {name}", [_share(timing, whole_ns) for timing in side], 1))
    lines = _table("name", [pair.label for pair in pairs], columns, width)
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


def _table(title: str, labels: Sequence[_Label], columns: Sequence[_Column], width: int | None) -> list[str]:
    """Return aligned lines, with as many of the columns as ``width`` has room for."""
    wanted = min(_NAME_TO_KEEP, max(cell_len(label.fitted(None)) for label in labels))
    kept = list(columns) if width is None else fitting(columns, width - wanted)
    room = None if width is None else max(_NARROWEST_NAME, width - sum(column.width for column in kept))
    names = [title, *(label.fitted(room) for label in labels)]
    widest = max(cell_len(name) for name in names)
    rows = zip(names, *([column.title, *column.cells] for column in kept), strict=True)
    lines = []
    for name, *cells in rows:
        line = name + " " * (widest - cell_len(name))
        for column, cell in zip(kept, cells, strict=True):
            line += " " * (column.width - cell_len(cell)) + cell
        lines.append(line.rstrip())
    return lines
