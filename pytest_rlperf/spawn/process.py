"""The processes of a run as the run sees them: loaders, stems and workers, what is said to them, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from pytest_rlperf import wire as m
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.model.measured import OutputPart, Shape, SliceKind, SliceRecord, Tally, Usage, Warm
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.spawn import preload as loader_program
from pytest_rlperf.spawn.contract import WorkerStoppedError
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.locks import blocking_lock, own_lock

_POLL_S = 0.2
_POLL_END_S = 0.002
_DYING_S = 5.0  # from the end of a process's connection to its own
_HALF_MESSAGE_S = 30  # from the first byte of a message to its last
_LOAD_S = 120.0
_LOAD_HINT = "it imports what both sides load alike"
_LAST_LINES = 30  # of a lost worker's output
_LAST_BYTES = 1 << 20
_SETUP_HINT = "imports and fixtures that take longer need a longer --rlperf-setup-time"
_CALL_HINT = "work that takes longer needs a longer --rlperf-max-time, of which an answer may take four times"
_FORK_LIMIT_S = 30.0  # from the order for a copy to its first message, which takes milliseconds
_FORK_HINT = "a package that it has loaded may hang where its process is forked"
_CREDENTIALS = struct.Struct("3i")  # the number of a process, its user and its group
_PADDING = "PYTEST_RLPERF_PADDING"
_PADDING_MOST = 4096  # bytes: a page
# Takes the current directory off the path, where a file may bear the name of a module; the run's own path follows.
_BOOT = "import sys; sys.path = [p for p in sys.path if p]; from pytest_rlperf.worker.session import main; main()"

# Runs a file's text in a process that has no file as its ``__main__``.
_PROGRAM = """
import sys
with open(sys.argv.pop(), encoding='utf-8') as file:
    text = file.read()
