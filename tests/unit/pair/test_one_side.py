"""A test's workers taking turns with the kernel, with simulated workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from fake_worker import FakeWorker, checked_in

from pytest_rlperf import wire
from pytest_rlperf.model.durations import WARM_UP_S
from pytest_rlperf.model.measured import Count, Phase, Shape, SliceKind, SliceRecord, Tally, Warm
from pytest_rlperf.pair.one_side import WORKER_S, measure_one_side
from pytest_rlperf.pair.pace import BLOCKS_LEAST
from pytest_rlperf.run.baselines import WORKERS
from pytest_rlperf.timers import FakeClock
from pytest_rlperf.wire import Alone, Check, CountAll, MeasureAlone, Order, Take, WarmUp
from pytest_rlperf.worker.rounds import slice_shape

KERNELS_S = {SliceKind.INTERPRETER: 50e-6, SliceKind.MEMORY: 80e-6}


class Simulated(FakeWorker):
    """A worker whose calls take ``call_s`` times the ``pace`` at the time they begin."""

    def __init__(
        self, clock: FakeClock, call_s: float, pace: Callable[[float], float] = lambda _: 1.0, idle: float = 0.0
    ) -> None:
        self.seed = 7
        self.waits = 0
        self.compiles_s = 0.0
        self.held_up = 1.0
        self.shapes: list[Shape | None] = []
        self.kinds: list[SliceKind] = []
        self.tally = Tally(((Count("", "ops", 7),),), ())
        self.counted = 0
        self._clock = clock
        self._call_s = call_s
        self._pace = pace
        self._idle = idle
        self._shape = Shape(1, 1, long=False)

    def _run(self, call_s: float, calls: int) -> float:
        taken_s = calls * call_s * self._pace(self._clock.now_ns / 1e9)
        self._clock.advance(taken_s)
        return taken_s

    def carry_out(self, order: Order[Any]) -> Any:
        match order:
            case Check():
                seconds = self._run(self._call_s, 1) + self.compiles_s
                self._clock.advance(self.compiles_s)
                return checked_in(seconds, 2.0)
            case WarmUp():
                return self._warm_up(order)
            case Take(kind):
                return self._take(kind)
            case wire.Count():
                self.counted += 1
                self._clock.advance(30.0)
                return self.tally
        return super().carry_out(order)

    def _warm_up(self, order: WarmUp) -> Warm:
        """Spend as long as it takes, and a call at least; without time the checked call is the pace."""
        self.shapes.append(order.shape)
        self._shape = order.shape or slice_shape(self._call_s, 76.0, single=False, long=order.long)
        warm_up_s = max(min(WARM_UP_S, order.limit_s), self._call_s) if order.limit_s > 0 else 0.0
        self._clock.advance(warm_up_s)
        call_s = self._call_s if order.limit_s > 0 else self.checked_s
        return Warm(self._shape, call_s, warm_up_s, threads=1, single=True)

    def _take(self, kind: SliceKind) -> SliceRecord:
        self.kinds.append(kind)
        call_s = KERNELS_S.get(kind, self._call_s)
        calls = 300 if kind in KERNELS_S else self._shape.iterations * self._shape.rounds
        taken_s = self._run(call_s, calls)
        cpu_s = taken_s / (1.0 if kind in KERNELS_S else self.held_up)
        phases = (Phase("work", 1.0, taken_s / calls, taken_s / calls, "host"),) if kind is SliceKind.TRACED else ()
        return SliceRecord(
            kind=kind,
            call_s=taken_s / calls,
            rounds_s=taken_s,
            calls=calls,
            items=2.0 * calls,
            wall_s=taken_s,
            cpu_s=cpu_s,
            waits=self.waits,
            collections=0,
            cpu=0,
            phases=phases,
            rounds_ns=(round(1e9 * taken_s / calls),) * calls if kind is SliceKind.PLAIN else (),
        )

    def cpu_s(self) -> float:
        return self._idle * self._clock.now_ns / 1e9


def measure(workers: list[Simulated], clock: FakeClock, max_time_s: float = 60.0) -> Alone:
    return order(MeasureAlone(max_time_s, None, None), workers, clock)


def order(given: MeasureAlone, workers: list[Simulated], clock: FakeClock) -> Alone:
    return measure_one_side(workers, given, lambda step: None, lambda: clock.now_ns / 1e9)


def test_a_constant_pace_gives_exact_figures() -> None:
    """Seconds per call, the ratio to the kernel, items and phases are what was simulated."""
    clock = FakeClock()
    measured = measure([Simulated(clock, 2e-3) for _ in range(5)], clock)
    assert len(measured.workers) == 5
    for worker in measured.workers:
        assert worker.wall.call_s == pytest.approx(2e-3)
        assert worker.wall.relative == pytest.approx(2e-3 / 50e-6)
        assert worker.wall.relative_memory == pytest.approx(2e-3 / 80e-6)
        assert worker.items_per_call == 2.0
    assert measured.phases[0].total_s == pytest.approx(measured.traced_call_s)
    assert measured.notes == []


def test_a_pace_that_drifts_cancels_in_the_ratio() -> None:
    """A machine that gets slower by more than half meanwhile moves the times, and not the ratios to the kernel."""
    clock = FakeClock()
    slower_by_half_s = 5 * WORKER_S
    workers = [Simulated(clock, 2e-3, pace=lambda now: 1 + 0.5 * now / slower_by_half_s) for _ in range(5)]
    measured = measure(workers, clock)
    assert clock.now_ns / 1e9 > slower_by_half_s
    times = [worker.wall.call_s for worker in measured.workers]
    assert max(times) > 1.2 * min(times)
    for worker in measured.workers:
        assert worker.wall.relative == pytest.approx(2e-3 / 50e-6, rel=0.002)


@pytest.mark.parametrize(
    ("call_s", "waits", "held_up", "alone"),
    [(20e-3, 0, 2.0, True), (20e-3, 1, 2.0, False), (1e-3, 0, 2.0, False), (20e-3, 0, 0.5, False)],
    ids=["alone", "it waits", "short calls", "several threads"],
)
def test_long_calls_that_are_held_up_have_figures_by_cpu_time(
    call_s: float, waits: int, held_up: float, alone: bool
) -> None:
    """Where a process never waits, the time it does not get is others' doing: half the CPU is not twice the work."""
    clock = FakeClock()
    workers = [Simulated(clock, call_s), Simulated(clock, call_s)]
    workers[1].waits, workers[1].held_up = waits, held_up
    worker = measure(workers, clock).workers[1]
    assert worker.alone is alone
    assert worker.wall.call_s == pytest.approx(call_s)
    if alone:
        assert worker.cpu.call_s == pytest.approx(call_s / held_up)
        assert worker.cpu.relative == pytest.approx(call_s / held_up / 50e-6)
        assert worker.cpu_share == pytest.approx(1 / held_up)


