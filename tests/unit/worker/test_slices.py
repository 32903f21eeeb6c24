"""One process's slices, by a clock that stands still."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.model.durations import SLICE_S, TURN_S
from pytest_rlperf.model.measured import Shape, SliceKind, Workload
from pytest_rlperf.timers import FakeClock, hierarchical_timer
from pytest_rlperf.wire import WarmUp
from pytest_rlperf.worker.kernels import make_kernels
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.resources import used_by_others_ns
from pytest_rlperf.worker.rounds import Clocks, slice_figure_ns, slice_shape


def workload(call: Callable[[], object], **changes: object) -> Workload:
    """Return a workload of ``call``, with whatever else a test sets."""
    settings: dict[str, object] = {
        "component": "callable",
        "items": 4.0,
        "unit": "thing",
        "check": lambda: None,
    }
    return Workload(call=call, **(settings | changes))  # type: ignore[arg-type]


def meter(work: Workload, clock: FakeClock) -> Meter:
    """Return a meter whose clocks are ``clock``; its resolution is 76 ns, and its kernel takes 50 µs."""
    kernels = {SliceKind.INTERPRETER: lambda: clock.advance(50e-6)}
    return Meter(work, lambda: kernels, Clocks(clock, clock, 76.0))


@given(call_s=st.floats(1e-9, 100))
def test_a_slice_is_10_to_20_ms_or_one_round(call_s: float) -> None:
    """Rounds are long enough for the clock, and slices as long as a turn, where calls allow."""
    shape = slice_shape(call_s, 76.0, single=False)
    round_s = shape.iterations * call_s
    assert round_s >= 1000 * 76e-9 * 0.999 or call_s < 1e-9
    assert 0.01 <= shape.rounds * round_s <= 0.02 or shape.rounds == 1
    assert shape.iterations == 1 or (shape.iterations - 1) * call_s < 1000 * 76e-9


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("ends", ["returns", "raises", "leaves"])
def test_a_call_that_goes_on_in_a_copy_of_the_process_is_refused(ends: str, wording: Wording) -> None:
    """The copy ends where it returns from the call or raises, so that it measures nothing; one that ends is fine."""
    own = os.getpid()
    copies: list[int] = []

    def call() -> None:
        if copy := os.fork():
            copies.append(copy)
        elif ends == "leaves":
            os._exit(7)
        elif ends == "raises":
            raise KeyboardInterrupt

    subject = meter(workload(call, check=call), FakeClock())
    if ends == "leaves":
        subject.check()
    else:
        with wording.raises(MeasurementError):
            subject.check()
    assert os.getpid() == own
    assert {os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) for copy in copies} == {7 if ends == "leaves" else 1}


def test_short_calls_are_told_by_the_median_and_long_ones_by_the_mean() -> None:
    """A stall in a slice of many rounds does not move its figure; a slice of few long calls has no median.

    An untimed setup before each call leaves no back-to-back calls, however short they are.
    """
    assert slice_shape(1e-6, 76.0, single=True) == Shape(iterations=1, rounds=15000, long=False)
    assert slice_figure_ns([100_000, 100_000, 2_000_000], Shape(10, 3, long=False)) == 10_000
    assert slice_figure_ns([10_000_000, 14_000_000], Shape(1, 2, long=True)) == 12_000_000


def test_calls_of_different_lengths_are_told_by_their_mean() -> None:
    """Three calls of 1 ms and one of 6.5 ms, as of a delayed actor, are long calls, of 2.4 ms on both clocks."""
    clock = FakeClock()
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock.advance(6.5e-3 if calls[0] % 4 == 0 else 1e-3)

    subject = meter(workload(call), clock)
    shape = subject.warm_up(WarmUp(10.0)).shape
    assert shape.long
    records = [subject.take(SliceKind.PLAIN) for _ in range(20)]
    assert sum(record.call_s for record in records) / 20 == pytest.approx(2.375e-3, rel=0.1)
    assert all(record.cpu_s == pytest.approx(record.wall_s) for record in records)


def test_the_stored_figure_is_kept_to() -> None:
    """A test with a baseline of long calls is judged by their mean, also where calls have become short."""
    clock = FakeClock()
    subject = meter(workload(lambda: clock.advance(1.9e-3)), clock)
    assert not subject.warm_up(WarmUp(1.0)).shape.long
    assert subject.warm_up(WarmUp(1.0, long=True)).shape.long


def test_a_slice_reports_what_its_calls_took() -> None:
    """A workload of 50 µs a call is measured at 50 µs, in a slice of its size, with its items."""
    clock = FakeClock()
    subject = meter(workload(lambda: clock.advance(50e-6)), clock)
    warm = subject.warm_up(WarmUp(10.0))
    record = subject.take(SliceKind.PLAIN)
    assert warm.call_s == pytest.approx(50e-6)
    assert record.call_s == pytest.approx(50e-6)
    assert record.rounds_s == pytest.approx(SLICE_S, rel=0.1)
    assert record.items == 4 * record.calls
    assert record.phases == ()
    subject.warm_up(WarmUp(10.0, kernels=False))
    assert subject.take(SliceKind.PLAIN).rounds_s == pytest.approx(TURN_S, rel=0.1)


def test_warming_up_ends_after_as_many_calls_as_another_process_made() -> None:
    """So the slices of both have the same calls, by number: those of the check and of warming up come before."""
    clock, calls = FakeClock(), [0]

    def call() -> None:
        calls[0] += 1
        clock.advance(50e-6)

    first, second = (meter(workload(call, check=call), clock) for _ in range(2))
    first.check()
    warm = first.warm_up(WarmUp(10.0, kernels=False))
    assert calls == [warm.calls]
    slices = [first.take(SliceKind.PLAIN) for _ in range(2)]
    assert [each.first_call for each in slices] == [warm.calls, warm.calls + slices[0].calls]
    calls[0] = 0
    second.made(7)  # while counting
    calls[0] = 7
    second.warm_up(WarmUp(10.0, warm.shape, kernels=False, calls=warm.calls))
    assert calls == [warm.calls]
    record = second.take(SliceKind.PLAIN)
    assert record.first_call == warm.calls
    third = meter(workload(call, check=call), clock)
    third.check()
    sooner = third.warm_up(WarmUp(0.03, warm.shape, kernels=False, calls=warm.calls, exactly=False)).calls
    assert sooner < warm.calls
    assert (warm.calls - sooner) % record.calls == 0
    assert third.take(SliceKind.PLAIN).first_call == sooner
    assert sum(record.rounds_ns) == pytest.approx(1e9 * record.rounds_s)


@pytest.mark.parametrize(("check_s", "single"), [(1.0, True), (0.001, None)])
def test_a_call_too_long_to_warm_up_with_shows_whether_one_thread_works(check_s: float, single: bool | None) -> None:
    """The checked call does, where no other is made before the slices; it is in a process without others' threads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as processes:
        assert processes.submit(_single_after_a_check, check_s).result() is single


