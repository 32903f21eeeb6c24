"""Statistics as statistics, and what verdicts make of them."""

from __future__ import annotations

import math
from typing import Any

import builders
import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from wording import Wording

from pytest_rlperf.judge.policy import verdict as policy_verdict
from pytest_rlperf.judge.stats import Variance, bound_above, least_student_quantile, welch
from pytest_rlperf.judge.stored import judge_stored, session_variance
from pytest_rlperf.model import reasons
from pytest_rlperf.model.device import DeviceFigures, Disturbance, Pace
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.measured import Figures, Phase, Result, Start
from pytest_rlperf.model.reasons import Code, MachineDifference
from pytest_rlperf.model.stored import SessionFigures, StoredResult, session_figures
from pytest_rlperf.report.wording import verdict_message

figures = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8)


def policy(**changes: Any) -> Policy:
    return Policy(**changes)


def result(
    *relative: float, idle: float = 0.0, items: float = 8.0, unit: str = "env step", memory: float = 1.0
) -> Result:
    """Return a result of workers with these figures relative to kernels of 1 ms, the memory's ``memory`` ms."""
    workers = tuple(
        builders.worker(
            value * 1e-3, value, value / memory, items_per_call=items, calls=1000, idle_cpu_share=idle, seed=index
        )
        for index, value in enumerate(relative)
    )
    phases = (Phase("work", 1.0, 0.9e-3, 0.9e-3, "host"),)
    return builders.result(
        component="vecenv_step", unit=unit, items=items, workers=workers, phases=phases, traced_call_s=1e-3
    )


def judge(base: Result, head: Result, rules: Policy | None = None) -> Verdict:
    """Judge ``head`` against a stored ``base``."""
    return judge_stored(head, builders.stored(base), [], rules or policy())


BASE = result(1.00, 1.01, 0.99, 1.02, 0.98)


def test_welch_agrees_with_scipy() -> None:
    """The interval is scipy's for unequal variances, on logarithms."""
    generator = np.random.default_rng(3)
    base, head = generator.lognormal(0, 0.05, 5), generator.lognormal(0.1, 0.2, 6)
    estimate = welch(list(base), list(head), alpha=0.002)
    reference = scipy.stats.ttest_ind(np.log(head), np.log(base), equal_var=False)
    interval = reference.confidence_interval(0.99)
    assert math.log(estimate.low) == pytest.approx(interval.low)
    assert math.log(estimate.high) == pytest.approx(interval.high)
    one_sided = scipy.stats.ttest_ind(np.log(head), np.log(base), equal_var=False, alternative="greater")
    assert math.log(estimate.floor) == pytest.approx(one_sided.confidence_interval(0.998).low)


@given(base=figures, head=figures)
def test_swapping_sides_mirrors_the_estimate(base: list[float], head: list[float]) -> None:
    """Head over base is the inverse of base over head, bounds and all."""
    one = welch(base, head, alpha=0.01)
    other = welch(head, base, alpha=0.01)
    assert one.ratio == pytest.approx(1 / other.ratio, rel=1e-6)
    # Bounds may lie beyond what a float holds where two figures differ by decades.
    if one.low > 1e-250 and one.high < 1e250:
        assert one.low == pytest.approx(1 / other.high, rel=1e-6)
        assert one.floor == pytest.approx(1 / other.ceiling, rel=1e-6)


@given(
    mean=st.floats(-1, 1), error=st.floats(0, 1), freedom=st.floats(1, 50), alpha=st.floats(1e-5, 0.4),
    least=st.floats(-0.5, 0.5),
)  # fmt: skip
def test_a_bound_is_students_where_it_is_above(
    mean: float, error: float, freedom: float, alpha: float, least: float
) -> None:
    """By scipy's distribution; whether a bound above it settles the question comes first, and changes nothing."""
    bound = mean - float(scipy.stats.t.isf(alpha, freedom)) * error
    if abs(bound - least) > 1e-9:
        expected = pytest.approx(bound, abs=1e-9) if bound > least else None
        assert bound_above(least, mean, error, freedom, alpha) == expected