def test_short_calls_take_about_as_long_as_planned() -> None:
    """Each worker of a short call takes its planned time, however much there would be."""
    clock = FakeClock()
    measure([Simulated(clock, 50e-6) for _ in range(WORKERS)], clock, max_time_s=600)
    slice_s, memory_s = 300 * 50e-6, 300 * 80e-6
    block_s = 2 * (slice_s + memory_s + slice_s)
    blocks = max(BLOCKS_LEAST, math.ceil((WORKER_S - slice_s) / block_s))  # after the first comes a traced slice
    warm_ups_s = WORKERS * WARM_UP_S
    planned_s = warm_ups_s + WORKERS * (50e-6 + blocks * block_s + slice_s)
    assert clock.now_ns / 1e9 == pytest.approx(planned_s)


@pytest.mark.parametrize("call_s", [1e-6, 0.01, 0.2, 1.0, 3.0, 7.0, 20.0])
@pytest.mark.parametrize("max_time_s", [2.0, 10.0, 60.0])
def test_the_time_limit_holds_for_calls_of_any_length(call_s: float, max_time_s: float) -> None:
    """No test takes more than its time and what one call, begun in time, takes; and there is always a figure."""
    clock = FakeClock()
    measured = measure([Simulated(clock, call_s) for _ in range(5)], clock, max_time_s)
    assert clock.now_ns / 1e9 <= max_time_s + 2 * call_s + 0.1
    assert len(measured.workers) == 5 or call_s > 0.015
    assert measured.workers[0].wall.call_s == pytest.approx(call_s)
    if len(measured.workers) < 5:
        assert "--rlperf-max-time" in measured.notes[0]


