"""Decorating functions whose calls do not run through: coroutines and generators."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
Context = AbstractContextManager[Any]


def pauses(fn: Callable[..., Any]) -> bool:
    """Whether a call of ``fn`` returns before its body has run."""
    return inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def pausing(fn: F, whole: Callable[[], Context], in_turns: Callable[[], Context]) -> F:
    """Return ``fn`` with contexts around what it does.

    A coroutine function has ``whole()`` around it from its first step to its last. A generator function has
    ``in_turns()`` around it likewise, and what that gives around each of its turns, from one item to the next.
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
                except BaseException as error:  # the body's to handle
                    given, step = error, body.athrow

    kind: Callable[..., Any] = async_generator
    if inspect.iscoroutinefunction(fn):
        kind = coroutine
    elif inspect.isgeneratorfunction(fn):
        kind = generator
    return cast("F", wraps(fn)(kind))


def _taking_turns(body: Generator[Any, Any, Any], turn: Context) -> Generator[Any, Any, Any]:
    """Run a generator as it is, with ``turn`` around what it does between two items."""
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
        except BaseException as error:  # the body's to handle
            given, step = error, body.throw
