"""Traces of one call: every entry of every scope by itself, where a tree keeps only sums."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from pytest_rlperf.devices.entries import EdgeLog, Entry, Moment, Track, entries_of
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model.measured import Probe
from pytest_rlperf.model.spans import Span
from pytest_rlperf.probes.attach import attached
from pytest_rlperf.timers.edges import EdgeStack, EdgeTree
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.process import recording_into
from pytest_rlperf.timers.stack import ClockNs

HOST = "host"
WHOLE = "call"
MOST_ENTRIES = 100_000  # some 20 MB of JSON, about the most that viewers open; the rest of a long call is left out


class HostTape:
    """Records every edge of the scopes that record into :attr:`tree`, by the host's clock alone."""

    def __init__(self, clock: ClockNs, most_entries: int = MOST_ENTRIES) -> None:
        self.clock = clock
        self.most_entries = most_entries
        self.missed = 0
        self.tree = EdgeTree(self._enter, self._leave, clock)
        self._owner = threading.get_ident()
        self._log = EdgeLog(self._owner)
        self._left_out: set[Node] = set()  # open nodes whose entry came after too many others
        self._entries = 0
        self._start_ns = 0

    def begin(self) -> None:
        """Forget everything: times count from now."""
        self._log, self._left_out = EdgeLog(self._owner), set()
        self._entries = self.missed = 0
        self._start_ns = self.clock()

    def elapsed_s(self) -> float:
        """Return the seconds since :meth:`begin`."""
        return (self.clock() - self._start_ns) / 1e9

    def spans(self) -> tuple[Span, ...]:
        """Return every entry since :meth:`begin` that has ended, by its start; each thread and task is a track."""
        tracks = self._log.tracks
        found = [
            _host_span(entry, name)
            for track, name in zip(tracks, _names(tracks), strict=True)
            for entry in entries_of(track, None, self._start_ns)
        ]
        return tuple(sorted(found, key=_in_order))

    def _enter(self, stack: EdgeStack, node: Node) -> None:
        if self._entries == self.most_entries:
            self.missed += 1
            self._left_out.add(node)
            return
        self._entries += 1
        self._log.enter(stack, node, Moment(self.clock()))

    def _leave(self, stack: EdgeStack, node: Node, outer: Node) -> None:
        while node in self._left_out and node is not outer:
            self._left_out.remove(node)
            node = node.parent
        if node is not outer:
            self._log.leave(stack, node, outer, Moment(self.clock()))


def _names(tracks: Iterable[Track]) -> list[str]:
    """Return the names of tracks; a thread's tasks, and threads of one name, are numbered."""
    names: list[str] = []
    for track in tracks:
        label = track.label or HOST
        name, number = label, 1
        while name in names:
            number += 1
            name = f"{label} ({number})"
        names.append(name)
    return names


def trace_call(
    call: Callable[[], object],
    *,
    setup: Callable[[], None] | None,
    probes: Sequence[Probe],
    clock: ClockNs,
    tape: Tape | None = None,
) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """Return the spans of one call, the call itself the outermost, and notes on spans that are missing.

    ``setup`` runs before the call, and ``probes`` are in place during it. With a ``tape``, the device's spans are
    included, on tracks of their own. No timing should run meanwhile: an entry takes about a microsecond more than in a
    traced slice.
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
    left_out = f"the trace ends early, after {recorder.most_entries} entries; {recorder.missed} more were left out"
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
            return (Span(WHOLE, 0.0, end_s, HOST), *spans_of_tape(tape.entries, tape.clock.device)), tape.notes
    return (Span(WHOLE, 0.0, end_s, HOST),), tape.notes


def spans_of_tape(found: Iterable[Entry], device: str) -> tuple[Span, ...]:
    """Return the spans of a tape's last call: of threads by the host's clock, of streams by the device's."""
    return tuple(sorted(_spans_of_tape(found, device), key=_in_order))


def _spans_of_tape(found: Iterable[Entry], device: str) -> Iterator[Span]:
    for one in found:
        yield _host_span(one, one.label or HOST)
        if one.device_start_ns is not None and one.device_end_ns is not None:
            track = f"{device}, stream {', '.join(one.streams)}"
            yield Span("/".join(one.path), one.device_start_ns / 1e9, one.device_end_ns / 1e9, track)


def _host_span(one: Entry, track: str) -> Span:
    return Span("/".join(one.path), one.host_start_ns / 1e9, one.host_end_ns / 1e9, track)


def _in_order(span: Span) -> tuple[float, float, int]:
    """Return a key that sorts a span behind those it lies in."""
    return span.start_s, -span.end_s, span.path.count("/")
