"""Accelerators: their clocks, and a workload's phases by those clocks.

:func:`clock_for` chooses a clock by the devices that a workload holds. JAX is driven here, too, without loading it: its
calls return before their work is done, even on a CPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from pytest_rlperf.devices.clocks import (
    CudaDriver,
    DeviceClockError,
    DeviceDriver,
    EventClock,
    HostClock,
    SyncClock,
    WaitedDevice,
    WaitedTorchDevice,
)
from pytest_rlperf.probes.objects import reached

AnyClock: TypeAlias = HostClock | EventClock | SyncClock
_ON_HOST = frozenset({"cpu", "host", "meta"})  # a meta tensor has no data, and no work

# Devices with their own drivers, such as the tests' virtual GPU.
_driven: dict[str, DeviceDriver] = {}


@contextmanager
def driving(*drivers: DeviceDriver) -> Iterator[None]:
    """Within the context, use these drivers for their devices, such as another library's than PyTorch's."""
    before = dict(_driven)
    _driven.update({driver.device: driver for driver in drivers})
    try:
        yield
    finally:
        _driven.clear()
        _driven.update(before)


def is_driven(devices: Iterable[str]) -> bool:
    """Whether one of these devices, by their names, has its own driver within :func:`driving`."""
    return not _driven.keys().isdisjoint(devices)


def clock_for(devices: Iterable[str], host_ns: Callable[[], int] = time.perf_counter_ns) -> AnyClock:
    """Return the clock for work on ``devices``, named as PyTorch does: ``"cpu"``, ``"cuda:0"``, ``"mps"``.

    Devices that PyTorch does not drive have the drivers of :func:`driving`. DeviceClockError if there are several
    accelerators, which share no clock, if the accelerator cannot be used, or if a library other than PyTorch and JAX
    uses it (``"cupy cuda:0"``) without a driver. JAX's devices (``"jax cpu:0"``) count as one.
    """
    names = sorted({name for name in devices if name.partition(":")[0] not in _ON_HOST})
    if not names:
        return HostClock(host_ns)
    if all(is_jax(name) and not is_driven([name]) for name in names):
        return SyncClock(JaxDevice(names), host_ns)
    if len(names) > 1:
        raise DeviceClockError(
            f"the workload works on several devices, {', '.join(names)}, which share no clock: "
            "let it use one, or measure a workload for each"
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


# Kinds of devices by DLPack's numbers: https://dmlc.github.io/dlpack/latest/c_api.html
_DLPACK_ON_HOST = frozenset({1, 3, 11})  # pinned memory is the host's
_DLPACK = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def devices_of(objects: Iterable[object]) -> tuple[str, ...]:
    """Return the names of the devices of the tensors that these objects hold, or that functions refer to.

    Tensors are PyTorch's, including modules' and optimizers', and objects whose class has ``holds_device_memory`` and a
    ``device``. Names are PyTorch's (``"cpu"``, ``"cuda:0"``), sorted. JAX's arrays are on JAX's devices, which include
    the host: ``"jax cpu:0"``. Other libraries' arrays are found by the array API's ``__dlpack_device__``, and named
    with their library: ``"cupy cuda:0"``.
    """
    torch = sys.modules.get("torch")
    tensor = () if torch is None else torch.Tensor
    found: set[str] = set()
    others: set[int] = set()  # the ids of classes whose objects are on no device, as not every class can be hashed
    for number, held in enumerate(objects):
        for _, value in reached(str(number), held):
            # Only the class is looked at, as a proxy or a lazy attribute may run any code.
            kind = type(value)
            if id(kind) in others:
                continue
            if (tensor and issubclass(kind, tensor)) or getattr(kind, "holds_device_memory", False) is True:
                found.add(str(value.device))  # type: ignore[attr-defined]  # both have it
            elif is_array(kind):
                found |= places(value)
            elif hasattr(kind, "__dlpack_device__"):
                found |= _of_another_library(value, kind)
            else:
                others.add(id(kind))
    return tuple(sorted(found))


def _of_another_library(array: object, kind: type) -> set[str]:
    """Return the device's name for another library's array; nothing for the host's memory."""
    with suppress(Exception):  # an array whose memory was given away, or a class that only looks like an array's
        number, index = kind.__dlpack_device__(array)  # type: ignore[attr-defined]
        if int(number) not in _DLPACK_ON_HOST:
            return {f"{kind.__module__.partition('.')[0]} {_DLPACK.get(int(number), 'device')}:{int(index)}"}
    return set()


