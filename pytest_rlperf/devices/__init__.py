"""Accelerators: their clocks, and the phases of a workload by those clocks.

:func:`clock_for` chooses a clock by the devices that a workload holds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from pytest_rlperf.devices.clocks import DeviceClockError, Driver, EventClock, HostClock, SyncClock
from pytest_rlperf.devices.jax import JaxDevice, is_array, is_jax, places
from pytest_rlperf.devices.torch import CudaDriver, WaitedTorchDevice
from pytest_rlperf.probes.objects import reached

AnyClock: TypeAlias = HostClock | EventClock | SyncClock
_ON_HOST = frozenset({"cpu", "host", "meta"})  # a meta tensor has no data, and no work

# Devices with drivers of their own, such as the tests' virtual GPU.
_driven: dict[str, Driver] = {}


@contextmanager
def driving(*drivers: Driver) -> Iterator[None]:
    """Within the context, use these drivers for their devices, such as those of another library than PyTorch."""
    before = dict(_driven)
    _driven.update({driver.device: driver for driver in drivers})
    try:
        yield
    finally:
        _driven.clear()
        _driven.update(before)


def is_driven(devices: Iterable[str]) -> bool:
    """Whether one of these devices, by their names, has a driver of its own within :func:`driving`."""
    return not _driven.keys().isdisjoint(devices)


def clock_for(devices: Iterable[str], host_ns: Callable[[], int] = time.perf_counter_ns) -> AnyClock:
    """Return the clock for work on ``devices``, named as PyTorch does: ``"cpu"``, ``"cuda:0"``, ``"mps"``.

    Devices that PyTorch does not drive have the drivers of :func:`driving`. DeviceClockError where there are several
    accelerators, which share no clock, where the one cannot be used, or where another library than PyTorch and JAX uses
    it (``"cupy cuda:0"``) and there is no driver for it. JAX's devices (``"jax cpu:0"``) count as one.
    """
    names = sorted({name for name in devices if name.partition(":")[0] not in _ON_HOST})
    if not names:
        return HostClock(host_ns)
    if all(is_jax(name) and not is_driven([name]) for name in names):
        return SyncClock(JaxDevice(names), host_ns)
    if len(names) > 1:
        raise DeviceClockError(
            f"the workload works on several devices, {', '.join(names)}, which share no clock: "
            "have it work on one, or measure a workload for each"
        )
    (name,) = names
    if name in _driven:
        return EventClock(_driven[name], host_ns=host_ns)
    library, _, place = name.rpartition(" ")
    if library:
        raise DeviceClockError(
            f"the workload holds arrays of {library} on {place}, which no clock of PyTorch's waits for, and the host's "
            f"clock would time launches: measure within driving(driver), of a driver whose device is {name!r}"
        )
    if name.partition(":")[0] == "cuda":
        return EventClock(CudaDriver(name), host_ns=host_ns)
    return SyncClock(WaitedTorchDevice(name), host_ns)


# Kinds of devices in DLPack's numbers: https://dmlc.github.io/dlpack/latest/c_api.html
_DLPACK_ON_HOST = frozenset({1, 3, 11})  # pinned memory is the host's
_DLPACK = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def devices_of(objects: Iterable[object]) -> tuple[str, ...]:
    """Return the names of the devices that tensors are on which these objects hold, or functions refer to.

    They are PyTorch's tensors, those of modules and optimizers included, and whatever else has a class with
    ``holds_device_memory`` and a ``device``. Names are PyTorch's (``"cpu"``, ``"cuda:0"``), sorted. JAX's arrays are on
    JAX's devices, of which the host is one: ``"jax cpu:0"``. Other libraries' arrays are found by the array API's
    ``__dlpack_device__``, and named with their library: ``"cupy cuda:0"``.
    """
    torch = sys.modules.get("torch")
    tensor = () if torch is None else torch.Tensor
    found: set[str] = set()
    for number, held in enumerate(objects):
        for _, value in reached(str(number), held):
            # The class is looked at and not the object: a proxy or a lazy attribute may run any code.
            kind = type(value)
            if (tensor and issubclass(kind, tensor)) or getattr(kind, "holds_device_memory", False) is True:
                found.add(str(value.device))  # type: ignore[attr-defined]  # which both have
            elif is_array(kind):
                found |= places(value)
            elif hasattr(kind, "__dlpack_device__"):
                found |= _of_another_library(value, kind)
    return tuple(sorted(found))


def _of_another_library(array: object, kind: type) -> set[str]:
    """Return the name of the device that an array is on which is not PyTorch's; nothing for the host's memory."""
    with suppress(Exception):  # one whose memory was given away, or a class that only looks like an array's
        number, index = kind.__dlpack_device__(array)  # type: ignore[attr-defined]
        if int(number) not in _DLPACK_ON_HOST:
            return {f"{kind.__module__.partition('.')[0]} {_DLPACK.get(int(number), 'device')}:{int(index)}"}
    return set()
