"""The files of ``--rlperf-trace``: one call of each test and side as a Chrome trace, for Perfetto and speedscope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_rlperf.model.spans import Trace
from pytest_rlperf.report.files import file_stem, write_file
from pytest_rlperf.report.printable import shown
from pytest_rlperf.traces.chrome import write_spans

OPTION = "--rlperf-trace"


def write_traces(directory: Path, traces: Iterable[Trace]) -> list[Path]:
    """Write a file ``TEST.SIDE.perfetto.json`` for each trace; OutputError if that fails."""
    written = []
    for trace in traces:
        path = directory / f"{file_stem(trace.nodeid)}.{trace.side}.perfetto.json"
        write_file(OPTION, path, write_spans(_printable(trace)))
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
