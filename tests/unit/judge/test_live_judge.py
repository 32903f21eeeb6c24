"""The rule for live pairs: its estimate, its stop, what it promises on simulated noise, and which phases it blames."""

from __future__ import annotations

import math
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from wording import Wording

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import monte_carlo as mc

from pytest_rlperf.judge.live import (
    PLACED_SPREAD,
    carriers,
    contributions,
    judge_pairs,
    judge_records,
    slower_least,
)
from pytest_rlperf.judge.stats import SDS, Spread, binomial_tail, squared_deviations
from pytest_rlperf.model import reasons
from pytest_rlperf.model.figures import trimmed_mean
from pytest_rlperf.model.judged import Estimate, Policy, Remedy, RemedyKind, Status, Verdict
from pytest_rlperf.model.live import Contribution, Live, OtherWork, PairRecord
from pytest_rlperf.model.stored import PairSpread
from pytest_rlperf.report.wording import carriers_text, verdict_lines, verdict_message

log_ratios = st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=12)
times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


def policy(**changes: Any) -> Policy:
    return replace(Policy(tests=5), **changes)


def judge(
    *percents: float,
    final: bool = False,
    rules: Policy | None = None,
    pairs: tuple[int, int] = (3, 10),
    base_call_s: float = 1e-3,
    placed: bool = True,
    history: PairSpread | None = None,
) -> Verdict | None:
    ratios = [math.log1p(percent / 100) for percent in percents]
    rules = replace(rules or policy(), pairs=pairs)
    return judge_pairs(ratios, rules, base_call_s, final=final, placed=placed, history=history)


def said(verdict: Verdict | None) -> tuple[str, str] | None:
    return None if verdict is None else (verdict.status.value, verdict.reason.code)


def estimated(values: list[float], spread: Spread = PLACED_SPREAD) -> Estimate:
    known = spread.after(squared_deviations(values), len(values) - 1)
    return known.estimate(values, 0.002)


def test_with_a_known_spread_it_is_the_normal_interval() -> None:
    """A spread of one possible value leaves scipy's normal quantiles."""
    estimate = estimated([0.02, 0.03, 0.07, 0.04], Spread((0.01,), (1.0,)))
    assert math.log(estimate.high) == pytest.approx(0.04 + scipy.stats.norm.ppf(0.995) * 0.005)
    assert math.log(estimate.floor) == pytest.approx(0.04 - scipy.stats.norm.ppf(0.998) * 0.005)


@pytest.mark.parametrize("tail", [0.4, 0.005, 1e-9, 1e-100, 1e-310])
def test_a_bound_at_any_error_rate_is_the_normal_one(tail: float) -> None:
    """However small the error rate, the bound lies where scipy has it; at the smallest float it is still a number."""
    known = Spread((0.01,), (1.0,))
    assert known.half_width(4, tail) == pytest.approx(scipy.stats.norm.isf(tail) * 0.005, rel=1e-9)
    assert known.half_width(4, 5e-324) == pytest.approx(scipy.stats.norm.isf(5e-324) * 0.005, rel=0.01)


@pytest.mark.parametrize("values", [[0.05], [0.0, 0.03, 0.06], [0.01, 0.012, 0.01, 0.009], [0.2, -0.1, 0.1, 0.4, 0.0]])
def test_the_bounds_are_quantiles_of_the_posterior(values: list[float]) -> None:
    """The posterior integrated over the mean and a continuous spread has a hundredth of its mass beyond the bounds."""
    log_sds = np.linspace(math.log(2e-4), math.log(20), 4001)
    sds, count = np.exp(log_sds), len(values)
    density = scipy.stats.norm.pdf
    prior = 0.6 * density(log_sds, math.log(0.01), 0.4) + 0.4 * density(log_sds, math.log(0.08), 1.2)
    weights = prior * sds ** (1.0 - count) * np.exp(-squared_deviations(values) / (2 * sds**2))
    estimate = estimated(values)
    for bound, tail in ((estimate.high, 0.005), (estimate.ceiling, 0.002)):
        beyond = scipy.stats.norm.sf((math.log(bound) - statistics.fmean(values)) * math.sqrt(count) / sds)
        assert np.sum(weights * beyond) / np.sum(weights) == pytest.approx(tail, rel=1e-3)


