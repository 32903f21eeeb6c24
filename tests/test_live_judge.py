"""The rule for live pairs: its estimate, its stop, what it promises on simulated noise, and which phases it blames."""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_rlperf import units
from pytest_rlperf.judge.live import PairLimits, carriers, contributions, judge_pairs
from pytest_rlperf.judge.policy import make_policy
from pytest_rlperf.judge.stats import shrunken_t
from pytest_rlperf.measure.figures import trimmed_mean
from pytest_rlperf.model import Contribution, Estimate, Policy, Status, Verdict
from pytest_rlperf.report.wording import carriers_text, verdict_lines, verdict_message


def load_monte_carlo() -> ModuleType:
    """Return the script with the simulated noise, which is no module of the package."""
    path = Path(__file__).parents[1] / "benchmarks" / "monte_carlo.py"
    spec = importlib.util.spec_from_file_location("monte_carlo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


mc = load_monte_carlo()
log_ratios = st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=12)
times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


def policy(**changes: object) -> Policy:
    """Return the default rules of one of five tests, with changes."""
    settings: dict[str, object] = {
        "tolerance": None,
        "alpha": 0.01,
        "tests": 5,
        "min_change_s": 0.0,
        "gated": True,
        "accept": False,
    }
    return make_policy(**(settings | changes))  # type: ignore[arg-type]


def judge(
    *percents: float,
    final: bool = False,
    rules: Policy | None = None,
    limits: PairLimits | None = None,
    base_call_s: float = 1e-3,
) -> Verdict | None:
    """Judge pairs that differ by so many percent."""
    ratios = [math.log1p(percent / 100) for percent in percents]
    return judge_pairs(ratios, rules or policy(), limits or PairLimits(), base_call_s, final=final)


def said(verdict: Verdict | None) -> tuple[str, str] | None:
    """Return a verdict's status and the code of its reason."""
    return None if verdict is None else (verdict.status.value, verdict.reason.code)


# ----------------------------------------------------------------------- the estimate


def shrunken(values: list[float], freedom: float = 4.0) -> Estimate:
    """Return the estimate with the live prior."""
    return shrunken_t(values, prior_sd=0.01, prior_freedom=freedom, confidence=0.99, alpha=0.002)


def test_without_a_prior_it_is_students_t() -> None:
    """With no degrees of freedom of its own the prior leaves scipy's interval."""
    values = list(np.random.default_rng(1).normal(0.02, 0.01, 6))
    estimate = shrunken(values, freedom=0.0)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.99)
    one_sided = stats.ttest_1samp(values, 0.0, alternative="greater").confidence_interval(0.998)
    assert (math.log(estimate.low), math.log(estimate.high)) == pytest.approx((interval.low, interval.high))
    assert math.log(estimate.floor) == pytest.approx(one_sided.low)


def test_a_single_pair_has_the_priors_interval() -> None:
    """One pair is as sure as t with the prior's spread and degrees of freedom."""
    estimate = shrunken([0.05])
    assert math.log(estimate.high) == pytest.approx(0.05 + 0.01 * stats.t.ppf(0.995, 4))
    assert math.log(estimate.floor) == pytest.approx(0.05 - 0.01 * stats.t.ppf(0.998, 4))


def test_the_posterior_spread_lies_between_the_priors_and_the_pairs() -> None:
    """The squared scale is the mean of both, weighted by their degrees of freedom."""
    values = [0.0, 0.03, 0.06]
    scale = math.sqrt((4 * 0.01**2 + 2 * 0.03**2) / 6)
    assert math.log(shrunken(values).high) == pytest.approx(0.03 + stats.t.ppf(0.995, 6) * scale / math.sqrt(3))


def test_an_estimate_needs_a_spread() -> None:
    """No pair at all, or one without a prior, is an error."""
    with pytest.raises(ValueError, match="got 0"):
        shrunken([])
    with pytest.raises(ValueError, match="got 1"):
        shrunken([0.0], freedom=0.0)


def test_bounds_beyond_a_float_are_no_error() -> None:
    """Two pairs that differ by decades have bounds as wide as floats can be."""
    estimate = shrunken([20.0, -20.0], freedom=0.0)
    assert 0 < estimate.floor < 1e-300
    assert 1e300 < estimate.ceiling < math.inf