exec(text)
"""

Forward: TypeAlias = Callable[[m.Reported | m.Warned], None]
"""Receives the reports and warnings that a worker sends between its answers."""


class WorkerLostError(WorkerStoppedError):
    """A process died, or did not answer in time and was ended; the text states which, with the end of its output."""

    def __init__(self, worker: Process, text: str) -> None:
        super().__init__(text)
        self.worker = worker

    @property
    def is_doubtful(self) -> bool:
        """Whether a new interpreter may do what this process failed to do."""
        return self.worker.is_forked and not self.worker.is_cancelled and not self.worker.is_blocked


class LeftEarlyError(WorkerStoppedError):
    """A test ended in a worker before its measurement did: it was skipped, failed, or called nothing."""

    def __init__(self, worker: Worker, done: m.Done) -> None:
        super().__init__(done.text)
        self.worker = worker
        self.done = done

    @property
    def is_doubtful(self) -> bool:
        """Whether the test may pass in a new interpreter."""
        return self.worker.is_forked and self.done.outcome == "failed" and not self.done.is_certain


class Process:
    """A process of a run at the other end of a connection; its output is in ``scratch``.

    One thread at a time uses it, but any may :meth:`cancel` that one's waiting. ``started`` is its handle where it is a
    child of this process.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        scratch: Path,
        guardian: Guardian,
        started: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.name = name
        self.is_base = False  # of a comparison
        self.places = "", ""  # its tree, and the user's own, which texts name instead
        self.connection = connection
        self.pid = 0
        self._scratch = scratch
        self._guardian = guardian
        self._started = started
        self.is_cancelled = False
        self.is_blocked = False  # by a lock that it did not get
        self._has_ended = False
        self._quit_s: float | None = None
        if started is not None:
            self._is_known_as(started.pid)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy of another process, not a new interpreter."""
        return self._started is None

    def _is_known_as(self, pid: int) -> None:
        self.pid = pid
        self._guardian.watch(pid)

    def wait_begun(self) -> None:
        """Wait until a copy of a process has begun, and learn its number from the kernel: code under test runs in it.

        WorkerLostError also where that number is of no process that this run has started.
        """
        pid, due_s = 0, time.monotonic() + _FORK_LIMIT_S
        self._wait_readable(due_s, _FORK_LIMIT_S, _FORK_HINT)
        with contextlib.suppress(OSError):  # what is read next says how the process ended
            pid = sender_of(self.connection)
        message = self.receive(due_s, _FORK_LIMIT_S, _FORK_HINT)
        if not isinstance(message, m.Started):
            raise self._unexpected(message)
        if not self._guardian.owns(pid):
            self.end(0)
            raise self.lost(f"{self.name} is process {pid}, which this run did not start")
        self._is_known_as(pid)

    # ------------------------------------------------------------------ messages

    def send(self, message: m.ToWorker | m.ToLoader, *ends: Connection) -> None:
        """Send a message, and ends of connections that belong to it and are closed here.

        WorkerLostError where the process is gone.
        """
        try:
            m.send(self.connection, message)
            for there in ends:
                with there, loader_program.socket_of(self.connection) as channel:
                    socket.send_fds(channel, [b"\1"], [there.fileno()])  # one, as multiprocessing has it
        except BlockingIOError:
            raise self.lost(self._abort("read no message", _HALF_MESSAGE_S, _CALL_HINT)) from None
        except OSError:
            raise self.lost(self._how_it_ended()) from None

    def receive(self, due_s: float, limit_s: float, hint: str) -> m.FromWorker:
        """Return the next message; a process that sends none until ``due_s``, after ``limit_s``, is ended.

        A message that has come before is read, also where this process looks for it later.
        """
        self._wait_readable(due_s, limit_s, hint)
        try:
            return m.receive_from_worker(self.connection)
        except BlockingIOError:
            error = m.UnreadableError(f"the rest of a message did not come within {_HALF_MESSAGE_S} s")
            raise self._unreadable(error) from None
        except m.UnreadableError as error:
            raise self._unreadable(error) from None
        except (EOFError, OSError):
            raise self.lost(self._how_it_ended()) from None

    def _wait_readable(self, due_s: float, limit_s: float, hint: str) -> None:
        """Wait for a message, or for the end of the process."""
        while True:
            if self.is_cancelled:
                raise WorkerLostError(self, f"{self.name} was stopped with the run")
            left_s = due_s - time.monotonic()
            try:
                if self.connection.poll(max(0.0, min(_POLL_S, left_s))):
                    return
            except OSError:
                raise self.lost(self._how_it_ended()) from None
            if left_s <= 0:
                raise self.lost(self._abort("did not answer", limit_s, hint))

    def cancel(self) -> None:
        """Have the thread that waits for an answer raise WorkerLostError."""
        self.is_cancelled = True

    def _unreadable(self, error: m.UnreadableError) -> WorkerLostError:
        """End a process whose messages cannot be read, and return the error."""
        self.end(0)
        return self.lost(f"{self.name} sent a message that cannot be read: {error}.\n{self._last_output()}")

    def _unexpected(self, message: m.FromWorker) -> WorkerLostError:
        """End a process that sends another message than the one that is due, and return the error."""
        self.end(0)
        return self.lost(f"{self.name} sent {type(message).__name__} where the answer to an order was due")

    def lost(self, text: str) -> WorkerLostError:
        """Return the error of a process that is of no use any more."""
        return WorkerLostError(self, text)

    # ------------------------------------------------------------------ the process

    @property
    def alive(self) -> bool:
        """Whether the process can receive messages."""
        return not self._has_ended and not self.connection.closed

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process and its children have used."""
        total_s = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    total_s += times.user + times.system
        return total_s

    def interrupt_call(self, limit_s: float) -> None:
        """Have a process that has not quit after ``limit_s`` leave the call that it is in, with all teardowns."""
        if not self._wait_ended(limit_s):
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if its number is known and still its own."""
        if self._guardian.owns(self.pid):
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def _wait_ended(self, limit_s: float) -> bool:
        """Wait for the process to end by itself; the limit of one that was to quit began with that."""
        if self._has_ended:
            return True
        quitting_s = 0.0 if self._quit_s is None else time.monotonic() - self._quit_s
        due_s = time.monotonic() + max(0.0, limit_s - quitting_s)
        while True:
            left_s = due_s - time.monotonic()
            try:
                if self.connection.poll(max(0.0, min(_POLL_S, left_s))):
                    self.connection.recv_bytes()  # of no use any more
                    continue
            except (EOFError, OSError):
                return self._exit_code(max(left_s, 1.0)) is not None or self.is_forked
            if left_s <= 0:
                return False

    def _exit_code(self, limit_s: float) -> int | None:
        """Return how the process ended, None where that is not known; a copy keeps that until its stem waits for it."""
        due_s = time.monotonic() + limit_s
        if self._started is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._started.wait(limit_s)
        while self.is_forked and self.pid and time.monotonic() < due_s:
            try:
                state, *_, status = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                return None
            if state == b"Z":
                return os.waitstatus_to_exitcode(int(status))
            time.sleep(_POLL_END_S)
        return None

    def end(self, limit_s: float) -> None:
        """End the process and its children: wait ``limit_s`` for it to end by itself, then use force.

        The limit of a process that was to quit began with that. A thread that waits for its answer gets a
        WorkerLostError.
        """
        if self._has_ended:
            return
        if limit_s > 0:
            self._wait_ended(limit_s)
        self._has_ended = True  # the number of its process group may be another's from now on
        # Even after a clean exit: what it started in its session ends with it; the guardian ends the rest.
        if self.pid:
            if self._guardian.owns(self.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._forget()
        if self._started is not None:
            self._started.wait()
        self.connection.close()

    def remove_files(self) -> None:
        """Remove the files of a process that has ended, and whose output nobody will ask for."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _forget(self) -> None:
        """Let the number of the process, which has ended, be another's."""
        self._guardian.forget(self.pid)

    def _abort(self, failing: str, limit_s: float, hint: str) -> str:
        """End a process that does not answer; SIGABRT has faulthandler write where it hangs."""
        captured = self._last_output()
        if lock := blocking_lock(self.pid):
            self.is_blocked = True
            hint = f"it waits for {lock}: take it in a fixture, and give it back"
        elif lock := own_lock():
            hint += f"; or it waits for {lock}"
        self._signal(signal.SIGABRT)
        self._wait_ended(2)
        stack = self._last_output()
        self.end(0)
        return f"{self.name} {failing} within {limit_s:.0f} s and was ended; {hint}.\n{stack or captured}"

    def _how_it_ended(self) -> str:
        """Return how a dead process ended, with the end of its output."""
        code = self._exit_code(_DYING_S)
        self.end(0)
        if code is None:
            how = "ended or closed its connection"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        return f"{self.name} {how}.\n{self._last_output()}"

    def _last_output(self) -> str:
        """Return the end of the process's output: of its standard streams, and of those that pytest captured."""
        parts = []
        titles = {"captured0": "stdout", "captured1": "stderr", "output": "process output"}
        for path in [*sorted(self._scratch.glob("captured*")), self._scratch / "output"]:
            with contextlib.suppress(OSError):
                text = _end_of(path).strip()
                if text:
                    title = titles.get(path.name, "output captured by a fixture")
                    parts.append(f"--- last {title} ---\n" + "\n".join(_useful_lines(text.splitlines())))
        tree, top = self.places
        return "\n".join(parts).replace(tree, top) if tree else "\n".join(parts)


