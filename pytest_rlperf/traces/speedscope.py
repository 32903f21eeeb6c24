"""speedscope's JSON: profiles of openings and closings, as in speedscope's ``file-format-spec.ts``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.traces.trees import Bar, laid_out

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(trees: Sequence[TimerTree]) -> str:
    """Return trees as evented profiles, in nanoseconds.

    Each path opens once, for its total or its children's, whichever is longer. So counts, extremes, modes and totals
    below those of the children are lost; gauges, metadata and workers are not written. Parallel paths have profiles of
    their own.
    """
    frames: dict[str, int] = {}
    profiles = []
    for tree in trees:
        tracks: dict[int, list[Bar]] = {}
        for bar in laid_out(tree.root):
            tracks.setdefault(bar.track, []).append(bar)
        for track, bars in tracks.items():
            inner = bars if track else bars[1:]  # the root is the profile itself
            name = tree.name if not track else f"{tree.name}: {bars[0].timing.name}"
            start_ns = bars[0].start_ns
            profiles.append(
                {
                    "type": "evented",
                    "name": name,
                    "unit": "nanoseconds",
                    "startValue": start_ns,
                    "endValue": start_ns + bars[0].length_ns,
                    "events": _events(inner, frames),
                }
            )
    document = {
        "$schema": _SCHEMA,
        "exporter": "pytest-rlperf",
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    return json.dumps(document, allow_nan=False) + "\n"


def _events(bars: Iterable[Bar], frames: dict[str, int]) -> list[dict[str, Any]]:
    """Return the openings and closings of one track's bars."""
    events: list[dict[str, Any]] = []
    open_: list[Bar] = []

    def close_down_to(depth: int) -> None:
        while open_ and open_[-1].depth >= depth:
            bar = open_.pop()
            events.append({"type": "C", "at": bar.start_ns + bar.length_ns, "frame": frames[bar.timing.name]})

    for bar in bars:
        close_down_to(bar.depth)
        frame = frames.setdefault(bar.timing.name, len(frames))
        events.append({"type": "O", "at": bar.start_ns, "frame": frame})
        open_.append(bar)
    close_down_to(0)
    return events
