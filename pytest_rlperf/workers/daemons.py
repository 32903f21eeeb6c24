"""Daemons: processes that code in a worker has detached from it, which Linux hands back to the worker as its children.

Elsewhere none are found.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # from Linux's prctl.h
_LONGEST_COMMAND = 200
_ROUNDS_MOST = 100  # of ending daemons: with each of them its own children come into view


class Daemon(NamedTuple):
    """A process in a session of its own, which no object of this process can wait for."""

    pid: int
    command: str


class DaemonWatch:
    """Finds this process's daemons; from its start on they become children of this process, not of ``init``."""

    def __init__(self) -> None:
        self._named: set[psutil.Process] = set()
        self._adopts = _become_subreaper()

    def new(self) -> list[Daemon]:
        """Return the daemons that this has not returned before."""
        found = []
        for process in self._running():
            if process not in self._named:
                self._named.add(process)
                with contextlib.suppress(psutil.Error):
                    command = " ".join(process.cmdline()) or process.name()
                    found.append(Daemon(process.pid, command[:_LONGEST_COMMAND]))
        return found

    def end(self) -> None:
        """Kill every daemon, and what they have started."""
        for _ in range(_ROUNDS_MOST):
            processes = list(self._running())
            if not processes:
                return
            for process in processes:
                with contextlib.suppress(psutil.Error, ChildProcessError):
                    process.send_signal(signal.SIGKILL)
                    os.waitpid(process.pid, 0)

    def _running(self) -> Iterator[psutil.Process]:
        """Yield the daemons that run; let go of those that have ended."""
        if not self._adopts or not _has_children():
            return
        own, held = os.getsid(0), None
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                session = os.getsid(child.pid)
                if session == own:
                    continue
                if session == child.pid:  # perhaps started by an object that still stands for it
                    held = _held() if held is None else held
                    if child.pid in held:
                        continue
                if child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)
                else:
                    yield child


def _become_subreaper() -> bool:
    """Have the kernel make orphans among this process's descendants its children; return whether it does."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0  # type: ignore[no-any-return]
    return False


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _held() -> set[int]:
    """Return the numbers of the processes that an object of subprocess or multiprocessing stands for.

    subprocess itself keeps the objects that nothing else refers to while their processes run.
    """
    kinds: tuple[type, ...] = (subprocess.Popen,)
    forks = sys.modules.get("multiprocessing.popen_fork")
    if forks is not None:
        kinds = (*kinds, forks.Popen)
    forgotten = {id(process) for process in subprocess._active}  # type: ignore[attr-defined]
    return {
        vars(thing)["pid"]
        for thing in gc.get_objects()
        if issubclass(type(thing), kinds) and id(thing) not in forgotten and "pid" in vars(thing)
    }