@given(values=log_ratios)
def test_swapping_sides_mirrors_the_estimate(values: list[float]) -> None:
    """Head over base is the inverse of base over head, bounds and all."""
    one, other = shrunken(values), shrunken([-value for value in values])
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert (one.low, one.high) == pytest.approx((1 / other.high, 1 / other.low))
    assert (one.floor, one.ceiling) == pytest.approx((1 / other.ceiling, 1 / other.floor))


MIRROR = {Status.SLOWER: Status.FASTER, Status.FASTER: Status.SLOWER}


@given(values=log_ratios, final=st.booleans())
def test_swapping_sides_mirrors_the_verdict(values: list[float], final: bool) -> None:
    """Swapped sides turn SLOWER into FASTER and keep every other verdict, after as many pairs."""
    one, other = (
        judge_pairs(sides, policy(), PairLimits(), 1e-3, final=final) for sides in (values, [-v for v in values])
    )
    if one is None or other is None:
        assert one is other
        return
    assert other.status is MIRROR.get(one.status, one.status)
    assert one.reason.code == other.reason.code
    assert one.estimate is not None
    assert other.estimate is not None
    assert one.estimate.ratio == pytest.approx(1 / other.estimate.ratio)


@given(base=times, head=times, factor=st.floats(1e-3, 1e3))
def test_scaling_both_sides_changes_nothing(base: list[float], head: list[float], factor: float) -> None:
    """A pair's figure is free of units, and of a pace that both sides share."""

    def pair(scale: float) -> float:
        return trimmed_mean([math.log(scale * h) - math.log(scale * b) for b, h in zip(base, head, strict=False)])

    assert pair(1.0) == pytest.approx(pair(factor), abs=1e-9)


@given(pairs=st.lists(times, min_size=4, max_size=4), factor=st.floats(0.2, 5.0))
def test_a_constant_factor_is_found_exactly(pairs: list[list[float]], factor: float) -> None:
    """Without noise the estimate is the factor, and well beyond the tolerance so is the verdict."""
    values = [trimmed_mean([math.log(factor * value) - math.log(value) for value in base]) for base in pairs]
    verdict = judge_pairs(values, policy(), PairLimits(), 1e-3, final=True)
    assert verdict is not None
    assert verdict.estimate is not None
    assert verdict.estimate.ratio == pytest.approx(factor)
    if factor > 1.04:
        assert verdict.status is Status.SLOWER
    if factor < 1 / 1.04:
        assert verdict.status is Status.FASTER


# ----------------------------------------------------------------------- the stop rule

WIDE = (10.0, -9.0) * 5  # ten pairs that tell nothing
LATE = (9.0, 9.0, -2.0, 8.0, 6.0, 4.0, 1.0, 10.0, 4.0, 10.0)  # SLOWER at the tenth for the first time


