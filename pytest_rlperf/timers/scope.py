"""Scopes: the context managers that time code; timing costs what these few lines cost."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

from pytest_rlperf.timers import node as nodes
from pytest_rlperf.timers.node import ClockNs, Node, Stack

if TYPE_CHECKING:
    from pytest_rlperf.timers.tree import Tree


Timer: TypeAlias = AbstractContextManager[None]
"""A context manager that times its body, or does nothing if nothing records."""


class Nothing:
    """The scope that does nothing, for processes in which timers are not armed."""

    __slots__ = ()

    # Both take any arguments, do nothing, and return a false value, without a Python frame.
    __enter__ = staticmethod({}.clear)
    __exit__ = staticmethod("".format)


NOTHING = cast("Timer", Nothing())

# Where scopes record, as globals of this module: a scope reads them fastest. ``_local`` holds each thread's stack while
# a tree records, and is None otherwise. It is replaced whenever threads have to join the tree again, as after a reset.
_local: threading.local | None = None
_clock: ClockNs = time.perf_counter_ns
# The stack of the process's only thread, None if there are others. Leaving may rely on it: a thread enters, and so
# joins, before it leaves.
_only: Stack | None = None


class _ProcessSwitch:
    """Whether and where the scopes of this process record."""

    def __init__(self) -> None:
        self.tree: Tree | None = None  # the tree that records, or recorded last

    @property
    def is_on(self) -> bool:
        """Whether scopes record."""
        return _local is not None

    @property
    def is_timed(self) -> bool:
        """Whether scopes record time, and do not count."""
        return self.is_on and self.tree is not None and self.tree.is_timed

    def clock(self) -> int:
        """Return the nanoseconds of the clock by which scopes record."""
        return _clock()

    def turn_on(self, tree: Tree, clock: ClockNs) -> None:
        """Record scopes into ``tree``, by ``clock``."""
        global _clock, _local, _only
        self.tree = tree
        _only = None
        _clock, _local = clock, threading.local()
        # Another thread could leave a scope that it had entered before, without having joined.
        if threading.active_count() == 1:
            only = self.join()
            _only = only

    def turn_off(self) -> None:
        """Stop recording."""
        global _local, _only
        _only = _local = None

    def join(self) -> Stack:
        """Return the current thread's stack, after putting it into ``_local``."""
        global _only
        _only = None
        tree, local = self.tree, _local
        if tree is None or local is None:
            return Stack("")  # another thread has ended the recording since the caller looked
        stack = tree.join()
        local.stack = stack
        return stack

    def current(self) -> Stack | None:
        """Return the stack of the current thread or task, None if nothing records."""
        local = _local
        if local is None:
            return None
        stack: Stack = getattr(local, "stack", None) or self.join()
        return stack.of_task() if nodes.running_tasks else stack


PROCESS = _ProcessSwitch()


class _Bracket(type):
    """The type of scopes: every scope holds its own functions for the two methods that ``with`` calls.

    To call a method, ``with`` first makes a bound method. Done twice per entry, that takes an eighth of a scope's time.
    ``contextlib.ExitStack`` looks the methods up on the class, where it finds the two properties below.
    """

    @property
    def __enter__(cls) -> Callable[[Timer], None]:
        return lambda scope: scope.__enter__()

    @property
    def __exit__(cls) -> Callable[..., None]:
        return lambda scope, *raised: scope.__exit__(*raised)


