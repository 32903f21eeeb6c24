"""Which scopes are open in a thread, and in each coroutine that takes its turns there."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping

from pytest_rlperf.model.timing import Mode
from pytest_rlperf.timers.node import Node

ClockNs = Callable[[], int]


class Stack:
    """One thread's or one task's tree: its ``root``, and the innermost open ``node``, which is the root where none is.

    Only its own thread changes it. Where another thread resets the tree, ``pending_ns`` is when: the entries before are
    forgotten once this thread joins the tree again. ``epoch`` is the tree's at the last time that it joined.
    """

    __slots__ = ("_idle", "_tasks", "epoch", "label", "node", "pending_ns", "root", "token")

    def __init__(self, label: str) -> None:
        self.label = label
        self.node = self.root = Node("", Mode.SUM, None)
        self.pending_ns: int | None = None
        self.epoch = 0
        self.token: object = None  # a weak reference, whose callback runs once the thread has ended
        self._tasks: dict[int, tuple[Stack, object]] = {}
        self._idle: dict[Node, list[Stack]] = {}

    def enter(self, node: Node, now_ns: int) -> None:
        """Open a node within the one that is open."""
        # The start before the node: another thread that looks finds no open node without a start.
        node.start_ns = now_ns
        self.node = node

    def leave(self, now_ns: int) -> int:
        """Leave the open node, which is not counted by this, and return how long it was open."""
        node = self.node
        self.node = node.parent
        return now_ns - node.start_ns

    def leave_to(self, outer: Node) -> None:
        """Leave every node within ``outer``; none of them is counted."""
        self.node = outer

    def of_task(self) -> Stack:
        """Return the stack of the task that runs in this thread now, or this one where none does."""
        task = running_tasks.get(_running_loop())
        if task is None:
            return self
        try:
            return self._tasks[id(task)][0]
        except KeyError:
            return self._open_task(task)

    def _open_task(self, task: object) -> Stack:
        """Give a task a stack below the path that is open in its thread: a new one, or one that an ended task had."""
        idle = self._idle.setdefault(self.node, [])
        if idle:
            stack = idle.pop()
        else:
            stack = self.new_task_stack()
            self.node.task_roots.append(stack.root)
        host, key = self.node, id(task)

        def end(_: object) -> None:
            # It holds no more than it needs: the reference that calls this lives as long as the task.
            self._tasks.pop(key, None)
            stack.leave_to(stack.root)
            self._idle.setdefault(host, []).append(stack)

        self._tasks[key] = stack, weakref.ref(task, end)
        return stack

    def new_task_stack(self) -> Stack:
        """Return the stack of a task that begins within the open node."""
        return Stack(self.label)

    def leave_all(self) -> None:
        """Leave everything, here and in tasks; what was open is not counted."""
        self.leave_to(self.root)
        for stack, _ in list(self._tasks.values()):
            stack.leave_all()

    def open_nodes(self) -> list[Node]:
        """Return the open nodes, the innermost first."""
        nodes = []
        node = self.node
        while node is not self.root:
            nodes.append(node)
            node = node.parent
        return nodes

    def open_ns(self, now_ns: int) -> dict[Node, int]:
        """Return the duration so far of each open entry, in this stack and those of its tasks."""
        since_ns = self.pending_ns
        found = {
            node: max(0, now_ns - (node.start_ns if since_ns is None else max(since_ns, node.start_ns)))
            for node in self.open_nodes()
        }
        for stack, _ in list(self._tasks.values()):
            found |= stack.open_ns(now_ns)
        return found

    def forget(self, before_ns: int) -> None:
        """Forget all entries that have ended, and count open ones from ``before_ns`` on."""
        self.pending_ns = None
        self.root.clear_all()
        for node in self.open_nodes():
            node.start_ns = max(before_ns, node.start_ns)
        for stack, _ in list(self._tasks.values()):
            stack.forget(before_ns)


def _running_loop() -> object:
    """Return the event loop that runs in this thread, None where none does."""
    return None


# The tasks that run at this moment, by loop, as asyncio keeps them: empty where no coroutine runs in any thread.
running_tasks: Mapping[object, object] = {}


def watch_tasks() -> None:
    """Have scopes distinguish coroutines from now on; this imports asyncio, which takes time."""
    global _running_loop, running_tasks
    import asyncio.tasks

    _running_loop = asyncio._get_running_loop
    # Reading the dictionary takes a tenth of the time of asyncio.current_task(). It is private, and 3.14 has none.
    running_tasks = _Loops() if sys.version_info >= (3, 14) else asyncio.tasks._current_tasks  # type: ignore[attr-defined]


class _Loops(Mapping[object, object]):
    """The running tasks where asyncio keeps no dictionary of them: true while a loop runs in this thread."""

    def __getitem__(self, loop: object) -> object:
        task = None if loop is None else sys.modules["asyncio"].current_task()
        if task is None:
            raise KeyError(loop)
        return task

    def __len__(self) -> int:
        return int(_running_loop() is not None)

    def __iter__(self) -> Iterator[object]:
        return iter(())
