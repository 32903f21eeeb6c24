"""The clock of a device that stamps events on its streams, while the host runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pytest_rlperf.devices.protocols import DeviceClockError, Driver, Mark

POOL_SIZE = 256  # marks; an iteration of a hundred phases needs two hundred and two


class EventClock:
    """The device's own clock: marks are events of a pool, recorded on the current stream without waiting.

    To make an event takes twenty times as long as to take one from the pool, so the pool grows only when told to by
    :meth:`reserve`; ``grown`` counts how often that was after it was first made. ``left`` is how many marks it has.
    """

    is_synced = False

    def __init__(
        self, driver: Driver, pool_size: int = POOL_SIZE, host_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.driver = driver
        self.device = driver.device
        self.resolution_ns = driver.resolution_ns
        self.host_ns = host_ns
        self.grown = 0
        self._free: list[Mark] = []
        self._taken: dict[int, Mark] = {}
        self._fill(pool_size)

    @property
    def left(self) -> int:
        """How many marks can be taken before the pool is empty."""
        return len(self._free)

    @property
    def size(self) -> int:
        """How many marks there are, taken or not."""
        return len(self._free) + len(self._taken)

    def mark(self) -> Mark:
        """Mark this moment; DeviceClockError where the pool is empty, or the device refuses."""
        try:
            mark = self._free.pop()
        except IndexError:
            raise DeviceClockError(
                f"all {self.size} events of {self.device}'s clock are in use: release() marks that were read, "
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
        """Return the device's nanoseconds between two marks, which it must have reached: DeviceClockError before.

        They are of float32 milliseconds: of long times, the last digits are lost.
        """
        try:
            return 1e6 * self.driver.elapsed_ms(start.event, end.event)
        except RuntimeError as error:
            raise DeviceClockError(
                f"{self.device} does not tell the time between two events: {error}. Call synchronize() before reading"
            ) from error

    def synchronize(self) -> None:
        """Wait until all that the device was given is done."""
        try:
            self.driver.synchronize()
        except RuntimeError as error:
            raise DeviceClockError(f"waiting for {self.device} failed: {error}") from error

    def reserve(self, marks: int) -> None:
        """Have at least this many marks left; call it between iterations, as making events takes time."""
        missing = marks - self.left
        if missing > 0:
            self.grown += 1
            self._fill(missing)

    def release(self, marks: Iterable[Mark] | None = None) -> None:
        """Take back these marks, or all: they have been read."""
        for mark in list(self._taken.values() if marks is None else marks):
            if self._taken.pop(id(mark), None) is not None:
                self._free.append(mark)

    def state(self) -> dict[str, str]:
        """Return what identifies the device."""
        return {"device": self.device, **self.driver.state()}

    def _fill(self, marks: int) -> None:
        try:
            self._free += [Mark(self.driver.make_event()) for _ in range(marks)]
        except RuntimeError as error:
            raise DeviceClockError(f"making an event on {self.device} failed: {error}") from error
