"""Clocks that only the host keeps: by itself, or after waiting for a device that has no events."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable

from pytest_rlperf.devices.protocols import Device, DeviceClockError, Mark

_RESOLUTION_NS = 1e9 * time.get_clock_info("perf_counter").resolution


class HostClock:
    """The host's own clock, whose marks are integer nanoseconds."""

    device = "host"
    is_synced = False

    def __init__(self, host_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.host_ns = host_ns
        self.resolution_ns = _RESOLUTION_NS

    def mark(self) -> int:
        """Return the host's nanoseconds."""
        return self.host_ns()

    def elapsed_ns(self, start: int, end: int) -> float:
        """Return the nanoseconds between two marks."""
        return end - start

    def synchronize(self) -> None:
        """Return at once: the host waits for nothing."""

    def state(self) -> dict[str, str]:
        """Return what identifies the host."""
        return {"device": self.device, "name": platform.processor() or platform.machine()}


class SyncClock:
    """The host's clock, read once the device has done all it was given: for devices without timed events.

    Waiting at every mark keeps host and device from overlapping, so its times compare with none of an
    :class:`EventClock`.
    """

    is_synced = True

    def __init__(self, driver: Device, host_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.driver = driver
        self.device = driver.device
        self.host_ns = host_ns
        self.resolution_ns = _RESOLUTION_NS
        self.grown = 0
        self.left = 1  # there is always another mark

    def mark(self) -> Mark:
        """Wait for the device, and mark the moment at which it is done."""
        mark = Mark(None)
        mark.stream = self.driver.stream()
        self.synchronize()
        mark.host_ns = self.host_ns()
        return mark

    def elapsed_ns(self, start: Mark, end: Mark) -> float:
        """Return the nanoseconds between two marks."""
        return end.host_ns - start.host_ns

    def synchronize(self) -> None:
        """Wait until all that the device was given is done."""
        try:
            self.driver.synchronize()
        except RuntimeError as error:
            raise DeviceClockError(f"waiting for {self.device} failed: {error}") from error

    def reserve(self, marks: int) -> None:
        """Do nothing: these marks cost the device nothing."""

    def release(self, marks: Iterable[Mark] | None = None) -> None:
        """Do nothing: these marks cost the device nothing."""

    def state(self) -> dict[str, str]:
        """Return what identifies the device."""
        return {"device": self.device, **self.driver.state()}
