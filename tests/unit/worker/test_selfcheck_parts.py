"""The parts of a self-check: known slowdowns, the conclusions from them, its report, and a run as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import builders
import pytest
from fake_drivers import FakeDriver, carried_out, fake_processes, open_test, usual
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf import wire
from pytest_rlperf.judge.live import judge_fitness
from pytest_rlperf.model.judged import Fitness, Selfcheck, SlowdownTrial, Status
from pytest_rlperf.model.measured import SliceKind, Workload
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.report.run_json import selfcheck_document, written
from pytest_rlperf.report.terminal import render_selfcheck
from pytest_rlperf.report.wording import fitness_lines
from pytest_rlperf.run.selfcheck import check_self
from pytest_rlperf.timers import FakeClock
from pytest_rlperf.wire import WarmUp
from pytest_rlperf.worker import rounds, slowdowns
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.rounds import Clocks
from pytest_rlperf.worker.slowdowns import steps_for


class Trials:
    """A test that is compared with itself: pairs find the slowdown that they were warmed up with."""

    def __init__(self, scratch: Path, patch: pytest.MonkeyPatch) -> None:
        self.processes, self.known = fake_processes(scratch, patch)
        self.known.answer = self._answer
        self.slowed: list[tuple[int, wire.Slowdown]] = []
        self.lost_at = -1
        self._share = 0.0
        self._test = open_test()

    def _answer(self, driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.WarmAll):
            assert order.slowed is not None
            self.slowed.append((self.known.drivers.index(driver), order.slowed))
            self._share = order.slowed.share
            if len(self.slowed) == self.lost_at:
                driver.die()
        if isinstance(order, wire.TakePair):
            return wire.Taken(builders.pair(math.log1p(self._share)), [], [None, None])
        return usual(driver, order)

    def run(self) -> Selfcheck:
        head = builders.project(Path("/t")).side("HEAD", sys.executable, (), (Path("/t"),))
        drivers = self.processes.drivers(Sides(head, head, (), (), ()), "other worker", "head worker")
        return carried_out(self.processes, check_self(self._test, drivers))


class Extra:
    """Extra work that takes ``step_ns`` a step by itself, and beside a call ``beside_ns`` a step and ``fixed_ns``."""

    def __init__(self, clock: FakeClock, step_ns: int, beside_ns: int, fixed_ns: int) -> None:
        self._clock = clock
        self._step_ns = step_ns
        self._beside_ns = beside_ns
        self._fixed_ns = fixed_ns

    def spend(self, nanoseconds: int) -> int:
        self._clock.now_ns += nanoseconds
        return 0

    def by_itself(self) -> int:
        return self.spend(1000 * self._step_ns)

    def beside(self, steps: int) -> int:
        return self.spend(self._fixed_ns + self._beside_ns * steps)


def replace_work(patch: pytest.MonkeyPatch, by_itself: Callable[[], object], beside: Callable[[int], object]) -> None:
    """Replace extra work: ``by_itself`` does a thousand steps, and ``beside`` as many as it is given, after calls."""
    patch.setattr(slowdowns, "_thousand", by_itself)
    for module in (rounds, slowdowns):
        patch.setattr(module, "work", beside)


def sized(
    share: float, call: Callable[[], object], setup: Callable[[], None] | None, clock: FakeClock, extra: Extra
) -> int:
    """Return the steps found for ``share`` where steps take what ``extra`` says."""
    with pytest.MonkeyPatch.context() as patch:
        replace_work(patch, extra.by_itself, extra.beside)
        return steps_for(share, call, setup, clock)


COSTS = {"step_ns": st.integers(10, 100), "dearer_ns": st.integers(0, 100), "fixed_ns": st.integers(0, 2000)}


@settings(max_examples=50, deadline=None)
@given(call_ns=st.integers(100_000, 1_990_000), steps=st.integers(0, 100_000), **COSTS)
def test_the_steps_of_a_share_are_found_exactly(
    call_ns: int, step_ns: int, dearer_ns: int, fixed_ns: int, steps: int
) -> None:
    """Where n steps beside a call cost a + b·n, the n found is the very one, whatever a step costs by itself."""
    share = (fixed_ns + (step_ns + dearer_ns) * steps) / call_ns
    assume(share <= 1)
    clock = FakeClock()
    call = lambda: clock.advance(call_ns / 1e9)  # noqa: E731
    extra = Extra(clock, step_ns, step_ns + dearer_ns, fixed_ns)
    assert sized(share, call, None, clock, extra) == steps


def test_a_meter_told_to_slow_down_does_so_until_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are longer by the share asked for, a second order replaces the first, and a share of nothing ends it."""
    clock = FakeClock()
    extra = Extra(clock, 20, 30, 0)
    replace_work(monkeypatch, extra.by_itself, extra.beside)
    workload = Workload("callable", lambda: clock.advance(1e-3), 4.0, "thing", lambda: None)
    meter = Meter(workload, lambda: {}, Clocks(clock, clock, 76.0))
    try:
        meter.warm_up(WarmUp(0.5, kernels=False))
        for share, expected_s in ((0.06, 1.06e-3), (0.03, 1.03e-3), (0.0, 1e-3), (0.12, 1.12e-3)):
            steps = meter.slow_down(share, None)
            assert steps == round(share * 1e-3 / 30e-9)
            for kind in (SliceKind.PLAIN, SliceKind.TRACED):
                record = meter.take(kind)
                assert record.call_s == pytest.approx(expected_s)
                assert record.items == 4.0 * record.calls
    finally:
        meter.thaw()