class Loader(Process):
    """A process that imports what both sides load alike, and forks the stems of pairs."""

    def __init__(self, python: str, environment: Mapping[str, str], scratch: Path, guardian: Guardian) -> None:
        here, there = connected()
        command = [python, *_interpreter_flags(), "-c", _PROGRAM, loader_program.__file__]
        variables = {**environment, loader_program.OUTPUT: str(scratch / "output")}
        process = popen(command, there, loader_program.KEY, variables, scratch)
        super().__init__("the loader", here, scratch, guardian, process)
        self._lock = threading.Lock()
        self.changes: dict[str, str | None] = {}  # that imports have made to the variables

    def load(self, modules: Sequence[str], packages: Sequence[str], top: str, apart: Sequence[str]) -> str | None:
        """Import modules; return the first that wants what each side has to import for itself.

        After that this process is of no use.

        WorkerLostError where that ends the process, or takes too long.
        """
        self.send(m.Load(list(modules), list(packages), top, list(apart)))
        answer = self.receive(time.monotonic() + _LOAD_S, _LOAD_S, _LOAD_HINT)
        if not isinstance(answer, m.Imported):
            raise self._unexpected(answer)
        self.changes = answer.changes
        if answer.dirty is not None:
            self.end(0)
        return answer.dirty

    def fork(self, starts: Sequence[m.Start]) -> list[Connection]:
        """Have the stems of a pair forked, and return the connections to them."""
        ends = [connected() for _ in starts]
        with self._lock:
            self.send(m.ForkPair(list(starts)), *(there for _, there in ends))
        return [here for here, _ in ends]


