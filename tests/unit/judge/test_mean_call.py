"""The mean call: what rare calls of the code add is in it, and what the machine adds is not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import builders
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from wording import Wording

from pytest_rlperf.judge.live import judge_records
from pytest_rlperf.judge.mean_call import MeanCalls, with_mean_calls
from pytest_rlperf.model.judged import Outcome, Policy, Status
from pytest_rlperf.model.live import Live, PairRecord, RareCalls, are_unrepeated, log_ratios
from pytest_rlperf.model.measured import Rounds
from pytest_rlperf.model.reasons import Code
from pytest_rlperf.pair.turns import LogRatios
from pytest_rlperf.report.tables import verdict_table
from pytest_rlperf.report.wording import message, rare_text

SLICES, ROUNDS, USUAL_NS = 20, 80, 90_000
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]
Times = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # of the calls of these numbers, as multiples of the usual


def steady(generator: np.random.Generator, rounds: int) -> NDArray[np.float64]:
    """Return the times of rounds on a quiet machine, which differ by a few percent."""
    return generator.normal(1.0, 0.03, rounds)


def shared(generator: np.random.Generator, rounds: int) -> NDArray[np.float64]:
    """Return them on a CPU that others use: one round of fifty waits for a turn of theirs, and stretches are slower."""
    held_up = 40 * (generator.random(rounds) < 0.02)
    pace = np.repeat(1 + 0.3 * (generator.random(rounds // ROUNDS) < 0.3), ROUNDS)
    return steady(generator, rounds) * pace + held_up


def process(seed: int, noise: Noise, times: Times, start: int = 100, iterations: int = 1) -> Rounds:
    """Return the rounds of a process, whose calls take ``times`` as long as usual."""
    rounds = SLICES * ROUNDS
    calls = start + np.arange(rounds * iterations).reshape(rounds, iterations)
    taken = times(calls).mean(axis=1) * noise(np.random.default_rng(seed), rounds)
    starts = tuple(calls[::ROUNDS, 0].tolist())
    return Rounds(iterations, starts, tuple((USUAL_NS * taken).astype(int).tolist()), is_mean=False)


def compared(base: Times, head: Times, noise: Noise, pairs: int = 3) -> list[PairRecord]:
    """Return pairs whose typical calls take as long on both sides."""
    rounds = [[process(2 * pair, noise, base), process(2 * pair + 1, noise, head)] for pair in range(pairs)]
    return MeanCalls(rounds).added_to([builders.pair(0.0)] * pairs)


def each(period: int, dear: float) -> Times:
    """Return the times of calls, one of ``period`` of which takes ``dear`` times as long as the others."""
    return lambda calls: np.where(calls % period, 1.0, dear)


@pytest.mark.parametrize("noise", [steady, shared])
@pytest.mark.parametrize(
    ("base", "head", "change"),
    [
        pytest.param(each(50, 20.0), each(50, 20.0), 0.0, id="unchanged"),
        pytest.param(each(50, 20.0), each(50, 26.0), 6 / (50 + 19), id="one call of fifty 30 % dearer"),
        pytest.param(each(1, 1.0), each(12, 4.0), 3 / 12, id="every twelfth call does more"),
        pytest.param(each(1, 1.0), each(400, 200.0), 199 / 400, id="one call of four hundred"),
        pytest.param(each(60, 1000.0), each(60, 2.0), -998 / 1059, id="a reset that got faster"),
    ],
)
def test_rare_calls_are_in_the_change(base: Times, head: Times, change: float, noise: Noise) -> None:
    """The change is that of all time over all calls, on a quiet machine and on one that others use."""
    for ratio in log_ratios(compared(base, head, noise)):
        assert math.expm1(ratio) == pytest.approx(change, abs=0.02, rel=0.1)


def test_a_change_of_typical_calls_is_one_of_the_mean_call_too() -> None:
    """What rare calls add comes to what typical ones have changed by."""
    pairs = compared(each(50, 20.0), each(50, 26.0), steady)
    slower = [replace(pair, wall_log_ratio=0.1, cpu_log_ratio=0.1) for pair in pairs]
    for ratio, more in zip(log_ratios(pairs), log_ratios(slower), strict=True):
        assert more == pytest.approx(ratio + 0.1)


def test_the_machine_alone_changes_nothing() -> None:
    """Sixty comparisons of equal code on a shared CPU: what rounds add differs by under one percent."""
    errors: list[float] = []
    for seed in range(60):
        rounds = [
            [process(10_000 * seed + 2 * pair + side, shared, each(1, 1.0)) for side in (0, 1)] for pair in range(3)
        ]
        errors += log_ratios(MeanCalls(rounds).added_to([builders.pair(0.0)] * 3))
    assert np.std(errors) < 0.01
    assert abs(np.mean(errors)) < 0.002


def jumping(generator: np.random.Generator, rounds: int = 16) -> Rounds:
    """Return long calls, one in a slice, of a process that stretches of a busy machine slow by a tenth to a quarter."""
    slow, taken = generator.random() < 0.3, []
    for _ in range(rounds):
        if generator.random() < 1 / 3:  # a stretch ends
            slow = generator.random() < 0.3
        taken.append((1 + 0.2 * slow * generator.uniform(0.6, 1.2)) * math.exp(generator.normal(0, 0.02)))
    return Rounds(1, tuple(range(100, 100 + rounds)), tuple(int(1e7 * each) for each in taken), is_mean=True)


def test_a_pace_that_jumps_adds_little_where_long_calls_are_few() -> None:
    """In one of six sides of four processes, chance makes a call expensive; the others still take the usual time."""
    errors: list[float] = []
    for seed in range(100):
        generator = np.random.default_rng(seed)
        rounds = [[jumping(generator), jumping(generator)] for _ in range(4)]
        errors += log_ratios(MeanCalls(rounds).added_to([builders.pair(0.0)] * 4))
    assert np.std(errors) < 0.006


def in_turn(generator: np.random.Generator, costs: Sequence[float], calls: int) -> Rounds:
    """Return long calls, one in a slice, which take these times in turn."""
    taken = (costs[call % len(costs)] * math.exp(generator.normal(0, 0.01)) for call in range(calls))
    return Rounds(1, tuple(range(calls)), tuple(int(1e7 * each) for each in taken), is_mean=True)


def compared_in_turn(base: Sequence[float], head: Sequence[float], calls: int) -> tuple[float, ...]:
    """Return the log-ratios of six pairs, whose first turns are the base's and the head's by turns."""
    generator, rounds, pairs = np.random.default_rng(1), list[list[Rounds]](), list[PairRecord]()
    for pair in range(6):
        rounds.append([in_turn(generator, costs, calls) for costs in (base, head)])
        ours, theirs = (np.log(side.rounds_ns) for side in rounds[-1])
        between = theirs[1:] - ours[:-1] if pair % 2 else theirs[:-1] - ours[1:]
        typical = LogRatios((theirs - ours).tolist(), between.tolist()).figure()
        pairs.append(builders.pair(typical, total_log_ratio=float(np.log(sum(np.exp(theirs)) / sum(np.exp(ours))))))
    return log_ratios(MeanCalls(rounds).added_to(pairs))


@pytest.mark.parametrize("calls", [16, 40])
@pytest.mark.parametrize("costs", [(1, 2), (1, 9), (1, 2, 4), (1, 1, 4, 2)])
def test_calls_that_differ_in_turn_are_compared_with_the_same_calls(costs: Sequence[float], calls: int) -> None:
    """As of updates of which every second one trains the actor, too: pairs of equal code differ by the noise alone."""
    ratios = compared_in_turn(costs, costs, calls)
    assert max(map(abs, ratios)) < 0.02


@pytest.mark.parametrize("calls", [16, 40])
@pytest.mark.parametrize("costs", [(1, 2), (1, 3), (1, 9)])
def test_calls_that_differ_in_turn_take_their_average(costs: Sequence[float], calls: int) -> None:
    """The other side does as much in each call."""
    ratios = compared_in_turn(costs, [sum(costs) / len(costs)], calls)
    assert max(map(abs, ratios)) < 0.025


def by_chance(seed: int, share: float, dear: float) -> Times:
    """Return the times of calls, a share of which is dear by the seed's chance."""
    is_dear = np.random.default_rng(seed).random(10_000) < share
    return lambda calls: np.where(is_dear[calls], dear, 1.0)


