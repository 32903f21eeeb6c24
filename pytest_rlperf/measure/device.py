"""A workload on an accelerator: the two paces it is timed at, and slices that nothing disturbed.

A host's clock around a call sees the launches, not the work; so every timed round ends with a wait for the device.
Where that wait stands makes two figures: after every call (latency), or once after many (steady).

The driver's state is read and never set: a tool that fixes clocks measures a machine that its user does not have. The
library's settings are read through loaded modules only; nothing here imports PyTorch: where it is not loaded, there is
nothing on a device.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

import psutil

from pytest_rlperf.devices import JaxDevice, clock_for, devices_of
from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, HostClock, SyncClock
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.rounds import ClockNs, Timed
from pytest_rlperf.model.device import POWER_CAP, Conditions, DeviceSlice, Disturbance, Pace
from pytest_rlperf.model.measured import SliceKind, SliceRecord, Workload

RETAKES = 3  # a device that disturbs a slice as often again cannot be measured on
_WARM_UPS_MOST = 10  # of a tenth of a second each: compiling is over by then, or never


@dataclass(frozen=True)
class _Edge:
    """The state of a device between two slices; ``allocations`` and ``recompiles`` are running totals."""

    conditions: Conditions | None
    allocations: int
    recompiles: int


class Accelerator:
    """The device that a workload runs on."""

    def __init__(self, clock: EventClock | SyncClock, library: DeviceLibrary, gated: Pace) -> None:
        self.clock = clock
        self.name = clock.device
        self.gated = gated
        self._library = library
        self._reader = library.conditions(self.name)
        self._notes = dict.fromkeys([self._reader.missing] if self._reader.missing else [])
        # Goes with the settings: a machine may have several models, and partitions of one GPU differ as much.
        self._model = {"model": clock.driver.name()}
        self._allocates = False
        self._gave_up = self._gave_up_tracing = False

    @property
    def compiles_first(self) -> bool:
        """Whether a first call compiles, which takes much longer than any later one."""
        return isinstance(self.clock.driver, JaxDevice)

    @property
    def other(self) -> Pace:
        """The pace that is not gated."""
        return Pace.STEADY if self.gated is Pace.LATENCY else Pace.LATENCY

    def pace_of(self, kind: SliceKind) -> Pace:
        """Return the pace that a kind of slice is timed at."""
        return self.other if kind is SliceKind.OTHER_PACE else self.gated

    def timed(self, pace: Pace, call: Callable[[], object], setup: Callable[[], None] | None) -> Timed:
        """Return the parts of a round at ``pace``; the device is idle when it begins, and done when it ends."""
        wait = self.clock.synchronize
        prepare = self.idle_after(setup)

        if isinstance(self.clock.driver, JaxDevice):
            call = self.clock.driver.keeping(call)

        def waited() -> None:
            __tracebackhide__ = True
            call()
            wait()

        return Timed(waited, prepare) if pace is Pace.LATENCY else Timed(call, prepare, wait)

    def idle_after(self, setup: Callable[[], None] | None) -> Callable[[], None]:
        """Return ``setup`` with a wait for the work it gave the device, which is no part of the call that follows."""

        def prepare() -> None:
            __tracebackhide__ = True
            if setup is not None:
                setup()
            self.clock.synchronize()

        return prepare

    def warm_up(self, run: Callable[[], object], has_time: Callable[[], bool]) -> None:
        """Run until nothing is compiled any more, no memory is requested and the clock is steady, or time is up."""
        __tracebackhide__ = True
        for _ in range(_WARM_UPS_MOST):
            with self.answering():
                before = self._edge()
                run()
                after = self._edge()
            change = _change(before, after)
            is_steady = _is_steady(before, after)
            if (is_steady and not change) or not has_time():
                break
        # A workload that requests memory however long it runs does so in every call: that is counted, no disturbance.
        self._allocates = change.allocated
        changes = [*([_in_words(change)] if change else []), *([] if is_steady else ["its clock changed"])]
        if changes:
            self._notes[f"{self.name} had not settled when warming up ended: {', '.join(changes)}"] = None

    def note(self, notes: Iterable[str]) -> None:
        """Have these notes go with every slice from now on."""
        self._notes |= dict.fromkeys(notes)

    def undisturbed(self, kind: SliceKind, take: Callable[[], SliceRecord]) -> SliceRecord:
        """Return a slice with the state of the device, retaken where it was disturbed.

        Where the retakes are disturbed as well, the last one has all disturbances, and later slices are not retaken.
        For traced slices this is decided separately: tracing itself may have code recompiled.
        """
        __tracebackhide__ = True
        is_traced = kind is SliceKind.TRACED
        tries = 1 if self._gave_up or (is_traced and self._gave_up_tracing) else 1 + RETAKES
        disturbances: list[Disturbance] = []
        while True:
            with self.answering():
                before = self._edge()
                self._reset_peak()
                record = take()
                after = self._edge()
            disturbance = self._disturbance(before, after)
            if disturbance:
                disturbances.append(disturbance)
            if not disturbance or len(disturbances) == tries:
                break
        if disturbance and not self._gave_up:
            self._give_up(disturbance, is_traced=is_traced)
        device = self._slice(self.pace_of(kind), record, before, after, disturbances if disturbance else [])
        retaken = len(disturbances) - (1 if disturbance else 0)
        return replace(record, device=replace(device, retaken=retaken))

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise MeasurementError, naming the device, where work fails because the device is gone.

        A library raises the error of a lost device wherever it next uses the device, also in the midst of the
        workload. So an error after which the device cannot be waited for is the device's.
        """
        __tracebackhide__ = True
        try:
            yield
        except Exception as error:
            try:
                self.clock.synchronize()
            except DeviceClockError as lost:
                raise MeasurementError(
                    f"{self.name} no longer answers, so the test cannot be measured: {lost}"
                ) from error
            if isinstance(error, DeviceClockError):
                raise MeasurementError(f"{self.name} cannot be measured: {error}") from error
            raise

    def _give_up(self, disturbance: Disturbance, *, is_traced: bool) -> None:
        """Take no more slices again, of traced ones or of any."""
        self._gave_up, self._gave_up_tracing = not is_traced, is_traced
        if is_traced:
            self.note([f"phases on {self.name} are of slices that were disturbed: {_in_words(disturbance)}"])

    def _slice(
        self, pace: Pace, record: SliceRecord, before: _Edge, after: _Edge, disturbances: Sequence[Disturbance]
    ) -> DeviceSlice:
        clocks_hz = [edge.conditions.sm_clock_hz for edge in (before, after) if edge.conditions is not None]
        # Of a clock that moved in between, the time at each speed is unknown.
        known_hz = [clock_hz for clock_hz in clocks_hz if clock_hz is not None and _is_steady(before, after)]
        memory = self.clock.driver.memory()
        return DeviceSlice(
            device=self.name,
            pace=pace,
            cycles=record.call_s * statistics.fmean(known_hz) if known_hz else None,
            before=before.conditions,
            after=after.conditions,
            disturbances=tuple(disturbances),
            retaken=0,
            peak_bytes=0 if memory is None else memory.peak_bytes,
            allocations=(after.allocations - before.allocations) / record.calls,
            flags={**self._model, **self._library.flags()},
            notes=tuple(self._notes),
        )

    def _edge(self) -> _Edge:
        memory = self.clock.driver.memory()
        return _Edge(
            conditions=self._reader.read(),
            allocations=0 if memory is None else memory.allocations,
            recompiles=self._library.recompiles(),
        )

    def _reset_peak(self) -> None:
        if self.clock.driver.memory() is not None:
            self.clock.driver.reset_peak()

    def _disturbance(self, before: _Edge, after: _Edge) -> Disturbance:
        """Return why the slice between two edges does not count, false where it does.

        A power cap is a GPU's full load, under which both sides of a comparison run: it is among the conditions alone.
        """
        change = _change(before, after)
        throttled = [*(_reasons(before) or ()), *(_reasons(after) or ())]
        return replace(
            change,
            throttled=tuple(reason for reason in dict.fromkeys(throttled) if reason != POWER_CAP),
            allocated=change.allocated and not self._allocates,
        )


