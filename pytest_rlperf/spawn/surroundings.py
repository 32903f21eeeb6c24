"""What a run's processes need from their surroundings: a place for temporary files, open files, and ``/proc``."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
from pathlib import Path

from pytest_rlperf.errors import SideError, shown

_PROC = Path("/proc/self/stat")
_FILES = 32  # open at once in a run with several lanes
_SIGNS = (os.pathsep, "$", "[")  # the first ends a path's entry; pytest gives the others a meaning


def check_surroundings() -> None:
    """Raise SideError if no run can work here, before any time is spent; it names what is missing and the remedy."""
    try:
        place = os.path.realpath(tempfile.gettempdir())
    except OSError as error:
        raise no_temporary_files(error) from None
    sign = next((repr(sign) for sign in _SIGNS if sign in place), "a byte that is no text" * _is_no_text(place))
    if sign:
        raise SideError(
            f"cannot make temporary files in {shown(place)}: its name has {sign}, with which a virtual environment or "
            "pytest does not work; set TMPDIR to another directory"
        )
    if sys.platform == "linux" and not _PROC.exists():
        raise SideError(
            f"there is no {_PROC}, by which a run finds its own processes: mount /proc (mount -t proc proc /proc)"
        )
    if not _may_open(_FILES):
        raise SideError(
            f"this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open, which is too few for a "
            "run: raise the limit, such as with ulimit -n 1024"
        )


def no_temporary_files(error: OSError) -> SideError:
    """Return the error of a run that has no place for temporary files."""
    return SideError(
        f"cannot make temporary files: {error}; set TMPDIR to a directory with space that you can write to"
    )


def _is_no_text(place: str) -> bool:
    try:
        place.encode()
    except UnicodeEncodeError:
        return True
    return False


def _may_open(count: int) -> bool:
    """Whether this process can open ``count`` more files."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(count):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return False
    return True
