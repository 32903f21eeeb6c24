"""Lanes: the CPUs of this machine, on each of which one pair at a time measures, and who has them next."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.placement import CGROUP, cgroup_limits, read_system_file, usable_cpus

_CORES = Path("/sys/devices/system/cpu")
_KNOWN = 6  # degrees of freedom from which on the spread of pairs that measured alone is known
_LESS_VARIANCE = 0.5  # of that beside others: half the pairs are taken in a time where another lane stays empty


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
    return LaneCount(tuple(by_core.values()), _quota(cgroup))


def _quota(cgroup: Path) -> float | None:
    """Return the CPUs that the process's cgroup may use at once, by its tightest limit; None without a limit."""
    limits = (text.partition(" ")[::2] for text in cgroup_limits("cpu.max", cgroup))
    return min((int(limit) / int(period) for limit, period in limits if (limit + period).isdigit()), default=None)


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
        self.neighbours = Neighbours()

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


class Neighbours:
    """Whether pairs differ less with the machine to themselves than beside others, by the tests that had both."""

    def __init__(self) -> None:
        self._log_ratios: dict[int, tuple[Sequence[float], Sequence[float]]] = {}
        self._lock = threading.Lock()

    def note(self, test: int, alone: Sequence[float], beside: Sequence[float]) -> None:
        """Keep the logarithms of the pairs' figures that a test has so far."""
        with self._lock:
            self._log_ratios[test] = alone, beside

    @property
    def disturb(self) -> bool:
        """Whether it may be worth the time to measure alone: pairs differ less then, or too few are known.

        On a machine that others use their noise is most of the spread, and lanes that stay empty do not lessen it.
        """
        with self._lock:
            both = [known for known in self._log_ratios.values() if len(known[0]) > 1 and len(known[1]) > 1]
        if sum(len(alone) - 1 for alone, _ in both) < _KNOWN:
            return True
        alone, beside = (_variance([known[kind] for known in both]) for kind in (0, 1))
        return alone < _LESS_VARIANCE * beside


def _variance(samples: Sequence[Sequence[float]]) -> float:
    """Return the variance within samples, of two values or more each."""
    freedom = sum(len(sample) - 1 for sample in samples)
    return sum((len(sample) - 1) * statistics.variance(sample) for sample in samples) / freedom


class LanesOfTest:
    """The lanes as one test uses them, which queues for none before the ``previous`` test has queued or is over."""

    def __init__(self, lanes: Lanes, order: int = 0, previous: LanesOfTest | None = None) -> None:
        self.count = lanes.count
        self.has_cpus = lanes.has_cpus
        self._lanes = lanes
        self._order = order
        self._previous = previous
        self._has_begun = threading.Event()

    @property
    def free(self) -> int:
        """How many lanes nobody has or waits for."""
        return self._lanes.free

    @property
    def neighbours_disturb(self) -> bool:
        """Whether it may be worth the time to measure alone."""
        return self._lanes.neighbours.disturb

    def note_pairs(self, alone: Sequence[float], beside: Sequence[float]) -> None:
        """Keep the logarithms of the figures of the test's pairs, with the machine to themselves and beside others."""
        self._lanes.neighbours.note(self._order, alone, beside)

    def one(self, pair: int = 0) -> Place:
        """Queue for a lane, for the test's pair."""
        return self._queue_up(pair, 1)

    def all(self, pair: int = 0) -> Place:
        """Queue for the whole machine, which is to be had once every lane is free."""
        return self._queue_up(pair, self.count)

    def first(self, pairs: int) -> list[Place]:
        """Queue for a lane for each of the first pairs."""
        self._wait()
        places = [self._lanes.queue_up((self._order, pair), 1) for pair in range(pairs)]
        self.pass_on()
        return places

    def _queue_up(self, pair: int, wanted: int) -> Place:
        self._wait()
        place = self._lanes.queue_up((self._order, pair), wanted)
        self.pass_on()
        return place

    def _wait(self) -> None:
        if self._previous is not None:
            self._previous._has_begun.wait()
            self._previous = None

    def pass_on(self) -> None:
        """Let the next test queue."""
        self._has_begun.set()
