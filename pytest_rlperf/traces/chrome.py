"""Chrome's trace events, which Perfetto and speedscope show.

:func:`write` makes each tree a process, with its children one after the other within their parent and parallel ones on
threads of their own. Such bars show sums, not when something happened; a bar is as long as its children where they took
longer together, and its ``args`` hold the exact figures. :func:`write_spans` writes one call's spans, whose bars show
when each one ran.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_rlperf.model.spans import Span, Trace
from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.traces.own import figures
from pytest_rlperf.traces.reading import laid_out

_US = 1000


def write(trees: Sequence[TimerTree]) -> str:
    """Return trees as a Chrome trace; gauges, metadata and workers are not written."""
    events: list[dict[str, Any]] = []
    for pid, tree in enumerate(trees, 1):
        events.append(_meta("process_name", pid, 0, name=tree.name))
        tracks: set[int] = set()
        for bar in laid_out(tree.root):
            if bar.track not in tracks:
                tracks.add(bar.track)
                events.append(_meta("thread_name", pid, bar.track, name=bar.timing.name))
            extent_ns = bar.start_ns, bar.length_ns
            events.append(_event(bar.timing.name, pid, bar.track, extent_ns, figures(bar.timing)))
    return _document(events, "ms", {})


def write_spans(trace: Trace) -> str:
    """Return one call's spans as a Chrome trace: one process, and a thread for each track in the order of the spans."""
    process = f"{trace.nodeid} ({trace.side}: {trace.label})"
    events = [_meta("process_name", 1, 0, name=process)]
    for tid, (track, spans) in enumerate(_by_track(trace.spans).items(), 1):
        # Viewers sort threads by name by default; here the host comes first and its devices below it.
        events += [_meta("thread_name", 1, tid, name=track), _meta("thread_sort_index", 1, tid, sort_index=tid)]
        events += [
            {**_event(one.name, 1, tid, (one.start_ns, one.end_ns - one.start_ns), {"path": one.path}), "cat": "phase"}
            for one in spans
        ]
    facts = {"test": trace.nodeid, "side": trace.side, "label": trace.label, "notes": list(trace.notes)}
    return _document(events, "ns", facts)


def _meta(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    """Return an event that describes a process or a thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _event(name: str, pid: int, tid: int, extent_ns: tuple[int, int], args: dict[str, Any]) -> dict[str, Any]:
    """Return a complete event of that start and length."""
    start_ns, length_ns = extent_ns
    times = {"ts": start_ns / _US, "dur": length_ns / _US}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}


def _document(events: list[dict[str, Any]], unit: str, other: dict[str, Any]) -> str:
    document = {"traceEvents": events, "displayTimeUnit": unit, "otherData": other}
    return json.dumps(document, allow_nan=False) + "\n"


# --------------------------------------------------------------------------- spans on tracks


class _Placed(NamedTuple):
    """A span in whole nanoseconds, so that the spans of one track nest exactly."""

    name: str
    path: str
    start_ns: int
    end_ns: int


def _by_track(spans: Sequence[Span]) -> dict[str, list[_Placed]]:
    """Return each track's spans by their start, outer ones first; tracks are in the order of their first spans.

    Viewers draw the spans of one track only where they nest. Spans that overlap, as a device's do whose edges lie on
    several streams, go on further tracks of the same name with a number.
    """
    found: dict[str, list[_Placed]] = {span.track: [] for span in spans}
    open_: dict[str, list[_Placed]] = {}
    for span in sorted(spans, key=_by_start):
        start_ns, end_ns = round(1e9 * span.start_s), round(1e9 * span.end_s)
        placed = _Placed(span.name, span.path, start_ns, max(start_ns, end_ns))
        found.setdefault(_track_with_room(span.track, placed, open_), []).append(placed)
    return found


def _by_start(span: Span) -> tuple[int, int, int]:
    return round(1e9 * span.start_s), -round(1e9 * span.end_s), span.path.count("/")


def _track_with_room(track: str, placed: _Placed, open_: dict[str, list[_Placed]]) -> str:
    """Return the first track of that name on which a span lies within the open ones, and open it there."""
    name, number = track, 1
    while True:
        stack = open_.setdefault(name, [])
        while stack and stack[-1].end_ns <= placed.start_ns:
            stack.pop()
        if not stack or placed.end_ns <= stack[-1].end_ns:
            stack.append(placed)
            return name
        number += 1
        name = f"{track} ({number})"