def _single_after_a_check(check_s: float) -> bool | None:
    """Return whether one thread works, by a checked call of so many seconds."""
    clock = FakeClock()

    def check() -> None:
        clock.advance(check_s)
        time.sleep(0.1)

    subject = meter(workload(lambda: None, check=check), clock)
    subject.check()
    return subject.warm_up(WarmUp(0.0, kernels=False)).single


def works_off_turn(begin: Any, has_ended: Any) -> None:
    """Work for 50 ms whenever ``begin`` is set; then set ``has_ended``."""
    while begin.wait(60):
        begin.clear()
        end_s = time.thread_time() + 0.05
        while time.thread_time() < end_s:
            pass
        has_ended.set()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the times of threads and processes")
@pytest.mark.parametrize("of", [threading, multiprocessing], ids=["thread", "process"])
def test_what_calls_leave_to_others_shows_in_the_slice_after_it(of: ModuleType) -> None:
    """A thread or a child process that works on, while it is another worker's turn, does what no slice has timed."""
    clock, context = FakeClock(), multiprocessing.get_context("fork") if of is multiprocessing else threading
    begin, has_ended = context.Event(), context.Event()
    other = (threading.Thread if of is threading else context.Process)(
        target=works_off_turn, args=(begin, has_ended), daemon=True
    )
    other.start()
    subject = meter(workload(lambda: clock.advance(1e-3)), clock)
    subject.warm_up(WarmUp(0.1, kernels=False))
    subject.take(SliceKind.PLAIN)
    begin.set()
    assert has_ended.wait(60)
    assert 0.04 < subject.take(SliceKind.PLAIN).off_turn_s < 0.2
    assert subject.take(SliceKind.PLAIN).off_turn_s < 0.01
    if isinstance(other, multiprocessing.process.BaseProcess):
        other.kill()
        other.join()


