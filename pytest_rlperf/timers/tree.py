"""Trees of named scopes while they record: a stack per thread and task, and a snapshot of them all."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.timers.node import ClockNs, Node, Stack, add_workers, called, merge_timings
from pytest_rlperf.timers.scope import PROCESS

if TYPE_CHECKING:  # timers in production code load no other library
    from pytest_rlperf.model.measured import Phase

_NUMBERED = re.compile(r"^(Thread|Dummy)-\d+")  # the generated names of Python's threads, and of C++'s


class Tree:
    """The timings of a process, or of a recording.

    The paths of the thread that makes it are at the top. Another thread's paths are below its name, and threads with
    the same name are added up once they end. ``clock`` returns integer nanoseconds. A tree may be used from any thread;
    a :meth:`snapshot` may lack the scope that another thread ends at that moment. It ``is_timed`` unless its clock
    counts something else.
    """

    def __init__(self, name: str = "root", clock: ClockNs = time.perf_counter_ns) -> None:
        self.name = name
        self.clock = clock
        self.is_timed = True
        self._lock = threading.RLock()
        self._homes = threading.local()
        self._owner = self.new_stack("")
        self._homes.stack = self._owner
        self._stacks = {self._owner: threading.current_thread()}
        self._ended: dict[str, tuple[Timing, ...]] = {}
        self._workers: tuple[TimerTree, ...] = ()
        self._since_ns: int | None = None
        self._before_ns = 0
        self._epoch = 0

    # ------------------------------------------------------------------ recording

    def record(self) -> None:
        """Record this process's scopes here from now on."""
        if self._since_ns is None:
            self._since_ns = self.clock()
        self._epoch += 1
        PROCESS.turn_on(self, self.clock)

    def pause(self) -> None:
        """Stop recording; open scopes are never counted."""
        PROCESS.turn_off()
        if self._since_ns is not None:
            self._before_ns += self.clock() - self._since_ns
            self._since_ns = None

    @property
    def _is_recording(self) -> bool:
        return PROCESS.is_on and PROCESS.tree is self

    def join(self) -> Stack:
        """Return the current thread's stack, brought up to date with resets and recordings since it last joined."""
        stack: Stack | None = getattr(self._homes, "stack", None)
        if stack is None:
            thread = threading.current_thread()
            # A generated name loses its number: threads with one come and go, and are added up.
            stack = self._homes.stack = self.new_stack(_NUMBERED.sub("Thread", thread.name))
            with self._lock:
                self._release_ended()
                self._stacks[stack] = thread
        if stack.epoch != self._epoch:
            stack.epoch = self._epoch
            stack.leave_all()  # what was open when recording ended
        if stack.pending_ns is not None:
            stack.forget(stack.pending_ns)
        return stack

    def new_stack(self, label: str) -> Stack:
        """Return an empty stack for a thread."""
        return Stack(label)

    def merge(self, other: TimerTree, root_name: str, *, worker: str | None = None) -> None:
        """Add another tree as ``root_name`` below the path that is open here, and not as part of that path's time.

        The snapshot keeps ``other`` itself in ``workers``, as ``worker`` or by its own name.
        """
        stack = PROCESS.current() if self._is_recording else None
        with self._lock:
            node = self._owner.node if stack is None else stack.node
            node.add([replace(other.root, name=root_name, is_parallel=True)])
            self._workers = add_workers([*self._workers, called(other, worker)])

    # ------------------------------------------------------------------ reading

    def snapshot(self) -> TimerTree:
        """Return all timings until now; an open entry has its duration so far, and is not counted."""
        with self._lock:
            now_ns = self.clock()
            below = merge_timings([self._seen(self._owner, now_ns), self._threads(now_ns)])
            on_ns = self._before_ns + (0 if self._since_ns is None else now_ns - self._since_ns)
            sequential_ns = sum(timing.total_ns for timing in below if not timing.is_parallel)
            root = Timing(self.name, 1, max(on_ns, sequential_ns), children=below)
            return TimerTree(root, workers=self._workers)

    def reset(self) -> TimerTree:
        """Forget everything, and return it; open scopes go on, and count from now."""
        with self._lock:
            seen = self.snapshot()
            now_ns = self.clock()
            mine = getattr(self._homes, "stack", None)
            for stack in self._stacks:
                if stack is mine:
                    stack.forget(now_ns)
                else:
                    stack.pending_ns = now_ns  # only the thread itself may change its stack
            if self._is_recording:
                PROCESS.turn_on(self, self.clock)
            self._ended, self._workers = {}, ()
            self._before_ns = 0
            self._since_ns = None if self._since_ns is None else now_ns
        return seen

    def phases(self, iterations: int) -> tuple[Phase, ...]:
        """Return the paths of the thread that made the tree, per iteration, without other threads."""
        from pytest_rlperf.model.measured import Phase

        with self._lock:
            seen = Timing("", 0, 0, children=self._seen(self._owner, self.clock()))
        return tuple(
            Phase(
                path="/".join(path),
                count=timing.count / iterations,
                total_s=timing.total_ns / iterations / 1e9,
                self_s=timing.self_ns / iterations / 1e9,
                device="host",
            )
            for path, timing in seen.walk()
        )

    def _seen(self, stack: Stack, now_ns: int) -> tuple[Timing, ...]:
        return stack.root.timings(stack.open_ns(now_ns), forgotten=stack.pending_ns is not None)

    def _threads(self, now_ns: int) -> list[Timing]:
        """Return a path for every other thread, or for several with the same name."""
        found = dict(self._ended)
        for stack in self._stacks:
            if stack is not self._owner:
                found[stack.label] = merge_timings([found.get(stack.label, ()), self._seen(stack, now_ns)])
        return [
            Timing(label, 1, sum(t.total_ns for t in below if not t.is_parallel), children=below, is_parallel=True)
            for label, below in found.items()
            if below
        ]

    def _release_ended(self) -> None:
        """Keep the timings of ended threads, and release their stacks."""
        for stack in [stack for stack, thread in self._stacks.items() if not thread.is_alive()]:
            if stack is not self._owner:
                del self._stacks[stack]
                self._ended[stack.label] = merge_timings([self._ended.get(stack.label, ()), self._seen(stack, 0)])


