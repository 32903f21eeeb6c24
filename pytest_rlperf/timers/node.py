"""The paths of a recording tree, which of them are open, and the merging of frozen trees.

Paths with the same name are added up, and each worker's own tree is kept beside the sums.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pytest_rlperf.model.timing import TimerTree, Timing

T = TypeVar("T")


class Node:
    """A path in one thread's tree; it is open at most once at a time, so its start is kept here.

    ``total_ns`` is the time of ended entries. ``low_ns`` and ``high_ns`` are the shortest and longest entry so far: an
    entry between them changes neither, and needs no :meth:`note`.
    """

    __slots__ = (
        "children",
        "count",
        "high_ns",
        "last_ns",
        "low_ns",
        "merged",
        "name",
        "parent",
        "start_ns",
        "task_roots",
        "total_ns",
    )

    def __init__(self, name: str, parent: Node | None) -> None:
        self.name = sys.intern(name)  # so that scopes compare names by identity
        self.parent: Node = self if parent is None else parent  # a root is never left
        self.children: dict[str, Node] = {}
        self.task_roots: list[Node] = []  # of tasks that began while this node was open in their thread
        self.start_ns = 0
        self.clear()

    def clear(self) -> None:
        """Forget all entries that have ended."""
        self.count = self.total_ns = self.last_ns = 0
        self.merged: tuple[Timing, ...] = ()
        self.low_ns, self.high_ns = sys.maxsize, -1

    def clear_all(self) -> None:
        """Forget all entries here and below."""
        pending = [self]
        while pending:
            node = pending.pop()
            node.clear()
            pending += [*node.children.values(), *node.task_roots]

    def child(self, name: str) -> Node:
        """Return the child with that name, making it if there is none."""
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = Node(name, self)
        return node

    def close(self, elapsed_ns: int) -> None:
        """Count an entry."""
        self.last_ns = elapsed_ns
        self.count += 1
        self.total_ns += elapsed_ns
        self.note(elapsed_ns)

    def note(self, elapsed_ns: int) -> None:
        """Update the extremes with an entry."""
        self.low_ns = min(self.low_ns, elapsed_ns)
        self.high_ns = max(self.high_ns, elapsed_ns)

    def add(self, timings: Sequence[Timing]) -> None:
        """Add another tree's timings below this path; they add up with paths of the same name."""
        self.merged = merge_timings([self.merged, timings])

    def timings(self, open_ns: Mapping[Node, int], *, forgotten: bool = False) -> tuple[Timing, ...]:
        """Return the timings of all paths below this one.

        ``open_ns`` are the durations so far of open entries. With ``forgotten``, ended entries do not count: they are
        about to be cleared.
        """
        order = [self]
        for node in order:  # order grows: trees are as deep as the timed code recurses
            order += [*node.children.values(), *node.task_roots]
        below: dict[Node, tuple[Timing, ...]] = {}
        frozen: dict[Node, Timing | None] = {}
        for node in reversed(order):
            own = [part for child in node.children.values() if (part := frozen[child]) is not None]
            aside = [parts for root in node.task_roots if (parts := below[root])]
            if len(aside) > 1:  # a single task runs within this path; several overlap
                aside = [tuple(replace(part, is_parallel=True) for part in parts) for parts in aside]
            merged = () if forgotten else node.merged
            below[node] = merge_timings([own, *aside, merged]) if aside or merged else tuple(own)
            frozen[node] = node._frozen(below[node], open_ns.get(node), forgotten=forgotten)
        return below[self]

    def _frozen(self, below: tuple[Timing, ...], open_ns: int | None, *, forgotten: bool) -> Timing | None:
        count, total_ns = (0, 0) if forgotten else (self.count, self.total_ns)
        if not (count or total_ns or below) and open_ns is None:
            return None  # it was cleared, and has not been entered since
        # Another thread that records meanwhile updates a path's children before the path.
        least_ns = sum(part.total_ns for part in below if not part.is_parallel)
        return Timing(
            name=self.name,
            count=count,
            total_ns=max(total_ns + (open_ns or 0), least_ns),
            min_ns=self.low_ns if count else None,
            max_ns=self.high_ns if count else None,
            last_ns=self.last_ns if count else None,
            children=below,
        )


# --------------------------------------------------------------------------- open paths of a thread or a task

ClockNs = Callable[[], int]


