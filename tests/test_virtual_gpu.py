from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_gpu import VirtualEvent, VirtualGPU
from wording import Wording

from pytest_rlperf.devices.clocks import Driver, Memory
from pytest_rlperf.model.device import Conditions
from pytest_rlperf.testing import FakeClock


def recorded(gpu: VirtualGPU) -> VirtualEvent:
    event = gpu.make_event()
    gpu.record(event)
    return event


def test_a_launch_costs_the_host_its_launch_alone() -> None:
    """The host goes on after a launch; the work waits for what is queued before it."""
    gpu = VirtualGPU(launch_s=5e-6)
    driver: Driver = gpu
    start = recorded(gpu)
    gpu.launch(100e-6)
    gpu.launch(100e-6)
    assert gpu.clock.now_ns == 10_000
    end = recorded(gpu)
    driver.synchronize()
    assert gpu.clock.now_ns == 205_000
    assert driver.elapsed_ms(start, end) == pytest.approx(0.205)
    assert (gpu.launches, gpu.syncs, gpu.implicit_syncs) == (2, 1, 0)


def test_time_passes_only_by_what_is_done() -> None:
    """The host's clock is shared with its owner, and stands still by itself."""
    clock = FakeClock()
    gpu = VirtualGPU(clock=clock)
    gpu.host(1e-3)
    assert clock() == gpu.clock() == 1_000_000


def test_reading_a_value_waits_for_the_stream() -> None:
    """An item is an implicit wait for the current stream, not for others."""
    gpu = VirtualGPU(launch_s=0.0)
    gpu.launch(100e-6)
    gpu.launch(900e-6, stream=1)
    gpu.item()
    assert gpu.clock.now_ns == 100_000
    assert (gpu.syncs, gpu.implicit_syncs) == (1, 1)


@pytest.mark.parametrize("to", ["copy_to_device", "copy_to_host"])
def test_copies_of_pageable_memory_wait(to: str) -> None:
    """A copy of pinned memory is queued, one of pageable memory is waited for, and both are counted."""
    gpu = VirtualGPU(launch_s=5e-6)
    copy = getattr(gpu, to)
    copy(16_000_000, pinned=True)
    assert (gpu.clock.now_ns, gpu.syncs) == (5_000, 0)
    copy(16_000_000, pinned=False)
    assert (gpu.clock.now_ns, gpu.syncs, gpu.copies) == (2_005_000, 1, 2)
    assert gpu.counts() == {
        "syncs": 1,
        "copies_to_device": 2 * (to == "copy_to_device"),
        "copies_to_host": 2 * (to == "copy_to_host"),
        "pageable_copies": 1,
        "kernels": 0,
        "device_allocations": 0,
    }


def test_streams_run_beside_each_other_unless_one_waits() -> None:
    """Two streams overlap; a wait for an event orders one after the other."""
    gpu = VirtualGPU(launch_s=0.0)
    with gpu.use(1):
        gpu.launch(100e-6)
        first = recorded(gpu)
    gpu.launch(40e-6)
    alone = recorded(gpu)
    gpu.wait_event(first)
    gpu.launch(40e-6)
    after = recorded(gpu)
    gpu.synchronize()
    assert (alone.stamp_ns, after.stamp_ns) == (40_000, 140_000)
    assert (first.stream, after.stream) == (1, 0)


@given(st.floats(0, 10, allow_nan=False))
@settings(max_examples=50, deadline=None)
def test_elapsed_is_quantised_and_of_single_precision(seconds: float) -> None:
    """Elapsed times are multiples of half a microsecond, as far as float32 milliseconds have them."""
    gpu = VirtualGPU(launch_s=0.0)
    start = recorded(gpu)
    gpu.launch(seconds)
    end = recorded(gpu)
    gpu.synchronize()
    elapsed_ms = gpu.elapsed_ms(start, end)
    assert struct.unpack("f", struct.pack("f", elapsed_ms))[0] == elapsed_ms
    assert abs(elapsed_ms - 1e3 * seconds) <= 2.5e-4 + 1e-7 * 1e3 * seconds


def test_events_fail_as_cudas_do(wording: Wording) -> None:
    """An event that is not reached, not recorded, of another device or captured raises CUDA's error."""
    gpu, other = VirtualGPU(), VirtualGPU("virtual:1")
    start = recorded(gpu)
    gpu.launch(1e-3)
    end = recorded(gpu)
    with wording.raises(RuntimeError):
        gpu.elapsed_ms(start, end)
    with wording.raises(RuntimeError):
        gpu.elapsed_ms(start, gpu.make_event())
    with wording.raises(RuntimeError):
        gpu.elapsed_ms(start, recorded(other))
    with gpu.capture():
        captured = recorded(gpu)
    gpu.synchronize()
    with wording.raises(RuntimeError):
        gpu.elapsed_ms(start, captured)
    assert gpu.elapsed_ms(start, end) == pytest.approx(1.005, abs=1e-3)


