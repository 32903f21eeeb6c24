"""The tape: marks at phases' edges while the work runs, read once it is done, for phases and traces."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, Mark, SyncClock
from pytest_rlperf.devices.entries import DeviceLook, EdgeLog, Entry, Moment, Timeline, Untimed, entries_of, marks_of
from pytest_rlperf.model.device import Bound, DeviceTimes
from pytest_rlperf.model.measured import Phase
from pytest_rlperf.timers import keep_from_compiling
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.tree import EdgeStack, EdgeTree, Tree


@dataclass
class _Iteration:
    """The record of one call; ``looks`` is a list in an iteration that looks at memory, and None in others."""

    anchor: Mark | None
    looks: list[DeviceLook] | None
    log: EdgeLog
    end: Mark | None = None
    edges: int = 0
    missed: int = 0  # edges for which there was no event

    def marks(self) -> Iterator[Mark]:
        """Yield every mark."""
        yield from (mark for mark in (self.anchor, self.end) if mark is not None)
        yield from marks_of(self.log.tracks)


class Tape:
    """Records the phases of a workload on a device, by the device's clock and by the host's.

    Scopes record into :attr:`tree` (``recording_into(tape.tree)``), each call between :meth:`begin_iteration` and
    :meth:`end_iteration`; :meth:`resolve` then waits for the device once and returns the phases. Each edge takes one
    reading of the host's clock and one event from the clock's pool: it does not wait, and makes nothing.

    A :class:`SyncClock` waits for the device at every edge. Its times have no overlap of host and device, are marked
    ``is_synced``, and are not compared with others.
    """

    def __init__(self, clock: EventClock | SyncClock) -> None:
        self.clock = clock
        self.tree: Tree = EdgeTree(self._enter, self._leave, clock.host_ns)
        self.dropped = 0
        self._unseen_ns: list[int] = []
        self.entries: tuple[Entry, ...] = ()  # of the last iteration that was resolved
        self._owner = threading.get_ident()
        self._running: _Iteration | None = None
        self._pending: list[_Iteration] = []
        self._counting: AbstractContextManager[Callable[[], int] | None] | None = None
        self._count_syncs: Callable[[], int] | None = None
        self._broken: DeviceClockError | None = None
        self._needed = 2
        self._main = PhaseTotals()
        self._beside: dict[str, PhaseTotals] = {}

    # ------------------------------------------------------------------ recording

    def begin_iteration(self, *, look: bool = False) -> None:
        """Begin to record a call.

        With ``look``, the device's memory and implicit waits are read at every edge, without an event or a wait. That
        takes the host's time, so the iteration's times are not kept: take it in addition to others. It resets the peak
        that PyTorch's allocator keeps.
        """
        keep_from_compiling()
        if look:
            self._counting = self.clock.driver.counting_syncs()
            self._count_syncs = self._counting.__enter__()
            self.clock.driver.reset_peak()
            self._running = _Iteration(None, [], EdgeLog(self._owner))
            return
        self.clock.reserve(self._needed)
        self._running = _Iteration(self.clock.mark(), None, EdgeLog(self._owner))

    def end_iteration(self) -> None:
        """End the recording of a call; the device may be far behind."""
        iteration = self._running
        assert iteration is not None
        self._running = None
        if iteration.looks is not None and self._counting is not None:
            self._look(iteration.looks)
            self._counting.__exit__(None, None, None)
            self._counting = self._count_syncs = None
        elif self.clock.left and self._broken is None:
            iteration.end = self.clock.mark()
        else:
            iteration.missed += 1
        self._needed = max(self._needed, iteration.edges + 2)
        self._pending.append(iteration)

    # ------------------------------------------------------------------ reading

    def resolve(self, *, waited: bool = False) -> tuple[Phase, ...]:
        """Wait for the device, read all marks, and return the mean phases of all iterations so far.

        Call this before anything else waits for the device: the length of its wait shows how long the device worked
        after the last mark. Pass ``waited`` if the caller has already waited; that length is then unknown. Raise
        DeviceClockError if the times of the device's events contradict each other. Iterations with more edges of phases
        than the pool has events are left out and counted in ``dropped``, and the pool grows for later ones.
        """
        pending, self._pending = self._pending, []
        asked_ns = self.clock.host_ns()
        try:
            self.clock.synchronize()
            if self._broken is not None:
                raise self._broken
            waited_ns = self.clock.host_ns()
            timeline = None
            for iteration in pending:
                timeline = self._read(iteration, timeline)
            if timeline is not None and not waited:
                self._note_unseen(timeline, asked_ns, waited_ns)
        finally:
            for iteration in pending:
                self.clock.release(iteration.marks())
        return self.phases()

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of the thread that made the tape, over all resolved iterations."""
        return self._main.phases(self.clock.device, is_synced=self.clock.is_synced) if self._main.iterations else ()

    def beside(self) -> dict[str, tuple[Phase, ...]]:
        """Return the phases of other threads, such as autograd's, by the threads' names."""
        return {
            label: totals.phases(self.clock.device, is_synced=self.clock.is_synced)
            for label, totals in self._beside.items()
            if totals.iterations
        }

    @property
    def unseen_s(self) -> float:
        """The median time that the device worked on after the last mark: the host may return late from one wait."""
        return statistics.median_low(self._unseen_ns or [0]) / 1e9

    @property
    def iterations(self) -> int:
        """How many iterations the times are averaged over."""
        return self._main.iterations

    @property
    def notes(self) -> tuple[str, ...]:
        """The limits of the device's times, each with its reason."""
        device = self.clock.device
        totals = [self._main, *self._beside.values()]
        captured = ", ".join(dict.fromkeys(path for total in totals for path in total.captured()))
        crossing = ", ".join(dict.fromkeys(path for total in totals for path in total.across_streams()))
        beside = ", ".join(self._beside)
        unseen_us = round(1e6 * self.unseen_s)
        notes = {
            f"captured into a graph, and so without times of {device}: {captured}": captured,
            f"with edges on different streams of {device}, and so without a span: {crossing}": crossing,
            f"{device} worked for {unseen_us} µs after the last phase had ended, on streams that were not current at "
            "any phase's edge: enter a timer while such a stream is current": unseen_us,
            f"left out {self.dropped} calls, whose phases have more edges than {device}'s clock events": self.dropped,
            f"ran on other threads, beside the phases: {beside}": beside,
        }
        return tuple(note for note, applies in notes.items() if applies)

    # ------------------------------------------------------------------ within

    def _enter(self, stack: EdgeStack, node: Node) -> None:
        iteration = self._running
        if iteration is not None and self._broken is None:
            iteration.log.enter(stack, node, self._moment(iteration))

    def _leave(self, stack: EdgeStack, node: Node, outer: Node) -> None:
        iteration = self._running
        if iteration is not None and self._broken is None:
            iteration.log.leave(stack, node, outer, self._moment(iteration))

    def _moment(self, iteration: _Iteration) -> Moment:
        """Mark this moment, without an event if the device or the pool allows none."""
        clock = self.clock
        iteration.edges += 1
        if iteration.looks is not None:
            return Moment(clock.host_ns(), None, Untimed.LOOKING, self._look(iteration.looks))
        try:
            if clock.driver.is_capturing():
                return Moment(clock.host_ns(), None, Untimed.CAPTURED)
            if clock.left:
                mark = clock.mark()
                return Moment(mark.host_ns, mark)
            iteration.missed += 1
        except (DeviceClockError, RuntimeError) as error:
            # resolve() raises it, instead of the measured code, which did nothing wrong.
            self._broken = DeviceClockError(f"marking the edge of a phase on {clock.device} failed: {error}")
        return Moment(clock.host_ns(), None, Untimed.SHORT)

    def _look(self, looks: list[DeviceLook]) -> int:
        driver = self.clock.driver
        memory = driver.memory()
        driver.reset_peak()
        looks.append(DeviceLook(memory, self._count_syncs() if self._count_syncs is not None else None))
        return len(looks) - 1

    def _read(self, iteration: _Iteration, before: Timeline | None) -> Timeline | None:
        """Add one iteration; return its timeline, which places the next one's anchor."""
        if iteration.looks is not None:
            self._read_looks(iteration, iteration.looks)
            return before
        anchor, end = iteration.anchor, iteration.end
        if iteration.missed or anchor is None or end is None:
            self.dropped += 1
            return before
        timeline = Timeline(self.clock, anchor, self._lag_of(anchor, before))
        tracks = iteration.log.tracks
        for track in tracks:
            timeline.read(marks_of([track]))
        timeline.read([end])
        found: dict[str, list[Entry]] = {track.label: [] for track in tracks}
        for track in tracks:
            found[track.label] += entries_of(track, timeline, anchor.host_ns)
        self.entries = tuple(entry for entries in found.values() for entry in entries)
        self._main.add(found.pop("", []))
        for label, entries in found.items():
            self._beside.setdefault(label, PhaseTotals()).add(entries)
        return timeline

    def _lag_of(self, anchor: Mark, before: Timeline | None) -> int:
        """Return how far behind the device was at an anchor: 0 for the first of several calls in a row."""
        if before is None:
            return 0
        elapsed_ns = round(self.clock.elapsed_ns(before.anchor, anchor))
        return before.anchor_lag_ns + elapsed_ns - before.host_ns(anchor.host_ns)

    def _read_looks(self, iteration: _Iteration, looks: list[DeviceLook]) -> None:
        own = [track for track in iteration.log.tracks if not track.label]
        self._main.look((entry for track in own for entry in entries_of(track, None, 0)), looks)

    def _note_unseen(self, timeline: Timeline, asked_ns: int, waited_ns: int) -> None:
        """Note how long the host waited for the device after the last mark."""
        reached_ns = timeline.anchor.host_ns + timeline.anchor_lag_ns + timeline.last_ns
        unseen_ns = waited_ns - max(asked_ns, reached_ns)
        is_near = unseen_ns <= max(NEAR_NS, NEAR_SHARE * timeline.last_ns)
        self._unseen_ns.append(0 if is_near else unseen_ns)


