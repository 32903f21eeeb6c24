"""A process that tells what it does, line by line, and its reader, which ends one that has gone silent."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_TO = "RLPERF_TELLS_TO"


def tell(fact: object) -> None:
    """Write one fact for the process that started this one."""
    line = msgspec.json.encode(fact) + b"\n"
    while line:
        line = line[os.write(int(os.environ[_TO]), line) :]


class Told(Generic[T]):
    """The facts of a type that a process tells; ``ended`` says in words how it ended, empty for code 0."""

    def __init__(
        self, kind: type[T], argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], silence_s: float
    ) -> None:
        self._kind, self._argv, self._cwd, self._env, self._silence_s = kind, argv, cwd, env, silence_s
        self.ended = ""
        self.output = ""

    def __iter__(self) -> Iterator[T]:
        """Start the process, and yield each fact when it is told; the process and its children end with the loop."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, *self._argv],
                cwd=self._cwd,
                env={**self._env, _TO: str(writing)},
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            os.close(writing)
            try:
                for line in self._lines(reading):
                    yield msgspec.json.decode(line, type=self._kind)
                if not self.ended:
                    self.ended = self._how(process.wait(self._silence_s))
            except subprocess.TimeoutExpired:
                self.ended = f"did not end within {self._silence_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                os.close(reading)
                process.wait()
                output.seek(0)
                self.output = output.read().decode("utf-8", "replace")

    def _lines(self, reading: int) -> Iterator[bytes]:
        """Yield whole lines until the writer has closed, or has been silent for too long."""
        begun = b""
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            heard_s = time.monotonic()
            while selector.select(max(0.0, heard_s + self._silence_s - time.monotonic())):
                read = os.read(reading, 1 << 16)
                if not read:
                    return
                heard_s = time.monotonic()
                *whole, begun = (begun + read).split(b"\n")
                yield from whole
        self.ended = f"took over {self._silence_s:.0f} s"

    @staticmethod
    def _how(code: int) -> str:
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return (code and f"ended Python with code {code}") or ""