@given(chance=st.floats(0.5001, 0.9999), freedom=st.floats(1, 1000))
def test_the_least_quantile_is_below_students(chance: float, freedom: float) -> None:
    """So a bound by it is above Student's, and nearly equal where there are many figures."""
    least, exact = least_student_quantile(chance, freedom), float(scipy.stats.t.ppf(chance, freedom))
    assert least < exact
    if freedom > 100:
        assert least == pytest.approx(exact, rel=1e-3)


def test_where_a_bound_that_is_never_below_settles_it_scipy_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scipy takes longer to load than the rest of a run's judging, and flat pairs do not need it."""
    monkeypatch.delattr("pytest_rlperf.judge.stats.student_quantile")
    assert bound_above(0.0, 1.0, 0.42, 2, 0.05) is None
    with pytest.raises(NameError):
        bound_above(0.0, 1.0, 0.41, 2, 0.05)


def test_figures_without_spread_have_an_interval_of_no_width() -> None:
    """Equal figures on each side are no error, also where they are 1, whose logarithms are exact."""
    for ratio in (1.0, 1.5):
        estimate = welch([1.0] * 5, [ratio] * 5, alpha=0.01)
        assert (estimate.low, estimate.ratio, estimate.high) == pytest.approx((ratio, ratio, ratio))


def test_sessions_that_differ_widen_the_interval_of_two_figures_a_side() -> None:
    """The squared error has the sessions' variance twice, once a side, with its own degrees of freedom."""
    base, head = [1.0, math.exp(0.2)], [math.exp(0.3), math.exp(0.5)]
    parts = [(0.01, 1.0), (0.01, 1.0), (2 * 0.04, 4.0)]
    squared = sum(value for value, _ in parts)
    freedom = squared**2 / sum(value**2 / each for value, each in parts)
    estimate = welch(base, head, alpha=0.002, between=Variance(0.04, 4.0))
    assert math.log(estimate.ratio) == pytest.approx(0.3)
    assert math.log(estimate.high) == pytest.approx(0.3 + scipy.stats.t.ppf(0.995, freedom) * math.sqrt(squared))
    assert math.log(estimate.floor) == pytest.approx(0.3 - scipy.stats.t.ppf(0.998, freedom) * math.sqrt(squared))


def test_one_figure_is_no_sample(wording: Wording) -> None:
    """A single worker has no spread to judge by."""
    with wording.raises(ValueError):
        welch([1.0], [1.0, 1.0], alpha=0.01)


@pytest.mark.parametrize(("base_sd", "head_sd"), [(0.01, 0.10)])
def test_the_interval_covers_what_it_claims(base_sd: float, head_sd: float) -> None:
    """Of 4000 simulated comparisons the 99 % interval misses the true ratio in 1 %, give or take chance."""
    generator = np.random.default_rng(11)
    runs, truth = 4000, 1.1
    missed = 0
    for _ in range(runs):
        base = generator.lognormal(0, base_sd, 5)
        head = generator.lognormal(math.log(truth), head_sd, 5)
        estimate = welch(list(base), list(head), alpha=0.01)
        missed += not estimate.low < truth < estimate.high
    # 1 % of 4000 is 40 with a standard error of 6.3; Welch's approximation may lie a little beside its nominal level.
    assert 15 <= missed <= 65


def noisy_session(generator: np.random.Generator, sd: float, factor: float = 1.0) -> Result:
    """Return a session of five workers with a spread of their own, a tenth of them in a slow mode, and heavy tails."""
    spread = sd * generator.standard_t(4, 5) / math.sqrt(2)
    slow = np.where(generator.random(5) < 0.1, 1 + 2 * sd, 1.0)
    return result(*(factor * slow * np.exp(spread)))


