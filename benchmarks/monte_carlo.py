"""The rule for live pairs on simulated noise of the shape that shared machines were measured to have.

Slices of both sides are simulated as a live comparison takes them, strictly in turn under one common load; pairs also
straight from distributions that are worse than those. A copy of the rule that judges all tests at once decides them,
and is first compared with the rule itself. Nothing is measured: the same seed prints the same tables everywhere::

    python benchmarks/monte_carlo.py            # about four minutes of one core
    python benchmarks/monte_carlo.py --quick    # a tenth of it

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TypeAlias

import msgspec
import numpy as np
import scipy
from msgspec.structs import replace
from numpy.typing import NDArray
from shared import percent, print_table

from pytest_rlperf.components.checks import output_parts
from pytest_rlperf.judge import live
from pytest_rlperf.judge.counters import EVERY, compare
from pytest_rlperf.judge.findings import KINDS, compiles, drift, find_all, first_call, garbage, growth, outputs, scale
from pytest_rlperf.judge.live import judge_pairs, slower_least
from pytest_rlperf.judge.stats import Spread, binomial_tail
from pytest_rlperf.model.durations import TURN_S
from pytest_rlperf.model.figures import PAIR_TRIM
from pytest_rlperf.model.judged import CONFIDENCE, LIVE_TOLERANCE, Policy, Status, Verdict
from pytest_rlperf.model.live import Live, PairRecord, PhaseRatio, Reading, StartUp
from pytest_rlperf.model.measured import Count, Counting, Figures, Result, Tally, Usage, WorkerRecord
from pytest_rlperf.pair.turns import LONGER_STRETCHES
from pytest_rlperf.run.counting import learn
from pytest_rlperf.wire import REPETITIONS

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

TESTS = 5  # in a run, where no other number is named
RUN_SIZES = (5, 20, 100)
LEAST, MOST = Policy().pairs
PAIRS = MOST + 1
SPARE_MOST = live.PAIRS_MOST * MOST  # pairs, if a run has time to spare
PAIRS_COUNTED, CALLS_BEFORE = 3, 10  # of counting, and the calls of a process before it


def policy_of(tests: int = TESTS, tolerance: float = LIVE_TOLERANCE) -> Policy:
    """Return the default rules of one of so many tests."""
    return Policy(tolerance, tests=tests)


POLICY = policy_of()

BLOCKS = 80  # of a slice of each side: 1.2 s a pair

# --------------------------------------------------------------------------- the noise


class Noise(msgspec.Struct, frozen=True):
    """The disturbances of a pair, in logarithms of time: common to both sides, a slice's own, or the processes'.

    ``pair_sd`` is the spread of pairs by what processes differ in, memory layout and hash seed; ``pair_tails`` the
    degrees of freedom of its t, infinite for a normal one. A process is in a slow mode of ``mode_size`` with
    probability ``mode_share``. ``slice_sd`` scales a slice's own noise, t with 3 degrees of freedom. ``burst_sd`` is
    that of a load common to both sides, correlated over two seconds. ``neighbour`` is the slowdown while something
    else runs, on for 4 s and off for 6 on average, and makes a slice's own noise threefold. ``stall_share`` of the
    slices take a hundred times as long.
    """

    pair_sd: float = 0.010
    pair_tails: float = math.inf
    mode_share: float = 0.0
    mode_size: float = 0.0
    slice_sd: float = 0.0
    burst_sd: float = 0.0
    neighbour: float = 1.0
    stall_share: float = 0.0


QUIET = Noise()
TAILS = Noise(slice_sd=0.010)
BURSTS = replace(TAILS, burst_sd=0.10)
BUSY = replace(BURSTS, neighbour=1.8, stall_share=0.005)  # all of it but modes


def slices(generator: np.random.Generator, noise: Noise, pairs: int) -> Array:
    """Return the logarithms of slice times, without what processes differ in: a row a pair, in the order taken."""
    count = 2 * BLOCKS
    keep = math.exp(-TURN_S / 2.0)
    stop, start = TURN_S / 4.0, TURN_S / 6.0
    load = generator.normal(0.0, noise.burst_sd, pairs)
    busy = generator.random(pairs) < 0.4
    common, own = np.empty((pairs, count)), np.empty((pairs, count))
    for index in range(count):
        load = keep * load + generator.normal(0.0, noise.burst_sd * math.sqrt(1 - keep**2), pairs)
        busy ^= generator.random(pairs) < np.where(busy, stop, start)
        common[:, index] = load + busy * math.log(noise.neighbour)
        own[:, index] = noise.slice_sd * np.where(busy & (noise.neighbour > 1), 3.0, 1.0)
    own *= generator.standard_t(3, (pairs, count))
    stalled = generator.random((pairs, count)) < noise.stall_share
    return common + own + stalled * math.log(100)


def slice_log_ratios(generator: np.random.Generator, noise: Noise, pairs: int) -> Array:
    """Return the log-ratios of head to base of every two slices that follow each other: a row a pair."""
    steps = np.diff(slices(generator, noise, pairs), axis=1)
    steps[:, 1::2] *= -1  # from head to base
    return steps


def pair_figures(log_ratios: Array) -> Array:
    """Return each row's one figure, as a live comparison makes it of a pair's slices."""
    found: Array = np.mean([trimmed_means(log_ratios[:, first::2]) for first in (0, 1)], axis=0)
    return found


def trimmed_means(log_ratios: Array) -> Array:
    """Return each row's trimmed mean."""
    count = log_ratios.shape[1]
    cut = int(PAIR_TRIM * count)
    found: Array = np.sort(log_ratios, axis=1)[:, cut : count - cut].mean(axis=1)
    return found


