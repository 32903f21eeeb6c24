"""One update that is being cut into sections: where in it they begin and end."""

from __future__ import annotations

from threading import get_ident

from pytest_rlperf.model import Mode, Timing
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.scope import PROCESS
from pytest_rlperf.timers.stack import Stack


class Update:
    """One update as it runs: the section it is in, and those that have ended.

    A section without a name is a gap: what comes next says what it was for. ``is_guess`` says that of a ``target_q``
    only the actor has run, which alone may be for something else. ``targets`` is what target networks were as the gap
    began. ``nodes`` are those of all sections so far, in their order, and after the first ``used`` some of an update
    before: one that is begun again takes no memory, which else would be counted as the update's.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.used = 0
        self.thread = 0
        self.name: str | None = None
        self.is_guess = False
        self.targets: bytes | None = None

    def begin(self, stack: Stack, targets: bytes | None) -> None:
        """Begin within what is open."""
        self.stack, self.root, self.thread, self.used = stack, stack.node, get_ident(), 0
        self.targets = targets
        self.open(PROCESS.clock())

    def open(self, now_ns: int) -> None:
        """Begin a gap."""
        self.name, self.is_guess = None, False
        if self.used == len(self.nodes):
            self.nodes.append(Node("", Mode.SUM, self.root))
        node = self.nodes[self.used]
        node.name, node.parent, node.start_ns = "", self.root, now_ns
        self.node = self.stack.node = node
        self.used += 1

    def close(self, now_ns: int) -> None:
        """End the section that is open."""
        self.node.close(now_ns - self.node.start_ns)
        self.node.name = self.name or ""  # for who records every entry

    def end(self) -> None:
        """End the last section, and with it the update; of one that has phases still open nothing is known."""
        if self.stack.node is self.node:
            self.close(PROCESS.clock())
        else:
            self.used -= 1
        self.stack.node = self.root

    @property
    def has_phases(self) -> bool:
        """Whether there were phases of somebody's since the section began."""
        return any(child.count for child in self.node.children.values())

    def tell(self) -> None:
        """Put the sections into the tree, those of one name as one entry."""
        ended = self.nodes[: self.used]
        for name in dict.fromkeys(node.name for node in ended):
            nodes = [node for node in ended if node.name == name]
            section = self.root
            if name:  # else phases of somebody's in a gap, which are the update's own
                section = self.root.child(name)
                section.close(sum(node.total_ns for node in nodes))
            for node in nodes:
                section.add(Timing(section.name, 0, 0, children=node.timings({})), is_parallel=False)

    def clear(self) -> None:
        """Forget what was seen."""
        for node in self.nodes:
            node.clear_all()
