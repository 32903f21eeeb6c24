"""The parts of a self-check: known slowdowns, the conclusions from them, its report, and a run as JSON."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.judge.live import judge_fitness
from pytest_rlperf.measure import slowdown
from pytest_rlperf.measure.placement import Activity
from pytest_rlperf.measure.rounds import Clocks
from pytest_rlperf.measure.slices import Meter
from pytest_rlperf.measure.slowdown import slowed, steps_for
from pytest_rlperf.model.judged import Outcome, Status, Verdict
from pytest_rlperf.model.live import PairRecord
from pytest_rlperf.model.measured import Phase, Result, SliceKind, Workload
from pytest_rlperf.model.selfcheck import Fitness, Selfcheck, Trial
from pytest_rlperf.model.stored import Machine
from pytest_rlperf.report.run_json import selfcheck_document, written
from pytest_rlperf.report.selfcheck import render_selfcheck
from pytest_rlperf.report.wording import fitness_lines
from pytest_rlperf.testing import FakeClock


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
    """Have extra work be what ``by_itself`` does of a thousand steps, and ``beside`` of so many after calls."""
    patch.setattr(slowdown, "_thousand", by_itself)
    patch.setattr(slowdown, "work", beside)
    patch.setattr("pytest_rlperf.measure.rounds.work", beside)


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


@settings(max_examples=50, deadline=None)
@given(call_ns=st.integers(2_000_000, 2_000_000_000), share=st.floats(0.01, 1), **COSTS)
def test_the_share_of_a_long_call_is_off_by_a_fixed_cost_at_the_most(
    call_ns: int, step_ns: int, dearer_ns: int, fixed_ns: int, share: float
) -> None:
    """Where n steps beside a call cost a + b·n, the n found cost the share, give or take a and one step."""
    clock = FakeClock()
    call = lambda: clock.advance(call_ns / 1e9)  # noqa: E731
    beside_ns = step_ns + dearer_ns
    steps = sized(share, call, None, clock, Extra(clock, step_ns, beside_ns, fixed_ns))
    assert fixed_ns + beside_ns * steps == pytest.approx(share * call_ns, abs=fixed_ns + beside_ns)


class RestlessExtra(Extra):
    """Extra work of 20 ns a step, on a machine where anything takes a fifth longer now and then."""

    def __init__(self, clock: FakeClock, draw: random.Random) -> None:
        super().__init__(clock, 20, 20, 0)
        self._draw = draw

    def spend(self, nanoseconds: int) -> int:
        return super().spend(round(nanoseconds * self._draw.choice([1.0, 1.0, 1.0, 1.2])))


@pytest.mark.parametrize(("call_s", "most"), [(1e-3, 0.01), (5e-3, 0.002), (40e-3, 0.005)])
def test_a_restless_machine_moves_a_share_by_little(call_s: float, most: float) -> None:
    """Where a call or the work beside it takes a fifth longer now and then, 5 % is off by a part of itself."""
    draw = random.Random(1)
    errors = []
    for _ in range(30):
        clock = FakeClock()
        extra = RestlessExtra(clock, draw)
        steps = sized(0.05, partial(extra.spend, round(1e9 * call_s)), None, clock, extra)
        errors.append(20e-9 * steps / call_s - 0.05)
    assert math.sqrt(statistics.fmean(error**2 for error in errors)) < most


def test_short_calls_have_their_share_too() -> None:
    """Many short calls are timed as one, so that the clock's own cost does not count."""
    clock = FakeClock(reading_ns=40)
    call = lambda: clock.advance(2e-6)  # noqa: E731
    assert sized(0.05, call, None, clock, Extra(clock, 5, 5, 0)) == pytest.approx(20, abs=1)


def test_a_share_under_what_any_work_costs_is_no_work() -> None:
    """Where the fixed cost is more than the share there are no steps, never fewer than none."""
    clock = FakeClock()
    call = lambda: clock.advance(1e-3)  # noqa: E731
    assert sized(0.02, call, None, clock, Extra(clock, 50, 50, 100_000)) == 0


