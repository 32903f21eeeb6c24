"""The trees of a comparison: copies of today's files and of a commit's, made when a run starts, alike but for code.

Changes in the user's directory during a run do not touch a copy. The base side's tree is the commit with today's test
files over it. What git ignores is in no commit, so both trees have today's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import SCRATCH, OnStep, Project
from pytest_rlperf.sides.git import Listing, Repository, find_repository

_ATTEMPTS = 10  # to copy a tree that changes meanwhile
_PAUSE_S = 0.2
_LOCKED_S = 10.0  # for git to end what it writes in the user's tree
_LAID_FILES, _LAID_BYTES = 2000, 256 << 20  # limits for ignored files, which may be a data set
_LEAST_SPACE = 1 << 20  # bytes
_ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG")  # files that only environments and caches have
_OF_PYTEST = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"}
_TESTS = {"test", "tests"}
_ENDS = r":;,'\"\s"  # characters that end a path within a text
_PIECE = 1 << 20  # bytes
_BASELINE = re.compile(r"[a-z0-9._-]+-[0-9a-f]{8}\.json")  # as baseline.machine.slug() names them
SETTINGS = ".rlperf-"  # begins the name of the file with today's pytest settings, beside the side's own file


def is_environment(directory: Path) -> bool:
    """Whether a directory is an environment or a cache, and so not part of the tree around it."""
    return any((directory / sign).exists() for sign in _ENVIRONMENT_SIGNS)


class Relocation(msgspec.Struct, frozen=True):
    """The places on one side of the files in today's tree.

    ``top`` is the user's directory and ``tree`` the side's copy. A path belongs to the tree if any of ``trees`` has a
    file with that name. Other paths, such as an environment below ``top``, are the same on every side.
    """

    top: Path
    tree: Path
    trees: tuple[Path, ...]

    def of(self, path: Path) -> Path:
        """Return the place of ``path`` on the side, or ``path`` itself if it is not in the tree."""
        real = path.resolve()
        if not real.is_relative_to(self.top):
            return path
        name = real.relative_to(self.top)
        return self.tree / name if any(os.path.lexists(tree / name) for tree in self.trees) else path

    def of_text(self, text: str) -> str:
        """Return a variable's value, with its paths into the tree changed to the side's.

        The value may be a path, a list of paths, an address, or any text with a path in it; the rest stays as it is.
        """
        inside = rf"(?<![\w.-]){re.escape(str(self.top))}(?=[/{_ENDS}]|$)[^{_ENDS}]*"
        moved = re.sub(inside, lambda found: self._of_word(found[0]), text)
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # a long name, a NUL, a circle of links
            if moved == text and text.startswith("/"):  # perhaps through a link
                return str(self.of(Path(text)))
        return moved

    def _of_word(self, path: str) -> str:
        name = path[len(str(self.top)) :]
        with contextlib.suppress(OSError, ValueError):
            if any(os.path.lexists(f"{tree}{name}") for tree in self.trees):
                return f"{self.tree}{name}"
        return path


# --------------------------------------------------------------------------- today's tree


class Snapshot(msgspec.Struct, frozen=True):
    """Today's tree, as it was when it was copied.

    ``head`` is the full SHA of the checked-out commit, and ``changed`` are the files that git reported as different
    from it, new ones included. ``laid`` are the copied files that git ignores, and ``left_out`` the places of others,
    which are too large to copy unless the user names them. ``new`` are the files that git does not know yet. ``lock``
    is what a killed git has left in the tree.
    """

    top: Path
    tree: Path
    head: str
    changed: frozenset[str]
    laid: tuple[str, ...]
    left_out: tuple[str, ...]
    new: frozenset[str]
    lock: Path | None = None


def take_snapshot(of: Repository, tree: Path, also: Iterable[str], on_step: OnStep) -> Snapshot:
    """Copy a working tree into an empty directory, as one moment had it.

    ``also`` are patterns of ignored files to copy whatever their size. SideError if the tree keeps changing.
    """
    top, lock, due_s = of.top, of.lock, time.monotonic() + _LOCKED_S
    for attempt in range(_ATTEMPTS):
        if attempt:
            for path in list(tree.iterdir()):
                remove(tree, path.name)
            time.sleep(_PAUSE_S)
        locked = _await_git(lock, due_s, on_step)
        on_step("copying today's tree")
        repository = find_repository(top)
        try:
            listing = repository.listing()
            names, changed = _copy_working_tree(repository, listing, tree)
            moved = _moved_on(repository, names, changed, tree) if _state(lock) == locked else "git's lock of it"
            if not moved:
                laid = _lay_ignored(repository, listing, tree, also)
                fix_links(top, tree, [tree])
                return Snapshot(top, tree, repository.head, changed, *laid, listing.new, lock if locked else None)
            error = SideError(
                f"{top} kept changing while it was copied, {moved} at the last of {_ATTEMPTS} times: run this again "
                "once nothing writes there"
            )
        except SideError as failed:
            check_space(tree)
            error = failed
    raise error


def check_space(tree: Path) -> None:
    """Raise SideError if there is no space left for a tree's files."""
    if shutil.disk_usage(tree).free < _LEAST_SPACE:
        raise SideError(
            f"there is no space left for copies of the tree in {tree.parent}: set TMPDIR to a directory with more"
        )


