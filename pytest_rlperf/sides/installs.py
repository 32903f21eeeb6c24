"""The distributions that are installed from a tree, by their own metadata, and how they are imported.

An installation's effect on imports is read from its files, never by importing them: an imported hook may start a build,
and may change this process's imports.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Collection, Container, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.observe.observer import files_of
from pytest_rlperf.sides.programs import read_settings
from pytest_rlperf.sides.trees import is_environment

How = Literal["path", "hook", "installed"]

_SOURCE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_FINDER = re.compile(r"import\s+__editable__\w+_finder\b")  # setuptools' finder, whose modules all lie in the tree
_PROJECT = re.compile(r"^\s*\[\s*(project|build-system|tool\.poetry)\s*[].]", re.MULTILINE)
_AT_TOP = re.compile(r"^[^./,\n]+", re.MULTILINE)
_NOT_FOUND = re.compile(r"^(?:E\s+)?ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)


class Install(msgspec.Struct, frozen=True):
    """A distribution installed from a tree, and how it is imported.

    It is imported from the tree ("path"), by an import hook that may load it from elsewhere ("hook"), or as a copy in
    the environment ("installed"). ``pths`` are its ``.pth`` files, ``names`` the import names of a copy.
    """

    name: str
    project_dir: Path
    how: How
    pths: tuple[Path, ...]
    names: tuple[str, ...]


def normalized(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def top_level(distribution: importlib.metadata.Distribution) -> set[str]:
    """Return what a distribution has at the top of its place, without suffixes: its modules, and names of no module.

    The text of its list is read: its files as paths would take most of a second in a large environment.
    """
    declared = distribution.read_text("top_level.txt")
    if declared:
        return {*declared.split()}
    listed = distribution.read_text("RECORD") or "\n".join(map(str, distribution.files or ()))
    return {*_AT_TOP.findall(listed)}


def not_installed(errors: str) -> tuple[str, ...]:
    """Return the top-level modules that Python's messages miss and that cannot be imported here either.

    An old commit may need packages that today's code does not.
    """
    names = dict.fromkeys(name.partition(".")[0] for name in _NOT_FOUND.findall(errors))
    return tuple(name for name in names if name not in sys.modules and PathFinder.find_spec(name) is None)


def is_project(directory: Path) -> bool:
    """Whether pip can build a directory; other tools' settings in pyproject.toml do not suffice."""
    settings = directory / "pyproject.toml"
    text = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    return (directory / "setup.py").is_file() or _PROJECT.search(text) is not None


def project_above(path: Path, top: Path) -> Path | None:
    """Return the closest directory at or above ``path``, up to ``top``, that pip can build; None without one."""
    above = [place for place in (path, *path.parents) if place.is_relative_to(top)]
    return next((place for place in above if place.is_dir() and is_project(place)), None)


def modules_of(tree: Path, names: Iterable[str], path: Container[str]) -> dict[str, str]:
    """Return the names by which a tree's files may be imported, each with its file.

    Modules lie in the tree itself, in a project within it, in an entry of ``path``, or in ``src`` or packages below the
    tree or a project.
    """
    found: dict[str, str] = {}
    for name in names:
        file = PurePosixPath(name)
        if file.suffix != ".py":
            continue
        parts = file.parent.parts if file.stem == "__init__" else file.with_suffix("").parts
        for count in range(len(parts)):
            place = tree.joinpath(*parts[:count])
            if parts[count] not in sys.stdlib_module_names and _has_module(tree, place, parts[count], path):
                found[".".join(parts[count:])] = name
    return found


