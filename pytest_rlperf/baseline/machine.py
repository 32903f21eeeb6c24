"""The machine class: the fingerprint of everything that must be equal for stored times to be comparable."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from pytest_rlperf.model.reasons import MachineDifference
from pytest_rlperf.model.stored import KERNEL_VERSION, Machine

_SLUG_MOST = 100  # characters before the digest; a file's name may have 255 bytes


def accelerators(nvml: Any = None) -> tuple[str, ...]:
    """Return one line per GPU: model, driver, CUDA, power limit and whether it is partitioned (MIG); none without NVML.

    ``nvml`` is the module pynvml. PyTorch is not used: it would have to be imported, and it takes device memory to
    answer.
    """
    try:
        nvml = import_module("pynvml") if nvml is None else nvml
        nvml.nvmlInit()
    except Exception:
        return ()
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        software = f"driver {nvml.nvmlSystemGetDriverVersion()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(f"{nvml.nvmlDeviceGetName(handle)}, {software}, {_settings(nvml, handle)}" for handle in handles)
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _settings(nvml: Any, handle: Any) -> str:
    """Return a GPU's power limit and whether it is partitioned."""

    def read(query: Callable[[Any], Any]) -> Any:
        try:
            return query(handle)
        except nvml.NVMLError:  # not every GPU has the setting, or shows it
            return None

    milliwatts, modes = read(nvml.nvmlDeviceGetPowerManagementLimit), read(nvml.nvmlDeviceGetMigMode)
    limit = "power limit unknown" if milliwatts is None else f"{milliwatts / 1000:.0f} W"
    return f"{limit}, MIG {'on' if modes is not None and modes[0] == nvml.NVML_DEVICE_MIG_ENABLE else 'off'}"


def this_machine(find_accelerators: Callable[[], tuple[str, ...]] = accelerators) -> Machine:
    """Return the class of the machine that this process runs on."""
    return Machine(
        system=platform.system(),
        arch=platform.machine(),
        cpu=_cpu(),
        cores=_cores(),
        python=f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}",
        kernel=KERNEL_VERSION,
        accelerators=find_accelerators(),
    )


def slug(machine: Machine) -> str:
    """Return a file name's stem for a machine class: readable, and different for different classes."""
    # Without accelerators a machine keeps its name from before these were read.
    identity = {name: value for name, value in asdict(machine).items() if value != ()}
    digest = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:8]
    words = f"{machine.system}-{machine.arch}-{machine.cores}c-{machine.python}".lower()
    return f"{re.sub('[^a-z0-9._-]+', '', words)[:_SLUG_MOST]}-{digest}"


def describe(machine: Machine) -> str:
    """Write a machine class: processor, cores, system, Python and accelerators."""
    host = f"{machine.cpu}, {machine.cores} cores, {machine.system} {machine.arch}, {machine.python}"
    return "; ".join([host, *machine.accelerators])


def differences(one: Machine, other: Machine) -> list[MachineDifference]:
    """Return the fields that differ between two machine classes."""
    left, right = asdict(one), asdict(other)
    return [MachineDifference(name, left[name], right[name]) for name in left if left[name] != right[name]]


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    """Return the processor's model name, as far as the system knows it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown processor"
    fields = dict(re.findall(r"^([^:\n\t]+?)\s*: *(.*)$", text, re.MULTILINE))
    parts = [fields[name] for name in ("CPU implementer", "CPU part") if name in fields]
    return fields.get("model name") or " ".join(parts) or platform.processor() or "unknown processor"