class Stem(Process):
    """A session of one side that has collected: it forks a worker for each test, or is itself the worker of all."""

    def __init__(
        self,
        name: str,
        start: m.Start,
        guardian: Guardian,
        setup_s: float,
        connection: Connection | None = None,
        *,
        is_base: bool = False,
    ) -> None:
        self.number = start.number
        self.forks = start.forks
        self.collected = m.Ready(PROTOCOL)
        self.lock = threading.RLock()
        self.kept: Worker | None = None  # the copy that has set up what tests share, at length
        self._limit_s = setup_s
        self._due_s = time.monotonic() + setup_s
        process = None
        if connection is None:
            process, connection = _new_interpreter(start)
        super().__init__(name, connection, Path(start.scratch), guardian, process)
        self.is_base = is_base
        self.places = start.tree, start.top

    def wait_ready(self) -> None:
        """Wait until the stem has collected."""
        if self.forks:
            self.wait_begun()
        ready = self.receive(self._due_s, self._limit_s, _SETUP_HINT)
        if not isinstance(ready, m.Ready) or ready.protocol != PROTOCOL:
            self.end(0)
            theirs = f"protocol {ready.protocol}" if isinstance(ready, m.Ready) else repr(ready)
            raise self.lost(
                f"{self.name} has another version of pytest-rlperf: it uses {theirs}, this process {PROTOCOL}. "
                "Both sides are measured by one version"
            )
        self.collected = ready

    def worker(self) -> Worker:
        """Return a worker for the next test: a copy of this process, or this process itself."""
        if not self.forks:
            self.kept = self.kept or Worker(self, self.connection, self._scratch)
            return self.kept
        kept, self.kept = self.kept, None  # one test has it at a time
        if kept is not None and kept.alive:
            return kept
        here, there = connected()
        scratch = self._guardian.new_directory()
        with self.lock:
            if self._quit_s is not None:
                raise self.lost(f"{self.name} has ended")
            self.send(m.Fork(str(scratch)), there)
        return Worker(self, here, scratch)

    def reap(self, pid: int) -> None:
        """Have the stem wait for a copy that has ended."""
        with self.lock, contextlib.suppress(WorkerLostError):
            if self.alive and self._quit_s is None:  # else it ends, and leaves its copies to another process
                self.send(m.Reap(pid))

    def start_quitting(self) -> None:
        """Begin to end the session, with all teardowns."""
        with self.lock, contextlib.suppress(WorkerLostError):  # not between an order to fork and its connection
            if self._quit_s is None:
                self._quit_s = time.monotonic()
                if self.kept is not None and self.forks:
                    self.kept.start_quitting()
                self.send(m.Quit())