@pytest.mark.parametrize(("period", "dear"), [pytest.param(100, 50.0, marks=pytest.mark.slow), (40, 10.0)])
def test_dear_calls_that_come_at_other_calls_have_an_error_that_pairs_share(period: int, dear: float) -> None:
    """Forty comparisons of environments that differ by their seeds: the error is as large as their changes are."""
    found = [
        compared(by_chance(2 * seed, 1 / period, dear), by_chance(2 * seed + 1, 1 / period, dear), steady)
        for seed in range(40)
    ]
    changes = [statistics.fmean(log_ratios(pairs)) for pairs in found]
    errors = [pairs[0].moved_error for pairs in found]
    assert np.std(changes) == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=0.3)
    verdicts = [judge_records(pairs, Policy(), final=True) for pairs in found]
    assert {verdict.status for verdict in verdicts if verdict is not None} <= {Status.SAME, Status.UNDECIDED}
    reason = next(each.reason for each in verdicts if each is not None and each.status is Status.UNDECIDED)
    assert reason.code is Code.MOVED


def by_own_chance(
    comparison: int, base: tuple[float, float], head: tuple[float, float], pairs: int = 3, *, by_cpu: bool = True
) -> list[list[Rounds]]:
    """Return rounds of pairs with calls that are dear by each process's own chance: a side's share, and times."""
    seeds = [[2 * (pairs * comparison + pair) + side for side in range(2)] for pair in range(pairs)]
    return [
        [
            replace(process(seed, steady, by_chance(seed, share, dear)), by_cpu=by_cpu)
            for seed, (share, dear) in zip(pair, (base, head), strict=True)
        ]
        for pair in seeds
    ]


