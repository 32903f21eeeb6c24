"""Chrome's trace events, which Perfetto and speedscope show.

:func:`write` makes each tree a process, with its children one after the other within their parent and parallel ones on
threads of their own. Such bars show sums, not when something happened; a bar is as long as its children where they took
longer together, and its ``args`` hold the exact figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {}}
    return json.dumps(document, allow_nan=False) + "\n"


def _meta(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    """Return an event that describes a process or a thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _event(name: str, pid: int, tid: int, extent_ns: tuple[int, int], args: dict[str, Any]) -> dict[str, Any]:
    """Return a complete event of that start and length."""
    start_ns, length_ns = extent_ns
    times = {"ts": start_ns / _US, "dur": length_ns / _US}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}