# --------------------------------------------------------------------------- phases
# The means of their entries over iterations.

# A launch takes some 5 µs to reach the device, and events resolve half a microsecond: a few launches are not a lag. In
# a long phase, the last kernel may take longer than that and still have waited for its launch.
NEAR_NS = 20_000
NEAR_SHARE = 0.1


def bound_of(entry: Entry) -> Bound:
    """Return what bounds the time of one entry, by how far the device was behind the host at its edges.

    If it is behind at the end, the device has work queued. If it was behind only before, the host waited, or did
    something else until the device caught up, which looks the same. If it never was, the device waited for the host.
    """
    near_ns = max(NEAR_NS, NEAR_SHARE * (entry.device_ns or 0))
    if entry.lag_out_ns is not None and entry.lag_out_ns > near_ns:
        return Bound.DEVICE
    return Bound.SYNC if entry.peak_lag_ns > near_ns else Bound.LAUNCH


class _Total:
    """The sums over all entries of one path."""

    def __init__(self) -> None:
        self.count = self.host_ns = self.host_self_ns = 0
        self.marked = self.captured = 0
        self.span_ns: int | None = 0
        self.self_ns: int | None = 0
        self.lag_in_ns = self.lag_out_ns = 0
        self.streams: dict[str, None] = {}
        self.bounds: Counter[Bound] = Counter()
        self.peak_bytes: int | None = None
        self.allocations: int | None = None
        self.syncs = 0

    def add(self, entry: Entry) -> None:
        self.count += 1
        self.host_ns += entry.host_end_ns - entry.host_start_ns
        self.host_self_ns += entry.host_self_ns
        self.captured += entry.untimed is Untimed.CAPTURED
        if entry.lag_in_ns is None or entry.lag_out_ns is None:
            return
        self.marked += 1
        self.span_ns = _sum(self.span_ns, entry.device_ns)
        self.self_ns = _sum(self.self_ns, entry.device_self_ns)
        self.lag_in_ns += entry.lag_in_ns
        self.lag_out_ns += entry.lag_out_ns
        self.streams |= dict.fromkeys(entry.streams)
        # If entries differ, the longest ones decide what bounds the path's time.
        self.bounds[bound_of(entry)] += 1 + (entry.device_ns or 0)

    def look(self, looks: Sequence[DeviceLook]) -> None:
        """Add the looks from an entry's beginning to its end."""
        seen = [look.memory for look in looks]
        first, last = seen[0], seen[-1]
        if first is not None and last is not None:
            peaks = [first.allocated_bytes, *(memory.peak_bytes for memory in seen[1:] if memory is not None)]
            self.peak_bytes = max(self.peak_bytes or 0, *peaks)
            self.allocations = (self.allocations or 0) + last.allocations - first.allocations
        self.syncs += (looks[-1].syncs or 0) - (looks[0].syncs or 0)

    def device_times(self, iterations: int, looked: int, *, is_synced: bool) -> DeviceTimes | None:
        """Return the device's times per iteration, None if it has none, as for a phase captured into a graph."""
        if not self.marked:
            return None
        bound = Bound.SYNC if is_synced else self.bounds.most_common(1)[0][0]
        return DeviceTimes(
            span_s=None if self.span_ns is None else self.span_ns / iterations / 1e9,
            self_s=None if self.self_ns is None else self.self_ns / iterations / 1e9,
            stream=", ".join(self.streams),
            lag_in_s=self.lag_in_ns / self.marked / 1e9,
            lag_out_s=self.lag_out_ns / self.marked / 1e9,
            # If the device is not behind, only the counted waits show whether the host waited.
            bound=Bound.SYNC if bound is Bound.LAUNCH and self.syncs else bound,
            is_synced=is_synced,
            peak_bytes=self.peak_bytes,
            allocations=None if self.allocations is None else self.allocations / looked,
        )


