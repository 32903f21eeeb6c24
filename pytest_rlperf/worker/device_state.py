"""The state of an accelerator: clocks, throttling, temperature and other processes, and its library's settings.

The driver's state is read and never set: a tool that fixes clocks measures a machine that its user does not have. The
library's settings are read only through loaded modules. Nothing here imports PyTorch: if it is not loaded, there is
nothing on a device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

import psutil

from pytest_rlperf.counters.compiled import Programs
from pytest_rlperf.model.device import POWER_CAP, Conditions
from pytest_rlperf.spawn.untouched import untouched

NVML_MISSING = (
    "NVML is not installed: clocks, throttling and other processes are unknown; pip install pytest-rlperf[gpu]"
)
NO_REASONS = "NVML does not report whether this device is throttled: a throttled slice may count"

CLOCK_STEADY = 0.02  # how much a clock that holds still may differ from one look to another

# Reasons why a device is slower than it could be. Being idle, and clocks that a user has set, are not among them.
_REASONS = {
    0x004: POWER_CAP,
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
}

T = TypeVar("T")


class ConditionReader:
    """Reads the state of one device, if a subclass can, and never changes it.

    ``missing`` is why nothing is read, and what helps; it is empty if the state is read.
    """

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self) -> Conditions | None:
        """Return the device's state now, None if it cannot be read."""
        return None


