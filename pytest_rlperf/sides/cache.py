"""The cache of sides: outside the user's tree, with whole entries only, safe for simultaneous runs.

An entry is a directory with a file to lock, the attempts to build it, and ``complete``, which names the attempt that
succeeded and its files. That file is written last, so a killed build is never used. Every attempt has a directory of
its own, so a dead build's children cannot write into a later attempt. Attempts stay where they were built: virtual
environments cannot be moved.

Code is loaded from here, so every directory down to an attempt must belong to this user and be closed to others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep
from pytest_rlperf.scratch import place_of_user

KEPT_ENTRIES = 16  # of a tree: a few commits, and for builds an original, a build and its tests a side
KEPT_BYTES = 10 * 2**30  # of all trees together
_FORMAT = "3"  # of the content of entries; a new number leaves the entries of older versions unused
_LOCK, _COMPLETE, _TREE, _SIDES = "lock", "complete", "tree", "sides"


class Cache:
    """The cached entries of one tree of the user's.

    Every entry handed out stays locked against removal until :meth:`close`, or else until the process ends.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: list[int] = []

    def entry(self, key: str, build: Callable[[Path], None], on_step: OnStep) -> Path:
        """Return the directory cached under ``key``; where there is none, let ``build`` fill an empty one.

        An entry that lacks files is built again.
        """
        place = self.directory / _entry_name(key)
        is_new = False
        try:
            while (found := self._use(place)) is None:
                is_new = self._build(place, build, on_step) or is_new
            if is_new:  # its own entry, however large, is locked by now
                _prune(self.directory)
            return found
        except OSError as error:
            raise SideError(
                f"cannot keep a side in {place}: {error}. Set XDG_CACHE_HOME to another directory"
            ) from error

    def close(self) -> None:
        """Unlock every entry, which may then be removed."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def _use(self, place: Path) -> Path | None:
        """Return the complete attempt of an entry and lock it, or None where there is none."""
        if not (place / _COMPLETE).exists():
            return None  # unlocked, so that a run about to build it does not wait for readers
        descriptor = _lock(place, fcntl.LOCK_SH)
        try:
            found = _complete_attempt(place)
            if found is not None:
                os.utime(place / _LOCK)  # the time of its last use
        except BaseException:
            os.close(descriptor)
            raise
        if found is None:
            os.close(descriptor)
            return None
        self._held.append(descriptor)
        return found

    def _build(self, place: Path, build: Callable[[Path], None], on_step: OnStep) -> bool:
        """Fill an entry, or wait for another run that fills it; return whether this run did."""
        descriptor = _try_lock(place)
        if descriptor is None:
            _wait(place, on_step)
            return False
        try:
            if _complete_attempt(place) is not None:
                return False
            _remove_attempts(place)
            attempt = Path(tempfile.mkdtemp(prefix="", dir=place))
            try:
                build(attempt)
                recorded = json.dumps({"attempt": attempt.name, "files": dict(_sizes(attempt))})
                written = place / f"{_COMPLETE}.new"
                written.write_text(recorded, encoding="utf-8")
                written.replace(place / _COMPLETE)
            except BaseException:
                _remove(attempt)
                raise
        finally:
            os.close(descriptor)
        return True


def open_cache(top: Path) -> Cache:
    """Return the cache of the tree at ``top``, which never lies within that tree."""
    resolved = top.resolve()
    tree = os.fsencode(resolved)
    directory = _root(resolved) / f"{_slug(resolved.name, 40)}{_tree_digest(tree)}"
    try:
        _make(directory)
        (directory / _TREE).write_bytes(tree)
    except OSError as error:
        raise SideError(f"cannot keep sides in {directory}: {error}. Set XDG_CACHE_HOME to another directory") from None
    return Cache(directory)


# ------------------------------------------------------------------ where it is, and whose


def _root(top: Path) -> Path:
    """Return the directory of all caches: the user's, else one under the directory for temporary files."""
    with contextlib.suppress(RuntimeError, OSError):  # no home directory, or a read-only one
        root = _users_root()
        if not root.resolve().is_relative_to(top):
            _check_name(root.resolve())
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(root, os.W_OK | os.X_OK) and _is_private(root.resolve()):
                return root.resolve()
    return _temporary_root(top)


