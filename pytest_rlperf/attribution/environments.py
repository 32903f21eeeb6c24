"""Steps and resets of environments: found by the calls that are made, and timed apart from everything else."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType, FunctionType, MethodType
from typing import Any

from pytest_rlperf.attribution.owners import ENV_METHODS
from pytest_rlperf.probes.attach import Undo, put, put_variable, together
from pytest_rlperf.probes.objects import reached, variables_of

Place = tuple[object, str]


def is_environment(kind: type) -> bool:
    """Whether a class is one of environments: it steps by actions and can be reset, or is an EnvBase."""
    if any(base.__name__ == "EnvBase" for base in kind.__mro__):
        return True
    for step, reset in (("step", "reset"), ("step_all", "reset_all")):
        function = inspect.unwrap(getattr(kind, step, None) or _nothing)
        if hasattr(kind, reset) and isinstance(function, FunctionType):
            code = function.__code__
            if any(name.startswith("action") for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
                return True
    return False


def _nothing() -> None:
    """Stand in for a missing method."""


def entered_by(call: Callable[[], object]) -> dict[FunctionType, Place]:
    """Run a call, and return the steps and resets of environments that it enters, each with its class and name.

    Environments within another one's step are part of it and not returned.
    """
    entered: dict[type, dict[FunctionType, Place]] = {}
    inside: FrameType | None = None

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal inside
        if inside is not None:
            if event == "return" and frame is inside:
                inside = None
            return
        if event != "call" or frame.f_code.co_name not in ENV_METHODS or not frame.f_code.co_argcount:
            return
        kind = type(frame.f_locals.get(frame.f_code.co_varnames[0]))
        if kind not in entered:
            entered[kind] = _methods(kind) if is_environment(kind) else {}
        if any(getattr(inspect.unwrap(function), "__code__", None) is frame.f_code for function in entered[kind]):
            inside = frame

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {function: place for methods in entered.values() for function, place in methods.items()}


def _methods(kind: type) -> dict[FunctionType, Place]:
    """Return an environment class's steps and resets, its bases' too, each with its class and name."""
    return {
        member: (base, name)
        for base in kind.__mro__
        for name in ENV_METHODS
        if isinstance(member := vars(base).get(name), FunctionType)
    }


def places_of(methods: Mapping[FunctionType, Place], call: object) -> list[Place]:
    """Return where a call finds some methods: in their classes, and bound in variables and attributes of its own."""
    if not methods:
        return []
    known = set(map(id, methods))
    places = list(methods.values())
    for _, holder in reached("call", call):
        members = variables_of(holder) if isinstance(holder, FunctionType) else _attributes(holder)
        for name, member in members.items():
            if type(member) is MethodType and id(member.__func__) in known:
                places.append((holder, name))
    return places


def _attributes(holder: object) -> dict[str, object]:
    with suppress(Exception):  # a proxy may raise anything
        own = holder.__dict__
        if isinstance(own, dict):
            return own
    return {}


class Aside:
    """A probe that adds up the nanoseconds in the functions at ``places``, with a profiler paused while they run.

    ``pause`` and ``resume`` are the profiler's.
    """

    def __init__(
        self,
        places: list[Place],
        clock_ns: Callable[[], int],
        pause: Callable[[], object] = _nothing,
        resume: Callable[[], object] = _nothing,
    ) -> None:
        self.spent_ns = 0
        self._places = places
        self._clock_ns = clock_ns
        self._pause, self._resume = pause, resume
        self._thread = threading.get_ident()
        self._is_inside = False

    def attach(self) -> Undo:
        """Time them from now on, and return what puts everything back."""
        return together(self._put(holder, name) for holder, name in self._places)

    def _put(self, holder: object, name: str) -> Undo:
        if isinstance(holder, FunctionType):
            return put_variable(holder, name, self._around(variables_of(holder)[name]))
        try:
            return put(holder, name, self._around(vars(holder)[name]))
        except (AttributeError, TypeError):
            return _nothing  # an object that refuses attributes keeps its own

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that times ``function``, unless it runs within another environment or thread."""
        clock_ns, pause, resume = self._clock_ns, self._pause, self._resume

        def aside(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._is_inside = True
            pause()
            start_ns = clock_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_ns += clock_ns() - start_ns
                self._is_inside = False
                resume()

        return aside
