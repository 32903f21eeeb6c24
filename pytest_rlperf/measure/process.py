"""The coordinator's end of one worker: what it is told, about one test at a time, and what it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from pytest_rlperf.measure import messages as m
from pytest_rlperf.measure.child import Child, ChildLostError
from pytest_rlperf.measure.launch import Launch
from pytest_rlperf.model import Shape, SliceKind, SliceRecord, Tally, Warm

START_LIMIT_S = 300.0  # importing and collecting, several workers at once
SETUP_LIMIT_S = 300.0  # a test's own fixtures

Reply = TypeVar(
    "Reply",
    m.Called,
    m.Checked,
    m.Counted,
    m.Warmed,
    m.Surveyed,
    m.Slowed,
    m.Placed,
    m.Taken,
    m.Explained,
    m.Traced,
    m.Done,
)


class WorkerLostError(Exception):
    """A worker died, or did not answer in time and was ended; the text says how, with its last output."""

    def __init__(self, worker: Worker, text: str) -> None:
        super().__init__(text)
        self.worker = worker


class LeftEarlyError(Exception):
    """A test ended in a worker before its measurement did: it was skipped, failed, or called nothing."""

    def __init__(self, worker: Worker, done: m.Done) -> None:
        super().__init__(done.text)
        self.worker = worker
        self.done = done


class Worker:
    """One worker process, and the conversation with it about one test at a time.

    ``relay`` gets the reports and warnings that come between answers.
    """

    def __init__(
        self, number: int, launch: Launch, scratch: Path, relay: Callable[[m.Reported | m.Warned], None]
    ) -> None:
        self.number = number
        self.name = f"{launch.name} {number}"
        self.seed = 1000 + number  # both workers of a pair have the same
        self.loaded: dict[str, str] = {}
        self.importers: dict[str, str] = {}
        self.keys: frozenset[str] = frozenset()
        self.errors = ""
        self.running = False
        self.ready = False
        self.called: m.Called | None = None
        self.checked_s: float | None = None
        self.tally: Tally | None = None
        self.has_children = False
        self.patience_s = SETUP_LIMIT_S
        self._child = Child(number, self.name, launch, scratch, relay)

    @property
    def alive(self) -> bool:
        """Whether the process can be talked to."""
        return self._child.alive

    def wait_ready(self) -> None:
        """Wait until the worker has collected."""
        ready = self._receive(START_LIMIT_S)
        if not isinstance(ready, m.Ready) or ready.protocol != m.PROTOCOL:
            self.end(0)
            theirs = f"protocol {ready.protocol}" if isinstance(ready, m.Ready) else repr(ready)
            raise WorkerLostError(
                self,
                f"{self.name} has another version of pytest-rlperf: it speaks {theirs}, this process {m.PROTOCOL}. "
                "Both sides are measured by one version",
            )
        self.keys = frozenset(ready.keys)
        self.errors = ready.errors
        self._note(ready.loaded)
        self.ready = True

    def start_run(self, key: str, next_key: str | None, *, reporter: bool, patience_s: float) -> None:
        """Have the worker begin a test, in which it may take ``patience_s`` for any answer once it was called."""
        self.patience_s = patience_s
        self.running = True
        self.called = None
        self.checked_s = None
        self.tally = None
        self._send(m.Run(key, next_key, self.seed, reporter))

    def wait_called(self) -> m.Called:
        """Wait until the test calls an rlperf fixture."""
        self.called = self._expect(m.Called, SETUP_LIMIT_S)
        return self.called

    def start_check(self) -> None:
        """Have the worker run the component once."""
        self._send(m.Check())

    def wait_checked(self) -> tuple[float, float]:
        """Wait for that; return the seconds it took and the items it processed."""
        checked = self._expect(m.Checked, self.patience_s)
        self._note(checked.loaded)
        self.has_children = checked.children
        self.checked_s = checked.first_call_s
        return checked.first_call_s, checked.items

    def start_count(self, repetitions: int, limit_s: float) -> None:
        """Have the worker count what a call does, if that takes no longer than ``limit_s``."""
        self._send(m.Count(repetitions, limit_s))

    def wait_counted(self) -> Tally:
        """Wait for that, and return what it counted."""
        return self._expect(m.Counted, self.patience_s).tally

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        """Have the worker warm up, and wait for it."""
        self._send(m.WarmUp(shape, limit_s, long, kernels))
        return self._expect(m.Warmed, self.patience_s).warm

    def survey(self) -> None:
        """Note what the worker has loaded by now: also what a later call than the first was the first to need."""
        self._send(m.Survey())
        surveyed = self._expect(m.Surveyed, self.patience_s)
        self._note(surveyed.loaded)
        self.has_children |= surveyed.children

    def slow_down(self, share: float, steps: int | None) -> int:
        """Have every round do extra work from now on, ``share`` of it unless told in steps; return the steps."""
        self._send(m.Slow(share, steps))
        return self._expect(m.Slowed, self.patience_s).steps

    def place(self, cpus: Collection[int]) -> None:
        """Keep the worker on ``cpus`` until it leaves the test."""
        self._send(m.Place(list(cpus)))
        self._expect(m.Placed, self.patience_s)

    def take(self, kind: SliceKind) -> SliceRecord:
        """Have the worker take one slice, and wait for it."""
        self._send(m.Take(kind))
        return self._expect(m.Taken, self.patience_s).record

    def explain(self) -> m.Explained:
        """Have the worker look where a call's time goes, and wait for it."""
        self._send(m.Explain())
        return self._expect(m.Explained, self.patience_s)

    def trace(self) -> m.Traced:
        """Have the worker record one call, and wait for it."""
        self._send(m.Trace())
        return self._expect(m.Traced, self.patience_s)

    def cpu_s(self) -> float:
        """Return the CPU seconds the process and its children have used."""
        return self._child.cpu_s()

    def conclude(self, order: m.Conclude) -> m.Done:
        """Give the reporter its result, and wait for the end of its test."""
        self.called = None
        self._send(order)
        return self._wait_done()

    def start_unwinding(self) -> None:
        """Have the worker leave its test, if it is at the call."""
        if self.running and self.called is not None:
            self.called = None
            self._send(m.Unwind())

    def unwind(self) -> m.Done | None:
        """Have the worker leave its test at the call, wherever it has got to, and wait until it has."""
        if not self.running:
            return None
        self.start_unwinding()
        return self._wait_done()

    def start_quitting(self) -> None:
        """Ask the worker to leave its test and end its session, with all teardowns."""
        with contextlib.suppress(WorkerLostError):
            if self.running:
                self._send(m.Unwind())  # though it has not called yet: it will read this when it does
            self._send(m.Quit())

    def end(self, limit_s: float) -> None:
        """End the process and its children: wait ``limit_s`` for it to end by itself, then use force."""
        self._child.end(limit_s)
        self.running = False

    def _note(self, loaded: m.Loaded) -> None:
        self.loaded |= loaded.files
        self.importers |= loaded.importers

    def _wait_done(self) -> m.Done:
        """Wait for the end of the test; a call made meanwhile is unwound."""
        while True:
            message = self._receive(SETUP_LIMIT_S)
            if isinstance(message, m.Done):
                self.running = False
                self.called = None
                return message
            if isinstance(message, m.Called):
                self._send(m.Unwind())

    def _expect(self, kind: type[Reply], limit_s: float) -> Reply:
        message = self._receive(limit_s)
        if isinstance(message, kind):
            return message
        if isinstance(message, m.Done):
            self.running = False
            self.called = None
            raise LeftEarlyError(self, message)
        self.end(0)
        raise WorkerLostError(self, f"{self.name} answered {message!r} where {kind.__name__} was due")

    def _send(self, message: m.FromCoordinator) -> None:
        try:
            self._child.send(message)
        except ChildLostError as lost:
            raise self._lost(lost) from None

    def _receive(self, limit_s: float) -> m.FromWorker:
        try:
            return self._child.receive(limit_s)
        except ChildLostError as lost:
            raise self._lost(lost) from None

    def _lost(self, lost: ChildLostError) -> WorkerLostError:
        self.running = False
        return WorkerLostError(self, str(lost))
