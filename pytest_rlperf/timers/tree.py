"""Named scopes that build a tree of paths per thread.

A scope's parent is the scope open around it when it is entered, so one function called from two places has two
nodes. In a tree of paths recursion opens a deeper node: a node is open at most once a thread, its start time can
live on it, and entering a scope allocates nothing after the first time.

Scopes cost two clock readings and little else while a recording runs, and next to nothing while none does.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pytest_rlperf.model import Phase

P = ParamSpec("P")
R = TypeVar("R")
ClockNs = Callable[[], int]


class Node:
    """One path in a thread's tree; ``total_ns`` counts closed entries only."""

    __slots__ = ("children", "count", "name", "parent", "start_ns", "total_ns")

    def __init__(self, name: str, parent: Node | None) -> None:
        self.name = name
        self.parent = parent
        self.children: dict[str, Node] = {}
        self.count = 0
        self.total_ns = 0
        self.start_ns = 0

    @property
    def self_ns(self) -> int:
        """The time spent in no child."""
        return self.total_ns - sum(child.total_ns for child in self.children.values())

    def child(self, name: str) -> Node:
        """Return the child called ``name``, made where there is none."""
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = Node(name, self)
        return node

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Node]]:
        """Yield every descendant with its path, parents first, in order of first entry."""
        for child in self.children.values():
            path = f"{prefix}{child.name}"
            yield path, child
            yield from child.walk(f"{path}/")


class _Stack:
    """Which node is open in one thread; at the root, none is."""

    __slots__ = ("node",)

    def __init__(self, root: Node) -> None:
        self.node = root


class Recording:
    """The trees of one recording, one per thread that entered a scope; the recording thread's is the first."""

    def __init__(self, clock: ClockNs) -> None:
        self.clock = clock
        self.local = threading.local()
        self.roots = [Node("", None)]
        self._owner = threading.get_ident()
        self._lock = threading.Lock()

    def join_thread(self) -> _Stack:
        """Give the current thread a tree of its own."""
        if threading.get_ident() == self._owner:
            root = self.roots[0]
        else:
            root = Node("", None)
            with self._lock:
                self.roots.append(root)
        stack = self.local.stack = _Stack(root)
        return stack

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Have every scope in the process record here while the body runs; recordings do not nest."""
        global _active, _clock, _local
        if _active is not None:
            raise RuntimeError("a recording is running already; recordings do not nest")
        _clock = self.clock
        _active = self
        _local = self.local
        try:
            yield
        finally:
            _active = _local = None

    def phases(self, iterations: int) -> tuple[Phase, ...]:
        """Return the recording thread's paths, per iteration; what ran beside it is in the other roots."""
        return tuple(
            Phase(
                path=path,
                count=node.count / iterations,
                total_s=node.total_ns / iterations / 1e9,
                self_s=node.self_ns / iterations / 1e9,
                device="host",
            )
            for path, node in self.roots[0].walk()
        )


# The running recording, its clock and the open nodes of its threads, each bound apart to save look-ups a reading.
# With each recording comes a new thread-local: no thread is ever left with an open node of an earlier one.
_active: Recording | None = None
_local: threading.local | None = None
_clock: ClockNs = time.perf_counter_ns


class Scope:
    """A reusable, reentrant context manager that times its body under ``name``; bind it once to save the look-up."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not name or "/" in name:
            raise ValueError(f"a timer's name must be non-empty and without '/', which joins paths: {name!r}")
        self.name = sys.intern(name)  # so that equal names are the same object, which __exit__ relies on

    def __enter__(self) -> None:
        local = _local
        if local is None:
            return
        try:
            stack = local.stack
        except AttributeError:
            stack = _join_thread()
        parent = stack.node
        try:
            node = parent.children[self.name]
        except KeyError:
            node = parent.child(self.name)
        stack.node = node
        node.start_ns = _clock()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        local = _local
        if local is None:
            return
        now_ns = _clock()
        try:
            stack = local.stack
        except AttributeError:
            return  # entered before this recording began
        node = stack.node
        if node.name is not self.name:
            return  # likewise: what is open is the root, or a scope this recording did see entered
        node.total_ns += now_ns - node.start_ns
        node.count += 1
        stack.node = node.parent


def _join_thread() -> _Stack:
    """Give the current thread a tree in the running recording, or one to forget if it has just ended."""
    return _Stack(Node("", None)) if _active is None else _active.join_thread()


_scopes: dict[str, Scope] = {}


def hierarchical_timer(name: str) -> Scope:
    """Return the context manager that times its body under ``name``, below the scope open around it."""
    try:
        return _scopes[name]
    except KeyError:
        return _scopes.setdefault(name, Scope(name))


def timed(function: Callable[P, R]) -> Callable[P, R]:
    """Time each call of ``function`` under its qualified name."""
    scope = Scope(function.__qualname__.replace("<locals>.", ""))

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with scope:
            return function(*args, **kwargs)

    return wrapper


@contextmanager
def recording(clock: ClockNs = time.perf_counter_ns) -> Iterator[Recording]:
    """Arm every scope in the process while the body runs; what they saw is in the yielded recording."""
    record = Recording(clock)
    with record.armed():
        yield record