def test_a_doubled_time_is_found_where_the_machine_allows() -> None:
    """At a spread of 4 % a doubled time is SLOWER in at least 95 of 100 runs; the reason names the smallest seen."""
    generator = np.random.default_rng(6)
    rules = policy(tests=5)
    verdicts = [judge(noisy_session(generator, 0.04), noisy_session(generator, 0.04, 2.0), rules) for _ in range(200)]
    assert sum(verdict.status is Status.SLOWER for verdict in verdicts) >= 190


def session(
    relative: float, *, same_code: bool = True, clock: str = "wall", squares: float = 0.0, memory: float = 1.0
) -> SessionFigures:
    """Return a session's figures relative to the kernels, the memory's being ``memory`` times as slow."""
    return SessionFigures("s", relative, relative / memory, squares, squares, same_code, clock)


def test_without_sessions_the_prior_is_all_there_is() -> None:
    """A single session has no spread either."""
    for history in ((), (session(1.0),), (session(1.0), session(2.0, same_code=False))):
        assert session_variance(history, "wall", "relative") == pytest.approx((0.03**2, 4.0))


def test_the_spread_is_learned_from_sessions_of_equal_code() -> None:
    """Each group of equally fast code has a mean of its own; each session beyond its first is a degree of freedom."""
    step = math.exp(0.1)
    history = (
        session(1.0, same_code=False),
        session(step, memory=step),
        session(2.0, same_code=False),
        session(2.0 * step),
        session(2.0 * step**2, clock="cpu"),
        session(2.0 / step),
    )
    squares = 2 * 0.05**2 + 2 * 0.1**2
    assert session_variance(history, "wall", "relative") == pytest.approx(((4 * 0.03**2 + squares) / 7, 7.0))
    memory = session_variance(history, "wall", "relative_memory")
    assert memory == pytest.approx(((4 * 0.03**2 + 2 * 0.1**2) / 7, 7.0))
    assert session_variance(history, "cpu", "relative") == pytest.approx((0.03**2, 4.0))


def test_the_spread_of_workers_is_not_counted_twice() -> None:
    """The part of the means' deviations that the workers explain is theirs; no more than all is taken away."""
    step = math.exp(0.1)
    spread = 20 * 0.001  # of five workers: a variance of .001 of their mean
    history = (session(1.0, squares=spread), session(step, squares=spread))
    assert session_variance(history, "wall", "relative").value == pytest.approx((4 * 0.03**2 + 0.005 - 0.001) / 5)
    restless = (session(1.0, squares=1.0), session(step, squares=1.0))
    assert session_variance(restless, "wall", "relative").value == pytest.approx(4 * 0.03**2 / 5)


def simulated(generator: np.random.Generator, between: float, within: float, sessions: int) -> StoredResult:
    """Return a baseline after so many sessions of equal code, which spread between and within themselves."""
    results = [
        result(*np.exp(between * generator.standard_normal() + within * generator.standard_normal(5)))
        for _ in range(sessions)
    ]
    history = tuple(session_figures(each, str(number), same_code=True) for number, each in enumerate(results))
    return builders.stored(results[-1], history=history)


@pytest.mark.parametrize(
    ("between", "within", "sessions", "missed_most"),
    [(0.05, 0.005, 1, 0.01), (0.10, 0.005, 10, 0.02)],
)
def test_stored_intervals_cover_what_they_claim(
    between: float, within: float, sessions: int, missed_most: float
) -> None:
    """Of 1000 comparisons of unchanged code the 99 % interval misses at most 1 %, give or take chance.

    With one session the prior has to cover 5 %, as measured between sessions; with ten they show their own spread.
    Where they are 10 % apart, the prior of 3 % makes it 98 %.
    """
    generator = np.random.default_rng(17)
    runs, missed = 1000, 0
    for _ in range(runs):
        stored = simulated(generator, between, within, sessions)
        head = simulated(generator, between, within, 1).result
        estimate = judge_stored(head, stored, [], policy()).estimate
        assert estimate is not None
        missed += not estimate.low < 1 < estimate.high
    assert missed <= runs * missed_most + 3 * math.sqrt(runs * missed_most)


