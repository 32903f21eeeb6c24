"""Edges of phases: where scopes begin and end, noticed by the stack that they are on."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_rlperf.devices import Mark, Memory
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.stack import Stack
from pytest_rlperf.timers.tree import Tree


class Untimed(str, enum.Enum):
    """Why an edge has no mark."""

    LOOKING = "looking"  # at memory, which takes the host too long for the times to be of use
    CAPTURED = "captured"  # into a graph, where no event can be timed
    SHORT = "short"  # of events


class Look(NamedTuple):
    """The device's memory at an edge, since the edge before, and the host's implicit waits so far; None if unknown."""

    memory: Memory | None
    syncs: int | None


class Moment(NamedTuple):
    """One moment on the host, with a mark for the device's clock, or why there is none.

    ``look`` is the number of the look that was taken at it, counted over all threads of the iteration; -1 without one.
    """

    host_ns: int
    mark: Mark | None
    untimed: Untimed | None
    look: int


class Edge(NamedTuple):
    """A phase's beginning or end."""

    node: Node
    is_enter: bool
    moment: Moment


@dataclass
class Track:
    """What one thread, or one task in it, did: its edges in their order. ``prefix`` are the names of what it is in."""

    label: str  # of the thread, empty for the one that made the tape
    prefix: tuple[str, ...]
    edges: list[Edge] = field(default_factory=list)


class TapedStack(Stack):
    """A stack that tells ``moved`` whenever another node is the open one; scopes know nothing of it."""

    __slots__ = ("_moved", "_node", "host", "lane_of")

    def __init__(self, label: str, moved: Callable[[TapedStack, Node, Node], None], host: TapedStack | None) -> None:
        self._node: Node | None = None
        self._moved = moved
        self.host: tuple[str, ...] = () if host is None else (*host.host, *path_of(host.node))
        self.lane_of: tuple[object, Track] | None = None  # the iteration that the lane is of
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
        if node.parent is not before and not _is_around(node, before):
            # From one part of a phase straight to the next, as update sections are cut: by way of what is around both.
            self._moved(self, before, node.parent)
            before = node.parent
        self._moved(self, before, node)

    def new_lane(self) -> Stack:
        """Return a stack for a task that runs where this one's node is open."""
        return TapedStack(self.label, self._moved, self)


class TapedTree(Tree):
    """A tree whose stacks tell when scopes begin and end."""

    def __init__(self, moved: Callable[[TapedStack, Node, Node], None], clock: Callable[[], int]) -> None:
        self._moved = moved
        super().__init__(clock=clock)

    def new_stack(self, label: str) -> Stack:
        """Return the stack of a thread."""
        return TapedStack(label, self._moved, None)


def path_of(node: Node) -> tuple[str, ...]:
    """Return the names from a node's root down to it; a part of a phase that has no name is the phase itself."""
    names = []
    while node.parent is not node:
        if node.name:
            names.append(node.name)
        node = node.parent
    return tuple(reversed(names))


def _is_around(node: Node, inner: Node) -> bool:
    """Whether ``inner`` lies within ``node``."""
    while inner.parent is not inner:
        inner = inner.parent
        if inner is node:
            return True
    return False
