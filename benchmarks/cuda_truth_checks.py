"""The checks of ``cuda_truth.py`` that one process can make: each compares what is found with what is known."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from cuda_truth_bench import REPETITIONS, WITHIN, Bench, Finding, change, meter_of, percent
from cuda_truth_devices import Gpu
from cuda_truth_disturbances import conditions_are_read, new_shapes_are_found, phases_cost_little

from pytest_rlperf.devices import HostClock
from pytest_rlperf.model import Bound, SliceKind
from pytest_rlperf.timers import hierarchical_timer as timer

# ------------------------------------------------------------------ lengths

LENGTHS_S = {
    "update": 35e-3,
    "update/forward": 5e-3,
    "update/backward": 30e-3,
    "update/backward/critic": 10e-3,
    "update/backward/actor": 20e-3,
}


def nested(bench: Bench) -> None:
    """Queue kernels of known lengths in phases."""
    with timer("update"):
        with timer("forward"):
            bench.sleep(LENGTHS_S["update/forward"])
        with timer("backward"):
            for name in ("critic", "actor"):
                with timer(name):
                    bench.sleep(LENGTHS_S[f"update/backward/{name}"])


def phases_are_as_long_as_their_kernels(gpu: Gpu) -> Finding:
    """Compare the spans of nested phases with what was queued in them."""
    bench = Bench(gpu)
    errors: dict[str, list[float]] = {path: [] for path in LENGTHS_S}
    for _ in range(REPETITIONS):
        bench.calibrate()
        taped = bench.taped(partial(nested, bench))
        for path, length_s in LENGTHS_S.items():
            errors[path].append(taped.span_s(path) / length_s - 1)
    worst = max((statistics.median(each) for each in errors.values()), key=abs)
    found = f"{change(worst)} at the worst of {len(errors)} phases"
    return Finding(f"within {percent(WITHIN)}", found, abs(worst) <= WITHIN)


def unsynced_timing_is_far_off(gpu: Gpu) -> Finding:
    """Time the same work by the host alone, without waiting: what finds nothing wrong with that finds nothing."""
    bench = Bench(gpu)
    clock = HostClock(gpu.host_ns)
    found_s = []
    for _ in range(REPETITIONS):
        gpu.synchronize()
        start = clock.mark()
        nested(bench)
        found_s.append(clock.elapsed_ns(start, clock.mark()) / 1e9)
    gpu.synchronize()
    share = statistics.median(found_s) / LENGTHS_S["update"]
    return Finding("under half of the truth", f"{percent(share)} of it", share < 0.5)


def calls_are_as_long_as_their_kernels(gpu: Gpu) -> Finding:
    """Measure a call at both paces, as a worker does."""
    bench = Bench(gpu)

    def call() -> None:
        for _ in range(4):
            bench.sleep(5e-3)

    found_s: dict[SliceKind, list[float]] = {SliceKind.PLAIN: [], SliceKind.OTHER_PACE: []}
    with meter_of(gpu, call) as meter:
        for _ in range(3):
            bench.calibrate()
            for kind, figures in found_s.items():
                figures.append(meter.take(kind).call_s)
    latency, steady = (statistics.median(figures) / 20e-3 - 1 for figures in found_s.values())
    met = abs(latency) <= WITHIN and abs(steady) <= WITHIN
    return Finding(f"both within {percent(WITHIN)}", f"latency {change(latency)}, steady {change(steady)}", met)


# ------------------------------------------------------------------ what time goes into


def spin_and_sleep_are_told_apart(gpu: Gpu) -> Finding:
    """Have the host work and the GPU wait, and the other way round, for as long."""
    bench = Bench(gpu)
    length_s = 5e-3

    def work() -> None:
        with timer("spin"):
            gpu.spin(length_s)
        with timer("sleep"):
            bench.sleep(length_s)

    taped = bench.taped(work, REPETITIONS)
    host = {path: phase.total_s / length_s for path, phase in taped.phases.items()}
    device = {path: taped.span_s(path) / length_s for path in taped.phases}
    bounds = {path: taped.times(path).bound for path in taped.phases}
    found = "; ".join(
        f"{path}: host {percent(host[path])}, device {percent(device[path])}, {bound.value}-bound"
        for path, bound in bounds.items()
    )
    met = bounds == {"spin": Bound.LAUNCH, "sleep": Bound.DEVICE} and host["sleep"] < 0.5 < 0.9 < host["spin"]
    return Finding("spin: the host's and launch-bound; sleep: the device's and device-bound", found, met)


def items_are_found(gpu: Gpu) -> Finding:
    """Read a number behind queued work, and once more where nothing is queued when the phase begins."""
    bench = Bench(gpu)

    def work() -> None:
        with timer("queue"):
            bench.sleep(2e-3)
        with timer("item"):
            gpu.item()
        with timer("in step"):
            bench.sleep(1e-3)
            gpu.item()

    taped, counts = bench.taped(work, 3), bench.counted(work, ["syncs"])
    bounds = {path: taped.times(path).bound for path in taped.phases}
    syncs = {path: counts.get(path, {"syncs": 0})["syncs"] for path in ("", *bounds)}
    found = ", ".join(f"{path} {bound.value}-bound, waits: {syncs[path]}" for path, bound in bounds.items())
    met = list(bounds.values()) == [Bound.DEVICE, Bound.SYNC, Bound.SYNC] and list(syncs.values()) == [2, 0, 1, 1]
    return Finding("queue device-bound, waits: 0, item and in step sync-bound, waits: 1", found, met)


COPIES = ("copies_to_device", "copies_to_host", "pageable_copies", "syncs")
WANTED = {
    "pinned to device": (Bound.DEVICE, (1, 0, 0, 0)),
    "pageable to device": (Bound.SYNC, (1, 0, 1, 1)),
    "pinned to host": (Bound.DEVICE, (0, 1, 0, 0)),
    "pageable to host": (Bound.SYNC, (0, 1, 1, 1)),
}
"""What copies of either memory, behind queued work, hang on, and what is counted of each."""


def copies_are_found(gpu: Gpu) -> Finding:
    """Copy pinned and pageable memory both ways behind queued work."""
    bench = Bench(gpu)
    acts = {"to device": gpu.copy_to_device, "to host": gpu.copy_to_host}

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
    wrong = {path: found for path, found in seen.items() if found != WANTED[path]}
    told = [f"{path}: {bound.value}-bound, {_told(values)}" for path, (bound, values) in wrong.items()]
    found = "; ".join(told) or f"{len(seen)} of {len(seen)} phases so"
    return Finding("pageable: sync-bound, counted with its wait; pinned: device-bound, no wait", found, not wrong)


def _told(counts: Sequence[int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(COPIES, counts, strict=True))


# ------------------------------------------------------------------ streams and graphs


def side_streams_are_told(gpu: Gpu) -> Finding:
    """Work on two streams at a time, each in a phase of its own."""
    bench = Bench(gpu)

    def work() -> None:
        with timer("update"):
            bench.sleep(10e-3)
            with gpu.beside(), timer("copy"):
                bench.sleep(20e-3)

    taped = bench.taped(work, REPETITIONS)
    side, own_s = taped.times("update/copy"), taped.times("update").self_s
    if own_s is None:
        raise LookupError("the phase update has no time of its own")
    side_s = taped.span_s("update/copy")
    found = f"{side.stream}: {change(side_s / 20e-3 - 1)}, main: {change(own_s / 10e-3 - 1)}"
    met = side.stream == "side 1" and abs(side_s / 20e-3 - 1) <= WITHIN and abs(own_s / 10e-3 - 1) <= WITHIN
    return Finding(f"side 1 and main, both within {percent(WITHIN)}", found, met)


def unseen_work_is_noted(gpu: Gpu) -> Finding:
    """Work on a stream that no phase's edge sees, longer than on the one that they do."""
    bench = Bench(gpu)

    def work() -> None:
        with timer("call"):
            bench.sleep(2e-3)
            with gpu.beside():
                bench.sleep(20e-3)

    taped = bench.taped(work)
    is_noted = any("on streams that were current at no phase's edge" in note for note in taped.notes)
    found = f"{1e3 * taped.unseen_s:.1f} ms, {'noted' if is_noted else 'not noted'}"
    return Finding("18 ms within 10 %, noted", found, is_noted and abs(taped.unseen_s / 18e-3 - 1) <= 0.1)