# --------------------------------------------------------------------------- the observer of phases' edges

OnEnter: TypeAlias = "Callable[[EdgeStack, Node], None]"
OnLeave: TypeAlias = "Callable[[EdgeStack, Node, Node], None]"


class EdgeTree(Tree):
    """A tree that calls ``on_enter(stack, node)`` and ``on_leave(stack, node, outer)`` in the thread that moved.

    A scope that ends late also ends those within it, so a leave is from ``node``, the innermost, up to ``outer``, which
    stays open. The calls themselves allocate nothing, so that an observer can count memory.
    """

    def __init__(self, on_enter: OnEnter, on_leave: OnLeave, clock: ClockNs = time.perf_counter_ns) -> None:
        self._on_enter = on_enter
        self._on_leave = on_leave
        super().__init__(clock=clock)

    def new_stack(self, label: str) -> Stack:
        """Return the stack of a thread."""
        return EdgeStack(label, self._on_enter, self._on_leave, ())


class EdgeStack(Stack):
    """A stack in an :class:`EdgeTree`; ``host`` are the names of the phases that a task began in, none for a thread.

    Scopes store a stack's open node by one assignment. In a plain stack, ``node`` is a slot, so unobserved timers pay
    nothing. In this stack, it is a property that calls the observer.
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
        """Return a stack for a task that begins within the open node."""
        return EdgeStack(self.label, self._on_enter, self._on_leave, (*self.host, *path_of(self.node)))


def path_of(node: Node) -> tuple[str, ...]:
    """Return the names from a node's root down to it; a part without a name stands for its phase."""
    names = []
    while node.parent is not node:
        if node.name:
            names.append(node.name)
        node = node.parent
    return tuple(reversed(names))


class FakeClock:
    """A clock of integer nanoseconds that stands still, for tests; :meth:`advance` lets time pass."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        """Read the clock."""
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now_ns += round(seconds * 1e9)
