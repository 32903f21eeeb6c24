"""Phases of methods and functions, by where they are found."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from pytest_rlperf.errors import did_you_mean
from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes import ProbeError, Undo, put, put_variable, together
from pytest_rlperf.probes.objects import variables_of
from pytest_rlperf.probes.torch import Forward
from pytest_rlperf.timers.scope import Scope, decorate

Target = str | Callable[..., object]
Phases = Mapping[str, Target | Sequence[Target]]
_REFUSALS = (AttributeError, TypeError, ValueError)  # raised by objects whose attributes cannot be set


def probes_for(phases: Phases, owner: object) -> list[Probe]:
    """Return a probe for every phase: ``{"critic": "update_critic", "sample": "buffer.sample", …}``.

    A text is the path from ``owner`` to a method, attribute by attribute, or ``"module:function"`` or
    ``"module:Class.method"``. If it leads to a PyTorch module, the module's forward passes are timed. A target may also
    be a bound method, a function or a module itself; several targets make one phase. ProbeError if there is nothing to
    time.
    """
    found = []
    for name, given in phases.items():
        targets = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        if not targets:
            raise ProbeError(f"phase {name!r}: an empty list names nothing to time")
        found += [_probe(name, target, owner) for target in targets]
    return found


def _probe(name: str, target: Target, owner: object) -> Probe:
    try:
        Scope(name)
    except (TypeError, ValueError) as error:
        raise ProbeError(f"phase {name!r}: {error}") from None
    if isinstance(target, str):
        module, colon, path = target.partition(":")
        return _probe_at(name, _module(name, module) if colon else owner, path if colon else target)
    if isinstance(target, MethodType):
        return _probe_at(name, target.__self__, target.__name__)
    if isinstance(target, FunctionType):
        return FunctionProbe(name, target)
    if _is_module(target):
        return Forward({name: target})
    raise ProbeError(
        f"phase {name!r}: expected a Python method or function, or a PyTorch module, not "
        f"{type(target).__qualname__}: give its path instead, such as 'buffer.sample' or 'module:function'"
    )


def _is_module(value: object) -> bool:
    """Whether a value is a PyTorch module, whose forward passes are the phase."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _module(name: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except (ImportError, TypeError, ValueError) as error:
        raise ProbeError(f"phase {name!r}: cannot import {module or 'a module without a name'}: {error}") from None


def _probe_at(name: str, owner: object, path: str) -> Probe:
    """Return the probe that suits what a path of attributes leads to; ProbeError if it leads nowhere."""
    probe = AttributeProbe(name, owner, path)
    holder, found = probe.resolve()[-2:]
    if isinstance(found, type):
        raise ProbeError(f"phase {name!r}: {path} is a class: name a method of it, such as {path}.__init__")
    if isinstance(holder, ModuleType):
        return FunctionProbe(name, found)
    return Forward({name: found}) if _is_module(found) else probe


class AttributeProbe:
    """Times the method or function that a path of attributes leads to from an object, a class or a module."""

    def __init__(self, name: str, owner: object, path: str) -> None:
        self.name = name
        self._owner = owner
        self._names = path.split(".")

    def resolve(self) -> list[object]:
        """Return the owner and every object on the path; ProbeError if the path leads nowhere."""
        chain = [self._owner]
        for name in self._names:
            here = chain[-1]
            if not name or not hasattr(here, name):
                hint = did_you_mean(name, dir(here))
                raise ProbeError(f"phase {self.name!r}: {_called(here)} has no {name!r}{hint}")
            chain.append(getattr(here, name))
        if not callable(chain[-1]):
            raise ProbeError(f"phase {self.name!r}: {'.'.join(self._names)} cannot be called: it is {chain[-1]!r:.60}")
        return chain

    def attach(self) -> Undo:
        """Time it from now on.

        The path is followed again: the owner may hold another object by now, or another probe may have put a proxy.
        """
        owner, holder, _ = [None, *self.resolve()][-3:]
        attribute, scope = self._names[-1], Scope(self.name)
        try:
            if isinstance(holder, type):
                found = inspect.getattr_static(holder, attribute)  # a static or class method as it is
                return put(holder, attribute, _timed_in(holder, found, scope))
            return replace_method(owner, holder, attribute, lambda found: _timed_in(holder, found, scope))
        except _REFUSALS as error:
            raise ProbeError(f"phase {self.name!r} cannot be timed: {error}; put a timer around the call") from None