def process_noise(generator: np.random.Generator, noise: Noise, pairs: int) -> Array:
    """Return what a pair's two processes differ by."""
    if math.isinf(noise.pair_tails):
        layout = generator.normal(0.0, 1.0, pairs)
    else:
        layout = generator.standard_t(noise.pair_tails, pairs) / math.sqrt(noise.pair_tails / (noise.pair_tails - 2))
    modes = (generator.random((2, pairs)) < noise.mode_share) * math.log1p(noise.mode_size)
    found: Array = noise.pair_sd * layout + modes[1] - modes[0]
    return found


def pair_log_ratios(generator: np.random.Generator, noise: Noise, tests: int, pairs: int, effect: float) -> Array:
    """Return log-ratios of head to base, a row a test, of a head slower by ``effect``.

    A factor common to all of a side's slices moves their trimmed mean by just that, so slices are simulated once and
    drawn from, and what the processes differ by is drawn anew for every pair.
    """
    bank = pair_figures(slice_log_ratios(generator, noise, min(tests * pairs, 20_000)))
    drawn = generator.choice(bank, tests * pairs) + process_noise(generator, noise, tests * pairs)
    found: Array = (drawn + math.log1p(effect)).reshape(tests, pairs)
    return found


# --------------------------------------------------------------------------- the rule, for many tests at once

_SQUARES = np.geomspace(1e-11, 1e3, 300)  # sums of squared deviations, beyond which the simulated ones hardly lie
_MEANS = np.concatenate([np.linspace(0.0, 0.08, 161), np.geomspace(0.08, 5.0, 160)[1:]])
_EXACT = 0.02  # chances so near the one that gives up are computed, not interpolated


class Found(msgspec.Struct, frozen=True):
    """The verdicts on many tests: status and pairs used."""

    status: NDArray[np.str_]
    used: NDArray[np.int64]

    def share(self, status: Status) -> float:
        """Return the share of tests with a status."""
        return float((self.status == status.value).mean())