@pytest.mark.parametrize(
    ("percents", "final", "expected"),
    [
        # Too few.
        ((), False, None),
        ((), True, ("UNDECIDED", "pairs")),
        ((0, 0), False, None),
        ((0, 0), True, ("UNDECIDED", "pairs")),
        ((20, 20), True, ("UNDECIDED", "pairs")),
        # Both bounds within the tolerance.
        ((0, 0, 0), False, ("SAME", "live")),
        ((0, 0, 0), True, ("SAME", "live")),
        ((0.5, -0.5, 0.8), False, ("SAME", "live")),
        # The estimate within it, a bound not yet.
        ((1.5, 1.0, 1.8), False, None),
        ((1.5, 1.0, 1.8), True, ("UNDECIDED", "spread")),
        ((1.5, 1.0, 1.8, 0.6, 0.8), False, ("SAME", "live")),
        # Over the tolerance, and surely over half of it: a fresh pair is due.
        ((5, 6, 5), False, None),
        ((5, 6, 5), True, ("UNDECIDED", "unconfirmed")),
        ((5, 6, 5, 4), False, ("SLOWER", "live")),
        ((5, 6, 5, 4), True, ("SLOWER", "live")),
        ((-5, -6, -5), False, None),
        ((-5, -6, -5), True, ("UNDECIDED", "unconfirmed")),
        ((-5, -6, -5, -4), False, ("FASTER", "live")),
        # Not confirmed: the pair itself under half the tolerance, or the estimate with it no longer sure.
        ((5, 6, 5, 1.4), False, None),
        ((5, 6, 5, 1.4), True, ("UNDECIDED", "spread")),
        ((4, 4, 4, 1.6), False, None),
        ((-5, -6, -5, -1.4), False, None),
        # It joins the others, and what they say needs a fresh pair again.
        ((5, 6, 5, 1.4, 6), False, None),
        ((5, 6, 5, 1.4, 6), True, ("UNDECIDED", "unconfirmed")),
        ((5, 6, 5, 1.4, 6, 6), False, ("SLOWER", "live")),
        ((4.2, 4.2, 4.2, -1, 0, 0, 0), False, None),
        ((4.2, 4.2, 4.2, -1, 0, 0, 0, 0), False, ("UNDECIDED", "near")),
        # Over the tolerance, not surely over half of it.
        ((3.2, 3.2, 3.2), False, None),
        ((9, -2, 6), False, None),
        ((3.2, 3.2, 3.2), True, ("UNDECIDED", "spread")),
        ((-3.2, -3.2, -3.2), True, ("UNDECIDED", "spread")),
        ((3.2, 3.2, 3.2, 3.2), False, None),
        ((-3.2, -3.2, -3.2, -3.2), False, None),
        # Over half of the tolerance for certain, and not over the tolerance.
        ((2.8, 2.8, 2.8, 2.8, 2.8), False, ("UNDECIDED", "near")),
        ((-2.8, -2.8, -2.8, -2.8, -2.8), False, ("UNDECIDED", "near")),
        # Too near to call: neither SAME nor SLOWER can be expected from more.
        ((2.4, 2.4, 2.4, 2.4), False, ("UNDECIDED", "near")),
        ((-2.4, -2.4, -2.4, -2.4), False, ("UNDECIDED", "near")),
        # The most pairs.
        (WIDE[:9], False, None),
        (WIDE[:9], True, ("UNDECIDED", "spread")),
        (WIDE, False, ("UNDECIDED", "spread")),
        # A fresh pair is due at the most: one beyond it.
        (LATE[:9], False, None),
        (LATE, False, None),
        (LATE, True, ("UNDECIDED", "unconfirmed")),
        ((*LATE, 5), False, ("SLOWER", "live")),
        ((*LATE, 1), False, ("UNDECIDED", "spread")),
        # A spread the prior knows nothing of is taken as it is: three such pairs prove nothing, three alike do.
        ((30, 40, 50), False, None),
        ((30, 40, 50, 40), False, None),
        ((30, 40, 50, 40, 40, 40), False, ("SLOWER", "live")),
        ((40, 41, 40, 50), False, ("SLOWER", "live")),
    ],
)
def test_the_stop_rule(percents: tuple[float, ...], final: bool, expected: tuple[str, str] | None) -> None:
    """The table says what every kind of sequence is taken to mean, or that it wants one more pair."""
    verdict = judge(*percents, final=final)
    assert said(verdict) == expected
    if verdict is not None:
        assert max(map(len, verdict_lines(verdict))) <= 72  # within 80 columns, behind pytest's margin
        assert verdict.suspect == (verdict.estimate is not None and verdict.estimate.ratio > 1.03)


@given(values=log_ratios)
def test_pairs_beyond_the_deciding_one_change_nothing(values: list[float]) -> None:
    """The verdict is a function of the sequence: replayed with more pairs it is the same."""
    first = next(
        (
            v
            for n in range(len(values) + 1)
            if (v := judge_pairs(values[:n], policy(), PairLimits(), 1e-3, final=False))
        ),
        None,
    )
    assert judge_pairs(values, policy(), PairLimits(), 1e-3, final=False) == first
    if first is not None:
        assert judge_pairs(values, policy(), PairLimits(), 1e-3, final=True) == first


@given(values=st.lists(st.floats(-0.2, 0.2), min_size=11, max_size=11))
def test_the_most_pairs_and_one_to_confirm_always_decide(values: list[float]) -> None:
    """No sequence asks for more than one pair over the most."""
    assert judge_pairs(values, policy(), PairLimits(), 1e-3, final=False) is not None


