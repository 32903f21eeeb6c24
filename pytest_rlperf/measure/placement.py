"""The CPUs and the memory that a process may use, the CPU it is on, and whether a single thread of it works.

Linux offers all of it; elsewhere the kernel places processes as it likes, and records show that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from pytest_rlperf.measure.worker import Worker

CGROUP = Path("/sys/fs/cgroup")  # of version 2, which has one tree
_BUSY_SHARE = 0.05  # of the time watched, from which on a thread counts as working
_BUSY_LEAST_S = 0.02  # two ticks of the clock of threads' times
_IDLE_LEAST_S = 0.5  # a watch for idle workers: one tick is 2 % of it


def read_system_file(path: Path) -> str:
    """Return the text of one of the system's files; none where it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def cgroup_limits(name: str, cgroup: Path = CGROUP) -> list[str]:
    """Return what a file such as ``cpu.max`` has for this process's cgroup and for those that it is in."""
    lines = read_system_file(Path("/proc/self/cgroup")).splitlines()
    own = next((line for line in lines if line.startswith("0::")), "0::/")
    place = cgroup / own[len("0::") :].strip().lstrip("/")
    directories = [place, *(parent for parent in place.parents if parent.is_relative_to(cgroup))]
    return [read_system_file(directory / name) for directory in directories]


def usable_memory() -> int:
    """Return the bytes of memory that this process may use with all others of its cgroup, or of the machine."""
    limits = [int(text) for text in cgroup_limits("memory.max") if text.isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def usable_cpus() -> tuple[int, ...]:
    """Return the CPUs this process may run on; none where the system does not list them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def place(cpus: Collection[int]) -> None:
    """Keep every thread of this process on ``cpus``; threads to come inherit it."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cpus)


def cpu_reader() -> Callable[[], int]:
    """Return a function that returns the CPU of the calling thread, -1 where the system does not know it."""
    try:
        reader: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return lambda: -1
    return reader


def children_seen() -> tuple[int, int]:
    """Return how many child processes run, and the page faults of those that have ended: both rise with new ones."""
    return len(psutil.Process().children()), resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


class Activity(NamedTuple):
    """How many threads worked while a process was watched, and how many child processes it has.

    ``threads`` is None where the time was too short to find out.
    """

    threads: int | None
    children: int

    @property
    def is_single(self) -> bool:
        """Whether one thread of one process does the work."""
        return self.threads is not None and self.threads <= 1 and not self.children


class ActivityWatch:
    """Watches this process from now on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._started_s = time.perf_counter()
        self._used_s = self._threads_s()

    def seen(self) -> Activity:
        """Return the threads and child processes that have worked since."""
        watched_s = time.perf_counter() - self._started_s
        least_s = max(_BUSY_LEAST_S, _BUSY_SHARE * watched_s)
        busy = sum(used_s - self._used_s.get(thread, 0.0) >= least_s for thread, used_s in self._threads_s().items())
        children = len(self._process.children(recursive=True))
        return Activity(busy if watched_s >= 2 * _BUSY_LEAST_S else None, children)

    def _threads_s(self) -> dict[int, float]:
        return {thread.id: thread.user_time + thread.system_time for thread in self._process.threads()}


class IdleWatch:
    """Adds up the CPU time that workers use while others measure."""

    def __init__(self, clock: Callable[[], float], wait: Callable[[float], None] = time.sleep) -> None:
        self._clock = clock
        self._wait = wait
        self._begun_s = 0.0
        self._before_s: list[tuple[Worker, float]] = []
        self._used_s: dict[int, float] = {}
        self._watched_s: dict[int, float] = {}

    def begin(self, workers: Sequence[Worker]) -> None:
        """Watch ``workers`` from now on, which have nothing to do until :meth:`end`."""
        self._begun_s = self._clock()
        self._before_s = [(worker, worker.cpu_s()) for worker in workers]

    def end(self, least_s: float = 2 * _IDLE_LEAST_S) -> None:
        """Stop watching, after ``least_s`` at the earliest."""
        if self._before_s:
            self._wait(max(0.0, least_s - (self._clock() - self._begun_s)))
        watched_s = self._clock() - self._begun_s
        for worker, before_s in self._before_s:
            key = id(worker)
            self._used_s[key] = self._used_s.get(key, 0.0) + worker.cpu_s() - before_s
            self._watched_s[key] = self._watched_s.get(key, 0.0) + watched_s
        self._before_s = []

    @contextmanager
    def while_measuring(self, measuring: Worker, others: Sequence[Worker]) -> Iterator[None]:
        """Watch ``others`` but the one that is ``measuring`` during the body."""
        self.begin([worker for worker in others if worker is not measuring])
        yield
        self.end(0.0)

    def share(self, worker: Worker) -> float:
        """Return the CPU time ``worker`` used while watched, over the time it was watched; 0 for a short watch."""
        watched_s = self._watched_s.get(id(worker), 0.0)
        return self._used_s[id(worker)] / watched_s if watched_s >= _IDLE_LEAST_S else 0.0
