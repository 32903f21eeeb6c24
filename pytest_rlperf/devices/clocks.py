"""Clocks of the host and of devices, the driver that a clock needs for a device, and drivers for PyTorch's devices.

Nothing here loads PyTorch before one of its devices is named.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import msgspec


class DeviceClockError(Exception):
    """There is no clock for a device, or it broke; the text names the device and the remedy."""


class Memory(msgspec.Struct, frozen=True):
    """A device's memory: bytes in use, the most since the last :meth:`Device.reset_peak`, and allocations so far."""

    allocated_bytes: int
    peak_bytes: int
    allocations: int


class Device(Protocol):
    """An accelerator, driven by any library.

    Errors are the library's, usually RuntimeError.
    """

    device: str  # "cuda:0"

    def stream(self) -> Hashable:
        """Return an identifier for the host thread's current stream on the device."""

    def synchronize(self) -> None:
        """Wait until the device has finished its work on every stream."""

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph, which allows no timed event and no wait."""

    def memory(self) -> Memory | None:
        """Return the state of the device's memory, None if it is unknown.

        The library's own allocator keeps it, so this does not call the device.
        """

    def reset_peak(self) -> None:
        """Reset the peak of memory."""

    def counting_syncs(self) -> AbstractContextManager[Callable[[], int] | None]:
        """Within the context, count how often the host waits for the device because of an operation it called.

        Yield a function that returns the count so far, or None if it is unknown.
        """

    def name(self) -> str:
        """Return the device's model."""


class WaitedDevice:
    """A device that can only be waited for: it has one stream, no graphs, and no figures for memory and waits."""

    def stream(self) -> Hashable:
        """Return the only stream."""
        return 0

    def is_capturing(self) -> bool:
        """Return False: there are no graphs."""
        return False

    def memory(self) -> Memory | None:
        """Return None: the device's library keeps no peak."""
        return None

    def reset_peak(self) -> None:
        """Do nothing: there is no peak."""

    @contextmanager
    def counting_syncs(self) -> Iterator[Callable[[], int] | None]:
        """Count nothing: the device's library does not report waits."""
        yield None


class DeviceDriver(Device, Protocol):
    """A device that records events on its streams: PyTorch's, or a virtual device."""

    def make_event(self) -> Any:
        """Return a new event; this allocates, so it is done before measuring."""

    def record(self, event: Any) -> None:
        """Order the current stream to stamp ``event`` once it gets there; the host does not wait."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return float32 milliseconds between two events; RuntimeError until the device has reached them."""


class Mark:
    """One moment: the host's nanoseconds, and an event that a stream of the device stamps when it gets there.

    A mark belongs to its clock, which reuses it once it is released.
    """

    __slots__ = ("event", "host_ns", "stream")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.host_ns = 0
        self.stream: Hashable = None