def test_limits_are_the_users() -> None:
    """The fewest and the most pairs are what was asked for."""
    assert judge(0, 0, 0, limits=PairLimits(4, 10)) is None
    assert said(judge(0, 0, limits=PairLimits(2, 4))) == ("SAME", "live")
    assert said(judge(*WIDE[:4], limits=PairLimits(2, 4))) == ("UNDECIDED", "spread")


def test_a_verdict_rests_on_all_pairs_up_to_it() -> None:
    """The estimate counts the pair that confirms, and its message says how much that one was alone."""
    verdict = judge(5, 6, 5, 4)
    assert verdict is not None
    assert verdict.estimate is not None
    assert verdict.estimate.ratio == pytest.approx(statistics.geometric_mean([1.05, 1.06, 1.05, 1.04]))
    assert (
        verdict_message(verdict)
        == "4 live pairs, each slower; at least 3.0 % slower for certain\nconfirmed by a fresh pair (+4.0 %)"
    )


def test_more_tests_in_a_run_ask_more_of_each() -> None:
    """The error rate is the run's: what convicts one test of one may not convict one of a thousand."""
    assert said(judge(4.2, 4.2, 4.2, 4.2, rules=policy(tests=1))) == ("SLOWER", "live")
    assert judge(4.2, 4.2, 4.2, 4.2, rules=policy(tests=1000)) is None


def test_the_tolerance_is_the_users() -> None:
    """Half as much is SAME where twice as much is tolerated, and SLOWER at a quarter."""
    assert said(judge(5, 6, 5, 4, rules=policy(tolerance=0.10))) == ("SAME", "live")
    assert said(judge(5, 6, 5, 4, rules=policy(tolerance=0.02))) == ("SLOWER", "live")


def test_undecided_says_what_it_could_have_seen() -> None:
    """A slowdown a little over the named one is SLOWER with the same pairs, one a little under is not."""
    limits = PairLimits(10, 10)
    undecided = judge(*WIDE, limits=limits)
    assert undecided is not None
    assert undecided.estimate is not None
    smallest = undecided.smallest_seen
    assert smallest is not None
    assert units.change(1 + smallest) in verdict_message(undecided)
    assert f"at most {units.change(undecided.estimate.high)}" in verdict_message(undecided)
    for factor, expected in ((1.005, None), (0.995, ("UNDECIDED", "spread"))):
        scale = factor * (1 + smallest) / undecided.estimate.ratio
        slower = [100 * (scale * (1 + percent / 100) - 1) for percent in WIDE]
        assert said(judge(*slower, limits=limits)) == expected  # None: it wants to confirm it


@pytest.mark.parametrize(
    ("percents", "final", "flag"),
    [
        ((0, 0), True, "--rlperf-max-time"),
        ((5, 6, 5), True, "--rlperf-max-time"),
        (WIDE[:9], True, "--rlperf-max-time"),
        (WIDE, False, "--rlperf-pairs"),
    ],
)
def test_undecided_names_what_to_raise(percents: tuple[float, ...], final: bool, flag: str) -> None:
    """Where time was short the message names it, where pairs ran out it names those."""
    verdict = judge(*percents, final=final)
    assert verdict is not None
    assert flag in verdict_message(verdict)


def test_a_change_under_the_minimum_does_not_fail() -> None:
    """A slowdown of less than so many seconds a call is SAME, and needs no fresh pair; one of more is SLOWER."""
    rules = policy(min_change_s=60e-6)
    assert said(judge(5, 6, 5, rules=rules, base_call_s=1e-3)) == ("SAME", "min_change")
    assert said(judge(5, 6, 5, 5, rules=rules, base_call_s=2e-3)) == ("SLOWER", "live")


def test_what_can_only_be_under_the_minimum_is_same_in_a_strict_run_too() -> None:
    """A wide interval whose every change is under the minimum is no UNDECIDED."""
    assert judge(3, -1, 2) is None
    verdict = judge(3, -1, 2, rules=policy(min_change_s=60e-6))
    assert said(verdict) == ("SAME", "min_change")
    assert verdict is not None
    assert not verdict.fails(strict=True)
    assert verdict.smallest_seen is not None
    assert verdict.smallest_seen >= 0.06


