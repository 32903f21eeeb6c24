"""Where a side's files come from: a commit, a working tree as it is now, or a plain directory."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from pytest_rlperf.errors import SideError
from pytest_rlperf.sides.git import Commit, Repository, find_repository

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