class FunctionProbe:
    """Times a function by replacing it with a timed one in every loaded module and class that has it.

    ProbeError if none does.
    """

    def __init__(self, name: str, function: object) -> None:
        self.name = name
        self._places = places_of(function)
        if not self._places:
            raise ProbeError(
                f"phase {name!r}: no module or class that is loaded has "
                f"{getattr(function, '__qualname__', function)}: name the method instead"
            )

    def attach(self) -> Undo:
        """Time it from now on; code that holds it in its own variable or closure goes on calling the plain one."""
        scope = Scope(self.name)
        made: dict[int, object] = {}  # the same one for every holder, so that it can be pickled

        def timed(holder: object, name: str) -> object:
            found = vars(holder)[name]
            return made.setdefault(id(found), _timed_in(holder, found, scope))

        return together(put(holder, name, timed(holder, name)) for holder, name in self._places if name in vars(holder))


def _timed_in(holder: object, found: Any, scope: Scope) -> Any:
    """Return a timed replacement for ``found`` in ``holder``; TypeError if a class could not bind it."""
    if isinstance(found, FunctionType | MethodType | staticmethod | classmethod):
        return decorate(cast("Callable[..., Any]", found), scope)
    if isinstance(holder, type):
        raise TypeError(f"{found!r:.60} is not a Python function: name the path to an instance instead")
    if isinstance(found, BuiltinFunctionType):
        return decorate(found, scope)
    return proxy_for(found, {"__call__": decorate(found.__call__, scope)})  # it may have more than its call


def places_of(function: object) -> list[tuple[object, str]]:
    """Return the modules and classes that have a function, each with its name there."""
    found: dict[tuple[int, str], tuple[object, str]] = {}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is function:
                found.setdefault((id(module), name), (module, name))
            elif issubclass(type(value), type) and value.__module__ == module.__name__:  # does not load lazy values
                for inner, member in list(vars(value).items()):
                    held = member.__func__ if type(member) in (staticmethod, classmethod) else member
                    if held is function and isinstance(function, FunctionType):
                        found.setdefault((id(value), inner), (value, inner))
    return list(found.values())


def replace_method(
    owner: object, target: object, attribute: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Undo:
    """Replace a method by what ``around`` returns for it.

    If ``target`` takes no attributes, or Python looks the method up on the class, ``owner`` holds a proxy instead: in
    its attributes or, if it is a function, in its variables. TypeError if it holds ``target`` in none.
    """
    other = around(getattr(target, attribute))
    if is_proxy(target):
        return put_timed(target, attribute, other)
    if not (attribute.startswith("__") and attribute.endswith("__")):
        with suppress(*_REFUSALS):
            return put(target, attribute, other)
    proxy = proxy_for(target, {attribute: other})
    hold: Callable[[str, object], Undo]
    if isinstance(owner, FunctionType):
        held, hold = variables_of(owner), partial(put_variable, owner)
    else:
        held, hold = getattr(owner, "__dict__", {}), partial(put, owner)
    names = [name for name, value in held.items() if value is target]
    if not names:
        raise TypeError(f"{_called(target)} takes no attributes, and no attribute of {_called(owner)} holds it")
    return together(hold(name, proxy) for name in names)


def _called(value: object) -> str:
    return value.__name__ if isinstance(value, type | ModuleType) else f"the {type(value).__name__}"


# --------------------------------------------------------------------------- stand-ins for objects of C, C++ and Rust
# These take no attributes.

# Class attributes that a stand-in has itself, or must not have.
_OWN = frozenset(
    {"__class__", "__new__", "__init__", "__del__", "__getattribute__", "__get__", "__set__", "__delete__"}
)


class Proxy:
    """Passes everything on to an object except the attributes that are ``timed``.

    ``isinstance`` sees the object's class, and copying or pickling the proxy copies the object. Only compiled code that
    receives the proxy and checks for its own type can see the difference.
    """

    __slots__ = ("__weakref__", "_rlperf_target", "_rlperf_timed")

    def __init__(self, target: object, timed: Mapping[str, object]) -> None:
        object.__setattr__(self, "_rlperf_target", target)
        object.__setattr__(self, "_rlperf_timed", dict(timed))

    def __getattribute__(self, name: str) -> Any:
        if name in ("_rlperf_target", "_rlperf_timed"):
            return object.__getattribute__(self, name)
        timed = object.__getattribute__(self, "_rlperf_timed")
        return timed[name] if name in timed else getattr(object.__getattribute__(self, "_rlperf_target"), name)


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
    """Time one more attribute of a proxy, and return a function that undoes it."""
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
