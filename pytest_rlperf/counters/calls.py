"""Calls of Python functions, of native functions by module, and of environments' and optimizers' steps."""

from __future__ import annotations

import builtins
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.machinery import EXTENSION_SUFFIXES
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any, cast

from pytest_rlperf.counters.compiled import Programs
from pytest_rlperf.counters.instrument import CannotCountError, TotalsInstrument, is_own
from pytest_rlperf.model.measured import FunctionCounts
from pytest_rlperf.probes import Undo, put, together
from pytest_rlperf.probes.torch import after_steps

_TOOLS = (4, 3, 5, 2)  # of sys.monitoring: 0 is for debuggers, 1 for coverage, and probes look from 3 on
_RESUMED = "torch_dynamo_resume_in_"  # what torch.compile calls the code after a graph break
_COMPILED = "__compiled_fn"  # a name that code with graphs calls
_USED_BY_TIMERS = frozenset({"_thread", "builtins", "gc", "sys", "time", "torch"})


class Calls(TotalsInstrument):
    """Counts the calls that the interpreter reports, and the graphs that torch.compile made, by the code running them.

    The interpreter reports native functions that are called by name, but not operators, and not ufuncs before Python
    3.12. Types are left out, because it does not report which are native. The calls of timers and probes do not count.
    ``has_other_threads`` is set once PyTorch is called in another thread than this.
    """

    names = ("python_calls", "native_calls", "graphs", "graph_breaks", "recompiles")

    def __init__(self, watched: Sequence[str] = ()) -> None:
        super().__init__()
        self._below = tuple(place if place.endswith(".py") else f"{place}{os.sep}" for place in watched)
        self._programs = Programs()
        self._thread = threading.get_ident()
        self.has_other_threads = False
        self._entries: Counter[int] = Counter()
        self._calls: dict[int, Counter[str]] = {}  # of functions below watched places, by name
        self._codes: dict[int, tuple[CodeType, int]] = {}  # by identity: equal code may be another function's
        self._natives: dict[Hashable, tuple[int, str, str]] = {}

    def begin(self) -> None:
        """Set a profile function, for this thread and for those that are started meanwhile.

        CannotCountError if another profiler is active.
        """
        if sys.getprofile() is not None:
            raise CannotCountError(f"a profiler is active, {sys.getprofile()!r:.60}: run without it")
        self._forget()
        self._compiled = self._programs.count()
        self._in_threads = threading.getprofile()
        self._function = self._profile
        threading.setprofile(self._function)
        sys.setprofile(self._function)

    def end(self) -> None:
        """Remove the profile function; CannotCountError if it was not in place until now."""
        is_undisturbed = sys.getprofile() is self._function
        sys.setprofile(None)
        threading.setprofile(self._in_threads)
        self.note_compiled()
        if not is_undisturbed:
            raise CannotCountError("the call itself sets or removes the interpreter's profile function")

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self.note_python(frame.f_code)
            if frame.f_back is not None and (calls := self._calls_of(frame.f_back.f_code)) is not None:
                name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # from Python 3.11 on
                calls[f"{frame.f_globals.get('__name__')}.{name}"] += 1
        elif event == "c_call":
            self.note_native(frame.f_code, arg)

    def note_compiled(self) -> None:
        """Count the programs compiled since the call began."""
        self.totals.packed += (self._programs.count() - self._compiled) * self.totals.unit("recompiles")

    @property
    def ran_compiled(self) -> bool:
        """Whether code made by torch.compile has run."""
        return any(_is_compiled(code) for code, _ in self._codes.values())

    def note_python(self, code: CodeType) -> None:
        """Count a call of a Python function."""
        self.totals.packed += self._unit_of(code)
        if self._calls_of(code) is not None:
            self._entries[id(code)] += 1

    def note_native(self, caller: CodeType, function: Any) -> None:
        """Count a call of a native function."""
        key = _key_of(function)
        try:
            unit, module, name = self._natives[key]
        except KeyError:
            unit, module, name = self._natives[key] = self._learn_native(function)
        if (calls := self._calls_of(caller)) is not None:
            calls[name] += 1
        # A timer may be wrapped around a native function that counts.
        if module not in _USED_BY_TIMERS or self._unit_of(caller):
            self.totals.packed += unit
        if module == "torch" and threading.get_ident() != self._thread and not _is_in_backward():
            self.has_other_threads = True

    def _unit_of(self, code: CodeType) -> int:
        """Return what a call of a Python function counts as."""
        known = self._codes.get(id(code))
        if known is not None:
            return known[1]
        names = [] if is_own(code) else ["python_calls"]
        if code.co_name.startswith(_RESUMED):
            names.append("graph_breaks")
        if _is_compiled(code):
            names.append("graphs")
        unit = self.totals.unit(*names)
        self._codes[id(code)] = code, unit
        if code.co_filename.startswith(self._below):
            self._calls[id(code)] = Counter()
        return unit

    def _learn_native(self, function: Any) -> tuple[int, str, str]:
        owner = owner_of(function)
        module = owner.partition(".")[0]
        name = f"{owner}.{getattr(function, '__qualname__', type(function).__qualname__)}".removeprefix("builtins.")
        return self.totals.unit("native_calls", f"native_calls:{module}"), module, name

    # ------------------------------------------------------------------ functions of the code under test

    def _forget(self) -> None:
        """Forget the last call's functions."""
        self._entries.clear()
        for calls in self._calls.values():
            calls.clear()

    def _calls_of(self, code: CodeType) -> Counter[str] | None:
        """Return what a function calls in turn, None for one in other code."""
        self._unit_of(code)  # looks at the code once
        return self._calls.get(id(code))

    def functions(self) -> tuple[FunctionCounts, ...]:
        """Return the counts of each function in the code under test during the last call."""
        found = ((self._codes[key][0], entries, self._calls[key]) for key, entries in self._entries.items())
        return tuple(
            FunctionCounts(code.co_filename, code.co_firstlineno, entries, dict(calls))
            for code, entries, calls in found
        )