@given(values=log_ratios, wider=st.floats(1.0, 30.0))
def test_pairs_that_differ_more_never_narrow_the_interval(values: list[float], wider: float) -> None:
    """The bounds are monotone in the squared deviations, and jump nowhere."""
    count, squares = len(values), squared_deviations(values) if len(values) > 1 else 0.0
    widths = [
        PLACED_SPREAD.after(each, count - 1).half_width(count, 0.005)
        for each in (squares, wider * squares, 1.001 * wider * squares)
    ]
    assert widths[0] <= widths[1] * (1 + 1e-8)
    assert widths[1] <= widths[2] * (1 + 1e-8) <= widths[1] * 1.002


def test_a_history_counts_as_six_degrees_of_freedom_at_the_most() -> None:
    """Sixty pairs of another day weigh as much as seven, and with those quiet pairs are SAME within 1 % sooner."""
    rules = policy(tolerance=0.01)
    seven, sixty = (PairSpread(freedom * 0.003**2, freedom) for freedom in (6.0, 59.0))
    found = [judge(0.2, -0.2, 0.1, rules=rules, history=history) for history in (None, seven, sixty)]
    assert [said(each) for each in found] == [None, ("SAME", "live"), ("SAME", "live")]
    estimates = [each.estimate for each in found if each is not None]
    assert estimates[0] == estimates[1]
    assert judge(0.2, -0.2, 0.1, history=PairSpread(0.0, 0.0)) == judge(0.2, -0.2, 0.1)


def test_two_earlier_pairs_are_a_history() -> None:
    """Their one degree of freedom counts: where they differed by 4 %, three equal pairs are not enough today."""
    assert said(judge(0, 0, 0)) == ("SAME", "live")
    assert judge(0, 0, 0, history=PairSpread(0.03**2, 1.0)) is None


def test_bounds_beyond_a_float_are_no_error() -> None:
    """Two pairs that differ by decades have bounds beyond any sense, which a run's file can hold."""
    estimate = estimated([200.0, -200.0])
    assert 0 < estimate.floor < 1e-17
    assert 1e17 < estimate.ceiling < 1e18
    assert max(SDS) > 40


@pytest.mark.parametrize(("tests", "pairs"), [(1, 4), (5, 5), (20, 6), (100, 7), (1000, 9)])
def test_slower_takes_more_pairs_in_larger_runs(tests: int, pairs: int) -> None:
    """So many pairs agree by chance, each with 1/4, in at most 1 % of runs."""
    assert slower_least(policy(tests=tests)) == pairs
    assert tests * 0.25**pairs <= 0.01 < tests * 0.25 ** (pairs - 1)
    clear = (20.0, 21.0, 20.0, 19.0, 20.0, 21.0, 20.0, 19.0, 20.0)
    assert judge(*clear[: pairs - 1], rules=policy(tests=tests)) is None
    assert said(judge(*clear[:pairs], rules=policy(tests=tests))) == ("SLOWER", "live")
    assert said(judge(0, 0, 0, rules=policy(tests=tests))) == ("SAME", "live")


def test_too_few_pairs_allowed_are_named() -> None:
    """Where ``rlperf_pairs`` allows fewer than SLOWER takes, the message names how many to allow."""
    found = judge(20, 21, 20, 19, 20, rules=policy(tests=100), pairs=(3, 5))
    assert said(found) == ("UNDECIDED", "pairs")
    assert found is not None
    assert found.smallest_seen is None
    assert verdict_lines(found)[1:] == ["too few pairs"]
    allowed = judge(*(20, 21, 20, 19, 20) * 2, rules=policy(tests=100), pairs=(3, 6))
    assert said(allowed) == ("SLOWER", "live")


def test_pairs_that_disagree_need_more_that_agree() -> None:
    """Five pairs of one state and one of none are as likely by chance as one run in 45: eight are needed of nine."""
    assert 5 * binomial_tail(5, 6, 0.25) == pytest.approx(1 / 43, rel=0.01)
    assert said(judge(*(50.0,) * 5)) == ("SLOWER", "live")
    assert judge(0, *(50.0,) * 6) is None
    assert said(judge(0, *(50.0,) * 7)) == ("SLOWER", "live")


