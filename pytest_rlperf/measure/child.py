"""A worker's process: what goes to it and comes from it, and how it ended, with its last output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from pytest_rlperf.measure import messages as m
from pytest_rlperf.measure.launch import Launch

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
            raise ChildLostError(self._epitaph()) from None

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
                raise ChildLostError(self._epitaph()) from None
            except m.UnreadableError as error:
                self.end(0)
                raise ChildLostError(f"{self._name} sent what cannot be read: {error}") from None
            # A process the worker forked may hold the connection open after the worker's death.
            if self._process.poll() is not None and not self._connection.poll(0):
                raise ChildLostError(self._epitaph())
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

    def _epitaph(self) -> str:
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
