"""The common part of the stand-ins for other libraries' timers: scopes that end late, and functions that pause."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from pytest_rlperf.timers.decorate import pauses, pausing

__all__ = ["F", "Turns", "as_generator", "pauses", "take_out", "timed_in_turns"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Context = AbstractContextManager[Any]


def take_out(open_: list[T], is_it: Callable[[T], bool], name_of: Callable[[T], object]) -> T | None:
    """Take a scope off the open ones and return its entry, None where it is not open; the first entry is the root.

    It warns of scopes that were entered within it and have not ended: they stay open.
    """
    for place in range(len(open_) - 1, 0, -1):
        if is_it(open_[place]):
            inner = ", ".join(repr(name_of(left)) for left in open_[place + 1 :])
            if inner:
                text = f"timer {name_of(open_[place])!r} ended before {inner}, entered within it"
                warnings.warn(text, RuntimeWarning, stacklevel=4)  # where the scope's with statement is
            return open_.pop(place)
    return None


class Turns(Protocol):
    """A context around each turn of a function that pauses; all turns are one entry."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

    def count(self) -> None:
        """Count all turns as one entry."""


def timed_in_turns(func: F, turns: Callable[[], Turns], whole: Callable[[], Context] | None = None) -> F:
    """Return a function that pauses with each of its calls one entry: the time in which it runs, pauses left out.

    A coroutine function has ``whole()`` around it instead, where that is given.
    """

    @contextmanager
    def in_turns() -> Iterator[Turns]:
        taken = turns()
        try:
            yield taken
        finally:
            taken.count()

    return pausing(func, whole or in_turns, in_turns)


def as_generator(func: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a coroutine function's steps as a generator function, so that it can be timed in turns."""

    def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from func(*args, **kwargs).__await__())

    return steps
