"""Checks of a GPU's figures against known work: kernels of known lengths, known waits, copies, streams and graphs.

Every check runs on the virtual GPU and, with `pytest -m gpu`, on a CUDA device. The checks of the virtual GPU show that
the checks and the clocks agree; each check also has to fail on a virtual GPU with the defect that it is there to find.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from gpu.bench import REPETITIONS, WITHIN, Bench, change, iteration, meter_of, percent
from pytest_rlperf.devices import devices_of
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model.device import Bound
from pytest_rlperf.model.measured import SliceKind, SliceRecord
from pytest_rlperf.report.wording import disturbances_text
from pytest_rlperf.timers import hierarchical_timer as timer

Report = Callable[[str], None]


LENGTHS_S = {
    "update": 35e-3,
    "update/forward": 5e-3,
    "update/backward": 30e-3,
    "update/backward/critic": 10e-3,
    "update/backward/actor": 20e-3,
}


def nested(bench: Bench) -> None:
    with timer("update"):
        with timer("forward"):
            bench.sleep(LENGTHS_S["update/forward"])
        with timer("backward"):
            for name in ("critic", "actor"):
                with timer(name):
                    bench.sleep(LENGTHS_S[f"update/backward/{name}"])


def test_phases_are_as_long_as_their_kernels(bench: Bench, report: Report) -> None:
    """The spans of nested phases are within 2 % of the kernels queued in them."""
    errors: dict[str, list[float]] = {path: [] for path in LENGTHS_S}
    for _ in range(REPETITIONS):
        bench.calibrate()
        taped = bench.taped(partial(nested, bench))
        for path, length_s in LENGTHS_S.items():
            errors[path].append(taped.span_s(path) / length_s - 1)
    worst = max((statistics.median(each) for each in errors.values()), key=abs)
    report(f"{change(worst)} at the worst of {len(errors)} phases")
    assert abs(worst) <= WITHIN


def test_unsynced_timing_is_far_off(bench: Bench, report: Report) -> None:
    """A host's clock without a wait has under half of the truth: the negative control."""
    found_s = []
    for _ in range(REPETITIONS):
        bench.gpu.synchronize()
        start_ns = bench.gpu.host_ns()
        nested(bench)
        found_s.append((bench.gpu.host_ns() - start_ns) / 1e9)
    bench.gpu.synchronize()
    share = statistics.median(found_s) / LENGTHS_S["update"]
    report(f"{percent(share)} of it")
    assert share < 0.5


def test_calls_are_as_long_as_their_kernels(bench: Bench, report: Report) -> None:
    """A call's latency and its steady figure, measured as a worker does, are both within 2 % of its kernels."""

    def call() -> None:
        for _ in range(4):
            bench.sleep(5e-3)

    found_s: dict[SliceKind, list[float]] = {SliceKind.PLAIN: [], SliceKind.OTHER_PACE: []}
    with meter_of(bench.gpu, call) as meter:
        for _ in range(3):
            bench.calibrate()
            for kind, figures in found_s.items():
                figures.append(meter.take(kind).call_s)
    latency, steady = (statistics.median(figures) / 20e-3 - 1 for figures in found_s.values())
    report(f"latency {change(latency)}, steady {change(steady)}")
    assert abs(latency) <= WITHIN
    assert abs(steady) <= WITHIN


def test_spin_and_sleep_are_told_apart(bench: Bench, report: Report) -> None:
    """A busy host is launch-bound and a busy device device-bound, though both take as long."""
    length_s = 5e-3

    def work() -> None:
        with timer("spin"):
            bench.gpu.spin(length_s)
        with timer("sleep"):
            bench.sleep(length_s)

    taped = bench.taped(work, REPETITIONS)
    host = {path: phase.total_s / length_s for path, phase in taped.phases.items()}
    device = {path: taped.span_s(path) / length_s for path in taped.phases}
    bounds = {path: taped.times(path).bound for path in taped.phases}
    lines = (
        f"{path}: host {percent(host[path])}, device {percent(device[path])}, {bounds[path].value}-bound"
        for path in bounds
    )
    report("; ".join(lines))
    assert bounds == {"spin": Bound.LAUNCH, "sleep": Bound.DEVICE}
    assert host["sleep"] < 0.5 < 0.9 < host["spin"]


