"""Distributions that are installed from a tree, editable or not, as the running interpreter finds them.

What an installation does to imports is read from its files, never by importing them: a hook that is loaded to be looked
at may build, and may hook this process.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

How = Literal["path", "finder", "hook", "installed"]

_OTHER_ROOMS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")  # what makes a directory no part of the tree it lies in
_SITE_DIRECTORIES = {"site-packages", "dist-packages", "node_modules"}
_INSTALLED_SUFFIXES = (".py", ".pyc", *EXTENSION_SUFFIXES)
_BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")


@dataclass(frozen=True)
class Install:
    """A distribution installed from a tree.

    ``names`` are the import packages its metadata tell of, and may be empty. ``entries`` are the directories of the
    tree that it puts on sys.path, ``places`` what setuptools' finder maps a name to, ``pths`` its ``.pth`` files.
    """

    name: str
    project_dir: Path
    how: How
    names: tuple[str, ...]
    entries: tuple[Path, ...]
    places: Mapping[str, Path]
    pths: tuple[Path, ...]


def in_tree(path: Path, top: Path) -> bool:
    """Whether ``path`` is of the tree at ``top``: not of an environment, a cache or a hidden directory in it."""
    path, top = path.resolve(), top.resolve()
    if not path.is_relative_to(top):
        return False
    parts = path.relative_to(top).parts
    rooms = [top.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    return not any(
        room.name.startswith(".")
        or room.name in _SITE_DIRECTORIES
        or any((room / sign).exists() for sign in _OTHER_ROOMS)
        for room in rooms
    )


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installs_from(top: Path) -> tuple[Install, ...]:
    """Return the distributions installed from the tree at ``top``, by name."""
    found: dict[str, Install] = {}
    for distribution in importlib.metadata.distributions():
        origin = _origin(distribution, top)
        if origin is not None:
            project_dir, editable = origin
            install = _read(distribution, project_dir, top, editable=editable)
            found.setdefault(normalized(install.name), install)  # the first on sys.path is what imports find
    return tuple(found[name] for name in sorted(found))


def project_above(path: Path, top: Path) -> Path | None:
    """Return the closest directory at or above ``path``, up to ``top``, that can be built."""
    for directory in [path, *path.parents]:
        if not directory.is_relative_to(top):
            break
        if directory.is_dir() and is_project(directory):
            return directory
    return None


def is_project(directory: Path) -> bool:
    """Whether a directory can be built: settings of tools alone do not make it so."""
    if any((directory / name).is_file() for name in _BUILD_FILES[1:]):
        return True
    settings = directory / _BUILD_FILES[0]
    if not settings.is_file():
        return False
    text = settings.read_text(encoding="utf-8", errors="replace")
    return re.search(r"^\s*\[\s*(project|build-system|tool\.poetry)\s*[].]", text, re.MULTILINE) is not None


def is_named(project_dir: Path, name: str) -> bool:
    """Whether a project calls itself so, as far as its files say without running them."""
    for build_file in _BUILD_FILES:
        path = project_dir / build_file
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if any(normalized(said) == normalized(name) for said in re.findall(r"\bname\s*=\s*[\"']?([\w.-]+)", text)):
            return True
    return False


def _origin(distribution: importlib.metadata.Distribution, top: Path) -> tuple[Path, bool] | None:
    """Return the project of the tree that a distribution was installed from, and whether it is editable."""
    try:
        direct: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    except (ValueError, OSError):
        return None
    url = urlsplit(str(direct.get("url", "")))
    if url.scheme != "file":
        return None
    place = Path(unquote(url.path, errors="surrogateescape")) / str(direct.get("subdirectory", ""))
    if not in_tree(place, top):
        return None
    if "archive_info" not in direct:
        return place.resolve(), bool(direct.get("dir_info", {}).get("editable"))
    # A wheel that lies in the tree is the tree's own, or one that somebody put there.
    project_dir = project_above(place.resolve().parent, top.resolve())
    if project_dir is None or not is_named(project_dir, distribution.metadata["Name"]):
        return None
    return project_dir, False


def _read(distribution: importlib.metadata.Distribution, project_dir: Path, top: Path, *, editable: bool) -> Install:
    """Return what a distribution's files say of how it is imported."""
    name = distribution.metadata["Name"]
    files = [PurePosixPath(str(file)) for file in distribution.files or ()]
    root = Path(str(distribution.locate_file("")))
    names = tuple((distribution.read_text("top_level.txt") or "").split())
    if not editable:
        return Install(name, project_dir, "installed", tuple(import_names(files)) or names, (), {}, ())
    pths = tuple(root / file for file in files if file.suffix == ".pth" and len(file.parts) == 1)
    entries: list[Path] = []
    places: dict[str, Path] = {}
    how: How = "path"
    for pth in pths:
        for line in pth_lines(pth):
            if not is_import_line(line):
                entry = (root / line).resolve()
                if entry.name.startswith(
                    "__editable__"
                ):  # setuptools' strict mode: a directory of links, rebuilt by pip
                    how = "hook"
                elif in_tree(entry, top):
                    entries.append(entry)
                continue
            hook = _hook_module(line, root)
            mapping = _finder_mapping(hook) if hook is not None else None
            if mapping is None:
                how = "hook"
                names = names or tuple(_names_in(hook))
            else:
                how = "finder" if how == "path" else how
                places.update(mapping)
    return Install(name, project_dir, how, names, tuple(entries), places, pths)