def test_the_setup_of_a_call_is_not_counted() -> None:
    """A call that needs a setup has one before each call, and the share is of the call alone."""
    clock = FakeClock()
    order: list[str] = []

    def setup() -> None:
        order.append("setup")
        clock.advance(7e-3)

    def call() -> None:
        order.append("call")
        clock.advance(1e-3)

    assert sized(0.10, call, setup, clock, Extra(clock, 20, 20, 0)) == 5000
    assert order == ["setup", "call"] * (len(order) // 2)


def test_a_pace_that_drifts_does_not_move_the_share() -> None:
    """Calls and steps that take longer by the second, as on a busy machine, give nearly the same steps."""
    clock = FakeClock()

    def pace() -> float:
        return 1 + 0.2 * clock.now_ns / 1e9

    def call() -> None:
        clock.advance(2e-3 * pace())

    class Drifting(Extra):
        def by_itself(self) -> int:
            clock.advance(1000 * 20e-9 * pace())
            return 0

        def beside(self, steps: int) -> int:
            clock.advance(steps * 20e-9 * pace())
            return 0

    assert sized(0.05, call, None, clock, Drifting(clock, 20, 20, 0)) == pytest.approx(5000, rel=0.1)


def test_a_machine_too_restless_to_tell_goes_by_what_steps_take_alone() -> None:
    """Where many steps seem to take no longer than few, the first estimate stands."""
    clock = FakeClock()
    call = lambda: clock.advance(1e-3)  # noqa: E731
    assert sized(0.05, call, None, clock, Extra(clock, 10, 0, 3000)) == 5000


@pytest.mark.parametrize(("call_s", "most"), [(0.1, 27), (1.0, 20), (20.0, 9)])
def test_long_calls_are_sized_by_few(call_s: float, most: int) -> None:
    """Sizing takes seconds, or nine calls where they are longer, and finds the same."""
    clock = FakeClock()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        clock.advance(call_s)

    assert sized(0.05, call, None, clock, Extra(clock, 20, 20, 0)) == round(0.05 * call_s / 20e-9)
    assert 9 <= len(calls) <= most


@pytest.mark.parametrize("steps", [0, 1, 1000])
def test_a_slowed_call_calls_once_and_returns_its_result(steps: int) -> None:
    """Extra work comes after the call, which is made once and whose result is passed on."""
    results = [object()]
    calls: list[int] = []

    def call() -> object:
        calls.append(1)
        return results[0]

    assert slowed(call, steps)() is results[0]
    assert calls == [1]


def test_a_slowed_call_does_its_steps_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very number of steps asked for is done, every time, and none where the call fails."""
    order: list[object] = []
    monkeypatch.setattr(slowdown, "work", order.append)
    both = slowed(lambda: order.append("call"), 7)
    both()
    both()
    assert order == ["call", 7, "call", 7]

    def fail() -> None:
        raise ValueError("it")

    with pytest.raises(ValueError, match="it"):
        slowed(fail, 9)()
    assert order == ["call", 7, "call", 7]


def test_extra_work_is_real_and_never_the_same_result() -> None:
    """Each step computes something from the one before, so that none can be left out."""
    states = [slowdown.work(steps) for steps in range(50)]
    assert len(set(states)) == 50
    assert states[0] == 1
    assert states[1] == 48271


def test_a_meter_told_to_slow_down_does_so_until_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are longer by the share asked for, a second order replaces the first, and a share of nothing ends it."""
    clock = FakeClock()
    extra = Extra(clock, 20, 30, 0)
    replace_work(monkeypatch, extra.by_itself, extra.beside)
    workload = Workload("callable", lambda: clock.advance(1e-3), 4.0, "thing", lambda: None)
    meter = Meter(workload, lambda: {}, Clocks(clock, clock, 76.0))
    try:
        meter.warm_up(None, 0.5, kernels=False)
        for share, expected_s in ((0.06, 1.06e-3), (0.03, 1.03e-3), (0.0, 1e-3), (0.12, 1.12e-3)):
            steps = meter.slow_down(share, None)
            assert steps == round(share * 1e-3 / 30e-9)
            for kind in (SliceKind.PLAIN, SliceKind.TRACED):
                record = meter.take(kind)
                assert record.call_s == pytest.approx(expected_s)
                assert record.items == 4.0 * record.calls
    finally:
        meter.thaw()


@pytest.mark.parametrize(("threads", "whole"), [(1, False), (2, False), (1, True)])
def test_what_holds_up_a_single_thread_is_not_slowed_down(
    monkeypatch: pytest.MonkeyPatch, threads: int, whole: bool
) -> None:
    """A call that got two thirds of a CPU is slowed by a share of its work, one of several threads of its time.

    What is of the whole machine is never placed as one thread is.
    """
    wall, cpu = FakeClock(), FakeClock()

    def call() -> None:
        wall.advance(1.5e-3)
        cpu.advance(1e-3)

    def by_itself() -> int:
        wall.advance(20e-6)
        cpu.advance(20e-6)
        return 0

    def beside(steps: int) -> int:
        wall.advance(20e-9 * steps)
        cpu.advance(20e-9 * steps)
        return 0

    replace_work(monkeypatch, by_itself, beside)
    activity = Activity(threads=threads, children=0)
    monkeypatch.setattr("pytest_rlperf.measure.slices.ActivityWatch", lambda: SimpleNamespace(seen=lambda: activity))
    workload = Workload("callable", call, 4.0, "thing", lambda: None, whole_machine=whole)
    meter = Meter(workload, lambda: {}, Clocks(wall, cpu, 76.0))
    try:
        assert meter.warm_up(None, 0.5, kernels=False).single is (threads == 1 and not whole)
        assert meter.slow_down(0.06, None) == (3000 if threads == 1 else 4500)
    finally:
        meter.thaw()


def test_work_that_waits_is_slowed_down_by_a_share_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hardly uses a CPU, as one that waits for others, is sized in seconds, and never for hours."""
    wall, cpu = FakeClock(), FakeClock()
    waits = [0]

    def call() -> None:
        waits[0] += 1
        wall.advance(10e-3)
        cpu.advance(1e-6)
        assert wall.now_ns < 60e9

    def beside(steps: int) -> None:
        wall.advance(20e-9 * steps)
        cpu.advance(20e-9 * steps)

    replace_work(monkeypatch, lambda: beside(1000), beside)
    activity = Activity(threads=0, children=0)
    monkeypatch.setattr("pytest_rlperf.measure.slices.ActivityWatch", lambda: SimpleNamespace(seen=lambda: activity))
    monkeypatch.setattr("pytest_rlperf.measure.slices._waits", lambda: waits[0])
    meter = Meter(Workload("callable", call, 4.0, "thing", lambda: None), lambda: {}, Clocks(wall, cpu, 76.0))
    try:
        meter.warm_up(None, 0.5, kernels=False)
        assert meter.slow_down(0.06, None) == 30_000
    finally:
        meter.thaw()


def test_short_calls_are_slowed_down_by_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls too short for steps of their own a round has them, and each call is longer by its share."""
    clock = FakeClock()
    extra = Extra(clock, 20, 30, 500)
    replace_work(monkeypatch, extra.by_itself, extra.beside)
    workload = Workload("callable", lambda: clock.advance(500e-9), 4.0, "thing", lambda: None)
    meter = Meter(workload, lambda: {}, Clocks(clock, clock, 76.0))
    try:
        shape = meter.warm_up(None, 0.05, kernels=False).shape
        assert shape.iterations > 100
        steps = meter.slow_down(0.05, None)
        assert steps == pytest.approx((0.05 * shape.iterations * 500 - 500) / 30, abs=1)
        assert meter.take(SliceKind.PLAIN).call_s == pytest.approx(1.05 * 500e-9, rel=1e-3)
    finally:
        meter.thaw()


def test_steps_that_were_sized_before_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told in steps a meter sizes nothing and runs no call, and does the very steps in its slices."""
    clock = FakeClock()
    done: list[int] = []
    calls: list[int] = []
    replace_work(monkeypatch, int, done.append)

    def call() -> None:
        calls.append(1)
        clock.advance(1e-6)

    meter = Meter(Workload("callable", call, 4.0, "thing", lambda: None), lambda: {}, Clocks(clock, clock, 76.0))
    try:
        shape = meter.warm_up(None, 0.05, kernels=False).shape
        assert shape.iterations > 50
        calls.clear()
        assert meter.slow_down(0.05, 7) == 7
        assert calls == done == []
        assert meter.take(SliceKind.PLAIN).calls == len(calls)
        assert done == [7] * shape.rounds
        done.clear()
        assert meter.slow_down(0.05, 0) == 0
        meter.take(SliceKind.PLAIN)
        assert done == []
    finally:
        meter.thaw()


def test_kernels_are_never_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference kernels stay as they are beside a workload with extra work."""
    clock = FakeClock()
    done: list[int] = []
    replace_work(monkeypatch, int, done.append)
    kernels = {SliceKind.INTERPRETER: lambda: clock.advance(50e-6)}
    workload = Workload("callable", lambda: clock.advance(1e-3), 4.0, "thing", lambda: None)
    meter = Meter(workload, lambda: kernels, Clocks(clock, clock, 76.0))
    try:
        meter.warm_up(None, 0.05)
        meter.slow_down(0.05, 7)
        meter.take(SliceKind.INTERPRETER)
        assert done == []
        meter.take(SliceKind.TRACED)
        assert set(done) == {7}
    finally:
        meter.thaw()


def test_sizing_a_slowdown_leaves_no_items_to_the_next_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of the calls made for sizing are in no slice."""
    clock = FakeClock()
    extra = Extra(clock, 20, 20, 0)
    replace_work(monkeypatch, extra.by_itself, extra.beside)
    counted = [0]

    def call() -> None:
        counted[0] += 3
        clock.advance(1e-3)

    def count() -> float:
        counted[0], items = 0, counted[0]
        return float(items)

    meter = Meter(
        Workload("callable", call, 3.0, "thing", lambda: None, count=count), lambda: {}, Clocks(clock, clock, 76.0)
    )
    try:
        meter.warm_up(None, 0.5, kernels=False)
        meter.slow_down(0.05, None)
        record = meter.take(SliceKind.PLAIN)
    finally:
        meter.thaw()
    assert record.items == 3 * record.calls


WORKER = builders.worker(relative=0.0, items_per_call=4.0)
PHASES = (Phase("work", 1.0, 0.9e-3, 0.9e-3, "host"),)


def result(name: str = "test_step", call_s: float = 1e-3) -> Result:
    worker = replace(WORKER, wall=replace(WORKER.wall, call_s=call_s))
    return builders.result(
        f"tests/test_env.py::{name}",
        component="callable",
        unit="thing",
        items=4.0,
        workers=(worker,) * 3,
        phases=PHASES,
        traced_call_s=call_s,
    )


def verdict(status: Status, ratio: float | None = None) -> Verdict:
    return builders.verdict(status, ratio, code="live", smallest_seen=0.03)


def pair(log_ratio: float, setup_s: float = 1.0, seconds: float = 1.5) -> PairRecord:
    return builders.pair(
        log_ratio,
        WORKER,
        WORKER,
        cpu_log_ratio=log_ratio / 2,
        blocks=20,
        placed=1,
        cpus=(1,),
        setup_s=setup_s,
        seconds=seconds,
    )


def trial(share: float, status: Status, ratio: float | None = None) -> Trial:
    return Trial(share, verdict(status, 1 + share if ratio is None else ratio), (pair(share),) * 3, 5.0)


def check(*trials: Trial, name: str = "test_step") -> Selfcheck:
    return Selfcheck(result(name), trials)


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
    ("share", "status", "alarm", "found"),
    [
        (0.0, SAME, False, True),
        (0.0, SLOWER, True, False),
        (0.0, FASTER, True, False),
        (0.0, UNDECIDED, False, False),
        (0.0, INVALID, False, False),
        (0.05, SLOWER, False, True),
        (0.05, FASTER, False, False),
        (0.05, SAME, False, False),
        (0.05, UNDECIDED, False, False),
    ],
)
def test_what_a_trial_shows(share: float, status: Status, alarm: bool, found: bool) -> None:
    """Only unchanged code can be a false alarm, and nothing but the one right verdict has found what there was."""
    assert trial(share, status).is_false_alarm is alarm
    assert trial(share, status).is_found is found


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


def test_without_slowdowns_none_was_found() -> None:
    """Unchanged code alone finds nothing."""
    assert check(trial(0.0, SAME)).smallest_found is None


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


def rendered(checks: Sequence[Selfcheck], fitness: Fitness = FIT, width: int = 100, *, color: bool = False) -> str:
    return render_selfcheck(checks, fitness, machine="Some CPU, 2 cores", width=width, color=color)


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
    assert rendered(checks, width=100) == wording


def test_no_estimate_and_no_fitness_are_told() -> None:
    """Where no change could be told the cell says what was said, and no is said as clearly as yes."""
    lines = rendered([check(replace(trial(0.0, SAME), verdict=verdict(UNDECIDED)))]).splitlines()
    assert re.fullmatch(r"test_step +1\.00 ms +\? +none +5 s", lines[1])
    text = rendered([checked(SAME, SAME, SAME, SAME, SAME)], replace(FIT, is_fit=False))
    assert "\nfit       no\n" in text
    assert re.search(r"SAME +none +25 s\n", text)


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_of_the_report_fits_the_terminal(width: int) -> None:
    """Long names fold, and no cell is cut off."""
    name = "test_" + "very_" * 12 + "long[param-0]"
    checks = [
        check(
            trial(0.0, SAME),
            trial(0.02, UNDECIDED),
            trial(0.03, SAME),
            trial(0.05, SLOWER),
            trial(0.1, SLOWER),
            name=name,
        )
    ]
    text = rendered(checks, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    table = text.partition("rows:")[0]
    assert "".join(line.partition(" ")[0] for line in table.splitlines()[1:]) == name


MACHINE = Machine("Linux", "x86_64", "Some CPU", 2, "CPython 3.11", 1)


def read(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a strict reader makes of the text that is written for a document."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = written(document)
    assert text.endswith("}\n")
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_a_selfcheck_reads_back() -> None:
    """Each trial has its slowdown, its verdict, its pairs and its time; the machine has what it is fit for."""
    found = read(selfcheck_document(MACHINE, {"a": checked(SAME, SAME, SLOWER, SLOWER, SLOWER)}, FIT))
    assert (found["schema"], found["kind"]) == (1, "selfcheck")
    assert found["fitness"]["is_fit"] is True
    assert found["fitness"]["tolerance"] == 0.03
    trials = found["tests"]["a"]["trials"]
    assert [entry["slowdown"] for entry in trials] == list(SHARES)
    assert [entry["verdict"]["status"] for entry in trials] == ["SAME", "SAME", "SLOWER", "SLOWER", "SLOWER"]
    assert [len(entry["pairs"]) for entry in trials] == [3] * 5
    assert trials[0]["seconds"] == 5.0
    assert found["tests"]["a"]["smallest_found"] == 0.03


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_null(value: float) -> None:
    """A figure that is no number is null wherever it stands, for readers that know no NaN."""
    told = verdict(UNDECIDED, 1.0)
    assert told.estimate is not None
    wide = replace(told, estimate=replace(told.estimate, high=value), smallest_seen=value)
    found = read(builders.run_document(MACHINE, {"a": Outcome(result(), None, None, wide, 1.0)}, [], []))["tests"]["a"]
    assert found["verdict"]["estimate"]["high"] is None
    assert found["verdict"]["smallest_seen"] is None
    assert found["verdict"]["estimate"]["ratio"] == 1.0


def test_text_is_written_as_it_is() -> None:
    """Names in any script are readable in the file."""
    assert '"µs": "日本"' in written({"µs": "日本"})
