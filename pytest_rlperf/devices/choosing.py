"""Which clock tells the time of a workload, by the names of the devices it holds things on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from pytest_rlperf.devices.events import EventClock
from pytest_rlperf.devices.host import HostClock, SyncClock
from pytest_rlperf.devices.protocols import DeviceClockError, Driver
from pytest_rlperf.devices.torch import AcceleratorDriver, CudaDriver, MpsDevice

AnyClock: TypeAlias = HostClock | EventClock | SyncClock
_ON_HOST = frozenset({"cpu", "host", "meta"})  # a meta tensor has no data, and no work

# Devices that somebody drives by other means than PyTorch, as tests do theirs.
_driven: dict[str, Driver] = {}


@contextmanager
def driving(*drivers: Driver) -> Iterator[None]:
    """Within the context, know these devices too: a VirtualGPU, or one of another library than PyTorch."""
    before = dict(_driven)
    _driven.update({driver.device: driver for driver in drivers})
    try:
        yield
    finally:
        _driven.clear()
        _driven.update(before)


def clock_for(
    devices: Iterable[str],
    drivers: Mapping[str, Driver] | None = None,
    host_ns: Callable[[], int] = time.perf_counter_ns,
) -> AnyClock:
    """Return the clock for work on ``devices``, named as PyTorch does: ``"cpu"``, ``"cuda:0"``, ``"mps"``.

    ``drivers`` are those of devices that PyTorch does not drive, by name; so are those within :func:`driving`.
    DeviceClockError where there are several accelerators, which no one clock tells the time of, where the one cannot
    be used, or another library than PyTorch uses it (``"cupy cuda:0"``) and nobody drives it.
    """
    names = sorted({name for name in devices if name.partition(":")[0] not in _ON_HOST})
    if not names:
        return HostClock(host_ns)
    if len(names) > 1:
        raise DeviceClockError(
            f"the workload works on several devices, {', '.join(names)}, and no one clock tells the time of "
            "all: have it work on one, or measure a workload for each"
        )
    (name,) = names
    driver = (drivers or {}).get(name) or _driven.get(name)
    if driver is not None:
        return EventClock(driver, host_ns=host_ns)
    library, _, place = name.rpartition(" ")
    if library:
        raise DeviceClockError(
            f"the workload holds arrays of {library} on {place}, which no clock of PyTorch's waits for, and the host's "
            f"clock would time launches: measure within driving(driver), of a driver whose device is {name!r}"
        )
    kind = name.partition(":")[0]
    if kind == "mps":
        return SyncClock(MpsDevice(), host_ns)
    return EventClock(CudaDriver(name) if kind == "cuda" else AcceleratorDriver(name), host_ns=host_ns)
