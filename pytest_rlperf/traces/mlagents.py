"""ML-Agents' JSON, as its ``get_timer_tree`` and the ``timers.json`` of its trainers have it.

Times are seconds as doubles, exact to the nanosecond up to 97 days. ML-Agents counts parallel children as part of
their parent's time; ``self``, which follows from the rest, is written that way and not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model import Gauge, TimerTree, Timing
from pytest_rlperf.traces.building import Draft, check_depth
from pytest_rlperf.traces.own import read_metadata
from pytest_rlperf.traces.reading import Document, Item

_S = 1_000_000_000


def recognises(document: Document) -> bool:
    """Whether this looks like a tree of ML-Agents."""
    return {"total", "count"} <= document.top.keys()


def read(document: Document) -> list[TimerTree]:
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


def write(trees: Sequence[TimerTree]) -> str:
    """Return one tree as ML-Agents' JSON; TimerFileError where there are several, which it cannot hold.

    Lost are extremes, last and recent entries, modes, gauges that are no number and workers by themselves. Children
    of one parent that share a name become one.
    """
    if len(trees) != 1:
        raise TimerFileError(
            f"ML-Agents' JSON holds one tree, these are {len(trees)}: choose one (rlperf tree --tree NAME), or write "
            "another format"
        )
    return json.dumps(document(trees[0]), indent=4) + "\n"


def document(tree: TimerTree) -> dict[str, Any]:
    """Return a tree as the dictionary that ML-Agents' ``get_timer_tree`` returns; what is lost is as with ``write``."""
    head: dict[str, Any] = {"name": tree.name}
    gauges = {
        name: {"value": gauge.value, "min": gauge.low, "max": gauge.high, "count": gauge.count}
        for name, gauge in tree.gauges.items()
        if not math.isnan(gauge.value + gauge.low + gauge.high)
    }
    if gauges:
        head["gauges"] = gauges
    if tree.metadata:
        head["metadata"] = dict(tree.metadata)
    return head | _node([tree.root])


def _node(same: Sequence[Timing]) -> dict[str, Any]:
    """Return timings of one path as one node."""
    below: dict[str, list[Timing]] = {}
    for child in (child for timing in same for child in timing.children):
        below.setdefault(child.name, []).append(child)
    total_ns = sum(timing.total_ns for timing in same)
    node: dict[str, Any] = {"total": total_ns / _S, "count": sum(timing.count for timing in same)}
    if any(timing.is_parallel for timing in same):
        node["is_parallel"] = True
    children = {name: _node(timings) for name, timings in below.items()}
    # Of nanoseconds: a difference of seconds would show the rounding of doubles.
    node["self"] = max(0, total_ns - sum(child.total_ns for children_ in below.values() for child in children_)) / _S
    if children:
        node["children"] = children
    return node
