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
from pathlib import Path
from typing import Annotated

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep

KEPT_ENTRIES = 16  # of a tree: a few commits, and for builds an original, a build and its tests a side
KEPT_DAYS = 30  # since the last use of an entry
_FORMAT = "4"  # of the content of entries; a new number leaves the entries of older versions unused
_LOCK, _COMPLETE = "lock", "complete"
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
    tree = top.resolve()
    root = _root(tree)
    directory = root / f"{_slug(tree.name, 40)}-{hashlib.sha256(os.fsencode(tree)).hexdigest()[:12]}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(root):
            raise _open_to_others(root)
        _make(directory)
    except OSError as error:
        raise SideError(f"cannot keep sides in {root}: {error}. Set XDG_CACHE_HOME to another directory") from None
    return Cache(directory)


# ------------------------------------------------------------------ where it is, and whose


def _root(top: Path) -> Path:
    """Return the directory of all caches; SideError where there can be none."""
    # The specification of the variable demands to ignore a relative path.
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        root = ((named if named.is_absolute() else Path.home() / ".cache") / "pytest-rlperf").resolve()
    except RuntimeError:  # no home directory
        raise SideError("there is no home directory to keep sides in: set XDG_CACHE_HOME to a directory") from None
    if root.is_relative_to(top) or os.pathsep in str(root):
        raise SideError(
            f"cannot keep sides in {root}, which lies within the tree {top} or has {os.pathsep!r} in its name, where "
            "no virtual environment works: set XDG_CACHE_HOME to another directory"
        )
    return root


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
        raise _open_to_others(directory)


def _open_to_others(directory: Path) -> SideError:
    return SideError(
        f"other users can write to {directory}, so its files cannot be trusted: remove it, or set XDG_CACHE_HOME to a "
        "directory of your own"
    )


def _make(directory: Path) -> None:
    """Make a directory for this user alone; SideError where there is one that others can write to, or a link."""
    directory.mkdir(mode=0o700, exist_ok=True)
    _check_own(directory)


# ------------------------------------------------------------------ entries


def _entry_name(key: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\0{key}".encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return f"{_slug(key, 24)}-{digest}"


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


def _prune(new: Path) -> None:
    """Remove entries unused for long, and older ones of the tree that the ``new`` one is of; those in use stay."""
    used_s = {lock.parent: _used_s(lock) for lock in new.parents[1].glob(f"*/*/{_LOCK}")}
    ordered = sorted(used_s, key=used_s.__getitem__, reverse=True)
    too_many = [place for place in ordered if place.parent == new.parent][KEPT_ENTRIES:]
    oldest_s = time.time() - KEPT_DAYS * 86400
    for place in ordered:
        if place != new and (used_s[place] < oldest_s or place in too_many):
            _remove_unused(place)


def _used_s(lock: Path) -> float:
    """Return when a run last used an entry, in epoch seconds, by the time of its lock."""
    try:
        return lock.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _remove_unused(place: Path) -> None:
    """Remove an entry unless a run uses it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                # First makes the entry incomplete, in case the removal fails.
                (place / _COMPLETE).unlink(missing_ok=True)
                _remove(place)
        finally:
            os.close(descriptor)
