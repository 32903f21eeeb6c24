"""When each scope of one call was open: every entry by itself, where a tree has only their sums."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from pytest_rlperf.devices import spans as marked
from pytest_rlperf.devices.edges import Edge, Moment, TapedStack, TapedTree, Track
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model import Probe
from pytest_rlperf.model.spans import Span
from pytest_rlperf.probes.attach import attached
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.process import recording_into
from pytest_rlperf.timers.stack import ClockNs

HOST = "host"
WHOLE = "call"
MOST_ENTRIES = 100_000  # of a long call the rest is left out: some 20 MB of JSON, as much as a viewer can bear


class HostTape:
    """Remembers the edges of scopes that record into :attr:`tree`, by the host's clock alone."""

    def __init__(self, clock: ClockNs, most_entries: int = MOST_ENTRIES) -> None:
        self.clock = clock
        self.most_entries = most_entries
        self.missed = 0
        self.tree = TapedTree(self._moved, clock)
        self._lanes: dict[TapedStack, Track] = {}
        self._open: set[Node] = set()
        self._entries = 0
        self._owner = threading.get_ident()
        self._start_ns = 0

    def begin(self) -> None:
        """Forget everything: times count from now."""
        self._lanes, self._open = {}, set()
        self._entries = self.missed = 0
        self._start_ns = self.clock()

    def elapsed_s(self) -> float:
        """Return the seconds since :meth:`begin`."""
        return (self.clock() - self._start_ns) / 1e9

    def spans(self) -> tuple[Span, ...]:
        """Return every entry since :meth:`begin` that has ended, by its start; each thread and task is a track."""
        tracks = self._tracks()
        found = [
            _host_span(one, tracks[stack])
            for stack, lane in self._lanes.items()
            for one in marked.spans_of(lane, None, self._start_ns)
        ]
        return tuple(sorted(found, key=_in_order))

    def _moved(self, stack: TapedStack, before: Node, after: Node) -> None:
        moment = Moment(self.clock(), None, None, -1)
        if after.parent is before:
            if self._entries < self.most_entries:
                self._entries += 1
                self._open.add(after)
                self._lane(stack).edges.append(Edge(after, True, moment))
            else:
                self.missed += 1
            return
        node = before
        while node is not after and node.parent is not node:
            if node in self._open:
                self._open.remove(node)
                self._lane(stack).edges.append(Edge(node, False, moment))
            node = node.parent

    def _lane(self, stack: TapedStack) -> Track:
        lane = self._lanes.get(stack)
        if lane is None:
            label = HOST if threading.get_ident() == self._owner else stack.label
            lane = self._lanes[stack] = Track(label, stack.host)
        return lane

    def _tracks(self) -> dict[TapedStack, str]:
        """Return what to call each stack's track; a thread's tasks, and threads of one name, are numbered."""
        names: dict[TapedStack, str] = {}
        for stack, lane in self._lanes.items():
            name, number = lane.label, 1
            while name in names.values():
                number += 1
                name = f"{lane.label} ({number})"
            names[stack] = name
        return names


def trace_call(
    call: Callable[[], object],
    *,
    setup: Callable[[], None] | None,
    probes: Sequence[Probe],
    clock: ClockNs,
    tape: Tape | None = None,
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """Return the spans of one call, the call itself the outermost, and notes on what they lack.

    ``setup`` runs before it, and ``probes`` are in place for it. With a ``tape``, the spans of its device are there,
    too, on tracks of their own. To be called where nothing is being timed: an entry costs about a microsecond more
    than in a traced slice.
    """
    if tape is not None:
        return _trace_on_device(call, setup, probes, tape)
    recorder = HostTape(clock)
    if setup is not None:
        setup()
    with attached(probes), recording_into(recorder.tree):
        recorder.begin()
        call()
        end_s = recorder.elapsed_s()
    left_out = f"the trace ends early: it holds {recorder.most_entries} entries, {recorder.missed} more came"
    return (Span(WHOLE, 0.0, end_s, HOST), *recorder.spans()), (left_out,) if recorder.missed else ()


def _trace_on_device(
    call: Callable[[], object], setup: Callable[[], None] | None, probes: Sequence[Probe], tape: Tape
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    for _ in range(2):  # where the first had more edges than there were events, the pool is larger then
        dropped = tape.dropped
        if setup is not None:
            setup()
        with attached(probes), recording_into(tape.tree):
            start_ns = tape.clock.host_ns()
            tape.begin_iteration()
            call()
            end_s = (tape.clock.host_ns() - start_ns) / 1e9
            tape.end_iteration()
        tape.resolve()
        if tape.dropped == dropped:
            return (Span(WHOLE, 0.0, end_s, HOST), *spans_of_tape(tape.spans, tape.clock.device)), tape.notes
    return (Span(WHOLE, 0.0, end_s, HOST),), tape.notes


def spans_of_tape(found: Iterable[marked.Entry], device: str) -> tuple[Span, ...]:
    """Return what a tape has of one call as spans: of threads, by the host's clock, and of streams, by the device's."""
    return tuple(sorted(_spans_of_tape(found, device), key=_in_order))


def _spans_of_tape(found: Iterable[marked.Entry], device: str) -> Iterator[Span]:
    for one in found:
        yield _host_span(one, one.label or HOST)
        if one.device_start_ns is not None and one.device_end_ns is not None:
            track = f"{device}, stream {', '.join(one.streams)}"
            yield Span("/".join(one.path), one.device_start_ns / 1e9, one.device_end_ns / 1e9, track)


def _host_span(one: marked.Entry, track: str) -> Span:
    return Span("/".join(one.path), one.host_start_ns / 1e9, one.host_end_ns / 1e9, track)


def _in_order(span: Span) -> tuple[float, float, int]:
    """Return what puts a span behind those it lies in."""
    return span.start_s, -span.end_s, span.path.count("/")
