"""Counts of one device: implicit waits, memory, and whatever its driver counts itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from pytest_rlperf.counters.instrument import CannotCountError, Levels, TotalsInstrument, lineage
from pytest_rlperf.devices.clocks import Device
from pytest_rlperf.model.counting import Count
from pytest_rlperf.timers.node import Node


@runtime_checkable
class CountsDevice(Protocol):
    """A driver that counts by itself; ``counts`` returns running totals by the names of the vocabulary."""

    device: str

    def counts(self) -> dict[str, int]:
        """Return the totals so far: ``syncs``, ``copies_to_device``, ``kernels``, …; all that it counts, zeros too."""


class DeviceCounts(TotalsInstrument):
    """Counts one device's work by phase, by reading its totals at the edges of phases."""

    def __init__(self, driver: Device) -> None:
        super().__init__(on_edge=self._note_level)
        self._driver = driver
        self._waits: Callable[[], int] | None = None
        self._levels: Levels | None = None
        self._last: dict[str, int] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Be in place while the body runs."""
        with self._driver.counting_syncs() as self._waits:
            peak = () if self._driver.memory() is None else ("device_peak_bytes",)
            self.names = (*self._all_counts(), *peak)
            yield

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase; CannotCountError where the call is in the way."""
        mode = _sync_debug_mode()
        found = self._count(call)
        if _sync_debug_mode() != mode:
            raise CannotCountError("the call itself sets PyTorch's sync debug mode, by which waits are counted")
        return found

    def _count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        memory = self._driver.memory()
        if memory is None:
            return super().count(call)
        self._driver.reset_peak()
        self._levels = Levels(memory.allocated_bytes)
        try:
            return super().count(call)
        finally:
            self._levels = None

    def _counts(self, whole: int) -> tuple[Count, ...]:
        """Return the counts of the call that has just been recorded, and the peaks of its memory."""
        if self._levels is None:
            return super()._counts(whole)
        levels = self._levels.counts(self.recorder.paths(), "device_peak_bytes", "")
        peaks = [each for each in levels if each.name]
        return (*super()._counts(whole), *peaks)

    def begin(self) -> None:
        """Begin to count, just before the call."""
        self._note_level(None)

    def end(self) -> None:
        """End what has begun, just after the call."""
        self._note_level(None)

    def _note_level(self, innermost: Node | None) -> None:
        """Note the memory at a phase's edge, and begin a new peak."""
        memory = None if self._levels is None else self._driver.memory()
        if self._levels is not None and memory is not None:
            self._levels.note(lineage(innermost), memory.allocated_bytes, memory.peak_bytes)
            self._driver.reset_peak()

    def read(self) -> int:
        """Return the totals so far, packed."""
        for name, value in self._all_counts().items():
            grown = value - self._last.get(name, value)
            self._last[name] = value
            # A call may reset the statistics of its library; what it did before that since the last edge is lost.
            self.totals.packed += (grown if grown >= 0 else value) * self.totals.unit(name)
        return self.totals.packed

    def _all_counts(self) -> dict[str, int]:
        """Return the totals so far of waits and allocations; the driver's own counts replace ours of the same name."""
        memory = self._driver.memory()
        found = {} if memory is None else {"device_allocations": memory.allocations}
        if self._waits is not None:
            found["syncs"] = self._waits()
        return found | (self._driver.counts() if isinstance(self._driver, CountsDevice) else {})


def _sync_debug_mode() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.get_sync_debug_mode()) if torch is not None and torch.cuda.is_initialized() else 0


def devices_in_use() -> tuple[Device, ...]:
    """Return the device that PyTorch uses in this process, if it has begun to: nothing is started by looking."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ()
    from pytest_rlperf.devices.torch import CudaDriver

    return (CudaDriver(f"cuda:{torch.cuda.current_device()}"),)
