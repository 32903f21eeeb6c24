"""The rule for live pairs on simulated noise of the shape that shared machines were measured to have.

Slices of both sides are simulated as a live comparison takes them, ABBA and BAAB within one common load, and judged by
the rule itself. Nothing is measured: the same seed prints the same tables on every machine::

    python benchmarks/monte_carlo.py            # about five minutes
    python benchmarks/monte_carlo.py --quick    # a tenth of it
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pytest_rlperf.judge.live import PRIOR_FREEDOM, PRIOR_SD, PairLimits, judge_pairs
from pytest_rlperf.judge.policy import make_policy
from pytest_rlperf.judge.stats import shrunken_t
from pytest_rlperf.measure.figures import TRIM
from pytest_rlperf.model import Estimate, Status

Array: TypeAlias = NDArray[np.float64]

TESTS = 5  # in a run
LIMITS = PairLimits()
POLICY = make_policy(tolerance=None, alpha=0.01, tests=TESTS, min_change_s=0.0, gated=True, accept=False)

SLICE_S = 0.015
BLOCKS = 20  # of four slices: 1.2 s a pair
ABBA_BAAB = np.array([False, True, True, False, True, False, False, True])  # whether head has the turn

# --------------------------------------------------------------------------- the noise


@dataclass(frozen=True)
class Noise:
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
    count = 4 * BLOCKS
    keep = math.exp(-SLICE_S / 2.0)
    stop, start = SLICE_S / 4.0, SLICE_S / 6.0
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


def block_log_ratios(generator: np.random.Generator, noise: Noise, pairs: int) -> Array:
    """Return each block's log-ratio of head to base: a row a pair."""
    turns = np.tile(ABBA_BAAB, BLOCKS // 2)
    taken = slices(generator, noise, pairs)
    base, head = (taken[:, side].reshape(pairs, BLOCKS, 2).mean(axis=2) for side in (~turns, turns))
    found: Array = head - base
    return found


def trimmed_means(blocks: Array) -> Array:
    """Return each row's trimmed mean, as a live comparison makes a pair's one figure of its blocks."""
    count = blocks.shape[1]
    cut = int(TRIM * count)
    found: Array = np.sort(blocks, axis=1)[:, cut : count - cut].mean(axis=1)
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

    A factor common to all of a pair's blocks moves their trimmed mean by just that, so slices are simulated once and
    drawn from, and what the processes differ by is drawn anew for every pair.
    """
    bank = trimmed_means(block_log_ratios(generator, noise, min(tests * pairs, 20_000)))
    drawn = generator.choice(bank, tests * pairs) + process_noise(generator, noise, tests * pairs)
    found: Array = (drawn + math.log1p(effect)).reshape(tests, pairs)
    return found


# --------------------------------------------------------------------------- rules

Rule: TypeAlias = Callable[[Sequence[float]], tuple[Status, int, Estimate | None]]
"""Says of a sequence of pairs what they are taken to mean, how many it used, and by which estimate."""


def live_rule(log_ratios: Sequence[float], limits: PairLimits = LIMITS) -> tuple[Status, int, Estimate | None]:
    """Take pairs one by one until the rule decides."""
    for used in range(limits.least, len(log_ratios) + 1):
        verdict = judge_pairs(log_ratios[:used], POLICY, limits, 1e-3, final=False)
        if verdict is not None:
            return verdict.status, used, verdict.estimate
    raise AssertionError("the rule asks for more pairs than the most")


def unconfirmed_rule(
    log_ratios: Sequence[float], prior_freedom: float = PRIOR_FREEDOM
) -> tuple[Status, int, Estimate | None]:
    """Return the verdict of the rule without its fresh pair: SLOWER at once."""
    tolerance, half = 1 + POLICY.tolerance, 1 + POLICY.tolerance / 2
    level, alpha = POLICY.confidence, POLICY.alpha / TESTS
    for used in range(LIMITS.least, LIMITS.most + 1):
        estimate = shrunken_t(
            log_ratios[:used], prior_sd=PRIOR_SD, prior_freedom=prior_freedom, confidence=level, alpha=alpha
        )
        if 1 / tolerance < estimate.low and estimate.high < tolerance:
            return Status.SAME, used, estimate
        if estimate.ratio > tolerance and estimate.floor > half:
            return Status.SLOWER, used, estimate
    return Status.UNDECIDED, LIMITS.most, estimate


plain_t_rule: Rule = partial(unconfirmed_rule, prior_freedom=0.0)


def blocks_rule_alarms(generator: np.random.Generator, noise: Noise, runs: int) -> float:
    """Return the share of unchanged runs in which Wilcoxon's test on the blocks of three pairs finds a slowdown."""
    pairs = runs * TESTS * LIMITS.least
    blocks = block_log_ratios(generator, noise, pairs) + process_noise(generator, noise, pairs)[:, None]
    samples = blocks.reshape(runs * TESTS, -1)
    found = stats.wilcoxon(samples, axis=1, alternative="greater").pvalue < POLICY.alpha / TESTS
    return float(np.reshape(found, (runs, TESTS)).any(axis=1).mean())


# --------------------------------------------------------------------------- tallies


@dataclass(frozen=True)
class Tally:
    """The verdicts of a rule on many tests: shares of them, false alarms by run, and the share of right intervals."""

    slower: float
    same: float
    undecided: float
    pairs: float
    runs: int
    alarmed: int
    covered: float

    @property
    def alarmed_at_most(self) -> float:
        """The share of runs with an alarm, at most: one-sided at 95 % (Clopper and Pearson, 1934)."""
        return float(stats.beta.ppf(0.95, self.alarmed + 1, self.runs - self.alarmed))


def tally(log_ratios: Array, effect: float = 0.0, rule: Rule = live_rule) -> Tally:
    """Judge every row of pairs; five rows are a run, SLOWER in one of them an alarm."""
    found = [rule(row) for row in log_ratios.tolist()]
    statuses = np.array([status.value for status, _, _ in found])
    slower = statuses == Status.SLOWER.value
    runs = len(found) // TESTS
    return Tally(
        slower=float(slower.mean()),
        same=float((statuses == Status.SAME.value).mean()),
        undecided=float((statuses == Status.UNDECIDED.value).mean()),
        pairs=float(np.mean([used for _, used, _ in found])),
        runs=runs,
        alarmed=int(slower[: runs * TESTS].reshape(runs, TESTS).any(axis=1).sum()),
        covered=float(np.mean([e is not None and e.low <= 1 + effect <= e.high for _, _, e in found])),
    )


def coverage(log_ratios: Array) -> float:
    """Return how often the interval of a fixed number of pairs holds the truth, which is no change."""
    count = log_ratios.shape[1]
    more = PairLimits(count + 1, count + 1)
    verdicts = [judge_pairs(row, POLICY, more, 1e-3, final=True) for row in log_ratios.tolist()]
    estimates = [verdict.estimate for verdict in verdicts if verdict is not None]
    return float(np.mean([e is not None and e.low <= 1 <= e.high for e in estimates]))


# --------------------------------------------------------------------------- tables

SPREADS = (0.005, 0.010, 0.016, 0.025)
WILD_SPREADS = (0.025, 0.035, 0.05, 0.08, 0.135)
EFFECTS = (0.03, 0.05, 0.10)
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
HEAD = ["noise", "SD", "pairs", "SAME", "UNDECIDED", "alarmed", "at most", "+3 %", "+5 %", "+10 %", "pairs at 5 %"]


def spread(values: Sequence[float]) -> dict[str, Noise]:
    """Return all the noise there is, for processes that differ by so much."""
    return {f"all, pairs of {100 * value:.1f} %": replace(BUSY, pair_sd=value) for value in values}


def rows(
    shapes: dict[str, Noise], runs: int, generator: np.random.Generator, limits: PairLimits = LIMITS
) -> Iterator[list[str]]:
    """Yield what the rule does on each shape of noise: unchanged tests first, then slower ones."""
    rule: Rule = partial(live_rule, limits=limits)
    for name, noise in shapes.items():
        pairs = limits.most + 1
        unchanged = pair_log_ratios(generator, noise, runs * TESTS, pairs, 0.0)
        still = tally(unchanged, rule=rule)
        slower = {size: tally(pair_log_ratios(generator, noise, runs, pairs, size), size, rule) for size in EFFECTS}
        cells = [percent(float(unchanged.std()), 2), f"{still.pairs:.2f}"]
        cells += [percent(still.same), percent(still.undecided)]
        cells += [f"{still.alarmed} of {still.runs}", percent(still.alarmed_at_most, 2)]
        yield [name, *cells, *(percent(slower[size].slower) for size in EFFECTS), f"{slower[0.05].pairs:.2f}"]


def coverage_rows(shapes: dict[str, Noise], tests: int, generator: np.random.Generator) -> Iterator[list[str]]:
    """Yield how often the 99 % interval is right: of fixed numbers of pairs, and of those at which the rule stopped."""
    for name, noise in shapes.items():
        unchanged = pair_log_ratios(generator, noise, tests, LIMITS.most + 1, 0.0)
        fixed = (coverage(unchanged[:, :count]) for count in (1, 3, 5, 10))
        stopped = (tally(unchanged + math.log1p(effect), effect).covered for effect in (0.0, 0.03, 0.05))
        yield [name, *(percent(share, 2) for share in (*fixed, *stopped))]


def rule_rows(shapes: dict[str, Noise], runs: int, generator: np.random.Generator) -> Iterator[list[str]]:
    """Yield the share of unchanged runs with an alarm, and the slowdowns of 5 % found, rule by rule."""
    rules: tuple[Rule, ...] = (live_rule, unconfirmed_rule, plain_t_rule)
    for name, noise in shapes.items():
        unchanged = pair_log_ratios(generator, noise, runs * TESTS, LIMITS.most + 1, 0.0)
        slower = pair_log_ratios(generator, noise, runs, LIMITS.most + 1, 0.05)
        cells = [
            f"{percent(still.alarmed / still.runs, 2)} / {percent(found.slower, 0)}"
            for still, found in ((tally(unchanged, rule=rule), tally(slower, 0.05, rule)) for rule in rules)
        ]
        yield [name, *cells, percent(blocks_rule_alarms(generator, noise, 400), 0)]


def percent(share: float, decimals: int = 1) -> str:
    """Write a share."""
    return f"{100 * share:.{decimals}f} %"


def print_table(title: str, head: Sequence[str], lines: Iterator[list[str]]) -> None:
    """Print lines below their heads, the first column to the left and the others to the right."""
    table = [list(head), *lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"\n{title}\n")
    for line in (table[0], ["-" * width for width in widths], *table[1:]):
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ", "  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip(), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Simulates the rule for live pairs on noise.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    runs = 500 if options.quick else 5000
    generator = np.random.default_rng(options.seed)
    limits = f"{LIMITS.least} to {LIMITS.most} pairs, tolerance {percent(POLICY.tolerance, 0)}"
    print(f"Runs of {TESTS} tests, {limits}, alarms in at most {percent(POLICY.alpha, 0)} of unchanged runs promised;")
    print(f"{runs} unchanged runs and {runs} slower tests of each slowdown a line; seed {options.seed}.")
    print("SD: of one pair's log-ratio. Alarmed: unchanged runs with a SLOWER, and their share's 95 % upper bound.")
    print("+3 %, +5 %, +10 %: slowdowns found SLOWER. Unchanged tests take so many pairs, those slower by 5 % so many.")
    print_table("How much pairs differ", HEAD, rows(spread(SPREADS), runs, generator))
    print_table("What disturbs their slices, pairs of 1.0 %", HEAD, rows(SHAPES, runs, generator))
    print_table("How processes differ, besides", HEAD, rows(PROCESSES, runs, generator))
    print_table("Wilder pairs than one CPU for both sides gives", HEAD, rows(spread(WILD_SPREADS), runs, generator))
    five = PairLimits(least=5)
    print_table("The same from 5 pairs on", HEAD, rows(spread(WILD_SPREADS), runs, generator, five))
    several = spread((*SPREADS, 0.05, 0.135)) | PROCESSES
    head = ["noise", "1 pair", "3", "5", "10", "at the stop, +0 %", "+3 %", "+5 %"]
    print_table("Truth within the 99 % interval", head, coverage_rows(several, 2 * runs, generator))
    head = ["noise", "the rule", "without a fresh pair", "and Student's own t", "Wilcoxon on blocks"]
    print_table("Other rules: alarmed runs / +5 % found", head, rule_rows(several, runs // 2, generator))


if __name__ == "__main__":
    main()
