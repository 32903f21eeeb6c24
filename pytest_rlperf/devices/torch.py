"""The devices that PyTorch drives; nothing here loads it before a device is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pytest_rlperf.devices.clocks import DeviceClockError, Memory, WaitedDevice

_SYNCED = "called a synchronizing CUDA operation"  # in the warnings of PyTorch's sync debug mode


class CudaDriver:
    """An NVIDIA GPU, or with PyTorch's ROCm builds one of AMD's, by events on PyTorch's current stream."""

    def __init__(self, device: str) -> None:
        torch = _torch(device)
        index = torch.device(device).index or 0
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            build = torch.version.cuda or torch.version.hip or "no GPU at all"
            raise DeviceClockError(
                f"the workload holds tensors on {device}, but PyTorch {torch.__version__}, built for {build}, can use "
                f"{count} such devices: without the device's clock only launches would be timed. Check nvidia-smi (or "
                "rocm-smi) and CUDA_VISIBLE_DEVICES, or move the workload to the CPU"
            )
        self.device = f"cuda:{index}"
        self._index = index
        self._cuda = torch.cuda

    def make_event(self) -> Any:
        """Return a new event, made on the device: PyTorch makes them when they are first recorded."""
        with self._cuda.device(self._index):
            event = self._cuda.Event(enable_timing=True)
            event.record(self._cuda.current_stream(self._index))
        return event

    def stream(self) -> Hashable:
        """Return the handle of the current stream."""
        return int(self._cuda.current_stream(self._index).cuda_stream)

    def record(self, event: Any) -> None:
        """Have the current stream stamp ``event``."""
        event.record(self._cuda.current_stream(self._index))

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return milliseconds between two events."""
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait for all streams."""
        self._cuda.synchronize(self._index)

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph, which PyTorch reports for the current device alone."""
        if self._cuda.current_device() == self._index:
            return bool(self._cuda.is_current_stream_capturing())
        with self._cuda.device(self._index):
            return bool(self._cuda.is_current_stream_capturing())

    def memory(self) -> Memory | None:
        """Return the figures of PyTorch's caching allocator; None where it was replaced."""
        try:
            stats = self._cuda.memory_stats(self._index)
        except RuntimeError:
            return None
        return Memory(
            allocated_bytes=stats.get("allocated_bytes.all.current", 0),
            peak_bytes=stats.get("allocated_bytes.all.peak", 0),
            # Segments that expand grow without there being more of them; older PyTorch counts only those.
            allocations=stats.get("num_device_alloc", stats.get("segment.all.allocated", 0)),
        )

    def reset_peak(self) -> None:
        """Begin a new peak in PyTorch's own statistics; do nothing where its allocator was replaced."""
        with suppress(RuntimeError):
            self._cuda.reset_peak_memory_stats(self._index)

    @contextmanager
    def counting_syncs(self) -> Iterator[Callable[[], int] | None]:
        """Count the operations that wait, as PyTorch's debug mode warns of them; ROCm builds do as well."""
        before = self._cuda.get_sync_debug_mode()
        waits = 0
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message=_SYNCED)
            show = warnings.showwarning

            def showwarning(message: Warning | str, *place: Any, **more: Any) -> None:
                nonlocal waits
                if _SYNCED in str(message):
                    waits += 1
                else:
                    show(message, *place, **more)

            warnings.showwarning = showwarning
            self._cuda.set_sync_debug_mode("warn")
            try:
                yield lambda: waits
            finally:
                self._cuda.set_sync_debug_mode(before)

    def name(self) -> str:
        """Return the GPU's model."""
        return str(self._cuda.get_device_properties(self._index).name)


class WaitedTorchDevice(WaitedDevice):
    """A device of PyTorch that is no CUDA device, such as MPS or XPU: the host waits for it.

    DeviceClockError where PyTorch cannot use the device on this machine.
    """

    def __init__(self, device: str) -> None:
        torch = _torch(device)
        self._kind = device.partition(":")[0]
        is_mps = self._kind == "mps"
        if not (torch.backends.mps.is_available() if is_mps else _is_usable(torch, self._kind)):
            raise DeviceClockError(
                f"the workload holds tensors on {device}, which PyTorch {torch.__version__} cannot use here: without "
                "waiting for the device only launches would be timed. Install PyTorch for it (2.6 or newer), "
                "or move the workload to the CPU"
            )
        self.device = "mps" if is_mps else device
        self._wait: Callable[[], None] = torch.mps.synchronize
        if not is_mps:
            self._wait = partial(torch.accelerator.synchronize, device)

    def synchronize(self) -> None:
        """Have the host wait until the device has finished its work on every stream."""
        self._wait()

    def name(self) -> str:
        """Return the kind of the device: PyTorch knows no model."""
        return self._kind


def _is_usable(torch: Any, kind: str) -> bool:
    accelerator: Any = getattr(torch, "accelerator", None)  # since PyTorch 2.6
    usable = None if accelerator is None else accelerator.current_accelerator()
    return usable is not None and bool(usable.type == kind and accelerator.is_available())


def _torch(device: str) -> Any:
    """Import PyTorch for a device; DeviceClockError where there is none."""
    try:
        import torch
    except ImportError as error:
        raise DeviceClockError(
            f"the workload holds things on {device}, whose clock needs PyTorch, which does not import: {error}"
        ) from error
    return torch
