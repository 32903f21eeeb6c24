"""The files that processes have loaded, and the check that each side has loaded its own code.

Workers list the files they have loaded; the run compares them with the homes of their side.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import FunctionType, ModuleType
from typing import TypeAlias

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.sides.cache import check_unchanged
from pytest_rlperf.sides.packages import in_tree

# --------------------------------------------------------------------------- in a worker


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


# --------------------------------------------------------------------------- in the run


Loaded: TypeAlias = Mapping[str, str]  # files by the names of their modules


class NothingLoadedError(SideError):
    """A test has loaded nothing of the packages under test, which is true of this test and says nothing of others."""


def check_loaded(sides: Sides, base: Loaded, head: Loaded) -> bool:
    """Check the files that workers of both sides have loaded, and return whether any of them differs.

    SideError where a side has loaded the other's code, code of neither, or files that have changed since they were
    checked out or built; NothingLoadedError where base has loaded nothing of the packages under test. The result is
    True wherever files alone do not decide. Files that child processes load are not checked.
    """
    one_place = _homes(sides.base) == _homes(sides.head)
    pairs = ((sides.base, base, sides.head), (sides.head, head, sides.base))
    for side, loaded, other in pairs:
        _check_places(sides, side, loaded, other)
    if sides.packages and not one_place and not _under_test(sides.base, base, sides.packages):
        hint = "rlperf_packages in the ini file names the packages under test"
        if sides.changed is None:
            hint = "choose a test that imports what differs between the sides"
        raise NothingLoadedError(
            f"the test loads no module of {', '.join(sides.packages)} on {sides.base.label}: {hint}"
        )
    for side, loaded, _ in pairs:
        files = _under_test(side, loaded, sides.packages)
        for home in side.homes:
            check_unchanged(home.resolve(), files)
    return _differs(sides, {*base.values(), *head.values()})


def _check_places(sides: Sides, side: Side, loaded: Loaded, other: Side) -> None:
    """Check that a side has loaded nothing of the other's, and its packages under test from its own homes."""
    own = _homes(side)
    for name, (path, owner) in _owned(loaded, own | _homes(other)).items():
        if owner in own or (owner is None and not belongs_to(name, sides.packages)):
            continue
        if owner is not None:
            raise SideError(
                f"{side.label} has loaded code of {other.label}: {name} is {path}; "
                "something puts that directory on the path or hooks imports after Python has started"
            )
        raise SideError(
            f"{side.label} has loaded code of neither side: {name} is {path}, "
            f"but it should be under {' or '.join(map(str, side.homes))}; "
            "install the repository editable (pip install -e .), or name the packages under test: rlperf_packages"
        )


def _differs(sides: Sides, files: Iterable[str]) -> bool:
    """Whether any file that either side has loaded differs, judged by the names of changed files."""
    if sides.changed is None:
        return True
    loaded = [PurePosixPath(file).parts for file in files]
    for name in sides.changed:
        tail = _within_package(PurePosixPath(name), sides.packages)
        if tail is None or any(parts[-len(tail) :] == tail for parts in loaded):
            return True
    return False


def _within_package(file: PurePosixPath, packages: Iterable[str]) -> tuple[str, ...] | None:
    """Return the end of a path from the name of a package under test on, None for a file outside such packages.

    Of several such ends it is the shortest, which matches the most paths.
    """
    if file.suffix != ".py":
        return None
    parts = (*file.parts[:-1], file.stem)
    starts = [
        start
        for package in packages
        for start in range(len(parts))
        if list(parts[start : start + package.count(".") + 1]) == package.split(".")
    ]
    return file.parts[max(starts) :] if starts else None


def _homes(side: Side) -> frozenset[Path]:
    return frozenset(home.resolve() for home in side.homes)


def _owned(loaded: Loaded, homes: Iterable[Path]) -> dict[str, tuple[Path, Path | None]]:
    """Return the resolved file of every module, and the innermost home around it, None where it is in none."""
    known = frozenset(homes)
    return {name: _located(file, known) for name, file in loaded.items()}


# Every pair of a run has loaded much the same files.
@functools.cache
def _located(file: str, homes: frozenset[Path]) -> tuple[Path, Path | None]:
    path = Path(_resolved(file))
    return path, path if path in homes else _owner(path.parent, homes)  # a home may be a file


@functools.cache
def _owner(directory: Path, homes: frozenset[Path]) -> Path | None:
    """Return the innermost home around a directory."""
    within = [home for home in homes if directory.is_relative_to(home) and in_tree(directory, home)]
    return max(within, key=lambda home: len(home.parts), default=None)


def _under_test(side: Side, loaded: Loaded, packages: Iterable[str]) -> list[Path]:
    """Return the files of packages under test that a side has loaded from its homes."""
    named = {name: file for name, file in loaded.items() if belongs_to(name, packages)}
    return [path for path, owner in _owned(named, _homes(side)).values() if owner is not None]
