"""Steps and resets of environments: found where they are called, and told apart from all else that runs."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

from pytest_rlperf.attribution.owners import ENV_METHODS

Resume = Callable[[], object]


def is_environment(kind: type) -> bool:
    """Whether a class is one of environments: what steps by actions and can be reset, or TorchRL's EnvBase."""
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
    """Stand in for a method that is not there."""


def find_environments(call: Callable[[], object]) -> list[FunctionType]:
    """Run a call, and return the functions by which its code enters environments, steps and resets.

    Whatever an environment's step calls, other environments' steps, is within it and not returned.
    """
    found: dict[int, FunctionType] = {}
    known: dict[tuple[CodeType, type], bool] = {}
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
        if (frame.f_code, kind) not in known:
            functions = _methods(kind) if is_environment(kind) else {}
            known[frame.f_code, kind] = any(function.__code__ is frame.f_code for function in functions.values())
            if known[frame.f_code, kind]:
                found.update(functions)
        if known[frame.f_code, kind]:
            inside = frame

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found.values())


def _methods(kind: type) -> dict[int, FunctionType]:
    """Return an environment class's steps and resets, its bases' too, by identity."""
    members = [vars(base).get(name) for base in kind.__mro__ for name in ENV_METHODS]
    functions = [inspect.unwrap(member) for member in members if isinstance(member, FunctionType)]
    return {id(function): function for function in functions if isinstance(function, FunctionType)}


def _no_pause() -> Resume:
    return _nothing


class Aside:
    """Runs environments with whoever watches the rest paused, and adds up the seconds they take."""

    def __init__(self, pause: Callable[[], Resume] | None) -> None:
        self.spent_s = 0.0
        self._pause = pause or _no_pause
        self._thread = threading.get_ident()
        self._is_inside = False

    def run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs ``function``, aside where it is not within another one."""
        clock = time.perf_counter_ns

        def aside(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._is_inside = True
            resume = self._pause()
            start_ns = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_s += (clock() - start_ns) / 1e9
                self._is_inside = False
                resume()

        return aside

    @contextmanager
    def watching(self, functions: list[FunctionType]) -> Iterator[None]:
        """Have ``functions`` run aside while the body runs, whoever holds them."""
        with ExitStack() as stack:
            for function in functions:
                stack.callback(_replace(function, self.run(_copy(function))))
            yield


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _replace(function: FunctionType, instead: Callable[..., Any]) -> Callable[[], None]:
    """Have a function do something else, and return what has it do as before.

    Its code is exchanged and not the function, as bound methods that were taken before hold the function. The new code
    has the callable as a constant, and the old one's free variables, which go with the function.
    """
    before = function.__code__
    template = _template.__code__
    function.__code__ = template.replace(
        co_consts=tuple(instead if constant == _PLACE else constant for constant in template.co_consts),
        co_freevars=before.co_freevars,
    )

    def undo() -> None:
        function.__code__ = before

    return undo


_PLACE = "where the callable goes"


def _template(*args: Any, **kwargs: Any) -> Any:
    callable_: Any = "where the callable goes"
    return callable_(*args, **kwargs)
