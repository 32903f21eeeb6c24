from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_gpu import VirtualEvent, VirtualGPU
from wording import Wording

from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, SyncClock
from pytest_rlperf.devices.entries import Entry
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model.device import Bound, DeviceTimes
from pytest_rlperf.model.measured import Phase
from pytest_rlperf.timers import hierarchical_timer as timer
from pytest_rlperf.timers import recording_into

QUANTUM_S = 0.5e-6
US = 1e-6
MS = 1e-3


def tape_on(gpu: VirtualGPU, pool_size: int = 64) -> Tape:
    return Tape(EventClock(gpu, pool_size, gpu.clock))


@contextmanager
def iteration(tape: Tape, *, look: bool = False) -> Iterator[None]:
    tape.begin_iteration(look=look)
    with recording_into(tape.tree):
        yield
    tape.end_iteration()


def phases_of(gpu: VirtualGPU, work: Callable[[], object], *, iterations: int = 1) -> dict[str, Phase]:
    """Return the phases of ``work`` by path, resolved after each iteration."""
    tape = tape_on(gpu)
    for _ in range(iterations):
        with iteration(tape):
            work()
        tape.resolve()
    return {phase.path: phase for phase in tape.phases()}


def times_of(phase: Phase) -> DeviceTimes:
    assert phase.on_device is not None
    return phase.on_device


def test_host_and_device_times_are_different_figures() -> None:
    """A phase that queues 1 ms of work takes the host one launch and the device a millisecond."""
    gpu = VirtualGPU(launch_s=5 * US)

    def work() -> None:
        with timer("forward"):
            gpu.launch(1 * MS)
        with timer("backward"):
            gpu.launch(2 * MS)

    phases = phases_of(gpu, work, iterations=3)
    forward, backward = phases["forward"], phases["backward"]
    assert (forward.device, forward.count) == ("virtual:0", 1.0)
    assert forward.total_s == pytest.approx(5 * US)
    times = times_of(forward)
    assert times.span_s == times.self_s == pytest.approx(1.005 * MS, abs=QUANTUM_S)
    assert times.lag_in_s == pytest.approx(0.0, abs=QUANTUM_S)
    assert times.lag_out_s == pytest.approx(1 * MS, abs=QUANTUM_S)
    assert (times.stream, times.is_synced, times.peak_bytes, times.allocations) == ("main", False, None, None)
    # The device is a millisecond late when the phase begins, and three when it ends.
    assert times_of(backward).lag_in_s == pytest.approx(1 * MS, abs=QUANTUM_S)
    assert times_of(backward).lag_out_s == pytest.approx(2.995 * MS, abs=QUANTUM_S)
    assert times_of(backward).span_s == pytest.approx(2 * MS, abs=QUANTUM_S)


def test_between_edges_nothing_waits_and_nothing_is_made() -> None:
    """The one wait is the last; after the first iteration no event is made, however many are recorded."""
    gpu = VirtualGPU()
    tape = tape_on(gpu, pool_size=4)
    made = []
    for _ in range(4):
        syncs = gpu.syncs
        with iteration(tape):
            for _ in range(10):
                with timer("outer"), timer("inner"):
                    gpu.launch(10 * US)
        assert gpu.syncs == syncs
        tape.resolve()
        assert gpu.syncs == syncs + 1
        made.append(gpu.events_made)
    assert made == [4, 42, 42, 42]


def test_an_iteration_that_was_short_of_events_is_left_out_and_said(wording: Wording) -> None:
    """The pool grows between iterations, never within; what it was too small for does not count."""
    gpu = VirtualGPU()
    tape = tape_on(gpu, pool_size=3)
    for _ in range(2):
        with iteration(tape), timer("outer"), timer("inner"):
            gpu.launch(10 * US)
        tape.resolve()
    assert (tape.dropped, tape.iterations) == (1, 1)
    assert [phase.count for phase in tape.phases()] == [1.0, 1.0]
    assert tape.notes == wording


