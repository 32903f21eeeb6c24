"""The files of a side: a commit's, a working tree's or a plain directory's, with today's tests laid over them."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.model.stored import ANCHOR_FILE
from pytest_rlperf.sides.git import Commit, Repository
from pytest_rlperf.sides.packages import Package, is_environment

# Directories that are left out of a plain directory, beside environments: version control and caches.
_LEFT_OUT = {
    *(".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".eggs"),
    *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".cache"),
}
MOST_BYTES = 2 * 10**9  # far more than anybody's code has: beyond it there is data, or other projects
_SETTINGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_TESTS = {"test", "tests"}  # names of directories of tests within code


@dataclass(frozen=True)
class Today:
    """The user's tree as it is now."""

    top: Path
    repository: Repository | None

    def files(self) -> list[str]:
        """Return its files relative to its top, less those that git ignores."""
        return list(listing(self.top)) if self.repository is None else self.repository.files()

    def source(self) -> Source:
        """Return the tree as the source of a side."""
        return PlainSource(self.top) if self.repository is None else WorkingSource(self.repository)


@dataclass(frozen=True)
class CommitSource:
    """The files of a commit."""

    repository: Repository
    commit: Commit

    @property
    def key(self) -> str:
        """The commit, its absent submodules, and the repository that lends objects."""
        return f"{self.commit.sha} {self.repository.top} {','.join(self.repository.absent_submodules(self.commit.sha))}"

    @property
    def title(self) -> str:
        """The title of the commit."""
        return self.commit.title

    def lay_out(self, target: Path) -> None:
        """Check the commit out into a clone of its own.

        A file that git calls unchanged has today's bytes: they may be from before a setting of git's changed.
        """
        self.repository.check_out(self.commit.sha, target)
        differing, names = self.repository.differing(self.commit.sha), self.repository.files()
        copy_unlike(self.repository.top, target, set(names).difference(_below(differing, names)))

    def differing(self, today: Today) -> list[str]:
        """Return the files that git lists: today's tree belongs to this repository."""
        return self.repository.differing(self.commit.sha)


@dataclass(frozen=True)
class WorkingSource:
    """The files of a git working tree: its commit with today's changes."""

    repository: Repository

    @property
    def key(self) -> str:
        """The commit, and the content of the files that differ from it."""
        unchanged = CommitSource(self.repository, self._commit).key
        differing = set(self.repository.differing(self._commit.sha))
        names = sorted({*differing, *_below(differing, self.repository.files())})
        return f"{unchanged} {digest(self.repository.top, names)}" if names else unchanged

    @property
    def title(self) -> str:
        """The path of the working tree."""
        return str(self.repository.top)

    def lay_out(self, target: Path) -> None:
        """Check the commit out into a clone, and copy the changed files into it."""
        self.repository.check_out(self._commit.sha, target)
        names = self.repository.files()
        for name in set(listing(target)).difference(names):
            remove(target, name)
        copy_unlike(self.repository.top, target, names)

    def differing(self, today: Today) -> list[str]:
        """Compare with today's tree file by file, including submodules."""
        return _differing(self.repository.top, self.repository.files(), today.top, today.files())

    @property
    def _commit(self) -> Commit:
        return Commit(self.repository.head, "HEAD")


@dataclass(frozen=True)
class PlainSource:
    """The files of a directory without git."""

    directory: Path

    @property
    def key(self) -> str:
        """The content of all files."""
        return digest(self.directory, sorted(listing(self.directory)))

    @property
    def title(self) -> str:
        """The path of the directory."""
        return str(self.directory)

    def lay_out(self, target: Path) -> None:
        """Copy the files."""
        for name in listing(self.directory):
            copy(self.directory, target, name)

    def differing(self, today: Today) -> list[str]:
        """Compare with today's tree file by file."""
        return _differing(self.directory, listing(self.directory), today.top, today.files())