class PhaseTotals:
    """The sums over all phases, and the number of iterations."""

    def __init__(self) -> None:
        self.iterations = 0
        self.looked = 0
        self._paths: dict[tuple[str, ...], _Total] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the entries of one iteration."""
        self.iterations += 1
        for entry in entries:
            self._at(entry.path).add(entry)

    def look(self, entries: Iterable[Entry], looks: Sequence[DeviceLook]) -> None:
        """Add an iteration that looked at the device's memory; its times do not count."""
        self.looked += 1
        for entry in entries:
            first, last = entry.looks
            self._at(entry.path).look(looks[first : last + 1])

    def phases(self, device: str, *, is_synced: bool) -> tuple[Phase, ...]:
        """Return the means per iteration, each path after the one above it."""
        order = {path: number for number, path in enumerate(self._paths)}
        places = {
            path: tuple(order.get(path[: length + 1], len(order)) for length in range(len(path)))
            for path in self._paths
        }
        return tuple(
            Phase(
                path="/".join(path),
                count=total.count / self.iterations,
                total_s=total.host_ns / self.iterations / 1e9,
                self_s=total.host_self_ns / self.iterations / 1e9,
                device=device,
                on_device=total.device_times(self.iterations, self.looked, is_synced=is_synced),
            )
            for path, total in sorted(self._paths.items(), key=lambda item: places[item[0]])
            if total.count
        )

    def captured(self) -> list[str]:
        """Return the paths that were captured into a graph."""
        return ["/".join(path) for path, total in self._paths.items() if total.captured]

    def across_streams(self) -> list[str]:
        """Return the paths whose edges are on different streams."""
        return ["/".join(path) for path, total in self._paths.items() if total.marked and total.span_ns is None]

    def _at(self, path: tuple[str, ...]) -> _Total:
        return self._paths.setdefault(path, _Total())


def _sum(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more
