"""A device's state by NVML, which is read and never set, and PyTorch's settings of a process."""

from __future__ import annotations

import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from wording import Wording

from pytest_rlperf.baseline.machine import accelerators, describe, differences, slug, this_machine
from pytest_rlperf.model.device import Conditions
from pytest_rlperf.pair.records import worst
from pytest_rlperf.worker.device_state import (
    NO_REASONS,
    NVML_MISSING,
    Torch,
    count_others,
    nvml_reader,
    throttle_reasons,
    used_between,
)

UUID = "1a2b3c4d-0000-1111-2222-333344445555"


class NVMLError(Exception):
    """An error of NVML's."""


class Nvml:
    """NVML with one GPU; it answers questions, and has nothing else that could be asked of it.

    ``asked`` are the names of all its functions that were called.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_DEVICE_MIG_ENABLE = 1, 2, 0, 1

    def __init__(self, **answers: object) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, object] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB",
            "nvmlSystemGetDriverVersion": "550.54.15",
            "nvmlSystemGetCudaDriverVersion": 12040,
            "nvmlDeviceGetPowerManagementLimit": 400_000,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "whole GPU",
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
            "nvmlDeviceGetClockInfo": 1410,
            "nvmlDeviceGetTemperature": 41,
        } | answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            raise AttributeError(name)
        answer = self._answers[name]

        def ask(*arguments: object) -> object:
            self.asked.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return ask


def test_conditions_are_what_nvml_tells() -> None:
    """Clocks in hertz, degrees, and no reason: an idle device and clocks that a user has set are not throttled."""
    reader = nvml_reader(UUID, Nvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x1 | 0x2 | 0x100))
    assert reader.missing == ""
    assert reader.read() == Conditions(1.41e9, 1.41e9, 41.0, (), 0)


@pytest.mark.parametrize(
    "bits",
    [0x4 | 0x8 | 0x20 | 0x40 | 0x80, 0x1 | 0x10],
)
def test_reasons_are_those_of_power_and_heat(bits: int, wording: Wording) -> None:
    """Every bit that holds a device back against its will has a name."""
    assert throttle_reasons(bits) == wording


def test_a_device_is_found_by_its_uuid() -> None:
    """CUDA's numbers are not NVML's, where CUDA_VISIBLE_DEVICES or another order is set."""
    seen: list[str] = []
    nvml_reader(UUID, Nvml(nvmlDeviceGetHandleByUUID=seen.append))
    nvml_reader(f"GPU-{UUID}", Nvml(nvmlDeviceGetHandleByUUID=seen.append))
    assert seen == [f"GPU-{UUID}"] * 2


def test_a_partition_has_the_conditions_of_its_gpu() -> None:
    """NVML tells the clocks of a whole GPU only."""
    handles: list[object] = []

    def handle(name: str) -> str:
        if name.startswith("GPU-"):
            raise NVMLError("Not Found")
        return name

    def clock(handle: object, kind: int) -> int:
        handles.append(handle)
        return 1410

    nvml_reader(UUID, Nvml(nvmlDeviceGetHandleByUUID=handle, nvmlDeviceGetClockInfo=clock)).read()
    assert set(handles) == {"whole GPU"}


def test_what_a_device_does_not_support_is_unknown() -> None:
    """A laptop's GPU that tells no memory clock is read as far as it goes."""
    refusal = NVMLError("Not Supported")
    nvml = Nvml(nvmlDeviceGetTemperature=refusal, nvmlDeviceGetComputeRunningProcesses=refusal)
    conditions = nvml_reader(UUID, nvml).read()
    assert conditions is not None
    assert (conditions.temperature_c, conditions.others, conditions.sm_clock_hz) == (None, None, 1.41e9)