def _users_root() -> Path:
    # The specification of the variable demands to ignore a relative path.
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "pytest-rlperf"


def _temporary_root(top: Path) -> Path:
    """Return a directory for temporary files that other users cannot write to."""
    root = place_of_user() / _SIDES
    if root.is_relative_to(top):
        raise SideError(
            f"there is no place to keep a side: {root} lies within the tree {top} itself; set XDG_CACHE_HOME to a "
            "directory outside it"
        )
    _check_name(root)
    try:
        _make(root.parent)
        _make(root)
    except OSError as error:
        raise SideError(
            f"cannot keep sides in {root}: {error}. Set XDG_CACHE_HOME to a directory of your own"
        ) from None
    return root


def _check_name(root: Path) -> None:
    """Check that a directory can be on the PATH, as virtual environments in it are."""
    if os.pathsep in str(root):
        raise SideError(
            f"cannot keep sides in {root}: no virtual environment works in a directory with {os.pathsep!r} in its "
            "name, which ends an entry of the PATH; set XDG_CACHE_HOME to a directory without it"
        )


def _is_private(root: Path) -> bool:
    """Whether no other user can write to a directory, nor put another one in its place.

    ``root`` is resolved. Groups are not looked at above it: many systems give every user one of their own.
    """
    if not _is_own(root):
        return False
    above = [parent.stat() for parent in root.parents]
    return all(
        found.st_uid in {0, os.getuid()} and (not found.st_mode & stat.S_IWOTH or found.st_mode & stat.S_ISVTX)
        for found in above
    )


def _is_own(directory: Path) -> bool:
    """Whether a directory, which is no link, belongs to this user, who alone can write to it."""
    found = directory.lstat()
    closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and closed


def _check_own(directory: Path) -> None:
    if not _is_own(directory):
        raise SideError(
            f"other users can write to {directory}, so its files cannot be trusted: remove it, or set XDG_CACHE_HOME "
            "to a directory of your own"
        )


def _make(directory: Path) -> None:
    """Make a directory for this user alone; SideError where there is one that others can write to, or a link."""
    directory.mkdir(mode=0o700, exist_ok=True)
    _check_own(directory)


# ------------------------------------------------------------------ entries


