"""What a device's library keeps for the whole process, and a workload may change: read through what is loaded.

Nothing here imports PyTorch: where it is not loaded, there is nothing on a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol, TypeVar

from pytest_rlperf.measure.conditions import ConditionReader, NothingTold, nvml_reader

T = TypeVar("T")


class DeviceLibrary(Protocol):
    """The library by which a workload uses a device."""

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

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._modules = modules

    @property
    def _torch(self) -> Any:
        return self._modules["torch"]

    def flags(self) -> dict[str, str]:
        """Return the precision of matrix products and convolutions, determinism, and cuDNN's choice by trying."""
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
        return {name: _told(question) for name, question in questions.items()}

    def recompiles(self) -> int:
        """Return how many frames Dynamo has compiled, or has tried to."""
        dynamo: Any = self._modules.get("torch._dynamo.utils")
        return 0 if dynamo is None else int(dynamo.counters.get("frames", {}).get("total", 0))

    def settings(self) -> Mapping[str, object]:
        """Return the current device and the sync debug mode, where CUDA is in use."""
        cuda = self._torch.cuda if "torch" in self._modules else None
        if cuda is None or not cuda.is_initialized():
            return {}
        return {"current device": cuda.current_device(), "sync debug mode": cuda.get_sync_debug_mode()}

    def restore(self, settings: Mapping[str, object]) -> None:
        """Make both again what they were."""
        cuda = self._torch.cuda
        if "current device" in settings:
            cuda.set_device(settings["current device"])
        if "sync debug mode" in settings:
            cuda.set_sync_debug_mode(settings["sync debug mode"])

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


def _told(question: Callable[[], T]) -> str:
    """Return the answer as text; PyTorch refuses one where the same setting was made in its old way and its new."""
    try:
        return str(question())
    except RuntimeError:
        return "mixed"
