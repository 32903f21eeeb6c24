"""Noisy bisection: the chance of every commit to be the first slower one, given live pairs of some with the good one.

A pair's log ratio varies by some percent, so that a probe is no answer but a likelihood. (M. V. Burnashev and K. Sh.
Zigangirov, "An interval estimation problem for controlled observations", Problems of Information Transmission 10, 1974;
R. Waeber, P. I. Frazier and S. G. Henderson, "Bisection search with noisy responses", SIAM Journal on Control and
Optimization 51, 2013.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pytest_rlperf.judge.live import PLACED_SPREAD, UNPLACED_SPREAD
from pytest_rlperf.judge.stats import Spread, normal_chance, squared_deviations
from pytest_rlperf.model import Estimate

SURE = 0.99
PAIRS_MOST = 30  # of one commit: more of them would measure its layout in memory

_DRIFT_SD = 0.004  # of equally fast commits, in logarithms: layouts differ, and small changes of no concern
_FASTER = 0.2  # chance that a commit which is not slower is faster by anything
_LIKE_BAD = 0.7  # chance that a slower commit is as slow as the bad one: there may have been several slowdowns
_LIKE_BAD_SD = 0.1  # of the bad one's change, likewise
_MISLED = 5e-4  # chance that a commit's pairs are misleading, however many there are
_PART_LEAST = 0.125  # of the bad one's change: a smaller one is not what is searched for
_FACTOR_MOST = 1.5  # of the bad one's change: a slower commit is hardly slower
_OVER_MOST = 0.05
_GAIN_LEAST = 0.03  # bits: a probe of less changes nothing
_TINY = 1e-300


@dataclass(frozen=True)
class Candidates:
    """The candidates from ``first`` to ``last`` that cannot be told apart, by their numbers, and their chance."""

    first: int
    last: int
    chance: float


@dataclass(frozen=True)
class Bisection:
    """A search among commits 1 to ``count`` for the first slower one; commit 0 is the good one.

    ``pairs`` are the log ratios of pairs with the good one by commit; the last commit's are there from the beginning,
    and are slower by a mean over 0. ``untestable`` are commits that cannot be run. Changes under half the
    ``tolerance``, or half the last commit's change where that is smaller, count as none, and so do those under an
    eighth of the last commit's change.
    """

    count: int
    tolerance: float
    pairs: Mapping[int, Sequence[float]]
    untestable: frozenset[int] = frozenset()
    placed: bool = True
    _cache: dict[str, list[float]] = field(default_factory=dict, compare=False, repr=False)

    def after(self, commit: int, log_ratios: Sequence[float]) -> Bisection:
        """Return the search with further pairs of a commit."""
        known = tuple(self.pairs.get(commit, ()))
        return replace(self, pairs={**self.pairs, commit: (*known, *log_ratios)}, _cache={})

    def without(self, commit: int) -> Bisection:
        """Return the search with a commit that cannot be run."""
        return replace(self, untestable=self.untestable | {commit}, _cache={})

    def chances(self) -> list[float]:
        """Return the chance of each commit from 1 to ``count`` to be the first slower one."""
        if "chances" not in self._cache:
            logs = {commit: self._likelihoods(commit) for commit in self.pairs if 0 < commit <= self.count}
            # Commits before the first slower one are as good, it and those behind are slower.
            slower = math.fsum(each[1] for each in logs.values())
            found = []
            for commit in range(1, self.count + 1):
                found.append(slower)
                same, slow = logs.get(commit, (0.0, 0.0))
                slower += same - slow
            largest = max(found)
            weights = [math.exp(each - largest) for each in found]
            total = math.fsum(weights)
            self._cache["chances"] = [weight / total for weight in weights]
        return self._cache["chances"]

    def is_slower(self, commit: int) -> float:
        """Return the chance that a commit is slower than the good one."""
        if "slower" not in self._cache:
            self._cache["slower"] = list(accumulate(self.chances()))
        return min(1.0, self._cache["slower"][commit - 1])

    def gain(self, commit: int) -> float:
        """Return what a probe of a commit may tell, at most one bit; nothing of one that cannot be probed."""
        is_spent = commit in self.untestable or len(self.pairs.get(commit, ())) >= PAIRS_MOST
        chance = self.is_slower(commit)
        if is_spent or commit == self.count or not 0 < chance < 1:
            return 0.0
        bits = -chance * math.log2(chance) - (1 - chance) * math.log2(1 - chance)
        return bits if bits >= _GAIN_LEAST else 0.0

    def likeliest(self) -> Candidates:
        """Return the likeliest commit, with those right before it that cannot be run."""
        chances = self.chances()
        found = Candidates(1, self.count, 0.0)
        first = 1
        for commit in range(1, self.count + 1):
            if commit in self.untestable and commit < self.count:
                continue
            chance = math.fsum(chances[first - 1 : commit])
            if chance > found.chance:
                found = Candidates(first, commit, min(1.0, chance))
            first = commit + 1
        return found

    def range_left(self) -> Candidates:
        """Return the shortest range that has the first slower commit for certain, as far as anything is."""
        chances = self.chances()
        found = Candidates(1, self.count, 1.0)
        first, within = 1, 0.0
        for last in range(1, self.count + 1):
            within += chances[last - 1]
            while within - chances[first - 1] >= SURE:
                within -= chances[first - 1]
                first += 1
            if within >= SURE and last - first < found.last - found.first:
                found = Candidates(first, last, min(1.0, within))
        return found

    @property
    def is_over(self) -> bool:
        """Whether a commit is named, or no probe could change anything."""
        return self.likeliest().chance >= SURE or not any(self.gain(commit) for commit in range(1, self.count))

    def whole(self) -> Estimate:
        """Return how much slower the last commit is than the good one, with an interval of 99 %."""
        return self._spread().estimate(self.pairs[self.count], confidence=SURE, alpha=1 - SURE)

    def _likelihoods(self, commit: int) -> tuple[float, float]:
        """Return the logarithms of the likelihood of a commit's pairs where it is as good, and where it is slower."""
        bad, spread = statistics.fmean(self.pairs[self.count]), self._spread()
        mean, count = statistics.fmean(self.pairs[commit]), len(self.pairs[commit])
        least = max(min(bad, math.log1p(self.tolerance)) / 2, _PART_LEAST * bad)
        most = max(_FACTOR_MOST * bad, bad + _OVER_MOST)

        def good(sd: float) -> float:
            error = sd / math.sqrt(count)
            faster = (normal_chance(-mean / error) - normal_chance((-most - mean) / error)) / most
            return (1 - _FASTER) * _density(mean, math.hypot(error, _DRIFT_SD)) + _FASTER * faster

        def slow(sd: float) -> float:
            error, of_bad = sd / math.sqrt(count), sd / math.sqrt(len(self.pairs[self.count]))
            between = (normal_chance((most - mean) / error) - normal_chance((least - mean) / error)) / (most - least)
            like_bad = _density(mean - bad, math.hypot(error, of_bad, _LIKE_BAD_SD * bad))
            return _LIKE_BAD * like_bad + (1 - _LIKE_BAD) * between

        as_good, slower = spread.average(good), spread.average(slow)
        return (
            math.log(as_good + _MISLED * slower + _TINY),
            math.log(slower + _MISLED * as_good + _TINY),
        )

    def _spread(self) -> Spread:
        """Return how much pairs differ, as those of all commits show."""
        expected = PLACED_SPREAD if self.placed else UNPLACED_SPREAD
        known = [pairs for pairs in self.pairs.values() if len(pairs) > 1]
        return expected.after(sum(map(squared_deviations, known)), sum(len(pairs) - 1 for pairs in known))


def is_partial(step: Estimate | None, whole: Estimate) -> bool:
    """Whether one commit's change is surely less than that of all commits together."""
    return step is not None and step.high < whole.low


def next_probe(searches: Sequence[Bisection]) -> int | None:
    """Return the commit whose probe tells the most about all searches together that are not over; None without one."""
    left = [search for search in searches if not search.is_over]
    if not left:
        return None
    gains = {commit: math.fsum(search.gain(commit) for search in left) for commit in range(1, left[0].count)}
    return max(gains, key=lambda commit: gains[commit])


def _density(value: float, sd: float) -> float:
    return math.exp(-0.5 * (value / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
