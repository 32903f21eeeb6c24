"""A worker process as the run sees it: its start, the messages to and from it, and its end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import psutil

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.worker import WorkerStoppedError
from pytest_rlperf.model import Shape, Side, SliceKind, SliceRecord, Tally, Warm
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.probes import arm_ranges
from pytest_rlperf.timers.process import VARIABLE
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.channel import FRAME_LIMIT_S, Channel, UnreadableError
from pytest_rlperf.workers.guardian import Guardian

_POLL_S = 0.2
_DYING_S = 5.0  # from the end of a worker's connection to its own
_LAST_LINES = 30  # of a lost worker's output
_LAST_BYTES = 1 << 20
_SETUP_HINT = "imports and fixtures that take longer need a longer --rlperf-setup-time"
_CALL_HINT = "work that takes longer needs a longer --rlperf-max-time, of which an answer may take four times"
_PADDING = "PYTEST_RLPERF_PADDING"
_PADDING_MOST = 4096  # bytes: a page
# Takes the current directory off the path, where a file may bear the name of a module; the run's own path follows.
_BOOT = "import sys; sys.path = [p for p in sys.path if p]; from pytest_rlperf.workers.session import main; main()"

Forward: TypeAlias = Callable[[m.Reported | m.Warned], None]
"""Receives the reports and warnings that a worker sends between its answers."""


@dataclass(frozen=True)
class StartSettings:
    """The settings that every worker of one side starts with; ``name`` is part of its workers' names.

    Where a side ``reports``, its first worker is the one whose tests the user sees. ``watched`` are the directories
    and ``packages`` the import packages whose loaded files a worker lists; no file should be loaded from ``foreign``.
    To import and collect may take ``limit_s``.
    """

    name: str
    side: Side
    reports: bool
    markup: bool
    share_terminal: bool
    watched: tuple[str, ...]
    packages: tuple[str, ...]
    foreign: tuple[str, ...]
    limit_s: float


class WorkerLostError(WorkerStoppedError):
    """A worker died, or did not answer in time and was ended; the text states which, with the end of its output."""

    def __init__(self, worker: WorkerProcess, text: str) -> None:
        super().__init__(text)
        self.worker = worker


class LeftEarlyError(WorkerStoppedError):
    """A test ended in a worker before its measurement did: it was skipped, failed, or called nothing."""

    def __init__(self, worker: WorkerProcess, done: m.Done) -> None:
        super().__init__(done.text)
        self.worker = worker
        self.done = done


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


class WorkerProcess:
    """One worker process, at work on one test at a time; it keeps its files in ``scratch``.

    One thread at a time uses it, but any may :meth:`cancel` that one's waiting. Every method that sends or receives may
    raise WorkerLostError, and LeftEarlyError where the test has ended instead of answering. The limit of an answer
    begins with its order: several workers that hang after orders given at once are waited for one limit, not several.
    """

    def __init__(self, number: int, settings: StartSettings, scratch: Path, guardian: Guardian) -> None:
        self.number = number
        self.name = f"{settings.name} {number}"
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
        self._setup_s = settings.limit_s
        self._patience_s = settings.limit_s
        self._limit_s = 0.0
        self._hint = ""
        self._due_s = 0.0
        self._is_leaving = False
        self._has_ended = False
        self._descendants: list[psutil.Process] = []
        self._quit_s: float | None = None
        self.forward: Forward | None = None
        self._is_cancelled = False
        self._scratch = scratch
        self._log = scratch / "output"
        scratch.mkdir(parents=True)
        self._guardian = guardian
        self._process, self._channel = self._start(settings)
        guardian.watch(self._process.pid)
        self._begin_limit(settings.limit_s, _SETUP_HINT)

    def _start(self, settings: StartSettings) -> tuple[subprocess.Popen[bytes], Channel]:
        """Start the process; return it with this end of the connection."""
        here, there = Channel.pair()
        # With -s the user sees the output of the reporting worker as it prints it.
        is_reporter = settings.reports and self.number == 0
        output = None if settings.share_terminal and is_reporter else self._log.open("ab")
        start = self._scratch / "start"
        m.write_start(_start_message(settings, self.number, self._scratch, there.fileno()), start)
        try:
            process = subprocess.Popen(
                [settings.side.python, *_interpreter_flags(), "-c", _BOOT],
                stdin=subprocess.DEVNULL,
                stdout=None if is_reporter else output,  # output that escapes pytest's capture is for the user to see
                stderr=output,
                cwd=settings.side.directory,
                env=_environment(settings.side) | self._guardian.variables() | {m.ENVIRONMENT_KEY: str(start)},
                pass_fds=[there.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is for the run to handle
            )
        except OSError as error:
            here.close()
            raise MeasurementError(f"cannot start {self.name}: {error}") from None
        finally:
            there.close()
            if output is not None:
                output.close()
        return process, here

    # ------------------------------------------------------------------ one test, from its start to its end

    def wait_ready(self) -> None:
        """Wait until the worker has collected."""
        ready = self._receive()
        if not isinstance(ready, m.Ready) or ready.protocol != PROTOCOL:
            self.end(0)
            theirs = f"protocol {ready.protocol}" if isinstance(ready, m.Ready) else repr(ready)
            raise WorkerLostError(
                self,
                f"{self.name} has another version of pytest-rlperf: it uses {theirs}, this process {PROTOCOL}. "
                "Both sides are measured by one version",
            )
        self.keys = frozenset(ready.keys)
        self.errors = ready.errors
        self._note(ready.loaded)
        self.ready = True

    def start_run(
        self,
        key: str,
        next_key: str | None,
        *,
        reporter: bool,
        setup_s: float,
        patience_s: float,
        forward: Forward | None = None,
    ) -> None:
        """Begin a test, in which any answer may take ``patience_s`` once it has called its fixture.

        Its own fixtures may take ``setup_s`` to get there, and as long to be torn down. ``forward`` receives the
        reports and warnings that come between answers.
        """
        self.forward = forward
        self._setup_s = setup_s
        self._patience_s = patience_s
        self.running = True
        self._is_leaving = False
        self.called = None
        self.checked_s = None
        self.tally = None
        self._begin_limit(setup_s, _SETUP_HINT)
        self._send(m.Run(key, next_key, self.seed, reporter))

    def wait_called(self) -> m.Called:
        """Wait until the test calls an rlperf fixture."""
        self.called = self._expect(m.Called)
        return self.called

    def start_check(self) -> None:
        """Begin to run the component once and check it."""
        self._order(m.Check())

    def wait_checked(self) -> tuple[float, float]:
        """Return the seconds of the checked call and the items it processed."""
        checked = self._expect(m.Checked)
        self._note(checked.loaded)
        self.has_children = checked.children
        self.checked_s = checked.first_call_s
        return checked.first_call_s, checked.items

    def start_count(self, repetitions: int, limit_s: float) -> None:
        """Begin to count ``repetitions`` calls, unless that takes longer than ``limit_s``."""
        self._order(m.Count(repetitions, limit_s))

    def wait_counted(self) -> Tally:
        """Return the counts."""
        return self._expect(m.Counted).tally

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        """Warm up for at most ``limit_s``, and size the slices unless ``shape`` is given."""
        return self._ask(m.WarmUp(shape, limit_s, long, kernels), m.Warmed).warm

    def survey(self) -> None:
        """List the files that are loaded by now: later calls than the first may have loaded more."""
        surveyed = self._ask(m.Survey(), m.Surveyed)
        self._note(surveyed.loaded)
        self.has_children |= surveyed.children

    def slow_down(self, share: float, steps: int | None) -> int:
        """Have every round do extra work from now on, and return its steps: ``share`` of a round without ``steps``."""
        return self._ask(m.Slow(share, steps), m.Slowed).steps

    def place(self, cpus: Collection[int]) -> None:
        """Keep the worker on ``cpus`` until it leaves the test."""
        self._ask(m.Place(list(cpus)), m.Placed)

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take one slice."""
        return self._ask(m.Take(kind), m.Taken).record

    def explain(self) -> m.Explained:
        """Return where a call's time goes."""
        return self._ask(m.Explain(), m.Explained)

    def trace(self) -> m.Traced:
        """Return the trace of one call."""
        return self._ask(m.TraceCall(), m.Traced)

    def conclude(self, order: m.Conclude) -> m.Done:
        """Give the reporter its result, and wait for the end of its test."""
        self.called = None
        self._is_leaving = True
        self._begin_limit(self._setup_s, _SETUP_HINT)
        self._send(order)
        return self._wait_done()

    def start_unwinding(self) -> None:
        """Begin to leave the test at its call, which it may yet have to reach."""
        if self.running and not self._is_leaving:
            self.called = None
            self._is_leaving = True
            self._begin_limit(self._setup_s, _SETUP_HINT)
            self._send(m.Unwind())  # before the call, the worker reads it when it gets there

    def unwind(self) -> m.Done | None:
        """Leave the test at the call, and wait for its end."""
        if not self.running:
            return None
        self.start_unwinding()
        return self._wait_done()

    def _wait_done(self) -> m.Done:
        """Wait for the end of the test; answers to earlier orders are of no use any more."""
        while True:
            message = self._receive()
            if isinstance(message, m.Done):
                self.running = False
                self.called = None
                return message

    def _note(self, loaded: m.Loaded) -> None:
        self.loaded |= loaded.files
        self.importers |= loaded.importers

    # ------------------------------------------------------------------ messages

    def _begin_limit(self, limit_s: float, hint: str) -> None:
        """Begin the time that the next answer may take; ``hint`` names the option that allows for more."""
        self._limit_s = limit_s
        self._hint = hint
        self._due_s = time.monotonic() + limit_s

    def _order(self, message: m.ToWorker) -> None:
        self._begin_limit(self._patience_s, _CALL_HINT)
        self._send(message)

    def _ask(self, message: m.ToWorker, kind: type[Reply]) -> Reply:
        self._order(message)
        return self._expect(kind)

    def _send(self, message: m.ToWorker) -> None:
        try:
            m.send(self._channel, message, FRAME_LIMIT_S)
        except TimeoutError:
            raise self._lost(self._abort("read no message", FRAME_LIMIT_S)) from None
        except (EOFError, OSError):
            raise self._lost(self._how_it_ended()) from None

    def _expect(self, kind: type[Reply]) -> Reply:
        message = self._receive()
        if isinstance(message, m.Done):
            self.running = False
            self.called = None
            raise LeftEarlyError(self, message)
        if isinstance(message, kind) and self._channel.answers_last:
            return message
        self.end(0)
        sent = type(message).__name__ + ("" if self._channel.answers_last else " to an earlier message")
        raise self._lost(f"{self.name} answered {sent} where {kind.__name__} was due")

    def _receive(self) -> m.FromWorker:
        """Return the next message that is an answer; forward the reports and warnings before it.

        An answer that has come before its limit is read, also where this process looks for it later.
        """
        last_s = max(self._due_s, time.monotonic()) + FRAME_LIMIT_S
        while True:
            if self._is_cancelled:
                raise WorkerLostError(self, f"{self.name} was stopped with the run")
            message = self._next_message()
            if isinstance(message, m.Reported | m.Warned):
                if self.forward is not None:
                    self.forward(message)
            elif message is not None:
                return message
            is_idle = message is None and not self._channel.is_within_frame
            if time.monotonic() > (self._due_s if is_idle else last_s):
                raise self._lost(self._abort("did not answer", self._limit_s))

    def _next_message(self) -> m.FromWorker | None:
        """Return the next message, or None where none has come after a moment."""
        try:
            message = m.receive_from_worker(self._channel, _POLL_S)
            # A process the worker forked may hold the connection open after the worker's death.
            if message is None and self._process.poll() is not None and not self._channel.is_within_frame:
                raise EOFError
        except (EOFError, OSError):
            raise self._lost(self._how_it_ended()) from None
        except UnreadableError as error:
            raise self._unreadable(error) from None
        return message

    def _unreadable(self, error: UnreadableError) -> WorkerLostError:
        """End a worker whose messages cannot be read, and return the error."""
        self.end(0)
        return self._lost(f"{self.name} sent a message that cannot be read: {error}.\n{self._last_output()}")

    def _lost(self, text: str) -> WorkerLostError:
        self.running = False
        return WorkerLostError(self, text)

    # ------------------------------------------------------------------ the process

    @property
    def alive(self) -> bool:
        """Whether the process runs and can receive messages."""
        return self._process.poll() is None and not self._channel.closed

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process and its children have used."""
        total_s = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    total_s += times.user + times.system
        return total_s

    def memory(self) -> int:
        """Return the bytes of memory that the process has, what it shares with others too."""
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def cancel(self) -> None:
        """Have the thread that waits for an answer raise WorkerLostError."""
        self._is_cancelled = True

    def start_quitting(self) -> None:
        """Begin to leave the test and end the session, with all teardowns."""
        if self._quit_s is not None:
            return
        self._quit_s = time.monotonic()
        with contextlib.suppress(WorkerLostError):
            self.start_unwinding()
            self._send(m.Quit())

    def interrupt_call(self, limit_s: float) -> None:
        """Have a worker that has not quit after ``limit_s`` leave the call that it is in, with all teardowns."""
        self._wait_ended(limit_s)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def _wait_ended(self, limit_s: float) -> None:
        """Wait for the process to end by itself; the limit of a worker that was to quit began with that."""
        quitting_s = 0.0 if self._quit_s is None else time.monotonic() - self._quit_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, limit_s - quitting_s))

    def end(self, limit_s: float) -> None:
        """End the process and its children: wait ``limit_s`` for it to end by itself, then use force.

        The limit of a worker that was to quit began with that. A thread that waits for the worker's answer gets a
        WorkerLostError.
        """
        self.running = False
        self._wait_ended(limit_s)
        self._find_descendants()
        # Even after a clean exit: processes that the worker started in its session and left running end with it.
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for descendant in self._descendants:
                with contextlib.suppress(psutil.Error):
                    descendant.kill()
            self._guardian.forget(self._process.pid)
        self._has_ended = True  # the number of its process group may be another's from now on
        self._process.wait()
        self._channel.close()

    def _find_descendants(self) -> None:
        """Find what a worker that has to be ended by force has started, in sessions of their own too."""
        with contextlib.suppress(psutil.Error):
            if self._process.poll() is None:
                self._descendants = psutil.Process(self._process.pid).children(recursive=True)

    def _abort(self, failing: str, limit_s: float) -> str:
        """End a worker that does not answer; SIGABRT has faulthandler write where it hangs."""
        captured = self._last_output()
        self._find_descendants()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        stack = self._last_output()
        self.end(0)
        return f"{self.name} {failing} within {limit_s:.0f} s and was ended; {self._hint}.\n{stack or captured}"

    def _how_it_ended(self) -> str:
        """Return how a dead worker ended, with the end of its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING_S)
        code = self._process.poll()
        self.end(0)
        if code is None:
            how = "closed its connection and was ended"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        return f"{self.name} {how}.\n{self._last_output()}"

    def _last_output(self) -> str:
        """Return the end of the worker's output: of its standard streams, and of those that pytest captured."""
        parts = []
        titles = {"captured0": "stdout", "captured1": "stderr", "output": "process output"}
        for path in [*sorted(self._scratch.glob("captured*")), self._log]:
            with contextlib.suppress(OSError):
                text = _end_of(path).strip()
                if text:
                    title = titles.get(path.name, "output captured by a fixture")
                    parts.append(f"--- last {title} ---\n" + "\n".join(_useful_lines(text.splitlines())))
        return "\n".join(parts)