def test_waits_of_item_are_found(bench: Bench, report: Report) -> None:
    """Reading a number waits and is counted, behind queued work and where the phase itself queues it."""

    def work() -> None:
        with timer("queue"):
            bench.sleep(2e-3)
        with timer("item"):
            bench.gpu.item()
        with timer("in step"):
            bench.sleep(1e-3)
            bench.gpu.item()

    taped, counts = bench.taped(work, 3), bench.counted(work, ["syncs"])
    bounds = {path: taped.times(path).bound for path in taped.phases}
    syncs = {path: counts.get(path, {"syncs": 0})["syncs"] for path in ("", *bounds)}
    report(", ".join(f"{path} {bound.value}-bound, waits: {syncs[path]}" for path, bound in bounds.items()))
    assert list(bounds.values()) == [Bound.DEVICE, Bound.SYNC, Bound.SYNC]
    assert list(syncs.values()) == [2, 0, 1, 1]


COPIES = ("copies_to_device", "copies_to_host", "pageable_copies", "syncs")
WANTED = {
    "pinned to device": (Bound.DEVICE, (1, 0, 0, 0)),
    "pageable to device": (Bound.SYNC, (1, 0, 1, 1)),
    "pinned to host": (Bound.DEVICE, (0, 1, 0, 0)),
    "pageable to host": (Bound.SYNC, (0, 1, 1, 1)),
}
"""The bound and the counts of copies of either memory behind queued work."""


def test_copies_are_found(bench: Bench, report: Report) -> None:
    """Pageable copies wait and are counted with their wait; pinned copies do not wait."""
    acts = {"to device": bench.gpu.copy_to_device, "to host": bench.gpu.copy_to_host}

    def work() -> None:
        for where, copy in acts.items():
            for memory in ("pinned", "pageable"):
                bench.sleep(2e-3)
                with timer(f"{memory} {where}"):
                    copy(pinned=memory == "pinned")

    taped, counts = bench.taped(work, 3), bench.counted(work, COPIES)
    seen = {
        path: (taped.times(path).bound, tuple(counts.get(path, dict.fromkeys(COPIES, 0)).values())) for path in WANTED
    }
    wrong = [
        f"{path}: {bound.value}-bound, {_listed(values)}"
        for path, (bound, values) in seen.items()
        if (bound, values) != WANTED[path]
    ]
    report("; ".join(wrong) or f"{len(seen)} of {len(seen)} phases so")
    assert seen == WANTED


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(COPIES, counts, strict=True))


def test_side_streams_have_times_of_their_own(bench: Bench, report: Report) -> None:
    """Work on two streams at a time, each in a phase, has two spans within 2 %."""

    def work() -> None:
        with timer("update"):
            bench.sleep(10e-3)
            with bench.gpu.beside(), timer("copy"):
                bench.sleep(20e-3)

    taped = bench.taped(work, REPETITIONS)
    side, own_s = taped.times("update/copy"), taped.times("update").self_s
    assert own_s is not None
    side_off, own_off = taped.span_s("update/copy") / 20e-3 - 1, own_s / 10e-3 - 1
    report(f"{side.stream}: {change(side_off)}, main: {change(own_off)}")
    assert side.stream == "side 1"
    assert abs(side_off) <= WITHIN
    assert abs(own_off) <= WITHIN


def test_unseen_work_is_noted(bench: Bench, report: Report) -> None:
    """Work on a stream without a phase's edge, longer than the rest, is noted, its 18 ms within 10 %."""

    def work() -> None:
        with timer("call"):
            bench.sleep(2e-3)
            with bench.gpu.beside():
                bench.sleep(20e-3)

    taped = bench.taped(work)
    is_noted = any("on streams that were not current at any phase's edge" in note for note in taped.notes)
    report(f"{1e3 * taped.unseen_s:.1f} ms, {'noted' if is_noted else 'not noted'}")
    assert is_noted
    assert abs(taped.unseen_s / 18e-3 - 1) <= 0.1