program = st.recursive(
    st.lists(
        st.one_of(
            st.tuples(st.just("launch"), st.floats(0, 500 * US)),
            st.tuples(st.just("host"), st.floats(0, 500 * US)),
            st.tuples(st.just("item"), st.just(0.0)),
        ),
        max_size=4,
    ),
    lambda inner: st.lists(st.tuples(st.sampled_from("abc"), inner), min_size=1, max_size=3),
    max_leaves=12,
)


def run(gpu: VirtualGPU, steps: list[Any]) -> None:
    """Do what a random program says: work, or phases that do."""
    for act, argument in steps:
        if isinstance(argument, list):
            with timer(act):
                run(gpu, argument)
        elif act == "launch":
            gpu.launch(argument)
        elif act == "host":
            gpu.host(argument)
        else:
            gpu.item()


def children(spans: tuple[Entry, ...], number: int) -> list[Entry]:
    """Return the spans directly below the one at a place; parents come before what they enclose."""
    parent, found = spans[number], []
    for span in spans[number + 1 :]:
        if len(span.path) <= len(parent.path):
            break
        if len(span.path) == len(parent.path) + 1:
            found.append(span)
    return found


@given(program, st.floats(-1e-4, 1e-4))
@settings(max_examples=60)
def test_children_and_gaps_are_the_parent_to_the_nanosecond(steps: list[Any], drift: float) -> None:
    """Whatever runs, a phase's own time and its children's are its span, on either clock, and no span is negative."""
    gpu = VirtualGPU(drift=drift, event_s=1 * US)
    tape = tape_on(gpu, pool_size=256)
    with iteration(tape), timer("call"):
        run(gpu, steps)
    tape.resolve()
    assert tape.dropped == 0
    for number, span in enumerate(tape.entries):
        below = children(tape.entries, number)
        assert span.device_ns is not None
        assert span.device_self_ns is not None
        assert span.device_ns == span.device_self_ns + sum(child.device_ns or 0 for child in below)
        assert span.host_end_ns - span.host_start_ns == span.host_self_ns + sum(
            child.host_end_ns - child.host_start_ns for child in below
        )
        assert min(span.device_ns, span.device_self_ns, span.host_self_ns) >= 0
    phases = {phase.path: times_of(phase) for phase in tape.phases()}
    for path, times in phases.items():
        below_s = [child.span_s or 0.0 for name, child in phases.items() if name.rpartition("/")[0] == path]
        assert times.span_s == pytest.approx((times.self_s or 0.0) + sum(below_s), abs=1e-12)


@given(
    st.lists(st.tuples(st.sampled_from(["small", "large", "wait"]), st.integers(5, 20)), min_size=1, max_size=6),
)
@settings(max_examples=60)
def test_lag_classes_follow_from_what_was_queued(phases: list[tuple[str, int]]) -> None:
    """With the work queued known, every phase's class is what it must be."""
    gpu = VirtualGPU(launch_s=10 * US)
    tape = tape_on(gpu)
    expected = []
    with iteration(tape):
        behind = False
        for number, (kind, launches) in enumerate(phases):
            with timer(f"{number}"):
                for _ in range(launches):
                    gpu.launch(1 * MS if kind == "large" else 2 * US)
                if kind == "wait":
                    gpu.item()
            expected.append(
                Bound.SYNC
                if kind == "wait" and behind
                else Bound.DEVICE
                if kind == "large" or (behind and kind == "small")
                else Bound.LAUNCH
            )
            behind = kind == "large" or (behind and kind == "small")
    assert [times_of(phase).bound for phase in tape.resolve()] == expected


def test_every_iteration_has_its_own_anchor() -> None:
    """A clock that drifts by 50 µs a second is not taken for a device that falls behind."""
    gpu = VirtualGPU(drift=50e-6)
    tape = tape_on(gpu)
    for _ in range(40):
        with iteration(tape), timer("call"):
            gpu.launch(100 * MS)
            gpu.item()
        (phase,) = tape.resolve()
    times = times_of(phase)
    assert times.lag_out_s == pytest.approx(50e-6 * 0.1, abs=2 * QUANTUM_S)
    assert times.bound is Bound.LAUNCH


