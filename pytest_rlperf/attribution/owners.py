"""The owners of functions: Python, PyTorch or a native extension, by files, modules and cProfile's names."""

from __future__ import annotations

import builtins
import os
import re
import sys
import types
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import CodeType, ModuleType

PYTHON = "python"
PYTORCH = "pytorch"
PYTORCH_PYTHON = "pytorch (Python)"
JAX = "jax"
PYTHON_OR_JAX = "python or jax"
"""Python functions of calls that run on JAX: no profiler sees a compiled function of JAX's that they call."""
ENVIRONMENT = "environment"
DEVICE_WAIT = "device wait"
WAITING = "waiting"
OTHER_NATIVE = "other native"
UNATTRIBUTED = "unattributed"
HARNESS = "(harness)"
"""Functions that run only while shares are found; they are no part of a call."""

ALWAYS = frozenset({PYTHON, PYTORCH, PYTORCH_PYTHON, JAX, PYTHON_OR_JAX, ENVIRONMENT, DEVICE_WAIT, WAITING})
"""Owners that are no extensions, shown however small."""

ENV_METHODS = frozenset({"step", "reset", "step_async", "step_wait", "step_all", "reset_all", "step_and_maybe_reset"})

_PACKAGE = Path(__file__).parents[1]
_HARNESS = str(_PACKAGE / "attribution") + os.sep
_MEASURED = str(_PACKAGE / "components" / "reference") + os.sep  # measured by users, though it is in this package
_HARNESS_NATIVES = ("_lsprof.Profiler", "register_callback", "sys.setprofile")
_FUNCTION = re.compile(r"<(?:built-in method )?(.+)>")
_METHOD = re.compile(r"<(?:method|slot wrapper) '(\w+)' of '([\w.]+)' objects>")
# The types of None, functions and generators have no name in builtins, but have one in types.
_BUILTIN_TYPES = tuple(value for home in (builtins, types) for value in vars(home).values() if isinstance(value, type))
_LIBRARIES = {"torch": PYTORCH_PYTHON, "jax": JAX}
_WAITS = frozenset(
    {
        *("time.sleep", "_thread.lock.acquire", "_thread.RLock.acquire", "_queue.SimpleQueue.get"),
        *("select.select", "select.poll.poll", "select.epoll.poll", "posix.read", "posix.waitpid"),
        *("_socket.socket.recv", "_socket.socket.recv_into", "_socket.socket.accept"),
        *("_multiprocessing.SemLock.acquire", "_multiprocessing.SemLock.__enter__"),
    }
)


def owner_of_code(code: CodeType) -> str:
    """Return the owner of a Python function: Python, PyTorch's Python, JAX with XLA's work in it, or this package."""
    path = code.co_filename
    if path.startswith(_HARNESS):
        return HARNESS
    if path.startswith(str(_PACKAGE) + os.sep) and not path.startswith(_MEASURED):
        return UNATTRIBUTED  # the fixtures' own thunks and timers
    for name, owner in _LIBRARIES.items():
        home = getattr(sys.modules.get(name), "__file__", None)
        if home is not None and path.startswith(str(Path(home).parent) + os.sep):
            return owner
    return PYTHON


class NativeOwners:
    """Finds the owners of native functions among the extensions that are loaded."""

    def __init__(self) -> None:
        self._extensions: dict[str, list[ModuleType]] = {}
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").endswith(tuple(EXTENSION_SUFFIXES)):
                self._extensions.setdefault(name.partition(".")[0], []).append(module)

    def of_text(self, text: str) -> str:
        """Return the owner of a native function that cProfile calls ``text``; steps of native environments are theirs.

        A function without a module is Python's where a built-in type has such a method, else unattributed.
        """
        if any(name in text for name in _HARNESS_NATIVES):
            return HARNESS
        method = _METHOD.fullmatch(text)
        if method is not None:
            name, type_name = method.groups()
            owner = self._of_name(f"{type_name}.{name}") if "." in type_name else PYTHON
            is_env = name in ENV_METHODS and owner not in {PYTHON, PYTORCH, UNATTRIBUTED, "numpy"}
            return ENVIRONMENT if is_env else owner
        function = _FUNCTION.fullmatch(text)
        return self._of_name(function[1].partition(" ")[0]) if function is not None else UNATTRIBUTED

    def _of_name(self, name: str) -> str:
        """Return the owner of a dotted name; some compiled types give ``builtins`` as their module."""
        top, dot, rest = name.partition(".")
        if name in _WAITS:
            return WAITING
        if not dot:
            return PYTHON if any(hasattr(kind, name) for kind in (*_BUILTIN_TYPES, builtins)) else UNATTRIBUTED
        if top == "builtins" and not hasattr(builtins, rest.partition(".")[0]):
            return self._owner_of_builtin(rest.partition(".")[0])
        return self._owner(top)

    def _owner_of_builtin(self, type_name: str) -> str:
        """Return the extension that has a type of that name with ``builtins`` as its module.

        The name alone is not enough: PyTorch, too, has a type called NoneType.
        """
        for package, modules in self._extensions.items():
            for kind in (vars(module).get(type_name) for module in modules):
                if isinstance(kind, type) and kind.__module__ == "builtins" and kind not in _BUILTIN_TYPES:
                    return self._owner(package)
        return UNATTRIBUTED

    def _owner(self, package: str) -> str:
        if package in sys.stdlib_module_names or package == "builtins":
            return PYTHON
        return {"torch": PYTORCH, "functorch": PYTORCH, "jaxlib": JAX}.get(package, package)
