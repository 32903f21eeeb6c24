"""Timer trees as aligned text."""

from __future__ import annotations

from pytest_rlperf import units
from pytest_rlperf.errors import shown
from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.report.table import Cell, Column, make_table, table_text

_COLUMNS = (
    Column("name", "left", folds=True),
    Column("count", priority=1),
    Column("total"),
    Column("self", priority=2),
    Column("mean", priority=3),
    Column("min", priority=4),
    Column("max", priority=4),
    Column("share"),
)
_GAUGE_COLUMNS = (
    Column("gauge", "left", folds=True),
    Column("value"),
    Column("min", priority=1),
    Column("max", priority=1),
    Column("set", priority=2),
)
_PARALLEL = "∥"
_NOTE_PARALLEL = f"{_PARALLEL} ran beside the path above it, and is no part of its time"
_NOTE_WHOLE = "as some totals are less than their parts: they are no sums"
_LONGEST_COUNT = 999_999


def render_tree(tree: TimerTree, *, width: int | None) -> str:
    """Return a tree as a table of at most ``width`` columns, with all its figures where that is None."""
    whole_ns, paths = _whole_ns(tree.root), [((), tree.root), *tree.root.walk()]
    rows = [_row(timing, len(path), whole_ns) for path, timing in paths]
    lines = table_text(make_table(_COLUMNS, rows).without_empty(), width, ruled=False)
    if whole_ns > tree.root.total_ns:
        lines.append(f"share: of {_time(whole_ns)}, {_NOTE_WHOLE}")
    if any(timing.is_parallel for _, timing in paths):
        lines.append(_NOTE_PARALLEL)
    if tree.gauges:
        gauges = [
            (name, f"{gauge.value:.6g}", f"{gauge.low:.6g}", f"{gauge.high:.6g}", f"×{gauge.count}")
            for name, gauge in tree.gauges.items()
        ]
        lines += ["", *table_text(make_table(_GAUGE_COLUMNS, gauges), width, ruled=False)]
    return "".join(f"{line}\n" for line in lines)


def _row(timing: Timing, depth: int, whole_ns: int) -> list[Cell | str]:
    """Return a path's figures, empty where they are not known."""
    count = units.quantity(timing.count) if timing.count > _LONGEST_COUNT else str(timing.count or "")
    name = f"{shown(timing.name)} {_PARALLEL}" if timing.is_parallel else shown(timing.name)
    return [
        Cell(name, depth=depth),
        count,
        _time(timing.total_ns),
        _time(timing.self_ns),
        _time(timing.total_ns / timing.count if timing.count else None),
        _time(timing.min_ns),
        _time(timing.max_ns),
        units.percent(timing.total_ns / whole_ns, signed=False) if whole_ns else "",
    ]


def _whole_ns(root: Timing) -> int:
    """Return what shares are of: the root's total, or what its parts add up to where theirs are no sums."""
    return max(root.total_ns, sum(_whole_ns(child) for child in root.children if not child.is_parallel))


def _time(ns: float | None) -> str:
    """Write nanoseconds; less than none is what is left of a total that is no sum, such as a last entry."""
    return "" if ns is None or ns < 0 else units.seconds(ns / 1e9)
