"""Our own JSON, which keeps everything in a tree, and ML-Agents'.

``{"format": "rlperf-timers", "version": 1, "trees": [{"timings": [...], "gauges": {...}, "metadata": {...},
"workers": [...]}]}``: the timings are listed parents first with their depth, so that no depth is too deep for JSON.
Figures that a timing lacks are left out. Infinite gauges and those that are no number, which JSON lacks, are texts.

ML-Agents' is the format of its ``get_timer_tree`` and of the ``timers.json`` that its trainers write. Times are seconds
as doubles, exact to the nanosecond up to 13 days; ``self`` is ignored, as it follows from the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing
from pytest_rlperf.traces.reading import LARGEST, Malformed, Whole, converted, levels, planted

NAME = "rlperf-timers"
# 1: the first.
VERSION = 1
_Real: TypeAlias = float | Literal["Infinity", "-Infinity", "NaN"]


class _Head(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]


class _Row(msgspec.Struct):
    """A path, with the figures that :func:`figures` wrote."""

    depth: Whole
    name: str
    count: Whole
    total_ns: Whole
    min_ns: Whole | None = None
    max_ns: Whole | None = None
    last_ns: Whole | None = None
    mode: Mode = Mode.SUM
    recent_ns: tuple[Whole, ...] = ()
    is_parallel: bool = False


class _Gauge(msgspec.Struct):
    value: _Real
    low: _Real
    high: _Real
    count: Whole


class _Tree(msgspec.Struct):
    timings: Annotated[list[_Row], msgspec.Meta(min_length=1)]
    gauges: dict[str, _Gauge] = {}
    metadata: dict[str, str] = {}
    workers: list[_Tree] = []


class _File(msgspec.Struct):
    trees: list[_Tree]


def read(value: Any) -> list[TimerTree]:
    """Return the trees of our own JSON."""
    version = converted(value, _Head).version
    if version > VERSION:
        raise Malformed(f"its version is {version}, this reads up to {VERSION}", "upgrade pytest-rlperf")
    return list(map(_tree, converted(value, _File).trees))


def write(trees: Sequence[TimerTree]) -> str:
    """Return trees as our own JSON; nothing is lost."""
    document = {"format": NAME, "version": VERSION, "trees": [_written(tree) for tree in trees]}
    return json.dumps(document, allow_nan=False) + "\n"


def _written(tree: TimerTree) -> dict[str, Any]:
    return {
        "timings": [{"depth": depth, "name": timing.name, **figures(timing)} for depth, timing in levels(tree.root)],
        "gauges": {
            name: {
                "value": _number(gauge.value),
                "low": _number(gauge.low),
                "high": _number(gauge.high),
                "count": gauge.count,
            }
            for name, gauge in tree.gauges.items()
        },
        "metadata": dict(tree.metadata),
        "workers": [_written(worker) for worker in tree.workers],
    }


def figures(timing: Timing) -> dict[str, Any]:
    """Return a path's figures: all but its name and its children."""
    known: dict[str, Any] = {"count": timing.count, "total_ns": timing.total_ns}
    known |= {key: value for key in ("min_ns", "max_ns", "last_ns") if (value := getattr(timing, key)) is not None}
    if timing.mode is not Mode.SUM:
        known["mode"] = timing.mode.value
    if timing.recent_ns:
        known["recent_ns"] = list(timing.recent_ns)
    if timing.is_parallel:
        known["is_parallel"] = True
    return known


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _tree(tree: _Tree) -> TimerTree:
    gauges = {
        name: Gauge(float(each.value), float(each.low), float(each.high), each.count)
        for name, each in tree.gauges.items()
    }
    figures = map(msgspec.structs.asdict, tree.timings)
    rows = [(row.pop("depth"), Timing(**row)) for row in figures]
    return TimerTree(planted(rows), gauges, tree.metadata, tuple(map(_tree, tree.workers)))


# --------------------------------------------------------------------------- ML-Agents' JSON

_S = 1_000_000_000


class _Node(msgspec.Struct):
    total: Annotated[float, msgspec.Meta(ge=0, le=LARGEST / _S)]
    count: Whole
    is_parallel: bool = False
    children: dict[str, _Node] = {}


class _MlagentsGauge(msgspec.Struct):
    value: float
    min: float
    max: float
    count: Whole


class _Top(_Node):
    name: str = "root"
    gauges: dict[str, _MlagentsGauge] = {}
    metadata: dict[str, str] = {}


def read_mlagents(value: Any) -> list[TimerTree]:
    """Return ML-Agents' one tree."""
    top = converted(value, _Top)
    rows: list[tuple[int, Timing]] = []
    waiting: list[tuple[int, str, _Node]] = [(0, top.name, top)]
    while waiting:
        depth, name, node = waiting.pop()
        rows.append((depth, Timing(name, node.count, round(node.total * _S), is_parallel=node.is_parallel)))
        waiting += [(depth + 1, below, child) for below, child in reversed(node.children.items())]
    gauges = {name: Gauge(each.value, each.min, each.max, each.count) for name, each in top.gauges.items()}
    return [TimerTree(planted(rows), gauges, top.metadata)]