@pytest.mark.parametrize("sessions", [1, 10])
def test_sessions_that_differ_acquit_no_slowdown_and_convict_nobody(sessions: int) -> None:
    """Sessions 5 % apart: a true +5 % is never SAME at 3 %, and unchanged tests are not SLOWER in runs of five."""
    generator = np.random.default_rng(19)
    rules, slower = policy(tests=5), 0
    for _ in range(600):
        stored = simulated(generator, 0.05, 0.01, sessions)
        head = simulated(generator, 0.05, 0.01, 1).result
        slower += judge_stored(head, stored, [], rules).status is Status.SLOWER
        times = result(*(1.05 * worker.wall.relative for worker in head.workers))
        assert judge_stored(times, stored, [], rules).status is not Status.SAME
    assert slower <= 3  # .2 % of tests are 1 % of runs


def test_no_tolerance_is_widened(wording: Wording) -> None:
    """Two sessions differ by more than 3 % by themselves, so equal figures show nothing within that, or within 10 %."""
    for rules in (policy(), policy(tolerance=0.1)):
        verdict = judge(BASE, BASE, rules)
        assert (verdict.status, verdict.reason.code) == (Status.UNDECIDED, "spread")
    assert verdict_message(judge(BASE, BASE)) == wording


def test_slower_needs_the_estimate_over_the_tolerance_and_its_bound_over_half(wording: Wording) -> None:
    """19 % is not SLOWER however sure, 30 % is, and 30 % is not when it is not sure."""
    assert judge(BASE, result(*(1.19 * w.wall.relative for w in BASE.workers))).status is Status.UNDECIDED
    slower = judge(BASE, result(*(1.30 * w.wall.relative for w in BASE.workers)))
    assert slower.status is Status.SLOWER
    assert slower.fails(strict=False)
    assert verdict_message(slower) == wording
    unsure = judge(BASE, result(0.9, 1.1, 1.3, 1.6, 1.9))
    assert unsure.status is Status.UNDECIDED
    assert not unsure.fails(strict=False)
    assert unsure.fails(strict=True)


def test_what_may_be_slower_is_suspect() -> None:
    """An estimate over the tolerance is suspect, surely or not: it must not become the baseline unasked."""
    assert judge(BASE, result(0.9, 1.1, 1.3, 1.6, 1.9)).suspect
    assert judge(BASE, result(*(1.30 * w.wall.relative for w in BASE.workers))).suspect
    assert not judge(BASE, BASE).suspect
    rules = policy()
    at_most, over = builders.estimate(1 + rules.tolerance), builders.estimate(1.001 + rules.tolerance)
    found = [
        policy_verdict(rules, Status.UNDECIDED, reasons.NoBaseline(stores=False), each).suspect
        for each in (at_most, over)
    ]
    assert found == [False, True]


def test_undecided_names_the_smallest_slowdown_it_could_have_seen() -> None:
    """A slowdown a little over the named one is SLOWER with the same spread, one a little under is not."""
    spread = (0.80, 0.90, 1.0, 1.11, 1.25)
    undecided = judge(result(*spread), result(*spread))
    assert undecided.status is Status.UNDECIDED
    assert isinstance(undecided.reason, reasons.StoredSpread)
    smallest = undecided.smallest_seen
    assert smallest is not None
    assert smallest > 0.2
    over = judge(result(*spread), result(*((1 + smallest) * 1.01 * value for value in spread)))
    under = judge(result(*spread), result(*((1 + smallest) * 0.99 * value for value in spread)))
    assert (over.status, under.status) == (Status.SLOWER, Status.UNDECIDED)


