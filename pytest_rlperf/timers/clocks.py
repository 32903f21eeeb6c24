"""Clocks: the host's, and those of accelerators, which run on while the host does."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol


class DeviceClockError(Exception):
    """There is no clock for a device, or it broke; the text says which and what to do."""


@dataclass(frozen=True)
class Memory:
    """A device's memory: bytes in use, the most since the peak was last reset, and how often it was asked for more."""

    allocated_bytes: int
    peak_bytes: int
    allocations: int


class Driver(Protocol):
    """What a clock needs of a device that records events on streams: PyTorch's, or a virtual one's.

    Errors are those of the device's own library, RuntimeError as a rule.
    """

    device: str  # "cuda:0"
    resolution_ns: float  # of the time between two events

    def make_event(self) -> Any:
        """Return a new event; this allocates, so it is done before measuring."""

    def stream(self) -> Hashable:
        """Return what identifies the host thread's current stream on the device."""

    def record(self, event: Any) -> None:
        """Have the current stream stamp ``event`` once it gets there; the host does not wait."""

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return float32 milliseconds between two events that the device has reached; RuntimeError before."""

    def synchronize(self) -> None:
        """Have the host wait until the device has done all it was given, on every stream."""

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph, where no event may be timed."""

    def memory(self) -> Memory:
        """Return the state of the device's memory, as the library's own allocator keeps it: no call to the device."""

    def reset_peak(self) -> None:
        """Begin a new peak of memory."""


class Clock(Protocol):
    """Marks moments, and tells the time between them."""

    device: str  # "host", "cuda:0", "mps"
    resolution_ns: float

    def mark(self) -> Any:
        """Mark this moment, on the host and in the order of the device's work, without waiting."""

    def elapsed_ns(self, start: Any, end: Any) -> float:
        """Return the nanoseconds between two marks; what a device has not reached yet is an error."""

    def synchronize(self) -> None:
        """Wait until all that the device was given is done; nothing to wait for on the host."""

    def state(self) -> dict[str, str]:
        """Return what identifies the device and its settings, for reports."""
