"""Stand-ins for objects that take no attributes: those of C, C++ and Rust."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast


class Proxy:
    """Passes everything on to an object but the attributes that are ``timed``.

    It has the object's class for ``isinstance``. Compiled code that is handed the proxy and looks for its own type is
    the one thing that can tell.
    """

    __slots__ = ("_rlperf_target", "_rlperf_timed")

    def __init__(self, target: object, timed: Mapping[str, Callable[..., Any]]) -> None:
        object.__setattr__(self, "_rlperf_target", target)
        object.__setattr__(self, "_rlperf_timed", dict(timed))

    def __getattribute__(self, name: str) -> Any:
        if name in ("_rlperf_target", "_rlperf_timed"):
            return object.__getattribute__(self, name)
        timed = object.__getattribute__(self, "_rlperf_timed")
        return timed[name] if name in timed else getattr(object.__getattribute__(self, "_rlperf_target"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._rlperf_target, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._rlperf_target, name)


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any) -> Any:
        # An operand may be a proxy too, which compiled code would not know.
        plain = [arg._rlperf_target if is_proxy(arg) else arg for arg in args]
        return getattr(self._rlperf_target, name)(*plain)

    method.__name__ = name
    return method


# Python looks these up on the class, past __getattribute__.
_SPECIAL = (
    *("__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__call__"),
    *("__enter__", "__exit__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__"),
    *("__repr__", "__str__", "__int__", "__float__", "__index__", "__add__", "__sub__", "__mul__", "__truediv__"),
)


def proxy_for(target: object, timed: Mapping[str, Callable[..., Any]]) -> Proxy:
    """Return a proxy of an object that can do what the object's class can."""
    special = {name: _forward(name) for name in _SPECIAL if hasattr(type(target), name)}
    made = type("Proxy", (Proxy,), {"__slots__": (), **special})
    return cast("Proxy", made(target, timed))


def put_timed(proxy: object, attribute: str, timed: Callable[..., Any]) -> Callable[[], None]:
    """Have one more attribute of a proxy timed, and return what has it as before."""
    held: dict[str, Callable[..., Any]] = proxy._rlperf_timed  # type: ignore[attr-defined]
    before = dict(held)
    held[attribute] = timed

    def undo() -> None:
        held.clear()
        held.update(before)

    return undo


def is_proxy(value: object) -> bool:
    """Whether a value is a proxy, which says of itself that it is something else."""
    return issubclass(type(value), Proxy)
