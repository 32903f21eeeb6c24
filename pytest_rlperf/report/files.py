"""The files that a run writes at its end: checked before anything is measured, so that no time is lost."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_rlperf import writing
from pytest_rlperf.model.spans import Trace
from pytest_rlperf.report.printable import shown
from pytest_rlperf.traces.chrome import write_spans

LATEST_RUN = "latest.json"
CACHE = "rlperf"  # the directory of these files in pytest's cache
_LONGEST_STEM = 80


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


def check_directory(option: str, path: Path) -> None:
    """Raise OutputError where files cannot be written into a directory, which is made where there is none."""
    try:
        if path.is_file():
            raise OutputError(f"{option}={path} is a file: name a directory to write into")
        writing.check_directory(path)
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


def file_stem(nodeid: str) -> str:
    """Return the name of a test's files: readable, short, and different for different tests.

    It holds ASCII letters, digits, ``_`` and ``-`` alone, whatever the id holds. The digest at its end differs for ids
    that read the same.
    """
    digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = re.sub(r"[^A-Za-z0-9_]+", "-", nodeid.rpartition("/")[2]).strip("-")
    return f"{words[:_LONGEST_STEM]}-{digest}".lstrip("-")


def _unwritable(option: str, path: Path, error: OSError | ValueError) -> OutputError:
    # Making a directory where a file is in the way fails with "File exists", which would mislead.
    in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
    reason = "a file lies where a directory should" if in_the_way else getattr(error, "strerror", None) or error
    return OutputError(f"cannot write {option}={path}: {reason}; choose another place")


TRACE_OPTION = "--rlperf-trace"


def write_traces(directory: Path, traces: Iterable[Trace]) -> list[Path]:
    """Write a file ``TEST.SIDE.perfetto.json`` for each trace; OutputError if that fails."""
    written = []
    for trace in traces:
        path = directory / f"{file_stem(trace.nodeid)}.{trace.side}.perfetto.json"
        write_file(TRACE_OPTION, path, write_spans(_printable(trace)))
        written.append(path)
    return written


def _printable(trace: Trace) -> Trace:
    """Return a trace whose texts a viewer or a terminal can show."""
    return replace(
        trace,
        nodeid=shown(trace.nodeid),
        side=shown(trace.side),
        label=shown(trace.label),
        spans=tuple(replace(span, path=shown(span.path), track=shown(span.track)) for span in trace.spans),
        notes=tuple(map(shown, trace.notes)),
    )
