"""Returned objects that stand for work still to be done: coroutines, generators, futures, lazy and asynchronous arrays.

They are recognised by their classes, so that no library is imported, and no code of a proxy runs. JAX's arrays are not
among them: those who measure wait for these (see ``devices.jax``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

from pytest_rlperf.devices import devices_of, is_driven
from pytest_rlperf.errors import ComponentError

T = TypeVar("T")

_DEEPEST = 3  # containers within each other
_LOOKED_AT_MOST = 64  # members of a container

# Classes by their names, each with its module or a package around that, and the way to their values.
_LAZY = {("builtins", "map"), ("builtins", "filter"), ("multiprocessing.pool", "IMapIterator")}
_HANDLES = {
    ("concurrent.futures", "Future"): "call .result()",
    ("distributed", "Future"): "call .result()",
    ("multiprocessing.pool", "ApplyResult"): "call .get()",
    ("ray", "ObjectRef"): "call ray.get(…)",
    ("ray", "ObjectRefGenerator"): "call ray.get(list(…))",
    ("mlx", "array"): "call mlx.core.eval(…)",
    ("cupy", "ndarray"): "call cupy.cuda.Device().synchronize(), and return no CuPy array,",
}
_WAITS = ("block_until_ready", "wait")
_WAITED_FOR = ("jax", "jaxlib")  # by those who measure


def finished(output: T, call: str) -> T:
    """Return a call's output; ComponentError where it stands for work that has not been done, or may not have been.

    Members of tuples, lists and dicts count as well. ``call`` names the call in the error's text.
    """
    __tracebackhide__ = True
    has_run(output, call)
    for place, value in _members(output):
        remedy = _remedy_of_a_handle(value)
        if remedy is not None:
            raise ComponentError(
                f"{call} returned {_named(value)}{place}, whose work may not be done yet: {remedy} within the call"
            )
    return output


def has_run(output: T, call: str) -> T:
    """Return a function's output; ComponentError where it, or a member, is code that has not run: a generator."""
    __tracebackhide__ = True
    for place, value in _members(output):
        remedy = _remedy_of_code(value)
        if remedy is not None:
            with suppress(Exception):
                value.close()  # Python warns of a coroutine that was never awaited
            raise ComponentError(
                f"{call} returned {_named(value)}{place}, whose code has not run yet: {remedy} within the call"
            )
    return output


def _members(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield an object and the members of containers, each with its place in words."""
    yield path and f" at {path}", value
    pairs: Iterable[tuple[object, Any]] = ()
    if issubclass(type(value), dict):
        pairs = value.items()
    elif issubclass(type(value), tuple | list):
        pairs = enumerate(value)
    for key, member in islice(pairs, _LOOKED_AT_MOST) if depth < _DEEPEST else ():
        yield from _members(member, f"{path}[{key!r}]", depth + 1)


def _named(value: Any) -> str:
    """Return the name of an object's class, and of the function whose code it runs."""
    kind = type(value)
    if kind.__module__ != "builtins":
        return f"{kind.__module__}.{kind.__qualname__}"
    name = kind.__name__.replace("_", " ")
    function = f" of {value.__qualname__}" if hasattr(value, "__qualname__") else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{function}"


def _remedy_of_code(value: Any) -> str | None:
    """Return how to run an object that is code which has not run; None for any other object."""
    kind = type(value)
    if kind is CoroutineType:
        return f"call asyncio.run({value.__name__}(…))"
    if kind is AsyncGeneratorType:
        return "exhaust it in a coroutine that asyncio.run(…) runs"
    if kind is GeneratorType:
        return f"call list({value.__name__}(…))"
    return "call list(…)" if any(_is_of(kind, *name) for name in _LAZY) else None


def _remedy_of_a_handle(value: Any) -> str | None:
    """Return how to get the result that an object is a handle of; None for any other object."""
    kind = type(value)
    for name, remedy in _HANDLES.items():
        if _is_of(kind, *name):
            return None if is_driven(devices_of([value])) else remedy
    if hasattr(kind, "__dask_graph__"):
        with suppress(Exception):  # of a class that dask knows, not every object is lazy
            return None if value.__dask_graph__() is None else "call .compute()"
    if hasattr(kind, "__await__"):
        return "await it in a coroutine that asyncio.run(…) runs"
    for method in _WAITS:
        if callable(getattr(kind, method, None)) and kind.__module__.partition(".")[0] not in _WAITED_FOR:
            return f"call .{method}(), and return something else,"
    return None


def _is_of(kind: type, module: str, name: str) -> bool:
    """Whether a class is, or is derived from, one of that name in that module or package."""
    return any(origin.__name__ == name and f"{origin.__module__}.".startswith(f"{module}.") for origin in kind.__mro__)
