"""Accelerators: their clocks, and the phases of a workload by those clocks.

:func:`clock_for` chooses a clock by the devices that a workload holds.
"""

from __future__ import annotations

from pytest_rlperf.devices.choosing import AnyClock, clock_for, driving
from pytest_rlperf.devices.events import EventClock
from pytest_rlperf.devices.held import devices_of
from pytest_rlperf.devices.host import HostClock, SyncClock
from pytest_rlperf.devices.protocols import Clock, Device, DeviceClockError, Driver, Mark, Memory
from pytest_rlperf.devices.spans import Span
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.devices.torch import AcceleratorDriver, CudaDriver, MpsDevice

__all__ = [
    "AcceleratorDriver",
    "AnyClock",
    "Clock",
    "CudaDriver",
    "Device",
    "DeviceClockError",
    "Driver",
    "EventClock",
    "HostClock",
    "Mark",
    "Memory",
    "MpsDevice",
    "Span",
    "SyncClock",
    "Tape",
    "clock_for",
    "devices_of",
    "driving",
]
