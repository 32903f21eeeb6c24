"""The cache of sides: outside the user's tree, with only whole entries, safe for simultaneous runs.

An entry is a directory with a file to lock, the attempts to build it, and ``complete``, which has the name of the
attempt that succeeded, a digest of its files, and their bytes. ``complete`` is written last, so a killed build is never
used. Every attempt has its own directory, so a dead build's children cannot write into a later attempt. Attempts stay
where they were built: virtual environments cannot be moved. A run locks the tree's directory while it looks for an
entry, or builds one.

Code is loaded from here, so every directory down to an attempt must belong to this user and be closed to others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep
from pytest_rlperf.sides.private import check_own, make, own_directory, root, unusable
from pytest_rlperf.sides.trees import files_in

KEPT_ENTRIES = 16  # of a tree: a few commits, and for builds an original, a build and its tests per side
KEPT_DAYS = 30  # since the last use of an entry
KEPT_BYTES = 2 << 30  # of all trees
_LOOKED_AT = 1 << 20  # bytes of a file: a dependency such as PyTorch has gigabytes
_FORMAT = "8"  # of entries' content; a new number leaves the entries of older versions unused
_LOCK, _COMPLETE = "lock", "complete"


class Cache:
    """The cached entries of one user tree.

    Every entry handed out stays locked against removal until :meth:`close`, or until the process ends.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: list[int] = []

    def entry(self, key: str, build: Callable[[Path], None], on_step: OnStep) -> Path:
        """Return the directory cached under ``key``; if there is none, let ``build`` fill an empty one."""
        place = self.directory / _entry_name(key)
        try:
            tree = _lock(self.directory, fcntl.LOCK_EX, on_step)
            try:
                self._held.append(_lock(place, fcntl.LOCK_SH, on_step))
                os.utime(place / _LOCK)  # the time of its last use
                attempt = _complete_attempt(place) or _built(place, build)
                _prune(self.directory)
            finally:
                os.close(tree)
        except OSError as error:
            raise SideError(
                f"cannot keep a side in {place}: {error}. Set XDG_CACHE_HOME to another directory"
            ) from error
        return attempt

    def close(self) -> None:
        """Unlock every entry, so that it may be removed."""
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()


def open_cache(top: Path) -> Cache:
    """Return the cache of the tree at ``top``, which never lies within that tree."""
    tree, place = top.resolve(), root()
    if place.is_relative_to(tree) or os.pathsep in str(place):
        raise SideError(
            f"cannot keep sides in {place}, which lies within the tree {tree} or has {os.pathsep!r} in its name, so "
            "virtual environments do not work there: set XDG_CACHE_HOME to another directory"
        )
    directory = own_directory() / f"{_slug(tree.name, 40)}-{hashlib.sha256(os.fsencode(tree)).hexdigest()[:12]}"
    try:
        make(directory)
    except OSError as error:
        raise unusable(directory, error) from None
    return Cache(directory)


# ------------------------------------------------------------------ entries


def _entry_name(key: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\0{key}".encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return f"{_slug(key, 24)}-{digest}"


def _slug(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:length].strip("-.") or "tree"


def _lock(place: Path, kind: int, on_step: OnStep) -> int:
    """Make a directory if it is missing, wait until no other run's lock forbids it, and return a locked descriptor."""
    make(place)
    descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            on_step("waiting for another run, which prepares a side")
            fcntl.flock(descriptor, kind)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _built(place: Path, build: Callable[[Path], None]) -> Path:
    """Fill an entry and return its attempt."""
    for found in place.iterdir():
        if found.name != _LOCK:
            _remove(found)
    attempt = Path(tempfile.mkdtemp(prefix="", dir=place))
    try:
        build(attempt)
        written = place / f"{_COMPLETE}.new"
        written.write_text(" ".join((attempt.name, *map(str, content_of(attempt, _LOOKED_AT)))), encoding="utf-8")
        written.replace(place / _COMPLETE)
    except BaseException:
        _remove(attempt)
        raise
    return attempt


class _Mark(NamedTuple):
    """What an entry records about its successful attempt."""

    attempt: str
    digest: str
    size: int


def _mark(place: Path) -> _Mark | None:
    """Return the mark of an entry, None if the entry is not complete."""
    try:
        written = (place / _COMPLETE).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.fullmatch(r"(\w+) ([0-9a-f]{64}) (\d{1,18})", written)
    return found and _Mark(found[1], found[2], int(found[3]))


def _complete_attempt(place: Path) -> Path | None:
    """Return the attempt of an entry, None if the entry is not complete."""
    mark = _mark(place)
    if mark is None:
        return None
    attempt = place / mark.attempt
    try:
        check_own(attempt)
    except FileNotFoundError:
        return None
    return attempt if content_of(attempt, _LOOKED_AT) == (mark.digest, mark.size) else None


def content_of(directory: Path, most: float = math.inf) -> tuple[str, int]:
    """Return a digest of the files and links below a directory, and the bytes of all of them.

    The digest covers names, modes and contents; for files over ``most`` bytes, the size instead of the content.
    """
    total, all_bytes = hashlib.sha256(), 0
    for name in sorted(files_in(directory)):
        path = directory / name
        content = os.fsencode(path.readlink()) if path.is_symlink() else b""
        mode = size = 0
        if path.is_file():
            mode, size = path.stat().st_mode & 0o111, path.stat().st_size
            content += hashlib.sha256(path.read_bytes()).digest() if size <= most else b""
        all_bytes += size
        total.update(os.fsencode(name) + b"\0%o %d\0%s\0" % (mode, size, content))
    return total.hexdigest(), all_bytes


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _prune(tree: Path) -> None:
    """Remove entries that are incomplete, long unused, or the least recently used beyond the limits; any in use stay.

    The caller holds the lock of the directory ``tree``.
    """
    used_s = {lock.parent: _used_s(lock) for lock in tree.parent.glob(f"*/*/{_LOCK}")}
    oldest_s = time.time() - KEPT_DAYS * 86400
    kept, kept_bytes = 0, 0
    for place in sorted(used_s, key=used_s.__getitem__, reverse=True):
        mark = _mark(place)
        kept += place.parent == tree
        kept_bytes += 0 if mark is None else mark.size
        is_one_too_many = kept > KEPT_ENTRIES and place.parent == tree
        if mark is None or used_s[place] < oldest_s or is_one_too_many or kept_bytes > KEPT_BYTES:
            _remove_unused(place, [] if place.parent == tree else [place.parent])


def _used_s(lock: Path) -> float:
    """Return when a run last used an entry, in epoch seconds, by the time of the lock."""
    try:
        return lock.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _remove_unused(place: Path, above: Iterable[Path]) -> None:
    """Remove an entry unless a run uses it, or locks a directory in ``above`` to look for an entry."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        for directory in (*above, place):
            descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Make the entry incomplete first, in case the removal fails.
        (place / _COMPLETE).unlink(missing_ok=True)
        _remove(place)
