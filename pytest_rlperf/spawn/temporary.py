"""The names of a run's temporary files: they identify the run, which removes what is left."""

from __future__ import annotations

import os
import sys
import tempfile

from pytest_rlperf.spawn.guardian import VARIABLE, files_mark


class _MarkedNames(tempfile._RandomNameSequence):  # type: ignore[name-defined,misc]  # which has no public name
    """Random names, each after a run's mark and the session of the process that makes it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.were_given = False

    def __next__(self) -> str:
        self.were_given = True
        name: str = super().__next__()
        directory = sys._getframe(1).f_locals.get("dir")  # the argument of tempfile's functions
        # What lies in a marked directory goes with it, and the path of a socket has to be short.
        return name if self._mark in str(directory) else f"{self._mark}{os.getsid(0)}_{name}"


def mark_temporary_files() -> None:
    """Mark the names of temporary files made by this process and its copies, if it belongs to a run."""
    scratch = os.environ.get(VARIABLE)
    if scratch is not None:
        tempfile._name_sequence = _MarkedNames(files_mark(scratch))  # type: ignore[attr-defined]


def has_named_files() -> bool:
    """Whether this process has named a temporary file, or may have: one that belongs to no run counts no names."""
    names = tempfile._name_sequence  # type: ignore[attr-defined]
    return not isinstance(names, _MarkedNames) or names.were_given