def test_a_clock_that_drifts_is_not_the_hosts() -> None:
    """A device's clock may run faster than the host's."""
    gpu = VirtualGPU(drift=1e-3, launch_s=0.0)
    start = recorded(gpu)
    gpu.launch(1.0)
    end = recorded(gpu)
    gpu.synchronize()
    assert gpu.elapsed_ms(start, end) == pytest.approx(1001)


def test_captured_work_is_done_by_its_replay() -> None:
    """Capturing does nothing, and a replay is one launch of all captured work."""
    gpu = VirtualGPU(launch_s=5e-6)
    with gpu.capture() as graph:
        gpu.launch(100e-6)
        gpu.launch(100e-6)
        gpu.launch(150e-6, stream=1)
    gpu.synchronize()
    assert gpu.clock.now_ns == 15_000
    graph.replay()
    assert (gpu.clock.now_ns, gpu.launches, graph.launches) == (20_000, 4, 3)
    gpu.synchronize()
    assert gpu.clock.now_ns == 220_000


def test_waiting_while_capturing_is_cudas_error(wording: Wording) -> None:
    """Waits, timings, copies of pageable memory, replays and captures within a capture are not permitted."""
    gpu = VirtualGPU()
    with gpu.capture() as graph:
        pass
    start = recorded(gpu)
    with gpu.capture():
        acts: list[Callable[[], object]] = [
            gpu.synchronize,
            gpu.item,
            graph.replay,
            lambda: gpu.elapsed_ms(start, start),
            lambda: gpu.copy_to_host(8, pinned=False),
            lambda: gpu.capture().__enter__(),
        ]
        for act in acts:
            with wording.raises(RuntimeError):
                act()
        gpu.copy_to_host(8, pinned=True)
        assert gpu.is_capturing()
    assert not gpu.is_capturing()


def test_freed_memory_is_given_out_again() -> None:
    """Of three allocations, the device makes two."""
    gpu = VirtualGPU()
    small, large = gpu.allocate(100), gpu.allocate(5000)
    assert (small.device, small.size_bytes) == ("virtual:0", 100)
    assert gpu.memory() == Memory(allocated_bytes=512 + 5120, peak_bytes=512 + 5120, allocations=2)
    large.free()
    large.free()
    assert gpu.memory() == Memory(512, 512 + 5120, 2)
    asked_ns = gpu.clock.now_ns
    gpu.reset_peak()
    gpu.allocate(3000)
    assert gpu.memory() == Memory(512 + 5120, 512 + 5120, 2)
    assert gpu.clock.now_ns == asked_ns
    with pytest.raises(ValueError, match="negative size: -1"):
        gpu.allocate(-1)


def test_conditions_are_what_was_set() -> None:
    """Throttling slows later work down, and shows in the conditions."""
    gpu = VirtualGPU(launch_s=0.0)
    assert gpu.conditions() == Conditions(1.5e9, 2.6e9, 40.0, (), 0)
    gpu.throttle("power cap", slowdown=2.0)
    gpu.temperature_c = 90.0
    gpu.others = 1
    assert gpu.conditions() == Conditions(0.75e9, 2.6e9, 90.0, ("power cap",), 1)
    gpu.launch(1e-3)
    gpu.item()
    assert gpu.clock.now_ns == 2_000_000
    gpu.throttle()
    gpu.launch(1e-3)
    gpu.item()
    assert gpu.clock.now_ns == 3_000_000


def test_compiling_takes_the_host_and_is_counted() -> None:
    """A recompile mid-run shows in a count and in the host's time."""
    gpu = VirtualGPU()
    gpu.compile(0.5)
    assert (gpu.recompiles, gpu.clock.now_ns) == (1, 500_000_000)


@pytest.mark.parametrize("act", ["launch", "item", "synchronize", "record", "make_event", "allocate", "conditions"])
def test_a_lost_device_refuses_everything(act: str, wording: Wording) -> None:
    """Every call of a lost device is an error that names it."""
    gpu = VirtualGPU("virtual:3")
    arguments: dict[str, tuple[object, ...]] = {"launch": (1e-3,), "record": (gpu.make_event(),), "allocate": (8,)}
    gpu.lose()
    with wording.raises(RuntimeError):
        getattr(gpu, act)(*arguments.get(act, ()))