def test_graphs_are_captured_and_replayed(bench: Bench, report: Report) -> None:
    """Capturing work with phases succeeds and is noted, and the replay is within 2 %."""
    replays: list[Callable[[], None]] = []

    def capture() -> None:
        with timer("capture"), bench.gpu.captured() as replay:
            replays.append(replay)
            with timer("forward"):
                bench.sleep(10e-3)

    def replay_it() -> None:
        with timer("replay"):
            replays[-1]()

    captured = bench.taped(capture)
    replay_it()
    replayed = bench.taped(replay_it, REPETITIONS)
    is_noted = any(note.startswith("captured") and note.endswith("capture/forward") for note in captured.notes)
    off = replayed.span_s("replay") / 10e-3 - 1
    report(f"{'noted, without times' if is_noted else 'not noted'}; replay {change(off)}")
    assert is_noted
    assert captured.phases["capture/forward"].on_device is None
    assert abs(off) <= WITHIN


SHAPES = (1024, 2048)
OVERHEAD_S = 20e-3


def test_new_shapes_are_found(bench: Bench, report: Report) -> None:
    """A compiled function's new shape compiles once, and the slice with it is taken again."""
    shape = SHAPES[0]

    def call() -> None:
        bench.gpu.run_compiled(shape)

    with meter_of(bench.gpu, call) as meter:
        quiet = meter.take(SliceKind.PLAIN)
        shape = SHAPES[1]
        before = bench.gpu.library.recompiles()
        changed = meter.take(SliceKind.PLAIN)
        compiled = bench.gpu.library.recompiles() - before
    retaken = _retaken(quiet), _retaken(changed)
    report(f"compiled: {compiled}; slices retaken before: {retaken[0]}, then: {retaken[1]}")
    assert compiled == 1
    assert retaken == ("0", "1")


def _retaken(record: SliceRecord) -> str:
    """Return how often a slice was retaken, or why it does not count."""
    assert record.device is not None
    return disturbances_text(record.device.disturbances) or str(record.device.retaken)


def test_conditions_are_read(bench: Bench, report: Report) -> None:
    """The device's state, read before and after every slice, has an SM clock."""
    (device,) = devices_of([bench.gpu.held])
    reader = bench.gpu.library.conditions(device)
    state = reader.read()
    if state is None:
        pytest.skip(reader.missing)
    clock = "unknown" if state.sm_clock_hz is None else f"{state.sm_clock_hz / 1e6:.0f} MHz"
    reasons = "unknown" if state.throttled is None else ", ".join(state.throttled) or "no"
    report(f"SM clock {clock}, throttled: {reasons}, other processes: {state.others}")
    assert state.sm_clock_hz is not None


@pytest.mark.parametrize("phases", [1, 10, 100])
def test_phases_cost_little(phases: int, bench: Bench, report: Report) -> None:
    """Recording phases makes a call of 20 ms at most 2 % longer."""
    tape = Tape(bench.clock)

    def work() -> None:
        for _ in range(phases):
            with timer("phase"):
                bench.sleep(OVERHEAD_S / phases)

    def recorded() -> None:
        with iteration(tape):
            work()

    ratios, host_s = [], []
    for turn in range(1 + 2 * REPETITIONS):
        plain_s, plain_host_s = _timed(bench, work)
        recorded_s, recorded_host_s = _timed(bench, recorded)
        tape.resolve()
        if turn:  # the first one makes the events
            ratios.append(recorded_s / plain_s - 1)
            host_s.append((recorded_host_s - plain_host_s) / phases)
    more = statistics.median(ratios)
    report(f"{change(more)}; {1e6 * statistics.median(host_s):.1f} µs of the host's a phase")
    assert more <= WITHIN


def _timed(bench: Bench, work: Callable[[], object]) -> tuple[float, float]:
    host_ns = bench.gpu.host_ns
    left_ns: list[int] = []

    def timed() -> None:
        start_ns = host_ns()
        work()
        left_ns.append(host_ns() - start_ns)

    waited_s = bench.waited_s(timed)
    return waited_s, left_ns[0] / 1e9
