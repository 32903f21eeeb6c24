"""A guardian: a small process that, once its run is gone, ends the run's other processes and removes its files.

A killed run can do neither itself, and its workers may be in native code, or may have started processes in their own
sessions. This file is also the guardian's program, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "PYTEST_RLPERF_RUN"  # in the environment of a run's workers and their children: the run's scratch
LEAVE = signal.SIGIO  # to a worker; processes that a test forks would inherit a handler of SIGTERM
GRACE_S = 5.0  # for teardowns after the end of the run's process
_CLOSE_LIMIT_S = 6 * GRACE_S  # for the guardian: it gives up after GRACE_S, but may wait for a CPU or a disk
_FINISHED = "finished"
_POLL_S = 0.05
_OTHERS = {0, 1}  # never a run's sessions: in a container, 0 is the session of processes started from outside
_CHECK_MS = 1000
_RANDOM = 8  # characters at the end of a temporary directory's name
_HAS_PROC = Path("/proc/self/environ").exists()


class Guardian:
    """The scratch directory of a run, and the process that guards it; both begin with the first directory used.

    The run's processes tell the guardian by the descriptor ``pipe`` which processes they start.
    """

    def __init__(self) -> None:
        self.run = os.getpid()
        self.scratch: Path | None = None
        self.pipe = -1
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def joined(cls, run: int, scratch: str, pipe: int) -> Guardian:
        """Return the guardian of the run that has started this process; ``run`` is the run's process."""
        guardian = cls()
        guardian.run, guardian.scratch, guardian.pipe = run, Path(scratch), pipe
        return guardian

    @property
    def pipes(self) -> tuple[int, ...]:
        """The descriptors that a process needs to tell the guardian of others."""
        return () if self.pipe < 0 else (self.pipe,)

    def new_directory(self) -> Path:
        """Return a new directory for files of this run."""
        self._ensure_begun()
        return Path(tempfile.mkdtemp(dir=self.scratch, prefix=""))

    def variables(self) -> dict[str, str]:
        """Return the variables by which the guardian recognises this run's processes."""
        self._ensure_begun()
        return {VARIABLE: str(self.scratch)}

    @contextlib.contextmanager
    def guarding_commands(self) -> Iterator[None]:
        """Let the guardian recognise what the body starts: programs such as git, and their children."""
        os.environ.update(self.variables())
        try:
            yield
        finally:
            os.environ.pop(VARIABLE, None)

    def watch(self, pid: int) -> None:
        """Guard a worker, the leader of its session."""
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        """Stop guarding a worker, which has ended with its process group."""
        self._tell(f"-{pid}")

    def owns(self, pid: int) -> bool:
        """Whether a signal to a process or to its group reaches only this run's processes.

        The process leads its own session, and descends from this process or from one with the run's mark; it may have
        overwritten its own mark. If no process has the number any more, the rest of its group still has it.
        """
        if pid <= 1:
            return False
        try:
            if os.getsid(pid) != pid:
                return False
        except ProcessLookupError:
            return True
        if not _HAS_PROC:
            return True  # there, this process starts every process of a run itself, and none is told by another
        run, mark = os.getpid(), _mark(str(self.scratch))
        while pid > 1 and pid != run:
            pid, variables = _parent(pid), _variables(pid)
            if pid == run or mark in variables:
                return True
        return False

    def close(self) -> bool:
        """End what workers have left running in their own sessions, and remove the run's files.

        Return whether the guardian did so; if it does not answer, this process ends it and does the work.
        """
        if self._process is None or self.scratch is None:
            return True
        self._tell(_FINISHED)
        os.close(self.pipe)
        self.pipe = -1
        answers = True
        try:
            self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            answers = False
            self._process.kill()  # also ends a stopped guardian
            self._process.wait()
            _end_all(set(), _mark(str(self.scratch)), time.monotonic())
        self._process = None
        _remove_files(str(self.scratch))  # if the guardian was killed
        return answers

    def _ensure_begun(self) -> None:
        if self.scratch is None:
            self.scratch = self._begin()

    def _begin(self) -> Path:
        """Make the scratch directory, and start the guardian."""
        # The guardian's program cannot import these.
        from pytest_rlperf.model.sides import SCRATCH
        from pytest_rlperf.spawn.surroundings import no_temporary_files

        try:
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH)).resolve()
        except OSError as error:
            raise no_temporary_files(error) from None
        try:
            self._start(scratch)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)  # nothing else would
            raise
        return scratch

    def _start(self, scratch: Path) -> None:
        reading, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)  # a stopped guardian reads nothing
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(scratch), str(os.getpid())],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
            start_new_session=True,
        )
        os.close(reading)

    def _tell(self, line: str) -> None:
        if self.pipe >= 0:
            with contextlib.suppress(
                BrokenPipeError, BlockingIOError
            ):  # the guardian was killed; the workers' own connections end them
                os.write(self.pipe, f"{line}\n".encode())


