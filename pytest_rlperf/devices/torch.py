"""The devices that PyTorch drives; nothing here loads it before a device is named."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from pytest_rlperf.devices.clocks import DeviceClockError, Memory, WaitedDevice

_CUDA_RESOLUTION_NS = 500.0  # "a resolution of around 0.5 microseconds": cudaEventElapsedTime in CUDA's reference
_OTHER_RESOLUTION_NS = 1000.0  # other vendors' libraries document none
_SYNCED = "called a synchronizing CUDA operation"  # in the warnings of PyTorch's sync debug mode


# The function that runs compiled code. Older PyTorch calls it "_fn", and likewise the one that keeps code from being
# compiled: there the class of its owner tells them apart.
_RUNS_COMPILED, _RUNS_ANY, _COMPILES = "compile_wrapper", "_fn", "OptimizeContext"
_EVALUATES = ("_dynamo/eval_frame.py", "_dynamo\\eval_frame.py")


class CudaDriver:
    """An NVIDIA GPU, or with PyTorch's ROCm builds one of AMD's, by events on PyTorch's current stream."""

    resolution_ns = _CUDA_RESOLUTION_NS

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
        self._version = torch.version

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

    def state(self) -> dict[str, str]:
        """Return the GPU's name and size, and the libraries' versions."""
        properties = self._cuda.get_device_properties(self._index)
        runtime = self._version.cuda or f"ROCm {self._version.hip}"
        return {
            "name": properties.name,
            "memory_bytes": str(properties.total_memory),
            "capability": ".".join(str(number) for number in self._cuda.get_device_capability(self._index)),
            "runtime": str(runtime),
        }


class AcceleratorDriver:
    """Any accelerator that PyTorch has streams and timed events for, such as Intel's ``xpu``."""

    resolution_ns = _OTHER_RESOLUTION_NS

    def __init__(self, device: str) -> None:
        torch = _torch(device)
        kind, _, index = device.partition(":")
        usable = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
        if usable is None or usable.type != kind or not torch.accelerator.is_available():
            raise DeviceClockError(
                f"the workload holds tensors on {device}, but the accelerator of PyTorch {torch.__version__} is "
                f"{usable or 'none'}: without the device's clock only launches would be timed. Install PyTorch for "
                f"{kind} (2.6 or newer), or move the workload to the CPU"
            )
        self.device = f"{kind}:{index or 0}"
        self._index = int(index or 0)
        self._torch = torch
        self._accelerator = torch.accelerator

    def make_event(self) -> Any:
        """Return a new event; NotImplementedError of PyTorch's is a DeviceClockError here."""
        try:
            event = self._torch.Event(device=self.device, enable_timing=True)
            event.record(self._accelerator.current_stream(self.device))
        except (NotImplementedError, TypeError) as error:
            raise DeviceClockError(
                f"PyTorch {self._torch.__version__} has no timed events for {self.device}: {error}"
            ) from error
        return event

    def stream(self) -> Hashable:
        """Return the number of the current stream."""
        return int(self._accelerator.current_stream(self.device).stream_id)

    def record(self, event: Any) -> None:
        """Have the current stream stamp ``event``."""
        event.record(self._accelerator.current_stream(self.device))

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return milliseconds between two events."""
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait for all streams."""
        self._accelerator.synchronize(self.device)

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph; older PyTorch has graphs for CUDA alone."""
        is_capturing = getattr(self._accelerator.current_stream(self.device), "is_capturing", None)
        return bool(is_capturing()) if callable(is_capturing) else False

    def memory(self) -> Memory | None:
        """Return the figures of PyTorch's allocator; None before PyTorch 2.9, which has none."""
        if not hasattr(self._accelerator, "memory_stats"):
            return None
        stats = self._accelerator.memory_stats(self._index)
        if "allocated_bytes.all.peak" not in stats:
            return None
        return Memory(
            allocated_bytes=stats["allocated_bytes.all.current"],
            peak_bytes=stats["allocated_bytes.all.peak"],
            allocations=stats.get("num_device_alloc", stats.get("segment.all.allocated", 0)),
        )

    def reset_peak(self) -> None:
        """Begin a new peak in PyTorch's own statistics."""
        if hasattr(self._accelerator, "reset_peak_memory_stats"):
            self._accelerator.reset_peak_memory_stats(self._index)

    @contextmanager
    def counting_syncs(self) -> Iterator[Callable[[], int] | None]:
        """Count nothing: PyTorch does not report waits of this device."""
        yield None

    def state(self) -> dict[str, str]:
        """Return the accelerator's model where PyTorch knows it, its kind otherwise, and PyTorch's version."""
        kind = self.device.partition(":")[0]
        name = getattr(getattr(self._torch, kind, None), "get_device_name", None)
        return {"name": str(name(self._index) if callable(name) else kind), "runtime": str(self._torch.__version__)}


class MpsDevice(WaitedDevice):
    """Apple's GPU, which is waited for: its events are of no use to a host that does not."""

    device = "mps"

    def __init__(self) -> None:
        torch = _torch("mps")
        if not torch.backends.mps.is_available():
            raise DeviceClockError(
                f"the workload holds tensors on mps, which PyTorch {torch.__version__} cannot use on this machine"
            )
        self._mps = torch.mps
        self._version = str(torch.__version__)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self._mps.synchronize()

    def state(self) -> dict[str, str]:
        """Return PyTorch's version."""
        return {"name": "mps", "runtime": self._version}


def _torch(device: str) -> Any:
    """Import PyTorch for a device; DeviceClockError where there is none."""
    try:
        import torch
    except ImportError as error:
        raise DeviceClockError(
            f"the workload holds things on {device}, whose clock needs PyTorch, which does not import: {error}"
        ) from error
    return torch


def is_within_compiled() -> bool:
    """Whether the code that called this, at any distance, runs where torch.compile was to compile it."""
    frame: FrameType | None = sys._getframe(1) if "torch._dynamo.eval_frame" in sys.modules else None
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_EVALUATES):
            if code.co_name == _RUNS_COMPILED:
                return True
            if code.co_name == _RUNS_ANY:
                return type(frame.f_locals.get("self")).__name__ == _COMPILES
        frame = frame.f_back
    return False
