"""The messages of the processes that inspect a project and try its tests, until they end or fall silent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytest_rlperf.cli.first_tests.drafts import Draft

T = TypeVar("T")

_TO = "RLPERF_MESSAGES_TO"
# As the script `pytest` starts, without the current directory on sys.path.
_NO_CURRENT = "import sys; sys.path[:] = filter(None, sys.path); "
_LOOK_S = 0.2  # between looks at a process's messages
_SILENCE_S = 60.0  # at the most, of a module that is imported, or of a test, which may compile
_OUTPUT_MOST = 1 << 16  # bytes read at the end of a process's output

ROOT, TOPS = "RLPERF_TRIAL_ROOT", "RLPERF_TRIAL_TOPS"
"""The variables with the directories of the project's code, and with the packages whose compiled code counts."""

DESELECTED = "pytest's settings deselect it"


@dataclass(frozen=True)
class SourceFile:
    """A module of the project: its import name, its file, and whether it is a test or an example."""

    name: str
    path: str
    is_test: bool = False


@dataclass(frozen=True)
class Orders:
    """What to inspect: the project, where to import from, its modules, and those that ended an earlier process.

    If there are ``wanted`` objects, by module and name, only they get drafts. ``envs_only`` is for a library whose
    tests are already written.
    """

    root: str
    entries: list[str]
    sources: list[SourceFile]
    ended: list[str]
    wanted: list[tuple[str, str]]
    envs_only: bool


@dataclass(frozen=True)
class Report:
    """A line that the inspecting process sends: that something begins, was found, or is skipped and why.

    Only at its end, the process says what is ``loaded``, and which named object is missing (``unmet``).
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
    """Send one fact to the process that started this one."""
    line = f"{written(fact)}\n".encode()
    while line:
        line = line[os.write(int(os.environ[_TO]), line) :]


def read(text: str | bytes, kind: type[T]) -> T:
    """Return the fact in a JSON text."""
    import msgspec

    return msgspec.json.decode(text, type=kind)


def written(fact: object) -> str:
    """Return a fact as JSON text."""
    import msgspec

    return msgspec.json.encode(fact).decode()


@dataclass(frozen=True)
class Told(Generic[T]):
    """The facts that a Python process has sent, how it ended, in words, and the end of its output."""

    facts: list[T]
    ended: str
    output: str


def told(kind: type[T], code: str, argv: Sequence[str] = (), *, env: Mapping[str, str], given: str = "") -> Told[T]:
    """Return what a Python process sends until it ends, or is silent for too long.

    ``given`` is its standard input. Modules in the current directory do not hide Python's from it. Its children end
    with it.
    """
    with tempfile.TemporaryFile() as orders, tempfile.TemporaryFile() as facts, tempfile.TemporaryFile() as output:
        orders.write(given.encode())
        orders.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-c", _NO_CURRENT + code, *argv],
            env={**env, _TO: str(facts.fileno())},
            pass_fds=[facts.fileno()],
            stdin=orders,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            ended = _end_of(process, facts.fileno())
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        facts.seek(0)
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_MOST))
        lines = facts.read().split(b"\n")[:-1]
        return Told([read(line, kind) for line in lines], ended, output.read().decode("utf-8", "replace"))


def _end_of(process: subprocess.Popen[bytes], facts: int) -> str:
    """Wait for a process that sends facts; return in words how it ended."""
    size, heard_s = 0, time.monotonic()
    while time.monotonic() < heard_s + _SILENCE_S:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_LOOK_S)
            return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended Python with code {code}"
        if os.fstat(facts).st_size > size:
            size, heard_s = os.fstat(facts).st_size, time.monotonic()
    return f"took over {_SILENCE_S:.0f} s"
