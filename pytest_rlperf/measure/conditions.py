"""The state of an accelerator as its driver tells it: clocks, throttling, temperature, who else is on it.

It is read and never set: a tool that fixes clocks measures a machine that its user does not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, Protocol, TypeVar

import psutil

from pytest_rlperf.model import POWER_CAP, Conditions

NVML_MISSING = (
    "NVML is not installed: clocks, throttling and other processes are unknown; pip install pytest-rlperf[gpu]"
)
NO_REASONS = "NVML does not tell whether this device is throttled: a slice that was may count"

CLOCK_STEADY = 0.02  # how much a clock that holds still may differ from one look to another

# Reasons for which a device is slower than it could be. Being idle and clocks that a user has set are none of these.
_REASONS = {
    0x004: POWER_CAP,
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
}

T = TypeVar("T")


class ConditionReader(Protocol):
    """Reads the state of one device; there is nothing here that could change it."""

    missing: str  # why nothing is read, and what helps; empty where it is

    def read(self) -> Conditions | None:
        """Return the device's state now, None where nothing tells it."""


class NothingTold:
    """Reads nothing, for want of somebody who tells."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self) -> Conditions | None:
        """Return None."""
        return None


class NvmlReader:
    """Reads a device by its handle of NVML's; ``nvml`` is the module pynvml, started."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        # The latter is what pynvml raises where it is newer than the driver, and no NVMLError.
        self._refusals = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))
        self.missing = "" if self._reasons() is not None else NO_REASONS

    def read(self) -> Conditions | None:
        """Return the device's state; None for what it does not support, as a partition has no clocks of its own."""
        nvml, handle = self._nvml, self._handle
        reasons = self._reasons()
        processes = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return Conditions(
            sm_clock_hz=self._clock_hz(nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._clock_hz(nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            throttled=None if reasons is None else throttle_reasons(reasons),
            others=None if processes is None else count_others([process.pid for process in processes], _coordinator()),
        )

    def _reasons(self) -> int | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _clock_hz(self, kind: int) -> float | None:
        return self._ask(lambda: 1e6 * self._nvml.nvmlDeviceGetClockInfo(self._handle, kind))

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._refusals:
            return None


def nvml_reader(uuid: str, nvml: Any = None) -> ConditionReader:
    """Return the reader of the device with a UUID, by which alone CUDA and NVML mean the same one.

    CUDA numbers the devices that are visible to a process, fastest first; NVML numbers all, by their slots. ``nvml`` is
    the module pynvml, imported where it is not given.
    """
    try:
        nvml = import_module("pynvml") if nvml is None else nvml
    except ImportError:
        return NothingTold(NVML_MISSING)
    try:
        nvml.nvmlInit()
        return NvmlReader(nvml, _handle(nvml, uuid))
    except nvml.NVMLError as error:
        return NothingTold(f"NVML tells nothing of the device {uuid}: {error}; its clocks and throttling are unknown")


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Return the reasons for which a device is held back, of NVML's bit mask."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


def count_others(pids: Sequence[int], coordinator: int | None) -> int | None:
    """Return how many processes on a device are not of this run: this one, its coordinator, or a child of either.

    None where the list has not even this one, which uses the device: it is of no use, as in a container, where its
    numbers are those of the machine outside.
    """
    ours = {os.getpid(), coordinator}
    if os.getpid() not in pids:
        return None
    return sum(pid not in ours and _parent(pid) not in ours for pid in pids)


def all_reasons(seen: Iterable[Conditions]) -> tuple[str, ...] | None:
    """Return every reason for which a device was held back, each once; None where nobody tells of any."""
    told = [state.throttled for state in seen if state.throttled is not None]
    return tuple(dict.fromkeys(chain.from_iterable(told))) if told else None


def worst(seen: Iterable[Conditions]) -> Conditions | None:
    """Return the lowest clocks, the highest temperature, every reason and the most others; None where none is seen."""
    states = list(seen)
    if not states:
        return None
    return Conditions(
        sm_clock_hz=min((state.sm_clock_hz for state in states if state.sm_clock_hz is not None), default=None),
        memory_clock_hz=min(
            (state.memory_clock_hz for state in states if state.memory_clock_hz is not None), default=None
        ),
        temperature_c=max((state.temperature_c for state in states if state.temperature_c is not None), default=None),
        throttled=all_reasons(states),
        others=max((state.others for state in states if state.others is not None), default=None),
    )


def _handle(nvml: Any, uuid: str) -> Any:
    """Return NVML's handle of a device; of a partition's GPU, as partitions have no clocks of their own.

    PyTorch gives the bare number, NVML has a word before it that says what it is of.
    """
    number = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{number}")
    except nvml.NVMLError:
        partition = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{number}")
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(partition)


def _coordinator() -> int | None:
    """Return the process that started this one as a worker, which leads a session of its own; None for no worker.

    Another parent is a shell, say, and what else it has started is none of this run's.
    """
    return os.getppid() if os.getsid(0) == os.getpid() else None


def _parent(pid: int) -> int | None:
    """Return the process that started another, None where this system does not show it."""
    try:
        parent: int = psutil.Process(pid).ppid()
    except psutil.Error:
        return None
    return parent