@pytest.mark.parametrize(("first", "agree"), [(50.0, True), (0.1, True), (0.0, False), (-0.1, False)])
def test_a_reason_states_whether_all_pairs_agree(first: float, agree: bool) -> None:
    """A pair without a change, or with one the other way, does not agree with a slowdown of the others."""
    found = judge(first, *(50.0,) * 7)
    assert found is not None
    assert isinstance(found.reason, reasons.PairsDiffer)
    assert found.reason.all_agree is agree


def records(*pairs: tuple[float, float, bool]) -> list[PairRecord]:
    """Return pairs by their wall and CPU times' change in percent, and whether they were alone."""
    return [
        builders.pair(math.log1p(wall / 100), cpu_log_ratio=math.log1p(cpu / 100), alone=alone)
        for wall, cpu, alone in pairs
    ]


def test_the_first_pairs_choose_the_clock_for_all() -> None:
    """One later pair that was not alone changes no clock: the wall's times of the others do not come back."""
    busy, late = (7.0, 0.0, True), (-4.0, 0.0, False)
    quiet = judge_records(records(busy, busy, late), policy(), final=False)
    assert said(quiet) == ("SAME", "live")
    by_wall = judge_records(records(late, busy, busy), policy(), final=True)
    assert said(by_wall) == ("UNDECIDED", "spread")
    live = Live("main", "HEAD", builders.result(), tuple(records(busy, busy, late)), ())
    assert (live.clock, live.log_ratios) == ("cpu", (0.0, 0.0, 0.0))
    assert replace(live, pairs=tuple(records(late, busy))).clock == "wall"


MIRROR = {Status.SLOWER: Status.FASTER, Status.FASTER: Status.SLOWER}


@given(values=log_ratios, final=st.booleans())
def test_swapping_sides_mirrors_the_verdict(values: list[float], final: bool) -> None:
    """Swapped sides turn SLOWER into FASTER and keep every other verdict, after as many pairs."""
    one, other = (judge_pairs(sides, policy(), 1e-3, final=final) for sides in (values, [-v for v in values]))
    if one is None or other is None:
        assert one is other
        return
    assert other.status is MIRROR.get(one.status, one.status)
    assert one.reason.code == other.reason.code
    assert one.estimate is not None
    assert other.estimate is not None
    assert one.estimate.ratio == pytest.approx(1 / other.estimate.ratio)


@given(pairs=st.lists(times, min_size=5, max_size=5), factor=st.floats(0.2, 5.0))
def test_a_constant_factor_is_found_exactly(pairs: list[list[float]], factor: float) -> None:
    """Without noise the estimate is the factor, and well beyond the tolerance so is the verdict."""
    values = [trimmed_mean([math.log(factor * value) - math.log(value) for value in base]) for base in pairs]
    verdict = judge_pairs(values, policy(), 1e-3, final=True)
    assert verdict is not None
    assert verdict.estimate is not None
    assert verdict.estimate.ratio == pytest.approx(factor)
    if factor > 1.04:
        assert verdict.status is Status.SLOWER
    if factor < 1 / 1.04:
        assert verdict.status is Status.FASTER


