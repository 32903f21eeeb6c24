"""Which functions a process executes: noted from its start on, at the cost of a few dozen nanoseconds per call.

Every process that observes a test imports this, so it imports next to nothing.
"""

from __future__ import annotations

import dis
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pytest_rlperf.observe.observer import is_below, paths_of

_TOOLS = (3, 4, 5)  # of sys.monitoring: 0 to 2 are for debuggers, coverage and profilers
_NAME = "pytest-rlperf notes what runs"
# Modules that compile functions, and all that these call, after reading them.
_COMPILERS = (
    "/torch/jit/frontend.py",
    "/torch/_dynamo/symbolic_convert.py",
    "/tensorflow/python/autograph/impl/api.py",
)
_PACKAGE = Path(__file__).parents[1]
# What runs a test, by names in any copy of this package: it may be the code under test, too.
OWN = tuple(
    f"{_PACKAGE.name}{os.sep}{name}"
    for name in ("model", "observe", "spawn", "worker", "options.py", "plugin.py", "wire.py")
)
_COMPILE = {"get_jit_def", "get_jit_class_def", "run", "convert", "converted_call"}  # their functions that do so


class Recorded(NamedTuple):
    """The first lines of functions by their files, and whether something has compiled functions, which run unnoticed.

    ``has_spawned`` is whether multiprocessing has started a new interpreter, which no audit event reports.
    """

    functions: dict[str, list[int]]
    has_compiled: bool
    has_spawned: bool


class FunctionRecorder:
    """Notes the functions that this process and its threads execute from now on, by their code.

    A copy of the process goes on noting them.
    """

    def __init__(self) -> None:
        self._noted = _Monitored() if sys.version_info >= (3, 12) else _Profiled()
        self._directory = Path.cwd()

    @property
    def count(self) -> int:
        """How many functions have been noted."""
        return len(self._noted.codes())

    @property
    def is_whole(self) -> bool:
        """Whether all functions were noted: not if a test has its own profiler, or threads of native code."""
        return self._noted.is_whole()

    def has_met(self, names: frozenset[str]) -> bool:
        """Whether noted code has one of ``names`` in it, other than to define or import it.

        It may be a library's: that calls the methods of what it is given. But what runs a test calls nothing of it by
        a name while the component is called: pytest, and these processes' own code.
        """
        runners = (sys.modules.get(name) for name in ("_pytest", "pluggy"))
        own = (str(_PACKAGE.parent / name) for name in OWN)
        homes = (*own, *(f"{Path(str(each.__file__)).parent}{os.sep}" for each in runners if each is not None))
        return any(_has(code, names) for code in self._noted.codes() if not code.co_filename.startswith(homes))

    def read(self, below: tuple[str, ...]) -> Recorded:
        """Return what has been noted by now, with functions whose files are ``below`` some places."""
        codes = self._noted.codes()
        by_file: dict[str, set[int]] = {}
        for code in codes:
            if code.co_name != "<module>":
                by_file.setdefault(code.co_filename, set()).add(code.co_firstlineno)
        lines: dict[str, set[int]] = {}
        for name, found in by_file.items():
            path = str(self._directory / name) if name.endswith(".py") else name  # other names are not files
            if path[:1] == "/" and is_below(path, below):
                for place in paths_of(path):
                    lines.setdefault(place, set()).update(found)
        return Recorded(
            {path: sorted(found) for path, found in lines.items()},
            any(code.co_name in _COMPILE and code.co_filename.endswith(_COMPILERS) for code in codes),
            any(code.co_name == "spawnv_passfds" for code in codes),
        )


def _has(code: CodeType, names: frozenset[str]) -> bool:
    """Whether code uses one of ``names``, or has it as a text, as for ``getattr``.

    The body of a module or of a class also has the names that it defines or imports, and does not call these.
    """
    if names.isdisjoint(code.co_names) and names.isdisjoint(_texts(code.co_consts)):
        return False
    return bool(code.co_flags & CO_OPTIMIZED) or not names.isdisjoint(_used_by_body(code))  # the flag of a function


def _used_by_body(code: CodeType) -> Iterator[str]:
    """Yield the names that the body of a module or of a class loads or gives another name, and its texts."""
    for step, following in itertools.pairwise(dis.get_instructions(code)):
        if step.opname == "IMPORT_FROM":
            is_used = following.argval != step.argval
        else:
            is_used = step.opname.startswith("LOAD_") and following.opname not in ("IMPORT_NAME", "MAKE_FUNCTION")
        if is_used:
            yield from _texts((step.argval,))


def _texts(constants: Iterable[object]) -> Iterator[str]:
    """Yield the texts among constants, also within tuples and sets."""
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)


class _Monitored:
    """Notes each function once by ``sys.monitoring``, in all threads, from Python 3.12 on."""

    def __init__(self) -> None:
        self._monitoring: Any = vars(sys)["monitoring"]
        self._seen: dict[int, CodeType] = {}  # by identity: equal code may be another file's
        self._tool = next(tool for tool in _TOOLS if self._monitoring.get_tool(tool) is None)
        self._monitoring.use_tool_id(self._tool, _NAME)
        seen, disable = self._seen, self._monitoring.DISABLE

        def note(code: CodeType, _: int) -> object:
            seen[id(code)] = code
            return disable

        event = self._monitoring.events.PY_START
        self._monitoring.register_callback(self._tool, event, note)
        self._monitoring.set_events(self._tool, event)

    def codes(self) -> list[CodeType]:
        return [*self._seen.copy().values()]

    def is_whole(self) -> bool:
        events = self._monitoring.events.PY_START
        return bool(self._monitoring.get_tool(self._tool) == _NAME and self._monitoring.get_events(self._tool) & events)


class _Profiled:
    """Notes functions by the standard library's C profiler, one per thread."""

    def __init__(self) -> None:
        self._begun: list[CodeType] = []  # threads' first functions, which no profiler sees
        self._main = self._started()
        self._profilers = [self._main]
        threading.setprofile(self._begin_thread)
        self._first = _newest_thread() - len(self._begun)

    def codes(self) -> list[CodeType]:
        noted = (entry.code for profiler in [*self._profilers] for entry in profiler.getstats())
        return [*self._begun, *(code for code in noted if isinstance(code, CodeType))]

    def is_whole(self) -> bool:
        return sys.getprofile() is self._main and _newest_thread() - self._first == len(self._begun)

    def _started(self) -> Any:
        from _lsprof import Profiler

        profiler = Profiler()
        profiler.enable(subcalls=False, builtins=False)
        return profiler

    def _begin_thread(self, frame: FrameType, _: str, __: object) -> None:
        self._begun.append(frame.f_code)
        self._profilers.append(self._started())


def _newest_thread() -> int:
    """Return how many threads have run Python in this process by now, including native ones, less a constant.

    Each new thread gets the next number.
    """
    import ctypes

    current, number_of = ctypes.pythonapi.PyThreadState_Get, ctypes.pythonapi.PyThreadState_GetID
    current.restype, number_of.restype, number_of.argtypes = ctypes.c_void_p, ctypes.c_uint64, [ctypes.c_void_p]
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(number_of(current())))
    thread.start()
    thread.join()
    return found[0]