# The original files of a side, before today's tests are laid over them: ``key`` is different wherever the files are,
# ``title`` is the side's name in reports, ``lay_out`` puts the files into a directory that does not exist yet, and
# ``differing`` returns the files by which they differ from today's tree, relative to its top.
Source: TypeAlias = CommitSource | WorkingSource | PlainSource


def listing(directory: Path) -> Iterator[str]:
    """Yield the files and links below a directory, relative to it, less version control, caches and environments.

    Pipes, sockets and devices are left out too.
    """
    for root, directories, files in os.walk(directory):
        here = Path(root)
        links = [name for name in directories if (here / name).is_symlink()]
        directories[:] = sorted(name for name in directories if name not in links and not _is_left_out(here / name))
        for name in sorted([*links, *(name for name in files if is_file(here / name))]):
            yield (here / name).relative_to(directory).as_posix()


def check_size(directory: Path) -> None:
    """Raise SideError where the files below a directory are too large to be copied for a comparison."""
    total = 0
    for name in listing(directory):
        total += (directory / name).lstat().st_size
        if total > MOST_BYTES:
            raise SideError(
                f"{directory} has over {MOST_BYTES / 1e9:.0f} GB, which would all be copied: name the directory of the "
                "code alone, or let git leave the rest out (git init, a .gitignore, git add --all, git commit)"
            )


def _is_left_out(directory: Path) -> bool:
    return directory.name in _LEFT_OUT or is_environment(directory)


def is_file(path: Path) -> bool:
    """Whether a path is a file or a link, even one that leads nowhere."""
    return path.is_symlink() or path.is_file()


def digest(root: Path, names: Iterable[str]) -> str:
    """Return a digest of the names, contents and modes of files, some of which may not exist."""
    total = hashlib.sha256()
    for name in names:
        path = root / name
        if path.is_symlink():
            content = b"link " + os.fsencode(path.readlink())
        elif path.is_file():
            content = f"{path.stat().st_mode & 0o111:o} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode()
        else:
            content = b"none"
        total.update(os.fsencode(name) + b"\0" + content + b"\0")
    return total.hexdigest()


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


