"""Writes files whole or not at all: the only way in which this package writes a file that a user keeps."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

# ruff: noqa: PTH101, PTH103, PTH105, PTH108, PTH113, PTH116

LATEST_RUN = "latest.json"
CACHE = "rlperf"  # the directory for files of runs in pytest's cache


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and move it there: a reader, or a crash, finds the old file or the new one.

    Missing directories are made. A symbolic link stays, and the file that it leads to is replaced; an old file's mode
    stays. A device or a pipe is written to directly. OSError if writing fails; then the old file is unchanged.
    """
    target, old = _target(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        target.write_bytes(data)
        return
    temporary, descriptor = _new_beside(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if old is not None:
                os.chmod(temporary, stat.S_IMODE(old.st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        _remove(temporary)
        raise


def check_whole(path: Path) -> None:
    """Raise OSError if :func:`write_whole` would fail, before any time is spent; ``path`` itself is not touched."""
    target, old = _target(path)
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if old is None or stat.S_ISREG(old.st_mode):
        check_directory(target.parent)


def check_directory(directory: Path) -> None:
    """Make a directory if there is none, and raise OSError if no file can be made in it."""
    temporary, descriptor = _new_beside(directory / "any")
    os.close(descriptor)
    _remove(temporary)


def _target(path: Path) -> tuple[Path, os.stat_result | None]:
    """Return the file that a path leads to through all links, and its state, None if there is none."""
    target = Path(os.path.realpath(path))
    try:
        return target, os.stat(target)
    except FileNotFoundError:
        return target, None


def _new_beside(target: Path) -> tuple[Path, int]:
    """Return a new, open file in the directory of ``target``, with the usual mode of a new file there."""
    os.makedirs(target.parent, exist_ok=True)
    temporary = target.parent / f".rlperf-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return temporary, os.open(temporary, flags, 0o666)


def _remove(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)


# --------------------------------------------------------------------------- files that options name


class OutputError(Exception):
    """A file cannot be written; the text names the option, the file and the way out."""


def check_file(option: str, path: Path) -> None:
    """Raise OutputError if :func:`write_file` would fail, before any time is spent on measuring."""
    try:
        check_whole(path)
    except IsADirectoryError:
        raise OutputError(f"{option}={path} is a directory: name a file to write") from None
    except (OSError, ValueError) as error:
        raise _unwritable(option, path, error) from None


TRACE_OPTION = "--rlperf-trace"


def check_files_in(option: str, directory: Path) -> None:
    """Raise OutputError if files cannot be written into a directory, which is made if there is none."""
    try:
        check_directory(directory)
    except (OSError, ValueError) as error:
        raise _unwritable(option, directory, error) from None


def file_stem(nodeid: str) -> str:
    """Return the name of a test's files: ASCII, readable, short, and different for different tests."""
    digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9_]+", "-", nodeid.rpartition("/")[2]).strip("-")
    return f"{words[:80]}-{digest}".lstrip("-")


def write_file(option: str, path: Path, text: str) -> None:
    """Write a file, and make its directories; OutputError if that fails, and the old file stays."""
    try:
        write_whole(path, text.encode("utf-8", "backslashreplace"))
    except (OSError, ValueError) as error:
        raise _unwritable(option, path, error) from None


def latest_run(directory: Path) -> Path | None:
    """Return the file that the latest run of a project left in pytest's cache; None if there is none.

    The file is searched for in ``directory`` and its parents, at pytest's usual place.
    """
    places = (place / ".pytest_cache" / "d" / CACHE / LATEST_RUN for place in (directory, *directory.parents))
    return next((place for place in places if os.path.isfile(place)), None)  # a closed directory is not an error


def _unwritable(option: str, path: Path, error: OSError | ValueError) -> OutputError:
    # If a file is in the way, making a directory fails with "File exists", which would mislead.
    in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
    reason = "there is a file in the place of a directory" if in_the_way else getattr(error, "strerror", None) or error
    return OutputError(f"cannot write {option}={path}: {reason}; choose another place")
