"""What the processes tell that look at a project and try its tests, and their reader, which ends a silent one."""

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
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytest_rlperf.cli.first_tests.drafts import Draft

T = TypeVar("T")

_TO = "RLPERF_MESSAGES_TO"
# As the script `pytest` starts, without the current directory on sys.path.
_NO_CURRENT = "import sys; sys.path[:] = filter(None, sys.path); "
_LOOK_S = 0.2  # between looks at whether it has ended
_OUTPUT_MOST = 1 << 16  # bytes at the end of its output that are read

ROOT, TOPS = "RLPERF_TRIAL_ROOT", "RLPERF_TRIAL_TOPS"
"""The variables with the directories of the project's code, and with the packages whose compiled code counts."""


@dataclass(frozen=True)
class Source:
    """A module of the project: the name to import it by, its file, and whether it is one of its tests or examples."""

    name: str
    path: str
    is_test: bool = False


@dataclass(frozen=True)
class Orders:
    """What to look at: the project, where to import from, its modules, and those that an earlier process ended in.

    ``wanted`` are objects by module and name: of nothing else are there drafts then. Of a library whose tests are
    written already, ``envs_only`` are looked for.
    """

    root: str
    entries: list[str]
    sources: list[Source]
    ended: list[str]
    wanted: list[tuple[str, str]]
    envs_only: bool


@dataclass(frozen=True)
class Report:
    """A line that the looking process sends: that something begins, was found, or is passed over and why.

    At its end, and only then, it says what is ``loaded``, and which named object there is not.
    """

    begins: str = ""
    draft: Draft | None = None
    place: str = ""
    reason: str = ""
    loaded: tuple[str, ...] = ()
    unmet: str = ""


@dataclass(frozen=True)
class Tried:
    """A line that the trial sends: a test begins or has ended, with its error; or the file could not be imported."""

    begins: str = ""
    ends: str = ""
    error: str = ""
    runs_code: bool = False
    took_s: float = 0.0
    line: int = 0


def send(fact: object) -> None:
    """Write one fact for the process that started this one."""
    line = f"{written(fact)}\n".encode()
    while line:
        line = line[os.write(int(os.environ[_TO]), line) :]


def read(text: str | bytes, kind: type[T]) -> T:
    """Return the fact that a text of JSON holds."""
    import msgspec

    return msgspec.json.decode(text, type=kind)


def written(fact: object) -> str:
    """Return a fact as a text of JSON."""
    import msgspec

    return msgspec.json.encode(fact).decode()


class Listener(Generic[T]):
    """The facts of a type that a process of Python tells; ``ended`` says in words how it ended.

    ``given`` is its standard input. Modules in the current directory hide none of Python's from it.
    """

    def __init__(
        self,
        kind: type[T],
        code: str,
        argv: Sequence[str] = (),
        *,
        env: Mapping[str, str],
        silence_s: float,
        given: str = "",
    ) -> None:
        self._code = code
        self._kind, self._argv, self._env, self._silence_s, self._given = kind, argv, env, silence_s, given
        self.ended = ""
        self.output = ""

    def __iter__(self) -> Iterator[T]:
        """Start the process, and yield each fact when it is sent; the process and its children end with the loop."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
            given.write(self._given.encode())
            given.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-c", _NO_CURRENT + self._code, *self._argv],
                env={**self._env, _TO: str(writing)},
                pass_fds=[writing],
                stdin=given,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            os.close(writing)
            try:
                for line in self._lines(reading, process):
                    yield read(line, self._kind)
                if not self.ended:
                    self.ended = self._how(process.wait(self._silence_s))
            except subprocess.TimeoutExpired:
                self.ended = f"did not end within {self._silence_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                os.close(reading)
                process.wait()
                output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_MOST))
                self.output = output.read().decode("utf-8", "replace")

    def _lines(self, reading: int, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Yield whole lines until the process has ended, which a child may outlive, or has been silent for too long."""
        begun = b""
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            heard_s = time.monotonic()
            while time.monotonic() < heard_s + self._silence_s:
                is_over = process.poll() is not None
                if selector.select(0.0 if is_over else _LOOK_S):
                    chunk = os.read(reading, 1 << 16)
                    heard_s = time.monotonic()
                    *whole, begun = (begun + chunk).split(b"\n")
                    yield from whole
                    is_over = not chunk
                if is_over:
                    return
        self.ended = f"took over {self._silence_s:.0f} s"

    @staticmethod
    def _how(code: int) -> str:
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended Python with code {code}"
