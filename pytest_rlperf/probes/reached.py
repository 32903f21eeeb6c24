"""What an object is made of, as far as it can be reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType

from pytest_rlperf.probes.parts import variables_of

MOST_OBJECTS = 10_000  # looked at; a buffer may hold its transitions as objects


def reached(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield an object and what it is made of with the path to each from ``name``, the nearest first.

    These are attributes, members of containers, what bound methods are of, and variables of functions.
    """
    waiting: deque[tuple[str, object]] = deque([(name, value)])
    seen: set[int] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        path, value = waiting.popleft()
        if id(value) in seen or issubclass(type(value), type | ModuleType):
            continue
        seen.add(id(value))
        yield path, value
        with suppress(Exception):  # a proxy of what is gone, or what makes its attributes, may raise anything
            waiting.extend(islice(_members(path, value), MOST_OBJECTS))


def _members(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, FunctionType):
        yield from ((f"{path}.{name}", member) for name, member in variables_of(value).items())
        yield from ((f"{path}({index})", member) for index, member in enumerate(value.__defaults__ or ()))
        yield from ((f"{path}({name})", member) for name, member in (value.__kwdefaults__ or {}).items())
    elif isinstance(value, MethodType):
        yield path, value.__self__
        yield f"{path}.__func__", value.__func__
    elif isinstance(value, partial):
        yield path, value.func
        yield from ((f"{path}[{index}]", member) for index, member in enumerate(value.args))
        yield from ((f"{path}[{name}]", member) for name, member in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", member) for key, member in value.items())
    elif isinstance(value, list | tuple | deque | set | frozenset):
        yield from ((f"{path}[{index}]", member) for index, member in enumerate(value))
    else:
        for slot in _slots(type(value)):
            if hasattr(value, slot):
                yield f"{path}.{slot}", getattr(value, slot)
        own = getattr(value, "__dict__", None)
        yield from ((f"{path}.{name}", member) for name, member in (own if isinstance(own, dict) else {}).items())


def _slots(kind: type) -> Iterator[str]:
    """Yield the names that a class's own slots have, less private ones and those that are no attributes."""
    for origin in kind.__mro__:
        slots = origin.__dict__.get("__slots__", ())
        yield from (slot for slot in ((slots,) if isinstance(slots, str) else slots) if not slot.startswith("__"))
