"""The names of ``mlagents_envs.timers``, with the same trees and the same JSON.

Figures are seconds as they were. On purpose different are, all of them where the original loses track:

- A thread's timers end with it. Another one that is given its identifier later starts with none, and
  :func:`get_timer_stack_for_thread` finds those of a thread that has ended for as long as the thread is kept.
- Scopes that are open at :func:`reset_timers` go on in the new tree, and count from then.
- A scope that ends before one within it warns, and takes nothing but itself off the open ones.
- A timed coroutine is timed from its first step to its last, and what it waits for is not timed below it; a timed
  generator while it runs, each one entry. What either has open is not open while it pauses.
- :func:`timed` keeps a function's name, documentation and signature, and takes static and class methods.
- Merged gauges are copies, and so is a tree's metadata: neither changes any more once taken.
"""

from __future__ import annotations

import inspect
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import coroutine
from typing import Any, TypeVar, cast

from pytest_rlperf.compat.mlagents_tree import TIMER_FORMAT_VERSION, GaugeNode, TimerNode, TimerStack
from pytest_rlperf.timers.decorate import pauses, pausing

__all__ = [
    "TIMER_FORMAT_VERSION",
    "FuncT",
    "GaugeNode",
    "TimerNode",
    "TimerStack",
    "add_metadata",
    "get_timer_root",
    "get_timer_stack_for_thread",
    "get_timer_tree",
    "hierarchical_timer",
    "merge_gauges",
    "reset_timers",
    "set_gauge",
    "timed",
]

FuncT = TypeVar("FuncT", bound=Callable[..., Any])


# --------------------------------------------------------------------------- threads


class _Stacks(dict[int, TimerStack]):
    """The stacks of the threads that run, by their identifiers; those of threads that have ended are kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: weakref.WeakKeyDictionary[threading.Thread, TimerStack] = weakref.WeakKeyDictionary()
        self.locals = threading.local()

    def clear(self) -> None:
        super().clear()
        self.ended.clear()

    def join(self) -> TimerStack:
        """Return a stack for the current thread: a new one, or its own if it was thought to have ended."""
        thread = threading.current_thread()
        if not hasattr(self.locals, "presence"):
            self.locals.presence = _Presence(self, threading.get_ident(), thread)
        # Python may see a thread that it has not started begin and end with each call it makes.
        return self.ended.pop(thread, None) or TimerStack()


class _Presence:
    """Lives among a thread's locals, and so dies with it, before its identifier is another's."""

    def __init__(self, stacks: _Stacks, ident: int, thread: threading.Thread) -> None:
        self._stacks, self._ident, self._thread = stacks, ident, thread

    def __del__(self) -> None:
        stack = self._stacks.pop(self._ident, None)
        if stack is not None:
            self._stacks.ended[self._thread] = stack


_stacks = _thread_timer_stacks = _Stacks()


def _get_thread_timer() -> TimerStack:
    stack = _thread_timer_stacks.get(threading.get_ident())
    if stack is None:
        stack = _thread_timer_stacks[threading.get_ident()] = _stacks.join()
    return stack


def get_timer_stack_for_thread(t: threading.Thread) -> TimerStack | None:
    """Return a thread's stack, whether or not it has ended; None where it has timed nothing."""
    if t.ident is None:
        return None
    stack = _thread_timer_stacks.get(t.ident)
    if stack is not None and t.is_alive():  # asked last: if it is alive now, the identifier was its own before
        return stack
    return _stacks.ended.get(t)


# --------------------------------------------------------------------------- timing


class hierarchical_timer:  # noqa: N801 - ML-Agents' name
    """Times its body, or each call of what it decorates, as ``name`` below what is open in the thread.

    ``timer_stack`` is what to time in instead. A ``with`` statement is given the node.
    """

    __slots__ = ("_name", "_node", "_stack", "_start", "_timer_stack")

    def __init__(self, name: str, timer_stack: TimerStack | None = None) -> None:
        self._name = name
        self._timer_stack = timer_stack

    def __call__(self, func: FuncT) -> FuncT:
        """Return ``func`` with each of its calls timed."""
        return _timed(func, self._name, self._timer_stack)

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
            _leave(stack, node, self._start, elapsed)


def _leave(stack: TimerStack, node: TimerNode, start: float, elapsed: float) -> None:
    """Count an entry that is not the innermost open one, or was open at a reset."""
    if node in stack.moved:
        node = stack.moved.pop(node)
        elapsed -= max(0.0, stack.start_time - start)
    node.add_time(elapsed)
    place = _place(stack, node)
    if place is None:
        warnings.warn(f"timer {node.name!r} was closed by pop() before it ended", RuntimeWarning, stacklevel=3)
        return
    inner = ", ".join(repr(left.name) for left in stack.stack[place + 1 :])
    if inner:
        text = f"timer {node.name!r} ended before {inner}, entered within it"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    del stack.stack[place]


