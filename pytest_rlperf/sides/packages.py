"""The import packages under test: those whose files lie in the tree."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides.git import untracked_files

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


_CODE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_GENERATED = "_version.py"

# What lies beside packages and is none.
_NO_PACKAGES = {
    *("conftest", "noxfile", "setup", "tasks", "versioneer"),
    *("test", "tests", "testing", "bench", "benchmark", "benchmarks", "doc", "docs", "example", "examples"),
    *("build", "dist", "env", "node_modules", "venv"),
}


@dataclass(frozen=True)
class Package:
    """An import package under test, or a module that is none's.

    ``location`` is its directory or file in the tree; ``entry`` is the directory that must be on sys.path for it.
    ``how`` says what makes it importable today: an entry on sys.path ("path"), setuptools' finder ("finder"), another
    import hook ("hook"), or a copy in the environment ("installed").
    """

    name: str
    location: Path
    entry: Path
    how: How
    distribution: str | None
    project_dir: Path | None


def packages_under_test(project: Project, top: Path) -> tuple[Package, ...]:
    """Return the packages under test in the tree at ``top``: what is installed from it, and what lies in it loose."""
    installs = installs_from(top.resolve())
    scan = _Scan.of(project, top.resolve(), installs)
    found: dict[str, Package] = {}
    for package in [*_installed(installs, scan), *_loose(scan)]:
        found.setdefault(package.name, package)
    if not project.packages:
        return tuple(found.values())
    return tuple(package for name in project.packages for package in _named(name, found, scan))


def why_build(packages: Iterable[Package], top: Path) -> str | None:
    """Return why code must be built on both sides, None where the files of a tree suffice."""
    packages = tuple(packages)
    for package in packages:
        if package.how == "hook":
            return f"{package.name} is imported by its build tool's hook, from what that tool has built"
        if package.how == "installed":
            return f"{package.name} is installed as a copy, not editable"
    # What belongs to no project can be built by nobody: where it is missing, importing it says so.
    built = _built_files([package for package in packages if package.project_dir is not None], top)
    for package, path in built:
        return f"{package.name} has files that only a build makes, such as {path.relative_to(top.resolve()).as_posix()}"
    return None


@dataclass(frozen=True)
class _Scan:
    """What to look through, and what to tell tests by. ``roots`` are no packages themselves."""

    top: Path
    directories: tuple[Path, ...]
    roots: frozenset[Path]
    tests: frozenset[Path]
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, project: Project, top: Path, installs: Iterable[Install]) -> _Scan:
        """Return the scan of a project: its root, ``src`` in it, and what of sys.path lies in the tree."""
        root = project.rootdir.resolve()
        tests = frozenset(path.resolve().parent for path in (*project.files, *project.conftests))
        # What pytest's own ``pythonpath`` names is on this process's path, but was not when it started.
        entries = [(project.directory / entry).resolve() for entry in (*project.path, *sys.path)]
        directories = [root, root / "src"]
        directories += [entry for entry in entries if entry == root or entry not in tests]
        kept = [path for path in dict.fromkeys(directories) if path.is_dir() and in_tree(path, top)]
        installed = [place for install in installs for place in (install.project_dir, *install.entries)]
        return cls(top, tuple(kept), frozenset([*kept, *installed]), tests, project.test_patterns)

    def importables(self, directory: Path, known: Iterable[str] = ()) -> Iterator[tuple[str, Path]]:
        """Yield the packages and modules that lie in a directory; ``known`` names are no tests whatever they hold."""
        for path in sorted(directory.iterdir()):
            name = path.name.partition(".")[0]
            if path.is_dir():
                code = self._holds_code(path) or (name in known and _is_package(path))
            else:
                code = path.name.endswith(_CODE_SUFFIXES) and not self._is_test(path)
            if code and self.may_be(name) and name.isidentifier() and in_tree(path, self.top):
                yield name, path.resolve()

    def may_be(self, name: str) -> bool:
        """Whether a name may be a package's, and not that of tests or of what else lies beside packages."""
        last = name.rpartition(".")[2]
        return last not in _NO_PACKAGES and not last.startswith("test_")

    def _is_test(self, file: Path) -> bool:
        return any(fnmatch(file.name, pattern) for pattern in self.patterns)

    def _holds_code(self, directory: Path) -> bool:
        """Whether a directory has code that is not for tests alone."""
        # What is on the path itself, or is a project of its own, is no package but holds some.
        rooted = directory in self.roots or (is_project(directory) and not _is_package(directory))
        if rooted or not in_tree(directory, self.top):
            return False
        children = sorted(directory.iterdir())
        if directory not in self.tests:
            # An __init__.py that is empty makes a package of code, but of a directory of tests just the same.
            below = any(test.is_relative_to(directory) for test in self.tests)
            for child in children:
                empty = child.stem == "__init__" and below and not child.stat().st_size
                if child.name.endswith(_CODE_SUFFIXES) and not empty and not self._is_test(child):
                    return True
        return any(
            self._holds_code(child)
            for child in children
            if child.is_dir() and not child.is_symlink() and child.name.isidentifier() and self.may_be(child.name)
        )


