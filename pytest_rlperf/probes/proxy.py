"""Stand-ins for objects that take no attributes: those of C, C++ and Rust."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

# Attributes that a stand-in has of its own or must not have: descriptors, and those that make and pickle objects.
_OWN = frozenset(
    {
        *("__class__", "__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__dict__", "__slots__"),
        *(
            "__weakref__",
            "__new__",
            "__init__",
            "__del__",
            "__init_subclass__",
            "__subclasshook__",
            "__class_getitem__",
        ),
        *("__doc__", "__module__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__"),
        *("__getnewargs_ex__", "__copy__", "__deepcopy__", "__sizeof__", "__get__", "__set__", "__delete__"),
    }
)
_OF_THE_PROXY = frozenset(
    {"_rlperf_target", "_rlperf_timed", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__"}
)


class Proxy:
    """Passes everything on to an object but the attributes that are ``timed``.

    ``isinstance`` sees the object's class, and copying or pickling the proxy copies the object. Only compiled code that
    receives the proxy and checks for its own type can see the difference.
    """

    __slots__ = ("__weakref__", "_rlperf_target", "_rlperf_timed")

    def __init__(self, target: object, timed: Mapping[str, object]) -> None:
        object.__setattr__(self, "_rlperf_target", target)
        object.__setattr__(self, "_rlperf_timed", dict(timed))

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_THE_PROXY:
            return object.__getattribute__(self, name)
        timed = object.__getattribute__(self, "_rlperf_timed")
        return timed[name] if name in timed else getattr(object.__getattribute__(self, "_rlperf_target"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._rlperf_target, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._rlperf_target, name)

    def __reduce_ex__(self, protocol: object) -> Any:
        return _itself, (self._rlperf_target,)

    def __copy__(self) -> object:
        return copy.copy(self._rlperf_target)

    def __deepcopy__(self, memo: dict[int, Any]) -> object:
        return copy.deepcopy(self._rlperf_target, memo)


def _itself(value: object) -> object:
    return value


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Proxy, *args: Any, **kwargs: Any) -> Any:
        # An operand may be a proxy, too, and compiled code would refuse it.
        plain = [arg._rlperf_target if is_proxy(arg) else arg for arg in args]
        result = getattr(self, name)(*plain, **kwargs)
        return self if result is self._rlperf_target else result

    method.__name__ = name
    return method


def proxy_for(target: object, timed: Mapping[str, object]) -> Proxy:
    """Return a proxy of an object, with the special methods of the object's class."""
    special: dict[str, object] = {}
    # Python looks these up on the class, past __getattribute__.
    for name in dir(type(target)):
        if name.startswith("__") and name.endswith("__") and name not in _OWN:
            member = getattr(type(target), name, None)
            if member is None or callable(member):
                special[name] = None if member is None else _forward(name)
    made = type("Proxy", (Proxy,), {**special, "__slots__": ()})
    return cast("Proxy", made(target, timed))


def put_timed(proxy: object, attribute: str, timed: object) -> Callable[[], None]:
    """Have one more attribute of a proxy timed, and return a function that undoes it."""
    held: dict[str, object] = proxy._rlperf_timed  # type: ignore[attr-defined]
    before = dict(held)
    held[attribute] = timed

    def undo() -> None:
        held.clear()
        held.update(before)

    return undo


def is_proxy(value: object) -> bool:
    """Whether a value is a proxy, whose ``__class__`` is that of its object."""
    return issubclass(type(value), Proxy)