class HostClock:
    """The host's own clock, for work on no device."""

    device = "host"

    def __init__(self, host_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.host_ns = host_ns


class _DeviceClock:
    """The part that a device's clocks share: the device itself, which they wait for."""

    driver: Device
    device: str

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        try:
            self.driver.synchronize()
        except RuntimeError as error:
            raise DeviceClockError(f"waiting for {self.device} failed: {error}") from error


class SyncClock(_DeviceClock):
    """The host's clock, read once the device has finished its work: for devices without timed events.

    Waiting at every mark keeps host and device from overlapping, so its times cannot be compared with those of an
    :class:`EventClock`.
    """

    is_synced = True

    def __init__(self, driver: Device, host_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.driver = driver
        self.device = driver.device
        self.host_ns = host_ns
        self.left = 1  # there is always another mark

    def mark(self) -> Mark:
        """Wait for the device, and mark the moment when it is done."""
        mark = Mark(None)
        mark.stream = self.driver.stream()
        self.synchronize()
        mark.host_ns = self.host_ns()
        return mark

    def elapsed_ns(self, start: Mark, end: Mark) -> float:
        """Return the nanoseconds between two marks."""
        return end.host_ns - start.host_ns

    def reserve(self, marks: int) -> None:
        """Do nothing: these marks cost the device nothing."""

    def release(self, marks: Iterable[Mark] | None = None) -> None:
        """Do nothing: these marks cost the device nothing."""


POOL_SIZE = 256  # marks; an iteration with a hundred phases needs two hundred and two


class EventClock(_DeviceClock):
    """The device's own clock: marks are events from a pool, recorded on the current stream without waiting.

    Making an event takes twenty times as long as taking one from the pool, so the pool grows only by :meth:`reserve`.
    ``left`` is how many marks it has.
    """

    is_synced = False
    driver: DeviceDriver

    def __init__(
        self, driver: DeviceDriver, pool_size: int = POOL_SIZE, host_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.driver = driver
        self.device = driver.device
        self.host_ns = host_ns
        self._free: list[Mark] = []
        self._taken: dict[int, Mark] = {}
        self._fill(pool_size)

    @property
    def left(self) -> int:
        """How many marks can be taken before the pool is empty."""
        return len(self._free)

    def mark(self) -> Mark:
        """Mark this moment; DeviceClockError if the pool is empty, or if the device refuses."""
        try:
            mark = self._free.pop()
        except IndexError:
            raise DeviceClockError(
                f"all {len(self._taken)} events of {self.device}'s clock are in use: release() marks that were read, "
                "or reserve() more before measuring"
            ) from None
        self._taken[id(mark)] = mark
        try:
            mark.stream = self.driver.stream()
            mark.host_ns = self.host_ns()
            self.driver.record(mark.event)
        except RuntimeError as error:
            self.release([mark])
            raise DeviceClockError(f"recording an event on {self.device} failed: {error}") from error
        return mark

    def elapsed_ns(self, start: Mark, end: Mark) -> float:
        """Return the device's nanoseconds between two marks; DeviceClockError until it has reached them.

        They come from float32 milliseconds, so long times lose their last digits.
        """
        try:
            return 1e6 * self.driver.elapsed_ms(start.event, end.event)
        except RuntimeError as error:
            raise DeviceClockError(
                f"{self.device} has no time between two events: {error}. Call synchronize() before reading"
            ) from error

    def reserve(self, marks: int) -> None:
        """Make events until ``marks`` marks are left; call it between iterations, as that takes time."""
        missing = marks - self.left
        if missing > 0:
            self._fill(missing)

    def release(self, marks: Iterable[Mark] | None = None) -> None:
        """Take back these marks, or all marks, once they have been read."""
        for mark in list(self._taken.values() if marks is None else marks):
            if self._taken.pop(id(mark), None) is not None:
                self._free.append(mark)

    def _fill(self, marks: int) -> None:
        try:
            self._free += [Mark(self.driver.make_event()) for _ in range(marks)]
        except RuntimeError as error:
            raise DeviceClockError(f"making an event on {self.device} failed: {error}") from error


# --------------------------------------------------------------------------- the devices that PyTorch drives

_SYNCED = "called a synchronizing CUDA operation"  # in the warnings of PyTorch's sync debug mode


class CudaDriver:
    """An NVIDIA GPU, or an AMD GPU with PyTorch's ROCm builds, by events on PyTorch's current stream."""

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
        """Return a new event, made on the device: PyTorch makes an event when it is first recorded."""
        with self._cuda.device(self._index):
            event = self._cuda.Event(enable_timing=True)
            event.record(self._cuda.current_stream(self._index))
        return event

    def stream(self) -> Hashable:
        """Return the handle of the current stream."""
        return int(self._cuda.current_stream(self._index).cuda_stream)

    def record(self, event: Any) -> None:
        """Order the current stream to stamp ``event``."""
        event.record(self._cuda.current_stream(self._index))

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return milliseconds between two events."""
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Wait for all streams."""
        self._cuda.synchronize(self._index)

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph, which PyTorch reports only for the current device."""
        if self._cuda.current_device() == self._index:
            return bool(self._cuda.is_current_stream_capturing())
        with self._cuda.device(self._index):
            return bool(self._cuda.is_current_stream_capturing())

    def memory(self) -> Memory | None:
        """Return the figures of PyTorch's caching allocator; None if it was replaced."""
        try:
            stats = self._cuda.memory_stats(self._index)
        except RuntimeError:
            return None
        return Memory(
            allocated_bytes=stats.get("allocated_bytes.all.current", 0),
            peak_bytes=stats.get("allocated_bytes.all.peak", 0),
            # Expandable segments grow without becoming more; older PyTorch counts only segments.
            allocations=stats.get("num_device_alloc", stats.get("segment.all.allocated", 0)),
        )

    def reset_peak(self) -> None:
        """Reset the peak in PyTorch's own statistics; do nothing if its allocator was replaced."""
        with suppress(RuntimeError):
            self._cuda.reset_peak_memory_stats(self._index)

    @contextmanager
    def counting_syncs(self) -> Iterator[Callable[[], int] | None]:
        """Count the operations that wait, by the warnings of PyTorch's debug mode, which ROCm builds also have."""
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
    """A PyTorch device other than CUDA's, such as MPS or XPU: the host waits for it.

    DeviceClockError if PyTorch cannot use the device on this machine.
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
        """Wait until the device has finished its work on every stream."""
        self._wait()

    def name(self) -> str:
        """Return the device's kind: PyTorch does not know the model."""
        return self._kind


def _is_usable(torch: Any, kind: str) -> bool:
    accelerator: Any = getattr(torch, "accelerator", None)  # since PyTorch 2.6
    usable = None if accelerator is None else accelerator.current_accelerator()
    return usable is not None and bool(usable.type == kind and accelerator.is_available())


def _torch(device: str) -> Any:
    """Import PyTorch for a device; DeviceClockError if that fails."""
    try:
        import torch
    except ImportError as error:
        raise DeviceClockError(
            f"the workload holds things on {device}, whose clock needs PyTorch, which does not import: {error}"
        ) from error
    return torch
