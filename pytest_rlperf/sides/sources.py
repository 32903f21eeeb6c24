"""Where a side's files come from: a commit, a working tree as it is now, or a plain directory."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Protocol

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides.git import Commit, Repository, find_repository, record
from pytest_rlperf.sides.packages import Package

# What lies in a plain directory and is nobody's code.
_NO_FILES = {
    *(".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".eggs", "node_modules"),
    *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".cache"),
}
_OTHER_ROOMS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")


class Source(Protocol):
    """The files of a side as they were, before today's tests are laid on them."""

    @property
    def key(self) -> str:
        """What is different wherever the files are."""

    @property
    def title(self) -> str:
        """What a report calls them."""

    def lay_out(self, target: Path) -> None:
        """Put them into a directory that does not exist yet."""

    def differing(self, today: Today) -> list[str]:
        """Return the files by which they differ from today's tree, relative to its top."""

    def submodules(self) -> list[str]:
        """Return the places of the submodules among them."""

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the verdict should know of them."""


@dataclass(frozen=True)
class Today:
    """The user's tree as it is now."""

    top: Path
    repository: Repository | None

    def files(self) -> list[str]:
        """Return its files, relative to its top, those left out that git ignores."""
        return list(listing(self.top)) if self.repository is None else self.repository.files()

    def submodules(self) -> list[str]:
        """Return the places of its submodules."""
        return [] if self.repository is None else self.repository.submodules()

    def source(self) -> Source:
        """Return it as the source of a side."""
        return PlainSource(self.top, "") if self.repository is None else WorkingSource(self.repository)


@dataclass(frozen=True)
class CommitSource:
    """The files of a commit."""

    repository: Repository
    commit: Commit

    @property
    def key(self) -> str:
        """The commit, and the repository that its clones borrow from."""
        absent = ",".join(self.repository.absent_submodules(self.commit.sha))
        return f"{self.commit.sha} {self.repository.top} {absent}"

    @property
    def title(self) -> str:
        """The commit's."""
        return self.commit.title

    def lay_out(self, target: Path) -> None:
        """Check the commit out into a clone of its own."""
        self.repository.check_out(self.commit.sha, target)

    def differing(self, today: Today) -> list[str]:
        """Return what git says: today's tree is this repository's."""
        return self.repository.differing(self.commit.sha)

    def submodules(self) -> list[str]:
        """Return the commit's, which today's tree may have no more."""
        return self.repository.submodules(self.commit.sha)

    def notes(self) -> tuple[str, ...]:
        """Name the submodules that are missing."""
        absent = self.repository.absent_submodules(self.commit.sha)
        return tuple(f"submodule {path} is not checked out, so {self.title} runs without it" for path in absent)


@dataclass(frozen=True)
class WorkingSource:
    """The files of a git working tree: its commit with today's changes."""

    repository: Repository

    @property
    def key(self) -> str:
        """The commit, and the content of what differs from it."""
        unchanged = CommitSource(self.repository, self._commit).key
        names = self.repository.differing(self._commit.sha)
        return f"{unchanged} {self._digest(names)}" if names else unchanged

    @property
    def title(self) -> str:
        """The directory's."""
        return str(self.repository.top)

    def lay_out(self, target: Path) -> None:
        """Check the commit out into a clone, and make the changes to it."""
        self.repository.check_out(self._commit.sha, target)
        for name in self.repository.differing(self._commit.sha):
            remove(target, name)
            place = self.repository.top / name
            if is_file(place):
                copy(self.repository.top, target, name)
            elif (place / ".git").exists():
                WorkingSource(find_repository(place)).lay_out(target / name)

    def differing(self, today: Today) -> list[str]:
        """Compare with today's tree, file by file, those of submodules among them."""
        return _differing(self.repository.top, self.repository.files(), today.top, today.files())

    def submodules(self) -> list[str]:
        """Return the working tree's."""
        return self.repository.submodules()

    def notes(self) -> tuple[str, ...]:
        """Nothing: a directory is taken as it is."""
        return ()

    @property
    def _commit(self) -> Commit:
        return Commit(self.repository.head, "HEAD")

    def _digest(self, names: Iterable[str]) -> str:
        submodules = [place for name in names if ((place := self.repository.top / name) / ".git").exists()]
        within = [WorkingSource(find_repository(place)).key for place in submodules]
        return " ".join([digest(self.repository.top, names), *within])