def test_an_import_is_timed_by_its_own_clock() -> None:
    """A component that does its work in child processes has a clock of these, and waits for them alone."""
    clock, children = FakeClock(), FakeClock()

    def call() -> None:
        clock.advance(3.0)
        children.advance(2.0)
        time.sleep(0.001)

    subject = meter(workload(call, children_ns=children), clock)
    subject.check()
    subject.warm_up(WarmUp(10.0, kernels=False))
    record = subject.take(SliceKind.PLAIN)
    assert (record.wall_s, record.cpu_s, record.waits) == (3.0, 2.0, 0)


def test_calls_that_take_much_longer_than_in_the_other_process_end_warming_up_in_time() -> None:
    """A process makes no more calls than it has time for."""
    clock = FakeClock()
    subject = meter(workload(lambda: clock.advance(0.1)), clock)
    assert subject.warm_up(WarmUp(0.5, kernels=False, calls=1000)).warm_up_s == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize(
    ("asks", "threshold"),
    [(True, gc.get_threshold()[0]), (False, gc.get_threshold()[0]), pytest.param(True, 0, id="never by itself")],
)
def test_a_full_collection_costs_what_it_costs_with_all_objects(asks: bool, threshold: int) -> None:
    """Warming up freezes objects, which a collection in a slice does not walk; none that the code asks for is none."""
    usual = gc.get_threshold()
    kept = [{"number": number} for number in range(20_000)]

    def call() -> None:
        if asks:
            gc.collect()
        else:
            [{} for _ in range(2_000)]  # the collector runs by itself

    clock = FakeClock()
    subject = Meter(workload(call), dict, Clocks(clock, time.process_time_ns, 76.0))
    try:
        gc.set_threshold(threshold, *usual[1:])
        subject.warm_up(WarmUp(0.0, Shape(1, 1, long=False), kernels=False))
        own_s, frozen_s = subject.collecting_s(20), subject.take(SliceKind.PLAIN).cpu_s
    finally:
        gc.set_threshold(*usual)
        subject.thaw()
    assert len(kept) == 20_000
    assert (own_s > 2 * frozen_s) if asks else (own_s == 0.0)


def test_warming_up_ends_when_calls_stop_getting_faster() -> None:
    """Calls that get faster for half a second are not measured before they are at their pace."""
    clock = FakeClock()

    def call() -> None:
        clock.advance(1e-3 if clock.now_ns > 5e8 else 3e-3 - 4e-12 * clock.now_ns)

    warm = meter(workload(call), clock).warm_up(WarmUp(10.0))
    assert warm.call_s == pytest.approx(1e-3, rel=0.05)
    assert 0.5 <= warm.warm_up_s < 1.0


def test_warming_up_keeps_to_its_limit() -> None:
    """A workload that never settles is cut off; without time the checked call stands for the pace."""
    clock = FakeClock()
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock.advance(1.0 / calls[0])

    assert meter(workload(call), clock).warm_up(WarmUp(1.0)).warm_up_s < 2.5
    calls[0] = 0
    subject = meter(workload(call, check=call), clock)
    assert subject.check() == (1.0, None)
    assert subject.warm_up(WarmUp(0.0)).call_s == 1.0
    assert calls == [1]


def test_waiting_is_told_from_working() -> None:
    """A process that gives up its CPU by itself is seen to; one that computes is not."""
    working = Meter(workload(lambda: sum(range(1000))), make_kernels)
    working.warm_up(WarmUp(0.05))
    waiting = Meter(workload(lambda: select.select([], [], [], 0.001)), make_kernels)
    waiting.warm_up(WarmUp(0.05))
    assert min(working.take(SliceKind.PLAIN).waits for _ in range(5)) == 0
    record = waiting.take(SliceKind.PLAIN)
    assert record.waits >= record.calls


