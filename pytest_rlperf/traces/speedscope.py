"""speedscope's JSON: profiles of openings and closings (``evented``), or of sampled stacks (``sampled``).

The format is that of speedscope's ``file-format-spec.ts``. An evented profile counts and times each frame. A sampled
profile has times alone, so its counts read as 0, which stands for "not known".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_rlperf.model import TimerTree
from pytest_rlperf.traces.reading import Document, Item, Malformed
from pytest_rlperf.traces.trees import Bar, Draft, check_depth, laid_out

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS_NS = {"nanoseconds": 1, "microseconds": 1000, "milliseconds": 1_000_000, "seconds": 1_000_000_000}


def recognises(document: Document) -> bool:
    """Whether this is a file of speedscope."""
    return document.top.get("$schema") == _SCHEMA or {"profiles", "shared"} <= document.top.keys()


def read(document: Document) -> list[TimerTree]:
    """Return a tree for each profile."""
    assert document.item is not None
    frames = [frame.need("name").text() for frame in document.item.need("shared").need("frames").each()]
    trees = [_profile(profile, frames) for profile in document.item.need("profiles").each()]
    if not trees:
        document.item.need("profiles").wrong("at least one profile")
    return trees


def _profile(profile: Item, frames: Sequence[str]) -> TimerTree:
    kind, unit = profile.need("type"), profile.need("unit")
    if unit.text() not in _UNITS_NS:
        unit.wrong(f"a unit of time: {', '.join(_UNITS_NS)}")
    if kind.text() not in {"evented", "sampled"}:
        kind.wrong("'evented' or 'sampled'")
    root = Draft(profile.need("name").text(), count=1)
    (_evented if kind.value == "evented" else _sampled)(profile, frames, _UNITS_NS[unit.value], root)
    return TimerTree(root.frozen())


def _evented(profile: Item, frames: Sequence[str], unit_ns: int, root: Draft) -> None:
    """Fill ``root`` from openings and closings."""
    start_ns = now_ns = profile.need("startValue").ns(unit_ns, signed=True)
    end = profile.need("endValue")
    open_: list[tuple[Draft, int]] = [(root, start_ns)]
    for event in profile.need("events").each():
        at, kind = event.need("at"), event.need("type").text()
        at_ns = at.ns(unit_ns, signed=True)
        if at_ns < now_ns:
            at.wrong("a time no earlier than the one before")
        now_ns = at_ns
        name = _frame(event.need("frame"), frames)
        if kind == "O":
            open_.append((open_[-1][0].child(name), now_ns))
            check_depth(len(open_), event.place)
            continue
        if kind != "C":
            event.need("type").wrong("'O' or 'C'")
        draft, since_ns = open_.pop()
        if not open_ or draft.name != name:
            raise Malformed(f"{event.place} closes {name!a}, which is not the last one opened")
        draft.enter(now_ns - since_ns)
    if len(open_) > 1:
        raise Malformed(f"{profile.place}.events ends with {open_[-1][0].name!a} open")
    if end.ns(unit_ns, signed=True) < now_ns:
        end.wrong("a time no earlier than the last event's")
    root.total_ns = end.ns(unit_ns, signed=True) - start_ns


def _sampled(profile: Item, frames: Sequence[str], unit_ns: int, root: Draft) -> None:
    """Fill ``root`` from stacks, outermost frame first, each with its weight as time."""
    samples, weights = list(profile.need("samples").each()), list(profile.need("weights").each())
    if len(samples) != len(weights):
        raise Malformed(f"{profile.place} has {len(samples)} samples, but {len(weights)} weights")
    for sample, weight in zip(samples, weights, strict=True):
        took_ns = weight.ns(unit_ns)
        here = root
        here.total_ns += took_ns
        for depth, frame in enumerate(sample.each(), 1):
            check_depth(depth, frame.place)
            here = here.child(_frame(frame, frames))
            here.total_ns += took_ns


def _frame(item: Item, frames: Sequence[str]) -> str:
    number = item.whole()
    if number >= len(frames):
        item.wrong(f"the number of one of {len(frames)} frames")
    return frames[number]


def write(trees: Sequence[TimerTree]) -> str:
    """Return trees as evented profiles, in nanoseconds.

    Each path opens once, for its total or its children's, whichever is longer. So counts, extremes, modes and totals
    below those of the children are lost; gauges, metadata and workers are not written. Parallel paths have profiles of
    their own, which read back as trees of their own.
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
