"""Lanes: the CPUs of this machine, on each of which one pair at a time measures, and who has them next."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.resources import CGROUP, cgroup_limits, read_system_file, usable_cpus

_CORES = Path("/sys/devices/system/cpu")


class LaneCount(NamedTuple):
    """How many lanes this machine has: its ``cpus``, one of each core; ``quota`` CPUs are fewer where that is set."""

    cpus: tuple[int, ...]
    quota: float | None

    @property
    def most(self) -> int:
        """The most lanes at once: one at least, also where the system does not list its CPUs."""
        cpus = max(1, len(self.cpus))
        return cpus if self.quota is None else max(1, min(cpus, int(self.quota)))


def count_lanes(cpus: Collection[int] | None = None, cores: Path = _CORES, cgroup: Path = CGROUP) -> LaneCount:
    """Return the lanes of the CPUs that this process may use.

    Hyper-threads of one core share its arithmetic units, so they are one lane.
    """
    usable = sorted(usable_cpus() if cpus is None else cpus)
    by_core: dict[str, int] = {}
    for cpu in usable:
        siblings = read_system_file(cores / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        by_core.setdefault(siblings, cpu)
    limits = (text.partition(" ")[::2] for text in cgroup_limits("cpu.max", cgroup))  # the tightest one counts
    quota = min((int(limit) / int(period) for limit, period in limits if (limit + period).isdigit()), default=None)
    return LaneCount(tuple(by_core.values()), quota)


class Lanes:
    """Hands out CPUs to threads that measure: ``count`` at once, or all of them to one thread.

    Earlier tests come first, and of one test the earlier pairs. ``cpus`` are those to choose from, none where the
    kernel places all work. Where there are more of them than lanes, they take turns: one may be slower for a while.
    """

    def __init__(self, count: int, cpus: Collection[int]) -> None:
        self.count = count
        self.has_cpus = len(cpus) >= count
        self._cpus: list[int | None] = list(cpus) if self.has_cpus else [None] * count
        self._used = 0
        self._queue: list[tuple[int, int, int]] = []
        self._arrivals = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def free(self) -> int:
        """How many lanes nobody has or waits for."""
        with self._changed:
            return 0 if self._queue else self.count - self._used

    @contextmanager
    def lane(self, test: int, pair: int = 0, *, all_of_them: bool = False) -> Iterator[int | None]:
        """Wait for a lane, or for the whole machine, and yield its CPU: None where the kernel places all work.

        ``test`` and ``pair`` are its place in the run. MeasurementError where the run has stopped.
        """
        wanted = self.count if all_of_them else 1
        with self._changed:
            place = (test, pair, next(self._arrivals))
            self._queue.append(place)
            self._changed.wait_for(
                lambda: self._is_closed or (min(self._queue) == place and self._used + wanted <= self.count)
            )
            self._queue.remove(place)
            if self._is_closed:
                raise MeasurementError("the run was stopped")
            self._used += wanted
            cpu = self._cpus.pop(0)
            self._changed.notify_all()
        try:
            yield cpu
        finally:
            with self._changed:
                self._used -= wanted
                self._cpus.append(cpu)
                self._changed.notify_all()

    def close(self) -> None:
        """Have all who wait raise MeasurementError: the run has stopped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
