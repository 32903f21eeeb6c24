"""Timing a function's body, whichever way it runs: at once, awaited, or a piece at a time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.scope import Scope
from pytest_rlperf.timers.stack import Stack

F = TypeVar("F", bound=Callable[..., Any])
Context = AbstractContextManager[Any]


def pauses(fn: Callable[..., Any]) -> bool:
    """Whether a call of ``fn`` returns before its body has run."""
    return inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def pausing(fn: F, whole: Callable[[], Context], in_turns: Callable[[], Context]) -> F:
    """Return ``fn`` with contexts around its body.

    A coroutine runs within ``whole()`` from its first step to its last. A generator likewise runs within
    ``in_turns()``, and each of its turns, from one item to the next, runs within the context that this yields.
    """

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with whole():
            return await fn(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with in_turns() as turn:
            return (yield from _taking_turns(fn(*args, **kwargs), turn))

    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with in_turns() as turn:
            body = fn(*args, **kwargs)
            step, given = body.asend, None
            while True:
                try:
                    with turn:
                        item = await step(given)
                except StopAsyncIteration:
                    return
                try:
                    given = yield item
                    step = body.asend
                except GeneratorExit:
                    with turn:
                        await body.aclose()
                    raise
                except BaseException as error:  # which the body handles
                    given, step = error, body.athrow

    if inspect.iscoroutinefunction(fn):
        return cast("F", wraps(fn)(coroutine))
    return cast("F", wraps(fn)(generator if inspect.isgeneratorfunction(fn) else async_generator))


def _taking_turns(body: Generator[Any, Any, Any], turn: Context) -> Generator[Any, Any, Any]:
    """Run a generator, each of its turns within ``turn``."""
    step: Callable[[Any], Any] = body.send
    given: Any = None
    while True:
        try:
            with turn:
                item = step(given)
        except StopIteration as end:
            return end.value
        try:
            given = yield item
            step = body.send
        except GeneratorExit:
            with turn:
                body.close()
            raise
        except BaseException as error:  # which the body handles
            given, step = error, body.throw


P = ParamSpec("P")
R = TypeVar("R")


def name_of(function: Callable[..., object]) -> str:
    """Return the name that a function is timed by: its qualified name."""
    return function.__qualname__.replace("<locals>.", "")


def decorate(function: Callable[P, R], scope: Scope) -> Callable[P, R]:
    """Return ``function`` with ``scope`` around its body.

    A coroutine is timed from its first step to its last, waits included. A generator is timed while it runs, without
    the time of its consumer, and each generator is one entry.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("Callable[P, R]", type(function)(decorate(function.__func__, scope)))
    if pauses(function):
        return pausing(function, lambda: cast("AbstractContextManager[None]", scope), lambda: _Entry(scope))
    return cast("Callable[P, R]", functools.wraps(function)(_around_call(function, scope)))


def _around_call(function: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Two calls take less time than a with statement. They are looked up here because only the scope can be pickled.
        enter, leave = scope.__enter__, scope.__exit__
        enter()
        try:
            return function(*args, **kwargs)
        finally:
            leave(None, None, None)

    return wrapper


class _Entry(AbstractContextManager["_Part"]):
    """One entry of a path, made of several parts."""

    def __init__(self, scope: Scope) -> None:
        self._part = _Part(scope)

    def __enter__(self) -> _Part:
        return self._part

    def __exit__(self, kind: object, error: object, traceback: TracebackType | None) -> None:
        self._part.count()


class _Part(AbstractContextManager[None]):
    """Times one part after another; no part is an entry by itself."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._at: tuple[Stack, Node] | None = None
        self._node: Node | None = None
        self._elapsed_ns = 0
        self._clearings = 0

    def __enter__(self) -> None:
        self._at = self._scope.enter()

    def __exit__(self, kind: object, error: object, traceback: TracebackType | None) -> None:
        now_ns = self._scope.switch.clock()
        if self._at is None:
            return
        stack, node = self._at
        if stack.node is node:
            elapsed_ns = stack.leave(now_ns)
            node.total_ns += elapsed_ns
            self._elapsed_ns = elapsed_ns + self._earlier_ns(node)
            self._node, self._clearings = node, node.clearings

    def _earlier_ns(self, node: Node) -> int:
        """Return the time of earlier parts, 0 where a reset has cleared it from ``node`` since."""
        return self._elapsed_ns if node is self._node and node.clearings == self._clearings else 0

    def count(self) -> None:
        """Count all parts as one entry of the path of the last part."""
        node = self._node
        if node is not None:
            elapsed_ns = self._earlier_ns(node)
            node.total_ns -= elapsed_ns
            node.close(elapsed_ns)
