"""A workload on a virtual GPU, and the meter that takes its slices."""

from __future__ import annotations

from collections.abc import Callable

from virtual_gpu import VirtualGPU, VirtualLibrary

from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import SliceKind, Warm, Workload
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.wire import WarmUp
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.rounds import Clocks

LAUNCH_S = 5e-6
KERNEL_S = 10e-6


class Bench:
    """A workload of three kernels, each of 10 µs after a launch of 5 µs, on a virtual GPU; ``then`` follows them."""

    def __init__(self, pace: Pace = Pace.LATENCY, *, setup: Callable[[], None] | None = None) -> None:
        self.gpu = VirtualGPU(launch_s=LAUNCH_S)
        self.library = VirtualLibrary(self.gpu)
        self.calls = 0
        self.then: Callable[[], object] = lambda: None
        weights = self.gpu.allocate(1 << 20)
        self.workload = Workload(
            component="callable",
            call=self.call,
            items=1.0,
            unit="call",
            check=self.call,
            setup=setup,
            holds=(weights,),
            pace=pace,
        )
        kernels = {SliceKind.INTERPRETER: self._idle, SliceKind.MEMORY: self._idle}
        self._kernels = kernels
        self.meter = self.metered()

    def metered(self) -> Meter:
        clocks = Clocks(self.gpu.clock, self.gpu.clock, 76.0)
        return Meter(self.workload, lambda: self._kernels, clocks, self.library)

    def call(self) -> None:
        self.calls += 1
        with hierarchical_timer("kernels"):
            for _ in range(3):
                self.gpu.launch(KERNEL_S)
        self.then()

    def _idle(self) -> None:
        self.gpu.host(2e-3)

    def warm(self, limit_s: float = 0.1) -> Warm:
        self.meter.check()
        return self.meter.warm_up(WarmUp(limit_s))