@pytest.mark.parametrize(
    ("share", "dear"), [pytest.param(0.01, 50.0, marks=pytest.mark.slow), (0.05, 10.0), (0.05, 2.0)]
)
def test_dear_calls_of_each_processs_own_chance_are_in_its_mean_call(share: float, dear: float) -> None:
    """Forty comparisons of equal code without a seed: pairs differ as their total times do, and none is SLOWER."""
    own = share, dear
    for comparison in range(40):
        rounds = by_own_chance(comparison, own, own)
        totals = [math.log(sum(head.rounds_ns) / sum(base.rounds_ns)) for base, head in rounds]
        means = MeanCalls(rounds)
        pairs = means.added_to([builders.pair(0.0)] * 3)
        assert log_ratios(pairs) == pytest.approx(totals, abs=0.01)
        verdict = judge_records(pairs, Policy(), final=True)
        assert verdict is not None
        assert verdict.status in (Status.SAME, Status.UNDECIDED)
        assert means.are_few, "more calls make pairs differ by less"


@pytest.mark.parametrize(
    ("base", "head"),
    [((0.025, 2.0), (0.065, 2.0)), ((0.02, 5.0), (0.04, 5.0)), ((0.0, 1.0), (0.04, 3.0))],
    ids=["more often", "twice as often", "new"],
)
def test_dear_calls_that_come_more_often_by_chance_are_found(
    base: tuple[float, float], head: tuple[float, float]
) -> None:
    """Slowdowns of 4 to 8 % by calls that no two processes have in common: none of twenty comparisons is SAME."""
    verdicts = []
    for comparison in range(20):
        records = [replace(builders.pair(0.0), loader=number) for number in range(10)]
        pairs = MeanCalls(by_own_chance(comparison, base, head, pairs=10)).added_to(records)
        verdicts.append(judge_records(pairs, Policy(), final=True))
    statuses = [verdict.status for verdict in verdicts if verdict is not None]
    assert Status.SAME not in statuses
    assert statuses.count(Status.SLOWER) >= 15


def test_what_only_the_machine_does_is_in_no_mean_call() -> None:
    """Times that are not the CPU's say nothing of chance; nor do a few expensive rounds of a process, or noise."""
    own = 0.05, 10.0
    for rounds in (by_own_chance(0, own, own, by_cpu=False), by_own_chance(0, (0.001, 40.0), (0.001, 40.0))):
        assert log_ratios(MeanCalls(rounds).added_to([builders.pair(0.0)] * 3)) == pytest.approx([0.0] * 3, abs=0.003)


