"""The mean call of every process: the typical call plus the extra time of a minority of its calls.

Processes have equal seeds, and slices that begin at the same calls by number. So an effect of the code, for example a
reset or a growing table, comes at the same call in each process, and an effect of the machine does not. A round is
expensive if it is expensive in two thirds of the processes that have made it; its time is cut if it was not as slow in
those. What few processes of pairs have, by the CPU's time, is the workload's own chance, as of an environment without a
seed: it is part of the mean call, and makes pairs differ.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from pytest_rlperf.model.figures import PAIR_TRIM, trimmed_mean
from pytest_rlperf.model.live import PairRecord, RareCalls
from pytest_rlperf.model.measured import Rounds, WorkerRecord

# Both are by a slice's first call. NumPy would take longer to import than these take.
_Slices: TypeAlias = Mapping[int, Sequence[float]]  # all rounds, as multiples of the usual round
_Dear: TypeAlias = Mapping[int, Mapping[int, float]]  # the least times of expensive rounds, by their places in a slice

_DEAR = 1.1  # times the usual round: noise at the same call of several processes is rarely as large
_CUT = 1.5  # times the least time of the same round in those processes
_HALF = 0.5  # of the extra time of the slowest rounds: rounds next to them may be a little slower, with cold caches
_NEAR_ROUNDS = 31  # the usual round is that of so many around it: the machine's pace changes little between them

_MANY_SLICES = 8  # without one of fewer, a slice that was held up would count for more
_LEAST_NS = 1e-9  # a clock may not have moved
_LEAST = 3  # processes that have made a round
_FEW, _MATTERS = 5, 1.02  # rounds of a pair; the mean round over the usual one: noise adds less
_OWN_FEW, _OWN_MATTERS = 3, 0.02  # expensive rounds of a process's own, and what they add to its mean round
_STRETCHES = 10  # of a pair: they show how evenly its expensive calls come

_SIDES = ("base", "head")


class _Found(NamedTuple):
    """One process: its mean round, the share of its most expensive rounds, and the time of one of these.

    Both times are multiples of the usual round, and so is ``own``: what the expensive rounds that few other processes
    have add to the mean round. ``own_rounds`` is their number.
    """

    mean: float = 1.0
    share: float = 0.0
    dearest: float = 1.0
    own: float = 0.0
    own_rounds: int = 0


class _Side(NamedTuple):
    """The processes of one side beside each other: their rounds, the expensive ones, and each process's figures.

    The figures are None for a process if no other process has made the same calls.
    """

    rounds: Sequence[Rounds]
    dear: _Dear
    found: Sequence[_Found | None]

    @classmethod
    def of(cls, rounds: Sequence[Rounds | None]) -> _Side | None:
        """Return the figures of one side's processes; None for a single one, or if one has no rounds, on a device."""
        known = [each for each in rounds if each is not None]
        if len(known) < max(2, len(rounds)):
            return None
        processes = [_relative(each) for each in known]
        dear = _dear(processes)
        found = [_mean(slices, dear, _figure_of(own)) for slices, own in zip(processes, known, strict=True)]
        return cls(known, dear, found)

    @property
    def size(self) -> int:
        """The rounds of a slice."""
        return _size(self.rounds[0])

    @property
    def has_own(self) -> bool:
        """Whether rounds of a process's own matter in the median process, and most processes' times are the CPU's."""
        found = self._by_cpu()
        return 2 * len(found) > len(self.found) and (
            statistics.median(each.own for each in found) >= _OWN_MATTERS
            and statistics.median(each.own_rounds for each in found) >= _OWN_FEW
        )

    def means(self, *, with_own: bool) -> list[float | None]:
        """Return each process's mean round, ``with_own`` expensive rounds that few other processes have.

        If a process's times are not the CPU's, it gets the average of the others' own rounds.
        """
        chance = [each.own for each in self._by_cpu()] if with_own else []
        usual = statistics.fmean(chance) if chance else 0.0
        both = zip(self.found, self.rounds, strict=True)
        return [
            None if each is None else each.mean + (each.own if chance and rounds.by_cpu else usual)
            for each, rounds in both
        ]

    def _by_cpu(self) -> list[_Found]:
        both = zip(self.found, self.rounds, strict=True)
        return [each for each, rounds in both if each is not None and rounds.by_cpu]

    def rare_rounds(self) -> float:
        """Return how many of the most expensive rounds the median process has, if they matter."""
        found = zip(self.found, self.rounds, strict=True)
        counts = [each.share * len(own.rounds_ns) * (each.mean > _MATTERS) for each, own in found if each is not None]
        return statistics.median(counts) if counts else 0.0


