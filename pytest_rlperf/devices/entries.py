"""Entries of phases: the edges that a tape records in one iteration, paired, with their times on the device."""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, Mark, Memory, SyncClock
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.tree import EdgeStack, path_of

MAIN_STREAM = "main"
# Float32 milliseconds resolve half a microsecond up to 8.4 s; before that limit, times are read from a later mark.
_REANCHOR_NS = 4_000_000_000
# No device reaches a mark before the host records it. Its clock may run faster than the host's, by at most 1e-4, and it
# may have reached the anchor late, if it slept.
_EARLY_NS = 1_000_000
_EARLY_SHARE = 0.02


class Untimed(str, enum.Enum):
    """Why an edge has no mark."""

    LOOKING = "looking"  # at memory, which takes the host too long for useful times
    CAPTURED = "captured"  # into a graph, in which no event can be timed
    SHORT = "short"  # of events


class DeviceLook(NamedTuple):
    """The device's memory at an edge, since the edge before, and the host's implicit waits so far; None if unknown."""

    memory: Memory | None
    syncs: int | None


class Moment(NamedTuple):
    """One moment on the host, with a mark for the device's clock, or why there is none.

    ``look`` is the number of the look taken then, counted over all threads of the iteration; -1 without one.
    """

    host_ns: int
    mark: Mark | None = None
    untimed: Untimed | None = None
    look: int = -1


class Edge(NamedTuple):
    """A phase's beginning or end."""

    node: Node
    is_enter: bool
    moment: Moment


@dataclass
class Track:
    """The edges of one thread, or of one task in it, in order; ``prefix`` are the phases that the task is in."""

    label: str  # of the thread, empty for the one that made the tape
    prefix: tuple[str, ...]
    edges: list[Edge] = field(default_factory=list)


class EdgeLog:
    """All edges of one iteration, on a track for each thread and task."""

    def __init__(self, owner: int) -> None:
        self._owner = owner  # the identifier of the thread that measures
        self._tracks: dict[EdgeStack, Track] = {}

    @property
    def tracks(self) -> list[Track]:
        """The tracks, in the order of their first edges."""
        return list(self._tracks.values())

    def enter(self, stack: EdgeStack, node: Node, moment: Moment) -> None:
        """Note that a node was entered."""
        self._track(stack).edges.append(Edge(node, True, moment))

    def leave(self, stack: EdgeStack, node: Node, outer: Node, moment: Moment) -> None:
        """Note that ``node`` was left, and those around it up to ``outer``."""
        edges = self._track(stack).edges
        while node is not outer and node.parent is not node:
            edges.append(Edge(node, False, moment))
            node = node.parent

    def _track(self, stack: EdgeStack) -> Track:
        track = self._tracks.get(stack)
        if track is None:
            label = "" if threading.get_ident() == self._owner else stack.label
            track = self._tracks[stack] = Track(label, stack.host)
        return track


class Entry(msgspec.Struct, frozen=True):
    """One entry of a phase, in nanoseconds since the iteration's anchor, by the host's clock and by the device's.

    The device's times are None if an edge was not marked, for the reason ``untimed``. ``device_self_ns`` is also None
    if a child changed streams. ``label`` names the thread; it is empty for the one that measures. ``peak_lag_ns`` is
    the most that the device was behind the host, at this phase's first edge or any edge within.
    """

    path: tuple[str, ...]
    label: str
    host_start_ns: int
    host_end_ns: int
    host_self_ns: int
    device_start_ns: int | None
    device_end_ns: int | None
    device_self_ns: int | None
    lag_in_ns: int | None
    lag_out_ns: int | None
    peak_lag_ns: int
    streams: tuple[str, ...]
    untimed: Untimed | None
    looks: tuple[int, int]

    @property
    def device_ns(self) -> int | None:
        """The device's time from edge to edge; None if they are not both on one stream."""
        if self.device_start_ns is None or self.device_end_ns is None or len(self.streams) != 1:
            return None
        return self.device_end_ns - self.device_start_ns


