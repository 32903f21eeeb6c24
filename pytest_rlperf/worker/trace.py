"""The trace of one call: its phases as ranges, when its child processes ran, and what the device did meanwhile.

Phases are recorded from within; a tree keeps their sums, a trace every entry. Child processes, like a vector env's, are
watched from outside, however they were started: a process beside them reads how long each has run on a CPU.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

import msgspec

from pytest_rlperf.devices import wait_for_all
from pytest_rlperf.devices.entries import EdgeLog, Entry, Moment, entries_of
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model.measured import Harvest
from pytest_rlperf.probes import attached
from pytest_rlperf.timers import recording_into
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.tree import EdgeStack, EdgeTree
from pytest_rlperf.worker.device import Accelerator
from pytest_rlperf.worker.rounds import ClockNs

HOST = "host"
CALL = "call"
RUNNING = "on a CPU"
MOST_ENTRIES = 100_000  # of phases: some 20 MB of JSON, about the most that viewers open


class Span(msgspec.Struct, frozen=True):
    """A range on a track, in nanoseconds since the call began; ``process`` is empty for the calling process."""

    name: str
    start_ns: int
    end_ns: int
    track: str
    process: str = ""


class CallTrace(msgspec.Struct, frozen=True):
    """The ranges of one call; ``notes`` name what they leave out."""

    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()


def trace_call(
    source: Harvest, setup: Callable[[], None] | None, device: Accelerator | None, clock: ClockNs
) -> CallTrace:
    """Return the trace of one call of ``source``, with its probes in place; ``setup`` runs before, untraced."""
    recorder = _HostRecorder(clock) if device is None else _DeviceRecorder(device, clock)
    wait = wait_for_all()
    for _ in range(2):  # a device's clock may have had too few events the first time
        if setup is not None:
            setup()
        with _watched_children() as ran, attached(source.probes), recording_into(recorder.tree):
            start_ns, origin_ns = recorder.begin(), time.perf_counter_ns()
            source.call()
            wait()
            length_ns = clock() - start_ns
            is_whole = recorder.end()
        if is_whole:
            break
    spans = [Span(CALL, 0, length_ns, HOST), *recorder.spans()]
    return CallTrace((*spans, *ran.spans(origin_ns, length_ns)), (*recorder.notes, *ran.notes))


# --------------------------------------------------------------------------- phases


class _HostRecorder:
    """Records every entry of every scope, only by the host's clock."""

    def __init__(self, clock: ClockNs) -> None:
        self.notes: tuple[str, ...] = ()
        self.tree = EdgeTree(self._enter, self._leave, clock)
        self._clock = clock
        self._log = EdgeLog(threading.get_ident())
        self._left_out: set[Node] = set()  # open nodes whose entry came after too many others
        self._entries = self._missed = 0

    def begin(self) -> int:
        """Return the time at which the call's own range begins and all times start."""
        self._start_ns = self._clock()
        return self._start_ns

    def end(self) -> bool:
        """Note how many entries were left out, and return True: a second call would leave out as many."""
        if self._missed:
            self.notes = (f"the trace has the first {MOST_ENTRIES} entries; {self._missed} more were left out",)
        return True

    def spans(self) -> Iterator[Span]:
        """Yield the entries of each thread and task."""
        for track in self._log.tracks:
            yield from map(_host_span, entries_of(track, None, self._start_ns))

    def _enter(self, stack: EdgeStack, node: Node) -> None:
        if self._entries == MOST_ENTRIES:
            self._missed += 1
            self._left_out.add(node)
        else:
            self._entries += 1
            self._log.enter(stack, node, Moment(self._clock()))

    def _leave(self, stack: EdgeStack, node: Node, outer: Node) -> None:
        while node in self._left_out and node is not outer:
            self._left_out.remove(node)
            node = node.parent
        if node is not outer:
            self._log.leave(stack, node, outer, Moment(self._clock()))


class _DeviceRecorder:
    """Records every entry by the host's clock and, on a track for each stream, by the device's."""

    def __init__(self, device: Accelerator, clock: ClockNs) -> None:
        self._device = device
        self._clock = clock
        self._tape = Tape(device.clock)
        self.tree = self._tape.tree

    @property
    def notes(self) -> tuple[str, ...]:
        """The limits of the device's times."""
        return self._tape.notes

    def begin(self) -> int:
        """Wait until the device is idle, begin, and return the time."""
        self._device.clock.synchronize()
        self._tape.begin_iteration()
        return self._clock()

    def end(self) -> bool:
        """Wait for the device and read its clock; return whether the clock had events for all edges."""
        dropped = self._tape.dropped
        self._tape.end_iteration()
        self._tape.resolve()
        return self._tape.dropped == dropped

    def spans(self) -> Iterator[Span]:
        """Yield the entries on the host and on the device."""
        for entry in self._tape.entries:
            yield _host_span(entry)
            if entry.device_start_ns is not None and entry.device_end_ns is not None:
                track = f"{self._device.name}, stream {', '.join(entry.streams)}"
                yield Span("/".join(entry.path), entry.device_start_ns, entry.device_end_ns, track)


def _host_span(entry: Entry) -> Span:
    return Span("/".join(entry.path), entry.host_start_ns, entry.host_end_ns, entry.label or HOST)