def _start_message(settings: StartSettings, number: int, scratch: Path, descriptor: int) -> m.Start:
    return m.Start(
        descriptor=descriptor,
        number=number,
        path=list(settings.side.path),
        args=list(settings.side.args),
        files=[str(path) for path in settings.side.files],
        scratch=str(scratch),
        markup=settings.markup,
        reports=settings.reports and number == 0,
        watched=list(settings.watched),
        packages=list(settings.packages),
        foreign=list(settings.foreign),
    )


def _environment(side: Side) -> dict[str, str]:
    """Return a worker's environment: this process's without its private variables, and the side's own.

    Each worker has its own hash seed and, by an environment of another size, its own stack addresses: one layout for
    all workers would be a bias that looks like a result. (T. Mytkowicz et al., "Producing wrong data without doing
    anything obviously wrong!", ASPLOS 2009)
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COV_CORE_", "COVERAGE_PROCESS_"))
        and name not in ("PYTEST_CURRENT_TEST", "PYTHONHASHSEED")
    }
    for name, setting in side.environment.items():
        if setting is None:
            environment.pop(name, None)
        else:
            environment[name] = setting
    # Before any scope is bound; traced slices switch both on: a library's ranges, and our scopes.
    arm_ranges(environment)
    environment[VARIABLE] = "standby"
    environment[_PADDING] = "." * random.SystemRandom().randrange(_PADDING_MOST)
    return environment


def _interpreter_flags() -> list[str]:
    """Return the flags this interpreter was started with, as multiprocessing passes them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def _end_of(path: Path) -> str:
    """Return the end of a file, which may be long."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        return file.read().decode("utf-8", errors="replace")


def _useful_lines(lines: list[str]) -> list[str]:
    """Return the last lines, or of a crash the first: faulthandler writes the innermost frame first."""
    crashes = [index for index, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[crashes[-1] :][:_LAST_LINES] if crashes else lines[-_LAST_LINES:]
