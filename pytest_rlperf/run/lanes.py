"""Lanes: the CPUs of this machine, on each of which one pair at a time measures, and who has them next."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.placement import usable_cpus

_CORES = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


class LaneCount(NamedTuple):
    """How many lanes this machine has: its ``cpus``, one of each core; ``quota`` CPUs are fewer where that is set."""

    cpus: tuple[int, ...]
    quota: float | None

    @property
    def most(self) -> int:
        """The most lanes at once: one at least, also where the system does not list its CPUs."""
        cpus = max(1, len(self.cpus))
        return cpus if self.quota is None else max(1, min(cpus, int(self.quota)))


def count_lanes(cpus: Collection[int] | None = None, cores: Path = _CORES, cgroup: Path = _CGROUP) -> LaneCount:
    """Return the lanes of the CPUs that this process may use.

    Hyper-threads of one core share its arithmetic units, so they are one lane.
    """
    usable = sorted(usable_cpus() if cpus is None else cpus)
    by_core: dict[str, int] = {}
    for cpu in usable:
        siblings = _read(cores / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        by_core.setdefault(siblings, cpu)
    return LaneCount(tuple(by_core.values()), _quota(cgroup))


def _quota(cgroup: Path) -> float | None:
    """Return the CPUs that the process's cgroup may use at once, by its tightest limit; None without a limit."""
    own = next((line for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "0::/")
    place = cgroup / own[len("0::") :].strip().lstrip("/")
    quotas = []
    for directory in (place, *place.parents):
        limit, _, period = _read(directory / "cpu.max").partition(" ")
        if limit.isdigit() and period.isdigit():
            quotas.append(int(limit) / int(period))
        if directory == cgroup:
            break
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Place:
    """A place in the queue for one lane or all of them, which its holder has as a context; it is not used twice.

    Entering waits for its turn and returns the lane's CPU, None where the kernel places all work.
    """

    def __init__(self, lanes: Lanes, turn: tuple[int, int], wanted: int) -> None:
        self.turn = turn
        self.wanted = wanted
        self._lanes = lanes
        self._cpu: int | None = None

    def __enter__(self) -> int | None:
        self._cpu = self._lanes.take(self)
        return self._cpu

    def __exit__(self, *_: object) -> None:
        self._lanes.give_back(self, self._cpu)


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
        self._queue: list[Place] = []
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def free(self) -> int:
        """How many lanes nobody has or waits for."""
        with self._changed:
            return 0 if self._queue else self.count - self._used

    def queue_up(self, turn: tuple[int, int], wanted: int) -> Place:
        """Return a place in the queue for ``wanted`` lanes; ``turn`` is the test's place in the run, and the pair's."""
        place = Place(self, turn, wanted)
        with self._changed:
            self._queue.append(place)
            self._queue.sort(key=lambda place: place.turn)  # it keeps the order of equal turns
        return place

    def take(self, place: Place) -> int | None:
        """Wait until it is a place's turn, and return its CPU; MeasurementError where the run has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_next(place))
            self._queue.remove(place)
            if self._is_closed:
                raise MeasurementError("the run was stopped")
            self._used += place.wanted
            self._changed.notify_all()
            return self._cpus.pop(0)

    def _is_next(self, place: Place) -> bool:
        return self._queue[0] is place and self._used + place.wanted <= self.count

    def give_back(self, place: Place, cpu: int | None) -> None:
        """End a place's turn."""
        with self._changed:
            self._used -= place.wanted
            self._cpus.append(cpu)
            self._changed.notify_all()

    def close(self) -> None:
        """Have all who wait raise MeasurementError: the run has stopped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class LanesOfTest:
    """The lanes as one test uses them, which queues for none before the ``previous`` test has queued or is over."""

    def __init__(self, lanes: Lanes, order: int = 0, previous: LanesOfTest | None = None) -> None:
        self.lanes = lanes
        self._order = order
        self._previous = previous
        self._has_begun = threading.Event()

    def one(self, pair: int = 0) -> Place:
        """Queue for a lane, for the test's pair."""
        return self._queue_up(pair, 1)

    def all(self, pair: int = 0) -> Place:
        """Queue for the whole machine, which is to be had once every lane is free."""
        return self._queue_up(pair, self.lanes.count)

    def first(self, pairs: int) -> list[Place]:
        """Queue for a lane for each of the first pairs."""
        self._wait()
        places = [self.lanes.queue_up((self._order, pair), 1) for pair in range(pairs)]
        self.pass_on()
        return places

    def _queue_up(self, pair: int, wanted: int) -> Place:
        self._wait()
        place = self.lanes.queue_up((self._order, pair), wanted)
        self.pass_on()
        return place

    def _wait(self) -> None:
        if self._previous is not None:
            self._previous._has_begun.wait()
            self._previous = None

    def pass_on(self) -> None:
        """Let the next test queue."""
        self._has_begun.set()
