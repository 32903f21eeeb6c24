"""The machine class: the fingerprint of everything that must be equal for stored times to be comparable."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pytest_rlperf.baseline.accelerators import accelerators
from pytest_rlperf.model import KERNEL_VERSION, Machine


def this_machine(find_accelerators: Callable[[], tuple[str, ...]] = accelerators) -> Machine:
    """Return the class of the machine this process runs on."""
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
    # Without accelerators a machine's name is what it was before these were looked at.
    identity = {name: value for name, value in asdict(machine).items() if value != ()}
    digest = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:8]
    words = f"{machine.system}-{machine.arch}-{machine.cores}c-{machine.python}".lower()
    return f"{re.sub('[^a-z0-9._-]+', '', words)}-{digest}"


def describe(machine: Machine) -> str:
    """Return a machine class in words."""
    host = f"{machine.cpu}, {machine.cores} cores, {machine.system} {machine.arch}, {machine.python}"
    return "; ".join([host, *machine.accelerators])


def differences(one: Machine, other: Machine) -> list[str]:
    """Return what differs between two machine classes, in words."""
    left, right = asdict(one), asdict(other)
    return [f"{name}: {left[name]} / {right[name]}" for name in left if left[name] != right[name]]


def _cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    """Return the processor's model name, as well as the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown processor"
    fields = dict(re.findall(r"^([^:\n\t]+?)\s*: *(.*)$", text, re.MULTILINE))
    parts = [fields[name] for name in ("CPU implementer", "CPU part") if name in fields]
    return fields.get("model name") or " ".join(parts) or platform.processor() or "unknown processor"
