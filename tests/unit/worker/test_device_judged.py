"""Figures on a device: their verdicts, the report's lines, and components that take a device."""

from __future__ import annotations

import math
from typing import Any

import builders
import pytest
from fake_worker import FakeWorker, checked_in
from msgspec.structs import replace
from virtual_gpu import VirtualGPU, VirtualLibrary
from wording import Wording

from pytest_rlperf import ComponentError, wire
from pytest_rlperf.components.calls import thunk_workload
from pytest_rlperf.devices import driving
from pytest_rlperf.judge.findings import compiles
from pytest_rlperf.judge.stored import judge_stored
from pytest_rlperf.judge.validity import broken_rule
from pytest_rlperf.model.device import Bound, Conditions, DeviceFigures, DeviceTimes, Disturbance, Pace
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.measured import Phase, Result, SliceKind
from pytest_rlperf.pair.leftovers import Leftovers
from pytest_rlperf.pair.one_side import measure_one_side
from pytest_rlperf.pair.processes import check
from pytest_rlperf.pair.turns import Pair
from pytest_rlperf.report.table import table_text
from pytest_rlperf.report.tables import device_tables
from pytest_rlperf.report.wording import finding_line, verdict_message
from pytest_rlperf.run.results import PairsMeasured, make_result
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.rounds import Clocks

pytestmark = pytest.mark.usefixtures("alone")

FIGURES = DeviceFigures(
    device="cuda:0",
    gated=Pace.STEADY,
    latency_s=1.5e-3,
    steady_s=1e-3,
    cycles=1.41e6,
    peak_bytes=25_000_000,
    allocations=0.0,
    flags={"cudnn.allow_tf32": "True", "cudnn.benchmark": "False"},
    conditions=Conditions(1.41e9, 2.6e9, 55.0, (), 0),
    retaken=0,
    notes=(),
)
TIMES = DeviceTimes(
    span_s=0.8e-3,
    self_s=0.2e-3,
    stream="main",
    lag_in_s=4e-6,
    lag_out_s=0.4e-3,
    bound=Bound.DEVICE,
    is_synced=False,
    peak_bytes=25_000_000,
    allocations=0.0,
)


def result(device: DeviceFigures | None = FIGURES, times: DeviceTimes | None = TIMES) -> Result:
    workers = tuple(
        builders.worker(1e-3 * value, value, calls=1000, device=device) for value in (1.0, 1.01, 0.99, 1.02, 0.98)
    )
    phases = (Phase("update", 1.0, 0.9e-3, 0.9e-3, "cuda:0", times),)
    return builders.result(component="sac_update", unit="update", workers=workers, phases=phases, traced_call_s=1e-3)


def judge(base: Result, head: Result) -> Verdict:
    """Judge ``head`` against a stored ``base``, within a tolerance that sessions stay within."""
    policy = Policy(tolerance=0.25)
    return judge_stored(head, builders.stored(base), [], policy)


def changed(**changes: object) -> Result:
    """Return a result whose figures on the device differ in some fields."""
    return result(replace(FIGURES, **changes))


def test_equal_figures_on_equal_devices_are_the_same() -> None:
    """Which of several equal devices it was makes no difference."""
    assert judge(result(), changed(device="cuda:1")).status is Status.SAME


@pytest.mark.parametrize(
    "tries",
    [
        [Disturbance(recompiled=True)] * 4,
        [*[Disturbance(allocated=True)] * 3, Disturbance(("power brake",), recompiled=True)],
    ],
    ids=["recompiled", "several"],
)
def test_disturbed_figures_are_invalid_with_the_reason(tries: list[Disturbance], wording: Wording) -> None:
    """One worker's is enough: the device, what it was, how often, and what helps."""
    head = result()
    worker = replace(head.workers[3], device=replace(FIGURES, disturbances=tuple(tries)))
    verdict = judge(result(), replace(head, workers=(*head.workers[:3], worker, head.workers[4])))
    assert verdict.status is Status.INVALID
    assert verdict.reason.code == "device"
    assert verdict_message(verdict) == wording


def lines(of: Result) -> list[str]:
    tables = device_tables(builders.outcome(of, builders.verdict(Status.NEW)))
    return [line for table in tables for line in table_text(table, 100, ruled=False)]


def test_the_report_says_both_paces_conditions_and_phases(wording: Wording) -> None:
    """Device, paces, cycles, memory; clocks and who else; settings; spans, lags and what binds them."""
    assert lines(result()) == wording


def test_the_report_says_what_is_not_known(wording: Wording) -> None:
    """Live pairs take one pace, a driver may tell nothing, and a phase over two streams has no span."""
    figures = replace(FIGURES, latency_s=None, cycles=None, conditions=None, allocations=2.0, flags={})
    found = lines(result(figures, replace(TIMES, span_s=None, self_s=None, is_synced=True)))
    assert found == wording
    assert not any(line.startswith("peak memory") for line in lines(result(replace(FIGURES, peak_bytes=0))))
    assert [line for line in lines(result(UNKNOWN)) if line.startswith("held back by")] == wording


@pytest.mark.torch
def test_inputs_rotate_on_a_device() -> None:
    """Calls take several rollouts in turn, each of which was checked."""
    import torch

    from pytest_rlperf.components.gae import gae_workload
    from pytest_rlperf.components.reference.gae import compute_gae

    seen: list[Any] = []

    def gae(rewards: Any, values: Any, dones: Any, last_values: Any) -> Any:
        seen.append(rewards)
        return torch.from_numpy(compute_gae(*(each.numpy() for each in (rewards, values, dones, last_values)))[0])

    workload = gae_workload(gae, 20, 4, "torch", "cpu:0")  # to PyTorch a device as any other
    workload.check()
    checked = list(seen)
    seen.clear()
    for _ in range(2 * len(checked)):
        workload.call()
    assert len(checked) == 4
    assert [id(each) for each in seen] == 2 * [id(each) for each in checked]
    assert not any(torch.equal(each, checked[0]) for each in checked[1:])