class Scope(metaclass=_Bracket):
    """A reusable, reentrant context manager that times its body under ``name``; bind it once to save the look-up.

    Its parent is the scope open around it, in the same thread and task, when it is entered. It records into the
    process's tree.
    """

    __slots__ = ("__enter__", "__exit__", "name")

    if TYPE_CHECKING:

        def __enter__(self) -> None: ...

        def __exit__(self, kind: object, error: object, traceback: object, /) -> None: ...

    def __init__(self, name: str) -> None:
        if not name or "/" in name:
            raise ValueError(f"a timer's name must be non-empty and without '/', which joins paths: {name!r}")
        self.name = sys.intern(name)
        self.__enter__, self.__exit__ = self._bracket()  # type: ignore[method-assign]  # slots, whatever they look like

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name,)  # names are interned in each process

    def _bracket(self) -> tuple[Callable[[], None], Callable[..., None]]:
        """Return the two functions that ``with`` calls, with their work written out: calls would double the cost."""
        name = self.name

        def enter() -> None:
            local = _local
            if local is None:
                return
            try:
                stack = local.stack
            except AttributeError:
                stack = PROCESS.join()
            if nodes.running_tasks:
                stack = stack.of_task()
            try:
                node = stack.node.children[name]
            except KeyError:
                node = stack.node.child(name)
            # Set the start before the node: another thread then never finds an open node without a start.
            node.start_ns = _clock()
            stack.node = node

        def leave(kind: object, error: object, traceback: object) -> None:
            stack = _only
            if stack is not None:
                now_ns = _clock()
            else:
                local = _local
                if local is None:
                    return
                now_ns = _clock()
                try:
                    stack = local.stack
                except AttributeError:
                    stack = PROCESS.join()
            if nodes.running_tasks:
                stack = stack.of_task()
            node = stack.node
            if node.name is not name:
                self._leave_late(stack, now_ns)
                return
            stack.node = node.parent
            node.last_ns = elapsed_ns = now_ns - node.start_ns
            node.count += 1
            node.total_ns += elapsed_ns
            if elapsed_ns < node.low_ns or elapsed_ns > node.high_ns:
                node.note(elapsed_ns)

        return enter, leave

    def _leave_late(self, stack: Stack, now_ns: int) -> None:
        """Leave this scope when another one is the innermost open scope."""
        inner: list[Node] = []
        for node in stack.open_nodes():
            if node.name is self.name:
                break
            inner.append(node)
        else:
            return  # entered before recording began, or already ended together with a scope around it
        for left in inner:
            left.close(now_ns - left.start_ns)
        node.close(now_ns - node.start_ns)
        stack.leave_to(node.parent)
        if inner:
            names = ", ".join(repr(left.name) for left in inner)
            fault = f"{names} within {self.name!r} had not ended when it did, and ended with it"
            warnings.warn(f"timers left out of order: {fault}", RuntimeWarning, stacklevel=3)


# --------------------------------------------------------------------------- timing a function's body
# At once, awaited, or a piece at a time.

F = TypeVar("F", bound=Callable[..., Any])
Context = AbstractContextManager[Any]


def within(fn: F, context: Callable[[], Context]) -> F:
    """Return ``fn`` with contexts around its body.

    A call runs within ``context()``, a coroutine from its first step to its last, a generator from one item to the
    next. An asynchronous generator is returned unchanged, with a warning. Static and class methods stay what they are.
    """
    if isinstance(fn, staticmethod | classmethod):
        return cast("F", type(fn)(within(fn.__func__, context)))
    if inspect.isasyncgenfunction(fn):
        text = f"{fn!r} is an asynchronous generator, which is not timed: put a scope within it"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
        return fn

    def function(*args: Any, **kwargs: Any) -> Any:
        with context():
            return fn(*args, **kwargs)

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with context():
            return await fn(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _in_turns(fn(*args, **kwargs), context))

    timed = coroutine if inspect.iscoroutinefunction(fn) else generator if pauses(fn) else function
    return cast("F", functools.wraps(fn)(timed))


def pauses(fn: Callable[..., Any]) -> bool:
    """Whether a call of ``fn`` returns before its body has run."""
    return inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def _in_turns(body: Generator[Any, Any, Any], context: Callable[[], Context]) -> Generator[Any, Any, Any]:
    """Run a generator, with each of its turns within ``context()``."""
    step: Callable[[Any], Any] = body.send
    given: Any = None
    while True:
        try:
            with context():
                item = step(given)
        except StopIteration as end:
            return end.value
        try:
            given = yield item
            step = body.send
        except GeneratorExit:
            with context():
                body.close()
            raise
        except BaseException as error:  # the body handles it
            given, step = error, body.throw


P = ParamSpec("P")
R = TypeVar("R")


def decorate(function: Callable[P, R], scope: Scope) -> Callable[P, R]:
    """Return ``function`` with ``scope`` around its body, as :func:`within` does; a plain function costs less."""
    if isinstance(function, staticmethod | classmethod):
        return cast("Callable[P, R]", type(function)(decorate(function.__func__, scope)))
    if pauses(function):
        return within(function, lambda: scope)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        # Two calls take less time than a with statement. They are looked up here because only the scope can be pickled.
        enter, leave = scope.__enter__, scope.__exit__
        enter()
        try:
            return function(*args, **kwargs)
        finally:
            leave(None, None, None)

    return wrapper