def files_mark(scratch: str) -> str:
    """Return how the random part of names begins that a run's processes give to temporary files."""
    return f"{os.path.basename(scratch)[-_RANDOM:]}_"  # noqa: PTH119


def remove_temporary_files(scratch: str, is_used: Callable[[int], bool]) -> int:
    """Remove what a run's processes have left beside its scratch in unused sessions; return how many entries."""
    removed = 0
    for path in Path(scratch).parent.iterdir():
        session = re.search(rf"{re.escape(files_mark(scratch))}(\d+)_", path.name)
        if session is not None and not is_used(int(session[1])):
            shutil.rmtree(path, ignore_errors=True)  # does not remove files and links
            with contextlib.suppress(OSError):
                path.unlink()
            removed += 1
    return removed


def _remove_files(scratch: str) -> None:
    """Remove all files of a run that is over."""
    with contextlib.suppress(OSError):
        remove_temporary_files(scratch, lambda _: False)
    shutil.rmtree(scratch, ignore_errors=True)


# --------------------------------------------------------------------------- the guardian's process


def _guard(scratch: str, run: int) -> None:
    """Wait for the end of the run's process, then end its workers and what they have started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    workers, is_finished = _wait_for_end(run)
    marker = _mark(scratch)
    if not is_finished:
        for worker in workers:  # only these: they end what they have started
            _kill(worker, LEAVE)
    _end_all(workers, marker, time.monotonic() + (0.0 if is_finished else GRACE_S))
    _remove_files(scratch)


def _end_all(workers: set[int], marker: bytes, force_s: float) -> None:
    """Wait for a run's processes to end; use force from the time ``force_s`` on."""
    while (left := list(_members(workers, marker))) and time.monotonic() < force_s + GRACE_S:
        for pid in left if time.monotonic() >= force_s else ():
            _kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _wait_for_end(run: int) -> tuple[set[int], bool]:
    """Return the workers that still run when the run's process is gone, and whether it had finished."""
    workers: set[int] = set()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    rest = b""
    while os.getppid() == run:
        if not poll.poll(_CHECK_MS):  # a process forked by the run may hold the pipe open
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == _FINISHED.encode():
                return workers - _OTHERS, True
            (workers.add if line.startswith(b"+") else workers.discard)(int(line[1:]))
    return workers - _OTHERS, False


def _members(workers: set[int], marker: bytes) -> Iterator[int]:
    """Yield a run's processes: those with its marker in their environment, or in a worker's session."""
    if not _HAS_PROC:
        for worker in workers:
            with contextlib.suppress(OSError):
                os.killpg(worker, 0)
                yield -worker
        return
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                state, _, _, session = _state(pid)
                if state != b"Z" and (marker in _variables(pid) or int(session) in workers):
                    yield pid


def _mark(scratch: str) -> bytes:
    """Return the variable by which a run's process is recognised."""
    return f"{VARIABLE}={scratch}".encode("utf-8", "surrogateescape")


def _state(pid: int) -> list[bytes]:
    """Return the state, parent, group and session of a process; OSError if it is gone."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]


def _variables(pid: int) -> list[bytes]:
    """Return the variables that a process began with; none if they cannot be read."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _parent(pid: int) -> int:
    """Return the process that started another, 0 if that cannot be read."""
    with contextlib.suppress(OSError):
        return int(_state(pid)[1])
    return 0


def _kill(pid: int, number: int) -> None:
    """Send a signal to a process, or to a process group by its negated number."""
    if abs(pid) > 1:  # 1 is the first process, -1 all processes
        with contextlib.suppress(OSError):
            os.kill(pid, number)


if __name__ == "__main__":
    _guard(sys.argv[1], int(sys.argv[2]))