def find_accelerator(
    workload: Workload,
    library: DeviceLibrary,
    wall_ns: ClockNs,
    *,
    made: Iterable[object],
    used: Iterable[str],
) -> Accelerator | None:
    """Return the device that a workload holds tensors or modules on, or has ``used`` nonetheless; None for the host.

    A call may make all its tensors itself, or find them where no reference of the workload leads to. ``made`` are its
    output, and arrays that are there since it ran.
    MeasurementError where the device's time cannot be read, or there are several devices.
    """
    __tracebackhide__ = True
    try:
        clock = clock_for((*devices_of((*workload.holds, workload.call, *made)), *used), host_ns=wall_ns)
    except DeviceClockError as error:
        raise MeasurementError(str(error)) from error
    if isinstance(clock, HostClock):
        return None
    if isinstance(clock.driver, JaxDevice):
        library = Jax()
    return Accelerator(clock, library, workload.pace)


def _change(before: _Edge, after: _Edge) -> Disturbance:
    """Return the one-time events between two edges, throttling not among them."""
    return Disturbance(
        recompiled=after.recompiles > before.recompiles, allocated=after.allocations > before.allocations
    )


def _in_words(disturbance: Disturbance) -> str:
    """Return a disturbance in words, which few workers need."""
    from pytest_rlperf.report.wording import disturbance_text

    return disturbance_text(disturbance)


def _reasons(edge: _Edge) -> tuple[str, ...] | None:
    return None if edge.conditions is None else edge.conditions.throttled


def _is_steady(before: _Edge, after: _Edge) -> bool:
    """Whether the device's clock holds still, as far as it is known."""
    was, now = (None if edge.conditions is None else edge.conditions.sm_clock_hz for edge in (before, after))
    return was is None or now is None or abs(now - was) <= CLOCK_STEADY * was


# --------------------------------------------------------------------------- the state of a device


