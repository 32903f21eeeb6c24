"""Timing a function's body, whichever way it runs: at once, awaited, or a piece at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.pausing import pauses, pausing
from pytest_rlperf.timers.scope import Scope
from pytest_rlperf.timers.stack import Stack

P = ParamSpec("P")
R = TypeVar("R")


def name_of(function: Callable[..., object]) -> str:
    """Return what a function is timed as: its qualified name."""
    return function.__qualname__.replace("<locals>.", "")


def decorate(function: Callable[P, R], scope: Scope) -> Callable[P, R]:
    """Return ``function`` with ``scope`` around its body.

    A coroutine is timed from its first step to its last, what it waits for included; a generator while it runs, what
    its consumer does in between left out, each generator as one entry.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("Callable[P, R]", type(function)(decorate(function.__func__, scope)))
    if pauses(function):
        return pausing(function, lambda: cast("AbstractContextManager[None]", scope), lambda: _Entry(scope))
    return cast("Callable[P, R]", functools.wraps(function)(_around_call(function, scope)))


def _around_call(function: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Called one by one, they take less than in a with statement. Looked up here: only the scope can be pickled.
        enter, leave = scope.__enter__, scope.__exit__
        enter()
        try:
            return function(*args, **kwargs)
        finally:
            leave(None, None, None)

    return wrapper


class _Entry(AbstractContextManager["_Part"]):
    """One entry of a path that is made of several parts."""

    def __init__(self, scope: Scope) -> None:
        self._part = _Part(scope)

    def __enter__(self) -> _Part:
        return self._part

    def __exit__(self, kind: object, error: object, traceback: TracebackType | None) -> None:
        self._part.count()


class _Part(AbstractContextManager[None]):
    """Times one part after another, none of them an entry by itself."""

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
            stack.node = node.parent
            node.total_ns += now_ns - node.start_ns
            self._elapsed_ns = now_ns - node.start_ns + self._earlier_ns(node)
            self._node, self._clearings = node, node.clearings

    def _earlier_ns(self, node: Node) -> int:
        """Return what earlier parts took, as far as ``node`` still has it: a reset may have come between."""
        return self._elapsed_ns if node is self._node and node.clearings == self._clearings else 0

    def count(self) -> None:
        """Count all parts as one entry of the path that the last of them was on."""
        node = self._node
        if node is not None:
            elapsed_ns = self._earlier_ns(node)
            node.total_ns -= elapsed_ns
            node.close(elapsed_ns)
