"""Timer trees in files: reads our own JSON and ML-Agents', writes ours and Chrome's trace events.

Our own is ``{"format": "rlperf-timers", "version": 2, "trees": […]}``, with all fields of each tree. Gauges that are
infinite or not a number are written as Python's ``json`` does.

ML-Agents' is the format of its ``get_timer_tree`` and of the ``timers.json`` that its trainers write. Times are seconds
as doubles, exact to the nanosecond up to 13 days; ``self`` is ignored, as it follows from the rest.

Chrome's trace events are for viewers, such as Perfetto and speedscope. Each tree is a process, with its children one
after the other within their parent, and parallel children on their own threads. The bars show sums, not when something
happened. A bar is as long as its children if they took longer together; its ``args`` hold the exact figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import Gauge, TimerTree, Timing

DEEPEST = 400  # levels: Python's stack holds about a thousand calls, and callers may walk a tree recursively
_LONGEST_SHOWN = 200
_NAME = "rlperf-timers"
_VERSION = 2  # 1: rows with their depths
_US, _S = 1000, 1_000_000_000  # in nanoseconds


# --------------------------------------------------------------------------- reading


def read(path: str | Path) -> list[TimerTree]:
    """Return the trees in a file, in the format that its content shows; TimerFileError if it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TimerFileError(f"cannot read {path}: {reason}; give the path of a file that can be read") from None
    return parse(data, str(path))


def parse(data: bytes, source: str) -> list[TimerTree]:
    """Return the trees in ``data``; TimerFileError, with the name ``source``, if there are none."""
    try:
        trees = _trees(json.loads(data, parse_int=_whole))
        if any(len(path) > DEEPEST for tree in trees for path, _ in tree.root.walk()):
            raise RecursionError
        return trees
    except RecursionError:
        finding = f"a tree is deeper than {DEEPEST} levels"
    except (ValueError, OverflowError, msgspec.ValidationError) as error:
        text = ascii(str(error))[1:-1]  # harmless to a terminal
        finding = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    raise TimerFileError(f"{source} cannot be read: {finding}; give a whole file of rlperf's or ML-Agents' timers")


def _whole(text: str) -> float:
    """Return a whole number in JSON; a number with more than 64 bits is not a count, and becomes a float."""
    return int(text) if len(text) < 20 else float(text)


def _trees(value: Any) -> list[TimerTree]:
    top = value if isinstance(value, dict) else {}
    if top.get("format") == _NAME:
        if top.get("version") != _VERSION:
            raise ValueError(f"its version is {top.get('version')!r}; this version reads {_VERSION}")
        return msgspec.convert(top.get("trees"), list[TimerTree])
    if {"total", "count"} <= top.keys():
        tree = msgspec.convert(value, _MlagentsTree)
        gauges = {name: Gauge(each.value, each.min, each.max, each.count) for name, each in tree.gauges.items()}
        return [TimerTree(_timing(tree.name, tree), gauges, tree.metadata)]
    raise ValueError("it holds no timer tree")


_Whole = Annotated[int, msgspec.Meta(ge=0)]


class _MlagentsNode(msgspec.Struct):
    total: Annotated[float, msgspec.Meta(ge=0, le=2**63 / _S)]
    count: _Whole
    is_parallel: bool = False
    children: dict[str, _MlagentsNode] = {}


class _MlagentsGauge(msgspec.Struct):
    value: float
    min: float
    max: float
    count: _Whole


class _MlagentsTree(_MlagentsNode):
    name: str = "root"
    gauges: dict[str, _MlagentsGauge] = {}
    metadata: dict[str, str] = {}


def _timing(name: str, node: _MlagentsNode) -> Timing:
    children = tuple([_timing(below, child) for below, child in node.children.items()])
    return Timing(name, node.count, round(node.total * _S), children=children, is_parallel=node.is_parallel)


# --------------------------------------------------------------------------- writing


def write(trees: Sequence[TimerTree], name: str) -> str:
    """Return trees as text in the format ``name``, one of WRITERS."""
    return json.dumps(WRITERS[name](trees)) + "\n"


def _own(trees: Sequence[TimerTree]) -> dict[str, Any]:
    """Return the document of our own JSON, in which nothing is lost."""
    return {"format": _NAME, "version": _VERSION, "trees": msgspec.to_builtins(trees)}


def _chrome(trees: Sequence[TimerTree]) -> dict[str, Any]:
    """Return a Chrome trace; gauges, metadata and workers are not written."""
    events: list[dict[str, Any]] = []
    for pid, tree in enumerate(trees, 1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": tree.name}})
        _add_bars(events, pid, tree.root, 0, count())
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {}}


def _add_bars(
    events: list[dict[str, Any]], pid: int, timing: Timing, start_ns: int, tracks: Iterator[int], on: int | None = None
) -> int:
    """Add a path and those below it on the track ``on``, by default a new one; return its bar's length in ns."""
    track = next(tracks) if on is None else on
    place = {"pid": pid, "tid": track}
    if on is None:
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": timing.name}})
    figures = {key: getattr(timing, key) for key in ("count", "total_ns", "min_ns", "max_ns", "last_ns")}
    bar = {"ph": "X", "name": timing.name, **place, "ts": start_ns / _US, "args": figures}
    events.append(bar)
    end_ns = start_ns
    for child in timing.children:
        if child.is_parallel:
            _add_bars(events, pid, child, start_ns, tracks)
        else:
            end_ns += _add_bars(events, pid, child, end_ns, tracks, track)
    length_ns = max(timing.total_ns, end_ns - start_ns)
    bar["dur"] = length_ns / _US
    return length_ns


WRITERS: dict[str, Callable[[Sequence[TimerTree]], dict[str, Any]]] = {"json": _own, "chrome": _chrome}
