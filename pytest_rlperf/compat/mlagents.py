"""The names of ``mlagents_envs.timers``, with the same trees and the same JSON.

Figures are seconds, as in the original. The differences are deliberate; in each case, the original loses track:

- A thread's timers end with it. A later thread with the same identifier starts with none, and
  :func:`get_timer_stack_for_thread` finds an ended thread's timers for as long as the thread object lives.
- A scope that ends before one within it warns, and closes only itself. A scope that :func:`reset_timers` or a ``pop()``
  has closed before it ends warns, too, and is not counted.
- A timed coroutine counts from its first step to its last; scopes of tasks that take turns may lie within each other.
  A timed generator counts while it runs, with one entry from each item to the next.
- :func:`timed` keeps a function's name, documentation and signature, and takes static and class methods.
- Merged gauges and a tree's metadata are copies: later changes do not reach them.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, TypeVar

from pytest_rlperf.compat import take_out
from pytest_rlperf.timers.scope import within

FuncT = TypeVar("FuncT", bound=Callable[..., Any])


TIMER_FORMAT_VERSION = "0.1.0"


# --------------------------------------------------------------------------- the tree


class TimerNode:
    """One path: its total time in seconds, its number of entries, and its children by name."""

    __slots__ = ["children", "count", "is_parallel", "name", "total"]

    def __init__(self) -> None:
        self.children: dict[str, TimerNode] = {}
        self.total = 0.0
        self.count = 0
        self.is_parallel = False
        self.name: str = ""  # for warnings

    def get_child(self, name: str) -> TimerNode:
        """Return the child called ``name``, making it if there is none."""
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
        """Add the figures of ``other`` and everything below it, to the child ``root_name`` if one is named.

        With ``is_parallel``, all of it is marked as parallel.
        """
        node = self.get_child(root_name) if root_name else self
        node.total += other.total
        node.count += other.count
        node.is_parallel |= is_parallel
        for name, child in other.children.copy().items():  # a thread may be adding some
            node.get_child(name).merge(child, is_parallel=is_parallel)


class GaugeNode:
    """A quantity that is set occasionally: its last value, its extremes, and how often it was set."""

    __slots__ = ["_timestamp", "count", "max_value", "min_value", "value"]

    def __init__(self, value: float) -> None:
        self.value = self.min_value = self.max_value = value
        self.count = 1
        self._timestamp = time.time()  # the time of day, which all processes share

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
        """Add another gauge's values, keeping the value that was set last."""
        if other._timestamp > self._timestamp:
            self.value, self._timestamp = other.value, other._timestamp
        self.min_value = min(self.min_value, other.min_value)
        self.max_value = max(self.max_value, other.max_value)
        self.count += other.count

    def as_dict(self) -> dict[str, float]:
        """Return the gauge as in the JSON."""
        return {"value": self.value, "min": self.min_value, "max": self.max_value, "count": self.count}


class TimerStack:
    """A tree and its open path: ``stack`` holds the root and then the open nodes, the innermost last."""

    __slots__ = ["gauges", "metadata", "root", "stack", "start_time"]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a new tree, in which no scope is open."""
        self.root = TimerNode()
        self.stack = [self.root]
        self.start_time = time.perf_counter()
        self.gauges: dict[str, GaugeNode] = {}
        self.metadata: dict[str, str] = {}
        self._add_default_metadata()

    def push(self, name: str) -> TimerNode:
        """Open the path ``name`` below the one that is open, and return its node."""
        node = self.stack[-1].get_child(name)
        self.stack.append(node)
        return node

    def pop(self) -> None:
        """Close the innermost open path; IndexError if none is open."""
        if len(self.stack) == 1:
            raise IndexError("pop() without push(): no timer is open, and the root of a tree is never closed")
        self.stack.pop()

    def get_root(self) -> TimerNode:
        """Return the root; its total is the time since the tree began."""
        self.root.total = time.perf_counter() - self.start_time
        self.root.count = 1
        return self.root

    def get_timing_tree(self, node: TimerNode | None = None) -> dict[str, Any]:
        """Return the tree at ``node`` as in the JSON, by default the whole tree with gauges and metadata."""
        if node is not None:
            return _document(node)
        root = self.get_root()
        if self.metadata:
            self.metadata["end_time_seconds"] = str(int(time.time()))
        tree: dict[str, Any] = {"name": "root"}
        if self.gauges:
            tree["gauges"] = self._get_gauges()
        if self.metadata:
            tree["metadata"] = self.metadata.copy()
        return tree | _document(root)

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
    document: dict[str, Any] = {"total": node.total, "count": node.count}
    if node.is_parallel:
        document["is_parallel"] = True
    document["self"] = max(0.0, node.total - below)
    if children:
        document["children"] = children
    return document


# --------------------------------------------------------------------------- threads


_HELD = "_rlperf_mlagents_timers"  # by a thread, as long as it is kept


def _get_thread_timer() -> TimerStack:
    held = vars(threading.current_thread())
    stack: TimerStack | None = held.get(_HELD)
    if stack is None:
        stack = held[_HELD] = TimerStack()
    return stack


def get_timer_stack_for_thread(t: threading.Thread) -> TimerStack | None:
    """Return a thread's stack, whether or not it has ended; None if it has timed nothing."""
    return vars(t).get(_HELD)


