"""The cache of sides: outside the user's tree, with whole entries only, safe for simultaneous runs.

An entry is a directory with a file to lock, the attempts to build it, and ``complete``, which names the attempt that
succeeded and the SHA-256 of its files. That file is written last, so a killed build is never used. Every attempt has a
directory of its own, so a dead build's children cannot write into a later attempt. Attempts stay where they were built:
virtual environments cannot be moved.

Code is loaded from here, so every directory down to an attempt must belong to this user and be closed to others.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep
from pytest_rlperf.scratch import place_of_user

KEPT_ENTRIES = 16  # of a tree: a few commits, and for builds an original, a build and its tests a side
KEPT_DAYS = 30  # since the last use of an entry
_FORMAT = "4"  # of the content of entries; a new number leaves the entries of older versions unused
_LOCK, _COMPLETE, _TREE, _SIDES = "lock", "complete", "tree", "sides"
_RETRY_S, _RETRIES = 0.05, 40  # where several runs are about to build the same


class _Record(msgspec.Struct, frozen=True):
    """The content of ``complete``: the name of an attempt, and the SHA-256 of its files; that of links is empty."""

    attempt: Annotated[str, msgspec.Meta(pattern=r"^\w+$")]
    files: dict[str, str]


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
        try:
            for _ in range(_RETRIES):
                descriptor = _lock(place, on_step)
                try:
                    found = _complete_attempt(place) or _built_alone(place, descriptor, build)
                except BaseException:
                    os.close(descriptor)
                    raise
                if found is not None:
                    self._held.append(descriptor)
                    os.utime(place / _LOCK)  # the time of its last use
                    return found
                os.close(descriptor)
                time.sleep(_RETRY_S)
            raise SideError(f"files of {place} are missing, and another run uses it: run again when that one has ended")
        except OSError as error:
            raise SideError(
                f"cannot keep a side in {place}: {error}. Set XDG_CACHE_HOME to another directory"
            ) from error

    def close(self) -> None:
        """Unlock every entry, which may then be removed."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()


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


_EMPTY = hashlib.sha256().hexdigest()


def _slug(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:length].strip("-.") or "tree"


def _lock(place: Path, on_step: OnStep) -> int:
    """Return a descriptor with a shared lock of an entry, once no run builds it; a missing entry is created."""
    while True:
        _make(place.parent)
        _make(place)
        try:
            descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # removed between these two lines
        try:
            if not _take(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB):
                on_step("waiting for another run, which prepares the same")
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Another run may have removed the entry while this one waited.
            if os.path.samestat(os.fstat(descriptor), os.stat(place / _LOCK)):  # noqa: PTH116 - beside its twin
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _take(descriptor: int, kind: int) -> bool:
    """Take a lock, unless another process holds one against it; return whether it is taken."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    return True


def _built_alone(place: Path, descriptor: int, build: Callable[[Path], None]) -> Path | None:
    """Fill an entry and return its attempt, or None where another run uses it or is about to fill it."""
    if not _take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
        return None
    for found in place.iterdir():
        if found.name != _LOCK:
            _remove(found)
    attempt = Path(tempfile.mkdtemp(prefix="", dir=place))
    try:
        build(attempt)
        written = place / f"{_COMPLETE}.new"
        written.write_bytes(
            msgspec.json.encode(_Record(attempt.name, {name: sha256(attempt / name) for name in _files(attempt)}))
        )
        written.replace(place / _COMPLETE)
    except BaseException:
        _remove(attempt)
        raise
    _prune(place)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return attempt


def _complete_attempt(place: Path) -> Path | None:
    """Return the attempt of an entry that is complete and still has its files, None where there is none."""
    record = _read(place)
    if record is None:
        return None
    attempt = place / record.attempt
    try:
        _check_own(attempt)
        for file, digest in record.files.items():
            # Tests may write to files of their tree; files that were never written to the disk are empty.
            if not (attempt / file).lstat().st_size and digest != _EMPTY:
                return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    return attempt


def _read(place: Path) -> _Record | None:
    """Return the record of an entry's complete attempt, None where there is none to be read."""
    try:
        return msgspec.json.decode((place / _COMPLETE).read_bytes(), type=_Record)
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return None


def changed_since_built(home: Path, files: Iterable[Path]) -> list[Path]:
    """Return which files are not as they were built, where ``home`` lies in an entry; users' own may change."""
    for attempt in (home, *home.parents):
        recorded = _digests(attempt)
        if recorded:
            return [path for path in files if path in recorded and recorded[path] != sha256(path)]
    return []


@functools.cache
def _digests(attempt: Path) -> dict[Path, str]:
    """Return the digests of an attempt's files; none where a directory is no complete attempt."""
    record = _read(attempt.parent)
    if record is None or record.attempt != attempt.name:
        return {}
    return {attempt / name: digest for name, digest in record.files.items()}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, empty for a link."""
    if path.is_symlink():
        return ""
    content = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            content.update(block)
    return content.hexdigest()


def _files(directory: Path) -> Iterator[str]:
    """Yield the files and links below a directory, less bytecode."""
    for root, directories, files in os.walk(directory):
        here = Path(root)
        links = [name for name in directories if (here / name).is_symlink()]
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in [*links, *files]:
            yield str((here / name).relative_to(directory))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ------------------------------------------------------------------ the whole cache


@dataclass(frozen=True)
class Entry:
    """An entry of the cache: its place, the tree it is of, and when a run last used it, in epoch seconds."""

    place: Path
    tree: str
    used_s: float

    @functools.cached_property
    def size_bytes(self) -> int:
        """The size of its files when first asked for, less bytecode."""
        return sum((self.place / name).lstat().st_size for name in _files(self.place))

    def remove(self) -> bool:
        """Remove the entry unless a run uses it; return whether it is gone."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.place / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
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
            if place.parent.name.endswith(_tree_digest(tree)):  # else it is not the cache's to remove
                yield Entry(place, os.fsdecode(tree), lock.stat().st_mtime)


def _prune(new: Path) -> None:
    """Remove entries unused for long, and older ones of the tree that the ``new`` one is of; those in use stay."""
    entries = sorted(_entries_in(new.parents[1]), key=lambda entry: entry.used_s, reverse=True)
    of_tree = [entry for entry in entries if entry.place.parent == new.parent]
    oldest_s = time.time() - KEPT_DAYS * 86400
    for entry in entries:
        if entry.place != new and (entry.used_s < oldest_s or entry in of_tree[KEPT_ENTRIES:]):
            entry.remove()
