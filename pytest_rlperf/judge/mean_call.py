"""The mean call of every process: the typical call plus the extra time of a minority of its calls.

Processes have equal seeds, and slices that begin at the same calls by number. So an effect of the code, for example a
reset or a growing table, comes at the same call in each process, and an effect of the machine does not. A round is
expensive if it is expensive in two thirds of the processes that have made it; its time is cut if it was not as slow in
those.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pytest_rlperf.model.figures import PAIR_TRIM, trimmed_mean
from pytest_rlperf.model.live import PairRecord, RareCalls
from pytest_rlperf.model.measured import Rounds, WorkerRecord

if TYPE_CHECKING:  # a run whose tests have one process each needs no arrays
    import numpy as np
    from numpy.typing import NDArray

    # Each slice's rounds, as multiples of the usual round; by its first call.
    _Slices = Mapping[int, NDArray[np.float64]]

_DEAR = 1.1  # times the usual round: noise at the same call of several processes is rarely as large
_CUT = 1.5  # times the least time of the same round in those processes
_HALF = 0.5  # of the extra time of the slowest rounds: rounds next to them may be a little slower, with cold caches
_NEAR_ROUNDS = 31  # the usual round is that of so many around it: the machine's pace changes little between them

_LEAST = 3  # processes that have made a round
_FEW, _MATTERS = 5, 1.02  # rounds of a pair; the mean round over the usual one: noise adds less
_STRETCHES = 10  # of a pair: they show how evenly its expensive calls come

_SIDES = ("base", "head")


class _Found(NamedTuple):
    """One process: its mean round, the share of its most expensive rounds, and the time of one of these.

    Both times are multiples of the usual round.
    """

    mean: float = 1.0
    share: float = 0.0
    dearest: float = 1.0


class _Side(NamedTuple):
    """The processes of one side beside each other: their rounds, the least times of these, and each one's figures.

    The figures are None for a process if no other process has made the same calls.
    """

    rounds: Sequence[Rounds]
    least: _Slices
    found: Sequence[_Found | None]

    @classmethod
    def of(cls, rounds: Sequence[Rounds | None]) -> _Side | None:
        """Return the figures of one side's processes; None for a single one, or if one has no rounds, on a device."""
        known = [each for each in rounds if each is not None]
        if len(known) < max(2, len(rounds)):
            return None
        processes = [_relative(each) for each in known]
        least = _least(processes)
        return cls(known, least, [_mean(slices, least) for slices in processes])

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


def _with_mean_calls(workers: Sequence[WorkerRecord], side: _Side | None) -> list[WorkerRecord]:
    found = () if side is None else side.found
    known = [each.mean for each in found if each is not None]
    if not known:
        return list(workers)
    means = [statistics.fmean(known) if each is None else each.mean for each in found]
    return [
        replace(worker, rare=mean + worker.collecting_s / worker.wall.call_s)
        for worker, mean in zip(workers, means, strict=True)
    ]


class MeanCalls:
    """The mean calls by the rounds of all pairs, the base's and the head's of each; nothing on a device."""

    def __init__(self, rounds: Sequence[Sequence[Rounds | None]]) -> None:
        self._base, self._head = (_Side.of([each[place] for each in rounds]) for place in (0, 1))

    def added_to(self, records: Sequence[PairRecord]) -> list[PairRecord]:
        """Return the pairs with the mean calls of both sides, and their error if expensive calls have moved."""
        base = _with_mean_calls([record.base for record in records], self._base)
        head = _with_mean_calls([record.head for record in records], self._head)
        error = 0.0 if self._base is None or self._head is None else _moved_error(self._base.least, self._head.least)
        return [
            replace(record, base=ours, head=theirs, moved_error=error)
            for record, ours, theirs in zip(records, base, head, strict=True)
        ]

    @property
    def are_few(self) -> bool:
        """Whether a pair has so few rare calls that another pair should go on for longer: their period may be as long.

        The side with more of them counts.
        """
        if self._base is None or self._head is None:
            return False
        return 0 < max(self._base.rare_rounds(), self._head.rare_rounds()) < _FEW

    def rare_calls(self, records: Sequence[PairRecord]) -> RareCalls | None:
        """Return the times of rare calls on the side whose mean call they lengthen the most; None if there are none."""
        if self._base is None or self._head is None:
            return None
        sides = self._base, self._head
        found = [[each or _Found() for each in side.found] for side in sides]
        means, shares, dearest = (
            [statistics.median(each[field] for each in side) for side in found] for field in range(len(_Found._fields))
        )
        most = int(means[1] >= means[0])
        if not shares[most]:
            return None
        calls_s = [statistics.median(getattr(record, side).wall.call_s for record in records) for side in _SIDES]
        iterations = sides[most].rounds[0].iterations
        takes_s = [call_s * (1 + iterations * (dear - 1)) for call_s, dear in zip(calls_s, dearest, strict=True)]
        return RareCalls(iterations / shares[most], *takes_s)