def loaded_from_checkouts(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the modules that this process has loaded from files ``names`` in a git checkout, each with its file."""
    last_parts = {name.rpartition("/")[2] for name in names}
    for name, file in files_of(list(sys.modules)):
        if os.path.basename(file) not in last_parts:  # noqa: PTH119 - thousands of paths would take long
            continue
        top = _checkout_of(Path(file).parent)
        place = "" if top is None else Path(file).relative_to(top).as_posix()
        if place in names:
            yield name, place


@functools.cache
def _checkout_of(directory: Path) -> Path | None:
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), None)


def _has_module(tree: Path, place: Path, name: str, path: Container[str]) -> bool:
    """Whether modules, or the package ``name``, are imported from a directory in a tree."""
    if place == tree or str(place) in path or is_project(place):
        return True
    is_below_project = place.parent == tree or is_project(place.parent)
    return is_below_project and (place.name == "src" or (place / name / "__init__.py").is_file())


def installs_from(top: Path) -> tuple[Install, ...]:
    """Return the distributions installed from the tree at ``top``, by name."""
    found: dict[str, Install] = {}
    for distribution in importlib.metadata.distributions():
        origin = _origin(distribution, top.resolve())
        if origin is not None:
            install = _read(distribution, origin[0], editable=origin[1])
            found.setdefault(normalized(install.name), install)  # imports find the first on sys.path
    return tuple(found[name] for name in sorted(found))


def copies_of(directory: Path, top: Path, known: Iterable[Install]) -> Iterator[Install]:
    """Yield installed copies of a tree's code, such as wheels, whose metadata does not say so, without those ``known``.

    They have the name of a project around ``directory``.
    """
    from_tree = {normalized(install.name) for install in known}
    for place, name in projects_around(directory, top):
        if normalized(name) in from_tree:
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            distribution = importlib.metadata.distribution(name)
            if not (direct_url(distribution).get("dir_info") or {}).get("editable"):
                copy = _read(distribution, place, editable=False)
                yield from [copy] if copy.names else []


def projects_around(directory: Path, top: Path) -> Iterator[tuple[Path, str]]:
    """Yield the projects around a directory in the tree at ``top``, installed or not, with their names."""
    directory, top = directory.resolve(), top.resolve()
    for place in (directory, *directory.parents):
        project = None
        with contextlib.suppress(SideError, OSError):  # an unreadable file names nothing
            project = read_settings(place).get("project") if place.is_relative_to(top) else None
        name = project.get("name") if isinstance(project, dict) else None
        if isinstance(name, str):
            yield place, name


def direct_url(distribution: importlib.metadata.Distribution) -> dict[str, Any]:
    """Return where a distribution was installed from, as PEP 610 records it; empty if from an index."""
    found = json.loads(distribution.read_text("direct_url.json") or "{}")
    return found if isinstance(found, dict) else {}


def local_directory(distribution: importlib.metadata.Distribution) -> Path | None:
    """Return the directory that a distribution was installed from, None for a wheel or another origin."""
    url = urlsplit(direct_url(distribution).get("url", ""))
    place = Path(unquote(url.path, errors="surrogateescape"))
    return place.resolve() if url.scheme == "file" and place.is_dir() else None


def _origin(distribution: importlib.metadata.Distribution, top: Path) -> tuple[Path, bool] | None:
    """Return the project in the tree that a distribution was installed from, and whether it is editable."""
    place = local_directory(distribution)
    if place is None or not place.is_relative_to(top):
        return None
    within = [place, *(parent for parent in place.parents if parent != top and parent.is_relative_to(top))]
    if any(is_environment(each) for each in within if each != top):
        return None
    return place, bool(direct_url(distribution).get("dir_info", {}).get("editable"))


def _read(distribution: importlib.metadata.Distribution, project_dir: Path, *, editable: bool) -> Install:
    """Return how a distribution is imported, by its files."""
    name = distribution.metadata["Name"]
    files = [PurePosixPath(str(file)) for file in distribution.files or ()]
    root = Path(str(distribution.locate_file("")))
    if not editable:
        found = (file.parts[0].partition(".")[0] for file in files if file.name.endswith(_SOURCE_SUFFIXES))
        names = tuple(each for each in dict.fromkeys(found) if each.isidentifier())
        return Install(name, project_dir, "installed", (), names)
    pths = tuple(root / file for file in files if file.suffix == ".pth" and len(file.parts) == 1)
    hooks = [line for pth in pths for line in pth_lines(pth) if is_import_line(line) and not _FINDER.match(line)]
    return Install(name, project_dir, "hook" if hooks else "path", pths, ())


def pth_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a ``.pth`` file, without blank ones and comments."""
    for line in path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.rstrip()


def is_import_line(line: str) -> bool:
    """Whether a line of a ``.pth`` file is code."""
    return line.startswith(("import ", "import\t"))


def import_packages(directory: Path, namespace: str = "") -> Iterator[str]:
    """Yield the import packages and modules in a directory of installed ones, with dotted names in namespaces."""
    for path in sorted(directory.iterdir()):
        name = path.name if path.is_dir() else path.name.partition(".")[0]
        if not name.isidentifier() or name.startswith("_rlperf_"):
            continue
        if path.is_dir() and not any(path.glob("__init__.*")):
            yield from import_packages(path, f"{namespace}{name}.")
        elif path.is_dir() or path.name.endswith(_SOURCE_SUFFIXES):
            yield namespace + name


def is_installed(name: str, home: Path) -> bool:
    """Whether a package or module with that name lies in a directory of installed packages."""
    place = home.joinpath(*name.split("."))
    return place.is_dir() or any(place.parent.glob(f"{place.name}.*"))
