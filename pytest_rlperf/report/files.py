"""The files that a run writes at its end: checked before anything is measured, so that no time is lost."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_rlperf import writing

LATEST_RUN = "latest.json"
CACHE = "rlperf"  # the directory of these files in pytest's cache


class OutputError(Exception):
    """A file cannot be written; the text names the option, the file and the way out."""


def check_file(option: str, path: Path) -> None:
    """Raise OutputError where :func:`write_file` would fail, before any time is spent on measuring."""
    try:
        writing.check_whole(path)
    except IsADirectoryError:
        raise OutputError(f"{option}={path} is a directory: name a file to write") from None
    except (OSError, ValueError) as error:
        raise _unwritable(option, path, error) from None


def write_file(option: str, path: Path, text: str) -> None:
    """Write a file, and the directories it lies in; OutputError where that fails, and the old file stays."""
    try:
        writing.write_whole(path, text.encode("utf-8", "backslashreplace"))
    except (OSError, ValueError) as error:
        raise _unwritable(option, path, error) from None


def latest_run(directory: Path) -> Path | None:
    """Return the file that the latest run of a project left in pytest's cache, None where there is none.

    It is looked for in ``directory`` and in those that it lies in, at pytest's usual place.
    """
    places = (place / ".pytest_cache" / "d" / CACHE / LATEST_RUN for place in (directory, *directory.parents))
    return next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113 - a closed directory is no error


def _unwritable(option: str, path: Path, error: OSError | ValueError) -> OutputError:
    # Making a directory where a file is in the way fails with "File exists", which would mislead.
    in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
    reason = "a file lies where a directory should" if in_the_way else getattr(error, "strerror", None) or error
    return OutputError(f"cannot write {option}={path}: {reason}; choose another place")
