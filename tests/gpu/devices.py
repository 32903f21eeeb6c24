"""One interface to a CUDA device and to the virtual GPU: the work that the checks of this folder give either."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from virtual_gpu import VirtualGPU, VirtualLibrary

from pytest_rlperf.devices.clocks import DeviceDriver
from pytest_rlperf.worker.device_state import DeviceLibrary, Torch

COPY_BYTES = 1 << 20
_COMPILE_S = 10e-3  # of the virtual one's host


class Gpu(Protocol):
    """A GPU to check on.

    ``drivers`` drive devices that PyTorch does not drive, ``library`` is the library that uses the device, and ``held``
    is memory of the device, by which the plugin finds a workload's device.
    """

    drivers: tuple[DeviceDriver, ...]
    library: DeviceLibrary
    held: Any
    host_ns: Callable[[], int]

    def spin(self, seconds: float) -> None:
        """Keep the host busy, and the GPU idle."""

    def sleep(self, cycles: int) -> None:
        """Queue a kernel of a number of cycles on the current stream."""

    def synchronize(self) -> None:
        """Wait for the GPU, by its own library."""

    def item(self) -> None:
        """Read a number of the GPU's, which waits for the current stream."""

    def copy_to_device(self, *, pinned: bool) -> None:
        """Copy ``COPY_BYTES`` of host memory; from pinned memory without waiting."""

    def copy_to_host(self, *, pinned: bool) -> None:
        """Copy as much back; to pinned memory without waiting."""

    def beside(self) -> AbstractContextManager[object]:
        """Within the context, have a stream of its own be the current one."""

    def captured(self) -> AbstractContextManager[Callable[[], None]]:
        """Within the context, capture a graph; yields what replays it."""

    def run_compiled(self, size: int) -> None:
        """Run code that is compiled for every size of its input by itself."""


class Cuda:
    drivers: tuple[DeviceDriver, ...] = ()  # the plugin finds its own

    def __init__(self, device: str) -> None:
        import torch

        self._torch: Any = torch
        self._cuda: Any = torch.cuda
        self.library: DeviceLibrary = Torch()
        self.host_ns: Callable[[], int] = time.perf_counter_ns
        torch.cuda.set_device(device)
        self.held: Any = torch.ones(1, device=device)
        self._side: Any = self._cuda.Stream()
        numbers = COPY_BYTES // 4
        self._there = torch.zeros(numbers, device=device)
        self._pageable = torch.zeros(numbers)
        self._pinned = torch.zeros(numbers, pin_memory=True)
        self._inputs: dict[int, Any] = {}
        self._compiled: Any = None
        self.synchronize()

    def spin(self, seconds: float) -> None:
        end_ns = time.perf_counter_ns() + 1e9 * seconds
        while time.perf_counter_ns() < end_ns:
            pass

    def sleep(self, cycles: int) -> None:
        """Queue PyTorch's own kernel for tests, which reads the clock until it is over."""
        self._cuda._sleep(cycles)

    def synchronize(self) -> None:
        self._cuda.synchronize()

    def item(self) -> None:
        self.held.item()

    def copy_to_device(self, *, pinned: bool) -> None:
        if pinned:
            self._there.copy_(self._pinned, non_blocking=True)
        else:
            self._there.copy_(self._pageable)

    def copy_to_host(self, *, pinned: bool) -> None:
        if pinned:
            self._pinned.copy_(self._there, non_blocking=True)
        else:
            self._pageable.copy_(self._there)

    def beside(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self._cuda.stream(self._side)
        return context

    @contextmanager
    def captured(self) -> Iterator[Callable[[], None]]:
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            yield graph.replay

    def run_compiled(self, size: int) -> None:
        """Run by torch.compile, or by its tracing backend where the default compiler fails."""
        if size not in self._inputs:
            self._inputs[size] = self._torch.ones(size, device="cuda")
        if self._compiled is None:
            self._compiled = self._compile(self._inputs[size])
        self._compiled(self._inputs[size])

    def _compile(self, example: Any) -> Any:
        def function(values: Any) -> Any:
            return (2 * values + 1).relu().sum()

        compiled = self._torch.compile(function, dynamic=False)
        try:
            compiled(example)
        except Exception as error:  # no Triton, no C compiler, a GPU that is too old: PyTorch has an error for each
            name = type(error).__name__
            warnings.warn(f"torch.compile's default compiler fails ({name}): graphs run as traced", stacklevel=2)
            compiled = self._torch.compile(function, dynamic=False, backend="eager")
        return compiled


class Virtual:
    """The virtual GPU, whose events cost the host a microsecond."""

    def __init__(self, gpu: VirtualGPU | None = None) -> None:
        self.gpu = gpu or VirtualGPU(event_s=1e-6)
        self.drivers: tuple[DeviceDriver, ...] = (self.gpu,)
        self.host_ns: Callable[[], int] = self.gpu.clock
        self.library: DeviceLibrary = VirtualLibrary(self.gpu)
        self.held: Any = self.gpu.allocate(4)
        self._sizes: set[int] = set()

    def spin(self, seconds: float) -> None:
        self.gpu.host(seconds)

    def sleep(self, cycles: int) -> None:
        self.gpu.launch(cycles / self.gpu.sm_clock_hz)

    def synchronize(self) -> None:
        self.gpu.synchronize()

    def item(self) -> None:
        self.gpu.item()

    def copy_to_device(self, *, pinned: bool) -> None:
        self.gpu.copy_to_device(COPY_BYTES, pinned=pinned)

    def copy_to_host(self, *, pinned: bool) -> None:
        self.gpu.copy_to_host(COPY_BYTES, pinned=pinned)

    def beside(self) -> AbstractContextManager[object]:
        return self.gpu.use(7)

    @contextmanager
    def captured(self) -> Iterator[Callable[[], None]]:
        with self.gpu.capture() as graph:
            yield graph.replay

    def run_compiled(self, size: int) -> None:
        if size not in self._sizes:
            self._sizes.add(size)
            self.gpu.compile(_COMPILE_S)
        self.gpu.launch(10e-6)
