"""The clock, the tape and memory on a real CUDA device; what is tested in virtual time elsewhere, once more."""

from __future__ import annotations

from typing import Any

import pytest

from gpu.bench import iteration
from gpu.conftest import CUDA_MARKS, skip_without_cuda
from pytest_rlperf.devices import clock_for, devices_of
from pytest_rlperf.devices.clocks import DeviceClockError, EventClock
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.devices.torch import CudaDriver
from pytest_rlperf.model.device import Bound, DeviceTimes
from pytest_rlperf.model.measured import Phase
from pytest_rlperf.timers import hierarchical_timer as timer

CYCLES = 20_000_000  # of a kernel that only waits: some 10 ms


pytestmark = [*CUDA_MARKS]


@pytest.fixture
def cuda() -> Any:
    """Return ``torch.cuda``, with nothing left to do."""
    skip_without_cuda()
    import torch

    torch.cuda.synchronize()
    return torch.cuda


@pytest.fixture
def clock(cuda: Any) -> EventClock:
    found = clock_for(["cuda:0"])
    assert isinstance(found, EventClock)
    return found


def wait(cuda: Any, share: float = 1.0) -> None:
    """Have the device wait; the host goes on."""
    cuda._sleep(int(CYCLES * share))


def times_of(phase: Phase) -> DeviceTimes:
    assert phase.on_device is not None
    return phase.on_device


def test_the_clock_has_the_devices_time_not_the_launches(cuda: Any, clock: EventClock) -> None:
    """Marks around a long kernel are its length apart, twice that around two, and the host was there at once."""
    wait(cuda)
    clock.synchronize()
    start = clock.mark()
    wait(cuda)
    middle = clock.mark()
    wait(cuda)
    wait(cuda)
    end = clock.mark()
    with pytest.raises(DeviceClockError, match=r"Call synchronize\(\)"):
        clock.elapsed_ns(start, end)
    clock.synchronize()
    one_ns = clock.elapsed_ns(start, middle)
    assert clock.elapsed_ns(middle, end) == pytest.approx(2 * one_ns, rel=0.2)
    assert end.host_ns - start.host_ns < one_ns
    assert clock.grown == 0
    assert "name" in clock.state()


def test_phases_add_up_and_have_their_bounds(cuda: Any, clock: EventClock) -> None:
    """Queued work is device-bound, a wait is an implicit sync, and children with gaps are the parent."""
    import torch

    tape = Tape(clock)
    value = torch.ones(1, device="cuda:0")
    for _ in range(3):
        with iteration(tape), timer("update"):
            with timer("forward"):
                wait(cuda)
            with timer("loss"):
                value.item()
        tape.resolve()
    update, forward, loss = (times_of(phase) for phase in tape.phases())
    assert (forward.bound, loss.bound, update.bound) == (Bound.DEVICE, Bound.SYNC, Bound.SYNC)
    assert update.span_s == pytest.approx((update.self_s or 0) + (forward.span_s or 0) + (loss.span_s or 0), abs=1e-12)
    assert tape.notes == ()


def test_small_kernels_are_launch_bound(cuda: Any, clock: EventClock) -> None:
    """A device that waits for launches is never far behind."""
    import torch

    value = torch.ones(8, device="cuda:0")
    tape = Tape(clock)
    for _ in range(5):
        with iteration(tape), timer("small"):
            for _ in range(50):
                value.add_(1)
        tape.resolve()
    assert times_of(tape.phases()[0]).bound is Bound.LAUNCH


def test_a_phase_on_a_side_stream_has_its_own_edges(cuda: Any, clock: EventClock) -> None:
    """Both edges are the side stream's, and so is the span."""
    side = cuda.Stream()
    tape = Tape(clock)
    with iteration(tape), cuda.stream(side), timer("copy"):
        wait(cuda)
    (copy,) = (times_of(phase) for phase in tape.resolve())
    assert copy.stream == "side 1"
    assert (copy.span_s or 0) > 1e-3


def test_unseen_work_is_named(cuda: Any, clock: EventClock) -> None:
    """A kernel on a stream that is current at no edge shows in the last wait."""
    side = cuda.Stream()
    tape = Tape(clock)
    with iteration(tape), timer("call"), cuda.stream(side):
        wait(cuda, 4.0)
    tape.resolve()
    assert tape.unseen_s > 1e-3
    assert "on streams that were current at no phase's edge" in tape.notes[0]


def test_graphs_are_captured_without_events_and_replayed_as_phases(cuda: Any, clock: EventClock) -> None:
    """Capturing with timers inside succeeds, is named, and the replay has a span."""
    import torch

    value = torch.ones(1024, device="cuda:0")
    value.add_(1)
    tape = Tape(clock)
    graph = cuda.CUDAGraph()
    with iteration(tape):
        with cuda.graph(graph), timer("inside"):
            value.add_(1)
        with timer("replay"):
            graph.replay()
    phases = {phase.path: phase for phase in tape.resolve()}
    assert phases["inside"].on_device is None
    assert (times_of(phases["replay"]).span_s or 0) > 0
    assert tape.notes == ("captured into a graph, and so without times of cuda:0: inside",)


def test_memory_and_waits_are_counted(cuda: Any, clock: EventClock) -> None:
    """Peaks nest, allocations are the device's own, and waits in step are counted."""
    import torch

    cuda.empty_cache()
    tape = Tape(clock)
    size = 64 * 2**20
    for look in (False, True):
        with iteration(tape, look=look), timer("outer"):
            with timer("large"):
                torch.empty(size, dtype=torch.uint8, device="cuda:0")
            with timer("small"):
                torch.ones(1, device="cuda:0").item()
        cuda.empty_cache()
    outer, large, small = (times_of(phase) for phase in tape.resolve())
    assert (outer.peak_bytes or 0) >= (large.peak_bytes or 0) >= size > (small.peak_bytes or 0)
    assert (large.allocations or 0) >= 1
    assert small.bound is Bound.SYNC
    assert cuda.get_sync_debug_mode() == 0


def test_backward_hooks_on_autograds_thread_are_kept_apart(cuda: Any, clock: EventClock) -> None:
    """Phases within a backward pass, which CUDA runs on another thread, are beside the others."""
    import torch

    def hook(gradient: Any) -> Any:
        with timer("hook"):
            return gradient

    tape = Tape(clock)
    product: Any = torch.ones(8, device="cuda:0", requires_grad=True) * 2
    product.register_hook(hook)
    with iteration(tape), timer("backward"):
        product.sum().backward()
    assert [phase.path for phase in tape.resolve()] == ["backward"]
    assert [[phase.path for phase in phases] for phases in tape.beside().values()] == [["hook"]]


def test_a_workload_on_the_device_is_found_there(cuda: Any) -> None:
    """Modules on the device name it, and its driver names the GPU."""
    import torch

    assert devices_of([torch.nn.Linear(2, 2).to("cuda:0")]) == ("cuda:0",)
    assert CudaDriver("cuda").device == "cuda:0"
    assert CudaDriver("cuda:0").state()["name"] == cuda.get_device_name(0)