WIDE = (3.0, -3.0) * 5  # ten pairs that could still have decided
LATE = (5.0, 5.0, 12.0, 8.0, 3.0, 14.0, 9.0, 4.0, 2.0, 7.0)  # SLOWER at the tenth for the first time


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
        # Over the tolerance, and surely over half of it: as many pairs are due as never agree by chance.
        ((5, 6, 5), False, None),
        ((5, 6, 5), True, ("UNDECIDED", "unconfirmed")),
        ((5, 6, 5, 4), False, None),
        ((5, 6, 5, 4), True, ("UNDECIDED", "unconfirmed")),
        ((5, 6, 5, 4, 5), False, ("SLOWER", "live")),
        ((5, 6, 5, 4, 5), True, ("SLOWER", "live")),
        ((-5, -6, -5, -4), False, None),
        ((-5, -6, -5, -4), True, ("UNDECIDED", "unconfirmed")),
        ((-5, -6, -5, -4, -5), False, ("FASTER", "live")),
        # Not confirmed: the pair itself under half the tolerance, or the estimate with it no longer sure.
        ((5, 6, 5, 6, 1.4), False, None),
        ((5, 6, 5, 6, 1.4), True, ("UNDECIDED", "spread")),
        ((4, 4, 4, 4, 1.6), False, None),
        ((-5, -6, -5, -6, -1.4), False, None),
        # It joins the others, of which seven of eight have to agree then.
        ((5, 6, 5, 6, 1.4, 6, 6), False, None),
        ((5, 6, 5, 6, 1.4, 6, 6), True, ("UNDECIDED", "unconfirmed")),
        ((5, 6, 5, 6, 1.4, 6, 6, 6), False, ("SLOWER", "live")),
        # Over the tolerance, not surely over half of it.
        ((3.2, 3.2, 3.2), False, None),
        ((9, -2, 6), False, None),
        ((3.2, 3.2, 3.2), True, ("UNDECIDED", "spread")),
        ((-3.2, -3.2, -3.2), True, ("UNDECIDED", "spread")),
        # Near the tolerance: equal pairs decide, others are given up.
        ((2.8, 2.8, 2.8, 2.8, 2.8), False, None),
        ((2.8, 2.8, 2.8, 2.8, 2.8, 2.8), False, ("SAME", "live")),
        ((3.2, 3.2, 3.2, 3.2, 3.2), False, ("SLOWER", "live")),
        ((-2.7, -2.7, -2.7, -2.7, -2.7), False, None),
        ((-2.7, -2.7, -2.7, -2.7, -2.7, -2.7), False, ("SAME", "live")),
        ((-3.2, -3.2, -3.2, -3.2, -3.2), False, ("FASTER", "live")),
        ((2.6, -1, 2.9, 3.1, 2.5, 2.4, 2.8, 2.7, 2.9), False, ("UNDECIDED", "near")),
        ((-2.6, 1, -2.9, -3.1, -2.5, -2.4, -2.8, -2.7, -2.9), False, ("UNDECIDED", "near")),
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
        # Ten pairs would not decide either: the first ones show that.
        ((10, -9, 10), False, ("UNDECIDED", "spread")),
        ((6, -5, 4, -3), False, ("UNDECIDED", "spread")),
        # A change that is larger than the spread is looked into.
        ((30, 40, 50), False, None),
        ((30, 40, 50, 40), False, None),
        ((30, 40, 50, 40, 40), False, ("SLOWER", "live")),
    ],
)
def test_the_stop_rule(percents: tuple[float, ...], final: bool, expected: tuple[str, str] | None) -> None:
    """The table says what every kind of sequence is taken to mean, or that it wants one more pair."""
    verdict = judge(*percents, final=final)
    assert said(verdict) == expected
    if verdict is not None:
        assert max(map(len, verdict_lines(verdict))) <= 72  # within 80 columns, behind pytest's margin
        assert verdict.suspect == (verdict.estimate is not None and verdict.estimate.ratio > 1.03)


@settings(deadline=None, max_examples=30)
@given(values=log_ratios)
def test_pairs_beyond_the_deciding_one_change_nothing(values: list[float]) -> None:
    """The verdict is a function of the sequence: replayed with more pairs it is the same."""
    first = next(
        (v for n in range(len(values) + 1) if (v := judge_pairs(values[:n], policy(), 1e-3, final=False))),
        None,
    )
    assert judge_pairs(values, policy(), 1e-3, final=False) == first
    if first is not None:
        assert judge_pairs(values, policy(), 1e-3, final=True) == first


@given(values=st.lists(st.floats(-0.2, 0.2), min_size=11, max_size=11))
def test_the_most_pairs_and_one_to_confirm_always_decide(values: list[float]) -> None:
    """No sequence asks for more than one pair over the most."""
    assert judge_pairs(values, policy(), 1e-3, final=False) is not None


def test_a_verdict_rests_on_all_pairs_up_to_it(wording: Wording) -> None:
    """The estimate counts the pair that confirms, and its message shows how much that one changed."""
    verdict = judge(5, 6, 5, 6, 4)
    assert verdict is not None
    assert verdict.estimate is not None
    assert verdict.estimate.ratio == pytest.approx(statistics.geometric_mean([1.05, 1.06, 1.05, 1.06, 1.04]))
    assert verdict_message(verdict) == wording


NOISY = OtherWork("train", 47, 0.9, 0.4, 0.0)


