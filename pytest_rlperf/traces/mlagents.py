"""ML-Agents' JSON: the format of its ``get_timer_tree`` and of the ``timers.json`` that its trainers write.

Times are seconds as doubles, exact to the nanosecond up to 97 days; ``self`` is ignored, as it follows from the rest.
"""

from __future__ import annotations

from pytest_rlperf.model.timing import Gauge, TimerTree
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