def test_the_trials_of_a_test_share_their_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchanged, and with slowdowns whose first pair finds the steps that the others do."""
    trials = Trials(tmp_path, monkeypatch)
    found = trials.run()
    assert [each.slowdown for each in found.trials] == list(SHARES)
    assert [each.verdict.status for each in found.trials] == [SAME, SAME, UNDECIDED, SLOWER, SLOWER]
    assert {order.steps for _, order in trials.slowed if not order.share} == {0}
    for share in SHARES[1:]:
        first, *others = [order.steps for _, order in trials.slowed if order.share == share]
        assert first is None
        assert {*others} == {7}
    assert len(trials.known.drivers) == len({number for number, _ in trials.slowed}) < len(trials.slowed)
    opened = [sum(isinstance(order, wire.Open) for order in driver.orders) for driver in trials.known.drivers]
    assert {*opened} == {1}


def test_a_lost_pair_of_a_self_check_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that the trials from then on share."""
    trials = Trials(tmp_path, monkeypatch)
    trials.lost_at = 5
    assert len(trials.run().trials) == len(SHARES)
    assert sum(not driver.alive for driver in trials.known.drivers) == 1


def trial(share: float, status: Status, ratio: float | None = None) -> SlowdownTrial:
    found = builders.verdict(status, 1 + share if ratio is None else ratio, code="live", smallest_seen=0.03)
    return SlowdownTrial(share, found, (builders.pair(share),) * 3, 5.0)


def check(*trials: SlowdownTrial, name: str = "test_step") -> Selfcheck:
    return Selfcheck(builders.result(f"tests/test_env.py::{name}"), trials)


SAME, SLOWER, FASTER, UNDECIDED, INVALID = (
    Status.SAME,
    Status.SLOWER,
    Status.FASTER,
    Status.UNDECIDED,
    Status.INVALID,
)
SHARES = (0.0, 0.02, 0.03, 0.05, 0.10)


def checked(*statuses: Status, name: str = "test_step") -> Selfcheck:
    """Return a test's trials, unchanged and with 2, 3, 5 and 10 %, that ended so."""
    return check(*(trial(share, status) for share, status in zip(SHARES, statuses, strict=True)), name=name)


@pytest.mark.parametrize(
    ("statuses", "smallest"),
    [
        ((SAME, SLOWER, SLOWER, SLOWER, SLOWER), 0.02),
        ((SAME, SAME, SAME, SLOWER, SLOWER), 0.05),
        ((SAME, SAME, SLOWER, UNDECIDED, SLOWER), 0.10),
        ((SAME, SLOWER, SLOWER, SLOWER, UNDECIDED), None),
        ((SAME, SAME, SAME, SAME, SAME), None),
        ((SLOWER, SAME, SAME, SAME, SLOWER), 0.10),
    ],
)
def test_the_smallest_found_is_the_one_from_which_on_all_were(
    statuses: Sequence[Status], smallest: float | None
) -> None:
    """A small slowdown found below a larger one that was missed is luck and does not count, nor does unchanged code."""
    assert checked(*statuses).smallest_found == smallest