def test_what_nobody_tells_of_is_said(wording: Wording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is not the same as not throttled: the reader says what it, its library or its module lacks."""
    reader = nvml_reader(UUID, Nvml(nvmlDeviceGetCurrentClocksThrottleReasons=NVMLError("Not Supported")))
    assert reader.missing == NO_REASONS
    assert reader.read() == Conditions(1.41e9, 1.41e9, 41.0, None, 0)
    reader = nvml_reader(UUID, Nvml(nvmlInit=NVMLError("NVML Shared Library Not Found")))
    assert reader.read() is None
    assert reader.missing == wording
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = nvml_reader(UUID)
    assert reader.read() is None
    assert reader.missing == NVML_MISSING
    assert wording == NVML_MISSING


def test_processes_of_this_run_are_not_others() -> None:
    """A worker, its parent and that one's children are of the run; a list without this process tells nothing."""
    assert count_others([os.getpid(), os.getppid()]) == 0
    assert count_others([os.getpid(), 2**22 + 1, 2**22 + 2]) == 2
    assert count_others([1, 2**22 + 1]) is None
    assert count_others([]) is None


def test_the_worst_conditions_are_kept() -> None:
    """Of several readings: the lowest clocks, the highest temperature, all reasons, the most others."""
    seen = [
        Conditions(1.4e9, None, 40.0, ("power cap",), 0),
        Conditions(1.2e9, 2.6e9, None, (), 3),
        Conditions(None, 2.5e9, 60.0, ("power brake",), None),
    ]
    assert worst(seen) == Conditions(1.2e9, 2.5e9, 60.0, ("power cap", "power brake"), 3)
    assert worst([]) is None


def test_a_machine_class_names_its_gpus() -> None:
    """Model, driver, CUDA, power limit and partitioning: what moves a GPU's times."""
    assert accelerators(Nvml()) == ("NVIDIA A100-SXM4-40GB, driver 550.54.15, CUDA 12.4, 400 W, MIG off",)


@pytest.mark.parametrize(
    "changed",
    [
        {"nvmlDeviceGetPowerManagementLimit": 250_000},
        {"nvmlSystemGetCudaDriverVersion": 13090, "nvmlDeviceGetMigMode": [1, 1]},
        {"nvmlDeviceGetPowerManagementLimit": NVMLError("Not Supported")},
    ],
)
def test_another_setting_is_another_machine_class(changed: dict[str, object], wording: Wording) -> None:
    """It has another file, and its description says what differs."""
    here, there = (this_machine(partial(accelerators, nvml)) for nvml in (Nvml(), Nvml(**changed)))
    assert there.accelerators[0] == wording
    assert describe(there) == wording
    if here != there:
        assert slug(here) != slug(there)
        assert str(differences(here, there)[0].other) == wording


def test_without_nvml_a_machine_class_names_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the library is of another version than the driver."""
    assert accelerators(Nvml(nvmlSystemGetDriverVersion=NVMLError("Driver/library version mismatch"))) == ()
    assert accelerators(Nvml(nvmlInit=NVMLError("no"))) == ()


class Cuda:
    """PyTorch's part for CUDA, as far as it is asked."""

    def __init__(self, *, is_initialized: bool) -> None:
        self.current = 0
        self.mode = 0
        self.given = [5, 0]
        self._is_initialized = is_initialized

    def is_initialized(self) -> bool:
        return self._is_initialized

    def current_device(self) -> int:
        return self.current

    def device_count(self) -> int:
        return len(self.given)

    def memory_stats(self, index: int) -> dict[str, int]:
        return {"allocation.all.allocated": self.given[index]}

    def get_sync_debug_mode(self) -> int:
        return self.mode

    def set_device(self, device: int) -> None:
        self.current = device

    def set_sync_debug_mode(self, mode: int) -> None:
        self.mode = mode


def test_devices_in_use_are_those_whose_tensors_were_given_memory() -> None:
    """By PyTorch's allocator, cached or not, of every device of every kind that was started."""
    cuda = Cuda(is_initialized=True)
    library = Torch({"torch": SimpleNamespace(cuda=cuda, xpu=Cuda(is_initialized=False))})  # type: ignore[dict-item]
    before = library.used()
    cuda.given[1] += 3
    assert before == {"cuda:0": 5, "cuda:1": 0}
    assert used_between(before, library.used()) == ("cuda:1",)
    assert used_between({}, before) == ("cuda:0",), "started in between"


@pytest.mark.torch
def test_flags_are_pytorchs_own() -> None:
    """Each is read as it is set: precision, determinism, cuDNN's choice by trying."""
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        flags = Torch().flags()
    finally:
        torch.backends.cudnn.benchmark = before
    assert flags["cudnn.benchmark"] == "True"
    assert flags["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert flags["deterministic_algorithms"] == "False"
    assert set(flags) == {
        "float32_matmul_precision",
        "cudnn.allow_tf32",
        "cudnn.benchmark",
        "cudnn.deterministic",
        "deterministic_algorithms",
    }


@pytest.mark.torch
def test_recompiles_are_dynamos_count() -> None:
    """A new shape compiles a frame anew; one that is known does not."""
    import torch

    function = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    library = Torch()
    seen = []
    for size in (2, 2, 3, 3):
        function(torch.ones(size))
        seen.append(library.recompiles())
    assert seen[0] == seen[1] < seen[2] == seen[3]


@pytest.mark.parametrize(
    ("hip", "properties"),
    [
        ("6.2", SimpleNamespace(uuid=UUID)),
        (None, SimpleNamespace()),
    ],
)
def test_cuda_devices_that_nvml_does_not_know_have_no_reader(
    hip: str | None, properties: object, wording: Wording
) -> None:
    """ROCm's go by CUDA's name, and older PyTorch has no UUIDs, by which alone a device is found."""
    cuda = SimpleNamespace(get_device_properties=lambda device: properties)
    library = Torch({"torch": SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))})  # type: ignore[dict-item]
    reader = library.conditions("cuda:0")
    assert reader.read() is None
    assert reader.missing == wording