# --------------------------------------------------------------------------- timing


class hierarchical_timer:  # noqa: N801 - ML-Agents' name
    """Times its body, or each call of a decorated function, as ``name`` below the thread's innermost open scope.

    ``timer_stack`` is another stack to time in. A ``with`` statement receives the node.
    """

    __slots__ = ("_name", "_node", "_stack", "_start", "_timer_stack")

    def __init__(self, name: str, timer_stack: TimerStack | None = None) -> None:
        self._name = name
        self._timer_stack = timer_stack

    def __call__(self, func: FuncT) -> FuncT:
        """Return ``func`` with each of its calls timed."""
        return within(func, lambda: hierarchical_timer(self._name, self._timer_stack))

    def __enter__(self) -> TimerNode:
        self._stack = stack = self._timer_stack or _get_thread_timer()
        self._node = node = stack.push(self._name)
        self._start = time.perf_counter()
        return node

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        elapsed = time.perf_counter() - self._start
        stack, node = self._stack, self._node
        if stack.stack[-1] is node:
            stack.pop()
            node.total += elapsed
            node.count += 1
        else:
            _leave(stack, node, elapsed)


def _leave(stack: TimerStack, node: TimerNode, elapsed: float) -> None:
    """Count an entry that is not the innermost open scope."""
    if take_out(stack.stack, lambda left: left is node, lambda left: left.name) is None:
        text = f"timer {node.name!r} was closed by reset_timers() or pop() before it ended"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    else:
        node.add_time(elapsed)


def timed(func: FuncT) -> FuncT:
    """Return ``func`` with each of its calls timed under its qualified name."""
    return hierarchical_timer(getattr(func, "__qualname__", type(func).__qualname__))(func)


# --------------------------------------------------------------------------- the current thread's tree


def set_gauge(name: str, value: float, timer_stack: TimerStack | None = None) -> None:
    """Set a gauge in the current thread's tree or the given one."""
    (timer_stack or _get_thread_timer()).set_gauge(name, value)


def merge_gauges(gauges: Mapping[str, GaugeNode], timer_stack: TimerStack | None = None) -> None:
    """Add other gauges to those of the current thread's tree or the given one."""
    own = (timer_stack or _get_thread_timer()).gauges
    for name, gauge in gauges.items():
        if name in own:
            own[name].merge(gauge)
        else:
            own[name] = copy(gauge)


def add_metadata(key: str, value: str, timer_stack: TimerStack | None = None) -> None:
    """Keep a text with the current thread's tree or the given one."""
    (timer_stack or _get_thread_timer()).add_metadata(key, value)


def get_timer_tree(timer_stack: TimerStack | None = None) -> dict[str, Any]:
    """Return the current thread's tree or the given one as in the JSON."""
    return (timer_stack or _get_thread_timer()).get_timing_tree()


def get_timer_root(timer_stack: TimerStack | None = None) -> TimerNode:
    """Return the root of the current thread's tree or the given one."""
    return (timer_stack or _get_thread_timer()).get_root()


def reset_timers(timer_stack: TimerStack | None = None) -> None:
    """Reset the current thread's tree or the given one; open scopes are not counted."""
    (timer_stack or _get_thread_timer()).reset()