@dataclass(frozen=True)
class PlainSource:
    """The files of a directory without git, which take the place of ``place`` in today's tree."""

    directory: Path
    place: str

    @property
    def key(self) -> str:
        """The content of all files."""
        return f"{self.place} {digest(self.directory, sorted(listing(self.directory)))}"

    @property
    def title(self) -> str:
        """The directory's."""
        return str(self.directory)

    def lay_out(self, target: Path) -> None:
        """Copy the files."""
        place = target / self.place
        place.mkdir(parents=True)
        for name in listing(self.directory):
            copy(self.directory, place, name)

    def differing(self, today: Today) -> list[str]:
        """Compare with that part of today's tree, file by file."""
        prefix = f"{self.place}/" if self.place else ""
        names = [name.removeprefix(prefix) for name in today.files() if name.startswith(prefix)]
        changed = _differing(self.directory, listing(self.directory), today.top / self.place, names)
        return [f"{prefix}{name}" for name in changed]

    def submodules(self) -> list[str]:
        """None: without git there is nothing to tell them by."""
        return []

    def notes(self) -> tuple[str, ...]:
        """Nothing: a directory is taken as it is."""
        return ()


def listing(directory: Path) -> Iterator[str]:
    """Yield the files and links below a directory, relative to it, less version control, caches and environments."""
    for root, directories, files in os.walk(directory):
        here = Path(root)
        links = [name for name in directories if (here / name).is_symlink()]
        directories[:] = sorted(name for name in directories if name not in links and _is_room(here / name))
        for name in sorted([*links, *files]):
            yield (here / name).relative_to(directory).as_posix()


def _is_room(directory: Path) -> bool:
    return directory.name not in _NO_FILES and not any((directory / sign).exists() for sign in _OTHER_ROOMS)


def is_file(path: Path) -> bool:
    """Whether there is a file, or a link to whatever it may be."""
    return path.is_symlink() or path.is_file()


def digest(root: Path, names: Iterable[str]) -> str:
    """Return a digest of the names, contents and modes of files; those that do not exist count as that."""
    total = hashlib.sha256()
    for name in names:
        path = root / name
        if path.is_symlink():
            content = b"link " + os.fsencode(path.readlink())
        elif path.is_file():
            content = f"{path.stat().st_mode & 0o111:o} {_content_digest(path)}".encode()
        else:
            content = b"none"
        total.update(os.fsencode(name) + b"\0" + content + b"\0")
    return total.hexdigest()


def _content_digest(path: Path) -> str:
    content = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            content.update(block)
    return content.hexdigest()


def copy(source: Path, target: Path, name: str) -> None:
    """Copy a file or a link to the same place in another tree, never through a link out of that tree."""
    place = target / name
    remove(target, name)
    for count in range(len(PurePosixPath(name).parts) - 1, 0, -1):
        parent = place.parents[count - 1]
        if is_file(parent):
            parent.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copy2(source / name, place, follow_symlinks=False)
    except OSError as error:
        raise SideError(f"cannot copy {source / name}: {error}") from None


def remove(tree: Path, name: str) -> None:
    """Remove a file, a link or a directory of a tree, and the directories that are empty without it."""
    place = tree / name
    if place.parent.resolve() != tree.resolve() / PurePosixPath(name).parent:
        return  # it lies beyond a link, so it is not the tree's
    if is_file(place):
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    for parent in place.parents:
        if parent == tree or not parent.is_dir() or any(parent.iterdir()):
            break
        parent.rmdir()


def _differing(base: Path, names: Iterable[str], head: Path, today: Iterable[str]) -> list[str]:
    return sorted(name for name in {*names, *today} if not _same(base / name, head / name))


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


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
