"""What ML-Agents' timers fill: nodes, gauges, and a stack that knows which path of a tree is open."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from pytest_rlperf.traces.mlagents import gauge_document, node_document, root_document

TIMER_FORMAT_VERSION = "0.1.0"


class TimerNode:
    """One path: its total time in seconds, how often it was timed, and what is below it by name."""

    __slots__ = ["children", "count", "is_parallel", "name", "total"]

    def __init__(self) -> None:
        self.children: dict[str, TimerNode] = {}
        self.total = 0.0
        self.count = 0
        self.is_parallel = False
        self.name: str = ""  # for what has to find its place in another tree

    def get_child(self, name: str) -> TimerNode:
        """Return the child called ``name``, made where there is none."""
        child = self.children.get(name)
        if child is None:
            child = self.children[name] = TimerNode()
            child.name = name
        return child

    def add_time(self, elapsed: float) -> None:
        """Count an entry of ``elapsed`` seconds."""
        self.total += elapsed
        self.count += 1

    def merge(self, other: TimerNode, root_name: str | None = None, is_parallel: bool = True) -> None:
        """Add what ``other`` and all below it have seen, to the child ``root_name`` if one is named.

        With ``is_parallel`` all of it is marked as having run beside something else.
        """
        node = self.get_child(root_name) if root_name else self
        node.total += other.total
        node.count += other.count
        node.is_parallel |= is_parallel
        for name, child in other.children.copy().items():  # which may be growing in a thread of its own
            node.get_child(name).merge(child, is_parallel=is_parallel)


class GaugeNode:
    """A quantity that is set now and then: the last value, the extremes, and how often."""

    __slots__ = ["_timestamp", "count", "max_value", "min_value", "value"]

    def __init__(self, value: float) -> None:
        self.value = self.min_value = self.max_value = value
        self.count = 1
        self._timestamp = time.time()  # the time of day, which other processes have as well

    def update(self, new_value: float) -> None:
        """Set the value."""
        self.value = new_value
        self.count += 1
        if new_value < self.min_value:
            self.min_value = new_value
        if new_value > self.max_value:
            self.max_value = new_value
        self._timestamp = time.time()

    def merge(self, other: GaugeNode) -> None:
        """Add what another gauge has seen; the value is that of the one set last."""
        if other._timestamp > self._timestamp:
            self.value, self._timestamp = other.value, other._timestamp
        self.min_value = min(self.min_value, other.min_value)
        self.max_value = max(self.max_value, other.max_value)
        self.count += other.count

    def as_dict(self) -> dict[str, float]:
        """Return what JSON has of it."""
        return gauge_document(self.value, self.min_value, self.max_value, self.count)

    def copy(self) -> GaugeNode:
        """Return another one that has seen the same."""
        copy = GaugeNode(self.value)
        copy.min_value, copy.max_value, copy.count = self.min_value, self.max_value, self.count
        copy._timestamp = self._timestamp
        return copy


class TimerStack:
    """A tree with the path that is open in it: ``stack`` is the root and then the open nodes, the innermost last."""

    __slots__ = ["gauges", "metadata", "moved", "root", "stack", "start_time"]

    def __init__(self) -> None:
        # What was open at a reset, each with the node that has its place since.
        self.moved: dict[TimerNode, TimerNode] = {}
        self._begin()

    def _begin(self) -> None:
        self.root = TimerNode()
        self.stack = [self.root]
        self.start_time = time.perf_counter()
        self.gauges: dict[str, GaugeNode] = {}
        self.metadata: dict[str, str] = {}
        self._add_default_metadata()

    def reset(self) -> None:
        """Begin a new tree; what is open stays open, and counts from now."""
        left_open = self.stack[1:]
        self._begin()
        moved = {node: self.push(node.name) for node in left_open}
        # Who opened a path knows the node that it was given then, however many resets ago.
        known = {node: old for old, node in self.moved.items()}
        self.moved = {known.get(node, node): new for node, new in moved.items()}

    def push(self, name: str) -> TimerNode:
        """Open the path ``name`` below the one that is open, and return its node."""
        node = self.stack[-1].get_child(name)
        self.stack.append(node)
        return node

    def pop(self) -> None:
        """Close the innermost open path; IndexError where none is open."""
        if len(self.stack) == 1:
            raise IndexError("pop() without push(): no timer is open, and the root of a tree is never closed")
        self.stack.pop()

    def get_root(self) -> TimerNode:
        """Return the root, whose total is the time since the tree was begun."""
        self.root.total = time.perf_counter() - self.start_time
        self.root.count = 1
        return self.root

    def get_timing_tree(self, node: TimerNode | None = None) -> dict[str, Any]:
        """Return the tree at ``node`` as JSON has it, all of it by default, with gauges and metadata."""
        if node is not None:
            return _document(node)
        root = self.get_root()
        if self.metadata:
            self.metadata["end_time_seconds"] = str(int(time.time()))
        return root_document("root", self._get_gauges(), self.metadata, _document(root))

    def set_gauge(self, name: str, value: float) -> None:
        """Set a gauge, unless the value is not a number."""
        if math.isnan(value):
            return
        gauge = self.gauges.get(name)
        if gauge is None:
            self.gauges[name] = GaugeNode(value)
        else:
            gauge.update(value)

    def add_metadata(self, key: str, value: str) -> None:
        """Keep a text with the tree."""
        self.metadata[key] = value

    def _get_gauges(self) -> dict[str, dict[str, float]]:
        return {name: gauge.as_dict() for name, gauge in self.gauges.copy().items()}

    def _add_default_metadata(self) -> None:
        self.metadata["timer_format_version"] = TIMER_FORMAT_VERSION
        self.metadata["start_time_seconds"] = str(int(time.time()))
        self.metadata["python_version"] = sys.version
        self.metadata["command_line_arguments"] = " ".join(sys.argv)


def _document(node: TimerNode) -> dict[str, Any]:
    children = {name: _document(child) for name, child in node.children.copy().items()}  # a thread may be adding some
    below = 0.0
    for child in children.values():
        below += child["total"]  # not sum(), which rounds otherwise from Python 3.12 on
    return node_document(node.total, node.count, node.total - below, children, is_parallel=node.is_parallel)