def test_traced_slices_have_phases_per_call() -> None:
    """A traced slice tells each scope's time in one call; setups are neither timed, on either clock, nor traced."""
    clock = FakeClock()

    def call() -> None:
        with hierarchical_timer("work"):
            clock.advance(2e-3)
        clock.advance(1e-3)

    def setup() -> None:
        with hierarchical_timer("setup"):
            clock.advance(5e-3)

    subject = meter(workload(call, setup=setup), clock)
    subject.warm_up(WarmUp(1.0))
    record = subject.take(SliceKind.TRACED)
    assert record.wall_s == record.cpu_s == pytest.approx(3e-3 * record.calls)
    assert [(phase.path, phase.count) for phase in record.phases] == [("work", 1.0)]
    assert record.phases[0].total_s == pytest.approx(2e-3)
    assert record.rounds_s / record.calls == pytest.approx(3e-3)
    assert subject.take(SliceKind.PLAIN).phases == ()


def test_a_call_that_fails_under_tracing_alone_has_no_phases() -> None:
    """Its traced slices are plain ones, and say why; the call was made once more without tracing, with its setup."""
    clock, made = FakeClock(), list[str]()

    def call() -> None:
        made.append("call")
        with hierarchical_timer("work"):
            clock.advance(1e-3)
        if made[-3:-1] == ["traced", "setup"]:
            raise ValueError("it broke")

    subject = meter(workload(call, setup=lambda: made.append("setup")), clock)
    subject.warm_up(WarmUp(1.0))
    made.append("traced")
    record = subject.take(SliceKind.TRACED)
    assert made.count("traced") == 1
    before = made.index("traced")
    assert made[before + 1 : before + 5] == ["setup", "call"] * 2
    assert len(made) - before - 1 == 2 * (2 + record.calls)
    assert record.kind is SliceKind.TRACED
    assert record.phases == ()
    assert record.note.endswith(": ValueError: it broke")
    assert record.call_s == pytest.approx(1e-3)
    assert record.items == 4 * record.calls
    again = subject.take(SliceKind.TRACED)
    assert (again.phases, again.note) == ((), record.note)
    assert subject.take(SliceKind.PLAIN).note == ""


def test_a_call_that_fails_without_tracing_too_raises() -> None:
    """Whatever the slice is that it fails in first."""
    clock, is_broken = FakeClock(), list[bool]()

    def call() -> None:
        clock.advance(1e-3)
        if is_broken:
            raise ValueError(f"it broke {len(is_broken)} times")

    subject = meter(workload(call), clock)
    subject.warm_up(WarmUp(1.0))
    assert subject.take(SliceKind.TRACED).note == ""
    is_broken.append(True)
    with pytest.raises(ValueError, match="it broke"):
        subject.take(SliceKind.TRACED)


def test_items_and_collections_are_those_of_a_slice() -> None:
    """A workload's own count of items is read after each slice; garbage that it makes is collected within."""
    clock = FakeClock()
    counted: list[float] = []

    def call() -> None:
        counted.append(3.0)
        for _ in range(400):
            cycle: list[object] = []
            cycle.append(cycle)
        clock.advance(1e-3)

    def count() -> float:
        items = sum(counted)
        counted.clear()
        return items

    subject = meter(workload(call, count=count), clock)
    gc.unfreeze()
    try:
        subject.warm_up(WarmUp(0.5))
        assert gc.get_freeze_count() > 0
        record = subject.take(SliceKind.PLAIN)
        assert record.items == 3 * record.calls
        assert record.collections > 0
    finally:
        subject.thaw()
    assert gc.get_freeze_count() == 0


def test_the_thread_that_measures_is_no_background_work() -> None:
    """A test may call its fixture in any thread; another thread that works counts, the main one, too."""
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append({*used_by_others_ns()}))
    thread.start()
    thread.join()
    assert thread.native_id not in found[0]
    assert threading.main_thread().native_id in found[0]
