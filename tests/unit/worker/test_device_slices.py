"""Slices of workloads on an accelerator, on a GPU in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from msgspec.structs import replace
from slice_bench import Bench
from virtual_gpu import VirtualGPU
from wording import Wording

from pytest_rlperf import wire
from pytest_rlperf.devices import devices_of, driving
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.model.device import DeviceFigures, DeviceSlice, Pace
from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord
from pytest_rlperf.pair.records import device_figures
from pytest_rlperf.report.wording import disturbances_text
from pytest_rlperf.spawn.connections import connected
from pytest_rlperf.wire import WarmUp
from pytest_rlperf.worker import rounds
from pytest_rlperf.worker.device import RETAKES
from pytest_rlperf.worker.device_state import NVML_MISSING, ConditionReader
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.rounds import Clocks, steady_shape


def told(record: SliceRecord) -> DeviceSlice:
    assert record.device is not None
    return record.device


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    with driving(made.gpu):
        yield made


def worker_figures(plain: list[SliceRecord], *other: SliceRecord) -> DeviceFigures:
    figures = device_figures(plain, other)
    assert figures is not None
    return figures


@pytest.mark.parametrize("pace", Pace)
def test_the_component_says_which_pace_is_gated_and_both_are_stored(pace: Pace) -> None:
    """Slices at the other pace make a figure of their own, which enters no other."""
    bench = Bench(pace)
    with driving(bench.gpu):
        bench.warm()
        plain = [bench.meter.take(SliceKind.PLAIN) for _ in range(3)]
        figures = worker_figures(plain, bench.meter.take(SliceKind.OTHER_PACE))
    assert figures.gated is pace
    assert figures.latency_s == pytest.approx(35e-6, abs=2e-9)
    assert figures.steady_s == pytest.approx(30e-6, abs=0.1e-6)


def test_calls_with_a_setup_cannot_follow_each_other() -> None:
    """An untimed setup between calls leaves one call a round, at either pace, and the device is idle before it."""
    bench = Bench(Pace.STEADY, setup=lambda: None)
    bench.workload = replace(bench.workload, setup=lambda: bench.gpu.launch(50e-6))
    meter = Meter(bench.workload, dict, Clocks(bench.gpu.clock, bench.gpu.clock, 76.0), bench.library)
    with driving(bench.gpu):
        meter.check()
        assert meter.warm_up(WarmUp(1.0)).shape.iterations == 1
        assert meter.take(SliceKind.PLAIN).call_s == pytest.approx(35e-6, abs=2e-9)


@pytest.mark.parametrize(("call_s", "calls"), [(35e-6, 429), (5e-3, 8), (50e-3, 5), (10.0, 2)])
def test_a_steady_round_has_calls_enough_to_overlap(call_s: float, calls: int) -> None:
    """Long calls have eight of them or a quarter of a second, two at the least."""
    shape = Shape(1, max(1, round(0.015 / call_s)), long=call_s >= 0.002)
    assert steady_shape(shape, call_s, single=False) == Shape(calls, 1, long=call_s >= 0.002)
    assert steady_shape(shape, call_s, single=True) == shape


def test_known_slowdowns_are_real_at_the_steady_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extra work comes after the wait for the device: hidden behind its work it would be none."""
    steady = Bench(Pace.STEADY)
    monkeypatch.setattr(rounds, "work", lambda steps: steady.gpu.host(steps * 1e-6))  # virtual time sees no arithmetic
    with driving(steady.gpu):
        steady.warm()
        plain = steady.meter.take(SliceKind.PLAIN)
        steady.meter.slow_down(0.1, 100)
        slowed = steady.meter.take(SliceKind.PLAIN)
    assert slowed.rounds_s - plain.rounds_s == pytest.approx(100e-6, abs=1e-9)