NVML_MISSING = (
    "NVML is not installed: clocks, throttling and other processes are unknown; pip install pytest-rlperf[gpu]"
)
NO_REASONS = "NVML does not report whether this device is throttled: a throttled slice may count"

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


class ConditionReader:
    """Reads the state of one device, where a subclass can; there is nothing here that could change it.

    ``missing`` is why nothing is read, and what helps; empty where it is.
    """

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self) -> Conditions | None:
        """Return the device's state now, None where it cannot be read."""
        return None


class NvmlReader(ConditionReader):
    """Reads a device by its handle of NVML's; ``nvml`` is the module pynvml, started."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        # pynvml raises the latter, which is no NVMLError, where it is newer than the driver.
        self._refusals = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))
        super().__init__("" if self._reasons() is not None else NO_REASONS)

    def read(self) -> Conditions | None:
        """Return the device's state; None for a value it does not support, as a partition has no clocks of its own."""
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
    """Return the reader of the device with a UUID, by which alone CUDA and NVML mean the same one.

    CUDA numbers the devices that are visible to a process, fastest first; NVML numbers all, by their slots. ``nvml`` is
    the module pynvml, imported where it is not given.
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
    """Return the reasons for which a device is held back, of NVML's bit mask."""
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


def count_others(pids: Sequence[int]) -> int | None:
    """Return how many processes on a device are not of this run: not this one, its parent, or a child of either.

    None where this process, which uses the device, is not in the list: in a container the list may have the process
    numbers of the machine outside.
    """
    ours = {os.getpid(), os.getppid()}
    if os.getpid() not in pids:
        return None
    return sum(pid not in ours and _parent(pid) not in ours for pid in pids)


def worst(seen: Iterable[Conditions]) -> Conditions | None:
    """Return the lowest clocks, the highest temperature, every reason and the most others; None where none is seen."""
    states = list(seen)
    if not states:
        return None
    reasons = _known(state.throttled for state in states)
    return Conditions(
        sm_clock_hz=min(_known(state.sm_clock_hz for state in states), default=None),
        memory_clock_hz=min(_known(state.memory_clock_hz for state in states), default=None),
        temperature_c=max(_known(state.temperature_c for state in states), default=None),
        throttled=tuple(dict.fromkeys(chain.from_iterable(reasons))) if reasons else None,
        others=max(_known(state.others for state in states), default=None),
    )


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _handle(nvml: Any, uuid: str) -> Any:
    """Return NVML's handle of a device; of a partition's GPU, as partitions have no clocks of their own.

    PyTorch gives the bare number, NVML puts the kind of device before it.
    """
    number = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{number}")
    except nvml.NVMLError:
        partition = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{number}")
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(partition)


def _parent(pid: int) -> int | None:
    """Return the process that started another, None where this system does not show it."""
    try:
        parent: int = psutil.Process(pid).ppid()
    except psutil.Error:
        return None
    return parent


# Accelerators whose allocator PyTorch keeps statistics of, by its modules' names.
_KINDS = ("cuda", "xpu")
# PyTorch's new settings of precision, whose old names it refuses to read once one of them was set.
_PRECISIONS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
# Variables that CUDA's libraries read themselves, without PyTorch.
_VARIABLES = ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


class DeviceLibrary:
    """The library by which a workload uses a device; this one has neither devices nor settings."""

    def used(self) -> Mapping[str, int]:
        """Return a running total of requests to each device in use; where one grows, work went there."""
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

        With them are environment variables that decide on the same, or make every launch wait, where they are set.
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


_COMPILED = "/jax/core/compile/backend_compile_duration"  # an event of JAX's, in its sources' dispatch.py


class Jax(DeviceLibrary):
    """JAX, on any device; made where it is loaded."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._jax: Any = sys.modules["jax"]
        self._environment = environment
        self._compiled = 0
        # For the rest of the process, which measures few workloads: not all versions can unregister a listener.
        self._jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration_s: float, **labels: object) -> None:
        self._compiled += event == _COMPILED

    def flags(self) -> dict[str, str]:
        """Return the precision of matrix products and of numbers, whether functions are compiled, and XLA's flags."""
        config = self._jax.config
        names = ("jax_default_matmul_precision", "jax_enable_x64", "jax_disable_jit")
        flags = {name: str(getattr(config, name)) for name in names}
        return flags | {name: self._environment[name] for name in ("XLA_FLAGS",) if name in self._environment}

    def recompiles(self) -> int:
        """Return how many computations have been compiled so far."""
        return self._compiled

    def conditions(self, device: str) -> ConditionReader:
        """Return a reader of nothing, with a note where the device is not the host."""
        on_host = all(name.startswith("jax cpu:") for name in device.split(", "))
        return ConditionReader("") if on_host else super().conditions(device)


def used_between(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    """Return the devices whose running totals grew in between."""
    return tuple(device for device, total in after.items() if total > before.get(device, 0))


def _given(library: Any, index: int) -> int:
    """Return how often a device's allocator gave memory to a tensor; 0 where one that counts nothing took its place."""
    try:
        return int(library.memory_stats(index).get("allocation.all.allocated", 0))
    except RuntimeError:
        return 0
