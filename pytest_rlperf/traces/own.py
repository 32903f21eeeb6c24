"""Our own JSON, which keeps everything in a tree, and ML-Agents'.

``{"format": "rlperf-timers", "version": 1, "trees": [{"timings": [...], "gauges": {...}, "metadata": {...},
"workers": [...]}]}``: the timings are listed parents first with their depth, so that no depth is too deep for JSON.
Figures that a timing lacks are left out. Infinite gauges and those that are no number, which JSON lacks, are texts.

ML-Agents' is the format of its ``get_timer_tree`` and of the ``timers.json`` that its trainers write. Times are seconds
as doubles, exact to the nanosecond up to 97 days; ``self`` is ignored, as it follows from the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing
from pytest_rlperf.traces.reading import Document, Draft, Item, Malformed, check_depth, levels, planted

NAME = "rlperf-timers"
# 1: the first.
VERSION = 1
_NO_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def recognises(document: Document) -> bool:
    """Whether this is our own JSON."""
    return document.top.get("format") == NAME


def read(document: Document) -> list[TimerTree]:
    """Return the trees of our own JSON."""
    assert document.item is not None
    _check_version(document.item.need("version"))
    return [_tree(item) for item in document.item.need("trees").each()]


def _check_version(version: Item) -> None:
    """Raise Malformed for a version that this module does not know."""
    number = version.whole()
    if number > VERSION:
        raise Malformed(f"{version.place} is {number}, this reads up to {VERSION}", "upgrade pytest-rlperf")
    if number < 1:
        version.wrong("a version, of which 1 is the first")


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


def _tree(item: Item) -> TimerTree:
    timings = item.need("timings")
    root = planted(_rows(timings))
    if root is None:
        timings.wrong("at least the root")
    workers = item.get("workers")
    return TimerTree(
        root,
        _gauges(item.get("gauges")),
        read_metadata(item.get("metadata")),
        () if workers is None else tuple(_tree(worker) for worker in workers.each()),
    )


def _rows(timings: Item) -> Iterator[tuple[int, Draft, str]]:
    for item in timings.each():
        yield item.need("depth").whole(), _draft(item), item.place


def _draft(item: Item) -> Draft:
    """Return a path with the figures that :func:`figures` wrote."""
    mode, recent, parallel = item.get("mode"), item.get("recent_ns"), item.get("is_parallel")
    low, high, last = (item.get(key) for key in ("min_ns", "max_ns", "last_ns"))
    if mode is not None and mode.value not in [known.value for known in Mode]:
        mode.wrong(f"one of {', '.join(known.value for known in Mode)}")
    return Draft(
        item.need("name").text(),
        item.need("count").whole(),
        item.need("total_ns").whole(),
        None if low is None else low.whole(),
        None if high is None else high.whole(),
        None if last is None else last.whole(),
        Mode.SUM if mode is None else Mode(mode.value),
        () if recent is None else tuple(entry.whole() for entry in recent.each()),
        False if parallel is None else parallel.flag(),
    )


def _gauges(item: Item | None) -> Mapping[str, Gauge]:
    """Return gauges by name."""
    if item is None:
        return {}
    return {
        name: Gauge(
            _real(gauge.need("value")), _real(gauge.need("low")), _real(gauge.need("high")), gauge.need("count").whole()
        )
        for name, gauge in item.pairs()
    }


def _real(item: Item) -> float:
    return _NO_NUMBERS[item.value] if isinstance(item.value, str) and item.value in _NO_NUMBERS else item.real()


def read_metadata(item: Item | None) -> Mapping[str, str]:
    """Return texts by name."""
    return {} if item is None else {name: text.text() for name, text in item.pairs()}


# --------------------------------------------------------------------------- ML-Agents' JSON

_S = 1_000_000_000


def recognises_mlagents(document: Document) -> bool:
    """Whether this looks like a tree of ML-Agents: an object with a total and a count."""
    return {"total", "count"} <= document.top.keys()


def read_mlagents(document: Document) -> list[TimerTree]:
    """Return ML-Agents' one tree."""
    assert document.item is not None
    top = document.item
    name = top.get("name")
    root = Draft("root" if name is None else name.text())
    waiting = [(0, root, top)]
    for depth, draft, item in waiting:  # grows as it goes
        check_depth(depth, item.place)
        _fill(draft, item)
        children = item.get("children")
        if children is not None:
            waiting += [(depth + 1, draft.child(name), child) for name, child in children.pairs()]
    gauges = top.get("gauges")
    known = {} if gauges is None else {name: _gauge(gauge) for name, gauge in gauges.pairs()}
    return [TimerTree(root.frozen(), known, read_metadata(top.get("metadata")))]


def _fill(draft: Draft, item: Item) -> None:
    parallel = item.get("is_parallel")
    draft.count = item.need("count").whole()
    draft.total_ns = item.need("total").ns(_S)
    draft.is_parallel = parallel is not None and parallel.flag()


def _gauge(item: Item) -> Gauge:
    return Gauge(
        item.need("value").real(), item.need("min").real(), item.need("max").real(), item.need("count").whole()
    )