def test_a_device_without_events_is_waited_for() -> None:
    """By synchronisation alone, at every edge: spans without overlap, tagged as such."""
    gpu = VirtualGPU(launch_s=5 * US)
    tape = Tape(SyncClock(gpu, gpu.clock))
    with iteration(tape), timer("outer"):
        with timer("inner"):
            gpu.launch(1 * MS)
        gpu.launch(1 * MS)
    outer, inner = tape.resolve()
    for times in map(times_of, (outer, inner)):
        assert (times.is_synced, times.bound) == (True, Bound.SYNC)
        assert times.lag_out_s == pytest.approx(0, abs=QUANTUM_S)
    assert outer.total_s == pytest.approx(2.01 * MS)
    assert times_of(outer).span_s == pytest.approx(2.01 * MS)
    assert times_of(outer).self_s == times_of(inner).span_s == pytest.approx(1.005 * MS)
    assert gpu.events_made == 0


def test_a_stream_that_changes_within_a_phase_leaves_no_span_and_is_named(wording: Wording) -> None:
    """Edges on two streams are of no one span: neither the phase nor the one around it claims one; a note says so."""
    gpu = VirtualGPU()
    tape = tape_on(gpu)
    with iteration(tape), timer("call"):
        change = gpu.use(3)
        with timer("changing"):
            gpu.launch(1 * MS)
            change.__enter__()
        change.__exit__(None, None, None)
        gpu.launch(1 * MS)
    call, changing = (times_of(phase) for phase in tape.resolve())
    assert (changing.stream, changing.span_s, changing.self_s) == ("main, side 1", None, None)
    assert call.self_s is None
    assert call.span_s is not None
    assert tape.notes == wording


def test_which_work_that_no_edge_sees_is_noted(wording: Wording) -> None:
    """Work after the last mark shows in the last wait, but for waits of others and a host that comes late."""
    gpu = VirtualGPU(launch_s=0.0)
    tape = tape_on(gpu)
    with iteration(tape), timer("call"):
        gpu.launch(1 * MS)
        gpu.launch(5 * MS, stream=2)
    tape.resolve()
    assert tape.unseen_s == pytest.approx(4 * MS, abs=QUANTUM_S)
    assert tape.notes == wording
    gpu = VirtualGPU(launch_s=0.0)
    tape = tape_on(gpu)
    with iteration(tape), timer("call"):
        gpu.launch(5 * MS)
        gpu.launch(5 * MS, stream=2)
    gpu.host(1.0)
    tape.resolve()
    assert (tape.unseen_s, tape.notes) == (0.0, ())
    gpu = VirtualGPU(launch_s=0.0)
    tape = tape_on(gpu)
    for late_s in (0.0, 4 * MS, 0.0):
        with iteration(tape), timer("call"):
            gpu.launch(1 * MS)
            gpu.launch(1 * MS + late_s, stream=2)
        tape.resolve()
    assert (tape.unseen_s, tape.notes) == (0.0, ())


def test_a_capture_that_begins_within_a_phase_leaves_it_untimed(wording: Wording) -> None:
    """While a graph is captured no event is recorded: phases across its edge are named."""
    gpu = VirtualGPU()
    tape = tape_on(gpu)
    with iteration(tape):
        begun = gpu.capture()
        with timer("beginning"):
            begun.__enter__()
        begun.__exit__(None, None, None)
    (phase,) = tape.resolve()
    assert phase.on_device is None
    assert tape.notes == wording


@pytest.mark.torch
def test_timers_within_compiled_code_break_its_graph() -> None:
    """A scope cannot be compiled: it times as elsewhere, and the compiler leaves its code alone."""
    import torch
    import torch._dynamo
    from torch._dynamo.utils import counters

    def function(tensor: Any) -> Any:
        with timer("inner"):
            return tensor.sin()

    gpu = VirtualGPU()
    tape = tape_on(gpu)
    tensor = torch.ones(2)
    dynamo: Any = torch._dynamo
    dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    eager = dynamo.disable(function)
    frames = []
    for look in (False, True, False, True, False):
        with iteration(tape, look=look):
            with timer("outer"):
                compiled(tensor)
            with timer("eager"):
                eager(tensor)
        tape.resolve()
        frames.append(counters["frames"]["total"])
    phases = {phase.path: phase for phase in tape.phases()}
    assert phases["outer/inner"].count == 1.0
    assert tape.notes == ()
    assert (
        len(set(frames[1:])) == 1
    )  # what changes from call to call on the tape or in its driver compiles nothing anew