class MonitoredCalls(Calls):
    """Counts as a tool of ``sys.monitoring``, from Python 3.12 on: in all threads, while other tools go on."""

    def begin(self) -> None:
        """Begin to count, under the first number that no other tool uses."""
        self._forget()
        self._monitoring: Any = sys.modules["sys"].monitoring
        free = [tool for tool in _TOOLS if self._monitoring.get_tool(tool) is None]
        if not free:
            raise CannotCountError("other tools have all the numbers of sys.monitoring that a tool may have")
        self._tool = tool = free[0]
        self._compiled = self._programs.count()
        events = self._monitoring.events
        self._callbacks = {events.PY_START: self._start, events.PY_RESUME: self._start, events.CALL: self._call}
        self._monitoring.use_tool_id(tool, "pytest-rlperf counts")
        for event, callback in self._callbacks.items():
            self._monitoring.register_callback(tool, event, callback)
        self._monitoring.set_events(tool, sum(self._callbacks))

    def end(self) -> None:
        """Stop counting."""
        self._monitoring.set_events(self._tool, 0)
        for event in self._callbacks:
            self._monitoring.register_callback(self._tool, event, None)
        self._monitoring.free_tool_id(self._tool)
        self.note_compiled()

    def _start(self, code: CodeType, _: int) -> None:
        self.note_python(code)

    def _call(self, code: CodeType, _: int, function: Any, __: object) -> None:
        if type(function) is MethodType:
            function = function.__func__
        if type(function) is FunctionType:
            if (calls := self._calls_of(code)) is not None:
                calls[f"{function.__module__}.{function.__qualname__}"] += 1
        elif _is_native(function):
            self.note_native(code, function)


