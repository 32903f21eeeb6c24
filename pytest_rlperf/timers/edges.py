"""The one observer of phases' edges: a tree that reports where every scope begins and ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.stack import ClockNs, Stack
from pytest_rlperf.timers.tree import Tree

OnEnter: TypeAlias = "Callable[[EdgeStack, Node], None]"
OnLeave: TypeAlias = "Callable[[EdgeStack, Node, Node], None]"


class EdgeTree(Tree):
    """A tree that calls ``on_enter(stack, node)`` and ``on_leave(stack, node, outer)`` in the thread that moved.

    A scope that ends late takes those within it along, so a leave is from ``node``, the innermost, up to ``outer``,
    which stays open. The calls themselves allocate nothing, so that an observer can count memory.
    """

    def __init__(self, on_enter: OnEnter, on_leave: OnLeave, clock: ClockNs = time.perf_counter_ns) -> None:
        self._on_enter = on_enter
        self._on_leave = on_leave
        super().__init__(clock=clock)

    def new_stack(self, label: str) -> Stack:
        """Return the stack of a thread."""
        return EdgeStack(label, self._on_enter, self._on_leave, ())


class EdgeStack(Stack):
    """A stack of an :class:`EdgeTree`; ``host`` are the names of the phases that a task began in, none in a thread.

    Scopes store the open node of any stack by one assignment. In a plain stack that is a slot, so timers that nobody
    observes pay nothing; in this one it is a property that calls the observer.
    """

    __slots__ = ("_node", "_on_enter", "_on_leave", "host")

    def __init__(self, label: str, on_enter: OnEnter, on_leave: OnLeave, host: tuple[str, ...]) -> None:
        self._node: Node | None = None
        self._on_enter = on_enter
        self._on_leave = on_leave
        self.host = host
        super().__init__(label)

    @property
    def node(self) -> Node:
        """The open node."""
        node = self._node
        assert node is not None
        return node

    @node.setter
    def node(self, node: Node) -> None:
        before, self._node = self._node, node
        if before is None or before is node:
            return
        if node.parent is before:
            self._on_enter(self, node)
        else:
            self._on_leave(self, before, node)

    def new_task_stack(self) -> Stack:
        """Return a stack for a task that begins where this one's node is open."""
        return EdgeStack(self.label, self._on_enter, self._on_leave, (*self.host, *path_of(self.node)))


def path_of(node: Node) -> tuple[str, ...]:
    """Return the names from a node's root down to it; a part of a phase that has no name is the phase itself."""
    names = []
    while node.parent is not node:
        if node.name:
            names.append(node.name)
        node = node.parent
    return tuple(reversed(names))
