"""Phases of calls that are counted: the tree that records them, and where in it something happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pytest_rlperf.probes.sections import settle, unsettled
from pytest_rlperf.timers.arming import ARMED
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.process import recording_into
from pytest_rlperf.timers.scope import PROCESS
from pytest_rlperf.timers.stack import Stack
from pytest_rlperf.timers.tree import Tree

WHOLE = ""  # the path of the whole call


class Recorder:
    """Records the phases of calls by a clock that counts; none where timers are not armed.

    It is kept for all calls of a pass, so that what a first entry of a phase makes is there when it counts. ``probes``
    are those in place: update sections among them tell what they have cut only once they are asked.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._tree = Tree(clock=clock) if ARMED else None
        self.stack: Stack | None = None
        self.probes: Sequence[object] = ()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the body runs, into :attr:`stack` what this thread does."""
        if self._tree is None:
            yield
            return
        with recording_into(self._tree):
            self.stack = open_stack()
            yield

    def paths(self) -> dict[Node, str]:
        """Return the path of every phase there is, until what was recorded is forgotten or told."""
        return {} if self.stack is None else paths_below(self.stack, unsettled(self.probes))

    def clear(self) -> None:
        """Forget what was recorded, but not the phases."""
        settle(self.probes)
        if self._tree is not None:
            self._tree.reset()

    def totals(self) -> Iterator[tuple[str, int]]:
        """Yield each phase's path and what the clock counted in it since this was last asked.

        What ran beside the thread that calls is left out.
        """
        settle(self.probes)
        if self._tree is not None:
            for path, timing in self._tree.reset().root.walk():
                if not timing.is_parallel:
                    yield "/".join(path), timing.total_ns


def paths_below(stack: Stack, sections: Iterable[Node] = ()) -> dict[Node, str]:
    """Return the path of every node of a stack, those of tasks included, and of ``sections`` beside them.

    A section without a name is left out: it is a part of what is around it, which is told of all that is in it.
    """
    found = {stack.root: WHOLE}
    _add_paths(stack.root, WHOLE, found)
    for node in sections:
        around = found.get(node.parent)
        if around is not None:
            path = _joined(around, node.name)
            _add_paths(node, path, found)
            if node.name:
                found[node] = path
    return found


def _add_paths(top: Node, path: str, found: dict[Node, str]) -> None:
    """Add the paths of all nodes below one that is at ``path``."""
    pending = [(top, path)]
    while pending:
        node, path = pending.pop()
        below = [(child, _joined(path, child.name)) for child in node.children.values()]
        below += [(lane, path) for lane in node.lanes]
        found.update(below)
        pending += below


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path and name else path or name


def open_stack() -> Stack | None:
    """Return the stack of this thread or task, None where nothing records."""
    return PROCESS.current()


def lineage(node: Node) -> list[Node]:
    """Return a node and those around it, up to its stack's root, which is left out."""
    found = []
    while node.parent is not node:
        found.append(node)
        node = node.parent
    return found