def _entry_name(key: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\0{key}".encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return f"{_slug(key, 24)}-{digest}"


def _tree_digest(tree: bytes) -> str:
    """Return the end of the name of a tree's directory, by which it is known as one of the cache's."""
    return f"-{hashlib.sha256(tree).hexdigest()[:12]}"


def _slug(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:length].strip("-.") or "tree"


def _lock(place: Path, kind: int) -> int:
    """Return a descriptor with the lock of an entry; a missing entry is created."""
    while True:
        _make(place.parent)
        _make(place)
        try:
            descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # removed between these two lines
        try:
            fcntl.flock(descriptor, kind)
            # Another run may have removed the entry while this one waited.
            if os.path.samestat(os.fstat(descriptor), os.stat(place / _LOCK)):  # noqa: PTH116 - beside its twin
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(place: Path) -> int | None:
    """Return a descriptor with the exclusive lock of an entry, or None where another run has locked it."""
    try:
        return _lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _wait(place: Path, on_step: OnStep) -> None:
    """Wait for a run that fills an entry; SideError where that run uses an entry that lacks files."""
    on_step("waiting for another run, which prepares the same")
    # A shared lock, because the other run keeps one on the finished entry until it ends.
    descriptor = _lock(place, fcntl.LOCK_SH)
    try:
        if (place / _COMPLETE).exists() and _complete_attempt(place) is None:
            raise SideError(f"files of {place} are missing, and another run uses it: run again when that one has ended")
    finally:
        os.close(descriptor)


def _complete_attempt(place: Path) -> Path | None:
    """Return the attempt of an entry that is complete and still has its files, None where there is none."""
    found = _recorded(place)
    if found is None:
        return None
    name, sizes = found
    attempt = place / name
    try:
        _check_own(attempt)
        for file, size in sizes.items():
            # Tests may write to files of their tree; files that were never written to the disk are empty.
            if (attempt / file).lstat().st_size == 0 != size:
                return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    return attempt


def _recorded(place: Path) -> tuple[str, dict[str, int]] | None:
    """Return the name of an entry's complete attempt and its files' sizes, None where there are none to be read."""
    try:
        found = json.loads((place / _COMPLETE).read_bytes())
        name, sizes = found["attempt"], found["files"]
        known = isinstance(name, str) and all(isinstance(size, int) for size in sizes.values())
    except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return (name, sizes) if known and re.fullmatch(r"\w+", name) else None


def _sizes(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield the files below a directory and their sizes in bytes, less bytecode."""
    for root, directories, files in os.walk(directory):
        here = Path(root)
        links = [name for name in directories if (here / name).is_symlink()]
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in [*links, *files]:
            yield str((here / name).relative_to(directory)), (here / name).lstat().st_size


def _remove_attempts(place: Path) -> None:
    for found in place.iterdir():
        if found.name != _LOCK:
            _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ------------------------------------------------------------------ the whole cache


@dataclass(frozen=True)
class Entry:
    """An entry of the cache: its place, the tree it is of, its size, and when a run last used it, in epoch seconds."""

    place: Path
    tree: str
    size_bytes: int
    used_s: float

    def remove(self) -> bool:
        """Remove the entry unless a run uses it; return whether it is gone."""
        with contextlib.suppress(OSError, SideError):
            descriptor = _try_lock(self.place)
            if descriptor is not None:
                try:
                    # First makes the entry incomplete, in case the removal fails.
                    (self.place / _COMPLETE).unlink(missing_ok=True)
                    _remove(self.place)
                finally:
                    os.close(descriptor)
        return not self.place.exists()


def cache_entries() -> list[Entry]:
    """Return the entries of all trees, wherever this user's caches are, the last used first."""
    roots = []
    with contextlib.suppress(OSError):  # none is there
        if _is_own(place_of_user()):  # and not another user's link to a directory of this one
            roots.append(place_of_user() / _SIDES)
    with contextlib.suppress(RuntimeError):  # no home directory
        roots.append(_users_root().resolve())
    entries = [entry for root in dict.fromkeys(roots) for entry in _entries_in(root)]
    return sorted(entries, key=lambda entry: entry.used_s, reverse=True)


def _entries_in(root: Path) -> Iterator[Entry]:
    for lock in root.glob(f"*/*/{_LOCK}"):
        with contextlib.suppress(OSError):  # removed meanwhile, or no directory of the cache's
            place = lock.parent
            tree = (place.parent / _TREE).read_bytes()
            if not place.parent.name.endswith(_tree_digest(tree)):
                continue  # no directory of the cache's, and not its to remove
            found = _recorded(place)
            sizes = dict(_sizes(place)) if found is None else found[1]
            yield Entry(place, os.fsdecode(tree), sum(sizes.values()), lock.stat().st_mtime)


def _prune(directory: Path) -> None:
    """Remove the least recently used entries beyond the bounds: of a tree's ``directory``, and of all trees.

    Entries that a run has locked stay.
    """
    entries = sorted(_entries_in(directory.parent), key=lambda entry: entry.used_s)
    of_tree = [entry for entry in entries if entry.place.parent == directory]
    surplus = of_tree[:-KEPT_ENTRIES]
    total = sum(entry.size_bytes for entry in entries)
    for entry in entries:
        if (entry in surplus or total > KEPT_BYTES) and entry.remove():
            total -= entry.size_bytes