@pytest.mark.parametrize(
    ("base", "head"),
    [
        pytest.param(each(50, 20.0), each(50, 26.0), id="dearer"),
        pytest.param(each(1, 1.0), each(12, 4.0), id="new"),
        pytest.param(each(400, 200.0), each(1, 1.0), id="gone"),
    ],
)
def test_dear_calls_that_have_not_moved_have_none(base: Times, head: Times) -> None:
    """What comes at the same calls, is new or gone is no matter of chance."""
    assert [pair.moved_error for pair in compared(base, head, steady)] == [0.0] * 3


def test_dear_calls_that_come_evenly_show_how_much_more_often() -> None:
    """Episodes of 10 steps for those of 12, by the resets of both."""
    pairs = compared(each(12, 20.0), each(10, 20.0), steady)
    change = math.log((1 + 19 / 10) / (1 + 19 / 12))
    assert statistics.fmean(log_ratios(pairs)) == pytest.approx(change, rel=0.1)
    assert pairs[0].moved_error < change / 3


@pytest.mark.parametrize(("period", "few"), [(1, False), (20, False), (500, True), (5000, False)])
def test_few_rare_calls_are_told_from_many_and_none(period: int, few: bool) -> None:
    """Of 1,600 calls three or none are rare, or more than it takes."""
    rounds = [
        [process(2 * pair, steady, each(1, 1.0)), process(2 * pair + 1, steady, each(period, 20.0))]
        for pair in range(3)
    ]
    assert MeanCalls(rounds).are_few == few
    assert not MeanCalls([[None, None]]).are_few
    assert not MeanCalls([]).are_few


def test_processes_that_made_other_calls_show_no_mean_call() -> None:
    """A round has no other to be compared with where no process made the same calls."""
    apart = [process(seed, steady, each(50, 20.0), start=100_000 * seed) for seed in range(3)]
    assert with_mean_calls([builders.worker()] * 3, apart) == [builders.worker()] * 3


def test_processes_that_began_sooner_or_later_have_calls_in_common() -> None:
    """Slices have the same calls by number; a process that has none of them is taken for one like the others."""
    starts = (100, 100 + 3 * ROUNDS, 100 + 5 * ROUNDS, 100_000)
    rounds = [process(seed, steady, each(50, 20.0), start=start) for seed, start in enumerate(starts)]
    found = [worker.rare for worker in with_mean_calls([builders.worker()] * 4, rounds)]
    assert found == [pytest.approx(1 + 19 / 50, rel=0.02)] * 4


@pytest.mark.parametrize("rounds", [[None, None], [process(1, steady, each(50, 20.0))]], ids=["a device", "one"])
def test_a_mean_call_is_unknown_without_rounds_to_compare(rounds: list[Rounds | None]) -> None:
    """On a device slices may have been retaken; one process cannot tell its own rare calls from the machine's."""
    assert with_mean_calls([builders.worker()] * len(rounds), rounds) == [builders.worker()] * len(rounds)


def test_collections_are_part_of_the_mean_call() -> None:
    """What full collections cost with all of a process's objects is added to its calls."""
    rounds = [process(seed, steady, each(1, 1.0)) for seed in range(3)]
    collecting = replace(builders.worker(), collecting_s=14 * builders.worker().wall.call_s)
    assert [worker.rare for worker in with_mean_calls([collecting] * 3, rounds)] == [pytest.approx(15.0)] * 3


@pytest.mark.parametrize("iterations", [1, 16])
def test_rare_calls_are_described(iterations: int) -> None:
    """One of so many calls takes so long; that the call after it finds cold caches makes it no other one."""

    def with_cold_caches(dear: float) -> Times:
        return lambda calls: np.where(calls % 320, 1.0 + 0.15 * (calls % 320 <= iterations), dear)

    rounds = [
        [
            process(2 * pair + side, steady, with_cold_caches(dear), start=320, iterations=iterations)
            for side, dear in enumerate((9.0, 101.0))
        ]
        for pair in range(3)
    ]
    found = MeanCalls(rounds).rare_calls([builders.pair(0.0)] * 3)
    call_s = builders.pair(0.0).base.wall.call_s
    assert found is not None
    assert found.one_of == pytest.approx(320)
    assert found.head_s == pytest.approx(101 * call_s, rel=0.1)
    assert found.base_s == pytest.approx(9 * call_s, rel=0.3)


def test_no_rare_calls() -> None:
    """Where no call is dearer than others in most processes, there is nothing to describe."""
    rounds = [[process(2 * pair + side, shared, each(1, 1.0)) for side in (0, 1)] for pair in range(3)]
    assert MeanCalls(rounds).rare_calls([builders.pair(0.0)] * 3) is None