def with_mean_calls(workers: Sequence[WorkerRecord], rounds: Sequence[Rounds | None]) -> list[WorkerRecord]:
    """Return the workers of one side, each with its mean call as a multiple of its typical one, None if unknown.

    A worker that shares no call with any other has the mean of the others.
    """
    return _with_mean_calls(workers, _Side.of(rounds))


def _with_mean_calls(
    workers: Sequence[WorkerRecord], side: _Side | None, *, with_own: bool = False
) -> list[WorkerRecord]:
    found = [] if side is None else side.means(with_own=with_own)
    known = [each for each in found if each is not None]
    if not known:
        return list(workers)
    means = [statistics.fmean(known) if each is None else each for each in found]
    return [
        replace(worker, rare=mean + worker.collecting_s / worker.wall.call_s)
        for worker, mean in zip(workers, means, strict=True)
    ]


class MeanCalls:
    """The mean calls by the rounds of all pairs, the base's and the head's of each; nothing on a device."""

    def __init__(self, rounds: Sequence[Sequence[Rounds | None]]) -> None:
        self._base, self._head = (_Side.of([each[place] for each in rounds]) for place in (0, 1))

    def added_to(self, records: Sequence[PairRecord]) -> list[PairRecord]:
        """Return the pairs with the mean calls of both sides, and the error that expensive calls give these."""
        own = self._have_own
        base = _with_mean_calls([record.base for record in records], self._base, with_own=own)
        head = _with_mean_calls([record.head for record in records], self._head, with_own=own)
        moved = 0.0 if self._base is None or self._head is None else _moved_error(self._base, self._head)
        return [
            replace(record, base=ours, head=theirs, moved_error=moved)
            for record, ours, theirs in zip(records, base, head, strict=True)
        ]

    @property
    def _have_own(self) -> bool:
        """Whether processes of a side have expensive calls of their own, which then count on both."""
        return any(side is not None and side.has_own for side in (self._base, self._head))

    @property
    def are_few(self) -> bool:
        """Whether a pair has so few rare calls that another pair should go on for longer: their period may be as long.

        The side with more of them counts. So do those that each process has for itself.
        """
        if self._base is None or self._head is None:
            return False
        return self._have_own or 0 < max(self._base.rare_rounds(), self._head.rare_rounds()) < _FEW

    def rare_calls(self, records: Sequence[PairRecord]) -> RareCalls | None:
        """Return the times of rare calls on the side whose mean call they lengthen the most; None if there are none."""
        if self._base is None or self._head is None:
            return None
        sides = self._base, self._head
        found = [[each or _Found() for each in side.found] for side in sides]
        means, shares, dearest = (
            [statistics.median(each[field] for each in side) for side in found] for field in range(3)
        )
        most = int(means[1] >= means[0])
        if not shares[most]:
            return None
        calls_s = [statistics.median(getattr(record, side).wall.call_s for record in records) for side in _SIDES]
        iterations = sides[most].rounds[0].iterations
        takes_s = [call_s * (1 + iterations * (dear - 1)) for call_s, dear in zip(calls_s, dearest, strict=True)]
        return RareCalls(iterations / shares[most], *takes_s)


def _moved_error(base: _Side, head: _Side) -> float:
    """Return the standard error, as a logarithm, of the number of expensive calls that have moved between the sides.

    An environment with another seed has its resets at other steps, and by chance more or fewer of them in a pair; all
    pairs look at the same ones. Calls that are expensive only on one side are new or gone, and have no error of this
    kind.
    """
    starts = sorted(base.dear.keys() & head.dear.keys())
    count = len(starts) * base.size
    added = [
        {
            number * base.size + place: least - 1
            for number, start in enumerate(starts)
            for place, least in side[start].items()
        }
        for side in (base.dear, head.dear)
    ]
    moved = [{place: adds for place, adds in own.items() if place not in other} for own, other in (added, added[::-1])]
    sums = [math.fsum(each.values()) for each in moved]
    if not all(sums) or count < 2 * _STRETCHES:
        return 0.0
    variances = [
        min(1.0, other / own) * _STRETCHES * statistics.variance(_by_stretch(each, count))
        for own, other, each in zip(sums, sums[::-1], moved, strict=True)
    ]
    return math.sqrt(sum(variances)) / (count + max(math.fsum(each.values()) for each in added))


