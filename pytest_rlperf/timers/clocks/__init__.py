"""Clocks: the host's, and those of accelerators, which run on while the host does.

:func:`clock_for` chooses one by the devices that a workload holds.
"""

from pytest_rlperf.timers.clocks.choosing import AnyClock, clock_for, driving
from pytest_rlperf.timers.clocks.events import EventClock
from pytest_rlperf.timers.clocks.host import HostClock, SyncClock
from pytest_rlperf.timers.clocks.protocols import Clock, Device, DeviceClockError, Driver, Mark, Memory
from pytest_rlperf.timers.clocks.torch import AcceleratorDriver, CudaDriver, MpsDevice

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
    "SyncClock",
    "clock_for",
    "driving",
]