def test_a_confirming_pair_that_brings_it_under_the_minimum_acquits() -> None:
    """The minimum is held against the estimate of all pairs."""
    rules = policy(min_change_s=50e-6)
    assert judge(5.2, 5.2, 5.2, rules=rules) is None
    assert said(judge(5.2, 5.2, 5.2, 3, rules=rules)) == ("SAME", "min_change")


def test_only_slower_fails() -> None:
    """SLOWER fails unless it is not gated or was accepted; FASTER and SAME never do, UNDECIDED where it is strict."""
    slower, faster, undecided = judge(5, 6, 5, 4), judge(-5, -6, -5, -4), judge(0, 0, final=True)
    assert slower is not None
    assert faster is not None
    assert undecided is not None
    assert [verdict.fails(strict=False) for verdict in (slower, faster, undecided)] == [True, False, False]
    assert [verdict.fails(strict=True) for verdict in (slower, faster, undecided)] == [True, False, True]
    for rules in (policy(gated=False), policy(accept=True)):
        verdict = judge(5, 6, 5, 4, rules=rules)
        assert verdict is not None
        assert not verdict.fails(strict=False)


# ----------------------------------------------------------------------- promises, on simulated noise

RUNS = 1000
PROMISED = 0.01
KEPT = (
    mc.spread((0.005, 0.010, 0.016))
    | mc.SHAPES
    | {
        name: noise
        for name, noise in mc.PROCESSES.items()
        if "half of processes 3" not in name and "half of processes 5" not in name
    }
)


def test_the_simulated_pair_is_the_measured_ones_figure() -> None:
    """The simulation trims as a live comparison does."""
    blocks = np.random.default_rng(2).standard_t(2, (50, 17))
    assert mc.trimmed_means(blocks) == pytest.approx([trimmed_mean(row) for row in blocks.tolist()])


def test_a_stall_and_a_neighbour_do_not_move_a_pair() -> None:
    """A disturbance of both sides cancels, and single slices of a hundred times the time are trimmed away."""
    generator = np.random.default_rng(3)
    noise = mc.Noise(burst_sd=0.1, neighbour=1.8, stall_share=0.01)
    pairs = mc.trimmed_means(mc.block_log_ratios(generator, noise, 2000))
    assert np.abs(np.mean(pairs)) < 0.0005
    assert np.std(pairs) < 0.005


@pytest.mark.parametrize("noise", KEPT.values(), ids=KEPT)
def test_at_most_one_unchanged_run_of_five_tests_in_a_hundred_fails(noise: object) -> None:
    """So few of 1000 runs call an unchanged test slower that 1 % is more than the 95 % upper bound of their share."""
    generator = np.random.default_rng(5)
    found = mc.tally(mc.pair_log_ratios(generator, noise, RUNS * mc.TESTS, 11, 0.0))
    assert found.runs == RUNS
    assert found.alarmed_at_most <= PROMISED


def test_a_rule_on_slices_would_be_found_out() -> None:
    """The same runs by a test whose sample is blocks, not pairs, fail far more often than promised."""
    assert mc.blocks_rule_alarms(np.random.default_rng(5), mc.BUSY, 300) > 10 * PROMISED


def test_confirming_and_the_prior_are_worth_it() -> None:
    """Where pairs differ by 2.5 % the fresh pair lowers the alarms, and the prior raises what is found of 5 %."""
    generator = np.random.default_rng(6)
    (noise,) = mc.spread((0.025,)).values()
    unchanged = mc.pair_log_ratios(generator, noise, 2 * RUNS * mc.TESTS, 11, 0.0)
    slower = mc.pair_log_ratios(generator, noise, RUNS, 11, 0.05)
    assert mc.tally(unchanged).alarmed < mc.tally(unchanged, rule=mc.unconfirmed_rule).alarmed
    assert mc.tally(slower).slower > mc.tally(slower, rule=mc.plain_t_rule).slower + 0.05


@pytest.mark.parametrize("noise", KEPT.values(), ids=KEPT)
def test_five_percent_are_found(noise: object) -> None:
    """Of 1000 tests slower by 5 % at least 95 of 100 are SLOWER, and hardly one slower by 10 % is not."""
    generator = np.random.default_rng(7)
    assert mc.tally(mc.pair_log_ratios(generator, noise, 1000, 11, 0.05), 0.05).slower >= 0.95
    assert mc.tally(mc.pair_log_ratios(generator, noise, 1000, 11, 0.10), 0.10).slower >= 0.999