def test_peaks_of_memory_nest() -> None:
    """A phase's peak is the most in use within it, children included; what follows a child's peak does not have it."""
    gpu = VirtualGPU()
    tape = tape_on(gpu)
    gpu.allocate(1024)

    def work() -> None:
        with timer("outer"):
            with timer("first"):
                gpu.allocate(10 * 1024).free()
            with timer("second"):
                held = gpu.allocate(1024)
            with timer("third"):
                gpu.allocate(512).free()
            held.free()

    with iteration(tape):
        work()
    with iteration(tape, look=True):
        work()
    peaks = {phase.path: times_of(phase).peak_bytes for phase in tape.resolve()}
    # The block that is cached after the first phase is the one that the second one gets.
    assert peaks == {"outer": 11776, "outer/first": 11264, "outer/second": 11264, "outer/third": 11776}


def test_allocations_are_those_that_asked_the_device() -> None:
    """A phase that finds memory in the cache allocates nothing; looking takes no event and waits for nothing."""
    gpu = VirtualGPU()
    tape = tape_on(gpu)
    for look in (False, True, True):
        with iteration(tape, look=look), timer("outer"):
            with timer("kept"):
                gpu.allocate(1024 * (1 + len(gpu.counts())))
            with timer("none"):
                pass
    outer, kept, none = (times_of(phase).allocations for phase in tape.resolve())
    assert (outer, kept, none) == (1.0, 1.0, 0.0)


def test_other_threads_are_kept_apart(wording: Wording) -> None:
    """The phases of a backward thread are beside the others, by its thread's name, with a note."""
    gpu = VirtualGPU(launch_s=5 * US)
    tape = tape_on(gpu)

    def backward() -> None:
        with timer("gradients"):
            gpu.launch(2 * MS)

    with iteration(tape), timer("update"):
        gpu.launch(1 * MS)
        thread = threading.Thread(target=backward, name="autograd")
        thread.start()
        thread.join()
        gpu.launch(1 * MS)
    (update,) = tape.resolve()
    assert times_of(update).self_s == times_of(update).span_s == pytest.approx(4.005 * MS, abs=QUANTUM_S)
    (gradients,) = tape.beside()["autograd"]
    assert gradients.path == "gradients"
    assert times_of(gradients).span_s == pytest.approx(2 * MS, abs=QUANTUM_S)
    assert tape.notes == wording


class Untrue(VirtualGPU):
    def __init__(self, told_ms: Callable[[float], float]) -> None:
        super().__init__()
        self._told_ms = told_ms

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float:
        return self._told_ms(super().elapsed_ms(start, end))


@pytest.mark.parametrize(
    "told_ms",
    [
        lambda ms: float("nan"),
        lambda ms: 0.0,
        lambda ms: -ms,
    ],
    ids=["not a number", "always zero", "backwards"],
)
def test_broken_events_are_a_loud_error(told_ms: Callable[[float], float], wording: Wording) -> None:
    """Events that cannot be true are an error that names the device, and all marks come back."""
    gpu = Untrue(told_ms)
    tape = tape_on(gpu)
    with iteration(tape):
        for _ in range(2):
            with timer("call"):
                gpu.launch(10 * MS)
                gpu.item()
    with wording.raises(DeviceClockError):
        tape.resolve()
    assert tape.clock.left == 64


def test_a_device_that_fails_does_not_break_the_code_that_is_timed(wording: Wording) -> None:
    """The timed code goes on, and meets the loss where it asks the device itself; resolving raises its error."""
    gpu = VirtualGPU()
    tape = tape_on(gpu)
    with iteration(tape):
        with timer("before"):
            gpu.launch(1 * MS)
        gpu.lose()
        with timer("after"):
            gpu.host(1 * MS)
    with wording.raises(DeviceClockError):
        tape.resolve()
    assert tape.clock.left == 64
