"""Accelerators: their clocks, and the phases of a workload by those clocks.

:func:`clock_for` chooses a clock by the devices that a workload holds.
"""

from __future__ import annotations

from pytest_rlperf.devices.choosing import AnyClock, clock_for, devices_of, driving, is_driven
from pytest_rlperf.devices.clocks import (
    Clock,
    Device,
    DeviceClockError,
    Driver,
    EventClock,
    HostClock,
    Mark,
    Memory,
    SyncClock,
)
from pytest_rlperf.devices.entries import Entry
from pytest_rlperf.devices.jax import JaxDevice
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
    "Entry",
    "EventClock",
    "HostClock",
    "JaxDevice",
    "Mark",
    "Memory",
    "MpsDevice",
    "SyncClock",
    "Tape",
    "clock_for",
    "devices_of",
    "driving",
    "is_driven",
]
