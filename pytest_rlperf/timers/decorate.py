"""Timing a function's body, whichever way it runs: at once, awaited, or a piece at a time."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from pytest_rlperf.timers.scope import Scope

F = TypeVar("F", bound=Callable[..., Any])
Context = AbstractContextManager[Any]


def pauses(fn: Callable[..., Any]) -> bool:
    """Whether a call of ``fn`` returns before its body has run."""
    return inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def pausing(fn: F, context: Callable[[], Context]) -> F:
    """Return ``fn`` with contexts around its body.

    A coroutine runs within ``context()`` from its first step to its last, a generator from one item to the next.
    """

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with context():
            return await fn(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _in_turns(fn(*args, **kwargs), context))

    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = fn(*args, **kwargs)
        step, given = body.asend, None
        while True:
            try:
                with context():
                    item = await step(given)
            except StopAsyncIteration:
                return
            try:
                given = yield item
                step = body.asend
            except GeneratorExit:
                with context():
                    await body.aclose()
                raise
            except BaseException as error:  # which the body handles
                given, step = error, body.athrow

    if inspect.iscoroutinefunction(fn):
        return cast("F", wraps(fn)(coroutine))
    return cast("F", wraps(fn)(generator if inspect.isgeneratorfunction(fn) else async_generator))


def _in_turns(body: Generator[Any, Any, Any], context: Callable[[], Context]) -> Generator[Any, Any, Any]:
    """Run a generator, each of its turns within ``context()``."""
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
    the time of its consumer: from one item to the next is an entry.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("Callable[P, R]", type(function)(decorate(function.__func__, scope)))
    if pauses(function):
        return pausing(function, lambda: cast("AbstractContextManager[None]", scope))
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
