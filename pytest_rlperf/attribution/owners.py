"""Who owns what runs: Python, PyTorch, a native extension; by files, modules, and what a profiler calls things."""

from __future__ import annotations

import builtins
import os
import re
import sys
import types
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

PYTHON = "python"
PYTORCH = "pytorch"
PYTORCH_PYTHON = "pytorch (Python)"
ENVIRONMENT = "environment"
DEVICE_WAIT = "device wait"
WAITING = "waiting"
OTHER_NATIVE = "other native"
UNATTRIBUTED = "unattributed"
HARNESS = "(harness)"
"""What runs only while shares are found; it is no part of a call."""

ALWAYS = frozenset({PYTHON, PYTORCH, PYTORCH_PYTHON, ENVIRONMENT, DEVICE_WAIT, WAITING})
"""Owners that are no extensions, shown however small."""

ENV_METHODS = frozenset({"step", "reset", "step_async", "step_wait", "step_all", "reset_all", "step_and_maybe_reset"})

_PACKAGE = Path(__file__).parents[2]
_HARNESS = str(_PACKAGE / "timers" / "shares") + os.sep
_MEASURED = str(_PACKAGE / "components" / "reference") + os.sep  # what users measure, though it is in this package
_FUNCTION = re.compile(r"<(?:built-in method )?(.+)>")
_METHOD = re.compile(r"<(?:method|slot wrapper) '(\w+)' of '([\w.]+)' objects>")
# The types of None, functions and generators have no name in builtins, but have one in types.
_BUILTIN_TYPES = tuple(value for home in (builtins, types) for value in vars(home).values() if isinstance(value, type))
_WAITS = frozenset(
    {
        *("time.sleep", "_thread.lock.acquire", "_thread.RLock.acquire", "_queue.SimpleQueue.get"),
        *("select.select", "select.poll.poll", "select.epoll.poll", "posix.read", "posix.waitpid"),
        *("_socket.socket.recv", "_socket.socket.recv_into", "_socket.socket.accept"),
        *("_multiprocessing.SemLock.acquire", "_multiprocessing.SemLock.__enter__"),
    }
)


def owner_of_code(code: CodeType) -> str:
    """Return who owns a Python function: Python, PyTorch's Python, ourselves."""
    path = code.co_filename
    if path.startswith(_HARNESS):
        return HARNESS
    if path.startswith(str(_PACKAGE) + os.sep) and not path.startswith(_MEASURED):
        return UNATTRIBUTED  # the fixtures' own thunks and timers
    torch = sys.modules.get("torch")
    home = getattr(torch, "__file__", None)
    return PYTORCH_PYTHON if home is not None and path.startswith(str(Path(home).parent) + os.sep) else PYTHON


class NativeOwners:
    """Tells who owns native functions and objects, among the extensions that are loaded."""

    def __init__(self) -> None:
        self._extensions: dict[str, list[ModuleType]] = {}
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").endswith(tuple(EXTENSION_SUFFIXES)):
                self._extensions.setdefault(name.partition(".")[0], []).append(module)

    def of_text(self, text: str) -> str:
        """Return who owns a native function that cProfile calls ``text``; an environment's step is the environment's.

        What has no module is Python's where a built-in type has such a method, and unattributed where none does.
        """
        if "_lsprof.Profiler" in text or "register_callback" in text:
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
        """Return who owns a dotted name; compiled types may say of themselves that they are built in."""
        top, dot, rest = name.partition(".")
        if name in _WAITS:
            return WAITING
        if not dot:
            return PYTHON if any(hasattr(kind, name) for kind in (*_BUILTIN_TYPES, builtins)) else UNATTRIBUTED
        if top == "builtins" and not hasattr(builtins, rest.partition(".")[0]):
            return next((owner for _, owner in self._said_to_be_built_in(rest.partition(".")[0])), UNATTRIBUTED)
        return self._owner(top)

    def _said_to_be_built_in(self, type_name: str) -> Iterator[tuple[type, str]]:
        """Yield the types of that name that say of themselves that they are built in, and the extensions they are of.

        A name alone says little: PyTorch, too, has a type that is called NoneType.
        """
        for package, modules in self._extensions.items():
            for kind in (vars(module).get(type_name) for module in modules):
                if isinstance(kind, type) and kind.__module__ == "builtins" and kind not in _BUILTIN_TYPES:
                    yield kind, self._owner(package)

    def _owner(self, package: str) -> str:
        if package in sys.stdlib_module_names or package == "builtins":
            return PYTHON
        return PYTORCH if package in {"torch", "functorch"} else package

    def of_object(self, value: object) -> str | None:
        """Return the extension whose native code works on an object, or that a module is of; None for Python's."""
        if isinstance(value, ModuleType):
            return self._extension(value.__name__)
        kind = value if isinstance(value, type) else type(value)
        for base in kind.__mro__:
            if not any(isinstance(member, FunctionType) for member in vars(base).values()):
                owner = self._of_type(base)
                if owner is not None:
                    return owner
        if isinstance(value, BuiltinFunctionType | FunctionType):
            return self._extension(value.__module__ or "")
        return None

    def _of_type(self, kind: type) -> str | None:
        if kind in _BUILTIN_TYPES:
            return None
        if kind.__module__ != "builtins":
            return self._extension(kind.__module__)
        owners = (owner for found, owner in self._said_to_be_built_in(kind.__name__) if found is kind)
        return next((owner for owner in owners if owner != PYTHON), None)

    def _extension(self, module: str) -> str | None:
        """Return the extension that a module is of, None where its package has no native code."""
        package = module.partition(".")[0]
        owner = self._owner(package)
        return owner if package in self._extensions and owner != PYTHON else None
