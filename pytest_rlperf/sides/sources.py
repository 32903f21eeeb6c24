"""The files of a side: a commit's or a working tree's, with today's tests laid over them."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.model.stored import ANCHOR_FILE
from pytest_rlperf.sides.git import Commit, Repository, find_repository
from pytest_rlperf.sides.packages import Package

_SETTINGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
_TESTS = {"test", "tests"}  # names of directories of tests within code


@dataclass(frozen=True)
class Source:
    """The original files of a side, before today's tests are laid over them: a commit's, or those of a working tree.

    A working tree has the commit that is checked out in it, with its changes; it is called by the commit's title too.
    """

    repository: Repository
    commit: Commit
    is_working: bool = False

    @classmethod
    def working(cls, repository: Repository) -> Source:
        """Return a working tree as it is."""
        return cls(repository, Commit(repository.head, str(repository.top)), is_working=True)

    @property
    def key(self) -> str:
        """A text that is different wherever the files are: it names the repository too, which lends objects."""
        absent = ",".join(self.repository.absent_submodules(self.commit.sha))
        changed = self._changed() if self.is_working else set()
        return f"{self.commit.sha} {self.repository.top} {absent} {digest(self.repository.top, sorted(changed))}"

    def lay_out(self, target: Path) -> None:
        """Check the commit out into a clone of its own; copy a working tree's changes into it.

        A file that git calls unchanged has today's bytes: they may be from before a setting of git's changed.
        """
        self.repository.check_out(self.commit.sha, target)
        names = set(self.repository.files())
        if self.is_working:
            for name in set(find_repository(target).files()) - names:
                remove(target, name)
        else:
            names -= self._changed()
        for name in names:
            if not _same(self.repository.top / name, target / name):
                copy(self.repository.top, target, name)

    def differing(self, today: Repository) -> list[str]:
        """Return the files by which the source differs from today's tree, relative to its top."""
        if not self.is_working:
            return self.repository.differing(self.commit.sha)
        names = {*self.repository.files(), *today.files()}
        return sorted(name for name in names if not _same(self.repository.top / name, today.top / name))

    def _changed(self) -> set[str]:
        """Return the files by which the working tree may differ from the commit, those of submodules each."""
        known = set(self.repository.differing(self.commit.sha))
        within = (name for name in self.repository.files() if known & {*map(str, PurePosixPath(name).parents)})
        return {*known, *within}


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

    def files(self, today: Repository) -> list[str]:
        """Return today's files that are laid over each side."""
        return sorted(name for name in today.files() if self.covers(name))

    def key(self, today: Repository) -> str:
        """Return a digest of the covered files and of the rules that select them."""
        places = (self.deep, self.level, sorted(self.single), self.code)
        return f"{digest(today.top, self.files(today))} {places!r}"

    def _is_deep(self, path: PurePosixPath) -> bool:
        """Whether a file lies in a directory of tests, and in no code further down."""
        tests, code = _innermost(path, self.deep), _innermost(path, self.code)
        return tests is not None and (code is None or tests.is_relative_to(code))


def make_overlay(project: Project, top: Path, packages: Iterable[Package]) -> Overlay:
    """Return the overlay for a project in the tree at ``top``."""
    code = tuple(sorted(_within(top, [package.location for package in packages])))
    tests = list(_within(top, [*project.files, *project.conftests]))
    above_code = {parent for place in code for parent in place.parents}
    roots = {PurePosixPath(), *_within(top, [project.rootdir.resolve()]), *above_code}
    deep: set[PurePosixPath] = set()
    level: set[PurePosixPath] = set()
    for directory in {path.parent for path in tests}:
        owner = _innermost(directory, code)
        if owner is not None:
            # Only the name decides: a directory of any other name may have code beside measured tests.
            within = [place for place in (directory, *directory.parents) if owner in place.parents]
            deep.update([place for place in within if place.name in _TESTS][-1:])
        elif directory in roots:
            level.add(directory)
        else:
            while (top / directory / "__init__.py").is_file() and directory.parent not in roots:
                directory = directory.parent  # the outermost package of tests, whose modules it may import
            deep.add(directory)
    settings = [project.rootdir / name for name in _SETTINGS] + ([project.inipath] if project.inipath else [])
    return Overlay(
        deep=tuple(sorted(deep)),
        level=tuple(sorted(level)),
        single=frozenset([*tests, *_within(top, settings)]),
        code=code,
        baselines=next(_within(top, [project.baseline_dir.resolve()]), None),
        test_patterns=project.test_patterns,
    )


def make_tree(
    source: Source, overlay: Overlay, today: Repository, tree: Path, without: Iterable[PurePosixPath]
) -> None:
    """Lay out a side's tree with today's tests over it, and without the packages that were built."""
    source.lay_out(tree)
    laid = overlay.files(today)
    for name in set(find_repository(tree).files()).difference(laid):
        if overlay.covers(name):
            remove(tree, name)
    for name in laid:
        copy(today.top, tree, name)
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