def test_time_and_cycles_are_both_kept(bench: Bench) -> None:
    """35 µs at 1.5 GHz are 52 500 cycles, at 1 GHz 35 000."""
    bench.warm()
    record = bench.meter.take(SliceKind.PLAIN)
    bench.gpu.sm_clock_hz = 1e9
    slower = bench.meter.take(SliceKind.PLAIN)
    assert told(record).cycles == pytest.approx(52_500, rel=1e-3)
    assert told(slower).cycles == pytest.approx(35_000, rel=1e-3)


def test_a_throttled_slice_is_retaken(bench: Bench) -> None:
    """One that was throttled at its edge is thrown away, and counted; the next one stands."""
    bench.warm()
    bench.gpu.throttle("power brake", slowdown=2.0)
    released = bench.calls + 5

    def cool() -> None:
        if bench.calls == released:
            bench.gpu.throttle()

    bench.then = cool
    record = bench.meter.take(SliceKind.PLAIN)
    assert (reasons_of(told(record)), told(record).retaken) == ("", 1)
    assert record.call_s == pytest.approx(35e-6, abs=2e-9)
    assert worker_figures([record]).retaken == 1


def test_a_device_that_stays_throttled_is_given_up(bench: Bench, wording: Wording) -> None:
    """All tries of a slice throttled say by what and how often; later slices are not retaken again and again."""
    bench.warm()
    bench.gpu.throttle("hardware thermal slowdown", slowdown=2.0)
    record = bench.meter.take(SliceKind.PLAIN)
    assert reasons_of(told(record)) == wording
    assert told(record).retaken == RETAKES
    calls = bench.calls
    assert bench.meter.take(SliceKind.PLAIN).device is not None
    assert bench.calls - calls == record.calls
    assert reasons_of(worker_figures([record])) == reasons_of(told(record))


def reasons_of(found: DeviceSlice | DeviceFigures) -> str:
    """Return why a slice or a worker's figures do not count, empty where they do."""
    return disturbances_text(found.disturbances)


def test_a_power_cap_disturbs_nothing(bench: Bench) -> None:
    """It is a GPU's full load, and among the conditions."""
    bench.warm()
    bench.gpu.throttle("power cap", slowdown=1.3)
    figures = worker_figures([bench.meter.take(SliceKind.PLAIN)])
    assert figures.conditions is not None
    assert (reasons_of(figures), figures.retaken, figures.conditions.throttled) == ("", 0, ("power cap",))


def test_an_allocation_during_a_slice_disturbs_it(bench: Bench) -> None:
    """An allocation without a cached block takes the driver's time, once."""
    bench.warm()
    kept = []
    once = iter([4096])
    bench.then = lambda: kept.append(bench.gpu.allocate(size)) if (size := next(once, 0)) else None
    record = bench.meter.take(SliceKind.PLAIN)
    assert (reasons_of(told(record)), told(record).retaken, told(record).allocations) == ("", 1, 0.0)
    assert told(record).peak_bytes == (1 << 20) + 4096


def test_what_allocates_in_every_call_is_counted_and_no_disturbance(bench: Bench, wording: Wording) -> None:
    """Asking for memory however long it is warmed up is the workload's own work; it is said, too."""
    kept = []
    bench.then = lambda: kept.append(bench.gpu.allocate(512))
    bench.warm()
    record = bench.meter.take(SliceKind.PLAIN)
    assert reasons_of(told(record)) == ""
    assert told(record).allocations == 1.0
    assert told(record).notes == wording


def test_warming_up_goes_on_until_the_device_has_settled(bench: Bench) -> None:
    """Code that is compiled late, memory asked for late and a clock that rises are not measured."""
    kept = []

    def late() -> None:
        now_s = bench.gpu.clock.now_ns / 1e9
        bench.gpu.sm_clock_hz = min(1.5e9, 1e9 + 1e9 * now_s)
        if now_s < 0.6:
            kept.append(bench.gpu.allocate(512))
        if now_s < 0.7:
            bench.gpu.compile(1e-5)

    bench.then = late
    assert bench.warm(1.0).warm_up_s > 0.7
    record = bench.meter.take(SliceKind.PLAIN)
    assert (reasons_of(told(record)), told(record).retaken, told(record).notes) == ("", 0, ())


