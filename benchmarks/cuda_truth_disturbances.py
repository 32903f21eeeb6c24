"""The checks of ``cuda_truth.py`` of what disturbs a measurement: recompiling, conditions, and recording itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from cuda_truth_bench import REPETITIONS, WITHIN, Bench, Finding, change, iteration, meter_of
from cuda_truth_devices import Gpu, NotPossibleError

from pytest_rlperf.devices import Tape, devices_of
from pytest_rlperf.model import SliceKind, SliceRecord, disturbances_text
from pytest_rlperf.timers import hierarchical_timer as timer

_OVERHEAD_S = 20e-3
_SHAPES = (1024, 2048)


def new_shapes_are_found(gpu: Gpu) -> Finding:
    """Change a compiled function's shape in the midst of measuring it: that slice is to be taken again."""
    shape = _SHAPES[0]

    def call() -> None:
        gpu.run_compiled(shape)

    with meter_of(gpu, call) as meter:
        quiet = meter.take(SliceKind.PLAIN)
        shape = _SHAPES[1]
        before = gpu.library.recompiles()
        changed = meter.take(SliceKind.PLAIN)
        compiled = gpu.library.recompiles() - before
    found = f"compiled: {compiled}; slices retaken before: {_retaken(quiet)}, then: {_retaken(changed)}"
    met = compiled == 1 and (_retaken(quiet), _retaken(changed)) == (0, 1)
    return Finding("compiled: 1; slices retaken before: 0, then: 1", found, met)


def _retaken(record: SliceRecord) -> str | int:
    """Return how often a slice was retaken, or what it is worthless for."""
    if record.device is None:
        raise LookupError("the slice knows of no device")
    return disturbances_text(record.device.disturbances) or record.device.retaken


def conditions_are_read(gpu: Gpu) -> Finding:
    """Read the state of the device, as it is done before and after every slice."""
    (device,) = devices_of([gpu.held])
    reader = gpu.library.conditions(device)
    state = reader.read()
    if state is None:
        raise NotPossibleError(reader.missing)
    clock = "unknown" if state.sm_clock_hz is None else f"{state.sm_clock_hz / 1e6:.0f} MHz"
    reasons = "unknown" if state.throttled is None else ", ".join(state.throttled) or "no"
    found = f"SM clock {clock}, throttled: {reasons}, other processes: {state.others}"
    return Finding("an SM clock", found, state.sm_clock_hz is not None)


def phases_cost_little(phases: int, gpu: Gpu) -> Finding:
    """Do the same work in so many phases, recorded and not, by turns."""
    bench = Bench(gpu)
    tape = Tape(bench.clock)

    def work() -> None:
        for _ in range(phases):
            with timer("phase"):
                bench.sleep(_OVERHEAD_S / phases)

    def recorded() -> None:
        with iteration(tape):
            work()

    ratios, host_s = [], []
    for turn in range(1 + 2 * REPETITIONS):
        plain_s, plain_host_s = _timed(bench, work)
        recorded_s, recorded_host_s = _timed(bench, recorded)
        tape.resolve()
        if turn:  # in the first one the events are made
            ratios.append(recorded_s / plain_s - 1)
            host_s.append((recorded_host_s - plain_host_s) / phases)
    more = statistics.median(ratios)
    found = f"{change(more)}; {1e6 * statistics.median(host_s):.1f} µs of the host's a phase"
    return Finding(f"at most {change(WITHIN)} of {1e3 * _OVERHEAD_S:.0f} ms", found, more <= WITHIN)


def _timed(bench: Bench, work: Callable[[], object]) -> tuple[float, float]:
    """Return how long work takes, and how long it takes the host."""
    host_ns = bench.gpu.host_ns
    left_ns: list[int] = []

    def timed() -> None:
        start_ns = host_ns()
        work()
        left_ns.append(host_ns() - start_ns)

    waited_s = bench.waited_s(timed)
    return waited_s, left_ns[0] / 1e9