@pytest.mark.parametrize(
    ("percents", "changes", "expected"),
    [
        ((0, 0), {"final": True}, Remedy(RemedyKind.TIME, 20)),
        ((5, 6, 5, 6), {"final": True}, Remedy(RemedyKind.TIME, 20)),
        ((5, 6, 5, 6), {"final": True, "blocks": 4}, Remedy(RemedyKind.TIME, 40)),
        ((5, 6, 5, 6), {"final": True, "other_work": NOISY}, Remedy(RemedyKind.TIME, 20)),
        (WIDE[:9], {"final": True}, Remedy(RemedyKind.TOLERANCE, 0.05)),
        ((3, -2, 1, 4, -3, 5, -1, 0, 2, -2), {}, Remedy(RemedyKind.PAIRS, 27)),
        ((3, -2, 1, 4, -3, 5, -1, 0, 2, -2), {"other_work": NOISY}, Remedy(RemedyKind.PAIRS, 27)),
        ((10, -9, 10), {"other_work": NOISY}, Remedy(RemedyKind.QUIET)),
        ((10, -9, 10), {}, Remedy(RemedyKind.TOLERANCE, 0.28)),
        ((10, -9, 10), {"counted": True}, Remedy(RemedyKind.COUNTS)),
        ((10, -9, 10), {"counted": True, "gates": ("ops",)}, Remedy(RemedyKind.TOLERANCE, 0.28)),
        ((5, 1, 4, 2, 7, 0, 3, 2, 4, 3), {"counted": True}, Remedy(RemedyKind.TOLERANCE, 0.06)),
        ((20, 21, 20, 19, 20), {"tests": 100, "pairs": (3, 5)}, Remedy(RemedyKind.PAIRS, 6)),
        ((90, -60, 90), {}, Remedy(RemedyKind.QUIET)),
        ((2.0, 3.6, 2.6, 2.9, 2.2, 3.3, 2.7, 2.8), {}, Remedy(RemedyKind.TOLERANCE, 0.04)),  # too near the tolerance
    ],
)
def test_undecided_names_the_one_change_that_helps(
    percents: tuple[float, ...], changes: dict[str, Any], expected: Remedy
) -> None:
    """Longer or with more pairs where that is enough; else quieter where others disturb, a larger tolerance, counts."""
    final, counted = (changes.get(name, False) for name in ("final", "counted"))
    rules = policy(**{name: changes[name] for name in ("tests", "gates", "pairs") if name in changes})
    figures = {name: changes[name] for name in ("blocks", "other_work") if name in changes}
    pairs = [builders.pair(math.log1p(percent / 100), **figures) for percent in percents]
    found = judge_records(pairs, rules, final=final, counted=counted)
    assert found is not None
    assert (found.status, found.remedy) == (Status.UNDECIDED, expected)


def test_what_is_said_to_decide_does() -> None:
    """The same pairs go on as they did, for as many as were named; or are judged by the tolerance that was."""
    pairs = records(*((percent, percent, False) for percent in (3, -2, 1, 4, -3, 5, -1, 0, 2, -2)))
    assert said(judge_records(pairs * 3, policy(pairs=(3, 27)), final=False)) == ("SAME", "live")
    near = records(*((percent, percent, False) for percent in (5, 1, 4, 2, 7, 0, 3, 2, 4, 3)))
    assert said(judge_records(near, policy(tolerance=0.06), final=False)) == ("SAME", "live")


def test_a_change_is_confirmed_by_another_loader() -> None:
    """What the pairs of one loaded process share is no chance of each: without a pair of a second one none is sure."""
    first = [builders.pair(0.2, loader=0)] * 5
    assert judge_records(first, policy(), final=False) is None
    assert said(judge_records([*first, builders.pair(0.2, loader=1)], policy(), final=False)) == ("SLOWER", "live")


@pytest.mark.parametrize(
    ("works", "named"),
    [
        ([replace(NOISY, pid=48, cpu_share=1.2), NOISY, NOISY], ("train", 47)),
        ([NOISY, NOISY, replace(NOISY, process="cc", cpu_share=1.5)], ("train", 47)),
        ([NOISY, None, replace(NOISY, seen_share=0.0)], ("train", 47)),
        ([replace(NOISY, unseen_share=0.5)] * 3, ("", 0)),
        ([replace(NOISY, seen_share=0.05)] * 3, None),
        ([None] * 3, None),
    ],
)
def test_what_disturbed_pairs_is_named(
    works: list[OtherWork | None], named: tuple[str, int] | None, wording: Wording
) -> None:
    """By the name that used the most in all pairs, where all together used enough; or that it cannot be seen."""
    pairs = [builders.pair(ratio, other_work=work) for ratio, work in zip((0.1, -0.1, 0.1), works, strict=True)]
    found = judge_records(pairs, policy(), final=False)
    assert found is not None
    assert isinstance(found.reason, reasons.PairsUndecided)
    work = found.reason.other_work
    assert (None if work is None else (work.process, work.pid)) == named
    assert verdict_lines(found) == wording