def _moved_error(base: _Slices, head: _Slices) -> float:
    """Return the standard error, as a logarithm, of the number of expensive calls that have moved between the sides.

    An environment with another seed has its resets at other steps, and by chance more or fewer of them in a pair; all
    pairs look at the same ones. Calls that are expensive only on one side are new or gone, and have no error of this
    kind.
    """
    import numpy as np

    starts = sorted(base.keys() & head.keys())
    if not starts:
        return 0.0
    added = [np.concatenate([each[start] for start in starts]) - 1 for each in (base, head)]
    added = [np.where(each > _DEAR - 1, each, 0.0) for each in added]
    moved = [np.where(other > 0, 0.0, each) for each, other in (added, added[::-1])]
    sums, count = [float(each.sum()) for each in moved], len(added[0])
    if not all(sums) or count < 2 * _STRETCHES:
        return 0.0
    variances = [
        min(1.0, other / own) * _STRETCHES * statistics.variance(float(each.sum()) for each in stretches)
        for own, other, stretches in zip(
            sums, sums[::-1], (np.array_split(each, _STRETCHES) for each in moved), strict=True
        )
    ]
    return math.sqrt(sum(variances)) / (count + max(float(each.sum()) for each in added))


def _least(processes: Sequence[_Slices]) -> _Slices:
    """Return the least time of rounds in two thirds of the processes that have made them: of three, or all of two.

    Two processes are too often held up in the same round.
    """
    import numpy as np

    least: dict[int, NDArray[np.float64]] = {}
    for start in {start for slices in processes for start in slices}:
        same = [slices[start] for slices in processes if start in slices]
        if len(same) >= min(_LEAST, len(processes)) > 1:
            least[start] = np.sort(same, axis=0)[(len(same) - 1) // 3]
    return least


def _mean(slices: _Slices, least: _Slices) -> _Found | None:
    import numpy as np

    starts = [start for start in slices if start in least]
    if not starts:
        return None
    own, others = (np.concatenate([each[start] for start in starts]) for each in (slices, least))
    is_dear = others > _DEAR
    if not is_dear.any():
        return _Found()
    cut, share = np.minimum(own, _CUT * others), float(is_dear.mean())
    ordinary = 1.0 if is_dear.all() else float(_medians(own[~is_dear]))
    adds = np.where(is_dear, others - 1, 0.0)
    is_dearest = adds >= _HALF * float((adds**2).sum() / adds.sum())
    mean = share * float(cut[is_dear].mean()) + (1 - share) * ordinary
    return _Found(mean, float(is_dearest.mean()), float(cut[is_dearest].mean()))


def _medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each row; NumPy's own function imports its masked arrays."""
    import numpy as np

    ordered = np.sort(rows, axis=-1)
    count = ordered.shape[-1]
    middle: NDArray[np.float64] = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return middle


def _relative(rounds: Rounds) -> _Slices:
    """Return the rounds of every slice as multiples of the usual round around it."""
    import numpy as np

    by_slice = np.asarray(rounds.rounds_ns, float).reshape(len(rounds.starts), -1)
    figures = by_slice.mean(axis=1) if rounds.is_mean else _medians(by_slice)
    near = math.ceil(_NEAR_ROUNDS / by_slice.shape[1]) // 2
    around = (figures[max(0, place - near) : place + near + 1] for place in range(len(figures)))
    usual = [trimmed_mean(each.tolist(), PAIR_TRIM) for each in around]  # as for a pair, the unit of the mean
    return {start: row / level for start, row, level in zip(rounds.starts, by_slice, usual, strict=True)}