class NvmlReader(ConditionReader):
    """Reads a device by its NVML handle; ``nvml`` is the module pynvml, initialised."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        # pynvml raises the latter, which is not an NVMLError, if it is newer than the driver.
        self._refusals = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))
        super().__init__("" if self._reasons() is not None else NO_REASONS)

    def read(self) -> Conditions | None:
        """Return the device's state, with None for unsupported values: a partition has no clocks of its own."""
        nvml, handle = self._nvml, self._handle
        reasons = self._reasons()
        processes = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return Conditions(
            sm_clock_hz=self._clock_hz(nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._clock_hz(nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            throttled=None if reasons is None else throttle_reasons(reasons),
            others=None if processes is None else count_others([process.pid for process in processes]),
        )

    def _reasons(self) -> int | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _clock_hz(self, kind: int) -> float | None:
        return self._ask(lambda: 1e6 * self._nvml.nvmlDeviceGetClockInfo(self._handle, kind))

    def _ask(self, getter: Callable[[], T]) -> T | None:
        try:
            return getter()
        except self._refusals:
            return None


def nvml_reader(uuid: str, nvml: Any = None) -> ConditionReader:
    """Return the reader of the device with a UUID, the only name that means the same to CUDA and NVML.

    CUDA numbers the devices that are visible to a process, fastest first; NVML numbers all, by their slots. ``nvml`` is
    the module pynvml, imported if it is not given.
    """
    try:
        nvml = import_module("pynvml") if nvml is None else nvml
    except ImportError:
        return ConditionReader(NVML_MISSING)
    try:
        nvml.nvmlInit()
        return NvmlReader(nvml, _handle(nvml, uuid))
    except nvml.NVMLError as error:
        return ConditionReader(f"NVML does not know the device {uuid}: {error}; its clocks and throttling are unknown")


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Return the reasons in NVML's bit mask why a device is held back."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


def count_others(pids: Sequence[int]) -> int | None:
    """Return how many processes on a device are not this run's: not this one, its parent, or a child of either.

    Return None if this process, which uses the device, is not in the list: in a container, the list may have the
    outside machine's process numbers.
    """
    ours = {os.getpid(), os.getppid()}
    if os.getpid() not in pids:
        return None
    return sum(pid not in ours and _parent(pid) not in ours for pid in pids)


def _handle(nvml: Any, uuid: str) -> Any:
    """Return NVML's handle of a device, or of a partition's GPU, as partitions have no clocks of their own.

    PyTorch gives the bare number; NVML puts the kind of device before it.
    """
    number = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{number}")
    except nvml.NVMLError:
        partition = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{number}")
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(partition)


@untouched
def _parent(pid: int) -> int | None:
    """Return the process that started another, None if this system does not show it."""
    try:
        parent: int = psutil.Process(pid).ppid()
    except psutil.Error:
        return None
    return parent


# PyTorch's modules for accelerators whose allocator it keeps statistics for.
_KINDS = ("cuda", "xpu")
# PyTorch's new settings of precision: once one is set, it refuses to read the old names.
_PRECISIONS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
# Variables that CUDA's libraries read themselves, without PyTorch.
_VARIABLES = ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


class DeviceLibrary:
    """The library by which a workload uses a device; this one has neither devices nor settings."""

    def used(self) -> Mapping[str, int]:
        """Return a running total of requests to each device in use; if it grows, work went to the device."""
        return {}

    def flags(self) -> dict[str, str]:
        """Return the settings that change what a device computes."""
        return {}

    def recompiles(self) -> int:
        """Return how many pieces of code have been compiled so far."""
        return 0

    def conditions(self, device: str) -> ConditionReader:
        """Return the reader of a device's state."""
        return ConditionReader(f"clocks and throttling of {device} are not read")


class Torch(DeviceLibrary):
    """PyTorch, on CUDA or ROCm; on other devices it has the settings that hold for all of them."""

    def __init__(
        self, modules: Mapping[str, ModuleType] = sys.modules, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._modules = modules
        self._environment = environment

    @property
    def _torch(self) -> Any:
        return self._modules["torch"]

    def used(self) -> Mapping[str, int]:
        """Return how often tensors got memory, from the allocator's cache or the device, for each device in use."""
        libraries = {kind: getattr(self._torch, kind, None) for kind in _KINDS} if "torch" in self._modules else {}
        return {
            f"{kind}:{index}": _given(library, index)
            for kind, library in libraries.items()
            if library is not None and library.is_initialized()
            for index in range(library.device_count())
        }

    def flags(self) -> dict[str, str]:
        """Return the precision of matrix products and convolutions, determinism, and cuDNN's choice by trying.

        Environment variables that decide on the same, or make every launch wait, are added if they are set.
        """
        if "torch" not in self._modules:
            return {}
        torch = self._torch
        cudnn = torch.backends.cudnn
        try:
            precisions = {
                "float32_matmul_precision": torch.get_float32_matmul_precision(),
                "cudnn.allow_tf32": cudnn.allow_tf32,
            }
        except RuntimeError:
            precisions = {place: attrgetter(place)(torch.backends).fp32_precision for place in _PRECISIONS}
        flags = {
            **precisions,
            "cudnn.benchmark": cudnn.benchmark,
            "cudnn.deterministic": cudnn.deterministic,
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        }
        flags = {name: str(value) for name, value in flags.items()}
        return flags | {name: self._environment[name] for name in _VARIABLES if name in self._environment}

    def recompiles(self) -> int:
        """Return how many frames Dynamo has compiled, or has tried to."""
        dynamo: Any = self._modules.get("torch._dynamo.utils")
        return 0 if dynamo is None else int(dynamo.counters.get("frames", {}).get("total", 0))

    def conditions(self, device: str) -> ConditionReader:
        """Return NVML's reader of a CUDA device."""
        if not device.startswith("cuda"):
            return super().conditions(device)
        torch = self._torch
        if torch.version.hip is not None:
            return ConditionReader(f"{device} is AMD's: its clocks and throttling are not read")
        try:
            uuid = str(torch.cuda.get_device_properties(device).uuid)
        except (AttributeError, RuntimeError) as error:
            return ConditionReader(f"the UUID of {device} is unknown, and so are its clocks and throttling: {error}")
        return nvml_reader(uuid)


class Jax(DeviceLibrary):
    """JAX, on any device; made only if it is loaded."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._jax: Any = sys.modules["jax"]
        self._environment = environment
        self._programs = Programs()

    def flags(self) -> dict[str, str]:
        """Return the precision of matrix products and numbers, whether functions are compiled, and XLA's flags."""
        config = self._jax.config
        names = ("jax_default_matmul_precision", "jax_enable_x64", "jax_disable_jit")
        flags = {name: str(getattr(config, name)) for name in names}
        return flags | {name: self._environment[name] for name in ("XLA_FLAGS",) if name in self._environment}

    def recompiles(self) -> int:
        """Return how many computations have been compiled so far."""
        return self._programs.count()

    def conditions(self, device: str) -> ConditionReader:
        """Return a reader that reads nothing, with a note if the device is not the host."""
        on_host = all(name.startswith("jax cpu:") for name in device.split(", "))
        return ConditionReader("") if on_host else super().conditions(device)


def used_between(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    """Return the devices whose running totals grew in between."""
    return tuple(device for device, total in after.items() if total > before.get(device, 0))


def _given(library: Any, index: int) -> int:
    """Return how often a device's allocator gave memory to a tensor; 0 if it was replaced by one without counts."""
    try:
        return int(library.memory_stats(index).get("allocation.all.allocated", 0))
    except RuntimeError:
        return 0