def test_a_device_needs_tensors() -> None:
    """NumPy's arrays are the host's, and what holds data of its own is where that is."""
    from pytest_rlperf.components.gae import gae_workload

    with pytest.raises(ComponentError, match="backend='torch'"):
        gae_workload(lambda rewards, values, dones, last_values: rewards, 8, 2, "numpy", "cuda")


class VirtualWorker(FakeWorker):
    """A meter of this process that takes its turns on a virtual GPU."""

    def __init__(self, gpu: VirtualGPU, kernel_s: float, *, compiles: bool = False) -> None:
        weights = gpu.allocate(4096)
        timer = hierarchical_timer("update")

        def update() -> None:
            assert weights.size_bytes
            gpu.recompiles += compiles
            with timer:
                gpu.launch(kernel_s)

        workload = thunk_workload(update, items=1, unit="update", setup=None, check=None)
        kernels = dict.fromkeys((SliceKind.INTERPRETER, SliceKind.MEMORY), lambda: gpu.host(2e-3))
        self.meter = Meter(workload, lambda: kernels, Clocks(gpu.clock, gpu.clock, 76.0), VirtualLibrary(gpu))
        self._gpu = gpu

    def carry_out(self, order: wire.Order[Any]) -> Any:
        match order:
            case wire.Check():
                first_s, second_s = self.meter.check()
                return checked_in(first_s, second_s=second_s)
            case wire.WarmUp():
                return self.meter.warm_up(order)
            case wire.Take(kind):
                return self.meter.take(kind)
        return super().carry_out(order)


def measured(gpu: VirtualGPU, kernel_s: float = 10e-3) -> Result:
    with driving(gpu):
        workers = [VirtualWorker(gpu, kernel_s) for _ in range(2)]
        try:
            order = wire.MeasureAlone(3.0, None, None)
            alone = measure_one_side(workers, order, lambda step: None, lambda: gpu.clock.now_ns / 1e9)
        finally:
            for worker in workers:
                worker.meter.thaw()
    return make_result("test_it.py::test_it", wire.Called("callable", "update", 1.0), alone)


def test_a_test_on_a_gpu_from_the_call_to_the_report() -> None:
    """The thunk's tensors tell the device; figures, phases and lines are its."""
    found = measured(VirtualGPU())
    assert found.call_s == pytest.approx(10.005e-3)
    assert broken_rule(found) is None
    assert found.notes == ()
    for worker in found.workers:
        assert not worker.alone, "a process that polls for its device is busy, and no less waiting"
        assert worker.device is not None
        assert worker.device.latency_s == pytest.approx(10.005e-3)
        assert worker.device.steady_s == pytest.approx(10e-3, rel=1e-3)
        assert worker.device.cycles == pytest.approx(10.005e-3 * 1.5e9)
    (phase,) = found.phases
    assert (phase.path, phase.device) == ("update", "virtual:0")
    assert phase.on_device is not None
    assert phase.on_device.span_s == pytest.approx(10.005e-3)
    assert lines(found)[-1].split()[:3] == ["update", "10.0", "ms"]
    assert [line.split() for line in lines(found)[1:5]] == [
        ["device", "virtual:0"],
        ["latency", "(judged)", "10.0", "ms"],
        ["steady", "10.0", "ms"],
        ["cycles", "15.0M"],
    ]


UNKNOWN = replace(FIGURES, conditions=Conditions(1.1e9, 2.6e9, 60.0, None, 0))


def compared(gpu: VirtualGPU, compiling: tuple[bool, bool] = (False, False)) -> PairsMeasured:
    """Compare a kernel of 11 ms with one of 10 ms, live, by one pair."""
    with driving(gpu):
        times_s = (10e-3, 11e-3)
        base, head = (
            VirtualWorker(gpu, time_s, compiles=each) for time_s, each in zip(times_s, compiling, strict=True)
        )
        try:
            check([base, head])
            nothing = Leftovers({})
            pair = Pair(base, head, head_first=True, clock=lambda: gpu.clock.now_ns / 1e9, leftovers=nothing)
            pair.warm_up(wire.WarmAll(3.0))
            taken = pair.take(wire.TakePair(None, 3.0, 0.0, reads=True))
            return PairsMeasured((taken.pair,), tuple(taken.traced))
        finally:
            base.meter.thaw()
            head.meter.thaw()


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (False, True, "each call compiles 1 program, none on the base"),
        (True, True, ""),
        (True, False, ""),
        (False, False, ""),
    ],
)
def test_what_compiles_in_each_call_is_found(base: bool, head: bool, expected: str) -> None:
    """Its times are worthless, so that the count decides."""
    pair = compared(VirtualGPU(), (base, head)).pairs[0]
    live = Live("main", "HEAD", result(), (pair, pair), ())
    found = compiles.find(live, Policy())
    assert ("" if found is None else finding_line(found.line)) == expected
    assert bool(pair.head.device is not None and pair.head.device.disturbances) is head


def test_live_pairs_are_compared_at_the_gated_pace() -> None:
    """Each side's calls are waited for; what the other pace is, nobody asked."""
    pairs = compared(VirtualGPU())
    (pair,) = pairs.pairs
    assert math.exp(pair.wall_log_ratio) == pytest.approx(11.005 / 10.005)
    assert not pair.alone
    assert pair.head.device is not None
    assert pair.head.device.latency_s == pytest.approx(11.005e-3)
    assert pair.head.device.steady_s is None