def test_a_slowdown_that_the_memory_shares_convicts_nobody_but_beyond_it_does(wording: Wording) -> None:
    """Where the memory kernel has slowed down alike, nobody knows which is to blame; what is beyond is slower."""
    slower = [1.4 * worker.wall.relative for worker in BASE.workers]
    assert judge(BASE, result(*slower)).status is Status.SLOWER
    verdict = judge(BASE, result(*slower, memory=1.4))
    assert (verdict.status, verdict.reason.code) == (Status.UNDECIDED, "spread")
    assert isinstance(verdict.reason, reasons.StoredPaces)
    assert astuple(verdict.reason)[:2] == (pytest.approx(1.4), pytest.approx(1.0))
    assert verdict_message(verdict) == wording
    assert not verdict.fails(strict=False)
    verdict = judge(BASE, result(*(3 * worker.wall.relative for worker in BASE.workers), memory=1.5))
    assert verdict.status is Status.SLOWER


def test_the_sharper_pace_says_how_surely() -> None:
    """Both paces must say that it is much; that the restless one's interval is wide does not acquit."""
    doubled = result(*(2 * worker.wall.relative for worker in BASE.workers), memory=1.3)
    restless = tuple(
        replace(worker, wall=replace(worker.wall, relative_memory=worker.wall.relative_memory * factor))
        for worker, factor in zip(doubled.workers, (0.7, 1.4, 1.0, 0.8, 1.25), strict=True)
    )
    verdict = judge(BASE, replace(doubled, workers=restless))
    assert verdict.status is Status.SLOWER
    assert verdict.estimate is not None
    assert verdict.estimate.ratio == pytest.approx(2.0)


def test_a_faster_memory_makes_nothing_faster() -> None:
    """FASTER needs both paces too; what one calls faster and the other the same is certainly no slowdown."""
    faster = [worker.wall.relative / 1.4 for worker in BASE.workers]
    rules = policy(tolerance=0.25)
    assert judge(BASE, result(*faster), rules).status is Status.FASTER
    assert judge(BASE, result(*faster, memory=1 / 1.4), rules).status is Status.SAME


def test_the_error_rate_is_the_runs() -> None:
    """What convicts one test of one may not convict one of a thousand; one of twenty has the bounds of a twentieth."""
    head = result(1.20, 1.25, 1.30, 1.35, 1.40)
    assert judge(BASE, head, policy(tests=1)).status is Status.SLOWER
    assert judge(BASE, head, policy(tests=1000)).status is Status.UNDECIDED
    head = result(1.20, 1.25, 1.30, 1.35, 1.40)
    of_twenty, single = judge(BASE, head, policy(tests=20)), judge(BASE, head, policy(alpha=0.01 / 20))
    assert of_twenty.estimate == single.estimate
    assert of_twenty.estimate != judge(BASE, head).estimate


@pytest.mark.parametrize("factor", [1.15, 1.25, 1.4])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.05, 0.08, 0.12, 0.3])
def test_a_change_is_one_by_its_estimate_and_its_bound(factor: float, spread: float) -> None:
    """SLOWER takes an estimate over 20 % and a bound over 10 %; FASTER is its mirror image."""
    head = result(*(factor * math.exp(spread * part) for part in (-1.0, -0.5, 0.0, 0.5, 1.0)))
    slower, faster = judge(BASE, head), judge(head, BASE)
    assert slower.estimate is not None
    assert faster.estimate is not None
    is_sure = slower.estimate.ratio > 1.2 and slower.estimate.floor > 1.1
    assert slower.status is (Status.SLOWER if is_sure else Status.UNDECIDED)
    assert faster.status is (Status.FASTER if is_sure else Status.UNDECIDED)
    assert is_sure == (faster.estimate.ratio < 1 / 1.2 and faster.estimate.ceiling < 1 / 1.1)


def test_paces_that_differ_decide_nothing() -> None:
    """What is the same by one pace and slower by the other, or faster and slower, is UNDECIDED."""
    rules = policy(tolerance=0.25)
    steady = [worker.wall.relative for worker in BASE.workers]
    for head in (result(*steady, memory=1 / 1.4), result(*(value / 1.3 for value in steady), memory=1 / 1.69)):
        verdict = judge(BASE, head, rules)
        assert (verdict.status, verdict.reason.code) == (Status.UNDECIDED, "spread")
        assert isinstance(verdict.reason, reasons.StoredPaces)


