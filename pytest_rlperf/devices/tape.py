"""The tape: marks at the edges of phases while the work runs, read once all of it is done."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, Mark, SyncClock
from pytest_rlperf.devices.entries import EdgeLog, Entry, Look, Moment, Timeline, Untimed, entries_of, marks_of
from pytest_rlperf.devices.phases import NEAR_NS, NEAR_SHARE, PhaseTotals
from pytest_rlperf.devices.torch import is_within_compiled
from pytest_rlperf.model.measured import Phase
from pytest_rlperf.timers.edges import EdgeStack, EdgeTree, path_of
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.process import keep_from_compiling
from pytest_rlperf.timers.tree import Tree


@dataclass
class _Iteration:
    """The record of one call. ``looks`` is a list in an iteration that looks at memory, and None in others."""

    anchor: Mark | None
    looks: list[Look] | None
    log: EdgeLog
    end: Mark | None = None
    edges: int = 0
    missed: int = 0  # edges for which there was no event

    def marks(self) -> Iterator[Mark]:
        """Yield every mark."""
        yield from (mark for mark in (self.anchor, self.end) if mark is not None)
        yield from marks_of(self.log.tracks)


class Tape:
    """Records the phases of a workload on a device, by the clock of that device and by the host's.

    Scopes record into :attr:`tree` (``recording_into(tape.tree)``), each call between :meth:`begin_iteration` and
    :meth:`end_iteration`; :meth:`resolve` then waits for the device once and returns the phases. At each edge there is
    one reading of the host's clock and one event from the clock's pool: no waiting, and nothing is made.

    A :class:`SyncClock` waits for the device at every edge. Such times have no overlap of host and device, are marked
    ``is_synced``, and are not compared with others.
    """

    def __init__(self, clock: EventClock | SyncClock) -> None:
        self.clock = clock
        self.tree: Tree = EdgeTree(self._enter, self._leave, clock.host_ns)
        self.dropped = 0
        self._unseen_ns: list[int] = []
        self.peak_bytes: int | None = None
        self.entries: tuple[Entry, ...] = ()  # of the last iteration that was resolved
        self._owner = threading.get_ident()
        self._running: _Iteration | None = None
        self._pending: list[_Iteration] = []
        self._counting: AbstractContextManager[Callable[[], int] | None] | None = None
        self._count_syncs: Callable[[], int] | None = None
        self._compiled: dict[str, None] = {}
        self._broken: DeviceClockError | None = None
        self._needed = 2
        self._anchor_lag_ns = 0
        self._main = PhaseTotals()
        self._beside: dict[str, PhaseTotals] = {}

    # ------------------------------------------------------------------ recording

    def begin_iteration(self, *, look: bool = False) -> None:
        """Begin to record a call.

        With ``look`` the device's memory and implicit waits are read at every edge, without an event or a wait. That
        takes the host's time, so the times of such an iteration are not kept: take one beside the others. It resets the
        peak that PyTorch's allocator keeps.
        """
        if self._running is not None:
            raise RuntimeError("begin_iteration() within an iteration of this tape: end_iteration() comes first")
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
        if iteration is None:
            raise RuntimeError("end_iteration() without begin_iteration()")
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
        after the last mark. Pass ``waited`` where the caller has waited before; that length is then unknown. Raises
        DeviceClockError where the times of the device's events contradict each other. Iterations that have more edges
        of phases than the pool has events are left out and counted in ``dropped``, and the pool grows for later ones.
        """
        if self._running is not None:
            raise RuntimeError("resolve() within an iteration: end_iteration() comes first")
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
        """Return the phases of the thread that made the tape, of all resolved iterations."""
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
        """How long the device worked on after the last mark, by the median: the host may return late from one wait."""
        return statistics.median_low(self._unseen_ns or [0]) / 1e9

    @property
    def iterations(self) -> int:
        """How many iterations the times are means of."""
        return self._main.iterations

    @property
    def notes(self) -> tuple[str, ...]:
        """The limits of the device's times, each with its reason."""
        device = self.clock.device
        totals = [self._main, *self._beside.values()]
        captured = ", ".join(dict.fromkeys(path for total in totals for path in total.captured()))
        crossing = ", ".join(dict.fromkeys(path for total in totals for path in total.across_streams()))
        beside, compiled = ", ".join(self._beside), ", ".join(self._compiled)
        unseen_us = round(1e6 * self.unseen_s)
        notes = {
            f"captured into a graph, and so without times of {device}: {captured}": captured,
            f"with edges on different streams of {device}, and so without a span: {crossing}": crossing,
            f"the timers break the graph of code for torch.compile: {compiled}; time the call of that code": compiled,
            f"{device} worked for {unseen_us} µs after the last phase had ended, on streams that were current at no "
            "phase's edge: enter a timer where such a stream is current": unseen_us,
            f"{self.dropped} iterations with more edges than {device}'s clock had events were left out": self.dropped,
            f"ran on other threads, beside the phases: {beside}": beside,
        }
        return tuple(note for note, applies in notes.items() if applies)

    # ------------------------------------------------------------------ within

    def _enter(self, stack: EdgeStack, node: Node) -> None:
        iteration = self._running
        if iteration is None or self._broken is not None:
            return
        iteration.log.enter(stack, node, self._moment(iteration))
        if iteration.looks is not None and is_within_compiled():
            self._compiled.setdefault("/".join((*stack.host, *path_of(node))))

    def _leave(self, stack: EdgeStack, node: Node, outer: Node) -> None:
        iteration = self._running
        if iteration is not None and self._broken is None:
            iteration.log.leave(stack, node, outer, self._moment(iteration))

    def _moment(self, iteration: _Iteration) -> Moment:
        """Mark this moment; without an event where the device or the pool allows none."""
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
            # resolve() raises it, and not the code that is being measured, which did nothing wrong.
            self._broken = DeviceClockError(f"marking the edge of a phase on {clock.device} failed: {error}")
        return Moment(clock.host_ns(), None, Untimed.SHORT)

    def _look(self, looks: list[Look]) -> int:
        driver = self.clock.driver
        memory = driver.memory()
        driver.reset_peak()
        looks.append(Look(memory, self._count_syncs() if self._count_syncs is not None else None))
        return len(looks) - 1

    def _read(self, iteration: _Iteration, before: Timeline | None) -> Timeline | None:
        """Add one iteration; return its timeline, by which the next one's anchor is placed."""
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
        """Return how far behind the device was at an anchor, which is 0 for the first of calls in a row."""
        if before is None:
            return 0
        elapsed_ns = round(self.clock.elapsed_ns(before.anchor, anchor))
        return before.anchor_lag_ns + elapsed_ns - before.host_ns(anchor.host_ns)

    def _read_looks(self, iteration: _Iteration, looks: list[Look]) -> None:
        peaks = [look.memory.peak_bytes for look in looks if look.memory is not None]
        if peaks:
            self.peak_bytes = max(self.peak_bytes or 0, *peaks)
        own = [track for track in iteration.log.tracks if not track.label]
        self._main.look((entry for track in own for entry in entries_of(track, None, 0)), looks)

    def _note_unseen(self, timeline: Timeline, asked_ns: int, waited_ns: int) -> None:
        """Note how long the host waited for the device after the last mark."""
        reached_ns = timeline.anchor.host_ns + timeline.anchor_lag_ns + timeline.last_ns
        unseen_ns = waited_ns - max(asked_ns, reached_ns)
        is_near = unseen_ns <= max(NEAR_NS, NEAR_SHARE * timeline.last_ns)
        self._unseen_ns.append(0 if is_near else unseen_ns)