def _by_stretch(adds: Mapping[int, float], count: int) -> list[float]:
    """Return the sums in equal stretches of ``count`` rounds."""
    sums = [0.0] * _STRETCHES
    for place, each in adds.items():
        sums[place * _STRETCHES // count] += each
    return sums


def _dear(processes: Sequence[_Slices]) -> _Dear:
    """Return the rounds that are expensive in two thirds of the processes that have made them: of three, or all of two.

    Two processes are too often held up in the same round. All slices that enough processes have made are there.
    """
    dear: dict[int, dict[int, float]] = {}
    for start in {start for slices in processes for start in slices}:
        same = [slices[start] for slices in processes if start in slices]
        if len(same) >= min(_LEAST, len(processes)) > 1:
            less = (len(same) - 1) // 3
            counts = Counter(place for row in same for place, each in enumerate(row) if each > _DEAR)
            places = (place for place, count in counts.items() if count >= len(same) - less)
            dear[start] = {place: sorted(row[place] for row in same)[less] for place in places}
    return dear


def _mean(slices: _Slices, dear: _Dear, figure: Callable[[Sequence[float]], float]) -> _Found | None:
    """Return what a process's rounds show; ``figure`` is that of a slice."""
    starts = [start for start in slices if start in dear]
    if not starts:
        return None
    others_of = [[each for place, each in enumerate(slices[start]) if place not in dear[start]] for start in starts]
    others = [each for row in others_of for each in row]
    least = [each for start in starts for each in dear[start].values()]
    count = sum(len(slices[start]) for start in starts)
    # As for the unit: where the pace jumps, another average would differ from it even without expensive rounds.
    typical = _usual([figure(row) for row in others_of if row]) if others else 1.0
    expensive = [slices[start][place] for start in starts for place in dear[start]]
    cut = [min(each, _CUT * usual) for each, usual in zip(expensive, least, strict=True)]
    mean = (sum(cut) + len(others) * typical) / count if least else 1.0
    chance = [each for each in others if each > _CUT]
    own = (sum(cut) + sum(chance) + (len(others) - len(chance)) * typical) / count - mean if chance else 0.0
    if not least:
        return _Found(own=own, own_rounds=len(chance))
    adds = [each - 1 for each in least]
    enough = _HALF * sum(each**2 for each in adds) / sum(adds)
    dearest = [each for each, added in zip(cut, adds, strict=True) if added >= enough]
    return _Found(mean, len(dearest) / count, statistics.fmean(dearest), own, len(chance))


def _size(rounds: Rounds) -> int:
    return len(rounds.rounds_ns) // len(rounds.starts)


def _figure_of(rounds: Rounds) -> Callable[[Sequence[float]], float]:
    return statistics.fmean if rounds.is_mean else statistics.median


def _even(figures: Sequence[float]) -> Sequence[float]:
    """Leave out one of an odd number of slices, if they are many: every second one may be dearer."""
    return figures[:-1] if len(figures) % 2 and len(figures) >= _MANY_SLICES else figures


def _usual(figures: Sequence[float]) -> float:
    """Return the average of slices' figures that a pair's log-ratio compares: the mean call is a multiple of it."""
    return math.exp(trimmed_mean([math.log(max(each, _LEAST_NS)) for each in figures], PAIR_TRIM))


def _relative(rounds: Rounds) -> _Slices:
    """Return the rounds of every slice as multiples of the usual round around it."""
    size = _size(rounds)
    by_slice = [rounds.rounds_ns[place : place + size] for place in range(0, len(rounds.rounds_ns), size)]
    figures = [_figure_of(rounds)(row) for row in by_slice]
    near = math.ceil(_NEAR_ROUNDS / size) // 2
    around = (_even(figures[max(0, place - near) : place + near + 1]) for place in range(len(figures)))
    usual = [_usual(each) for each in around]
    return {
        start: [each / level for each in row] for start, row, level in zip(rounds.starts, by_slice, usual, strict=True)
    }