def test_pairs_that_several_cpus_run_differ_more(wording: Wording) -> None:
    """The cause says so."""
    unplaced = judge(13, -13, 5, -5, 2, placed=False)
    assert unplaced is not None
    assert verdict_lines(unplaced)[-1] == wording


def test_a_change_under_the_minimum_does_not_fail() -> None:
    """A slowdown of less than so many seconds a call is SAME, and needs no fresh pair; one of more is SLOWER."""
    rules = policy(min_change_s=60e-6)
    assert said(judge(5, 6, 5, rules=rules, base_call_s=1e-3)) == ("SAME", "min_change")
    assert said(judge(5, 6, 5, 5, 5, rules=rules, base_call_s=2e-3)) == ("SLOWER", "live")


def test_what_can_only_be_under_the_minimum_is_same_in_a_strict_run_too() -> None:
    """A wide interval whose every change is under the minimum is no UNDECIDED."""
    assert judge(3, 1, 2) is None
    verdict = judge(3, 1, 2, rules=policy(min_change_s=60e-6))
    assert said(verdict) == ("SAME", "min_change")
    assert verdict is not None
    assert not verdict.fails(strict=True)
    assert verdict.smallest_seen is not None
    assert verdict.smallest_seen >= 0.06
    assert verdict.estimate is not None
    assert verdict.reason == reasons.UnderMinimum(1e-3 * (verdict.estimate.high - 1), 60e-6, at_most=True)
    faster = judge(-2.2, -2, -2.1, rules=policy(min_change_s=60e-6))
    assert faster is not None
    assert faster.reason == reasons.UnderMinimum(0.0, 60e-6, at_most=True)


def test_only_slower_fails() -> None:
    """SLOWER fails unless it is not gated or was accepted; FASTER and SAME never do, UNDECIDED where it is strict."""
    slower, faster, undecided = judge(5, 6, 5, 4, 5), judge(-5, -6, -5, -4, -5), judge(0, 0, final=True)
    assert slower is not None
    assert faster is not None
    assert undecided is not None
    assert [verdict.fails(strict=False) for verdict in (slower, faster, undecided)] == [True, False, False]
    assert [verdict.fails(strict=True) for verdict in (slower, faster, undecided)] == [True, False, True]
    verdict = judge(5, 6, 5, 4, 5, rules=policy(gated=False))
    assert verdict is not None
    assert not verdict.fails(strict=False)


PROMISED = 0.01
SIMULATED = 40_000
KEPT = {name: mc.drawn(noise) for name, noise in (mc.spread((0.005, 0.016)) | mc.SHAPES).items()}  # which has 1 %, too
PAIR_NOISE = mc.GAUSSIAN | mc.OTHER_PAIRS
SOME_NOISE = dict(list(PAIR_NOISE.items())[::3])  # docs/evidence.md has all


@builders.others_are_slow("size", {str(size): size for size in mc.RUN_SIZES})  # those of 5 and of 100 stay
@builders.others_are_slow("noise", SOME_NOISE)
def test_at_most_one_unchanged_run_in_a_hundred_fails(noise: object, size: int) -> None:
    """For runs of 5, 20 and 100 tests, no more tests are SLOWER than where 1 % of runs have such a test."""
    pairs = noise(np.random.default_rng(5), SIMULATED)  # type: ignore[operator]
    alarms = round(SIMULATED * mc.many(size, gives_up=False).judge(pairs).share(Status.SLOWER))
    assert alarms <= allowed_alarms(size)


def allowed_alarms(size: int) -> int:
    """Return how many of the simulated tests are SLOWER by chance where the promise is just kept."""
    return int(scipy.stats.binom.ppf(0.999, SIMULATED, 1 - (1 - PROMISED) ** (1 / size)))