class ManyTests:
    """The rule of ``judge_pairs`` for rows of log-ratios, with its bounds interpolated from tables.

    A bound depends on the number of pairs and their squared deviations alone, the chance of a verdict by the most
    pairs on their mean too.
    """

    def __init__(
        self, policy: Policy = POLICY, *, placed: bool = True, gives_up: bool = True, most: int = MOST
    ) -> None:
        self._policy = policy
        self._placed = placed
        self._least, self._most = (LEAST if placed else max(LEAST, live.UNPLACED_LEAST)), most
        self._gives_up = gives_up
        self._level = policy.alpha / policy.tests
        self._over, self._half = math.log1p(policy.tolerance), math.log1p(policy.tolerance / 2)
        self._expected = live.PLACED_SPREAD if placed else live.UNPLACED_SPREAD
        self._sds = np.array(self._expected.sds)
        tails = ((1 - CONFIDENCE) / 2, self._level)
        counts = range(self._least, self._most + 2)
        self._widths = {count: [_width(self._expected, count, tail) for tail in tails] for count in counts}
        self._chances = cache(self._chance_table)  # each takes a while, and more pairs than ten seldom need any
        self._agreeing = {count: self._agreeing_least(count) for count in counts}

    def judge(self, log_ratios: Array) -> Found:
        """Judge every row, of one pair more than the most."""
        tests, least, most = len(log_ratios), self._least, self._most
        status = np.full(tests, Status.UNDECIDED.value, dtype="U10")
        used = np.zeros(tests, np.int64)
        left, leant = np.arange(tests), np.zeros(tests, np.int64)
        for count in range(least, most + 2):
            seen = log_ratios[left, :count]
            means = seen.mean(axis=1)
            squares = ((seen - means[:, None]) ** 2).sum(axis=1)
            two_sided, one_sided = (np.exp(width(_log(squares))) for width in self._widths[count])
            side = np.sign(means).astype(np.int64)
            distance = np.abs(means)
            leans = np.where((distance > self._over) & (distance - one_sided > self._half), side, 0)
            changed = (leans != 0) & (leans == leant) & self._confirms(seen, leans, distance)
            same = ~changed & (distance + two_sided < self._over)
            if count < most:
                ended = (leans == 0) & self._is_hopeless(distance, squares, count)
            else:
                ended = (leans == 0) | (count > most)
            done = changed | same | ended
            status[left[changed & (side > 0)]] = Status.SLOWER.value
            status[left[changed & (side < 0)]] = Status.FASTER.value
            status[left[same]] = Status.SAME.value
            used[left[done]] = count
            left, leant = left[~done], leans[~done]
        return Found(status, used)

    def judge_in_time_to_spare(self, log_ratios: Array) -> Found:
        """Judge every row, of one pair more than ``SPARE_MOST``; undecided ones by as many as may well decide."""
        found, most = self.judge(log_ratios), np.full(len(log_ratios), self._most)
        while len(left := np.flatnonzero((found.status == Status.UNDECIDED.value) & (most > 0))):
            wanted = self._wanted(log_ratios[left], found.used[left], most[left])
            most[left] = wanted
            for pairs in np.unique(wanted[wanted > 0]).tolist():
                rows = left[wanted == pairs]
                more = many(self._policy.tests, placed=self._placed, most=pairs).judge(log_ratios[rows])
                found.status[rows], found.used[rows] = more.status, more.used
        return found

    def _wanted(self, log_ratios: Array, used: NDArray[np.int64], most: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the fewest pairs that may well decide, more than ``most``; 0 if no number does."""
        wanted = np.zeros(len(log_ratios), np.int64)
        for count in np.unique(used).tolist():
            rows = np.flatnonzero(used == count)
            seen = log_ratios[rows, :count]
            means = seen.mean(axis=1)
            squares = ((seen - means[:, None]) ** 2).sum(axis=1)
            for pairs in range(SPARE_MOST, max(count, int(most.min())), -1):
                rule = many(self._policy.tests, placed=self._placed, most=pairs)
                likely = (rule._chance(np.abs(means), squares, count) >= live.WORTH) & (pairs > most[rows])
                wanted[rows[likely]] = pairs
        return wanted

    def _agreeing_least(self, count: int) -> int:
        """Return how many of so many pairs have to agree."""
        level = self._level
        chances = [binomial_tail(agreeing, count, 0.25) for agreeing in range(count + 1)]
        least = (k for k, chance in enumerate(chances) if chance <= (level if k == count else level / 2))
        return next(least, count + 1)

    def _confirms(self, seen: Array, side: NDArray[np.int64], distance: Array) -> Bools:
        changes = side[:, None] * seen
        agreeing = (changes > np.maximum(self._half, 0.25 * distance)[:, None]).sum(axis=1)
        found: Bools = (changes[:, -1] > self._half) & (agreeing >= self._agreeing[seen.shape[1]])
        return found

    def _is_hopeless(self, distance: Array, squares: Array, count: int) -> Bools:
        if not self._gives_up:
            return np.zeros(len(distance), bool)
        points = np.stack([_log(squares), np.minimum(distance, _MEANS[-1])], axis=1)
        chances = self._chances(count)(points)
        near = np.flatnonzero(np.abs(chances - 0.05) < _EXACT)
        for part in np.array_split(near, len(near) // 20_000 + 1):
            chances[part] = self._chance(distance[part], squares[part], count)
        found: Bools = chances < 0.05
        return found

    def _chance_table(self, count: int) -> scipy.interpolate.RegularGridInterpolator:
        table = self._chances_of_sds(_SQUARES[::3], count) @ self._decided(_MEANS, self._sds, count).T
        return scipy.interpolate.RegularGridInterpolator(
            (np.log(_SQUARES[::3]), _MEANS), table, bounds_error=False, fill_value=None
        )

    def _chance(self, distance: Array, squares: Array, count: int) -> Array:
        """Return the chance of a verdict by the most pairs."""
        found: Array = (self._chances_of_sds(squares, count) * self._decided(distance, self._sds, count)).sum(axis=1)
        return found

    def _chances_of_sds(self, squares: Array, count: int) -> Array:
        """Return the chance of each standard deviation after pairs with these squared deviations: a row each."""
        logs = np.log(self._expected.chances) - (count - 1) * np.log(self._sds) - squares[:, None] / (2 * self._sds**2)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        found: Array = weights / weights.sum(axis=1, keepdims=True)
        return found

    def _decided(self, distance: Array, sds: Array, count: int) -> Array:
        """Return the chance of a verdict by the most pairs: a row a distance, a column a standard deviation."""
        most = self._most
        error = sds * math.sqrt((most - count) / (count * most))
        two_sided, one_sided = (
            1.1 * scipy.stats.norm.ppf(chance) * sds / math.sqrt(most)
            for chance in (0.5 + CONFIDENCE / 2, 1 - self._level)
        )
        slower_from, same_to = np.maximum(self._over, self._half + one_sided), self._over - two_sided
        mean = distance[:, None]
        changed = scipy.special.ndtr((mean - slower_from) / error) + scipy.special.ndtr((-mean - slower_from) / error)
        same = scipy.special.ndtr((same_to - mean) / error) - scipy.special.ndtr((-same_to - mean) / error)
        found: Array = changed + np.maximum(0.0, same)
        return found


@cache
def _width(expected: Spread, count: int, tail: float) -> scipy.interpolate.CubicSpline:
    """Return the logarithm of half an interval's width by that of the squared deviations; the policies share it."""
    widths = [known.half_width(count, tail) for known in _known(expected, count)]
    return scipy.interpolate.CubicSpline(np.log(_SQUARES), np.log(widths))


@cache
def _known(expected: Spread, count: int) -> list[Spread]:
    """Return the spread after so many pairs, for each of ``_SQUARES``; bounds at all levels share it."""
    return [expected.after(squares, count - 1) for squares in _SQUARES.tolist()]


def _log(squares: Array) -> Array:
    found: Array = np.log(np.clip(squares, _SQUARES[0], _SQUARES[-1]))
    return found


@cache
def many(tests: int = TESTS, *, placed: bool = True, gives_up: bool = True, most: int = MOST) -> ManyTests:
    """Return the default rule for runs of so many tests."""
    return ManyTests(policy_of(tests), placed=placed, gives_up=gives_up, most=most)


def by_the_rule(log_ratios: Sequence[float], policy: Policy = POLICY, *, placed: bool = True) -> Verdict | None:
    """Return the verdict of the rule itself, None where it requests one more pair."""
    return judge_pairs(log_ratios, policy, 1e-3, final=False, placed=placed)


def in_time_to_spare(log_ratios: Sequence[float], policy: Policy, *, placed: bool = True) -> tuple[Verdict, int]:
    """Return the verdict of the rule itself and its pairs, if an undecided test goes on as a run lets it."""
    for count in range(1, len(log_ratios) + 1):
        verdict = by_the_rule(log_ratios[:count], policy, placed=placed)
        if verdict is not None and verdict.status is Status.UNDECIDED:
            more = live.fewest_worthwhile(log_ratios[:count], policy, SPARE_MOST, placed=placed)
            if more is not None:
                policy, verdict = replace(policy, pairs=(policy.pairs[0], more)), None
        if verdict is not None:
            return verdict, count
    raise AssertionError  # one pair more than the most ends it


def disagreements(log_ratios: Array, tests: int = TESTS, *, placed: bool = True) -> int:
    """Return for how many rows the rule itself and its copy differ in the status or in the number of pairs."""
    found, differ = many(tests, placed=placed).judge(log_ratios), 0
    for row, status, used in zip(log_ratios.tolist(), found.status, found.used, strict=True):
        before, verdict = (by_the_rule(row[:pairs], policy_of(tests), placed=placed) for pairs in (used - 1, used))
        differ += before is not None or verdict is None or verdict.status.value != status
    return differ


def disagreements_in_time_to_spare(log_ratios: Array, tests: int = TESTS, *, placed: bool = True) -> int:
    """Return the same for rows of one pair more than ``SPARE_MOST``, of tests that go on in time to spare."""
    found = many(tests, placed=placed).judge_in_time_to_spare(log_ratios)
    itself = [in_time_to_spare(row, policy_of(tests), placed=placed) for row in log_ratios.tolist()]
    copied = zip(found.status.tolist(), found.used.tolist(), strict=True)
    return sum((verdict.status.value, used) != copy for (verdict, used), copy in zip(itself, copied, strict=True))


def restless(generator: np.random.Generator, tests: int) -> Array:
    """Return the log-ratios of tests that ten pairs mostly leave undecided, of one pair more than ``SPARE_MOST``."""
    noise, change = generator.uniform(0.01, 0.06, (tests, 1)), generator.choice([0.0, 0.02, 0.03, 0.05], (tests, 1))
    rows: Array = change + noise * generator.normal(size=(tests, SPARE_MOST + 1))
    return rows


def run_alarms(alarms: int, tests: int, run_size: int) -> tuple[float, float]:
    """Return the share of runs of ``run_size`` tests with an alarm, from tests alone, and its 95 % upper bound."""
    at_most = float(scipy.stats.beta.ppf(0.95, alarms + 1, tests - alarms))
    shares = [1 - (1 - share) ** run_size for share in (alarms / tests, at_most)]
    return shares[0], shares[1]


def coverage(log_ratios: Array) -> float:
    """Return how often the interval of a fixed number of pairs holds the truth, which is no change."""
    count = log_ratios.shape[1]
    means = log_ratios.mean(axis=1)
    squares = ((log_ratios - means[:, None]) ** 2).sum(axis=1)
    grid = np.geomspace(max(squares.min(), 1e-12), max(squares.max(), 1e-11), 100)
    widths = [live.PLACED_SPREAD.after(each, count - 1).half_width(count, 0.005) for each in grid.tolist()]
    return float((np.abs(means) <= np.interp(squares, grid, widths)).mean())


# --------------------------------------------------------------------------- noise of pairs, straight

Draw: TypeAlias = Callable[[np.random.Generator, int], Array]
"""Draws the log-ratios of unchanged code for so many tests."""


def gaussian(sd: float) -> Draw:
    """Return pairs that differ by a normal distribution."""
    return lambda generator, tests: generator.normal(0.0, sd, (tests, PAIRS))


def student(sd: float) -> Draw:
    """Return pairs that differ by t with 3 degrees of freedom."""
    return lambda generator, tests: generator.standard_t(3, (tests, PAIRS)) * sd / math.sqrt(3)


def skewed(sd: float) -> Draw:
    """Return pairs of processes that are slower by an exponential distribution, each by its own."""

    def draw(generator: np.random.Generator, tests: int) -> Array:
        one, other = generator.exponential(sd / math.sqrt(2), (2, tests, PAIRS))
        found: Array = one - other
        return found

    return draw


def lopsided(sd: float) -> Draw:
    """Return pairs that are skewed themselves: few far faster, most a little slower, the mean unchanged."""
    return lambda generator, tests: sd * (1 - generator.exponential(1.0, (tests, PAIRS)))


def two_states(size: float, share: float = 0.5, sd: float = 0.005) -> Draw:
    """Return pairs of processes that are slower by ``size`` in a share of the cases."""

    def draw(generator: np.random.Generator, tests: int) -> Array:
        slow = (generator.random((2, tests, PAIRS)) < share).astype(float)
        found: Array = math.log1p(size) * (slow[1] - slow[0]) + generator.normal(0.0, sd, (tests, PAIRS))
        return found

    return draw


def drifting(sd: float, correlation: float) -> Draw:
    """Return pairs that differ by a normal distribution, each correlated with the one before."""

    def draw(generator: np.random.Generator, tests: int) -> Array:
        found = generator.normal(0.0, sd, (tests, PAIRS))
        for pair in range(1, PAIRS):
            found[:, pair] = correlation * found[:, pair - 1] + math.sqrt(1 - correlation**2) * found[:, pair]
        return found

    return draw


GAUSSIAN: dict[str, Draw] = {f"Gaussian {100 * sd:g} %": gaussian(sd) for sd in (0.01, 0.02, 0.05, 0.08, 0.13)}
OTHER_PAIRS: dict[str, Draw] = {
    **{f"t with 3 df, {100 * sd:g} %": student(sd) for sd in (0.02, 0.05, 0.13)},
    **{f"skewed processes, {100 * sd:g} %": skewed(sd) for sd in (0.02, 0.05, 0.13)},
    **{f"two states {100 * size:g} % apart": two_states(size) for size in (0.02, 0.06, 0.12, 0.25, 0.5, 0.88)},
    "two states 6 % apart, 30 % slow": two_states(0.06, 0.3),
    "two states 88 % apart, 10 % slow": two_states(0.88, 0.1),
    "two states 50 % apart, own SD 2 %": two_states(0.5, 0.5, 0.02),
}
UNPROMISED: dict[str, Draw] = {
    **{f"Gaussian {100 * sd:g} %, correlated .5": drifting(sd, 0.5) for sd in (0.01, 0.02, 0.05)},
    **{f"Gaussian {100 * sd:g} %, correlated .9": drifting(sd, 0.9) for sd in (0.01, 0.02, 0.05)},
    **{f"skewed pairs, {100 * sd:g} %": lopsided(sd) for sd in (0.02, 0.05)},
    "Gaussian 20 %": gaussian(0.20),
}

# --------------------------------------------------------------------------- tables

SPREADS = (0.005, 0.010, 0.016, 0.025)
EFFECTS = (0.02, 0.03, 0.05, 0.10)
SHAPES: dict[str, Noise] = {
    "pairs of 1.0 % only": QUIET,
    "heavy-tailed slices": TAILS,
    "slices, bursts over seconds": BURSTS,
    "slices, a neighbour on and off": replace(TAILS, neighbour=1.8),
    "slices, stalls of 100×": replace(TAILS, stall_share=0.005),
    "all of these": BUSY,
    "all, slices twice as noisy": replace(BUSY, slice_sd=0.020),
}
PROCESSES: dict[str, Noise] = {
    "all, pairs heavy-tailed (t3)": replace(BUSY, pair_tails=3.0),
    "all, 5 % of processes 5 % slower": replace(BUSY, mode_share=0.05, mode_size=0.05),
    "all, half of processes 2 % slower": replace(BUSY, mode_share=0.5, mode_size=0.02),
    "all, half of processes 3 % slower": replace(BUSY, mode_share=0.5, mode_size=0.03),
    "all, half of processes 5 % slower": replace(BUSY, mode_share=0.5, mode_size=0.05),
}


def spread(values: Sequence[float]) -> dict[str, Noise]:
    """Return all the noise there is, for processes that differ by so much."""
    return {f"all, pairs of {100 * value:.1f} %": replace(BUSY, pair_sd=value) for value in values}


def drawn(noise: Noise) -> Draw:
    """Return pairs whose slices are simulated."""
    return lambda generator, tests: pair_log_ratios(generator, noise, tests, PAIRS, 0.0)


def alarm_rows(
    draws: dict[str, Draw],
    tests: int,
    generator: np.random.Generator,
    *,
    placed: bool = True,
    times: int = 1,
    has_time: bool = False,
) -> Iterator[list[str]]:
    """Yield the runs with a false alarm, by the number of tests in a run, from ``times`` as many tests.

    With ``has_time`` undecided tests have more pairs.
    """
    for name, draw in draws.items():
        alarms, sds = dict.fromkeys(RUN_SIZES, 0), []
        for _ in range(times):
            pairs = np.hstack([draw(generator, tests) for _ in range(live.PAIRS_MOST if has_time else 1)])
            sds.append(float(pairs.std()))
            for size in RUN_SIZES:
                rule = many(size, placed=placed)
                found = rule.judge_in_time_to_spare(pairs) if has_time else rule.judge(pairs)
                alarms[size] += round(found.share(Status.SLOWER) * tests)
        shares = (run_alarms(found, times * tests, size) for size, found in alarms.items())
        cells = (f"{percent(share, 2)} (≤ {percent(at_most, 2)})" for share, at_most in shares)
        yield [name, percent(float(np.mean(sds)), 2), *cells]


def verdict_rows(
    draws: dict[str, Draw], tests: int, generator: np.random.Generator, *, placed: bool = True
) -> Iterator[list[str]]:
    """Yield the verdicts on unchanged tests, slowdowns found, and the pairs used, for runs of five tests."""
    rule = many(placed=placed)
    for name, draw in draws.items():
        still = rule.judge(draw(generator, tests))
        slower = {size: rule.judge(draw(generator, tests) + math.log1p(size)) for size in EFFECTS}
        yield [
            name,
            percent(still.share(Status.SAME)),
            f"{still.used.mean():.2f}",
            *(f"{percent(found.share(Status.SLOWER))} in {found.used.mean():.1f}" for found in slower.values()),
        ]


def smallest_found(
    draw: Draw, tests: int, generator: np.random.Generator, run_size: int = TESTS
) -> tuple[float, float]:
    """Return the median slowdown that unchanged tests name as found 95 times of 100, and how often each was found."""
    policy, judged = policy_of(run_size), draw(generator, tests)
    verdicts = [by_the_rule(row, policy) for row in judged.tolist()]
    named = np.array([math.nan if verdict is None else verdict.smallest_seen or math.nan for verdict in verdicts])
    found = many(run_size).judge(draw(generator, tests) + np.log1p(named)[:, None])
    return float(np.median(named)), found.share(Status.SLOWER)


def smallest_rows(draws: dict[str, Draw], tests: int, generator: np.random.Generator) -> Iterator[list[str]]:
    """Yield the slowdowns that are named as found 95 times of 100, and how often they are."""
    for name, draw in draws.items():
        cells = [smallest_found(draw, tests, generator, size) for size in RUN_SIZES]
        yield [name, *(f"{percent(named)}: {percent(share)}" for named, share in cells)]


# --------------------------------------------------------------------------- findings


class Unchanged(msgspec.Struct, frozen=True):
    """How a test of unchanged code varies, in its looks beside time, from pair to pair.

    ``stretch_sd`` is of the log-ratio of a stretch of slices, ``phase_sd`` of a phase's, ``pair_sd`` of a pair's,
    ``start_sd`` of the seconds to get going, each t with 3 degrees of freedom. Memory jumps by ``jump_bytes`` now and
    then, and a cache takes up to ``cache_objects``. A pool has one thread more in a share ``lazy`` of the processes.
    ``varied`` of the processes return other numbers. A call compiles a program with a chance that falls as one over its
    number, ``shapes`` in the tenth call. It leaves an open file and a MiB to the collector with a chance of ``leaves``.
    Stretches of one pair are correlated by ``wanders`` with the one before.
    """

    stretch_sd: float = 0.10
    phase_sd: float = 0.05
    start_sd: float = 0.10
    pair_sd: float = 0.01
    jump_bytes: int = 256 << 10
    cache_objects: int = 5_000
    lazy: float = 0.0
    varied: float = 0.0
    shapes: float = 0.1
    leaves: float = 0.05
    wanders: float = 0.0

    def live(self, generator: np.random.Generator) -> Live:
        """Return a live comparison, as far as findings look at it."""
        pairs = int(generator.integers(LEAST, MOST + 1))
        calls = int(10 ** generator.uniform(1, 5)) * np.array([0, 1, 2, 4, 8])
        first_s, import_s = 10 ** generator.uniform(-2, 0.5, 2)
        shares = generator.dirichlet(np.ones(6))
        most, filled = generator.uniform(0, self.cache_objects), 10 ** generator.uniform(1, 5)

        def readings_of(calls: NDArray[np.int64]) -> tuple[Reading, ...]:
            sides = [self._usages(generator, calls, most, filled, lazy) for lazy in generator.random(2) < self.lazy]
            ratios = np.r_[0.0, self.stretch_sd * generator.standard_t(3, len(calls) - 1)]
            for index in range(2, len(ratios)) if self.wanders else ():
                ratios[index] = self.wanders * ratios[index - 1] + math.sqrt(1 - self.wanders**2) * ratios[index]
            return tuple(map(Reading, *sides, ratios.tolist()))

        def record(_: int) -> PairRecord:
            readings = readings_of(calls)
            log_ratios = self.phase_sd * generator.standard_t(3, len(shares))
            phases = tuple(
                PhaseRatio(f"call/{n}", *both) for n, both in enumerate(zip(log_ratios, shares, strict=True))
            )
            start = self._start_up(generator, first_s, import_s)
            return replace(_PAIR, readings=readings, phases=phases, first_call_s=start.first_call_s, loader=0)

        made = tuple(map(record, range(pairs)))
        starts = tuple(self._start_up(generator, first_s, import_s) for _ in range(first_call.START_UPS))
        values = np.where(generator.random((pairs, 2)) < self.varied, generator.random((pairs, 2)), 1.0)
        both = enumerate(values.tolist())
        seeded = [(min(number, 1), output_parts(base), output_parts(head)) for number, (base, head) in both]
        live = Live("base", "head", _RESULT, made, (), output=outputs.compare(seeded))
        hints = first_call.hints(made[0], first_call.usual_calls_s(live))
        goes_on = growth.hints(live) or drift.hints(live)
        longer = readings_of(calls[-1] + calls[1] * np.arange(LONGER_STRETCHES + 1)) if goes_on else ()
        return replace(live, start_ups=starts if hints else (), longer=longer)

    def series(self, generator: np.random.Generator) -> list[scale.ScalePoint]:
        """Return tests of three sizes, each with the least pairs."""
        ratios = self.pair_sd * generator.standard_t(3, (3, LEAST))
        return [
            scale.ScalePoint(size, row, 1e-3, {}, {})
            for size, row in zip((1e3, 3e4, 1e6), ratios.tolist(), strict=True)
        ]

    def counts(self, generator: np.random.Generator) -> tuple[Counting, Counting]:
        """Return what both sides have counted: in one pair, and if it differs in two more."""
        tallies: list[list[Tally]] = [[], []]
        for pairs in (1, PAIRS_COUNTED - 1):
            for side in tallies:
                side += [self._tally(generator) for _ in range(pairs)]
            base, head = (learn(side, other) for side, other in (tallies, tallies[::-1]))
            assert base is not None
            assert head is not None
            both = base, head
            if not compare(*both, EVERY):
                break
        return both

    def _tally(self, generator: np.random.Generator) -> Tally:
        left = generator.random(REPETITIONS) < self.leaves
        objects = generator.poisson(20, REPETITIONS)
        return Tally(
            tuple(
                (
                    Count("", "garbage", int(some)),
                    Count("", "garbage_bytes", int(is_left) << 20),
                    Count("", "garbage_files", int(is_left)),
                    Count("", "recompiles", int(generator.random() < 10 * self.shapes / CALLS_BEFORE)),
                )
                for some, is_left in zip(objects, left, strict=True)
            ),
            (),
        )

    def _usages(
        self, generator: np.random.Generator, calls: NDArray[np.int64], most: float, filled: float, lazy: float
    ) -> list[Usage]:
        jumps = self.jump_bytes * (generator.random(len(calls)) < 0.3) * generator.choice([-1, 1], len(calls))
        objects = 100_000 + most * (1 - np.exp(-calls / filled)) + generator.integers(0, 20, len(calls))
        expected = 10 * self.shapes * np.diff(np.log(calls + CALLS_BEFORE), prepend=np.log(CALLS_BEFORE))
        programs = np.cumsum(generator.poisson(expected))
        return [
            Usage(int(call), int(kept), int((50 << 20) + moved), 0, 0, 0, 9, 3 + int(lazy), 1, compiled=int(compiled))
            for call, kept, moved, compiled in zip(calls, objects, np.cumsum(jumps), programs, strict=True)
        ]

    def _start_up(self, generator: np.random.Generator, first_s: float, import_s: float) -> StartUp:
        first, imports = (
            tuple(seconds * np.exp(self.start_sd * generator.standard_t(3, 2))) for seconds in (first_s, import_s)
        )
        return StartUp(first, imports)


_WORKER = WorkerRecord(Figures(1e-3, 0, 0), Figures(1e-3, 0, 0), 1.0, 40, 400, 1.0)
_PAIR = PairRecord(0.0, 0.0, False, 40, _WORKER, _WORKER, 0, (0,), 0.1, 1.0)
_RESULT = Result("test", "callable", "call", 1.0, (_WORKER,))
UNCHANGED = {
    "as the suite's tests": Unchanged(),
    "a busy machine": Unchanged(stretch_sd=0.4, phase_sd=0.15, start_sd=0.3, pair_sd=0.05),
    "memory that jumps by 4 MiB": Unchanged(jump_bytes=4 << 20),
    "caches of 100,000 objects": Unchanged(cache_objects=100_000),
    "a process of five returns other numbers": Unchanged(varied=0.2),
    "a thread more in one process of ten": Unchanged(lazy=0.1),
    "a thread more in half of them: *not promised*": Unchanged(lazy=0.5),
    "one call in two leaves a file and a MiB": Unchanged(leaves=0.5),
    "new shapes all the while": Unchanged(shapes=1.0),
    "a cost that wanders within a pair: *not promised*": Unchanged(wanders=0.9),
}
OF_OTHERS = ("garbage", "scale")  # the kinds that look at counts, or at several tests


def finding_rows(tests: int, generator: np.random.Generator) -> Iterator[list[str]]:
    """Yield the share of unchanged runs with a finding of each kind, and of any that gates."""
    for name, noise in UNCHANGED.items():
        found: Counter[str] = Counter()
        for _ in range(tests):
            law = scale.find(noise.series(generator), POLICY)
            found_live, counted = noise.live(generator), noise.counts(generator)
            others = [law, garbage.find(*counted, POLICY), compiles.of_counts(*counted, found_live, POLICY)]
            findings = [*find_all(found_live, POLICY), *filter(None, others)]
            found.update({finding.kind for finding in findings})
            found["any"] += any(finding.gates for finding in findings)
        shares = (run_alarms(found[kind], tests, TESTS) for kind in (*KINDS, *OF_OTHERS, "any"))
        yield [name, *(f"{percent(share, 2)} (≤ {percent(at_most, 2)})" for share, at_most in shares)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Simulates the rule for live pairs on noise.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the tests")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tests = 20_000 if options.quick else 200_000
    generator = np.random.default_rng(options.seed)
    needed = ", ".join(f"{slower_least(policy_of(size))} for {size}" for size in RUN_SIZES)
    limits = f"{LEAST} to {MOST} pairs, tolerance {percent(POLICY.tolerance, 0)}"
    print(f"{limits}, alarms in at most {percent(POLICY.alpha, 0)} of unchanged runs promised; seed {options.seed}.")
    print(f"The fewest pairs of a SLOWER, by the number of tests in a run: {needed}.")
    checked = np.concatenate([draw(generator, 80) for draw in (GAUSSIAN | OTHER_PAIRS).values()])
    checked[::2] += generator.choice(np.log1p(EFFECTS), (len(checked[::2]), 1))
    differ = sum(disagreements(checked, size) for size in RUN_SIZES) + disagreements(checked, placed=False)
    print(f"The rule and its copy for many tests differ in {differ} of {4 * len(checked)} verdicts.")
    rows = restless(np.random.default_rng(options.seed + 4), 40)
    differ = disagreements_in_time_to_spare(rows) + disagreements_in_time_to_spare(rows, placed=False)
    print(f"In time to spare they differ in {differ} of {2 * len(rows)} verdicts.")
    size_head = [f"{size} tests a run" for size in RUN_SIZES]
    noises = {name: drawn(noise) for name, noise in (spread(SPREADS) | SHAPES | PROCESSES).items()}
    title = f"Unchanged runs with any false alarm, and the 95 % upper bound of their share; {tests} tests a line"
    print_table(["noise of a pair", "SD", *size_head], alarm_rows(GAUSSIAN | OTHER_PAIRS, tests, generator), title)
    unplaced = {name: (GAUSSIAN | OTHER_PAIRS)[name] for name in (*GAUSSIAN, "t with 3 df, 13 %")}
    lines = alarm_rows(unplaced, tests, generator, placed=False)
    print_table(["noise of a pair", "SD", *size_head], lines, "The same where the kernel places workers")
    lines = alarm_rows(noises, tests // 4, generator)
    print_table(["noise", "SD", *size_head], lines, f"The same with slices simulated; {tests // 4} tests")
    lines = alarm_rows(UNPROMISED, tests // 4, generator)
    print_table(["noise of a pair", "SD", *size_head], lines, "Noise that breaks the promise, or may")
    few = tests // 40
    head = ["noise", "SAME", "pairs", *(f"+{100 * effect:g} % found, pairs" for effect in EFFECTS)]
    most = {name: draw for name, draw in (GAUSSIAN | OTHER_PAIRS).items() if "88" not in name}
    print_table(head, verdict_rows(most | noises, few, generator), f"Verdicts, 5 tests a run; {few} tests a cell")
    lines = verdict_rows(unplaced, few, generator, placed=False)
    print_table(head, lines, "The same where the kernel places workers")
    lines = smallest_rows(GAUSSIAN, few // 10, generator)
    print_table(["noise", *size_head], lines, "The slowdown named as found 95 times of 100, and how often it is")
    close = ("Gaussian 13 %", "two states 6 % apart", "two states 25 % apart", "two states 50 % apart, own SD 2 %")
    draws = {name: (GAUSSIAN | OTHER_PAIRS)[name] for name in close}
    lines = alarm_rows(draws, tests, np.random.default_rng(options.seed + 1), times=10)
    title = f"Unchanged runs with any false alarm, the closest; {10 * tests} tests a line"
    print_table(["noise of a pair", "SD", *size_head], lines, title)
    draws = {name: (GAUSSIAN | OTHER_PAIRS)[name] for name in ("Gaussian 8 %", "two states 12 % apart")}
    lines = alarm_rows(draws, tests // 4, np.random.default_rng(options.seed + 3), has_time=True)
    title = f"The same with time to spare for up to {SPARE_MOST} pairs of undecided tests; {tests // 4} tests a line"
    print_table(["noise of a pair", "SD", *size_head], lines, title)
    lines = finding_rows(few, np.random.default_rng(options.seed + 2))
    title = f"Unchanged runs of {TESTS} tests with a finding, and with one that gates; {few} tests a line"
    print_table(["tests", *KINDS, *OF_OTHERS, "any that gates"], lines, title)


if __name__ == "__main__":
    main()
