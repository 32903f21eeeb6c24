"""A process at the other end of a connection, for the process that started it: messages, and how it ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from pytest_rlperf import wire
from pytest_rlperf.model.measured import SystemVSegment
from pytest_rlperf.spawn.connections import HALF_MESSAGE_S, sender_of
from pytest_rlperf.spawn.guardian import LEAVE, Guardian
from pytest_rlperf.spawn.preload import socket_of
from pytest_rlperf.spawn.segments import remove, segments

_POLL_S = 0.2
_POLL_END_S = 0.002
_DYING_S = 5.0  # from the end of a process's connection to the process's end
_LAST_LINES = 30  # of a lost process's output
_LAST_BYTES = 1 << 20
_FORK_LIMIT_S = 30.0  # from the order for a copy to its first message, which takes milliseconds
_FORK_HINT = "a package that it has loaded may hang when its process is forked"
SILENCE_MOST_S = 40.0  # for a process that tells its master that it waits; a message to a worker may take less
_TELL_S = 5.0
_IDLE_MOST_S = 20.0  # of a copy that is to answer: it may wait for threads that only its original has
_IDLE_LOOK_S = 2.0
_IDLE_HINT = "a copy of a process lacks the threads that its modules have started"
CALL_HINT = "work that takes longer needs a longer --rlperf-max-time"


class ProcessLostError(Exception):
    """A process died, or did not answer in time and was ended; the text says which, with the end of its output."""

    def __init__(self, process: Process, text: str) -> None:
        super().__init__(text)
        self.process = process


class InterruptedWaitError(Exception):
    """The master of the waiting process has another order, or is gone."""


class IdleTime:
    """For how long processes have used no CPU time, as a look every now and then shows."""

    def __init__(self, cpu_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._cpu_s, self._clock = cpu_s, clock
        self._used_s = -1.0  # unknown
        self._since_s = self._looked_s = clock()

    def lasts_s(self) -> float:
        """Return the seconds since the first look that found the CPU time of now."""
        now_s = self._clock()
        if now_s - self._looked_s >= _IDLE_LOOK_S:
            self._looked_s = now_s
            used_s = self._cpu_s()
            if used_s != self._used_s:
                self._used_s, self._since_s = used_s, now_s
        return now_s - self._since_s


class Process:
    """A process at the other end of a connection; its output is in ``scratch``.

    ``started`` is its handle if this process has started it as a new interpreter. A message from ``master`` interrupts
    the wait for the process's messages.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        scratch: Path,
        guardian: Guardian,
        started: subprocess.Popen[bytes] | None = None,
        master: Connection | None = None,
    ) -> None:
        self.name = name
        self.places = "", ""  # its tree, and the user's own tree, which texts name instead
        self.connection = connection
        self.pid = self._sender = 0  # of its first message, while its number is not known
        self.scratch = scratch
        self.guardian = guardian
        self.started = started
        self.quit_s: float | None = None  # when it was told to end
        self.master = master
        self._told_s = time.monotonic()  # when the master was last told of the wait for this process
        self._has_ended = False
        self._others = {(each.kind, each.number) for each in segments()}  # older, perhaps of a process with its number
        if started is not None:
            self.is_known_as(started.pid)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy of another process, not a new interpreter."""
        return self.started is None

    @property
    def alive(self) -> bool:
        """Whether the process can receive messages."""
        return not self._has_ended and not self.connection.closed

    def is_known_as(self, pid: int) -> None:
        """Note the number of the process, and let the guardian watch it."""
        self.pid = pid
        self.guardian.watch(pid)

    def wait_begun(self) -> None:
        """Wait until a copy of a process has begun; get its number from the kernel, as code under test runs in it.

        ProcessLostError also if this run did not start the process with that number.
        """
        message = self.receive(time.monotonic() + _FORK_LIMIT_S, _FORK_LIMIT_S, _FORK_HINT)
        if not isinstance(message, wire.Started):
            raise self.unexpected(message)
        pid = self.pid or self._sender
        if not self.guardian.owns(pid):
            self.end(0)
            raise self.lost(f"{self.name} is process {pid}, which this run did not start")
        if not self.pid:
            self.is_known_as(pid)

    # ------------------------------------------------------------------ messages

    def send(self, message: wire.Message, *ends: Connection) -> None:
        """Send a message with the ends of connections that belong to it, which are closed here.

        The error is :meth:`lost` if the process is gone.
        """
        try:
            wire.send(self.connection, message)
            for there in ends:
                with there, socket_of(self.connection) as channel:
                    socket.send_fds(channel, [b"\1"], [there.fileno()])  # one, as multiprocessing has it
        except BlockingIOError:
            raise self.lost(self.abort("read no message", HALF_MESSAGE_S, CALL_HINT)) from None
        except OSError:
            raise self.lost(self.how_it_ended()) from None

    def receive(self, due_s: float, limit_s: float, hint: str) -> wire.FromWorker:
        """Return the next message; end a process that sends none until ``due_s``, after ``limit_s``.

        A message that came in time is read even if this process looks for it later. The master learns from time to time
        that the wait goes on.
        """
        awaited = [self.connection] if self.master is None else [self.connection, self.master]
        idle = IdleTime(self.cpu_s)
        ready: list[Any] = []
        while not ready:
            left_s = due_s - time.monotonic()
            try:
                if self.master is not None and time.monotonic() - self._told_s > _TELL_S:
                    self._told_s = time.monotonic()
                    wire.send(self.master, wire.Waiting())
            except OSError:
                raise InterruptedWaitError from None
            try:
                ready = wait(awaited, max(0.0, min(_POLL_S, left_s)))
            except (OSError, ValueError):
                raise self.lost(self.how_it_ended()) from None
            if not ready and left_s <= 0:
                raise self.lost(self.abort("did not answer", limit_s, hint))
            if not ready and self.is_forked and self.pid and idle.lasts_s() > _IDLE_MOST_S:
                raise self.lost(self.abort("computed nothing", _IDLE_MOST_S, _IDLE_HINT))
        if self.master in ready:
            raise InterruptedWaitError
        if not (self.pid or self._sender):
            with contextlib.suppress(OSError):  # what is read next says how the process ended
                self._sender = sender_of(self.connection)
        message: wire.FromWorker = self.received(wire.FromWorker)
        return message

    def received(self, kinds: Any) -> Any:
        """Return the next message, of these kinds, which has begun to come."""
        try:
            return wire.receive(self.connection, kinds)
        except BlockingIOError:
            error = wire.UnreadableError(f"the rest of a message did not come within {HALF_MESSAGE_S} s")
            raise self.unreadable(error) from None
        except wire.UnreadableError as error:
            raise self.unreadable(error) from None
        except (EOFError, OSError):
            raise self.lost(self.how_it_ended()) from None

    def unreadable(self, error: wire.UnreadableError) -> Exception:
        """End a process whose messages cannot be read, and return the error."""
        self.end(0)
        return self.lost(f"{self.name} sent a message that cannot be read: {error}.\n{self.last_output()}")

    def unexpected(self, message: object) -> Exception:
        """End a process that sends a message other than the one that is due, and return the error."""
        self.end(0)
        return self.lost(f"{self.name} sent {type(message).__name__} instead of the answer to an order")

    def lost(self, text: str) -> Exception:
        """Return the error of a process that is no longer of use."""
        return ProcessLostError(self, text)

    # ------------------------------------------------------------------ the process

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process and its children have used."""
        total_s = 0.0
        for member in self._members():
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                total_s += times.user + times.system
        return total_s

    def memory_bytes(self) -> int:
        """Return the memory that the process and its children hold, with their part of shared memory."""
        total = 0
        for member in self._members():
            with contextlib.suppress(psutil.Error):
                held = member.memory_full_info()
                total += getattr(held, "pss", held.uss)
        return total

    def segments(self) -> list[SystemVSegment]:
        """Return the System V segments and semaphores that the process and its children have made."""
        found = [each for each in segments() if (each.kind, each.number) not in self._others]
        pids = {self.pid, *(member.pid for member in self._members())} if found else ()
        return [segment for segment in found if segment.pid in pids]

    def _members(self) -> list[psutil.Process]:
        """Return the process and its children, as far as the system shows them."""
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.Error:
            return []

    def interrupt_call(self, limit_s: float) -> None:
        """Interrupt the call of a process that has not quit after ``limit_s``, so that its teardowns run."""
        if not self._wait_ended(limit_s):
            self.signal(LEAVE)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if its number is known and still its own."""
        if self.guardian.owns(self.pid):
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def _wait_ended(self, limit_s: float) -> bool:
        """Wait for the process to end by itself; if it was told to quit, the limit began then."""
        if self._has_ended:
            return True
        quitting_s = 0.0 if self.quit_s is None else time.monotonic() - self.quit_s
        due_s = time.monotonic() + max(0.0, limit_s - quitting_s)
        while True:
            left_s = due_s - time.monotonic()
            try:
                if self.connection.poll(max(0.0, min(_POLL_S, left_s))):
                    self.connection.recv_bytes()  # no longer of use
                    continue
            except (EOFError, OSError):
                return self._exit_code(max(left_s, 1.0)) is not None or self.is_forked
            if left_s <= 0:
                return False

    def _exit_code(self, limit_s: float) -> int | None:
        """Return the process's exit code, None if it is not known; a copy keeps it until it is waited for."""
        due_s = time.monotonic() + limit_s
        if self.started is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.started.wait(limit_s)
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

        If the process was told to quit, the limit began then.
        """
        if self._has_ended:
            return
        if limit_s > 0:
            self._wait_ended(limit_s)
        left = self.segments()
        self._has_ended = True  # the number of its process group may be reused from now on
        # Even after a clean exit, its session's processes end with it; the guardian ends the rest.
        if self.pid:
            if self.guardian.owns(self.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.forget()
        if self.started is not None:
            self.started.wait()
        remove(left)
        self.connection.close()

    def remove_files(self) -> None:
        """Remove the files of an ended process whose output nobody will need."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def forget(self) -> None:
        """Release the number of the process, which has ended."""
        self.guardian.forget(self.pid)

    def abort(self, failing: str, limit_s: float, hint: str) -> str:
        """End a process that does not answer; SIGABRT makes faulthandler write where it hangs."""
        captured = self.last_output()
        self.signal(signal.SIGABRT)
        self._wait_ended(2)
        stack = self.last_output()
        self.end(0)
        return f"{self.name} {failing} within {limit_s:.0f} s and was ended; {hint}.\n{stack or captured}"

    def how_it_ended(self) -> str:
        """Return how a dead process ended, with the end of its output."""
        code = self._exit_code(_DYING_S)
        self.end(0)
        if code is None:
            how = "ended or closed its connection"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        return f"{self.name} {how}.\n{self.last_output()}"

    def last_output(self) -> str:
        """Return the end of the process's output: its standard streams, and those that pytest captured."""
        parts = []
        titles = {"captured0": "stdout", "captured1": "stderr", "output": "process output"}
        for path in [*sorted(self.scratch.glob("captured*")), self.scratch / "output"]:
            with contextlib.suppress(OSError):
                text = _end_of(path).strip()
                if text:
                    title = titles.get(path.name, "output captured by a fixture")
                    parts.append(f"--- last {title} ---\n" + "\n".join(_useful_lines(text.splitlines())))
        tree, top = self.places
        return "\n".join(parts).replace(tree, top) if tree else "\n".join(parts)


def _end_of(path: Path) -> str:
    """Return the end of a file, which may be long."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        return file.read().decode("utf-8", errors="replace")


def _useful_lines(lines: list[str]) -> list[str]:
    """Return the last lines, or a crash's first lines: faulthandler writes the innermost frame first."""
    crashes = [index for index, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[crashes[-1] :][:_LAST_LINES] if crashes else lines[-_LAST_LINES:]