@pytest.mark.parametrize(
    ("size", "placed"),
    [
        pytest.param(size, placed, marks=() if (size, placed) in ((5, True), (100, False)) else pytest.mark.slow)
        for size in mc.RUN_SIZES
        for placed in (True, False)
    ],
)
def test_the_rule_and_its_copy_for_many_tests_agree(size: int, placed: bool) -> None:
    """Sequences of all noises, changed or not, have the same verdict after as many pairs."""
    generator = np.random.default_rng(4)
    pairs = np.concatenate([draw(generator, 2) for draw in PAIR_NOISE.values()])
    pairs += generator.choice([0.0, 0.025, 0.05, 0.1], (len(pairs), 1))
    assert mc.disagreements(pairs, size, placed=placed) == 0


@pytest.mark.slow  # test_the_rule_and_its_copy_for_many_tests_agree has the rule for ten pairs
@pytest.mark.parametrize("placed", [True, False])
def test_the_rule_and_its_copy_agree_on_tests_that_go_on(placed: bool) -> None:
    """In time to spare, both take as many more pairs of an undecided test, and say the same of it."""
    pairs = mc.restless(np.random.default_rng(4), 20)
    assert mc.many(placed=placed).judge_in_time_to_spare(pairs).used.max() > mc.PAIRS
    assert mc.disagreements_in_time_to_spare(pairs, placed=placed) == 0


@builders.others_are_slow("draw", KEPT, of=4)
def test_five_percent_are_found(draw: object) -> None:
    """Of 1000 tests slower by 5 % at least 95 of 100 are SLOWER, and hardly one slower by 10 % is not."""
    pairs = draw(np.random.default_rng(7), 1000)  # type: ignore[operator]
    assert mc.many().judge(pairs + math.log1p(0.05)).share(Status.SLOWER) >= 0.95
    assert mc.many().judge(pairs + math.log1p(0.10)).share(Status.SLOWER) >= 0.999


@pytest.mark.parametrize(("sd", "tolerance"), [(0.001, 0.0017), (0.02, 0.034), (0.001, 0.03), (0.3, 6.0)])
def test_the_slowdown_named_follows_from_a_known_spread(
    monkeypatch: pytest.MonkeyPatch, sd: float, tolerance: float
) -> None:
    """Ten pairs of it are SLOWER with a chance of 98.5 %: it lies 2.17 standard errors over the least such mean."""
    monkeypatch.setattr("pytest_rlperf.judge.live.PLACED_SPREAD", Spread((sd,), (1.0,)))
    verdict = judge(0, 0, 0, rules=policy(tolerance=tolerance))
    assert said(verdict) == ("SAME", "live")
    assert verdict is not None
    assert verdict.smallest_seen is not None
    error = sd / math.sqrt(10)
    least = max(math.log1p(tolerance), math.log1p(tolerance / 2) + 1.1 * scipy.stats.norm.ppf(1 - 0.01 / 5) * error)
    assert math.log1p(verdict.smallest_seen) == pytest.approx(least + scipy.stats.norm.ppf(0.985) * error, rel=1e-4)


def test_an_error_that_all_pairs_share_is_in_the_slowdown_named() -> None:
    """Of 200 tests that are slower by so much at least 95 of 100 are SLOWER; their pairs alone would name less."""
    error, sd = 0.006, 0.004
    unchanged = judge_pairs([sd, -sd, 0.0], Policy(), 1e-3, final=True)
    named = judge_pairs([sd, -sd, 0.0], Policy(tolerance=0.06), 1e-3, final=True, error=error)
    assert unchanged is not None
    assert named is not None
    assert unchanged.smallest_seen is not None
    assert named.smallest_seen is not None
    assert named.smallest_seen > 0.06 > unchanged.smallest_seen
    generator = np.random.default_rng(5)
    changes = math.log1p(named.smallest_seen) + generator.normal(0, error, (200, 1))
    pairs = (changes + generator.normal(0, sd, (200, 11))).tolist()
    found = [judge_pairs(each, Policy(tolerance=0.06), 1e-3, final=True, error=error) for each in pairs]
    assert [each.status for each in found if each is not None].count(Status.SLOWER) >= 190  # 198 to be expected


def test_an_error_that_all_pairs_share_is_the_reason_if_it_is_the_larger_one() -> None:
    """Ten pairs that differ by .3 % do not differ too much."""
    verdict = judge_pairs([0.009, 0.003] * 5, Policy(), 1e-3, final=True, error=0.0105)
    assert said(verdict) == ("UNDECIDED", "moved")


