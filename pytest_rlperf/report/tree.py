"""Timer trees as aligned text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from pytest_rlperf import units
from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.table import Cell, Column, make_table
from pytest_rlperf.report.text import table_text

_NAME = Column("name", "name", "left", overflow="cut", room=24)
_UNKNOWN = "–"
_PARALLEL = "∥"
_NOTE_PARALLEL = f"{_PARALLEL} ran beside the path above it, and is no part of its time"
_NOTE_WHOLE = "as some totals are less than their parts: they are no sums"
_LONGEST_COUNT = 999_999

_Figures: TypeAlias = list[tuple[Column, list[str]]]  # columns with their cells


def render_tree(tree: TimerTree, *, width: int | None) -> str:
    """Return a tree as a table of at most ``width`` columns, with all its figures where that is None."""
    paths = [((), tree.root), *tree.root.walk()]
    timings = [timing for _, timing in paths]
    lines = _lines([Cell(_title(timing), depth=len(path)) for path, timing in paths], _figures(timings), width)
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
    whole_ns = _whole_ns(timings[0])
    columns.append((Column("share", "share"), [_share(timing, whole_ns) for timing in timings]))
    return columns


def _lines(names: Sequence[Cell], figures: _Figures, width: int | None) -> list[str]:
    """Return names and their figures in aligned lines."""
    rows = zip(names, *(cells for _, cells in figures), strict=True)
    return table_text(make_table([_NAME, *(column for column, _ in figures)], list(rows)), width, ruled=False)


# --------------------------------------------------------------------------- cells and lines


def _title(timing: Timing) -> str:
    return f"{shown(timing.name)} {_PARALLEL}" if timing.is_parallel else shown(timing.name)


def _mean_ns(timing: Timing) -> float | None:
    return timing.total_ns / timing.count if timing.count else None


def _time(ns: float | None) -> str:
    """Write nanoseconds; less than none is what is left of a total that is no sum, such as a last entry."""
    return _UNKNOWN if ns is None or ns < 0 else units.seconds(ns / 1e9)


def _count(timing: Timing) -> str:
    return units.quantity(timing.count) if timing.count > _LONGEST_COUNT else str(timing.count or _UNKNOWN)


def _whole_ns(root: Timing) -> int:
    """Return what shares are of: the root's total, or what its parts add up to where theirs are no sums."""
    return max(root.total_ns, sum(_whole_ns(child) for child in root.children if not child.is_parallel))


def _share(timing: Timing, whole_ns: int) -> str:
    return units.percent(timing.total_ns / whole_ns, signed=False) if whole_ns else _UNKNOWN
