"""The cache of sides: outside the user's tree, with complete entries only, safe for simultaneous runs.

An entry is a directory with a file to lock, the attempts to build it, and ``complete``, which names the attempt that
succeeded. That file is written last, so a killed build is never used. Every attempt has a directory of its own, so a
dead build's children cannot write into a later attempt. Attempts stay where they were built: virtual environments
cannot be moved.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep
from pytest_rlperf.writing import write_whole

KEPT_ENTRIES = 16  # of a tree: a few commits, and for builds an original, a build and its tests a side
_FORMAT = "2"  # of the content of entries; a new number leaves the entries of older versions unused
_LOCK, _COMPLETE = "lock", "complete"


class Cache:
    """The cached entries of one tree of the user's.

    Every entry handed out stays locked against removal until :meth:`close`, or else until the process ends.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: list[int] = []

    def entry(self, key: str, build: Callable[[Path], None], on_step: OnStep) -> Path:
        """Return the directory cached under ``key``; where there is none, let ``build`` fill an empty one."""
        place = self.directory / _entry_name(key)
        try:
            while True:
                found = self._use(place)
                if found is not None:
                    return found
                if self._build(place, build, on_step):
                    self._prune()
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
        if _complete_attempt(place) is None:
            return None  # unlocked, so that a run about to build it does not wait for readers
        descriptor = _lock(place, fcntl.LOCK_SH)
        found = _complete_attempt(place)
        if found is None:
            os.close(descriptor)
            return None
        os.utime(place / _LOCK)  # the time of its last use
        self._held.append(descriptor)
        return found

    def _build(self, place: Path, build: Callable[[Path], None], on_step: OnStep) -> bool:
        """Fill an entry, or wait for another run that fills it; return whether this run did."""
        descriptor = _try_lock(place)
        if descriptor is None:
            on_step("waiting for another run, which prepares the same")
            # A shared lock, because the other run keeps one on the finished entry until it ends.
            os.close(_lock(place, fcntl.LOCK_SH))
            return False
        try:
            if _complete_attempt(place) is not None:
                return False
            _remove_attempts(place)
            attempt = Path(tempfile.mkdtemp(prefix="", dir=place))
            try:
                build(attempt)
            except BaseException:
                _remove(attempt)
                raise
            write_whole(place / _COMPLETE, attempt.name.encode())
        finally:
            os.close(descriptor)
        return True

    def _prune(self) -> None:
        """Remove the least recently used entries, less those that a run has locked."""
        places = sorted(self.directory.glob(f"*/{_LOCK}"), key=_last_use, reverse=True)
        for lock in places[KEPT_ENTRIES:]:
            with contextlib.suppress(OSError):
                descriptor = _try_lock(lock.parent)
                if descriptor is not None:
                    # First makes the entry incomplete, in case the removal fails.
                    (lock.parent / _COMPLETE).unlink(missing_ok=True)
                    _remove(lock.parent)
                    os.close(descriptor)


def open_cache(top: Path) -> Cache:
    """Return the cache of the tree at ``top``, which never lies within that tree."""
    resolved = top.resolve()
    digest = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:12]
    directory = _root(resolved) / f"{_slug(resolved.name, 40)}-{digest}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SideError(f"cannot keep sides in {directory}: {error}. Set XDG_CACHE_HOME to another directory") from None
    return Cache(directory)


def _root(top: Path) -> Path:
    """Return the directory of all caches: the user's, else one under the directory for temporary files."""
    with contextlib.suppress(RuntimeError, OSError):  # no home directory, or a read-only one
        named = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of the variable demands to ignore a relative path.
        root = (Path(named) if Path(named).is_absolute() else Path.home() / ".cache") / "pytest-rlperf"
        if not root.resolve().is_relative_to(top):
            _check_name(root.resolve())
            root.mkdir(parents=True, exist_ok=True)
            if os.access(root, os.W_OK | os.X_OK):
                return root.resolve()
    return _temporary_root(top)


def _temporary_root(top: Path) -> Path:
    """Return a directory for temporary files that other users cannot write to."""
    root = Path(tempfile.gettempdir()).resolve() / f"pytest-rlperf-{os.getuid()}"
    if root.is_relative_to(top):
        raise SideError(
            f"there is no place to keep a side: {root} lies within the tree {top} itself; set XDG_CACHE_HOME to a "
            "directory outside it"
        )
    _check_name(root)
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise SideError(
            f"cannot keep sides in {root}: {error}. Set XDG_CACHE_HOME to a directory of your own"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SideError(
            f"other users can write to {root}, so its files cannot be trusted: remove it, or set XDG_CACHE_HOME to a "
            "directory of your own"
        )
    return root


def _check_name(root: Path) -> None:
    """Check that a directory can be on the PATH, as virtual environments in it are."""
    if os.pathsep in str(root):
        raise SideError(
            f"cannot keep sides in {root}: no virtual environment works in a directory with {os.pathsep!r} in its "
            "name, which ends an entry of the PATH; set XDG_CACHE_HOME to a directory without it"
        )


def _entry_name(key: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\0{key}".encode("utf-8", "surrogateescape")).hexdigest()[:20]
    return f"{_slug(key, 24)}-{digest}"


def _slug(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:length].strip("-.") or "tree"


def _lock(place: Path, kind: int) -> int:
    """Return a descriptor with the lock of an entry; a missing entry is created."""
    while True:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def _complete_attempt(place: Path) -> Path | None:
    try:
        attempt = place / (place / _COMPLETE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return attempt if attempt.is_dir() else None


def _remove_attempts(place: Path) -> None:
    for found in place.iterdir():
        if found.name != _LOCK:
            _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_use(lock: Path) -> float:
    try:
        return lock.stat().st_mtime
    except FileNotFoundError:
        return 0.0
