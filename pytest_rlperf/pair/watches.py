"""What disturbs a pair: the work of other processes, and workers that work while others measure."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf.model.live import OtherWork
from pytest_rlperf.pair.processes import Worker
from pytest_rlperf.spawn.cpus import read_system_file, usable_cpus

_IDLE_LEAST_S = 0.5  # a watch for idle workers: one tick is 2 % of it


class _Process(NamedTuple):
    """A process: its name, its parent process, and the CPU time that it and its ended children have used.

    ``ticks`` are ticks of the system's clock.
    """

    name: str
    parent: int
    ticks: int


class _CpuTimes(NamedTuple):
    """The ticks that each visible process and the whole machine have used so far, and the machine's CPUs."""

    processes: dict[int, _Process]
    ticks: int
    cpus: int

    @classmethod
    def read(cls, proc: Path) -> _CpuTimes:
        """Read the times, in a few milliseconds for a hundred processes; only Linux has them."""
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
        """Return the ticks that every process used since, including its children that have ended meanwhile."""
        used = {pid: now.ticks for pid, now in self.processes.items()}
        for pid, process in before.processes.items():
            # The parent of an ended process, or the next one up the line, has had all of its time added.
            heir = next(filter(used.__contains__, before.lineage(pid)), None)
            if heir is not None:
                used[heir] -= process.ticks
        return {pid: max(0, ticks) for pid, ticks in used.items()}

    def lineage(self, pid: int) -> Iterator[int]:
        """Yield a process, the one that started it, and so on."""
        for _ in self.processes:  # no longer: processes are read one after another, so a number may be reused
            yield pid
            if pid not in self.processes:
                return
            pid = self.processes[pid].parent


class OtherWorkWatch:
    """Watches from now on which processes use CPUs, except the run ``own`` and those that it has started."""

    def __init__(self, own: int, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        self._own = own
        self._clock = clock
        self._proc = proc
        self._started_s = clock()
        self._before = _CpuTimes.read(proc)

    def seen(self) -> OtherWork | None:
        """Return what the processes have used since; None if the system does not show it."""
        after = _CpuTimes.read(self._proc)
        ticks = (self._clock() - self._started_s) * os.sysconf("SC_CLK_TCK") if after.cpus else 0.0
        if not ticks:
            return None
        used, own = after.since(self._before), self._own
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
        """Watch ``workers``, which have nothing to do until :meth:`end`, from now on."""
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
        """Return the CPU time that ``worker`` used while watched, over the watched time; 0 for a short watch."""
        watched_s = self._watched_s[id(worker)]
        return self._used_s[id(worker)] / watched_s if watched_s >= _IDLE_LEAST_S else 0.0
