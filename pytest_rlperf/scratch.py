"""Scratch of runs: directories in one place of this user's alone, each with the mark of the run that made it.

A run removes scratch that a dead run left there, known by its mark and by its lock, which nobody holds. Whatever lies
elsewhere, or has no mark or another directory's, is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_rlperf.errors import SideError

_LOCK = "lock"
_MARK_MOST = 10_000  # bytes, more than any path has


def place_of_user() -> Path:
    """Return where this user's runs keep temporary files; there may be none, or something that is not this user's."""
    return Path(tempfile.gettempdir()).resolve() / f"pytest-rlperf-{os.getuid()}"


def make_scratch() -> tuple[Path, int]:
    """Return a new directory, and a descriptor that holds its lock; remove what dead runs have left.

    Where the user's place is not private, the directory is made beside it, and only the run itself removes it.
    """
    try:
        scratch = _new_directory(place_of_user())
        try:
            return scratch, _locked(scratch)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        raise SideError(
            f"cannot make temporary files: {error}; set TMPDIR to a directory with space that you can write to"
        ) from None


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a new, empty directory, which is removed after the body, or by a later run where this process is killed."""
    scratch, lock = make_scratch()
    try:
        directory = scratch / "files"
        directory.mkdir()
        yield directory
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _is_private(directory: Path) -> bool:
    """Whether a directory, which is no link, belongs to this user, and is closed to all others; OSError without one."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o777 == stat.S_IRWXU


def _new_directory(place: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=stat.S_IRWXU)
    if not _is_private(place):
        return Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
    _remove_left(place)
    return Path(tempfile.mkdtemp(prefix="", dir=place))


def _locked(scratch: Path) -> int:
    new = scratch / "new-lock"  # which other runs do not look for until it is held
    lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, _mark(scratch))
        new.rename(scratch / _LOCK)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _mark(scratch: Path) -> bytes:
    """Return the content of a lock: a copy of a directory, or a directory moved away, is no run's any more."""
    return f"scratch of a run of pytest-rlperf on {os.uname().nodename}: ".encode() + os.fsencode(scratch)


def _remove_left(place: Path) -> None:
    """Remove the scratch of runs that are gone, with their guardians."""
    for directory in place.iterdir():
        with contextlib.suppress(OSError):  # no scratch, or held, or gone meanwhile
            if not _is_private(directory):
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.pread(lock, _MARK_MOST, 0) == _mark(directory):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)