class Stack:
    """One thread's or task's tree: its ``root``, and the innermost open ``node``, or the root if none is open.

    Only its own thread changes it. If another thread resets the tree, ``pending_ns`` is when: earlier entries are
    forgotten once this thread joins the tree again. ``epoch`` is the tree's when this thread last joined.
    """

    __slots__ = ("_idle", "_tasks", "epoch", "label", "node", "pending_ns", "root")

    def __init__(self, label: str) -> None:
        self.label = label
        self.node = self.root = Node("", None)
        self.pending_ns: int | None = None
        self.epoch = 0
        self._tasks: dict[int, tuple[Stack, object]] = {}
        self._idle: dict[Node, list[Stack]] = {}

    def enter(self, node: Node, now_ns: int) -> None:
        """Open a node within the open one."""
        # Set the start before the node: another thread then never finds an open node without a start.
        node.start_ns = now_ns
        self.node = node

    def leave(self, now_ns: int) -> int:
        """Leave the open node without counting it, and return how long it was open."""
        node = self.node
        self.node = node.parent
        return now_ns - node.start_ns

    def leave_to(self, outer: Node) -> None:
        """Leave every node within ``outer`` without counting it."""
        self.node = outer

    def of_task(self) -> Stack:
        """Return the stack of the task that runs in this thread now, or this one if there is none."""
        task = running_tasks.get(_running_loop())
        if task is None:
            return self
        try:
            return self._tasks[id(task)][0]
        except KeyError:
            return self._open_task(task)

    def _open_task(self, task: object) -> Stack:
        """Give a task a stack below the path that is open in its thread: a new one, or an ended task's."""
        idle = self._idle.setdefault(self.node, [])
        if idle:
            stack = idle.pop()
        else:
            stack = self.new_task_stack()
            self.node.task_roots.append(stack.root)
        host, key = self.node, id(task)

        def end(_: object) -> None:
            # This holds no more than it needs: the reference that calls it lives as long as the task.
            self._tasks.pop(key, None)
            stack.leave_to(stack.root)
            self._idle.setdefault(host, []).append(stack)

        self._tasks[key] = stack, weakref.ref(task, end)
        return stack

    def new_task_stack(self) -> Stack:
        """Return the stack of a task that begins within the open node."""
        return Stack(self.label)

    def leave_all(self) -> None:
        """Leave everything, here and in tasks, without counting what was open."""
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
        """Forget all ended entries, and count open ones from ``before_ns`` on."""
        self.pending_ns = None
        self.root.clear_all()
        for node in self.open_nodes():
            node.start_ns = max(before_ns, node.start_ns)
        for stack, _ in list(self._tasks.values()):
            stack.forget(before_ns)


def _running_loop() -> object:
    """Return the event loop that runs in this thread, None if there is none."""
    return None


# The tasks that are running, by loop, as asyncio keeps them: empty if no coroutine runs in any thread.
running_tasks: Mapping[object, object] = {}


def watch_tasks() -> None:
    """Distinguish coroutines from now on; this imports asyncio, which takes time."""
    global _running_loop, running_tasks
    import asyncio.tasks

    _running_loop = asyncio._get_running_loop
    # Reading the dictionary takes a tenth of the time of asyncio.current_task(). It is private, and 3.14 has none.
    running_tasks = _Loops() if sys.version_info >= (3, 14) else asyncio.tasks._current_tasks  # type: ignore[attr-defined]


class _Loops(Mapping[object, object]):
    """The running tasks, for an asyncio without a dictionary of them: true while a loop runs in this thread."""

    def __getitem__(self, loop: object) -> object:
        task = None if loop is None else sys.modules["asyncio"].current_task()
        if task is None:
            raise KeyError(loop)
        return task

    def __len__(self) -> int:
        return int(_running_loop() is not None)

    def __iter__(self) -> Iterator[object]:
        return iter(())


# --------------------------------------------------------------------------- merging frozen trees


def add_timings(one: Timing, other: Timing) -> Timing:
    """Return two timings of one path as one: counts and times add up, and the last entry is ``other``'s."""
    return replace(
        one,
        count=one.count + other.count,
        total_ns=one.total_ns + other.total_ns,
        min_ns=min(_known(one.min_ns, other.min_ns), default=None),
        max_ns=max(_known(one.max_ns, other.max_ns), default=None),
        last_ns=one.last_ns if other.last_ns is None else other.last_ns,
        children=merge_timings([one.children, other.children]),
        is_parallel=one.is_parallel or other.is_parallel,
    )


def merge_timings(groups: Iterable[Iterable[Timing]]) -> tuple[Timing, ...]:
    """Return the paths of all groups, adding up those with the same name."""
    return tuple(_summed(((timing.name, timing) for group in groups for timing in group), add_timings).values())


def called(tree: TimerTree, name: str | None) -> TimerTree:
    """Return the tree, renamed unless ``name`` is None."""
    return tree if name is None else replace(tree, root=replace(tree.root, name=name))


def add_workers(trees: Iterable[TimerTree]) -> tuple[TimerTree, ...]:
    """Return the trees, adding up those with the same name, and also the workers' trees within them."""
    return tuple(_summed(((tree.name, tree) for tree in trees), _add_trees).values())


def _add_trees(one: TimerTree, other: TimerTree) -> TimerTree:
    workers = add_workers([*one.workers, *other.workers])
    return replace(one, root=add_timings(one.root, other.root), workers=workers)


def _summed(named: Iterable[tuple[str, T]], add: Callable[[T, T], T]) -> dict[str, T]:
    """Return the values by name, adding up those with the same name."""
    found: dict[str, T] = {}
    for name, value in named:
        found[name] = add(found[name], value) if name in found else value
    return found


def _known(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]
