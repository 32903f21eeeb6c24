"""JAX, whose calls return before their work is done, on a CPU too; nothing here loads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from pytest_rlperf.devices.clocks import DeviceClockError, WaitedDevice

_PREFIX = "jax "
_WATCHED_CALLS = 4  # an update of the policy may follow on every second one of the critics


def is_jax(device: str) -> bool:
    """Whether a device's name is one of :func:`places`."""
    return device.startswith(_PREFIX)


def is_array(kind: type) -> bool:
    """Whether a class is of JAX's arrays; random keys and tracers are among them."""
    array = getattr(sys.modules.get("jax"), "Array", None)
    return isinstance(array, type) and issubclass(kind, array)


def places(array: Any) -> set[str]:
    """Return the names of the devices that an array of JAX's is or was on, ``"jax cpu:0"``; none of a tracer."""
    with suppress(Exception):
        return {f"{_PREFIX}{device.platform}:{device.id}" for device in array.sharding.device_set}
    return set()


def _started() -> Any:
    """Return the module of JAX where it is in use, None where it is not: nothing is started by looking."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_started = getattr(bridge, "backends_are_initialized", None)
    return sys.modules["jax"] if is_started is not None and is_started() else None


def live_arrays() -> list[Any]:
    """Return all of JAX's arrays that there are; none where JAX has not been used."""
    jax = _started()
    return [] if jax is None else list(jax.live_arrays())


def new_arrays(before: Iterable[Any]) -> list[Any]:
    """Return the arrays that have been made since ``before``, a list of all there were, and are still there."""
    known = {id(array) for array in before}
    return [array for array in live_arrays() if id(array) not in known]


def wait_for_all() -> Callable[[], None]:
    """Return a function that waits for whatever JAX was given; it does nothing where JAX has not been used."""
    jax = _started()
    if jax is None:
        return lambda: None
    return JaxDevice([f"{_PREFIX}{device.platform}:{device.id}" for device in jax.local_devices()]).synchronize


class JaxDevice(WaitedDevice):
    """The devices of JAX that a workload uses, waited for as one; made once JAX has been used.

    A device runs what one thread gives it in order, so the end of one more computation is the end of all. Where a
    call's output has all arrays that the call makes, as those of a pure function do, it is enough to wait for the
    output, which takes less time: the first calls show it.
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
            # Compiled ahead: within a function that JAX traces, it is run and does not become a part of that function.
            self._last = [(self._jax.jit(lambda x: x + 1).lower(start).compile(), start) for start in starts]
        except RuntimeError as error:
            raise DeviceClockError(f"JAX cannot use {self.device}: {error}") from error

    def _device(self, name: str) -> Any:
        platform, _, number = name.removeprefix(_PREFIX).partition(":")
        found = [device for device in self._jax.local_devices(backend=platform) if device.id == int(number)]
        if not found:
            raise DeviceClockError(f"{name} belongs to another process of JAX: have the workload use a local device")
        return found[0]

    def keeping(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return a call whose output the next wait is for; of several calls in a row the last one's."""

        def kept() -> None:
            __tracebackhide__ = True
            if self._watched < _WATCHED_CALLS:
                self._watch(call)
            else:
                self._output = call()

        return kept

    def _watch(self, call: Callable[[], object]) -> None:
        """Call, and learn whether all arrays that this makes are in the output."""
        __tracebackhide__ = True
        before = live_arrays()
        self._output = call()
        returned = {id(leaf) for leaf in self._jax.tree_util.tree_leaves(self._output)}
        new = new_arrays(before)
        self._returns_all &= bool(new) and all(id(array) in returned for array in new)
        self._watched += 1

    def synchronize(self) -> None:
        """Wait for the output of the last call that was kept, and for whatever else was begun."""
        output, self._output = self._output, None
        try:
            self._jax.block_until_ready(output)
        except RuntimeError:
            # An array that was donated to a later computation is deleted, and there is nothing of it to wait for.
            leaves = self._jax.tree_util.tree_leaves(output)
            self._jax.block_until_ready([leaf for leaf in leaves if not (is_array(type(leaf)) and leaf.is_deleted())])
        if output is None or not self._returns_all or self._watched < _WATCHED_CALLS:
            self._jax.effects_barrier()
            self._jax.block_until_ready([run(start) for run, start in self._last])

    def name(self) -> str:
        """Return the devices' kinds."""
        return ", ".join(dict.fromkeys(str(device.device_kind) for device in self._devices))
