"""The import packages under test: those whose files lie in the tree, installed from it or loose.

An installation's effect on imports is read from its files, never by importing them: an imported hook may start a build,
and may change the imports of this process.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides.git import ignored_files

How = Literal["path", "hook", "installed"]

_SOURCE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")  # files that only environments and caches have
_ENVIRONMENT_NAMES = {"site-packages", "dist-packages", "node_modules"}

_FINDER = re.compile(r"import\s+__editable__\w+_finder\b")  # setuptools'
_PROJECT = re.compile(r"^\s*\[\s*(project|build-system|tool\.poetry)\s*[].]", re.MULTILINE)
_NOT_FOUND = re.compile(r"^(?:E\s+)?ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)

# Import names of tests and documentation; some wheels contain such directories by mistake.
TESTS_AND_DOCS = {"bench", "benchmark", "benchmarks", "doc", "docs", "example", "examples", "test", "tests"}
# Further names beside the packages of a project.
_BESIDE_PACKAGES = {
    *("conftest", "noxfile", "setup", "tasks", "testing", "versioneer"),
    *("build", "dist", "env", "venv"),
}


@dataclass(frozen=True)
class Package:
    """An import package under test, or a module outside packages.

    ``location`` is its directory or file in the tree.
    ``how`` is the way in which it is imported today: from the tree ("path"), by an import hook that may load it from
    elsewhere ("hook"), or as a copy in the environment ("installed").
    """

    name: str
    location: Path
    how: How
    distribution: str | None
    project_dir: Path | None

    @property
    def entry(self) -> Path:
        """The directory that must be on sys.path for it."""
        return self.location.parents[self.name.count(".")]


@dataclass(frozen=True)
class Install:
    """A distribution installed from a tree.

    ``names`` are its top-level import packages by its metadata, and may be empty. ``entries`` are the directories of
    the tree that it puts on sys.path, ``pths`` its ``.pth`` files.
    """

    name: str
    project_dir: Path
    how: How
    names: tuple[str, ...]
    entries: tuple[Path, ...]
    pths: tuple[Path, ...]


def is_environment(directory: Path) -> bool:
    """Whether a directory is an environment or a cache, and so no part of the tree around it."""
    return directory.name in _ENVIRONMENT_NAMES or any((directory / sign).exists() for sign in _ENVIRONMENT_SIGNS)


def in_tree(path: Path, top: Path) -> bool:
    """Whether ``path`` is part of the tree at ``top``: in no environment, cache or hidden directory below ``top``."""
    path, top = path.resolve(), top.resolve()
    if not path.is_relative_to(top):
        return False
    parts = path.relative_to(top).parts
    above = [top.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    return not any(place.name.startswith(".") or is_environment(place) for place in above)


def normalized(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def not_installed(errors: str) -> tuple[str, ...]:
    """Return the top-level modules that Python did not find, by its messages, and that cannot be imported here either.

    An old commit may need packages that today's code does not.
    """
    names = dict.fromkeys(name.partition(".")[0] for name in _NOT_FOUND.findall(errors))
    return tuple(name for name in names if name not in sys.modules and PathFinder.find_spec(name) is None)


def packages_under_test(project: Project, top: Path) -> tuple[Package, ...]:
    """Return the packages under test in the tree at ``top``: those installed from it, and loose ones in it."""
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
            return f"the import hook of its build tool loads {package.name} from that tool's build"
        if package.how == "installed":
            return f"{package.name} is installed as a copy, not editable"
    for package in packages:
        for path in _built_files(package, top):
            return f"{package.name} has files that only a build makes, such as {path.relative_to(top).as_posix()}"
    return None


# ------------------------------------------------------------------ packages in the tree


@dataclass(frozen=True)
class _Scan:
    """The directories to search for packages, and the marks of tests. ``roots`` are no packages themselves."""

    top: Path
    directories: tuple[Path, ...]
    roots: frozenset[Path]
    tests: frozenset[Path]
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, project: Project, top: Path, installs: Iterable[Install]) -> _Scan:
        """Return the scan of a project: its root, ``src`` in it, and the entries of sys.path in the tree."""
        root = project.rootdir.resolve()
        tests = frozenset(path.resolve().parent for path in (*project.files, *project.conftests))
        # pytest's own setting ``pythonpath`` extends sys.path only after the process has started.
        entries = [(project.directory / entry).resolve() for entry in (*project.path, *sys.path)]
        directories = [root, root / "src"]
        directories += [entry for entry in entries if entry == root or entry not in tests]
        kept = [path for path in dict.fromkeys(directories) if path.is_dir() and in_tree(path, top)]
        installed = [place for install in installs for place in (install.project_dir, *install.entries)]
        return cls(top, tuple(kept), frozenset([*kept, *installed]), tests, project.test_patterns)

    def importables(self, directory: Path) -> Iterator[tuple[str, Path]]:
        """Yield the packages and modules in a directory."""
        for path in sorted(directory.iterdir()):
            name = path.name.partition(".")[0]
            if path.is_dir():
                code = self._holds_code(path)
            else:
                code = path.name.endswith(_SOURCE_SUFFIXES) and not self._is_test(path)
            if code and self.may_be(name) and name.isidentifier() and in_tree(path, self.top):
                yield name, path.resolve()

    def may_be(self, name: str) -> bool:
        """Whether a name may be that of a package: not of tests, nor of other files beside packages."""
        last = name.rpartition(".")[2]
        return last not in TESTS_AND_DOCS | _BESIDE_PACKAGES and not last.startswith("test_")

    def _is_test(self, file: Path) -> bool:
        return any(fnmatch(file.name, pattern) for pattern in self.patterns)

    def _holds_code(self, directory: Path) -> bool:
        """Whether a directory has code other than tests."""
        # An entry of sys.path contains packages but is none, and so does a project.
        rooted = directory in self.roots or (is_project(directory) and not _is_package(directory))
        if rooted or not in_tree(directory, self.top):
            return False
        children = sorted(directory.iterdir())
        if directory not in self.tests:
            # A directory of tests may have an empty __init__.py too.
            below = any(test.is_relative_to(directory) for test in self.tests)
            for child in children:
                empty = child.stem == "__init__" and below and not child.stat().st_size
                if child.name.endswith(_SOURCE_SUFFIXES) and not empty and not self._is_test(child):
                    return True
        return any(
            self._holds_code(child)
            for child in children
            if child.is_dir() and not child.is_symlink() and child.name.isidentifier() and self.may_be(child.name)
        )


def _is_package(directory: Path) -> bool:
    return any((directory / f"__init__{suffix}").is_file() for suffix in _SOURCE_SUFFIXES)


def _installed(installs: Iterable[Install], scan: _Scan) -> Iterator[Package]:
    """Yield the packages of distributions installed from the tree."""
    for install in installs:
        places = {name: place for entry in install.entries for name, place in scan.importables(entry)}
        if not places:
            sources = [directory for directory in _sources(install.project_dir) if directory.is_dir()]
            names = install.names or [name for source in sources for name, _ in scan.importables(source)]
            places = {name: _place(name, sources) or install.project_dir / name for name in names}
        for name, place in places.items():
            if scan.may_be(name) and place.is_relative_to(scan.top):
                yield Package(name, place, install.how, install.name, install.project_dir)


def _loose(scan: _Scan) -> Iterator[Package]:
    """Yield the packages that are importable from the tree without being installed."""
    elsewhere = [entry for entry in sys.path if entry and not in_tree(Path(entry), scan.top)]
    for directory in scan.directories:
        for name, place in scan.importables(directory):
            if not _is_hidden(name, place, elsewhere):
                yield _loose_package(name, place, scan)


def _is_hidden(name: str, place: Path, elsewhere: list[str]) -> bool:
    """Whether an import of the name loads something outside the tree instead of ``place``."""
    if name in sys.stdlib_module_names:
        return True
    if not place.is_dir() or _is_package(place):
        return False
    # Any package with an __init__.py is preferred to a directory without one, wherever it is on the path.
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is not None and spec.origin is not None


def _loose_package(name: str, place: Path, scan: _Scan) -> Package:
    return Package(name, place, "path", None, _project_above(place.parent, scan.top))


def _named(name: str, found: dict[str, Package], scan: _Scan) -> list[Package]:
    """Return the package that the user names, or those in the namespace of that name."""
    within = [package for package in found.values() if f"{package.name}.".startswith(f"{name}.")]
    if within:
        return within
    place = _place(name, [*scan.directories, *(_sources(scan.top))])
    if place is None:
        raise SideError(
            f"rlperf_packages names {name!r}, which is neither installed from {scan.top} nor lies there "
            f"(found: {', '.join(found) or 'nothing'}); give it the names of import packages, separated by spaces"
        )
    return [_loose_package(name, place, scan)]


def _place(name: str, directories: Iterable[Path]) -> Path | None:
    """Return the place of a package or module in the first of the directories that has it."""
    for place in (directory.joinpath(*name.split(".")) for directory in directories):
        files = (place.with_name(place.name + suffix) for suffix in _SOURCE_SUFFIXES)
        found = place if place.is_dir() else next((file for file in files if file.is_file()), None)
        if found is not None:
            return found.resolve()
    return None


def _sources(project_dir: Path) -> tuple[Path, Path]:
    return project_dir / "src", project_dir


def _built_files(package: Package, top: Path) -> Iterator[Path]:
    """Yield the importable files of a package that only a build makes: extension modules, and code git ignores."""
    if package.project_dir is None:  # it cannot be built; where its files are missing, its import fails
        return
    ignored = ignored_files(top, package.location)
    for path in sorted(package.location.rglob("*")) if package.location.is_dir() else [package.location]:
        if path.name.endswith(tuple(EXTENSION_SUFFIXES)) or (path.suffix == ".py" and path in ignored):
            yield path


# ------------------------------------------------------------------ projects and installations


def is_project(directory: Path) -> bool:
    """Whether pip can build a directory; settings of other tools in pyproject.toml do not suffice."""
    settings = directory / "pyproject.toml"
    text = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    return (directory / "setup.py").is_file() or _PROJECT.search(text) is not None


def _project_above(path: Path, top: Path) -> Path | None:
    """Return the closest directory at or above ``path``, up to ``top``, that pip can build; None without one."""
    for directory in [path, *path.parents]:
        if not directory.is_relative_to(top):
            break
        if directory.is_dir() and is_project(directory):
            return directory
    return None


def installs_from(top: Path) -> tuple[Install, ...]:
    """Return the distributions installed from the tree at ``top``, by name."""
    found: dict[str, Install] = {}
    for distribution in importlib.metadata.distributions():
        origin = _origin(distribution, top)
        if origin is not None:
            project_dir, editable = origin
            install = _read(distribution, project_dir, top, editable=editable)
            found.setdefault(normalized(install.name), install)  # imports find the first on sys.path
    return tuple(found[name] for name in sorted(found))


def _origin(distribution: importlib.metadata.Distribution, top: Path) -> tuple[Path, bool] | None:
    """Return the project of the tree that a distribution was installed from, and whether it is editable."""
    direct: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = urlsplit(direct.get("url", ""))
    place = Path(unquote(url.path, errors="surrogateescape"))
    if url.scheme != "file" or not place.is_dir() or not in_tree(place, top):  # no wheel that lies in the tree
        return None
    return place.resolve(), bool(direct.get("dir_info", {}).get("editable"))


def _read(distribution: importlib.metadata.Distribution, project_dir: Path, top: Path, *, editable: bool) -> Install:
    """Return how a distribution is imported, from its files."""
    name = distribution.metadata["Name"]
    files = [PurePosixPath(str(file)) for file in distribution.files or ()]
    root = Path(str(distribution.locate_file("")))
    names = tuple((distribution.read_text("top_level.txt") or "").split())
    if not editable:
        found = (file.parts[0].partition(".")[0] for file in files if file.name.endswith(_SOURCE_SUFFIXES))
        names = names or tuple(each for each in dict.fromkeys(found) if each.isidentifier())
        return Install(name, project_dir, "installed", names, (), ())
    pths = tuple(root / file for file in files if file.suffix == ".pth" and len(file.parts) == 1)
    entries: list[Path] = []
    how: How = "path"
    for line in (line for pth in pths for line in pth_lines(pth)):
        entry = (root / line).resolve()
        if _FINDER.match(line):
            if not names or None in [_place(each, _sources(project_dir)) for each in names]:
                how = "hook"
        elif is_import_line(line) or entry.name.startswith("__editable__"):  # setuptools' strict mode: links to files
            how = "hook"
        elif in_tree(entry, top):
            entries.append(entry)
    return Install(name, project_dir, how, names, tuple(entries), pths)


def pth_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a ``.pth`` file, less blank ones and comments."""
    for line in path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.rstrip()


def is_import_line(line: str) -> bool:
    """Whether a line of a ``.pth`` file is code."""
    return line.startswith(("import ", "import\t"))


def import_packages(directory: Path, namespace: str = "") -> Iterator[str]:
    """Yield the import packages and modules in a directory of installed ones, those in namespaces by dotted names."""
    for path in sorted(directory.iterdir()):
        name = path.name if path.is_dir() else path.name.partition(".")[0]
        if not name.isidentifier() or name in TESTS_AND_DOCS:
            continue
        if path.is_dir() and not _is_package(path):
            yield from import_packages(path, f"{namespace}{name}.")
        elif path.is_dir() or path.name.endswith(_SOURCE_SUFFIXES):
            yield namespace + name
