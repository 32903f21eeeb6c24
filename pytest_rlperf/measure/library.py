"""What a device's library keeps for the whole process, and a workload may change: read through what is loaded.

Nothing here imports PyTorch: where it is not loaded, there is nothing on a device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any, Protocol, TypeVar

from pytest_rlperf.measure.conditions import ConditionReader, NothingTold, nvml_reader

T = TypeVar("T")

# Accelerators whose allocator PyTorch keeps statistics of, by its modules' names.
_KINDS = ("cuda", "xpu")
# What CUDA's libraries read for themselves: PyTorch tells nothing of these.
_MIXED = "mixed"
# Where PyTorch's new settings are that an old one stands for.
_PRECISIONS = {"float32_matmul_precision": ("cuda.matmul",), "cudnn.allow_tf32": ("cudnn.conv", "cudnn.rnn")}
_VARIABLES = ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


class DeviceLibrary(Protocol):
    """The library by which a workload uses a device."""

    def used(self) -> Mapping[str, int]:
        """Return a running total of what each device in use was asked for; where one grows, work went there."""

    def flags(self) -> dict[str, str]:
        """Return the settings that change what a device computes."""

    def recompiles(self) -> int:
        """Return how many pieces of code have been compiled so far."""

    def settings(self) -> Mapping[str, object]:
        """Return what a workload has to leave as it is, by its name."""

    def restore(self, settings: Mapping[str, object]) -> None:
        """Make the settings again what they were."""

    def conditions(self, device: str) -> ConditionReader:
        """Return who tells the state of a device."""


class Torch:
    """PyTorch, on CUDA or ROCm; of other devices it tells what holds for all."""

    def __init__(
        self, modules: Mapping[str, ModuleType] = sys.modules, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._modules = modules
        self._environment = environment

    @property
    def _torch(self) -> Any:
        return self._modules["torch"]

    def used(self) -> Mapping[str, int]:
        """Return how often tensors were given memory, of the allocator's cache or the device, by devices in use."""
        libraries = {kind: getattr(self._torch, kind, None) for kind in _KINDS} if "torch" in self._modules else {}
        return {
            f"{kind}:{index}": _given(library, index)
            for kind, library in libraries.items()
            if library is not None and library.is_initialized()
            for index in range(library.device_count())
        }

    def flags(self) -> dict[str, str]:
        """Return the precision of matrix products and convolutions, determinism, and cuDNN's choice by trying.

        With them are variables of the environment that decide on the same, or have every launch waited for, if set.
        """
        if "torch" not in self._modules:
            return {}
        torch = self._torch
        cudnn = torch.backends.cudnn
        questions: dict[str, Callable[[], object]] = {
            "float32_matmul_precision": torch.get_float32_matmul_precision,
            "cudnn.allow_tf32": lambda: cudnn.allow_tf32,
            "cudnn.benchmark": lambda: cudnn.benchmark,
            "cudnn.deterministic": lambda: cudnn.deterministic,
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        }
        flags = {name: _told(question) for name, question in questions.items()}
        for name, places in _PRECISIONS.items():
            if flags[name] == _MIXED:
                flags[name] = ", ".join(f"{place} {_precision(torch.backends, place)}" for place in places)
        return flags | {name: self._environment[name] for name in _VARIABLES if name in self._environment}

    def recompiles(self) -> int:
        """Return how many frames Dynamo has compiled, or has tried to."""
        dynamo: Any = self._modules.get("torch._dynamo.utils")
        return 0 if dynamo is None else int(dynamo.counters.get("frames", {}).get("total", 0))

    def settings(self) -> Mapping[str, object]:
        """Return the current device and the sync debug mode; before CUDA is in use, those that it begins with."""
        if "torch" not in self._modules:
            return {}
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return {"current device": 0, "sync debug mode": 0}
        return {"current device": cuda.current_device(), "sync debug mode": cuda.get_sync_debug_mode()}

    def restore(self, settings: Mapping[str, object]) -> None:
        """Make both again what they were; a device that another library drives may be there without PyTorch."""
        if "current device" in settings:
            self._torch.cuda.set_device(settings["current device"])
        if "sync debug mode" in settings:
            self._torch.cuda.set_sync_debug_mode(settings["sync debug mode"])

    def conditions(self, device: str) -> ConditionReader:
        """Return NVML's reader of a CUDA device."""
        if not device.startswith("cuda"):
            return NothingTold(f"nobody tells the clocks and the throttling of {device}")
        torch = self._torch
        if torch.version.hip is not None:
            return NothingTold(f"{device} is AMD's: its clocks and throttling are not read")
        try:
            uuid = str(torch.cuda.get_device_properties(device).uuid)
        except (AttributeError, RuntimeError) as error:
            return NothingTold(f"the UUID of {device} is unknown, and so are its clocks and throttling: {error}")
        return nvml_reader(uuid)


def used_between(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    """Return the devices that were asked for something in between, of their running totals."""
    return tuple(device for device, total in after.items() if total > before.get(device, 0))


def _given(library: Any, index: int) -> int:
    """Return how often a device's allocator gave memory to a tensor; 0 where one that counts nothing took its place."""
    try:
        return int(library.memory_stats(index).get("allocation.all.allocated", 0))
    except RuntimeError:
        return 0


def _told(question: Callable[[], T]) -> str:
    """Return the answer as text; PyTorch refuses one where the same setting was made in its old way and its new."""
    try:
        return str(question())
    except RuntimeError:
        return _MIXED


def _precision(backends: Any, place: str) -> str:
    """Return PyTorch's new setting for a place such as ``"cudnn.conv"``."""
    return str(attrgetter(place)(backends).fp32_precision)