class Worker(Process):
    """A process at work on one test; it keeps its files in ``scratch``.

    Every method that sends or receives may raise WorkerLostError, and LeftEarlyError where the test has ended instead
    of answering. The limit of an answer begins with its order: several workers that hang after orders given at once are
    waited for one limit, not several.
    """

    def __init__(self, stem: Stem, connection: Connection, scratch: Path) -> None:
        super().__init__(stem.name, connection, scratch, stem._guardian, None if stem.forks else stem._started)
        self.stem = stem
        self.is_base = stem.is_base
        self.places = stem.places
        self.number = stem.number
        self.seed = 1000 + self.number // 2  # both workers of a pair have the same, and so has every second pair
        self.loaded = dict(stem.collected.loaded)
        self.variables: Mapping[str, str] = {}
        self.output: tuple[OutputPart, ...] = ()
        self.running = False
        self.called: m.Called | None = None
        self.shared_setup_s = 0.0  # of all tests that it has run
        self.checked_s: float | None = None
        self.tally: Tally | None = None
        self.has_children = False
        self.forward: Forward | None = None
        self._setup_s = 0.0
        self._patience_s = 0.0
        self._limit_s = 0.0
        self._hint = ""
        self._due_s = 0.0
        self._is_leaving = False
        self._orders = 0
        self._pending: m.Order | None = None

    # ------------------------------------------------------------------ one test, from its start to its end

    def start_run(
        self,
        key: str,
        next_key: str | None,
        *,
        setup_s: float,
        patience_s: float,
        forward: Forward | None = None,
    ) -> None:
        """Begin a test, in which any answer may take ``patience_s`` once it has called its fixture.

        Its own fixtures may take ``setup_s`` to get there, and as long to be torn down. ``forward`` receives the
        reports and warnings that come between answers, of a worker that is to send them.
        """
        self.forward = forward
        self._setup_s = setup_s
        self._patience_s = patience_s
        self.running = True
        self._is_leaving = False
        self.called = None
        self.checked_s = None
        self.tally = None
        if self.stem.forks and not self.pid:
            self.wait_begun()
        self._begin_limit(setup_s, _SETUP_HINT)
        self.send(m.Run(key, next_key, self.seed, reporter=forward is not None))

    def wait_called(self) -> m.Called:
        """Wait until the test calls an rlperf fixture."""
        message = self._next()
        if not isinstance(message, m.Called):
            raise self._unexpected(message)
        self.called = message
        self.shared_setup_s = message.shared_setup_s
        return message

    def start_check(self) -> None:
        """Begin to run the component once and check it."""
        self._start(m.Check())

    def wait_checked(self) -> tuple[float, float]:
        """Return the seconds of the checked call and the items it processed."""
        checked: m.Checked = self._answer()
        self.loaded |= checked.loaded
        self.has_children = checked.children
        self.checked_s = checked.first_call_s
        self.variables = checked.variables
        self.output = checked.output
        return checked.first_call_s, checked.items

    def start_count(self, repetitions: int, limit_s: float) -> None:
        """Begin to count ``repetitions`` calls, unless that takes longer than ``limit_s``."""
        self._start(m.Count(repetitions, limit_s))

    def wait_counted(self) -> Tally:
        """Return the counts."""
        tally: Tally = self._answer()
        return tally

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        """Warm up for at most ``limit_s``, and size the slices unless ``shape`` is given."""
        warm: Warm = self.ask(m.WarmUp(shape, limit_s, long, kernels))
        return warm

    def start_observe(self, limit_s: float) -> None:
        """Begin to call the component until it has read nothing new for a while."""
        self._start(m.Observe(limit_s))

    def wait_observed(self) -> list[str]:
        """Return the files that the process has read."""
        observed: m.Observed = self._answer()
        self.has_children |= observed.children
        return observed.files

    def place(self, cpus: Collection[int]) -> None:
        """Keep the worker on ``cpus`` until it leaves the test."""
        self.ask(m.Place(list(cpus)))

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take one slice."""
        record: SliceRecord = self.ask(m.Take(kind))
        return record

    def usage(self) -> Usage:
        """Return the resources that the process holds by now."""
        usage: Usage = self.ask(m.ReadUsage())
        return usage

    def ask(self, order: m.Order) -> Any:
        """Give an order and return its answer, of the order's type."""
        self._start(order)
        return self._answer()

    def start_leaving(self, order: m.Leave | None = None) -> None:
        """Begin to leave the test at its call, which it may yet have to reach; the call ends as ``order`` has it."""
        if self.running and not self._is_leaving:
            self._is_leaving = True
            self._begin_limit(self._setup_s, _SETUP_HINT)
            self.send(order or m.Leave())  # before the call, the worker reads it when it gets there

    def leave(self, order: m.Leave | None = None) -> m.Done | None:
        """Leave the test at its call, and return how it ended; None where it is over already."""
        self.start_leaving(order)
        while self.running:
            message = self._message()
            if isinstance(message, m.Done):  # and no answer to an earlier order, which is of no use any more
                self.running = False
                return message
        return None

    @property
    def set_variables(self) -> list[str]:
        """The names of variables that the test has set, and that libraries read when they are loaded."""
        return loader_program.differing_variables(self.stem.collected.variables, self.variables)

    # ------------------------------------------------------------------ messages

    def _begin_limit(self, limit_s: float, hint: str) -> None:
        """Begin the time that the next answer may take; ``hint`` names the option that allows for more."""
        self._limit_s = limit_s
        self._hint = hint
        self._due_s = time.monotonic() + limit_s

    def _start(self, order: m.Order) -> None:
        self._begin_limit(self._patience_s, _CALL_HINT)
        self._orders += 1
        self._pending = order.numbered(self._orders)
        self.send(self._pending)  # type: ignore[arg-type]

    def _answer(self) -> Any:
        """Return the answer to the last order."""
        order, message = self._pending, self._next()
        assert order is not None
        if not isinstance(message, m.Answer) or message.order != order.number:
            raise self._unexpected(message)
        try:
            return m.answer_to(order, message)
        except m.UnreadableError as error:
            raise self._unreadable(error) from None

    def _next(self) -> m.FromWorker:
        """Return the next message that is no report; LeftEarlyError where the test has ended."""
        message = self._message()
        if isinstance(message, m.Done):
            self.running = False
            raise LeftEarlyError(self, message)
        return message

    def _message(self) -> m.FromWorker:
        """Return the next message that is an answer; forward the reports and warnings before it."""
        while True:
            message = self.receive(self._due_s, self._limit_s, self._hint)
            if not isinstance(message, m.Reported | m.Warned):
                return message
            if self.forward is not None:
                self.forward(message)

    def lost(self, text: str) -> WorkerLostError:
        """Return the error of a worker that is of no use any more."""
        self.running = False
        return WorkerLostError(self, text)

    # ------------------------------------------------------------------ the process

    def _forget(self) -> None:
        super()._forget()
        if self.stem.forks:
            self.stem.reap(self.pid)

    def start_quitting(self) -> None:
        """Begin to leave the test and end the process, with its teardowns."""
        if self._quit_s is None:
            self._quit_s = time.monotonic()
            with contextlib.suppress(WorkerLostError):
                self.start_leaving()
                self.send(m.Quit())


