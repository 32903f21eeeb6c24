"""What processes use: the CPUs they run on, their threads' work, others' work, and what this one holds between slices.

Linux offers all of it; elsewhere the kernel places processes as it likes, and records show that.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from pytest_rlperf import units
from pytest_rlperf.counters.memory import tracing
from pytest_rlperf.measure.untouched import untouched
from pytest_rlperf.measure.worker import Worker
from pytest_rlperf.model.live import OtherWork
from pytest_rlperf.model.measured import Usage

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


def usable_cpus() -> tuple[int, ...]:
    """Return the CPUs this process may run on; none where the system does not list them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def place(cpus: Collection[int]) -> None:
    """Keep every thread of this process on ``cpus``; threads to come inherit it."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return
    for thread in _threads():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, cpus)


@untouched
def _threads() -> list[int]:
    """Return the numbers of this process's threads."""
    return [int(thread.name) for thread in Path("/proc/self/task").iterdir()]


def cpu_reader() -> Callable[[], int]:
    """Return a function that returns the CPU of the calling thread, -1 where the system does not know it."""
    try:
        reader: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return lambda: -1
    return reader


@untouched
def children() -> set[int]:
    """Return the numbers of this process's child processes."""
    return {child.pid for child in psutil.Process().children()}


@untouched
def count_threads() -> int:
    """Return how many threads this process has."""
    return int(psutil.Process().num_threads())


def children_seen() -> tuple[int, int]:
    """Return how many child processes run, and the page faults of those that have ended: both rise with new ones."""
    return len(children()), resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


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
        """Return the threads and child processes that have worked since."""
        watched_s = self._clock() - self._started_s
        least_s = max(_BUSY_LEAST_S, _BUSY_SHARE * watched_s)
        busy = sum(used_s - self._used_s.get(thread, 0.0) >= least_s for thread, used_s in self._threads_s().items())
        children = len(self._process.children(recursive=True))
        return Activity(busy if watched_s >= 2 * _BUSY_LEAST_S else None, children)

    def _threads_s(self) -> dict[int, float]:
        return {thread.id: thread.user_time + thread.system_time for thread in self._process.threads()}


class _Process(NamedTuple):
    """A process: its name, the process that started it, and the CPU time that it and its ended children have used.

    That is in ticks of the system's clock.
    """

    name: str
    parent: int
    ticks: int


class _CpuTimes(NamedTuple):
    """The ticks that each process that can be seen has used so far, and the whole machine, which has so many CPUs."""

    processes: dict[int, _Process]
    ticks: int
    cpus: int

    @classmethod
    def read(cls, proc: Path) -> _CpuTimes:
        """Read the times, in a few milliseconds for a hundred processes; there are none but on Linux."""
        total, *others = read_system_file(proc / "stat").splitlines() or [""]
        user, nice, system, *_, steal = [int(text) for text in total.split()[1:9]] or [0, 0, 0, 0]
        cpus = sum(line.startswith("cpu") for line in others)
        processes: dict[int, _Process] = {}
        for place in proc.glob("[0-9]*") if cpus else ():
            with suppress(OSError):  # it has ended meanwhile
                start, _, end = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
                fields = end.split()
                used = sum(map(int, fields[11:15]))
                processes[int(place.name)] = _Process(start.partition("(")[2], int(fields[1]), used)
        return cls(processes, user + nice + system + steal, cpus)

    def since(self, before: _CpuTimes) -> dict[int, int]:
        """Return the ticks that every process used, with those of its children that have ended meanwhile."""
        used = {pid: now.ticks for pid, now in self.processes.items()}
        for pid, process in before.processes.items():
            # The parent of one that has ended has had its time added, also that from before; of two the grandparent.
            heir = next(filter(used.__contains__, before.lineage(pid)), None)
            if heir is not None:
                used[heir] -= process.ticks
        return {pid: max(0, ticks) for pid, ticks in used.items()}

    def lineage(self, pid: int) -> Iterator[int]:
        """Yield a process, the one that started it, and so on."""
        for _ in self.processes:  # and no longer: they were read one after another, so a number may be used again
            yield pid
            if pid not in self.processes:
                return
            pid = self.processes[pid].parent


