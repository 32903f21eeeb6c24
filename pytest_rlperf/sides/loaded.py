"""The files that this process has loaded, as a worker lists them."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType, ModuleType


def loaded_files(watched: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """Return the file of every module that was loaded from below ``watched`` or belongs to ``packages``, by name.

    Links in the paths are resolved.
    """
    homes = [os.path.realpath(home) for home in watched]
    below = tuple(home + os.sep for home in homes)
    loaded = {}
    for name, file in _modules():
        path = _resolved(file)
        if path.startswith(below) or path in homes or belongs_to(name, packages):
            loaded[name] = path
    return loaded


@functools.cache
def _resolved(file: str) -> str:
    """Return a loaded file's path without links, as it was when first asked for: there are thousands of them."""
    directory, base = os.path.split(file)
    path = os.path.join(_resolved_directory(directory), base)  # noqa: PTH118 - thousands of modules
    return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - likewise


@functools.cache
def _resolved_directory(directory: str) -> str:
    return os.path.realpath(directory)


def executed_files(watched: Sequence[str]) -> dict[str, str]:
    """Return the files below ``watched`` that live functions came from, each by its own path.

    Code that ``runpy`` and ``exec`` run has no module.
    """
    homes = tuple(os.path.realpath(home) + os.sep for home in watched)
    named = {value.__code__.co_filename for value in gc.get_objects() if type(value) is FunctionType}
    paths = {os.path.realpath(name) for name in named if not name.startswith("<")}
    return {path: path for path in paths if path.startswith(homes)}


def _modules() -> Iterator[tuple[str, str]]:
    """Yield the modules that have a file, without loading those that load lazily."""
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and name != "__main__":
            yield name, file


def belongs_to(name: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of ``packages`` or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
