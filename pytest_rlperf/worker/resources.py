"""What processes use: CPUs, their threads' work, others' work, and what this process holds between slices.

Linux offers all of it; elsewhere the kernel places processes as it likes, and records show that.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from threading import active_count  # which tests may replace
from time import monotonic, thread_time  # a test may replace them, and freezegun does so in all modules
from typing import NamedTuple

import psutil

from pytest_rlperf.counters import proc
from pytest_rlperf.model.measured import Usage
from pytest_rlperf.spawn.untouched import untouched

_waitid = os.waitid if sys.platform == "linux" else lambda *_: None
_BUSY_SHARE = 0.05  # of the time watched: a thread that is busy for longer counts as working
_BUSY_LEAST_S = 0.02  # two ticks of the clock of threads' times


def place(cpus: Collection[int]) -> None:
    """Keep every thread of this process on ``cpus``; later threads inherit the placement."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return
    for thread in _threads():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, cpus)


def _threads() -> list[int]:
    """Return the numbers of this process's threads."""
    return [int(thread) for thread in proc.entries("/proc/self/task")]


def cpu_reader() -> Callable[[], int]:
    """Return a function that returns the CPU of the calling thread, -1 if the system does not know it."""
    try:
        reader: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return lambda: -1
    return reader


def children() -> set[int]:
    """Return the numbers of this process's child processes."""
    try:
        return {int(pid) for thread in _threads() for pid in proc.children_of(thread)}
    except OSError:
        return _children_by_psutil()


@untouched
def _children_by_psutil() -> set[int]:
    """Return the same where the system does not tell them: psutil reads every process of the machine."""
    return {child.pid for child in psutil.Process().children()}


def used_by_others_ns() -> dict[int, int]:
    """Return the CPU time of each of Python's other threads and of each child process, by its number; Linux has it.

    Native threads are left out: those of a pool may spin while they wait for work. A test may call its fixture in any
    thread, and that one measures.
    """
    # Before and after each slice; a look at what a test may have replaced would take longer.
    if sys.platform != "linux" or (active_count() == 1 and not _may_have_children()):
        return {}
    return _used_by_others_ns()


@untouched
def _used_by_others_ns() -> dict[int, int]:
    own = threading.current_thread()
    threads = (thread.native_id for thread in threading.enumerate() if thread is not own)
    places = {number: f"/proc/self/task/{number}/schedstat" for number in threads if number is not None}
    used_ns: dict[int, int] = {}
    for number, place in (places | {pid: f"/proc/{pid}/schedstat" for pid in children()}).items():
        with suppress(OSError, IndexError):  # it has ended meanwhile, or ends now
            used_ns[number] = int(Path(place).read_text(encoding="ascii").split()[0])
    return used_ns


@untouched
def count_threads() -> int:
    """Return how many threads this process has."""
    return int(psutil.Process().num_threads())


def children_seen() -> tuple[int, int]:
    """Return how many child processes run, and the page faults of the ended ones: both rise with new children."""
    return len(children()), resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


class Activity(NamedTuple):
    """How many threads worked while a process was watched, and how many child processes it has.

    ``threads`` is None if the time was too short to find out.
    """

    threads: int | None
    children: int

    @property
    def is_single(self) -> bool | None:
        """Whether one thread of one process does the work; None if the time was too short to find out."""
        if self.children:
            return False
        return None if self.threads is None else self.threads <= 1


class ActivityWatch:
    """Watches this process from now on."""

    @untouched
    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, process: Callable[[], psutil.Process] = psutil.Process
    ) -> None:
        self._clock = clock
        self._process = process()
        self._started_s = clock()
        self._used_s = self._threads_s()

    @untouched
    def seen(self) -> Activity:
        """Return how many threads have worked since, and how many child processes there are."""
        watched_s = self._clock() - self._started_s
        least_s = max(_BUSY_LEAST_S, _BUSY_SHARE * watched_s)
        busy = sum(used_s - self._used_s.get(thread, 0.0) >= least_s for thread, used_s in self._threads_s().items())
        children = len(self._process.children(recursive=True))
        return Activity(busy if watched_s >= 2 * _BUSY_LEAST_S else None, children)

    def _threads_s(self) -> dict[int, float]:
        return {thread.id: thread.user_time + thread.system_time for thread in self._process.threads()}


@untouched
def read_usage(calls: int) -> Usage:
    """Return what this process holds after ``calls`` calls; collect garbage, which takes under a millisecond.

    Objects are only this process's; memory, files and threads include its child processes.
    """
    own = psutil.Process()
    processes = [own, *own.children(recursive=True)] if _may_have_children() else [own]
    objects, private = sys.getallocatedblocks(), _sum(processes, _private_bytes)
    gc.collect()
    kept, kept_private = sys.getallocatedblocks(), _sum(processes, _private_bytes)
    return Usage(
        calls=calls,
        objects=kept,
        private_bytes=kept_private,
        waiting_objects=max(0, objects - kept),
        waiting_bytes=max(0, private - kept_private),
        device_bytes=_device_bytes(),
        open_files=_sum(processes, psutil.Process.num_fds),
        threads=_sum(processes, psutil.Process.num_threads),
        processes=len(processes),
    )


def _may_have_children() -> bool:
    """Whether this process has children, by one system call: searching all processes takes milliseconds."""
    if sys.platform == "linux":
        try:
            _waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
    return True


def _private_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process, without what files back if the system tells it apart."""
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def _sum(processes: Sequence[psutil.Process], of: Callable[[psutil.Process], int]) -> int:
    """Return the sum of a figure over processes, without those that have just ended."""
    found = 0
    for process in processes:
        with suppress(psutil.Error):
            found += of(process)
    return found


def _device_bytes() -> int:
    """Return the bytes of live tensors on CUDA devices, 0 if PyTorch does not use them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))


def waits() -> int:
    """Return how often this process has given up its CPU by itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def stopwatch(clock: Callable[[], float] = monotonic, cpu: Callable[[], float] = thread_time) -> Callable[[], float]:
    """Return a function that returns the seconds since now, without those in which the calling thread waits for a CPU.

    Only Linux tells them. Elsewhere it is the thread's CPU time, unless its process waits for something else, too.
    """

    def held_up_ns() -> int:
        return int(proc.read("/proc/thread-self/schedstat").split()[1])

    began_s, began_cpu_s, waited = clock(), cpu(), waits()
    try:
        held_ns = held_up_ns()
    except (OSError, IndexError):
        return lambda: (clock() - began_s) if waits() > waited else (cpu() - began_cpu_s)
    # No less than its CPU time, whatever the kernel says of its waits.
    return lambda: max(clock() - began_s - (held_up_ns() - held_ns) / 1e9, cpu() - began_cpu_s)
