"""Directories for files that only this user may write: their places and owners."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pytest_rlperf.errors import SideError


def own_directory() -> Path:
    """Return this package's directory for files that only this user may write; SideError if there can be none."""
    place = root()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(place)
        _check_above(place)
    except OSError as error:
        raise unusable(place, error) from None
    return place


def unusable(directory: Path, error: OSError) -> SideError:
    """Return the error for a directory in which nothing can be kept."""
    return SideError(f"cannot keep files in {directory}: {error}. Set XDG_CACHE_HOME to another directory")


def root() -> Path:
    """Return the directory of all caches; SideError if there can be none."""
    # The variable's specification says to ignore a relative path.
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return ((named if named.is_absolute() else Path.home() / ".cache") / "pytest-rlperf").resolve()
    except RuntimeError:  # no home directory
        raise SideError("there is no home directory to keep files in: set XDG_CACHE_HOME to a directory") from None


def check_private(directory: Path) -> None:
    """Raise SideError if other users can write to a directory for temporary files, or replace it."""
    real = directory.resolve()
    check_own(real)
    _check_above(real)


def _check_above(root: Path) -> None:
    """Raise SideError if other users can replace the directory ``root``, whose path has no links.

    Groups are not checked: many systems give every user a group of their own.
    """
    for found in (parent.stat() for parent in root.parents):
        open_to_others = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if open_to_others or found.st_uid not in {0, os.getuid()}:
            raise _open_to_others(root)


def check_own(directory: Path) -> None:
    """Raise SideError unless a directory is not a link, belongs to this user, and only this user can write to it."""
    found = directory.lstat()
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_open or found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise _open_to_others(directory)


def _open_to_others(directory: Path) -> SideError:
    return SideError(
        f"other users can write to {directory}, so its files cannot be trusted: remove it, or set XDG_CACHE_HOME or "
        "TMPDIR, whichever it lies in, to a directory of your own"
    )


def make(directory: Path) -> None:
    """Make a directory only for this user; SideError if it exists as a link, or if others can write to it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    check_own(directory)