def test_unchanged_tests_are_cheap() -> None:
    """With pairs of 1 % on a busy machine unchanged tests are SAME, in hardly more than the fewest pairs."""
    found = mc.tally(mc.pair_log_ratios(np.random.default_rng(8), mc.BUSY, 2000, 11, 0.0))
    assert found.same >= 0.98
    assert found.pairs < 3.8


@pytest.mark.parametrize("count", [1, 3, 5, 10])
@pytest.mark.parametrize("noise", [mc.QUIET, mc.replace(mc.BUSY, pair_sd=0.005)], ids=["quiet", "busy"])
def test_the_interval_covers_what_it_claims(noise: object, count: int) -> None:
    """Where pairs differ by no more than the prior says, the 99 % interval of a number of pairs misses 1 % at most."""
    tests = 5000
    values = mc.pair_log_ratios(np.random.default_rng(9), noise, tests, count, 0.0)
    missed = round(tests * (1 - mc.coverage(values)))
    assert missed <= stats.binom.ppf(0.999, tests, 0.01)


def test_an_interval_that_is_too_narrow_would_be_found_out() -> None:
    """The normal distribution's factor for the pairs' own spread misses too often by the same count."""
    tests = 5000
    values = mc.pair_log_ratios(np.random.default_rng(9), mc.QUIET, tests, 3, 0.0)
    half = stats.norm.ppf(0.995) * values.std(axis=1, ddof=1) / math.sqrt(3)
    missed = int((np.abs(values.mean(axis=1)) > half).sum())
    assert missed > stats.binom.ppf(0.999, tests, 0.01)


# ----------------------------------------------------------------------- which phases carry it

phases = st.dictionaries(st.sampled_from(["a", "a/b", "a/c", "d"]), st.floats(0.0, 1.0), max_size=4)


@given(blocks=st.lists(st.tuples(phases, phases), min_size=3, max_size=6), change_s=st.floats(-1e-2, 1e-2))
def test_contributions_add_up_to_the_change(
    blocks: list[tuple[dict[str, float], dict[str, float]]], change_s: float
) -> None:
    """Whatever the phases say, they and the rest are the whole, and the rest stands last."""
    found = contributions(blocks, 1e-2, change_s)
    assert math.fsum(part.change_s for part in found) == pytest.approx(change_s, abs=1e-12)
    assert [part.path for part in found].index("") == len(found) - 1
    parts = [part.change_s for part in found[:-1]]
    assert parts == sorted(parts, reverse=change_s >= 0)


@given(blocks=st.lists(st.tuples(phases, phases), min_size=3, max_size=6), change_s=st.floats(1e-6, 1e-2))
def test_swapping_sides_mirrors_contributions(
    blocks: list[tuple[dict[str, float], dict[str, float]]], change_s: float
) -> None:
    """A phase adds as much one way round as it saves the other."""
    forth = contributions(blocks, 1e-2, change_s)
    back = contributions([(head, base) for base, head in blocks], 1e-2, -change_s)
    assert {part.path: -part.change_s for part in back} == pytest.approx(by_path(forth))


def by_path(parts: tuple[Contribution, ...]) -> dict[str, float]:
    """Return contributions in seconds by the phase's path."""
    return {part.path: part.change_s for part in parts}


BEFORE = {"sac": 0.05, "sac/actor": 0.30, "sac/critic": 0.60}


def test_the_phase_that_grew_carries_the_change() -> None:
    """Only what grew is named, at the size of a call, and what no phase accounts for is the rest."""
    after = BEFORE | {"sac/critic": 0.79}
    found = contributions([(BEFORE, after)] * 3, 10e-3, 2.1e-3)
    assert [part.path for part in found] == ["sac/critic", ""]
    assert [part.change_s for part in found] == pytest.approx([1.9e-3, 0.2e-3])
    assert carriers_text(found, carriers(found)) == "sac/critic +1.9 of +2.1 ms a call"