def _is_package(directory: Path) -> bool:
    return any((directory / f"__init__{suffix}").is_file() for suffix in _CODE_SUFFIXES)


def _installed(installs: Iterable[Install], scan: _Scan) -> Iterator[Package]:
    """Yield the packages of distributions installed from the tree."""
    for install in installs:
        places = dict(install.places)
        known = {*install.names, normalized(install.name).replace("-", "_")}
        for entry in install.entries:
            places.update({name: place for name, place in scan.importables(entry, known) if name not in places})
        if install.how in {"hook", "installed"}:
            sources = [directory for directory in _sources(install.project_dir) if directory.is_dir()]
            names = install.names or [name for source in sources for name, _ in scan.importables(source, known)]
            for name in names:
                places.setdefault(name, _place(name, sources) or install.project_dir / name)
        for name, place in places.items():
            if scan.may_be(name) and place.is_relative_to(scan.top):
                yield _package(name, place, install)


def _package(name: str, place: Path, install: Install) -> Package:
    return Package(name, place, _entry(name, place), install.how, install.name, install.project_dir)


def _loose(scan: _Scan) -> Iterator[Package]:
    """Yield the packages that are importable from the tree without being installed."""
    elsewhere = [entry for entry in sys.path if entry and not in_tree(Path(entry), scan.top)]
    for directory in scan.directories:
        for name, place in scan.importables(directory):
            if not _is_hidden(name, place, elsewhere):
                yield _loose_package(name, place, scan)


def _is_hidden(name: str, place: Path, elsewhere: list[str]) -> bool:
    """Whether what lies in the tree by chance has the name of something else that is imported instead."""
    if name in sys.stdlib_module_names:
        return True
    if not place.is_dir() or _is_package(place):
        return False
    # A directory without __init__.py gives way to any package that has one, wherever that is on the path.
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is not None and spec.origin is not None


def _loose_package(name: str, place: Path, scan: _Scan) -> Package:
    entry = _entry(name, place)
    return Package(name, place, entry, "path", None, project_above(entry, scan.top))


def _named(name: str, found: dict[str, Package], scan: _Scan) -> list[Package]:
    """Return the package that the user names, or what lies in that namespace."""
    within = [package for package in found.values() if f"{package.name}.".startswith(f"{name}.")]
    if within:
        return within
    place = _place(name, [*scan.directories, *(_sources(scan.top))])
    if place is None:
        raise SideError(
            f"rlperf_packages names {name!r}, which is neither installed from {scan.top} nor lies there "
            f"(found: {', '.join(found) or 'nothing'}); it names import packages, separated by spaces"
        )
    return [_loose_package(name, place, scan)]


def _place(name: str, directories: Iterable[Path]) -> Path | None:
    """Return where a package or module lies, in the first of the directories that has it."""
    for directory in directories:
        place = directory.joinpath(*name.split("."))
        if place.is_dir():
            return place.resolve()
        for suffix in _CODE_SUFFIXES:
            if (file := place.with_name(place.name + suffix)).is_file():
                return file.resolve()
    return None


def _entry(name: str, place: Path) -> Path:
    """Return the directory that must be on sys.path for a package of that dotted name."""
    return place.parents[name.count(".")]


def _sources(project_dir: Path) -> tuple[Path, Path]:
    return project_dir / "src", project_dir


def _built_files(packages: list[Package], top: Path) -> Iterator[tuple[Package, Path]]:
    """Yield what can be imported of the packages and is in no clone: extension modules, and code that is generated."""
    if not packages:
        return
    # With git, "others" are the files it does not track; those among them that it ignores are meant to be generated.
    places = [package.location.relative_to(top.resolve()).as_posix() for package in packages]
    others = untracked_files(top.resolve(), places)
    if others is None:
        for package in packages:
            for path in sorted(package.location.rglob("*")) if package.location.is_dir() else [package.location]:
                if path.name.endswith(tuple(EXTENSION_SUFFIXES)) and in_tree(path, top):
                    yield package, path
        return
    ignored = set(untracked_files(top.resolve(), places, ignored=True) or ())
    for path in others:
        generated = path.suffix == ".py" and (path in ignored or path.name == _GENERATED)
        if not (path.name.endswith(tuple(EXTENSION_SUFFIXES)) or generated) or not in_tree(path, top):
            continue
        for package in packages:
            if path.is_relative_to(package.location):
                yield package, path
                break
