"""Functions watched by what the interpreter tells of them: ``sys.monitoring``, of Python 3.12 and later."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from pytest_rlperf.probes.attach import Undo
from pytest_rlperf.timers.scope import Scope

_TOOLS = (3, 4, 2, 5)  # 0 is for debuggers, 1 for coverage
_RUNS_IN_PIECES = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)


def can_be_watched(function: FunctionType) -> bool:
    """Whether a function's code tells of it alone, and of one call at a time: a decorator's is that of all it made."""
    return (
        sys.version_info >= (3, 12)
        and function.__closure__ is None
        and not hasattr(function, "__wrapped__")
        and not function.__code__.co_flags & _RUNS_IN_PIECES
    )


class _Monitor:
    """One tool of the interpreter's for all that is watched; there are six for everybody."""

    def __init__(self) -> None:
        self._tool: int | None = None
        self._watched: dict[int, tuple[CodeType, tuple[Scope, ...]]] = {}  # by identity: equal code may be another's

    def watch(self, code: CodeType, scope: Scope) -> Undo | None:
        """Enter ``scope`` whenever ``code`` runs; None where no tool is free."""
        if not self._watched and not self._begin():
            return None
        _, scopes = self._watched.get(id(code), (code, ()))
        self._set(code, (*scopes, scope))
        return partial(self._forget, code, scope)

    def _forget(self, code: CodeType, scope: Scope) -> None:
        _, scopes = self._watched[id(code)]
        self._set(code, tuple(other for other in scopes if other is not scope))
        if not self._watched:
            self._end()

    def _set(self, code: CodeType, scopes: tuple[Scope, ...]) -> None:
        if scopes:
            self._watched[id(code)] = code, scopes
        else:
            del self._watched[id(code)]
        events = _monitoring().events
        _monitoring().set_local_events(self._tool, code, events.PY_START | events.PY_RETURN if scopes else 0)

    def _begin(self) -> bool:
        monitoring = _monitoring()
        self._tool = next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)
        if self._tool is None:
            return False
        monitoring.use_tool_id(self._tool, "pytest-rlperf")
        events = monitoring.events
        monitoring.register_callback(self._tool, events.PY_START, self._enter)
        for event in (events.PY_RETURN, events.PY_UNWIND):
            monitoring.register_callback(self._tool, event, self._leave)
        monitoring.set_events(self._tool, events.PY_UNWIND)  # which is told of all code or none
        return True

    def _end(self) -> None:
        monitoring = _monitoring()
        events = monitoring.events
        monitoring.set_events(self._tool, 0)
        for event in (events.PY_START, events.PY_RETURN, events.PY_UNWIND):
            monitoring.register_callback(self._tool, event, None)
        monitoring.free_tool_id(self._tool)
        self._tool = None

    def _enter(self, code: CodeType, *_: object) -> None:
        for scope in self._watched.get(id(code), (code, ()))[1]:
            scope.__enter__()

    def _leave(self, code: CodeType, *_: object) -> None:
        for scope in reversed(self._watched.get(id(code), (code, ()))[1]):
            scope.__exit__(None, None, None)


def _monitoring() -> Any:
    return sys.modules["sys"].monitoring


watch = _Monitor().watch