# --------------------------------------------------------------------------- JAX

_PREFIX = "jax "
_WATCHED_CALLS = 4  # a policy update may follow only every second critic update


def is_jax(device: str) -> bool:
    """Whether a device's name is one of :func:`places`."""
    return device.startswith(_PREFIX)


def is_array(kind: type) -> bool:
    """Whether a class is one of JAX's arrays, which include random keys and tracers."""
    array = getattr(sys.modules.get("jax"), "Array", None)
    return isinstance(array, type) and issubclass(kind, array)


def places(array: Any) -> set[str]:
    """Return the names of the devices that a JAX array is or was on, ``"jax cpu:0"``; none for a tracer."""
    with suppress(Exception):
        return {f"{_PREFIX}{device.platform}:{device.id}" for device in array.sharding.device_set}
    return set()


def _started() -> Any:
    """Return JAX's module if it is in use, else None; the look starts nothing."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_started = getattr(bridge, "backends_are_initialized", None)
    return sys.modules["jax"] if is_started is not None and is_started() else None


def live_arrays() -> list[Any]:
    """Return all live JAX arrays; none if JAX has not been used."""
    jax = _started()
    return [] if jax is None else list(jax.live_arrays())


def new_arrays(before: Iterable[Any]) -> list[Any]:
    """Return the live arrays that have been made since ``before``, the list of all arrays then."""
    known = {id(array) for array in before}
    return [array for array in live_arrays() if id(array) not in known]


def wait_for_all() -> Callable[[], None]:
    """Return a function that waits for all of JAX's work; it does nothing if JAX has not been used."""
    jax = _started()
    if jax is None:
        return lambda: None
    return JaxDevice([f"{_PREFIX}{device.platform}:{device.id}" for device in jax.local_devices()]).synchronize


class JaxDevice(WaitedDevice):
    """The JAX devices that a workload uses, waited for as one; made once JAX has been used.

    A device runs one thread's work in order, so the end of one more computation is the end of all. If a call's output
    has all arrays that the call makes, as a pure function's does, it is enough to wait for the output, which takes less
    time. The first calls show whether that is so.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.device = ", ".join(names)
        self._jax: Any = sys.modules["jax"]
        self._output: object = None
        self._watched = 0
        self._returns_all = True
        try:
            self._devices = [self._device(name) for name in names]
            starts = [self._jax.device_put(0.0, device) for device in self._devices]
            # Compiled ahead: within a function that JAX traces, it runs and does not become part of that function.
            self._last = [(self._jax.jit(lambda x: x + 1).lower(start).compile(), start) for start in starts]
        except RuntimeError as error:
            raise DeviceClockError(f"JAX cannot use {self.device}: {error}") from error

    def _device(self, name: str) -> Any:
        platform, _, number = name.removeprefix(_PREFIX).partition(":")
        found = [device for device in self._jax.local_devices(backend=platform) if device.id == int(number)]
        if not found:
            raise DeviceClockError(f"{name} belongs to another JAX process: let the workload use a local device")
        return found[0]

    def keeping(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return a call whose output the next wait is for; after several calls in a row, the last one's."""

        def kept() -> None:
            __tracebackhide__ = True
            if self._watched < _WATCHED_CALLS:
                self._watch(call)
            else:
                self._output = call()

        return kept

    def _watch(self, call: Callable[[], object]) -> None:
        """Call, and find out whether all arrays that the call makes are in its output."""
        __tracebackhide__ = True
        before = live_arrays()
        self._output = call()
        returned = {id(leaf) for leaf in self._jax.tree_util.tree_leaves(self._output)}
        new = new_arrays(before)
        self._returns_all &= bool(new) and all(id(array) in returned for array in new)
        self._watched += 1

    def synchronize(self) -> None:
        """Wait for the last kept call's output, and for whatever else was begun."""
        output, self._output = self._output, None
        try:
            self._jax.block_until_ready(output)
        except RuntimeError:
            # An array that was donated to a later computation is deleted, and cannot be waited for.
            leaves = self._jax.tree_util.tree_leaves(output)
            self._jax.block_until_ready([leaf for leaf in leaves if not (is_array(type(leaf)) and leaf.is_deleted())])
        if output is None or not self._returns_all or self._watched < _WATCHED_CALLS:
            self._jax.effects_barrier()
            self._jax.block_until_ready([run(start) for run, start in self._last])

    def name(self) -> str:
        """Return the devices' kinds."""
        return ", ".join(dict.fromkeys(str(device.device_kind) for device in self._devices))