# --------------------------------------------------------------------------- child processes

# This code runs beside the processes whose numbers it is given. It writes that it has begun. Once its input ends, it
# writes a line for each time that a process has run: the moments of two looks, and how long the process ran in between.
_WATCHER = """
import os, select, sys, time
files, ran, found = {}, {}, []
for pid in sys.argv[1:]:
    try:
        files[pid] = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
    except OSError:
        pass  # it has ended
def look(pid):
    total = int(os.pread(files[pid], 100, 0).split()[0])
    now = time.perf_counter_ns()
    before, looked = ran.get(pid, (total, now))
    if total > before:
        found.append(f"{pid} {looked} {now} {total - before}\\n")
    ran[pid] = total, now
def look_at_all():
    for pid in list(files):
        try:
            look(pid)
        except OSError:
            del files[pid]
look_at_all()
print("begun", flush=True)
while not select.select([sys.stdin], [], [], 0.0001)[0]:
    look_at_all()
look_at_all()
sys.stdout.writelines(found)
"""
_LIMIT_S = 10.0


@dataclass
class _Ran:
    """How long child processes ran between looks by the system's clock; complete once the watching has ended."""

    found: list[tuple[str, int, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def spans(self, origin_ns: int, length_ns: int) -> Iterator[Span]:
        """Yield when the processes ran within a call.

        The system adds up a process's time when it gives up its CPU, at the latest every few milliseconds. So a process
        ran right after the first of two looks or, if it ran for longer than between them, until the second.
        """
        for process, looked_ns, now_ns, ran_ns in self.found:
            start_ns = max(0, min(looked_ns, now_ns - ran_ns) - origin_ns)
            end_ns = min(length_ns, now_ns - origin_ns, start_ns + ran_ns)
            if start_ns < end_ns:
                yield Span(RUNNING, start_ns, end_ns, HOST, process)


@contextmanager
def _watched_children() -> Iterator[_Ran]:
    """Watch when this process's children run on a CPU while the body runs."""
    ran = _Ran()
    names = _children()
    if not names:
        yield ran
        return
    if not Path("/proc/self/schedstat").exists():
        ran.notes.append("when child processes ran is not in the trace: this system has no /proc/PID/schedstat")
        yield ran
        return
    command = [sys.executable, "-I", "-S", "-c", _WATCHER, *map(str, names)]
    watcher = Popen(command, stdin=PIPE, stdout=PIPE, text=True)
    try:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        yield ran
        lines = _lines_of(watcher)
    finally:
        watcher.kill()
        watcher.wait()
    if lines is None:
        ran.notes.append("when child processes ran is not in the trace: watching them failed")
        return
    for line in lines:
        pid, looked_ns, now_ns, ran_ns = map(int, line.split())
        ran.found.append((names[pid], looked_ns, now_ns, ran_ns))


def _lines_of(watcher: Popen[str]) -> list[str] | None:
    """End a watcher, and return the lines that it has written; None if it has failed."""
    try:
        text, _ = watcher.communicate(timeout=_LIMIT_S)
    except TimeoutExpired:
        return None
    return None if watcher.returncode else text.splitlines()


def _children() -> dict[int, str]:
    """Return the names of this process's children and further descendants, by their numbers."""
    import psutil

    known = {child.pid: child.name for child in multiprocessing.active_children()}
    found = psutil.Process().children(recursive=True)
    return {child.pid: f"{known.get(child.pid, 'child process')} ({child.pid})" for child in found}


# --------------------------------------------------------------------------- Chrome's trace events


def chrome_trace(trace: CallTrace, title: str) -> str:
    """Return a trace as Chrome's trace events, which Perfetto and ``chrome://tracing`` open.

    Each process that ran is one in the trace, with a thread for each track; times are microseconds.
    """
    pids = {process: number for number, process in enumerate(dict.fromkeys(span.process for span in trace.spans), 1)}
    events = [_named("process_name", pid, 0, process or title) for process, pid in pids.items()]
    tids: dict[tuple[str, str], int] = {}
    named = 0
    for span, track in _placed(trace.spans):
        tid = tids.setdefault((span.process, track), len(tids) + 1)
        if tid > named:
            named = tid
            events.append(_named("thread_name", pids[span.process], tid, track))
        place = {"pid": pids[span.process], "tid": tid}
        times = {"ts": span.start_ns / 1000, "dur": (span.end_ns - span.start_ns) / 1000}
        name = span.name.rpartition("/")[2]
        events.append({"ph": "X", "name": name, **place, **times, "args": {"path": span.name}})
    other = {"test": title, "notes": list(trace.notes)}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}) + "\n"


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _placed(spans: Sequence[Span]) -> Iterable[tuple[Span, str]]:
    """Yield spans, outer ones first, each with its track.

    Viewers draw the ranges of one track only if they nest. A range that overlaps another, as those of a device's
    streams do, goes on a further track, with the same name and a number.
    """
    open_: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns, each.name.count("/"))):
        track, number = span.track, 1
        while True:
            stack = open_.setdefault((span.process, track), [])
            while stack and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            if not stack or span.end_ns <= stack[-1].end_ns:
                stack.append(span)
                yield span, track
                break
            number += 1
            track = f"{span.track} ({number})"
