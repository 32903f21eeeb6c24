"""ML-Agents' JSON: the format of its ``get_timer_tree`` and of the ``timers.json`` that its trainers write.

Times are seconds as doubles, exact to the nanosecond up to 97 days. ML-Agents counts parallel children as part of
their parent's time; ``self`` is written by that rule and ignored on reading, as it follows from the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model import Gauge, TimerTree, Timing
from pytest_rlperf.traces.own import read_metadata
from pytest_rlperf.traces.reading import Document, Item
from pytest_rlperf.traces.trees import Draft, check_depth

_S = 1_000_000_000


def recognises(document: Document) -> bool:
    """Whether this looks like a tree of ML-Agents: an object with a total and a count."""
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

    Extremes, last and recent entries, modes, gauges that are no number and workers are lost. Children of one parent
    that share a name are merged.
    """
    if len(trees) != 1:
        raise TimerFileError(
            f"ML-Agents' JSON holds one tree, these are {len(trees)}: choose one (rlperf tree --tree NAME), or write "
            "another format"
        )
    return json.dumps(document(trees[0]), indent=4) + "\n"


def document(tree: TimerTree) -> dict[str, Any]:
    """Return a tree as the dictionary that ML-Agents' ``get_timer_tree`` returns; :func:`write` lists what is lost."""
    gauges = {
        name: gauge_document(gauge.value, gauge.low, gauge.high, gauge.count)
        for name, gauge in tree.gauges.items()
        if not any(map(math.isnan, (gauge.value, gauge.low, gauge.high)))
    }
    return root_document(tree.name, gauges, tree.metadata, _node([tree.root]))


def _node(same: Sequence[Timing]) -> dict[str, Any]:
    """Return timings of one path as one node."""
    below: dict[str, list[Timing]] = {}
    for child in (child for timing in same for child in timing.children):
        below.setdefault(child.name, []).append(child)
    total_ns = sum(timing.total_ns for timing in same)
    # In nanoseconds: a difference of seconds would show the rounding of doubles.
    self_ns = total_ns - sum(child.total_ns for timings in below.values() for child in timings)
    return node_document(
        total_ns / _S,
        sum(timing.count for timing in same),
        self_ns / _S,
        {name: _node(timings) for name, timings in below.items()},
        is_parallel=any(timing.is_parallel for timing in same),
    )


# --------------------------------------------------------------------------- the layout, shared with `compat.mlagents`


def root_document(
    name: str, gauges: Mapping[str, Any], metadata: Mapping[str, str], node: dict[str, Any]
) -> dict[str, Any]:
    """Return the root's node with the tree's name, and its gauges and metadata where it has some."""
    head: dict[str, Any] = {"name": name}
    if gauges:
        head["gauges"] = gauges
    if metadata:
        head["metadata"] = dict(metadata)
    return head | node


def node_document(
    total: float, count: int, self_s: float, children: dict[str, Any], *, is_parallel: bool
) -> dict[str, Any]:
    """Return one node; ``total`` and ``self_s`` are seconds, and a negative ``self_s`` is written as 0."""
    node: dict[str, Any] = {"total": total, "count": count}
    if is_parallel:
        node["is_parallel"] = True
    node["self"] = max(0.0, self_s)
    if children:
        node["children"] = children
    return node


def gauge_document(value: float, low: float, high: float, count: int) -> dict[str, float]:
    """Return one gauge."""
    return {"value": value, "min": low, "max": high, "count": count}
