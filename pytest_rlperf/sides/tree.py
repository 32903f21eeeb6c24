"""What of today's tree is laid on another: the measured tests, what they use, and pytest's settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides.git import record
from pytest_rlperf.sides.packages import Package
from pytest_rlperf.sides.sources import Source, Today, copy, digest, listing, remove

_SETTINGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_TESTS = {"test", "tests"}  # the names by which a directory within code is one of tests


@dataclass(frozen=True)
class Overlay:
    """Which files of a tree are today's on every side; all paths are relative to the tree's top.

    ``deep`` are directories of tests: all that is in them, at any depth. ``level`` are directories that hold packages
    beside tests or conftests: the files in them, none further down. ``single`` are files by themselves. ``code`` are
    the packages under test and the submodules of either side: all in them is the side's own but those files, and what
    lies in a directory of tests within them.
    """

    top: Path
    deep: tuple[PurePosixPath, ...]
    level: tuple[PurePosixPath, ...]
    single: frozenset[PurePosixPath]
    code: tuple[PurePosixPath, ...]
    baselines: PurePosixPath | None
    test_patterns: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Whether today's tree decides about a file, to have it or to have it not."""
        path = PurePosixPath(name)
        if self.is_baseline(name):
            return False
        if path in self.single:
            return True
        return self._is_deep(path) or (path.parent in self.level and _innermost(path, self.code) is None)

    def is_test(self, name: str) -> bool:
        """Whether a file is there for tests alone, and so tells nothing of what is built."""
        path = PurePosixPath(name)
        named = path.name == "conftest.py" or any(fnmatch(path.name, pattern) for pattern in self.test_patterns)
        return self.covers(name) and (named or self._is_deep(path))

    def is_baseline(self, name: str) -> bool:
        """Whether a file holds stored figures."""
        path = PurePosixPath(name)
        return path.suffix == ".json" and len(path.parents) > 1 and path.parents[1] == self.baselines

    def files(self, today: Today) -> list[str]:
        """Return today's files that are laid on."""
        return sorted(name for name in today.files() if self.covers(name))

    def key(self, today: Today) -> str:
        """Return a digest of all that laying on depends on."""
        places = (self.deep, self.level, sorted(self.single), self.code)
        return f"{digest(self.top, self.files(today))} {places!r}"

    def _is_deep(self, path: PurePosixPath) -> bool:
        """Whether a file lies in a directory of tests, and in no code further down."""
        tests, code = _innermost(path, self.deep), _innermost(path, self.code)
        return tests is not None and (code is None or tests.is_relative_to(code))


def make_overlay(project: Project, top: Path, packages: Iterable[Package], submodules: Iterable[str]) -> Overlay:
    """Return what is laid on for a project in the tree at ``top``, with the submodules that either side has."""
    top = top.resolve()
    places = tuple(_within(top, [package.location for package in packages]))
    code = tuple(sorted({*places, *map(PurePosixPath, submodules)}))
    tests = list(_within(top, [*project.files, *project.conftests]))
    deep: set[PurePosixPath] = set()
    level: set[PurePosixPath] = set()
    for directory in {path.parent for path in tests}:
        owner = _innermost(directory, code)
        if owner is not None:
            deep.update(_tests_within(owner, directory))
        elif _is_root(directory, project, top, places):
            level.add(directory)
        else:
            deep.add(_outermost(directory, project, top, places))
    settings = [project.rootdir / name for name in _SETTINGS] + ([project.inipath] if project.inipath else [])
    return Overlay(
        top=top,
        deep=tuple(sorted(deep)),
        level=tuple(sorted(level)),
        single=frozenset([*tests, *_within(top, settings)]),
        code=code,
        baselines=next(_within(top, [project.baseline_dir.resolve()]), None),
        test_patterns=project.test_patterns,
    )


def make_tree(source: Source, overlay: Overlay, today: Today, tree: Path, without: Iterable[PurePosixPath]) -> None:
    """Lay out a side's tree with today's tests on it, and without the packages that were built."""
    source.lay_out(tree)
    laid = overlay.files(today)
    kept = set(laid)
    for name in [name for name in listing(tree) if name not in kept and overlay.covers(name)]:
        remove(tree, name)
    for name in laid:
        copy(overlay.top, tree, name)
    for place in without:
        remove(tree, place.as_posix())
    if (tree / ".git").exists():
        record(tree)


def _within(top: Path, paths: Iterable[Path]) -> Iterator[PurePosixPath]:
    """Yield those paths that lie in the tree, relative to its top; a link in it stays what it is."""
    for path in paths:
        place = path.parent.resolve() / path.name
        if place.is_relative_to(top):
            yield PurePosixPath(place.relative_to(top).as_posix())


def _innermost(path: PurePosixPath, directories: Iterable[PurePosixPath]) -> PurePosixPath | None:
    """Return the one of the directories that a path lies in, the last of several within each other."""
    return max(
        (place for place in directories if path.is_relative_to(place)), key=lambda found: len(found.parts), default=None
    )


def _tests_within(owner: PurePosixPath, directory: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the outermost directory of tests within code that a directory is or lies in, if there is one.

    Its name alone tells: beside measured tests in any other directory within code may lie code.
    """
    for count in range(len(owner.parts), len(directory.parts)):
        if directory.parts[count] in _TESTS:
            yield PurePosixPath(*directory.parts[: count + 1])
            return


def _is_root(directory: PurePosixPath, project: Project, top: Path, packages: tuple[PurePosixPath, ...]) -> bool:
    """Whether a directory is the project's own, or has packages under test beside tests or further down."""
    own = directory in {PurePosixPath(), *_within(top, [project.rootdir.resolve()])}
    return own or any(package.is_relative_to(directory) for package in packages)


def _outermost(
    directory: PurePosixPath, project: Project, top: Path, packages: tuple[PurePosixPath, ...]
) -> PurePosixPath:
    """Return the directory of tests that a directory is a subpackage of: its modules import from there."""
    while (top / directory / "__init__.py").is_file() and not _is_root(directory.parent, project, top, packages):
        directory = directory.parent
    return directory