@builders.others_are_slow("sd", {str(sd): sd for sd in (0.01, 0.005, 0.02, 0.05)}, of=4)
def test_the_slowdown_named_is_found_95_times_of_100(sd: float) -> None:
    """Unchanged tests name a slowdown, and fresh tests that are slower by so much are SLOWER."""
    named, share = mc.smallest_found(mc.gaussian(sd), 300, np.random.default_rng(11))
    assert share >= 0.92
    assert named < 0.035 + 4 * sd


@cache
def unchanged(name: str) -> mc.Array:
    """Return 5000 unchanged tests, whose slices are simulated where these differ at all."""
    draw = {"quiet": mc.gaussian(mc.QUIET.pair_sd), "busy": mc.drawn(replace(mc.BUSY, pair_sd=0.005))}[name]
    return draw(np.random.default_rng(9), 5000)


@builders.others_are_slow("count", {str(count): count for count in (1, 3, 10, 5)})
@pytest.mark.parametrize("noise", ["quiet", "busy"])
def test_the_interval_covers_what_it_claims(noise: str, count: int) -> None:
    """Where pairs differ by no more than is expected, the 99 % interval of a number of pairs misses 1 % at most."""
    values = unchanged(noise)[:, :count]
    missed = round(len(values) * (1 - mc.coverage(values)))
    assert missed <= scipy.stats.binom.ppf(0.999, len(values), 0.01)


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


def by_path(parts: tuple[Contribution, ...]) -> dict[str, float]:
    return {part.path: part.change_s for part in parts}


BEFORE = {"sac": 0.05, "sac/actor": 0.30, "sac/critic": 0.60}


def test_the_phase_that_grew_carries_the_change(wording: Wording) -> None:
    """Only what grew is named, at the size of a call, and what no phase accounts for is the rest."""
    after = BEFORE | {"sac/critic": 0.79}
    found = contributions([(BEFORE, after)] * 3, 10e-3, 2.1e-3)
    assert [part.path for part in found] == ["sac/critic", ""]
    assert [part.change_s for part in found] == pytest.approx([1.9e-3, 0.2e-3])
    assert carriers_text(found, carriers(found)) == wording


def test_a_phase_of_one_side_counts_in_full() -> None:
    """New work is a change of all its time, and work that is gone likewise."""
    after = BEFORE | {"sac/new": 0.2}
    assert by_path(contributions([(BEFORE, after)] * 3, 10e-3, 2e-3))["sac/new"] == pytest.approx(2e-3)
    assert by_path(contributions([(after, BEFORE)] * 3, 10e-3, -2e-3))["sac/new"] == pytest.approx(-2e-3)


def test_what_counters_the_change_stands_behind_it(wording: Wording) -> None:
    """The largest in the change's direction comes first; savings in a slowdown come last and are not named."""
    after = {"sac": 0.15, "sac/actor": 0.20, "sac/critic": 0.90}
    found = contributions([(BEFORE, after)] * 3, 10e-3, 3e-3)
    assert [part.path for part in found] == ["sac/critic", "sac", "sac/actor", ""]
    assert carriers_text(found, carriers(found)) == wording


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


def test_too_few_blocks_blame_nobody(wording: Wording) -> None:
    """Two traced blocks have no spread to speak of, and that is said."""
    assert contributions([(BEFORE, {})] * 2, 10e-3, 1e-3) == ()
    assert carriers_text((), carriers(())) == wording
    assert contributions([], 10e-3, 1e-3) == ()


NO_PHASE = carriers_text([Contribution("", 1e-3)], ())


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
        ([0.9], 1.2, NO_PHASE),
        ([-0.5], 2.6, NO_PHASE),
        ([], 2.1, NO_PHASE),
        ([], 0.0, NO_PHASE),
    ],
)
def test_blame_is_told_in_few_words(parts_ms: list[float], rest_ms: float, text: str) -> None:
    """As many phases as carry four fifths of it, three at most, in the change's own unit."""
    named = [Contribution(f"p{number}", part_ms * 1e-3) for number, part_ms in enumerate(parts_ms)]
    parts = [*named, Contribution("", rest_ms * 1e-3)]
    assert carriers_text(parts, carriers(parts)) == (text if text == NO_PHASE else f"{text} a call")