def test_a_tolerance_that_was_asked_for_binds_and_never_convicts_under_20_percent() -> None:
    """A tolerance of 1 % makes SAME harder to say and SLOWER no easier; one of 60 % lets 30 % pass."""
    nearly = result(*(1.05 * w.wall.relative for w in BASE.workers))
    assert judge(BASE, nearly, policy(tolerance=0.01)).status is Status.UNDECIDED
    much = result(*(1.30 * w.wall.relative for w in BASE.workers))
    assert judge(BASE, much, policy(tolerance=0.6)).status is Status.SAME


def test_a_change_under_the_minimum_does_not_fail() -> None:
    """A test may say from how many seconds a call on a slowdown matters."""
    head = result(*(1.5 * w.wall.relative for w in BASE.workers))
    assert judge(BASE, head, policy(min_change_s=0.4e-3)).status is Status.SLOWER
    verdict = judge(BASE, head, policy(min_change_s=0.6e-3))
    assert (verdict.status, verdict.reason.code) == (Status.SAME, "min_change")
    assert isinstance(verdict.reason, reasons.UnderMinimum)
    assert astuple(verdict.reason) == (pytest.approx(0.5e-3), 0.6e-3, False)
    exactly = policy(min_change_s=verdict.reason.change_s)
    assert judge(BASE, head, exactly).status is Status.SLOWER


def test_what_is_not_gated_does_not_fail() -> None:
    """The verdict is told all the same."""
    head = result(*(2 * w.wall.relative for w in BASE.workers))
    verdict = judge(BASE, head, policy(gated=False))
    assert verdict.status is Status.SLOWER
    assert not verdict.fails(strict=False)


def test_no_baseline_is_new_and_another_machine_is_incomparable(wording: Wording) -> None:
    """Both pass, unless a strict run asked for a comparison."""
    new = judge_stored(BASE, None, [], policy())
    other = judge_stored(BASE, None, [[MachineDifference("cpu", "Neoverse", "EPYC")]], policy())
    assert (new.status, other.status) == (Status.NEW, Status.INCOMPARABLE)
    assert verdict_message(other) == wording
    assert [verdict.fails(strict) for verdict in (new, other) for strict in (False, True)] == [False, True] * 2


@pytest.mark.parametrize("head", [result(1.0, 1.0, items=64.0), result(1.0, 1.0, unit="transition")])
def test_another_workload_is_incomparable(head: Result) -> None:
    """A test that now processes other items is not slower or faster."""
    assert judge(BASE, head).status is Status.INCOMPARABLE


def test_cpu_time_decides_only_where_it_may_on_both_sides() -> None:
    """A head that was held up is not slower by CPU time; a base told by the wall's clock is compared by that."""
    held_up = tuple(
        replace(worker, alone=True, wall=Figures(*(1.5 * value for value in astuple(worker.wall))))
        for worker in BASE.workers
    )
    alone = replace(BASE, workers=tuple(replace(worker, alone=True) for worker in BASE.workers))
    rules = policy(tolerance=0.25)
    assert judge(alone, replace(BASE, workers=held_up), rules).status is Status.SAME
    assert judge(BASE, replace(BASE, workers=held_up), rules).status is Status.SLOWER


def test_another_average_is_incomparable() -> None:
    """A median is not compared with a mean."""
    means = replace(BASE, workers=tuple(replace(worker, long=True) for worker in BASE.workers))
    found = judge(BASE, means, policy(stores=True))
    expected = reasons.Incomparable(
        Code.WORKLOAD, "the figure of a slice", "its median round", "its mean round", None, stores=True
    )
    assert (found.status, found.reason) == (Status.INCOMPARABLE, expected)


def test_another_kind_of_processes_is_incomparable() -> None:
    """Forked processes and new interpreters differ from each other by more than from their own kind."""
    found = judge(BASE, replace(BASE, start=Start.FORKED), policy(stores=True))
    expected = reasons.Incomparable(Code.WORKLOAD, "the start of processes", "fresh", "forked", None, stores=True)
    assert (found.status, found.reason) == (Status.INCOMPARABLE, expected)