def test_a_slow_first_call_does_not_set_the_pace() -> None:
    """A function that compiles for three seconds at its first call has the workers and slices of one that does not."""
    slices = []
    for compiles_s in (0.0, 3.0):
        clock = FakeClock()
        workers = [Simulated(clock, 1e-3) for _ in range(5)]
        for worker in workers:
            worker.compiles_s = compiles_s
        measured = measure(workers, clock)
        assert measured.notes == []
        slices.append([worker.slices for worker in measured.workers])
    quick, compiled = slices
    assert compiled == quick
    assert len(quick) == 5
    assert min(quick) >= 2 * BLOCKS_LEAST


@pytest.mark.parametrize(
    ("call_s", "compiles_s", "max_time_s", "measured", "note"),
    [
        (1e-4, 0.0, 0.2, 5, ""),
        (1e-4, 0.2, 0.5, 5, ""),
        (61.0, 0.0, 60.0, 1, "the first call took 61.0 s, all of a test's 60 s: it is the only figure"),
        (5.0, 0.0, 20.0, 1, "only 1 of 5 workers measured in a test's 20 s"),
        (5.0, 0.0, 60.0, 5, ""),
    ],
)
def test_workers_without_much_time(
    call_s: float, compiles_s: float, max_time_s: float, measured: int, note: str
) -> None:
    """Short calls have a block in every worker; of long ones a note says how many."""
    clock = FakeClock()
    workers = [Simulated(clock, call_s) for _ in range(5)]
    for worker in workers:
        worker.compiles_s = compiles_s
    found = measure(workers, clock, max_time_s)
    assert [worker.wall.call_s for worker in found.workers] == [pytest.approx(call_s)] * measured
    assert found.notes == ([f"{note} (--rlperf-max-time, --rlperf-total-time)"] if note else [])
    if max_time_s < 1:
        assert all(worker.kinds.count(SliceKind.INTERPRETER) == 2 for worker in workers)


def test_cpu_time_used_while_waiting_is_recorded() -> None:
    """A worker that burns CPU time while another is measured is found, and only that one."""
    clock = FakeClock()
    measured = measure([Simulated(clock, 1e-3), Simulated(clock, 1e-3, idle=0.4), Simulated(clock, 1e-3)], clock)
    assert [round(worker.idle_cpu_share, 3) for worker in measured.workers] == [0.0, 0.4, 0.0]


@pytest.mark.parametrize(
    ("first", "counted"),
    [
        (Tally(((Count("", "ops", 7),),), ()), [1, 1, 0]),
        (Tally((), ("too long",)), [1, 0, 0]),
        (Tally(((Count("", "ops", 7),),), (), has_failed=True), [1, 0, 0]),
    ],
    ids=["it counts", "it declines", "it fails"],
)
def test_two_workers_count_beside_the_time_to_measure(first: Tally, counted: list[int]) -> None:
    """The second one only where the first one could; that takes nothing from what all of them measure."""
    clock, quiet = FakeClock(), FakeClock()
    workers = [Simulated(clock, 0.2) for _ in range(3)]
    workers[0].tally = first
    alone = order(MeasureAlone(6.0, None, CountAll(1.0, 6.0)), workers, clock)
    assert [worker.counted for worker in workers] == counted
    assert alone.tallies == [worker.tally for worker in workers if worker.counted]
    assert measure([Simulated(quiet, 0.2) for _ in range(3)], quiet, 6.0).workers == alone.workers