class OtherWorkWatch:
    """Watches from now on what processes use CPUs, but for this one and those that it has started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._proc = proc
        self._started_s = clock()
        self._before = _CpuTimes.read(proc)

    def seen(self) -> OtherWork | None:
        """Return what they have used since; None where the system does not show it."""
        after = _CpuTimes.read(self._proc)
        ticks = (self._clock() - self._started_s) * os.sysconf("SC_CLK_TCK") if after.cpus else 0.0
        if not ticks:
            return None
        used, own = after.since(self._before), os.getpid()
        others = {pid: each for pid, each in used.items() if each and own not in after.lineage(pid)}
        by_name: Counter[str] = Counter()
        for pid, each in others.items():
            by_name[after.processes[pid].name] += each
        process = max(by_name, key=by_name.__getitem__, default="")
        busiest = max(others, key=lambda pid: (after.processes[pid].name == process, others[pid]), default=0)
        seen, unseen = sum(others.values()), after.ticks - self._before.ticks - sum(used.values())
        return OtherWork(
            process=process,
            pid=busiest,
            cpu_share=by_name[process] / ticks,
            seen_share=seen / (ticks * (len(usable_cpus()) or after.cpus)),
            unseen_share=max(0.0, unseen / (ticks * after.cpus)),
        )


class IdleWatch:
    """Adds up the CPU time that workers use while others measure."""

    def __init__(self, clock: Callable[[], float], wait: Callable[[float], None] = time.sleep) -> None:
        self._clock = clock
        self._wait = wait
        self._begun_s = 0.0
        self._before_s: list[tuple[Worker, float]] = []
        self._used_s: defaultdict[int, float] = defaultdict(float)  # by the workers' identities
        self._watched_s: defaultdict[int, float] = defaultdict(float)

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
            self._used_s[id(worker)] += worker.cpu_s() - before_s
            self._watched_s[id(worker)] += watched_s
        self._before_s = []

    def share(self, worker: Worker) -> float:
        """Return the CPU time ``worker`` used while watched, over the time it was watched; 0 for a short watch."""
        watched_s = self._watched_s[id(worker)]
        return self._used_s[id(worker)] / watched_s if watched_s >= _IDLE_LEAST_S else 0.0


# --------------------------------------------------------------------------- what this process holds


@untouched
def read_usage(calls: int) -> Usage:
    """Return what this process holds after so many calls; collects garbage, which takes under a millisecond.

    Objects are those of this process alone; memory, files and threads those of its child processes, too.
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
    """Whether this process has children, by one system call: to search all processes takes milliseconds."""
    if sys.platform == "linux":
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
    return True


def _private_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process that no file backs, where the system tells it apart."""
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def _sum(processes: Sequence[psutil.Process], of: Callable[[psutil.Process], int]) -> int:
    """Return the sum of a figure over processes, less those that have just ended."""
    found = 0
    for process in processes:
        with suppress(psutil.Error):
            found += of(process)
    return found


def _device_bytes() -> int:
    """Return the bytes of live tensors on CUDA devices, where PyTorch is at work there."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))


_CALLS_MOST, _CALLS_LEAST, _TIME_S = 1000, 4, 1.0
_LINES_MOST = 3


def find_allocations(
    call: Callable[[], object], setup: Callable[[], object] | None, call_s: float, least_bytes: float
) -> list[str]:
    """Return the lines whose allocations calls keep, the largest first: ``buffer.py:42 (200B a call)``.

    Python's own allocations and NumPy's are seen, those of native libraries are not.
    """
    calls = max(_CALLS_LEAST, min(_CALLS_MOST, int(_TIME_S / max(call_s, 1e-9) / 4)))
    with tracing():
        _repeat(call, setup, _CALLS_LEAST)
        before = _traced()
        _repeat(call, setup, calls)
        after = _traced()
    kept = [each for each in after.compare_to(before, "lineno") if each.size_diff >= max(1.0, least_bytes * calls)]
    return [
        f"{Path(each.traceback[0].filename).name}:{each.traceback[0].lineno} "
        f"({units.quantity(each.size_diff / calls)}B a call)"
        for each in kept[:_LINES_MOST]
    ]


def _repeat(call: Callable[[], object], setup: Callable[[], object] | None, calls: int) -> None:
    for _ in range(calls):
        if setup is not None:
            setup()
        call()


def _traced() -> tracemalloc.Snapshot:
    gc.collect()
    own = [tracemalloc.__file__, __file__]
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, name) for name in own])