def phases(*self_s: float, traced_call_s: float = 1e-3) -> Result:
    found = tuple(Phase(f"phase {index}", 1, each_s, each_s, "host") for index, each_s in enumerate(self_s))
    return replace(BASE, phases=found, traced_call_s=traced_call_s)


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (result(1.0, 1.0, idle=0.05), "background"),
        (result(1.0, 1.0, idle=0.02), None),
        (phases(0.8e-3, 0.4e-3), "phases"),
        (phases(1.02e-3), None),
        (phases(1.0, traced_call_s=0.0), None),
    ],
    ids=["busy", "hardly busy", "over the call", "hardly over it", "not timed"],
)
def test_background_work_and_phases_over_the_whole_are_invalid(head: Result, code: str | None) -> None:
    """A busy worker spoils the others' figures, and what is longer than the call was not timed within it.

    Two hundredths, of a CPU or over the call, are allowed.
    """
    verdict = judge(BASE, head)
    assert (verdict.status is Status.INVALID) == (code is not None)
    assert code in (None, verdict.reason.code)


DEVICE = DeviceFigures("cuda:0 Made Up", Pace.LATENCY, 1e-3, 1e-3, None, 0, 0.0, {"tf32": "on"}, None, 0, ())


def on_device(*figures: DeviceFigures | None) -> Result:
    """Return a result whose workers have these figures on their devices."""
    pairs = zip(BASE.workers, figures, strict=False)
    return replace(BASE, workers=tuple(replace(worker, device=each) for worker, each in pairs))


def test_one_disturbed_worker_makes_a_result_invalid() -> None:
    """The figures on its device are worthless, with what disturbed them."""
    recompiled = Disturbance(recompiled=True)
    verdict = judge(on_device(DEVICE, DEVICE), on_device(DEVICE, replace(DEVICE, disturbances=(recompiled,))))
    assert (verdict.status, verdict.reason) == (
        Status.INVALID,
        reasons.DeviceDisturbed("cuda:0 Made Up", (recompiled,)),
    )


@pytest.mark.parametrize(
    ("was", "now", "difference"),
    [
        (None, None, None),
        (DEVICE, DEVICE, None),
        (DEVICE, None, ("the device", "cuda:0 Made Up", "the host")),
        (None, DEVICE, ("the device", "the host", "cuda:0 Made Up")),
        (DEVICE, replace(DEVICE, device="cuda:1 Made Up"), None),
        (DEVICE, replace(DEVICE, device="mps:0 Other"), ("the device", "cuda:0 Made Up", "mps:0 Other")),
        (DEVICE, replace(DEVICE, gated=Pace.STEADY), ("the time that is judged", "latency", "steady")),
        (
            DEVICE,
            replace(DEVICE, flags={"tf32": "off", "more": "on"}),
            ("the device's settings", "tf32=on, more=unknown", "tf32=off, more=on"),
        ),
    ],
)
def test_figures_of_another_device_are_incomparable(
    was: DeviceFigures | None, now: DeviceFigures | None, difference: tuple[str, str, str] | None
) -> None:
    """Another kind of device, pace or setting is named; which of several equal devices it was does not matter."""
    verdict = judge(on_device(was, was), on_device(now, now))
    assert (verdict.status is Status.INCOMPARABLE) == (difference is not None)
    assert difference is None or verdict.reason == reasons.Incomparable(Code.DEVICE, *difference, None, stores=False)


def test_one_worker_is_too_few() -> None:
    """A run cut short says so instead of guessing."""
    verdict = judge(BASE, result(3.0))
    assert (verdict.status, verdict.reason) == (Status.UNDECIDED, reasons.TooFewWorkers(1, 5))
    two = judge(result(1.0, 1.001), result(1.0, 1.001), policy(tolerance=0.5))
    assert two.status is Status.SAME