def test_a_machine_that_tells_everything_is_fit(wording: Wording) -> None:
    """With unchanged tests SAME and slowdowns well over the tolerance SLOWER, the smaller ones may be missed."""
    checks = [checked(SAME, SAME, SAME, SLOWER, SLOWER), checked(SAME, UNDECIDED, SLOWER, SLOWER, SLOWER, name="b")]
    fitness = judge_fitness(checks, 0.03)
    assert fitness.is_fit
    assert fitness.tolerance == 0.03
    assert fitness.false_alarms == 0
    assert fitness_lines(checks, fitness) == wording


@pytest.mark.parametrize(
    ("statuses", "alarms"),
    [
        ((SLOWER, SAME, SAME, SLOWER, SLOWER), 1),
        ((FASTER, SAME, SAME, SLOWER, SLOWER), 1),
        ((UNDECIDED, SAME, SAME, SLOWER, SLOWER), 0),
        ((SAME, SAME, SLOWER, UNDECIDED, SLOWER), 0),
        ((SAME, SAME, SAME, SAME, FASTER), 0),
    ],
)
def test_one_breach_makes_a_machine_unfit(statuses: Sequence[Status], alarms: int, wording: Wording) -> None:
    """One test that is not SAME unchanged, or one clear slowdown missed, is enough, and is told."""
    checks = [checked(SAME, SAME, SAME, SLOWER, SLOWER), checked(*statuses)]
    fitness = judge_fitness(checks, 0.03)
    assert not fitness.is_fit
    assert fitness.false_alarms == alarms
    assert fitness_lines(checks, fitness) == wording


def test_fitness_is_for_a_tolerance_that_was_tried() -> None:
    """Where no slowdown is as large as the tolerance asks for, nothing was shown; a smaller one asks for more."""
    checks = [checked(SAME, SAME, SLOWER, SLOWER, SLOWER)]
    fitness = judge_fitness(checks, 0.20)
    assert not fitness.is_fit
    line = fitness_lines(checks, fitness)[1]
    assert all(value in line for value in ("33.3 %", "20 %", "--rlperf-tolerance"))
    checks = [checked(SAME, SAME, SAME, SLOWER, SLOWER)]
    assert judge_fitness(checks, 0.03).is_fit
    assert not judge_fitness(checks, 0.018).is_fit
    assert not judge_fitness(checks, 0.01).is_fit


FIT = Fitness(0.03, True, 0)


def test_the_report_to_the_letter(wording: Wording) -> None:
    """The table, what its cells mean, and whether the machine is fit, without colour."""
    checks = [
        checked(SAME, SAME, SLOWER, SLOWER, SLOWER),
        check(
            trial(0.0, UNDECIDED, 1.004),
            trial(0.02, INVALID, 1.0),
            trial(0.03, FASTER, 0.9),
            trial(0.05, UNDECIDED),
            replace(trial(0.10, SLOWER), seconds=7.4),
            name="test_sample[256]",
        ),
    ]
    text = render_selfcheck(checks, FIT, machine="Some CPU, 2 cores", width=100, color=False)
    assert text == wording


def test_a_selfcheck_reads_back() -> None:
    """Each trial has its slowdown, its verdict, its pairs and its time; the machine has what it is fit for."""
    checks = {"a": checked(SAME, SAME, SLOWER, SLOWER, SLOWER)}
    found = json.loads(written(selfcheck_document(builders.MACHINE, checks, FIT)))
    assert (found["schema"], found["kind"]) == (1, "selfcheck")
    assert found["fitness"]["is_fit"] is True
    assert found["fitness"]["tolerance"] == 0.03
    trials = found["tests"]["a"]["trials"]
    assert [entry["slowdown"] for entry in trials] == list(SHARES)
    assert [entry["verdict"]["status"] for entry in trials] == ["SAME", "SAME", "SLOWER", "SLOWER", "SLOWER"]
    assert [len(entry["pairs"]) for entry in trials] == [3] * 5
    assert trials[0]["seconds"] == 5.0
    assert found["tests"]["a"]["smallest_found"] == 0.03
