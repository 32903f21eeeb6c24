"""Locks of files that keep processes from going on: a test module that takes one runs in several at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Lock(NamedTuple):
    """A line of ``/proc/locks``: a lock that a process holds, or waits for, on a file by its device and inode."""

    number: str
    waits: bool
    is_exclusive: bool
    pid: int
    file: str


def blocking_lock(pid: int, run: int) -> str:
    """Return the lock that a process waits for, and who has it: ``run`` is the run's; empty where it waits for none."""
    locks = list(_locks())
    waited = {lock.number for lock in locks if lock.waits and lock.pid == pid}
    return next((_named(lock, run) for lock in locks if lock.number in waited and not lock.waits), "")


def lock_of(run: int) -> str:
    """Return a lock that the run's process has, which others may ask for again and again; empty without one."""
    return next(
        (_named(lock, run) for lock in _locks() if lock.pid == run and lock.is_exclusive and not lock.waits), ""
    )


def _named(lock: _Lock, run: int) -> str:
    own = "the run's own process has since it imported the tests"
    return f"the lock on {_path(lock)}, which {own if lock.pid == run else f'process {lock.pid} has'}"


def _locks() -> Iterator[_Lock]:
    """Yield the locks of all processes that can be seen; there are none but on Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            number, *words = line.split()
            waits = words[0] == "->"
            _, _, kind, pid, file, *_ = words[waits:]
            yield _Lock(number, waits, kind == "WRITE", int(pid), file)


def _path(lock: _Lock) -> str:
    """Return the path of a locked file, as its holder has it open; its device and inode where it cannot be seen."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{lock.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found = link.stat()
                device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
                if f"{device}:{found.st_ino}" == lock.file:
                    return str(link.readlink())
    return lock.file