def copy_unlike(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy those files that another tree lacks, or has with other contents."""
    for name in names:
        if not _same(source / name, target / name):
            copy(source, target, name)


def remove(tree: Path, name: str) -> None:
    """Remove a file, a link or a directory of a tree, and the directories that are empty without it."""
    place = tree / name
    if place.parent.resolve() != tree.resolve() / PurePosixPath(name).parent:
        return  # a link leads there, out of the tree
    if is_file(place):
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    for parent in place.parents:
        if parent == tree or not parent.is_dir() or any(parent.iterdir()):
            break
        parent.rmdir()


def _below(places: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return those names that are, or lie below, one of the places, such as a submodule."""
    known = set(places)
    return {name for name in names if any(place in known for place in (name, *map(str, PurePosixPath(name).parents)))}


def _differing(base: Path, names: Iterable[str], head: Path, today: Iterable[str]) -> list[str]:
    return sorted(name for name in {*names, *today} if not _same(base / name, head / name))


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


# ------------------------------------------------------------------ today's tests on every side


@dataclass(frozen=True)
class Overlay:
    """The files that are today's on every side: measured tests, their helpers, and pytest's settings.

    All paths are relative to the tree's top. ``deep`` are directories of tests, covered with all files at any depth.
    ``level`` are directories with packages beside tests or conftests: only the files directly in them are covered.
    ``single`` are single files. ``code`` are the packages under test: their files are the side's own, except ``single``
    ones and those in a directory of tests within the package.
    """

    top: Path
    deep: tuple[PurePosixPath, ...]
    level: tuple[PurePosixPath, ...]
    single: frozenset[PurePosixPath]
    code: tuple[PurePosixPath, ...]
    baselines: PurePosixPath | None
    test_patterns: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Whether today's tree decides about a file: whether it exists, and its content."""
        path = PurePosixPath(name)
        if self.is_baseline(name):
            return False
        if path in self.single:
            return True
        return self._is_deep(path) or (path.parent in self.level and _innermost(path, self.code) is None)

    def is_test(self, name: str) -> bool:
        """Whether a file is for tests alone, and so changes no build."""
        path = PurePosixPath(name)
        named = path.name == "conftest.py" or any(fnmatch(path.name, pattern) for pattern in self.test_patterns)
        return self.covers(name) and (named or self._is_deep(path))

    def is_baseline(self, name: str) -> bool:
        """Whether a file is a stored baseline, or the anchor of one."""
        path = PurePosixPath(name)
        return (
            (path.suffix == ".json" or path.name == ANCHOR_FILE)
            and len(path.parents) > 1
            and path.parents[1] == self.baselines
        )

    def files(self, today: Today) -> list[str]:
        """Return today's files that are laid over each side."""
        return sorted(name for name in today.files() if self.covers(name))

    def key(self, today: Today) -> str:
        """Return a digest of the covered files and of the rules that select them."""
        places = (self.deep, self.level, sorted(self.single), self.code)
        return f"{digest(self.top, self.files(today))} {places!r}"

    def _is_deep(self, path: PurePosixPath) -> bool:
        """Whether a file lies in a directory of tests, and in no code further down."""
        tests, code = _innermost(path, self.deep), _innermost(path, self.code)
        return tests is not None and (code is None or tests.is_relative_to(code))


def make_overlay(project: Project, top: Path, packages: Iterable[Package]) -> Overlay:
    """Return the overlay for a project in the tree at ``top``."""
    top = top.resolve()
    code = tuple(sorted(_within(top, [package.location for package in packages])))
    tests = list(_within(top, [*project.files, *project.conftests]))
    deep: set[PurePosixPath] = set()
    level: set[PurePosixPath] = set()
    for directory in {path.parent for path in tests}:
        owner = _innermost(directory, code)
        if owner is not None:
            deep.update(_tests_within(owner, directory))
        elif _is_root(directory, project, top, code):
            level.add(directory)
        else:
            deep.add(_outermost(directory, project, top, code))
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
    """Lay out a side's tree with today's tests over it, and without the packages that were built."""
    source.lay_out(tree)
    laid = overlay.files(today)
    kept = set(laid)
    for name in [name for name in listing(tree) if name not in kept and overlay.covers(name)]:
        remove(tree, name)
    for name in laid:
        copy(overlay.top, tree, name)
    for place in without:
        remove(tree, place.as_posix())


def _within(top: Path, paths: Iterable[Path]) -> Iterator[PurePosixPath]:
    """Yield those paths that lie in the tree, relative to its top; a link is not followed."""
    for path in paths:
        place = path.parent.resolve() / path.name
        if place.is_relative_to(top):
            yield PurePosixPath(place.relative_to(top).as_posix())


def _innermost(path: PurePosixPath, directories: Iterable[PurePosixPath]) -> PurePosixPath | None:
    """Return the innermost of the directories that a path lies in, None where it lies in none."""
    return max(
        (place for place in directories if path.is_relative_to(place)), key=lambda found: len(found.parts), default=None
    )


def _tests_within(owner: PurePosixPath, directory: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the outermost directory of tests within code that a directory is or lies in, if there is one.

    Only the name decides: a directory of any other name may have code beside measured tests.
    """
    for count in range(len(owner.parts), len(directory.parts)):
        if directory.parts[count] in _TESTS:
            yield PurePosixPath(*directory.parts[: count + 1])
            return


def _is_root(directory: PurePosixPath, project: Project, top: Path, packages: tuple[PurePosixPath, ...]) -> bool:
    """Whether a directory is the project's root, or has packages under test in it."""
    own = directory in {PurePosixPath(), *_within(top, [project.rootdir.resolve()])}
    return own or any(package.is_relative_to(directory) for package in packages)


def _outermost(
    directory: PurePosixPath, project: Project, top: Path, packages: tuple[PurePosixPath, ...]
) -> PurePosixPath:
    """Return the outermost package of tests around a directory, whose modules it may import."""
    while (top / directory / "__init__.py").is_file() and not _is_root(directory.parent, project, top, packages):
        directory = directory.parent
    return directory