def graphs_are_captured_and_replayed(gpu: Gpu) -> Finding:
    """Capture work with phases in it, which must not fail, and time its replay."""
    bench = Bench(gpu)
    replays: list[Callable[[], None]] = []

    def capture() -> None:
        with timer("capture"), gpu.captured() as replay:
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
    met = is_noted and captured.phases["capture/forward"].on_device is None and abs(off) <= WITHIN
    found = f"{'noted, without times' if is_noted else 'not noted'}; replay {change(off)}"
    return Finding(f"capture noted, without times; replay within {percent(WITHIN)}", found, met)


CHECKS: dict[str, Callable[[Gpu], Finding]] = {
    "phases of known lengths": phases_are_as_long_as_their_kernels,
    "unsynced timing (negative control)": unsynced_timing_is_far_off,
    "a call's latency and steady pace": calls_are_as_long_as_their_kernels,
    "host spin, device sleep": spin_and_sleep_are_told_apart,
    ".item()": items_are_found,
    "pinned and pageable copies": copies_are_found,
    "side stream": side_streams_are_told,
    "work that no edge sees": unseen_work_is_noted,
    "graph": graphs_are_captured_and_replayed,
    "torch.compile, shape change": new_shapes_are_found,
    "conditions": conditions_are_read,
    "recording 1 phase": partial(phases_cost_little, 1),
    "recording 10 phases": partial(phases_cost_little, 10),
    "recording 100 phases": partial(phases_cost_little, 100),
}