def test_a_device_that_nobody_tells_of_is_measured_with_a_note(bench: Bench, wording: Wording) -> None:
    """Without NVML there are times, no cycles, and the way to have them."""
    bench.library.reader = ConditionReader(NVML_MISSING)
    bench.warm()
    record = bench.meter.take(SliceKind.PLAIN)
    assert (told(record).cycles, told(record).before, told(record).after) == (None, None, None)
    assert told(record).notes[0] == wording


def test_a_lost_device_is_named_with_its_librarys_error(bench: Bench, wording: Wording) -> None:
    """It is no error of the workload's: its own launch may be the first to fail, or what is read before a slice.

    A device that still answers is not blamed.
    """
    bench.warm()
    bench.then = lambda: [].pop()
    with pytest.raises(IndexError):
        bench.meter.take(SliceKind.PLAIN)
    bench.then = bench.gpu.lose
    for _ in range(2):
        with wording.raises(MeasurementError):
            bench.meter.take(SliceKind.PLAIN)


def test_a_device_that_nothing_leads_to_is_known_by_its_use() -> None:
    """A call may make its tensors by itself, or find them in a module: the host's clock would time its launches."""
    bench, module = Bench(), ModuleType("theirs")
    module.work = bench.call  # type: ignore[attr-defined]

    def call() -> None:
        module.work()

    assert devices_of([call]) == ()
    bench.workload = replace(bench.workload, holds=(call,), call=call, check=call)
    bench.meter = bench.metered()
    with pytest.raises(MeasurementError, match="virtual:0"):
        bench.meter.check()  # nobody drives it
    with driving(bench.gpu):
        bench.meter.check()
    assert bench.meter.device is not None
    assert bench.meter.device.name == "virtual:0"


def test_a_second_device_in_use_is_an_error(bench: Bench, wording: Wording) -> None:
    """Tensors on one device and work on another: waiting for the first tells nothing of the second."""
    other = VirtualGPU("virtual:1")
    bench.workload = replace(bench.workload, holds=(other.allocate(8),))
    bench.meter = bench.metered()
    with driving(other), wording.raises(MeasurementError):
        bench.meter.check()


def test_traced_slices_have_phases_by_both_clocks(bench: Bench) -> None:
    """The host is done with the launches after 15 µs, the device with the kernels after 35."""
    bench.warm()
    record = bench.meter.take(SliceKind.TRACED)
    (phase,) = record.phases
    assert (phase.path, phase.device, phase.count) == ("kernels", "virtual:0", 1.0)
    assert phase.total_s == pytest.approx(15e-6, abs=1e-9)
    times = phase.on_device
    assert times is not None
    assert times.span_s == pytest.approx(35e-6, abs=1e-6)
    assert times.lag_out_s == pytest.approx(20e-6, abs=1e-6)
    assert not times.is_synced
    assert (times.peak_bytes, times.allocations) == (1 << 20, 0.0)
    assert record.rounds_s / record.calls == pytest.approx(35e-6, abs=1e-9), "reading the tape is no part of a call"


def test_slices_cross_to_the_run_whole(bench: Bench) -> None:
    """A slice's device fields are in its message unchanged."""
    bench.warm()
    bench.gpu.throttle("power brake")
    here, there = connected()
    for kind in (SliceKind.PLAIN, SliceKind.TRACED):
        record = bench.meter.take(kind)
        wire.send(there, wire.Answer(1, record))
        answer = wire.receive(here, wire.FromWorker)
        assert isinstance(answer, wire.Answer)
        assert wire.answer_to(wire.Take(kind), answer) == record
