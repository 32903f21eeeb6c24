"""The coordinator's end of one worker: what it is told, about one test at a time, and what it answers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.worker import WorkerStoppedError
from pytest_rlperf.model import Shape, Side, SliceKind, SliceRecord, Tally, Warm
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.timers.process import VARIABLE
from pytest_rlperf.workers import messages as m

_PADDING = "PYTEST_RLPERF_PADDING"
_PADDING_MOST = 4096  # bytes: a page

Conversation: TypeAlias = "Connection[Any, Any]"

# Takes the current directory off the path, where a file may bear the name of a module; the coordinator's path follows.
_BOOT = "import sys; sys.path = [p for p in sys.path if p]; from pytest_rlperf.workers.worker import main; main()"


@dataclass(frozen=True)
class Launch:
    """What every worker of one side is started with.

    ``name`` is what its workers are called. The first worker of a launch that ``reports`` is the one the user sees.
    ``watched`` are the directories and ``packages`` the import packages whose loaded files are told, ``foreign`` the
    directories that nothing should be loaded from.
    """

    name: str
    side: Side
    reports: bool
    markup: bool
    share_terminal: bool
    watched: tuple[str, ...]
    packages: tuple[str, ...]
    foreign: tuple[str, ...]

    def start(self, number: int, name: str, scratch: Path, log: Path) -> tuple[subprocess.Popen[bytes], Conversation]:
        """Start worker ``number``, which keeps its files in ``scratch`` and writes to ``log``."""
        here, there = Pipe()
        side = self.side
        # With -s the user sees what the reporting worker prints, as it prints it.
        reporter = self.reports and number == 0
        start = m.Start(
            descriptor=there.fileno(),
            number=number,
            path=list(side.path),
            args=list(side.args),
            files=[str(path) for path in side.files],
            scratch=str(scratch),
            markup=self.markup,
            reports=reporter,
            watched=list(self.watched),
            packages=list(self.packages),
            foreign=list(self.foreign),
        )
        output = None if self.share_terminal and reporter else log.open("ab")
        try:
            process = subprocess.Popen(
                [side.python, *_interpreter_flags(), "-c", _BOOT],
                stdin=subprocess.DEVNULL,
                stdout=None if reporter else output,  # what a test writes past the capture is for the user to see
                stderr=output,
                cwd=side.directory,
                env=_environment(side) | {m.ENVIRONMENT_KEY: m.encode_start(start)},
                pass_fds=[there.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is the coordinator's to handle
            )
        except OSError as error:
            here.close()
            raise MeasurementError(f"cannot start {name}: {error}") from None
        finally:
            there.close()
            if output is not None:
                output.close()
        return process, here


def _environment(side: Side) -> dict[str, str]:
    """Return a worker's environment: this process's, less what is meant for it alone, and the side's own.

    Each worker has its own hash seed and, by an environment of another size, its own addresses of the stack: one
    layout for all would be a bias that looks like a result. (T. Mytkowicz et al., "Producing wrong data without doing
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
    environment.setdefault("TORCHRL_PROFILING", "1")  # TorchRL's ranges: likewise
    environment[VARIABLE] = "standby"  # before anything binds a scope; traced slices switch them on
    environment[_PADDING] = "." * random.SystemRandom().randrange(_PADDING_MOST)
    return environment


def _interpreter_flags() -> list[str]:
    """Return the flags this interpreter was started with, as multiprocessing passes them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


_POLL_S = 0.2
_LAST_WORDS = 30  # lines
_HINT = "; work that long needs a longer --rlperf-max-time, of which an answer may take four times"


class ChildLostError(Exception):
    """A process died, or did not answer in time and was ended; the text says how, with its last output."""


class Child:
    """One process started by ``launch``, called ``name``, which keeps its files in ``scratch``.

    ``relay`` gets the reports and warnings that come between answers. What is said to a process that has died, or
    waited for in vain, is a ChildLostError.
    """

    def __init__(
        self,
        number: int,
        name: str,
        launch: Launch,
        scratch: Path,
        relay: Callable[[m.Reported | m.Warned], None],
    ) -> None:
        self._name = name
        self._relay = relay
        self._scratch = scratch
        scratch.mkdir(parents=True)
        self._process, self._connection = launch.start(number, name, scratch, self._log)

    @property
    def _log(self) -> Path:
        return self._scratch / "output"

    @property
    def alive(self) -> bool:
        """Whether the process can be talked to."""
        return self._process.poll() is None and not self._connection.closed

    def cpu_s(self) -> float:
        """Return the CPU seconds the process and its children have used."""
        total_s = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    total_s += times.user + times.system
        return total_s

    def send(self, message: m.FromCoordinator) -> None:
        """Say something."""
        try:
            m.send(self._connection, message)
        except OSError:
            raise ChildLostError(self._how_it_ended()) from None

    def receive(self, limit_s: float) -> m.FromWorker:
        """Return the next message that is an answer; relay what comes before it."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                if self._connection.poll(_POLL_S):
                    message = m.receive_from_worker(self._connection)
                    if not isinstance(message, m.Reported | m.Warned):
                        return message
                    self._relay(message)
                    continue
            except (EOFError, OSError):
                raise ChildLostError(self._how_it_ended()) from None
            except m.UnreadableError as error:
                self.end(0)
                raise ChildLostError(f"{self._name} sent what cannot be read: {error}") from None
            # A process the worker forked may hold the connection open after the worker's death.
            if self._process.poll() is not None and not self._connection.poll(0):
                raise ChildLostError(self._how_it_ended())
            if time.monotonic() > deadline:
                raise ChildLostError(self._abort(limit_s))

    def end(self, limit_s: float) -> None:
        """End the process and its children: wait ``limit_s`` for it to end by itself, then use force."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        # Even after a clean exit: what the worker started in its session and left running ends with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()

    def _abort(self, limit_s: float) -> str:
        """End a worker that does not answer; SIGABRT has faulthandler write where it hangs."""
        captured = self._last_words()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        stack = self._last_words()
        self.end(0)
        return f"{self._name} did not answer within {limit_s:.0f} s and was ended{_HINT}.\n{stack or captured}"

    def _how_it_ended(self) -> str:
        """Say how a dead worker ended, with its last output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        self.end(0)
        if code is None:
            how = "closed its connection and was ended"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        return f"{self._name} {how}.\n{self._last_words()}"

    def _last_words(self) -> str:
        """Return the end of what the worker wrote: to its standard streams, and what pytest had captured of them."""
        parts = []
        titles = {"captured0": "stdout", "captured1": "stderr", "output": "process output"}
        for path in [*sorted(self._scratch.glob("captured*")), self._log]:
            with contextlib.suppress(OSError):
                text = path.read_text(encoding="utf-8", errors="replace").strip()
                if text:
                    title = titles.get(path.name, "output captured by a fixture")
                    parts.append(f"--- last {title} ---\n" + "\n".join(_telling(text.splitlines())))
        return "\n".join(parts)


def _telling(lines: list[str]) -> list[str]:
    """Return the lines that tell the most: the last, or of a crash the first, for faulthandler begins innermost."""
    crashes = [index for index, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[crashes[-1] :][:_LAST_WORDS] if crashes else lines[-_LAST_WORDS:]


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


class WorkerLostError(WorkerStoppedError):
    """A worker died, or did not answer in time and was ended; the text says how, with its last output."""

    def __init__(self, worker: WorkerProcess, text: str) -> None:
        super().__init__(text)
        self.worker = worker


class LeftEarlyError(WorkerStoppedError):
    """A test ended in a worker before its measurement did: it was skipped, failed, or called nothing."""

    def __init__(self, worker: WorkerProcess, done: m.Done) -> None:
        super().__init__(done.text)
        self.worker = worker
        self.done = done


class WorkerProcess:
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
        if not isinstance(ready, m.Ready) or ready.protocol != PROTOCOL:
            self.end(0)
            theirs = f"protocol {ready.protocol}" if isinstance(ready, m.Ready) else repr(ready)
            raise WorkerLostError(
                self,
                f"{self.name} has another version of pytest-rlperf: it speaks {theirs}, this process {PROTOCOL}. "
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