def pth_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a ``.pth`` file that mean something."""
    for line in path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.rstrip()


def is_import_line(line: str) -> bool:
    """Whether a line of a ``.pth`` file is code."""
    return line.startswith(("import ", "import\t"))


def import_names(files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield the import packages among a distribution's files, those in namespaces by their dotted names."""
    code = [file for file in files if file.name.endswith(_INSTALLED_SUFFIXES) and _is_importable(file)]
    regular = {file.parent for file in code if file.name.partition(".")[0] == "__init__"}
    seen = set()
    for file in code:
        packages = [parent for parent in reversed(file.parents) if parent in regular]
        if len(file.parts) == 1:
            name = file.name.partition(".")[0]
        elif packages:
            name = ".".join(packages[0].parts)
        else:
            name = file.parts[0]
        if name not in seen:
            seen.add(name)
            yield name


def _is_importable(file: PurePosixPath) -> bool:
    return all(part.isidentifier() for part in (*file.parts[:-1], file.name.partition(".")[0])) and (
        "__pycache__" not in file.parts
    )


def _hook_module(line: str, root: Path) -> Path | None:
    """Return the file of the module that an import line loads, where it lies beside the ``.pth`` file."""
    match = re.match(r"import\s+(\w+)", line)
    path = root / f"{match[1]}.py" if match else root
    return path if path.is_file() else None


def _finder_mapping(path: Path) -> dict[str, Path] | None:
    """Return which directory or file setuptools' finder loads each name from; None of any other hook."""
    if not (path.name.startswith("__editable__") and path.stem.endswith("_finder")):
        return None
    values: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            target: ast.expr = node.target
            value = node.value
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id in {"MAPPING", "NAMESPACES"}:
            values[target.id] = ast.literal_eval(value)
    if "MAPPING" not in values:
        return None
    mapping = {name: _with_suffix(Path(place)) for name, place in values["MAPPING"].items()}
    # A namespace's own directories, for what it holds beside regular packages.
    for name, places in values.get("NAMESPACES", {}).items():
        if places:
            mapping.setdefault(name, Path(places[0]))
    return mapping


def _with_suffix(place: Path) -> Path:
    """Return the file of a module that the finder names without its suffix."""
    if place.is_dir():
        return place
    return next(
        (file for suffix in _INSTALLED_SUFFIXES if (file := place.with_name(place.name + suffix)).is_file()), place
    )


def _names_in(hook: Path | None) -> Iterator[str]:
    """Yield the top-level names that a hook module's own literals tell of: the keys and sets in its calls."""
    if hook is None:
        return
    seen = set()
    for node in ast.walk(ast.parse(hook.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        for argument in node.args:
            elements = argument.elts if isinstance(argument, ast.Set) else getattr(argument, "keys", ())
            for element in elements:
                said = getattr(element, "value", None)
                if isinstance(said, str) and all(part.isidentifier() for part in said.split(".")):
                    name = said.partition(".")[0]
                    if name not in seen:
                        seen.add(name)
                        yield name