def test_total_time_decides_where_calls_do_not_repeat() -> None:
    """Dear calls at other places in each pair are in no call that pairs have in common, and all of them show it."""
    hidden = [builders.pair(0.001, total_log_ratio=0.4) for _ in range(3)]
    assert are_unrepeated(hidden)
    assert log_ratios(hidden) == (0.4, 0.4, 0.4)
    unlike = [builders.pair(0.0, total_log_ratio=total) for total in (0.11, 0.16, 0.08, 0.25, 0.2)]
    assert are_unrepeated(unlike), "one pair had few of them"
    one_held_up = [builders.pair(0.001, total_log_ratio=total) for total in (0.4, 0.02, 0.0, -0.01)]
    assert not are_unrepeated(one_held_up)
    assert log_ratios(one_held_up) == (0.001,) * 4


def test_total_times_of_equal_code_raise_no_alarm() -> None:
    """Three hundred comparisons whose total times differ by a tenth for the machine's sake: one is SLOWER at most."""
    generator = np.random.default_rng(5)
    alarms = 0
    for _ in range(300):
        pairs = [
            builders.pair(float(typical), total_log_ratio=float(typical + total))
            for typical, total in zip(generator.normal(0, 0.008, 11), generator.normal(0, 0.1, 11), strict=True)
        ]
        found = next(v for count in range(1, 12) if (v := judge_records(pairs[:count], Policy(), final=count == 11)))
        alarms += found.status is Status.SLOWER
    assert alarms <= 1


def with_rare_calls(base: float, head: float, found: RareCalls | None = None) -> Outcome:
    """Return a slower test whose mean calls are these multiples of its typical ones."""
    own = builders.result(workers=(replace(builders.worker(), rare=head),) * 5)
    theirs = builders.result(workers=(replace(builders.worker(), rare=base),) * 5)
    pairs = (builders.pair(0.0, own.workers[0], own.workers[0]),) * 5
    live = Live("main", "working tree", theirs, pairs, (), rare_calls=found)
    return builders.outcome(own, builders.verdict(Status.SLOWER, head / base), live=live)


def test_a_report_shows_both_calls_where_they_differ(wording: Wording) -> None:
    """The row has both times and the items a second of the mean; a sentence says which calls are dear."""
    outcome = with_rare_calls(1.05, 3.0, RareCalls(50.4, 0.002, 0.101))
    assert outcome.result.items_per_s == pytest.approx(1 / 0.003)
    (row,) = verdict_table([outcome]).rows
    assert {"1.00 ms", "3.00 ms", "333"} <= {cell.text for cell in row}
    assert "1 of 50 takes 101 ms, was 2.00 ms" in message(outcome)
    assert [rare_text(outcome), rare_text(with_rare_calls(1.0, 1.5))] == wording
    gone = rare_text(with_rare_calls(3.0, 1.0, RareCalls(50.4, 0.101, 0.001)))
    assert gone.endswith("a call on average 1.00 ms, was 3.00 ms: 1 of 50 took 101 ms")
    other = with_rare_calls(3.0, 1.0, RareCalls(50.4, 0.101, 0.001))  # medians that the pairs do not confirm
    unlike = replace(other, verdict=builders.verdict(Status.SLOWER, 1.2))
    assert rare_text(unlike) == "a usual call takes 1.00 ms; a call on average 1.00 ms"


def test_a_new_result_with_rare_calls_is_said_to_be_stored_where_it_is_said_to_be_new() -> None:
    """And not after the sentence on its calls, which comes first."""
    found = with_rare_calls(1.05, 3.0, RareCalls(50.4, 0.002, 0.101))
    new = replace(found, verdict=builders.verdict(Status.NEW), stored=True, live=None)
    calls, reason = message(new).splitlines()
    assert calls == rare_text(new) != ""
    assert reason.endswith("; stored now")


def test_a_report_shows_one_call_where_they_agree() -> None:
    """Up to a tenth of a call there is nothing to tell apart."""
    outcome = with_rare_calls(1.0, 1.09, RareCalls(50.4, 0.002, 0.005))
    assert rare_text(outcome) == ""
    assert "mean" not in [column.title for column in verdict_table([outcome]).columns]