class Timeline:
    """The device's time of every mark of one iteration, since its anchor."""

    def __init__(self, clock: EventClock | SyncClock, anchor: Mark, anchor_lag_ns: int) -> None:
        self.anchor = anchor
        self.anchor_lag_ns = anchor_lag_ns
        self.last_ns = 0
        self._clock = clock
        self._times: dict[int, int] = {id(anchor): 0}
        self._names: dict[Hashable, str] = {anchor.stream: MAIN_STREAM}
        self._reference = anchor

    def read(self, marks: Iterable[Mark]) -> None:
        """Add one thread's marks, in its order; DeviceClockError if their times contradict that order."""
        latest: dict[Hashable, int] = {self.anchor.stream: 0}
        for mark in marks:
            elapsed_ns = self._clock.elapsed_ns(self._reference, mark)
            if not math.isfinite(elapsed_ns):
                raise DeviceClockError(f"the events of {self._clock.device} are broken: {elapsed_ns} ns between two")
            device_ns = self._times[id(self._reference)] + round(elapsed_ns)
            self._check(mark, device_ns, latest.get(mark.stream, device_ns))
            self._times[id(mark)] = latest[mark.stream] = device_ns
            self.last_ns = max(self.last_ns, device_ns)
            if elapsed_ns > _REANCHOR_NS:
                self._reference = mark

    def since_anchor_ns(self, mark: Mark) -> int:
        """Return the device's time at a mark that was read."""
        return self._times[id(mark)]

    def host_ns(self, host_ns: int) -> int:
        """Return the host's time since the anchor."""
        return host_ns - self.anchor.host_ns

    def lag_ns(self, mark: Mark) -> int:
        """Return how far the device was behind the host at a mark."""
        return self.anchor_lag_ns + self._times[id(mark)] - self.host_ns(mark.host_ns)

    def name(self, stream: Hashable) -> str:
        """Return a stream's name: handles differ between processes, the order of appearance does not."""
        return self._names.setdefault(stream, f"side {len(self._names)}")

    def _check(self, mark: Mark, device_ns: int, before_ns: int) -> None:
        """Raise DeviceClockError if a stream went back in time, or reached a mark before the host recorded it."""
        if device_ns < before_ns:
            raise DeviceClockError(
                f"the events of {self._clock.device} are broken: one was reached {before_ns - device_ns} ns before "
                "another that the same stream had to reach first"
            )
        host_ns = self.host_ns(mark.host_ns)
        early_ns = host_ns - device_ns - self.anchor_lag_ns
        if early_ns > _EARLY_NS + _EARLY_SHARE * host_ns:
            raise DeviceClockError(
                f"the events of {self._clock.device} are broken: one was reached {early_ns / 1e6:.2f} ms before the "
                "host recorded it"
            )


class _Open:
    """A phase that has begun, with the sums of its children so far."""

    def __init__(self, edge: Edge, place: int) -> None:
        self.edge = edge
        self.place = place
        self.host_below_ns = 0
        self.device_below_ns: int | None = 0
        self.peak_lag_ns = 0

    def add(self, entry: Entry, stream: str | None) -> None:
        """Add a child that has ended; ``stream`` is this phase's."""
        self.host_below_ns += entry.host_end_ns - entry.host_start_ns
        self.peak_lag_ns = max(self.peak_lag_ns, entry.peak_lag_ns)
        if entry.untimed is Untimed.CAPTURED:
            return  # the device did none of it
        if entry.device_ns is None:
            self.device_below_ns = None
        elif self.device_below_ns is not None and entry.streams == (stream,):
            self.device_below_ns += entry.device_ns


def entries_of(track: Track, timeline: Timeline | None, anchor_ns: int) -> list[Entry]:
    """Return the entries that ended on a track, parents before children; without a timeline, only by the host's clock.

    A phase's time on the device, less its children's on the same stream, is its own time, to the nanosecond: all are
    differences of the same few numbers.
    """
    found: list[Entry | None] = []
    opened: list[_Open] = []
    for edge in track.edges:
        if edge.is_enter:
            opened.append(_Open(edge, len(found)))
            found.append(None)
        elif opened and opened[-1].edge.node is edge.node:
            ended = opened.pop()
            if not edge.node.name:
                continue  # part of the phase around it
            entry = _entry(track, ended, edge.moment, timeline, anchor_ns)
            found[ended.place] = entry
            if opened:
                outer = opened[-1].edge.moment.mark
                opened[-1].add(entry, None if outer is None or timeline is None else timeline.name(outer.stream))
    return [entry for entry in found if entry is not None]


def marks_of(tracks: Iterable[Track]) -> Iterator[Mark]:
    """Yield the marks of tracks, in order on each; a mark that ended several phases comes once."""
    for track in tracks:
        before = None
        for edge in track.edges:
            mark = edge.moment.mark
            if mark is not None and mark is not before:
                before = mark
                yield mark


def _entry(track: Track, begun: _Open, end: Moment, timeline: Timeline | None, anchor_ns: int) -> Entry:
    start = begun.edge.moment
    marks = None if timeline is None or start.mark is None or end.mark is None else (start.mark, end.mark)
    times: tuple[int, int] | tuple[None, None] = (None, None)
    lags: tuple[int, int] | tuple[None, None] = (None, None)
    streams: tuple[str, ...] = ()
    own_ns = None
    peak_ns = begun.peak_lag_ns
    if timeline is not None and marks is not None:
        times = timeline.since_anchor_ns(marks[0]), timeline.since_anchor_ns(marks[1])
        lags = timeline.lag_ns(marks[0]), timeline.lag_ns(marks[1])
        streams = tuple(dict.fromkeys(timeline.name(mark.stream) for mark in marks))
        peak_ns = max(peak_ns, lags[0])
        if len(streams) == 1 and begun.device_below_ns is not None:
            own_ns = times[1] - times[0] - begun.device_below_ns
    return Entry(
        path=(*track.prefix, *path_of(begun.edge.node)),
        label=track.label,
        host_start_ns=start.host_ns - anchor_ns,
        host_end_ns=end.host_ns - anchor_ns,
        host_self_ns=end.host_ns - start.host_ns - begun.host_below_ns,
        device_start_ns=times[0],
        device_end_ns=times[1],
        device_self_ns=own_ns,
        lag_in_ns=lags[0],
        lag_out_ns=lags[1],
        peak_lag_ns=peak_ns,
        streams=streams,
        untimed=start.untimed or end.untimed,
        looks=(start.look, end.look),
    )
