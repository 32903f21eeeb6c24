"""The time that a test's pairs have: it is shared out among those that are still to come."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_rlperf.judge.mean_call import MeanCalls
from pytest_rlperf.model.live import PairRecord, RareCalls
from pytest_rlperf.model.measured import Rounds
from pytest_rlperf.model.phases import Block
from pytest_rlperf.run.results import PairsMeasured

# n pairs of t seconds, each set up in u seconds, take n(t + u) for a variance of (s² + e²)/n, where s is the spread
# between pairs and e a pair's own error, e² ~ 1/t. The time to a given variance is least where e/s = √(t/u).
_ERROR_OF_SPREAD = 0.5
_ERROR_OF_TOLERANCE = 1 / 3  # until a spread is known: pairs of equal code differ by about as much on a busy machine
_SPREAD_LEAST = 3  # pairs


class _Taken(NamedTuple):
    """A pair that was measured: its figures, its traced blocks, and the rounds of its plain slices."""

    record: PairRecord
    traced: Sequence[Block]
    rounds: Sequence[Rounds | None]


class PairTimes:
    """Shares ``max_time_s`` out among pairs, beside the time to start workers and set up; keeps what they gave.

    Several pairs may be under way at once. There will be ``least`` pairs, or ``least_unplaced`` where the kernel places
    workers. A pair is good enough once its own error is small beside ``tolerance``, in logarithms, or beside the spread
    of the pairs before.
    """

    def __init__(self, *, least: int, least_unplaced: int = 0, max_time_s: float, tolerance: float = 0.0) -> None:
        self.enough_error = _ERROR_OF_TOLERANCE * tolerance
        self._least = least
        self._least_unplaced = least_unplaced
        self._left_s = max_time_s
        self._tolerance = tolerance
        self._begun = 0
        self._beginning = 0  # of the pairs that begin at once, how many have not begun yet
        self._taken: dict[int, _Taken] = {}
        self._mean_calls = MeanCalls([])
        self._records: list[PairRecord] = []  # from the first one on without a gap, made once for each pair added

    @property
    def count(self) -> int:
        """How many pairs have been measured, of those from the first one on without a gap."""
        return next(index for index in itertools.count() if index not in self._taken)

    @property
    def is_up(self) -> bool:
        """Whether there is no time for half of another pair as long as those so far."""
        return self._left_s <= self._usual_s() / 2

    def begin(self, most: int) -> int:
        """Return how many pairs to begin at once, ``most`` or as many as there is time for; they share that time."""
        usual_s = self._usual_s()
        self._beginning = max(1, min(most, int(self._left_s / usual_s))) if usual_s else most
        return self._beginning

    def _usual_s(self) -> float:
        return statistics.fmean(taken.record.seconds for taken in self._taken.values()) if self._taken else 0.0

    def share_s(self) -> float:
        """Return the time of the pair that is to warm up now, and to be measured."""
        missing = max(1, self._least - self._begun, self._beginning)
        self._beginning -= 1
        self._begun += 1
        share_s = self._left_s / missing
        self._left_s -= share_s
        return share_s

    def share_again_s(self, index: int, share_s: float, *, is_single: bool) -> float:
        """Return the time of a pair that is warm: more pairs share it where one turns out not to be placed."""
        if self._least < self._least_unplaced and not is_single:
            self._least = self._least_unplaced
            self._left_s += share_s
            share_s = self._left_s / max(1, self._least - index)
            self._left_s -= share_s
        return share_s

    def give_back(self, share_s: float) -> None:
        """Have the time of a pair again that was lost."""
        self._left_s += share_s
        self._begun -= 1

    def add(
        self, index: int, share_s: float, record: PairRecord, traced: Sequence[Block], rounds: Sequence[Rounds | None]
    ) -> None:
        """Add a pair that was measured."""
        self._left_s += share_s - record.seconds
        self._taken[index] = _Taken(record, traced, rounds)
        taken = self._in_order()
        self._mean_calls = MeanCalls([each.rounds for each in taken])
        self._records = self._mean_calls.added_to([each.record for each in taken])
        ratios = [taken.record.wall_log_ratio for taken in self._taken.values()]
        if self._tolerance and len(ratios) >= _SPREAD_LEAST:
            of_spread = _ERROR_OF_SPREAD * statistics.stdev(ratios)
            self.enough_error = max(_ERROR_OF_TOLERANCE * self._tolerance, of_spread)
        if self._mean_calls.are_few:
            self.enough_error = 0.0  # none is: the pair goes on for as long as pairs do

    def records(self) -> list[PairRecord]:
        """Return the figures of every pair, from the first one on without a gap."""
        return list(self._records)

    def rare_calls(self) -> RareCalls | None:
        """Return how dear the rare calls are; None where no call is dearer than others."""
        return self._mean_calls.rare_calls(self._records)

    def _in_order(self) -> list[_Taken]:
        return [self._taken[index] for index in range(self.count)]

    def measured(self, idle_shares: Sequence[float] = (0.0, 0.0)) -> PairsMeasured:
        """Return the figures of all pairs, with the CPU time that the first one has used since it was measured."""
        records = self.records()
        base, head = (
            replace(worker, idle_cpu_share=share)
            for worker, share in zip((records[0].base, records[0].head), idle_shares, strict=True)
        )
        records[0] = replace(records[0], base=base, head=head)
        return PairsMeasured.of(records, [block for each in self._in_order() for block in each.traced])