def _is_in_backward() -> bool:
    """Whether this thread is autograd's, or runs what a backward pass calls."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)


def _is_compiled(code: CodeType) -> bool:
    return any(name.startswith(_COMPILED) for name in code.co_names)


def _key_of(function: Any) -> Hashable:
    """Return a key that all calls of a native function share, though each call of a method binds it again."""
    if type(function) is BuiltinFunctionType:
        is_bound = getattr(function, "__module__", None) is None
        return (_class_of(function.__self__), function.__name__) if is_bound else cast("Hashable", function)
    if type(function) is MethodDescriptorType:
        return cast("Hashable", function)
    return type(function), str(getattr(function, "__module__", None))


def owner_of(function: Any) -> str:
    """Return the module of a native function, or of a method's class."""
    if type(function) is MethodDescriptorType:
        return _module_of(function.__objclass__)
    module = getattr(function, "__module__", None)
    if isinstance(module, str):
        return module
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner.__name__
    for base in (*_class_of(owner).__mro__, *type(owner).__mro__):
        if getattr(function, "__name__", None) in vars(base):
            return _module_of(base)
    return _module_of(type(function))


def _module_of(kind: type) -> str:
    return extension_with(kind.__name__) if kind.__module__ == "builtins" else str(kind.__module__)


def extension_with(name: str) -> str:
    """Return the loaded extension that has a class ``name`` whose module is given as ``builtins``.

    Rust's classes give that unless they are told their module. Return ``builtins`` for Python's own classes, which
    extensions may have, too: PyTorch has NoneType.
    """
    own = vars(builtins).get(name, vars(types).get(name))
    for module_name, module in list(sys.modules.items()):
        found = getattr(module, "__dict__", {}).get(name)
        is_class = isinstance(found, type) and found.__module__ == "builtins" and found is not own
        if is_class and str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES)):
            return module_name
    return "builtins"


def _class_of(owner: object) -> type:
    return owner if isinstance(owner, type) else type(owner)


def _is_native(function: Any) -> bool:
    """Whether a callable that is not a Python function is native."""
    if type(function) in (BuiltinFunctionType, MethodDescriptorType):
        return True
    return not isinstance(function, type) and type(type(function).__call__) is not FunctionType


class Steps(TotalsInstrument):
    """Counts the steps of environments, by wrapping their methods, and of optimizers, by PyTorch's hooks.

    ``environments`` names base classes of environments, each with the method that is their step:
    ``"module:Class.method"``.
    """

    names: tuple[str, ...] = ("env_steps", "optimizer_steps")

    def __init__(self, environments: Sequence[str]) -> None:
        super().__init__()
        self._environments = environments
        self._inside = threading.local()
        self._env_step, self._optimizer_step = self.totals.unit("env_steps"), self.totals.unit("optimizer_steps")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Install the hooks for the block, and remove them afterwards."""
        undo = together(self._attach())
        try:
            yield
        finally:
            undo()

    def _attach(self) -> Iterator[Undo]:
        for kind, method in _classes(self._environments):
            try:
                yield put(kind, method, self._around(vars(kind)[method]))
            except TypeError:
                continue  # a C++ or Rust class that cannot be changed
        if "torch.optim.optimizer" in sys.modules:
            # This comes before the probes' own hooks, so that a step counts within the phase that a probe makes of it.
            yield after_steps(self._note_optimizer)

    def _note_optimizer(self, _: object) -> None:
        self.totals.packed += self._optimizer_step

    def _around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @wraps(step)
        def counted(env: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "env", False):
                return step(env, *args, **kwargs)  # an env within another: a wrapper's, a vector env's
            self.totals.packed += self._env_step * envs_in(env)
            inside.env = True
            try:
                return step(env, *args, **kwargs)
            finally:
                inside.env = False

        return counted


def _classes(environments: Iterable[str]) -> Iterator[tuple[type, str]]:
    """Yield every loaded class of environments that has its own step."""
    for environment in environments:
        module, _, path = environment.partition(":")
        name, _, method = path.partition(".")
        pending = [getattr(sys.modules.get(module), name, None)]
        seen: set[type] = set()
        while pending:
            kind = pending.pop()
            if isinstance(kind, type) and kind not in seen:
                seen.add(kind)
                pending += type.__subclasses__(kind)
                if callable(vars(kind).get(method)):
                    yield kind, method


def envs_in(env: Any) -> int:
    """Return how many environments step when ``env`` does."""
    number = getattr(env, "num_envs", None)
    number = number() if callable(number) else number
    if isinstance(number, int):
        return number
    sizes = getattr(env, "batch_size", ())
    return int(sizes.numel()) if hasattr(sizes, "numel") else 1