def _place(stack: TimerStack, node: TimerNode) -> int | None:
    nodes = stack.stack
    return next((place for place in range(len(nodes) - 1, 0, -1) if nodes[place] is node), None)


def timed(func: FuncT) -> FuncT:
    """Return ``func`` with each of its calls timed under its qualified name."""
    if isinstance(func, staticmethod | classmethod):
        return cast("FuncT", type(func)(timed(func.__func__)))
    return _timed(func, getattr(func, "__qualname__", type(func).__qualname__), None)


def _timed(func: FuncT, name: str, timer_stack: TimerStack | None) -> FuncT:
    if pauses(func):
        return _pausing(func, name, timer_stack)

    @wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with hierarchical_timer(name, timer_stack):
            return func(*args, **kwargs)

    return cast("FuncT", wrapped)


def _pausing(func: FuncT, name: str, timer_stack: TimerStack | None) -> FuncT:
    """Return a coroutine or generator function with its name open while it runs, and not while it pauses."""
    waits = inspect.iscoroutinefunction(func)

    @contextmanager
    def in_turns() -> Iterator[_Turn]:
        turn = _Turn(name, timer_stack, waits)
        try:
            yield turn
        finally:
            turn.count()

    if not waits:
        return pausing(func, in_turns, in_turns)

    def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from func(*args, **kwargs).__await__())

    taken_in_turns = coroutine(pausing(steps, in_turns, in_turns))

    @wraps(func)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await taken_in_turns(*args, **kwargs)

    return cast("FuncT", wrapped)


class _Turn:
    """Opens a path for one turn after another, along with what was left open below it when the last one ended.

    All turns are one entry. If it ``waits``, what lies between them is its time too.
    """

    def __init__(self, name: str, timer_stack: TimerStack | None, waits: bool) -> None:
        self._name = name
        self._timer_stack = timer_stack
        self._waits = waits
        self._stack: TimerStack | None = None
        self._root: TimerNode | None = None
        self._open: list[TimerNode] = []
        self._start = self._end = self._elapsed = 0.0

    def __enter__(self) -> None:
        stack = self._timer_stack or _get_thread_timer()
        again = stack is self._stack and stack.root is self._root
        if again:
            stack.stack += self._open
        else:  # the first turn, or one in another tree than the last
            self._stack, self._elapsed = stack, 0.0
            self._open[:1] = [stack.push(self._name)]
            stack.stack += self._open[1:]
        now = time.perf_counter()
        self._start = self._end if self._waits and again else now

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._end = time.perf_counter()
        stack, node = cast("TimerStack", self._stack), self._open[0]
        if node in stack.moved:
            node = stack.moved.pop(node)
            self._start, self._elapsed = max(self._start, stack.start_time), 0.0
        self._elapsed += self._end - self._start
        self._root, self._open = stack.root, [node]
        place = _place(stack, node)
        if place is not None:
            self._open = stack.stack[place:]
            del stack.stack[place:]

    def count(self) -> None:
        """Count all turns, if there was one."""
        if self._open:
            self._open[0].add_time(self._elapsed)


# --------------------------------------------------------------------------- the current thread's tree


def set_gauge(name: str, value: float, timer_stack: TimerStack | None = None) -> None:
    """Set a gauge, of the current thread's tree or the given one."""
    (timer_stack or _get_thread_timer()).set_gauge(name, value)


def merge_gauges(gauges: Mapping[str, GaugeNode], timer_stack: TimerStack | None = None) -> None:
    """Add other gauges to those of the current thread's tree or the given one."""
    own = (timer_stack or _get_thread_timer()).gauges
    for name, gauge in gauges.items():
        if name in own:
            own[name].merge(gauge)
        else:
            own[name] = gauge.copy()


def add_metadata(key: str, value: str, timer_stack: TimerStack | None = None) -> None:
    """Keep a text with the current thread's tree or the given one."""
    (timer_stack or _get_thread_timer()).add_metadata(key, value)


def get_timer_tree(timer_stack: TimerStack | None = None) -> dict[str, Any]:
    """Return the current thread's tree or the given one as JSON has it."""
    return (timer_stack or _get_thread_timer()).get_timing_tree()


def get_timer_root(timer_stack: TimerStack | None = None) -> TimerNode:
    """Return the root of the current thread's tree or the given one."""
    return (timer_stack or _get_thread_timer()).get_root()


def reset_timers(timer_stack: TimerStack | None = None) -> None:
    """Begin the current thread's tree or the given one anew; what is open stays open, and counts from now."""
    (timer_stack or _get_thread_timer()).reset()