def connected() -> tuple[Connection, Connection]:
    """Return the two ends of a new connection: that of the run does not wait for ever for the rest of a message."""
    here, there = socket.socketpair()
    for end in (here, there):
        end.setblocking(True)  # whatever default time limit a test module has set
    limit = struct.pack("ll", _HALF_MESSAGE_S, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        here.setsockopt(socket.SOL_SOCKET, option, limit)
    if sys.platform == "linux":
        here.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return Connection(here.detach()), Connection(there.detach())


def sender_of(connection: Connection) -> int:
    """Return the number of the process that has sent what can be read next, as the kernel knows it; 0 if it does not.

    Code under test runs in that process and could name any other.
    """
    with loader_program.socket_of(connection) as channel:
        _, found, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
    for level, kind, data in found:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, _, _ = _CREDENTIALS.unpack(data)
            return int(pid)
    return 0


def popen(
    command: Sequence[str],
    there: Connection,
    key: str,
    environment: Mapping[str, str],
    scratch: Path,
    *,
    directory: str | None = None,
    stdout: Path | None = None,
    stderr: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process at the end ``there`` of a connection, which is closed here; MeasurementError where it cannot be.

    The variable ``key`` has the number of its descriptor. Output without a file is the terminal's.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        out, err = (None if path is None else files.enter_context(path.open("ab")) for path in (stdout, stderr))
        try:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=directory,
                env={**environment, key: str(there.fileno())},
                pass_fds=[there.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is for the run to handle
            )
        except OSError as error:
            raise MeasurementError(f"cannot start {command[0]}: {error}") from None
        finally:
            there.close()


def _new_interpreter(start: m.Start) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a stem that is a new interpreter, and give it its settings; return it and the connection to it."""
    here, there = connected()
    terminal = None if start.share_terminal else Path(start.output)
    process = popen(
        [start.python, *_interpreter_flags(), "-c", _BOOT],
        there,
        m.DESCRIPTOR_KEY,
        start.environment,
        Path(start.scratch),
        directory=start.directory,
        stdout=None if start.reports else terminal,
        stderr=terminal,
    )
    here.send_bytes(json.dumps(m.as_json(start)).encode())
    return process, here


def padded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment of another size: by its own stack addresses each interpreter has another layout.

    One layout for all would be a bias that looks like a result. (T. Mytkowicz et al., "Producing wrong data without
    doing anything obviously wrong!", ASPLOS 2009)
    """
    return {**environment, _PADDING: "." * random.SystemRandom().randrange(_PADDING_MOST)}


def _interpreter_flags() -> list[str]:
    """Return the flags this interpreter was started with, as multiprocessing passes them on."""
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def _end_of(path: Path) -> str:
    """Return the end of a file, which may be long."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        return file.read().decode("utf-8", errors="replace")


def _useful_lines(lines: list[str]) -> list[str]:
    """Return the last lines, or of a crash the first: faulthandler writes the innermost frame first."""
    crashes = [index for index, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[crashes[-1] :][:_LAST_LINES] if crashes else lines[-_LAST_LINES:]
