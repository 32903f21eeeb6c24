"""One iteration as files for trace viewers: Chrome's trace events for Perfetto, and speedscope's profiles.

Here bars are what happened and when, in contrast to a tree of timers, whose bars are sums
(:mod:`pytest_rlperf.traces`). Each track is a thread to Perfetto and a profile to speedscope.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_rlperf.model.spans import Span, Trace
from pytest_rlperf.report.files import file_stem, write_file
from pytest_rlperf.report.printable import shown

OPTION = "--rlperf-trace"
PERFETTO = ".perfetto.json"
SPEEDSCOPE = ".speedscope.json"
_SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Bar(NamedTuple):
    """A span in whole nanoseconds, by which bars of one track nest exactly."""

    name: str
    path: str
    start_ns: int
    end_ns: int


def write_traces(directory: Path, traces: Iterable[Trace]) -> list[Path]:
    """Write two files for each trace, ``TEST.SIDE.perfetto.json`` and ``.speedscope.json``; OutputError if it fails."""
    written = []
    for trace in traces:
        stem = f"{file_stem(trace.nodeid)}.{trace.side}"
        for ending, document in ((PERFETTO, perfetto_document(trace)), (SPEEDSCOPE, speedscope_document(trace))):
            path = directory / f"{stem}{ending}"
            write_file(OPTION, path, json.dumps(document, allow_nan=False) + "\n")
            written.append(path)
    return written


def perfetto_document(trace: Trace) -> dict[str, Any]:
    """Return Chrome trace events: one process, a thread for each track, times in microseconds."""
    process = f"{shown(trace.nodeid)} ({shown(trace.side)}: {shown(trace.label)})"
    events: list[dict[str, Any]] = [_named("process_name", 0, process)]
    for number, (track, bars) in enumerate(_tracks(trace.spans).items(), 1):
        events += [_named("thread_name", number, track), _sorted(number)]
        events += [
            {
                "ph": "X",
                "name": bar.name,
                "cat": "phase",
                "pid": 1,
                "tid": number,
                "ts": bar.start_ns / 1000,
                "dur": (bar.end_ns - bar.start_ns) / 1000,
                "args": {"path": bar.path},
            }
            for bar in bars
        ]
    told = {"test": shown(trace.nodeid), "side": shown(trace.side), "label": shown(trace.label)}
    notes = [shown(note) for note in trace.notes]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {**told, "notes": notes}}


def _named(kind: str, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": number, "args": {"name": name}}


def _sorted(number: int) -> dict[str, Any]:
    """Return what keeps tracks in their order: the host first, devices below it."""
    return {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}}


def speedscope_document(trace: Trace) -> dict[str, Any]:
    """Return speedscope's evented profiles, one for each track, in nanoseconds."""
    frames: dict[str, int] = {}
    tracks = _tracks(trace.spans)
    end_ns = max((bar.end_ns for bars in tracks.values() for bar in bars), default=0)
    profiles = [
        {
            "type": "evented",
            "name": track,
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": end_ns,
            "events": _events(bars, frames),
        }
        for track, bars in tracks.items()
    ]
    return {
        "$schema": _SPEEDSCOPE_SCHEMA,
        "exporter": "pytest-rlperf",
        "name": f"{shown(trace.nodeid)} ({shown(trace.side)}: {shown(trace.label)})",
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }


def _events(bars: Sequence[_Bar], frames: dict[str, int]) -> list[dict[str, Any]]:
    """Return the openings and closings of bars that nest."""
    events: list[dict[str, Any]] = []
    open_: list[_Bar] = []

    def close_until(start_ns: int) -> None:
        while open_ and open_[-1].end_ns <= start_ns:
            bar = open_.pop()
            events.append({"type": "C", "at": bar.end_ns, "frame": frames[bar.name]})

    for bar in bars:
        close_until(bar.start_ns)
        events.append({"type": "O", "at": bar.start_ns, "frame": frames.setdefault(bar.name, len(frames))})
        open_.append(bar)
    close_until(max((bar.end_ns for bar in open_), default=0))
    return events


def _tracks(spans: Sequence[Span]) -> dict[str, list[_Bar]]:
    """Return each track's bars by their start, outer ones first; tracks are in the order of their first spans.

    Viewers draw bars of one track only where they nest. What overlaps, as a device's spans may whose edges lie on
    several streams, is on further tracks of the same name with a number.
    """
    found: dict[str, list[_Bar]] = {shown(span.track): [] for span in spans}
    open_: dict[str, list[_Bar]] = {}
    for span in sorted(spans, key=_by_start):
        start_ns, end_ns = round(1e9 * span.start_s), round(1e9 * span.end_s)
        bar = _Bar(shown(span.name), shown(span.path), start_ns, max(start_ns, end_ns))
        found.setdefault(_track_with_room(shown(span.track), bar, open_), []).append(bar)
    return found


def _by_start(span: Span) -> tuple[int, int, int]:
    return round(1e9 * span.start_s), -round(1e9 * span.end_s), span.path.count("/")


def _track_with_room(track: str, bar: _Bar, open_: dict[str, list[_Bar]]) -> str:
    """Return the first track of that name on which a bar lies within what is open, and open it there."""
    name, number = track, 1
    while True:
        stack = open_.setdefault(name, [])
        while stack and stack[-1].end_ns <= bar.start_ns:
            stack.pop()
        if not stack or bar.end_ns <= stack[-1].end_ns:
            stack.append(bar)
            return name
        number += 1
        name = f"{track} ({number})"
