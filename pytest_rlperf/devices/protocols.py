"""What a clock is, and what one needs of a device."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

MarkT = TypeVar("MarkT")


class DeviceClockError(Exception):
    """There is no clock for a device, or it broke; the text says which and what to do."""


@dataclass(frozen=True)
class Memory:
    """A device's memory: bytes in use, the most since the peak was last reset, and how often it was asked for more."""

    allocated_bytes: int
    peak_bytes: int
    allocations: int


class Device(Protocol):
    """What is asked of every accelerator, by whatever library drives it.

    Errors are those of the device's own library, RuntimeError as a rule.
    """

    device: str  # "cuda:0"

    def stream(self) -> Hashable:
        """Return what identifies the host thread's current stream on the device."""

    def synchronize(self) -> None:
        """Have the host wait until the device has done all it was given, on every stream."""

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph, where no event may be timed and nothing waited for."""

    def memory(self) -> Memory | None:
        """Return the state of the device's memory, None where it is not known.

        It is what the library's own allocator keeps: this takes no call to the device.
        """

    def reset_peak(self) -> None:
        """Begin a new peak of memory."""

    def counting_syncs(self) -> AbstractContextManager[Callable[[], int] | None]:
        """Within the context, count how often the host waits for the device because of an operation it called.

        Yields what tells the count so far, None where it is not known.
        """

    def state(self) -> dict[str, str]:
        """Return what identifies the device, for reports."""


class Driver(Device, Protocol):
    """A device that records events on its streams: PyTorch's, or a virtual one."""

    resolution_ns: float  # of the time between two events

    def make_event(self) -> Any:
        """Return a new event; this allocates, so it is done before measuring."""

    def record(self, event: Any) -> None:
        """Have the current stream stamp ``event`` once it gets there; the host does not wait."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return float32 milliseconds between two events that the device has reached; RuntimeError before."""


class Mark:
    """One moment: the host's nanoseconds, and an event that a stream of the device stamps when it gets there.

    A mark is its clock's, and used again once it was released.
    """

    __slots__ = ("event", "host_ns", "stream")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.host_ns = 0
        self.stream: Hashable = None


class Clock(Protocol[MarkT]):
    """Marks moments, and tells the time between them."""

    device: str  # "host", "cuda:0", "mps"
    resolution_ns: float
    is_synced: bool  # whether every mark waits for the device

    def mark(self) -> MarkT:
        """Mark this moment, on the host and in the order of the device's work."""

    def elapsed_ns(self, start: MarkT, end: MarkT) -> float:
        """Return the nanoseconds between two marks; what a device has not reached yet is a DeviceClockError."""

    def synchronize(self) -> None:
        """Wait until all that the device was given is done; nothing to wait for on the host."""

    def state(self) -> dict[str, str]:
        """Return what identifies the device and its settings, for reports."""