def fix_links(top: Path, tree: Path, trees: Iterable[Path]) -> None:
    """Make a copy's links lead where they do in the user's tree: to the copy's own files, or out of the tree.

    A file belongs to the tree if it is in any of ``trees``; an environment below ``top`` does not.
    """
    for name in list(files_in(tree)):
        link = tree / name
        if not link.is_symlink():
            continue
        there = os.path.normpath(top / Path(name).parent / link.readlink())
        below = there[len(str(top)) :]
        is_own = there.startswith(f"{top}{os.sep}") and any(os.path.lexists(f"{each}{below}") for each in trees)
        target = os.path.relpath(f"{tree}{below}", link.parent) if is_own else there
        if target != str(link.readlink()):
            link.unlink()
            link.symlink_to(target)


def _await_git(lock: Path, due_s: float, on_step: OnStep) -> tuple[int, int] | None:
    """Wait for a git command that writes in the tree; return its lock if it stays, as a killed command leaves it."""
    while (found := _state(lock)) is not None and time.monotonic() < due_s:
        on_step(f"waiting for git to remove {lock}")
        time.sleep(_PAUSE_S / 4)
    return found


def _state(lock: Path) -> tuple[int, int] | None:
    """Return what tells a lock from a later one with its name, None if there is none."""
    try:
        found = lock.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _copy_working_tree(repository: Repository, listing: Listing, tree: Path) -> tuple[list[str], frozenset[str]]:
    """Fill an empty directory; return the tree's files, and those by which it may differ from its commit.

    A file that git calls unchanged has today's bytes, which may be older than a change of git's settings.
    """
    names, known = _tree_files(repository, listing), set(repository.changed(listing))
    # Any file in a changed submodule may differ.
    changed = {*known, *(name for name in names if known & {*map(str, PurePosixPath(name).parents)})}
    repository.check_out(repository.head, tree)
    for name in set(files_in(tree)).difference(names):
        remove(tree, name)
    for name in names:
        if not same(repository.top / name, tree / name):
            copy(repository.top, tree, name)
    return names, frozenset(changed)


def _moved_on(repository: Repository, names: list[str], changed: frozenset[str], tree: Path) -> str:
    """Return what has changed in the working tree since it was copied, or "".

    Each file is read twice, and no file's second reading comes before another's first: if all are equal, there was a
    moment when the tree equalled the copy.
    """
    listing = repository.listing()
    if _tree_files(repository, listing) != names or not changed.issuperset(repository.changed(listing)):
        moved = "its list of files"
    else:
        moved = next((name for name in names if not same(repository.top / name, tree / name)), "")
    # A checkout changes the files first, and HEAD last, so git's answers may have been about either commit.
    return moved if find_repository(repository.top).head == repository.head else "its commit"


def _tree_files(repository: Repository, listing: Listing) -> list[str]:
    """Return a working tree's files, without new ones of environments and of runs that no ``.gitignore`` names."""
    apart: dict[Path, bool] = {}

    def is_apart(directory: Path) -> bool:
        if directory == repository.top:
            return False
        if directory not in apart:
            is_own = is_environment(directory) or directory.name.startswith(SCRATCH)
            apart[directory] = is_own or is_apart(directory.parent)
        return apart[directory]

    names = repository.files(listing)
    return [name for name in names if name not in listing.new or not is_apart((repository.top / name).parent)]


# --------------------------------------------------------------------------- what git ignores


