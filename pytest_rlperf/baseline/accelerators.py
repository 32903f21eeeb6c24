"""The GPUs of a machine, in words: what must be equal for stored times on them to be comparable."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_DRIVER_TOLD = Path("/proc/driver/nvidia")


def accelerators(nvml: Any = None, told: Path = _DRIVER_TOLD) -> tuple[str, ...]:
    """Return a line a GPU: model, driver, CUDA, power limit and whether it is partitioned (MIG); none without GPUs.

    By NVML where that is installed (``nvml`` is the module pynvml), else as far as the driver's files below ``told``
    say. PyTorch is not asked: it would have to be imported, and it takes memory of the device to answer.
    """
    try:
        nvml = import_module("pynvml") if nvml is None else nvml
    except ImportError:
        return _by_files(told)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return _by_files(told)
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        software = f"driver {nvml.nvmlSystemGetDriverVersion()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(f"{nvml.nvmlDeviceGetName(handle)}, {software}, {_settings(nvml, handle)}" for handle in handles)
    except nvml.NVMLError:
        return _by_files(told)
    finally:
        nvml.nvmlShutdown()


def _settings(nvml: Any, handle: Any) -> str:
    """Return a GPU's power limit and whether it is partitioned."""

    def ask(question: Callable[[Any], Any]) -> Any:
        try:
            return question(handle)
        except nvml.NVMLError:  # not every GPU has such a setting, or tells it
            return None

    milliwatts, modes = ask(nvml.nvmlDeviceGetPowerManagementLimit), ask(nvml.nvmlDeviceGetMigMode)
    limit = "power limit unknown" if milliwatts is None else f"{milliwatts / 1000:.0f} W"
    return f"{limit}, MIG {'on' if modes is not None and modes[0] == nvml.NVML_DEVICE_MIG_ENABLE else 'off'}"


def _by_files(told: Path) -> tuple[str, ...]:
    """Return what the driver's files say: the model of every GPU, and the driver's version."""
    try:
        models = [
            re.search(r"^Model:\s*(.+?)\s*$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            for path in sorted(told.glob("gpus/*/information"))
        ]
        version = (told / "version").read_text(encoding="utf-8", errors="replace") if models else ""
    except OSError:
        return ()
    number = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version)
    driver = number[1] if number else "unknown"
    return tuple(f"{'unknown GPU' if model is None else model[1]}, driver {driver}" for model in models)
