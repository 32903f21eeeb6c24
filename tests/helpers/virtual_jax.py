"""JAX in virtual time: a module with as much of its interface as is used here, and a device that works in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakSet

from pytest_rlperf.timers import FakeClock

DISPATCH_S = 5e-6  # the host's time for a computation


class VirtualArray:
    """An array that is ready once the device has got there."""

    nbytes, shape, dtype = 4, (), SimpleNamespace(name="float32")

    def __init__(self, jax: VirtualJax, device: VirtualDevice, ready_ns: int, error: str = "") -> None:
        self.sharding = SimpleNamespace(device_set={device})
        self.ready_ns = ready_ns
        self._jax = jax
        self._error = error
        self._is_deleted = False
        jax.arrays.add(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def is_deleted(self) -> bool:
        return self._is_deleted

    def donate(self) -> None:
        self._is_deleted = True
        self._jax.arrays.discard(self)

    def block_until_ready(self) -> VirtualArray:
        if self._is_deleted:
            raise RuntimeError("INVALID_ARGUMENT: BlockHostUntilReady() called on deleted or donated buffer")
        clock = self._jax.clock
        clock.now_ns = max(clock.now_ns, self.ready_ns)
        if self._error:
            raise RuntimeError(self._error)
        return self


class VirtualJax(ModuleType):
    """The module ``jax``; :meth:`compute` is a computation that its functions would start."""

    Array = VirtualArray
    __version__ = "0.0"

    def __init__(self, devices: int = 1) -> None:
        super().__init__("jax")
        self.clock = FakeClock()
        self.arrays: WeakSet[VirtualArray] = WeakSet()
        self.computations = 0
        self.effects = 0
        self._done_ns: dict[int, int] = {}
        self._listeners: list[Callable[..., object]] = []
        self._devices = [VirtualDevice(number) for number in range(devices)]
        self.tree_util = SimpleNamespace(tree_leaves=lambda tree: list(_leaves(tree)))
        self.monitoring = SimpleNamespace(register_event_duration_secs_listener=self._listeners.append)
        self.config = SimpleNamespace(jax_default_matmul_precision=None, jax_enable_x64=False, jax_disable_jit=False)

    def compute(self, work_s: float, device: int = 0, *, error: str = "") -> VirtualArray:
        """Start a computation, which the device does once it has done those before, and return its array."""
        self.computations += 1
        self.clock.advance(DISPATCH_S)
        begin_ns = max(self.clock.now_ns, self._done_ns.get(device, 0))
        self._done_ns[device] = begin_ns + round(1e9 * work_s)
        return VirtualArray(self, self._devices[device], self._done_ns[device], error)

    def compile(self) -> None:
        for listener in self._listeners:
            listener("/jax/core/compile/jaxpr_trace_duration", 0.1, fun_name="step")
            listener("/jax/core/compile/backend_compile_duration", 0.1, fun_name="step")

    # ------------------------------------------------------------------ JAX's own names

    def live_arrays(self) -> list[VirtualArray]:
        return list(self.arrays)

    def local_devices(self, *, backend: str = "cpu") -> list[Any]:
        return [device for device in self._devices if device.platform == backend]

    def device_put(self, value: object, device: VirtualDevice) -> VirtualArray:
        return VirtualArray(self, device, 0)

    def jit(self, function: Callable[..., object]) -> Any:
        """Return a function that can be compiled for an array, and takes no time there."""
        run = lambda array: self.compute(0.0, next(iter(array.sharding.device_set)).id)  # noqa: E731
        return SimpleNamespace(lower=lambda array: SimpleNamespace(compile=lambda: run))

    def block_until_ready(self, tree: object) -> object:
        for leaf in _leaves(tree):
            if isinstance(leaf, VirtualArray):
                leaf.block_until_ready()
        return tree

    def effects_barrier(self) -> None:
        self.effects += 1


@dataclass(frozen=True)
class VirtualDevice:
    id: int
    platform: str = "cpu"
    device_kind: str = "virtual"


def _leaves(tree: object) -> Iterator[object]:
    members: Iterable[object] = ()
    if isinstance(tree, dict):
        members = tree.values()
    elif isinstance(tree, list | tuple):
        members = tree
    elif tree is not None:
        yield tree
    for member in members:
        yield from _leaves(member)


@contextmanager
def loaded(jax: VirtualJax, *, is_started: bool = True) -> Iterator[VirtualJax]:
    """Put ``jax`` among the modules while the body runs."""
    bridge: Any = ModuleType("jax._src.xla_bridge")
    bridge.backends_are_initialized = lambda: is_started
    before = {name: sys.modules.get(name) for name in ("jax", "jax._src.xla_bridge")}
    sys.modules |= {"jax": jax, "jax._src.xla_bridge": bridge}
    try:
        yield jax
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
