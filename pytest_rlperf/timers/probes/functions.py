"""Phases of methods and functions, by where they are found."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

from pytest_rlperf.model import Probe
from pytest_rlperf.timers.decorate import decorate
from pytest_rlperf.timers.probes.attach import ProbeError, Undo, put, together
from pytest_rlperf.timers.probes.proxy import is_proxy, proxy_for, put_timed
from pytest_rlperf.timers.scope import Scope

Target = str | Callable[..., object]
Phases = Mapping[str, Target | Iterable[Target]]


def probes_for(phases: Phases, owner: object) -> list[Probe]:
    """Return a probe for every phase: ``{"critic": "update_critic", "sample": "buffer.sample", …}``.

    A text leads from ``owner`` to a method, attribute by attribute, or is ``"module:function"`` or
    ``"module:Class.method"``. A bound method or a function may be given itself; several make one phase. ProbeError
    where there is nothing to time.
    """
    return [
        _probe(name, target, owner)
        for name, targets in phases.items()
        for target in ([targets] if isinstance(targets, str) or callable(targets) else targets)
    ]


def _probe(name: str, target: Target, owner: object) -> Probe:
    try:
        Scope(name)
    except ValueError as error:
        raise ProbeError(str(error)) from None
    if isinstance(target, str):
        module, colon, path = target.partition(":")
        probe: Probe = AttributeProbe(name, _module(module), path) if colon else AttributeProbe(name, owner, target)
    elif isinstance(target, MethodType):
        probe = AttributeProbe(name, target.__self__, target.__name__)
    elif isinstance(target, FunctionType):
        probe = MonitoredProbe(name, target) if sys.version_info >= (3, 12) else FunctionProbe(name, target)
    else:
        raise ProbeError(f"phase {name!r}: a method or function, by name or itself, not {type(target).__qualname__}")
    if isinstance(probe, AttributeProbe):
        probe.resolve()
    return probe


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise ProbeError(f"phases: cannot import {name}: {error}") from None


class AttributeProbe:
    """Times what a path of attributes leads to from an object, a class or a module."""

    def __init__(self, name: str, owner: object, path: str) -> None:
        self.name = name
        self._owner = owner
        self._names = path.split(".")

    def resolve(self) -> list[object]:
        """Return the owner and what the path leads to, step by step; ProbeError where it leads nowhere."""
        chain = [self._owner]
        for name in self._names:
            here = chain[-1]
            if not name or not hasattr(here, name):
                close = difflib.get_close_matches(name, dir(here), 3)
                hint = f"; there is {', '.join(close)}" if close else ""
                raise ProbeError(f"phase {self.name!r}: {_called(here)} has no {name!r}{hint}")
            chain.append(getattr(here, name))
        if not callable(chain[-1]):
            raise ProbeError(f"phase {self.name!r}: {'.'.join(self._names)} is no function but {chain[-1]!r:.60}")
        return chain

    def attach(self) -> Undo:
        """Time it from now on."""
        holder, found = self.resolve()[-2:]
        attribute = self._names[-1]
        if isinstance(holder, type):
            found = inspect.getattr_static(holder, attribute)  # a static or class method as it is
        timed: Callable[..., Any] = decorate(cast("Callable[..., Any]", found), Scope(self.name))
        if is_proxy(holder):
            return put_timed(holder, attribute, timed)
        try:
            return put(holder, attribute, timed)
        except (AttributeError, TypeError) as error:
            return self._stand_in(attribute, timed, error)

    def _stand_in(self, attribute: str, timed: Callable[..., Any], reason: Exception) -> Undo:
        """Put a proxy in the place of an object that takes no attributes."""
        chain = self.resolve()
        if len(self._names) < 2:
            raise ProbeError(
                f"phase {self.name!r}: {_called(chain[0])} takes no attributes ({reason}), and nothing is known to "
                "hold it: name the way to it from an object that does"
            )
        holder, place, target = chain[-3], self._names[-2], chain[-2]
        try:
            return put(holder, place, proxy_for(target, {attribute: timed}))
        except (AttributeError, TypeError) as error:
            raise ProbeError(
                f"phase {self.name!r}: neither {_called(target)} nor {_called(holder)} takes attributes: {error}"
            ) from None


class FunctionProbe:
    """Times a function by putting a timed one in its place wherever a module or class that is loaded has it."""

    def __init__(self, name: str, function: FunctionType) -> None:
        self.name = name
        self._function = function

    def attach(self) -> Undo:
        """Time it from now on; who took it into a variable or a closure of his own goes on with the plain one."""
        return replace_function(self._function, decorate(self._function, Scope(self.name)))


class MonitoredProbe:
    """Times a function by what the interpreter tells of it, whoever holds it; for Python 3.12 and later."""

    def __init__(self, name: str, function: FunctionType) -> None:
        self.name = name
        self._code = function.__code__

    def attach(self) -> Undo:
        """Time it from now on."""
        monitoring = sys.modules["sys"].monitoring
        events = monitoring.events
        tool = next((tool for tool in range(6) if monitoring.get_tool(tool) is None), None)
        if tool is None:
            raise ProbeError(f"phase {self.name!r}: all six tools of sys.monitoring are in use")
        monitoring.use_tool_id(tool, "pytest-rlperf")
        scope = Scope(self.name)
        code = self._code

        def enter(entered: object, *_: object) -> None:
            if entered is code:
                scope.__enter__()

        def leave(left: object, *_: object) -> None:
            if left is code:
                scope.__exit__(None, None, None)

        begins = (events.PY_START, events.PY_RESUME, events.PY_THROW)
        ends = (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND)
        for event in (*begins, *ends):
            monitoring.register_callback(tool, event, enter if event in begins else leave)
        local = events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        monitoring.set_local_events(tool, code, local)
        monitoring.set_events(tool, events.PY_THROW | events.PY_UNWIND)  # which are of all code or none
        return partial(_release, tool, code)


def _release(tool: int, code: object) -> None:
    monitoring = sys.modules["sys"].monitoring
    monitoring.set_local_events(tool, code, 0)
    monitoring.set_events(tool, 0)
    monitoring.free_tool_id(tool)


def replace_function(function: FunctionType, other: Callable[..., Any]) -> Undo:
    """Put another function in the place of one wherever a loaded module or class has it."""
    return together([put(holder, name, other) for holder, name in _holders(function)])


def replace_method(
    owner: object, target: object, attribute: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[Undo]:
    """Put what ``around`` makes of a method in its place, by a proxy in ``owner`` where ``target`` takes none."""
    other = around(getattr(target, attribute))
    if is_proxy(target):
        return [put_timed(target, attribute, other)]
    try:
        return [put(target, attribute, other)]
    except (AttributeError, TypeError):
        places = [name for name, value in getattr(owner, "__dict__", {}).items() if value is target]
        return [put(owner, place, proxy_for(target, {attribute: other})) for place in places]


def _holders(function: FunctionType) -> Iterator[tuple[object, str]]:
    """Yield the modules and classes that have a function, each with the name they have it by."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is function:
                yield module, name
            elif issubclass(type(value), type) and value.__module__ == module.__name__:  # no lazy value is woken
                yield from ((value, inner) for inner, member in list(vars(value).items()) if member is function)


def _called(value: object) -> str:
    return value.__name__ if isinstance(value, type | ModuleType) else f"a {type(value).__qualname__}"
