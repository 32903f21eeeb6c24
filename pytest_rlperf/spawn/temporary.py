"""The names of temporary files that a run's processes make: they tell of the run, which removes what is left."""

from __future__ import annotations

import os
import tempfile

from pytest_rlperf.spawn.guardian import VARIABLE, files_mark


class _MarkedNames(tempfile._RandomNameSequence):  # type: ignore[name-defined,misc]  # of which there is no public one
    """Random names, each after the mark of a run and the session of the process that makes it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __next__(self) -> str:
        return f"{self._mark}{os.getsid(0)}_{super().__next__()}"


def mark_temporary_files() -> None:
    """Have this process and its copies make temporary files by names that tell of the run, where it is of one."""
    scratch = os.environ.get(VARIABLE)
    if scratch is not None:
        tempfile._name_sequence = _MarkedNames(files_mark(scratch))  # type: ignore[attr-defined]