def test_a_phase_of_one_side_counts_in_full() -> None:
    """New work is a change of all its time, and work that is gone likewise."""
    after = BEFORE | {"sac/new": 0.2}
    assert by_path(contributions([(BEFORE, after)] * 3, 10e-3, 2e-3))["sac/new"] == pytest.approx(2e-3)
    assert by_path(contributions([(after, BEFORE)] * 3, 10e-3, -2e-3))["sac/new"] == pytest.approx(-2e-3)


def test_what_counters_the_change_stands_behind_it() -> None:
    """The largest in the change's direction comes first; savings in a slowdown come last and are not named."""
    after = {"sac": 0.15, "sac/actor": 0.20, "sac/critic": 0.90}
    found = contributions([(BEFORE, after)] * 3, 10e-3, 3e-3)
    assert [part.path for part in found] == ["sac/critic", "sac", "sac/actor", ""]
    assert carriers_text(found, carriers(found)) == "sac/critic +3.0 of +3.0 ms a call"


def test_noise_is_the_rests() -> None:
    """A phase that moves to and fro between blocks carries nothing, a stall in one block moves none."""
    blocks = [
        (BEFORE, BEFORE | {"sac/actor": 0.30 + noise, "sac/critic": 0.70 + noise / 50})
        for noise in (0.10, -0.08, 0.05, -0.06, 0.03, -0.02, 0.01)
    ]
    blocks.append((BEFORE, BEFORE | {"sac/actor": 30.0, "sac/critic": 0.70}))
    found = contributions(blocks, 10e-3, 1e-3)
    assert [part.path for part in found] == ["sac/critic", ""]
    assert found[0].change_s == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(("blocks", "errors"), [(4, 1.858), (16, 0.929)])
@pytest.mark.parametrize(("factor", "carries"), [(0.97, False), (1.03, True)])
def test_a_phase_has_to_move_by_two_standard_errors(blocks: int, errors: float, factor: float, carries: bool) -> None:
    """Of the median, by the median absolute deviation: 2 × 1.2533 × 1.4826 of it, over the root of the blocks."""
    moved, deviation = factor * errors * 0.01, 0.01
    sides = [
        (BEFORE, BEFORE | {"sac/critic": 0.60 + moved + sign * deviation})
        for sign in (-1, 1)
        for _ in range(blocks // 2)
    ]
    found = contributions(sides, 10e-3, 1e-3)
    assert ("sac/critic" in by_path(found)) == carries


def test_too_few_blocks_blame_nobody() -> None:
    """Two traced blocks have no spread to speak of, and that is said."""
    assert contributions([(BEFORE, {})] * 2, 10e-3, 1e-3) == ()
    assert carriers_text((), ()) == "too few traced turns to find the phase that carries it: raise --rlperf-max-time"
    assert contributions([], 10e-3, 1e-3) == ()


@pytest.mark.parametrize(
    ("parts_ms", "rest_ms", "text"),
    [
        ([1.9], 0.2, "p0 +1.9 of +2.1 ms"),
        ([1.2, 0.7, 0.1], 0.1, "p0 +1.2, p1 +0.7 of +2.1 ms"),
        ([0.6, 0.5, 0.4, 0.3, 0.2], 0.1, "p0 +0.6, p1 +0.5, p2 +0.4 of +2.1 ms"),
        ([1.2, 0.1], 0.8, "p0 +1.2 of +2.1 ms"),  # a twentieth is not worth a name
        ([2.8, -0.7], 0.0, "p0 +2.8 of +2.1 ms"),
        ([-1.9], -0.2, "p0 -1.9 of -2.1 ms"),
        ([0.019], 0.002, "p0 +19 of +21 µs"),
        ([0.9], 1.2, "no phase by itself carries it"),
        ([-0.5], 2.6, "no phase by itself carries it"),
        ([], 2.1, "no phase by itself carries it"),
        ([], 0.0, "no phase by itself carries it"),
    ],
)
def test_blame_is_told_in_few_words(parts_ms: list[float], rest_ms: float, text: str) -> None:
    """As many phases as carry four fifths of it, three at most, in the change's own unit."""
    named = [Contribution(f"p{number}", part_ms * 1e-3) for number, part_ms in enumerate(parts_ms)]
    parts = [*named, Contribution("", rest_ms * 1e-3)]
    assert carriers_text(parts, carriers(parts)) == f"{text}{' a call' if parts_ms and 'no phase' not in text else ''}"
