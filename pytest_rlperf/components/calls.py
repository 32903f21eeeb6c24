"""Any callable as a workload, and a module's import, each time in a new interpreter."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from pytest_rlperf.components.checks import check_items, check_takes, finished, has_run
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Harvest, Workload
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.scope import PROCESS

# --------------------------------------------------------------------------- any callable


def thunk_workload(
    fn: Callable[[], Any],
    *,
    items: float = 1,
    unit: str = "call",
    setup: Callable[[], Any] | None = None,
    check: Callable[[Any], Any] | None = None,
) -> Workload:
    """Return ``fn`` as a workload; ComponentError if it cannot be called or counted."""
    __tracebackhide__ = True
    if not callable(fn):
        raise ComponentError(f"rlperf(fn) measures a callable, not {type(fn).__qualname__}: rlperf(lambda: …)")
    for name, function in (("setup", setup), ("check", check)):
        if function is not None and not callable(function):
            raise ComponentError(f"{name}={function!r}: expected a callable, not {type(function).__qualname__}")
    check_takes("rlperf calls fn without arguments", fn, (), "rlperf(lambda: fn(…))")
    if check is not None:
        check_takes("check is called with what fn returned", check, (None,), "check=lambda output: …")
    if not isinstance(unit, str):
        raise ComponentError(f"unit={unit!r}: expected text, the name of what is counted")
    check_items(items)

    def run_check() -> object:
        __tracebackhide__ = True
        if setup is not None:
            has_run(setup(), "setup()")
        output = finished(fn(), "fn()")
        if check is not None:
            has_run(check(output), "check(output)")
        return output

    return Workload(
        component="callable",
        call=fn,
        items=float(items),
        unit=unit,
        check=run_check,
        setup=setup,
        holds=(fn,) if setup is None else (fn, setup),
    )


# --------------------------------------------------------------------------- imports

_IMPORT = hierarchical_timer("import")
_LINE = re.compile(r"import time:\s*\d+ \|\s*(\d+) \| ( *)(\S+)")  # of -X importtime, a module after those it imports
_MARK = "rlperf_import: "  # begins the line with the files
_FILES = "{name: file for name, module in list(sys.modules.items()) if (file := getattr(module, '__file__', None))}"
_DEEPEST = 3  # modules that import each other in a row
_SHOWN_MOST = 12  # modules, the slowest
_SHOWN_LEAST = 0.03  # of the whole


def imports_workload(module: str) -> Workload:
    """Return the workload of importing ``module`` in a new interpreter of this process's side.

    The interpreter has this process's variables and ``sys.path``. The workload's clock leaves out what an interpreter
    has waited for a CPU, if the system tells. The check imports the module here too, so the run can verify whose files
    it loads. It raises ComponentError if the new interpreter loads others.
    """
    __tracebackhide__ = True
    if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
        raise ComponentError(f"rlperf_import({module!r}): give the name of a module, rlperf_import('my_library')")
    importing = _Importing(module)
    return Workload(
        component="import",
        call=importing.call,
        items=1.0,
        unit="import",
        check=importing.check,
        harvest=Harvest(importing.traced, ()),
        children_ns=importing.taken_ns,
    )


# An imported module: its importers' names, the outermost first, and its own; and its microseconds.
_Module: TypeAlias = tuple[tuple[str, ...], int]


class _Importing:
    """Starts interpreters that import a module."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._code = f"import sys; sys.path[:] = {sys.path!r}; import {module}"
        self._shown: frozenset[tuple[str, ...]] = frozenset()
        self._taken_ns = 0

    def taken_ns(self) -> int:
        """Return the time that all interpreters have taken so far, less what they have waited for a CPU."""
        return self._taken_ns

    def call(self) -> None:
        """Import the module."""
        __tracebackhide__ = True
        with _IMPORT:
            self._run(self._code)

    def traced(self) -> None:
        """Import the module, and record the slowest modules that it imports, the same ones every time."""
        with _IMPORT:
            text = self._run(self._code, "-X", "importtime")
            stack = PROCESS.current()
            if stack is not None and PROCESS.is_timed:  # not while scopes count
                self._record(stack.node, list(self._modules(text)))

    def check(self) -> None:
        """Import the module here, and compare the files with those that a new interpreter loads."""
        __tracebackhide__ = True
        importlib.import_module(self._module)
        # The module may close or replace the interpreter's own stderr.
        written = f"import json; os.write(own, ({_MARK!r} + json.dumps({_FILES})).encode())"
        text = self._run(f"import os; own = os.dup(2); {self._code}; {written}")
        _, mark, found = text.rpartition(_MARK)
        if not mark:
            raise ComponentError(
                f"importing {self._module} in a new interpreter ends it with exit code 0 before the import is done; "
                "imported here, the module goes on"
            )
        for name, file in json.loads(found).items():
            here = getattr(sys.modules.get(name), "__file__", None)
            if here is not None and os.path.realpath(here) != os.path.realpath(file):
                raise ComponentError(f"a new interpreter imports {name} from {file}, and this process from {here}")

    def _run(self, code: str, *options: str) -> str:
        """Run an interpreter to its end, and return what it wrote to stderr; ComponentError if it fails."""
        __tracebackhide__ = True
        command = [sys.executable, *options, "-c", code]
        began_ns = time.perf_counter_ns()
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(command, stdin=null, stdout=null, stderr=pipe, text=True, errors="replace") as process:
            try:
                assert process.stderr is not None
                text = process.stderr.read()
                held_ns = _held_until_end_ns(process.pid)
            except BaseException:
                process.kill()
                raise
        self._taken_ns += time.perf_counter_ns() - began_ns - held_ns
        if process.returncode:
            *_, last = ["", *text.strip().splitlines()]
            raise ComponentError(f"import {self._module} failed in a new interpreter ({process.returncode}): {last}")
        return text

    def _modules(self, text: str) -> Iterator[_Module]:
        """Yield the modules that the import loaded, each after the one that imported it."""
        top = self._module.partition(".")[0]
        path: list[str] = []
        for total, indent, name in reversed(_LINE.findall(text)):
            path[len(indent) // 2 :] = [name]
            if path[0] == top or path[0].startswith(f"{top}."):
                yield tuple(path), int(total)

    def _record(self, node: Node, modules: list[_Module]) -> None:
        """Add modules below a node of the timer tree."""
        if not self._shown:
            least_us = _SHOWN_LEAST * sum(total_us for path, total_us in modules if len(path) == 1)
            outer = (each for each in modules if len(each[0]) <= _DEEPEST and each[1] >= least_us)
            slowest = sorted(outer, key=lambda each: (-each[1], len(each[0])))[:_SHOWN_MOST]
            self._shown = frozenset(path for path, _ in slowest)
        for path, total_us in modules:
            if path in self._shown:
                below = node
                for name in path:
                    below = below.child(name)
                below.close(1000 * total_us)


def _held_until_end_ns(pid: int) -> int:
    """Wait until a child process has ended; return how long it waited for a CPU, 0 if that is unknown."""
    if sys.platform != "linux":
        return 0
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
