"""Whether both sides have loaded the code they are to be measured with, judged by the files they loaded."""

from __future__ import annotations

import base64
import csv
import gc
import hashlib
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import FunctionType, ModuleType
from typing import TypeAlias

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.sides.git import changed_since_record
from pytest_rlperf.sides.packages import in_tree

Loaded: TypeAlias = Mapping[str, str]  # files by the names of the modules they were loaded as


def check_loaded(sides: Sides, base: Loaded, head: Loaded, importers: Loaded | None = None) -> bool:
    """Check what workers of both sides have loaded, and return whether any of it differs.

    ``importers`` are the names of modules that hold a module. SideError where a side has loaded the other's code, code
    of neither, nothing of the packages under test, or files that are no longer what was checked out or built. The
    answer is True wherever files alone cannot tell; what child processes load is not seen.
    """
    one_place = _homes(sides.base) == _homes(sides.head)
    pairs = ((sides.base, base, sides.head), (sides.head, head, sides.base))
    for side, loaded, other in pairs:
        _check_places(sides, side, loaded, other, importers or {})
    if sides.packages and not one_place and not _under_test(sides.base, base, sides.packages):
        what = "what differs between the sides" if sides.changed is None else "this repository"
        raise SideError(
            f"the benchmark never imports {what}: nothing was loaded of {', '.join(sides.packages)} "
            f"on {sides.base.label} (rlperf_packages in the ini file names the packages under test)"
        )
    for side, loaded, _ in pairs:
        _check_bytes(side, _under_test(side, loaded, sides.packages))
    return _differs(sides, {*base.values(), *head.values()})


def _check_places(sides: Sides, side: Side, loaded: Loaded, other: Side, importers: Loaded) -> None:
    """Check that a side has loaded nothing of the other's, and its packages under test from its own homes."""
    own = _homes(side)
    for name, (path, owner) in _owned(loaded, own | _homes(other)).items():
        if owner in own or (owner is None and not _is_of(name, sides.packages)):
            continue
        importer = f", imported by {importers[name]}" if name in importers else ""
        if owner is not None:
            raise SideError(
                f"{side.label} has loaded code of {other.label}: {name} is {path}{importer}; "
                "something puts that directory on the path or hooks imports after Python has started"
            )
        raise SideError(
            f"{side.label} has loaded code of neither side: {name} is {path}{importer}, "
            f"where it should be under {' or '.join(map(str, side.homes))}; "
            "install the repository editable (pip install -e .), or name the packages under test: rlperf_packages"
        )


def _check_bytes(side: Side, files: list[Path]) -> None:
    """Check that the files of packages under test are those that were checked out or built for a side."""
    for home in side.homes:
        recorded = _recorded(home.resolve())
        for path in files:
            if path in recorded and recorded[path] != _digest(path):
                raise SideError(f"{path} is not what was built for {side.label}; remove {home} and run again")
        own = [path for path in files if path.is_relative_to(home.resolve())]
        for path in changed_since_record(home.resolve(), own):
            raise SideError(f"{path} is not what was checked out for {side.label}; remove {home} and run again")


def _recorded(home: Path) -> dict[Path, str]:
    """Return the SHA-256 of every file that wheels have installed in a directory, as their RECORDs have it."""
    recorded = {}
    for record in home.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if len(row) > 1 and row[1].startswith("sha256="):
                    recorded[home / row[0]] = row[1].removeprefix("sha256=")
    return recorded


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file as RECORD files write it."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def _differs(sides: Sides, files: Iterable[str]) -> bool:
    """Whether anything that either side has loaded differs, as far as the names of changed files can tell."""
    if sides.changed is None:
        return True
    loaded = [PurePosixPath(Path(file).as_posix()).parts for file in files]
    for name in sides.changed:
        tail = _within_package(PurePosixPath(name), sides.packages)
        if tail is None or any(parts[-len(tail) :] == tail for parts in loaded):
            return True
    return False


def _within_package(file: PurePosixPath, packages: Iterable[str]) -> tuple[str, ...] | None:
    """Return the end of a path that begins with the name of a package under test; None of what is no code of one.

    Of several such ends it is the shortest, which is the end of most paths.
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
    """Return the file of every module without links, and the innermost home it is of, None where it is of none."""
    homes = tuple(homes)
    owners: dict[Path, Path | None] = {home: home for home in homes}  # which may be files
    owned = {}
    for name, file in loaded.items():
        path = Path(file).resolve()
        if path.parent not in owners:
            within = [home for home in homes if path.is_relative_to(home) and in_tree(path.parent, home)]
            owners[path.parent] = max(within, key=lambda home: len(home.parts), default=None)
        owned[name] = path, owners.get(path, owners[path.parent])
    return owned


def _under_test(side: Side, loaded: Loaded, packages: Iterable[str]) -> list[Path]:
    """Return the files of packages under test that a side has loaded from where it should."""
    named = {name: file for name, file in loaded.items() if _is_of(name, packages)}
    return [path for path, owner in _owned(named, _homes(side)).values() if owner is not None]


def _is_of(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def loaded_files(watched: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """Return the file of every module that was loaded from under ``watched`` or is of one of ``packages``, by name.

    Files are named with no links in them.
    """
    homes = [os.path.realpath(home) for home in watched]
    directories: dict[str, str] = {}
    loaded = {}
    for name, file in _modules():
        directory, base = os.path.split(file)
        if directory not in directories:
            directories[directory] = os.path.realpath(directory)
        path = os.path.join(directories[directory], base)  # noqa: PTH118 - thousands of modules
        if os.path.islink(path):  # noqa: PTH114 - likewise
            path = os.path.realpath(path)
        if _is_of(name, packages) or any(path == home or path.startswith(home + os.sep) for home in homes):
            loaded[name] = path
    return loaded


def executed_files(watched: Sequence[str]) -> dict[str, str]:
    """Return the files under ``watched`` that live functions came from, each by its own path.

    What ``runpy`` and ``exec`` run has no module to be found by.
    """
    homes = tuple(os.path.realpath(home) + os.sep for home in watched)
    named = {value.__code__.co_filename for value in gc.get_objects() if type(value) is FunctionType}
    paths = {os.path.realpath(name) for name in named if not name.startswith("<")}
    return {path: path for path in paths if path.startswith(homes)}


def importers_of(modules: Iterable[str]) -> dict[str, str]:
    """Return a module that holds each of ``modules`` or a name of it, by its name, where there is one."""
    wanted = set(modules)
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are deprecated, which this only looks at
        for name, _ in _modules():
            for value in list(vars(sys.modules[name]).values()):
                source = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                if isinstance(source, str) and source in wanted and source != name:
                    found.setdefault(source, name)
    return found


def _modules() -> Iterator[tuple[str, str]]:
    """Yield the modules that have a file; what lazy modules would load by being asked stays unloaded."""
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and name != "__main__":
            yield name, file