def _lay_ignored(
    repository: Repository, listing: Listing, tree: Path, also: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy the files that git ignores into a tree, small places first; return their names, and the places left out.

    Bytecode, environments and caches are not copied.
    """
    patterns = tuple(also)
    laid: list[str] = []
    left_out: list[str] = []
    files_left, bytes_left = _LAID_FILES, _LAID_BYTES
    places = [(place, *_files_of(repository.top, place)) for place in repository.ignored(listing)]
    for place, names, size in sorted(places, key=lambda found: found[2]):
        if len(names) <= files_left and size <= bytes_left:
            files_left, bytes_left = files_left - len(names), bytes_left - size
        else:
            left_out.append(place)
            names = list(_named(repository.top, place, patterns))
        for name in names:
            if not os.path.lexists(tree / name):
                copy(repository.top, tree, name)
                laid.append(name)
    return tuple(sorted(laid)), tuple(sorted(left_out))


def _files_of(top: Path, place: str) -> tuple[list[str], int]:
    """Return the files at or below an ignored place and their bytes; the search ends once they are too many to copy."""
    names: list[str] = []
    size = 0
    for name in _walk(top, place):
        names.append(name)
        size += (top / name).lstat().st_size
        if len(names) > _LAID_FILES or size > _LAID_BYTES:
            break
    return names, size


def _named(top: Path, place: str, patterns: tuple[str, ...]) -> Iterator[str]:
    """Yield the files at or below an ignored place that the user has named."""
    if patterns:
        yield from (name for name in _walk(top, place) if any(fnmatch(name, pattern) for pattern in patterns))


def _walk(top: Path, place: str) -> Iterator[str]:
    """Yield the files at or below a place, relative to ``top``: no bytecode, environments, caches or runs' files."""
    start = top / place
    if start.is_symlink() or start.is_file():
        if not place.endswith((".pyc", ".pyo")):
            yield place
        return
    for directory, below, files in os.walk(start):
        here = Path(directory)
        if here.name in {"__pycache__", ".git"} or here.name.startswith(SCRATCH) or is_environment(here):
            below.clear()
            continue
        links = [name for name in below if (here / name).is_symlink()]
        below[:] = sorted(set(below).difference(links))
        for name in sorted([*files, *links]):
            path = here / name
            if (path.is_symlink() or path.is_file()) and not name.endswith((".pyc", ".pyo")):  # no sockets or pipes
                yield path.relative_to(top).as_posix()


# --------------------------------------------------------------------------- the base side's tree


def lay_out_commit(repository: Repository, sha: str, today: Snapshot, tree: Path) -> None:
    """Check a commit out into an empty directory, with today's bytes for files that have not changed since."""
    try:
        repository.check_out(sha, tree)
    except SideError:
        check_space(tree)
        raise
    differing = set(repository.between(sha, today.head)) | today.changed
    for name in files_in(tree):
        if name not in differing and is_file(today.tree / name) and not same(today.tree / name, tree / name):
            copy(today.tree, tree, name)


class TestFiles(msgspec.Struct, frozen=True):
    """The files that are today's on every side: only test files.

    ``measured`` are the files with measured tests, relative to the tree's top. ``patterns`` are pytest's
    ``python_files``; a pattern that matches every module says nothing about a file.
    """

    __test__ = False  # pytest would collect a class with this name

    measured: frozenset[str]
    patterns: tuple[str, ...]
    baselines: PurePosixPath | None

    @classmethod
    def of(cls, project: Project, top: Path) -> TestFiles:
        """Return a project's test files in the tree at ``top``."""
        measured = frozenset(_within(top, [*project.files, *project.conftests]))
        store = next(_within(top, [project.baseline_dir.resolve()]), None)
        return cls(measured, project.test_patterns, None if store is None else PurePosixPath(store))

    def cover(self, name: str) -> bool:
        """Whether today's tree decides if a file exists, and its content."""
        path = PurePosixPath(name)
        if name in self.measured or path.name == "conftest.py" or path.name in _OF_PYTEST:
            return True
        if path.name.startswith(SETTINGS):
            return True
        if not _TESTS.isdisjoint(path.parts[:-1]):
            return True
        return path.suffix == ".py" and any(
            fnmatch(path.name, pattern) and not fnmatch("module.py", pattern) for pattern in self.patterns
        )

    def among(self, tree: Path) -> frozenset[str]:
        """Return the test files in a tree."""
        return frozenset(name for name in files_in(tree) if self.cover(name))

    def is_baseline(self, name: str) -> bool:
        """Whether a file is a stored baseline, which is this package's own and which no test reads."""
        path = PurePosixPath(name)
        return bool(_BASELINE.fullmatch(path.name)) and len(path.parents) > 1 and path.parents[1] == self.baselines


def overlay_test_files(today: Snapshot, tree: Path, tests: TestFiles) -> list[str]:
    """Lay today's test files, and what git ignores, over the base side's tree; return the test files that differ."""
    names = set(files_in(today.tree)).difference(today.laid)
    present = set(files_in(tree))
    for name in present.difference(names):
        if tests.cover(name):
            remove(tree, name)
    covered = sorted(name for name in names if tests.cover(name))
    # A file behind a link to a directory is none of the tree's own.
    unequal = [name for name in covered if name not in present or not same(tree / name, today.tree / name)]
    differing = [name for name in unequal if os.path.lexists(tree / name)]
    for name in unequal:
        copy(today.tree, tree, name)
    for name in today.laid:
        if not os.path.lexists(tree / name):
            copy(today.tree, tree, name)
    fix_links(today.top, tree, [tree, today.tree])
    return [name for name in differing if not tests.is_baseline(name)]


def settings_file(today: Snapshot, settings: Path | None, rootdir: Path, place: Relocation) -> Path:
    """Return the file with today's pytest settings for a side, which has its own copy.

    The copy lies beside the side's own file, which code may read. A project without settings has an empty copy, or
    pytest would look for the base's settings.
    """
    if settings is not None and (settings.name in _OF_PYTEST or place.of(settings) == settings):
        return place.of(settings)
    name = ".ini" if settings is None else settings.name
    found = place.of(rootdir if settings is None else settings.parent) / f"{SETTINGS}{name}"
    content = b"" if settings is None else replace(place, tree=today.tree).of(settings).read_bytes()
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_bytes(content)
    return found


def differing_files(base: Path, head: Path, tests: TestFiles) -> tuple[str, ...]:
    """Return the names of files that differ between the trees, without stored baselines."""
    names = {*files_in(base), *files_in(head)}
    return tuple(sorted(name for name in names if not tests.is_baseline(name) and not same(base / name, head / name)))


def files_in(tree: Path) -> Iterator[str]:
    """Yield the files and links in a tree, relative to it, without git's own and bytecode."""
    for directory, below, files in os.walk(tree):
        below[:] = [name for name in below if name not in {".git", "__pycache__"}]
        here = Path(directory)
        links = [name for name in below if (here / name).is_symlink()]
        yield from ((here / name).relative_to(tree).as_posix() for name in [*files, *links])


# --------------------------------------------------------------------------- files


def is_file(path: Path) -> bool:
    """Whether a path is a file or a link, even one that leads nowhere."""
    return path.is_symlink() or path.is_file()


def same(one: Path, other: Path) -> bool:
    """Whether two paths are files with equal content and equal execute permissions, or links to the same place."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    try:
        with one.open("rb") as first, other.open("rb") as second:  # by their contents: sizes and times can be equal
            if (os.fstat(first.fileno()).st_mode ^ os.fstat(second.fileno()).st_mode) & 0o111:
                return False
            while (piece := first.read(_PIECE)) == second.read(_PIECE):
                if not piece:
                    return True
    except OSError:  # one of them is missing, or a directory
        pass
    return False


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
    """Remove a file, a link or a directory from a tree, and the directories that are empty without it."""
    place = tree / name
    if place.parent.resolve() != tree.resolve() / PurePosixPath(name).parent:
        return  # a link leads there from the tree
    if is_file(place):
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    for parent in place.parents:
        if parent == tree or not parent.is_dir() or any(parent.iterdir()):
            break
        parent.rmdir()


def _within(top: Path, paths: Iterable[Path]) -> Iterator[str]:
    """Yield the paths that lie in the tree, relative to its top; a link is not followed."""
    for path in paths:
        place = path.parent.resolve() / path.name
        if place.is_relative_to(top):
            yield place.relative_to(top).as_posix()


def moved_variables(variables: Mapping[str, str], place: Relocation) -> dict[str, str | None]:
    """Return the variables whose values have paths into today's tree, with the side's paths."""
    moved = {name: place.of_text(value) for name, value in variables.items() if not name.startswith("GIT_")}
    return {name: value for name, value in moved.items() if value != variables[name]}
