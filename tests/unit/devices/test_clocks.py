from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from virtual_gpu import VirtualGPU, VirtualTensor
from wording import Wording

from pytest_rlperf.devices import clock_for, devices_of, driving
from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, HostClock, Memory, SyncClock


def clock_of(gpu: VirtualGPU, pool_size: int = 4) -> EventClock:
    return EventClock(gpu, pool_size, gpu.clock)


def test_marks_are_taken_from_the_pool_and_given_back() -> None:
    """A clock waits for nothing and takes events that are there; they are given back one by one or all together."""
    gpu = VirtualGPU()
    clock = clock_of(gpu, pool_size=8)
    made = gpu.events_made
    for _ in range(20):
        marks = [clock.mark() for _ in range(8)]
        gpu.launch(1e-3)
        clock.release(marks)
    assert (gpu.syncs, gpu.events_made - made) == (0, 0)
    clock = clock_of(VirtualGPU(), pool_size=3)
    first, _, _ = clock.mark(), clock.mark(), clock.mark()
    clock.release([first])
    clock.release([first])
    assert clock.left == 1
    clock.release()
    assert clock.left == 3


def test_pool_grows_only_when_told_to(wording: Wording) -> None:
    """An empty pool is an error that says so; reserving more is counted, and once is enough."""
    gpu = VirtualGPU()
    clock = clock_of(gpu, pool_size=2)
    marks = [clock.mark(), clock.mark()]
    with wording.raises(DeviceClockError):
        clock.mark()
    clock.reserve(3)
    assert (clock.left, gpu.events_made) == (3, 5)
    clock.release(marks)
    clock.reserve(5)
    assert (clock.left, gpu.events_made) == (5, 5)


def test_reading_before_the_device_is_there_says_what_to_do(wording: Wording) -> None:
    """An event that the device has not reached has no time, and the error names synchronize()."""
    gpu = VirtualGPU()
    clock = clock_of(gpu)
    start = clock.mark()
    gpu.launch(1e-3)
    with wording.raises(DeviceClockError):
        clock.elapsed_ns(start, clock.mark())


@pytest.mark.parametrize("act", ["mark", "synchronize", "reserve"])
def test_a_lost_device_is_a_clock_error_that_names_it(act: str) -> None:
    """Every request to a device that is gone is an error that names it, and loses no event."""
    gpu = VirtualGPU()
    clock = clock_of(gpu)
    acts: dict[str, Any] = {"mark": clock.mark, "synchronize": clock.synchronize, "reserve": partial(clock.reserve, 9)}
    gpu.lose()
    with pytest.raises(DeviceClockError, match=r"virtual:0 failed: .*lost"):
        acts[act]()
    assert clock.left == 4


def test_sync_clock_waits_at_every_mark(wording: Wording) -> None:
    """A device without events is waited for: its marks are the host's time once the device is done."""
    gpu = VirtualGPU(launch_s=5e-6)
    clock = SyncClock(gpu, gpu.clock)
    start = clock.mark()
    gpu.launch(1e-3)
    end = clock.mark()
    assert clock.elapsed_ns(start, end) == 1_005_000
    assert gpu.syncs == 2
    assert clock.is_synced
    clock.reserve(100)
    clock.release()
    assert gpu.events_made == 0
    gpu.lose()
    with wording.raises(DeviceClockError):
        clock.mark()


@pytest.mark.parametrize("devices", [[], ["cpu"], ["cpu", "meta"]])
def test_work_on_the_host_has_the_hosts_clock(devices: list[str]) -> None:
    """Without an accelerator the host's clock tells."""
    assert isinstance(clock_for(devices), HostClock)


def test_a_device_of_another_driver_has_its_clock() -> None:
    """A device is known by the driver within whose context this is, and not after it."""
    gpu = VirtualGPU()
    with driving(gpu):
        clock = clock_for(["cpu", "virtual:0"], host_ns=gpu.clock)
    assert isinstance(clock, EventClock)
    assert clock.driver is gpu
    with pytest.raises(DeviceClockError, match="on virtual:0"):
        clock_for(["virtual:0"])


def test_several_devices_are_an_error_that_names_them(wording: Wording) -> None:
    """No one clock tells the time of two devices."""
    with wording.raises(DeviceClockError):
        clock_for(["cuda:1", "cpu", "cuda:0"])


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cuda:99", "mps"])
def test_a_device_that_cannot_be_used_is_a_loud_error(device: str, wording: Wording) -> None:
    """A tensor on a device whose clock PyTorch does not have is an error: only launches would be timed.

    It names the build of PyTorch, which is one for CUDA on most machines, with or without a GPU.
    """
    import torch

    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(DeviceClockError) as caught:
        clock_for([device])
    build, count = torch.version.cuda or torch.version.hip or "no GPU at all", torch.cuda.device_count()
    ours = {str(torch.__version__): "VERSION"}
    if device != "mps":
        ours[f"built for {build}, can use {count} such"] = "built for BUILD, can use N such"
    text = str(caught.value)
    for here, anywhere in ours.items():
        assert here in text
        text = text.replace(here, anywhere)
    assert text == wording


class _Event:
    """An event that knows the stream it was recorded on."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.streams: list[object] = []

    def record(self, stream: object) -> None:
        self.streams.append(stream)

    def elapsed_time(self, end: _Event) -> float:
        return float(len(self.streams) + len(end.streams))


class _Cuda:
    """A stand-in for ``torch.cuda`` on a machine with two devices, as a driver uses it; no test machine has one."""

    Event = _Event

    def __init__(self) -> None:
        self.current = SimpleNamespace(cuda_stream=0)
        self.index = 0
        self.capturing = -1  # the device on whose current stream a graph is captured
        self.stats = {"allocated_bytes.all.current": 1, "allocated_bytes.all.peak": 2, "segment.all.allocated": 3}
        self.mode: object = 0
        self.asked: list[tuple[str, int]] = []

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.asked.append(("device", index))
        before, self.index = self.index, index
        yield
        self.index = before

    def current_device(self) -> int:
        return self.index

    def current_stream(self, index: int) -> SimpleNamespace:
        assert index == 1
        return self.current

    def synchronize(self, index: int) -> None:
        self.asked.append(("synchronize", index))

    def is_current_stream_capturing(self) -> bool:
        return self.index == self.capturing

    def memory_stats(self, index: int) -> dict[str, int]:
        assert index == 1
        return self.stats

    def get_sync_debug_mode(self) -> object:
        return self.mode

    def set_sync_debug_mode(self, mode: object) -> None:
        self.mode = mode


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    """Put two CUDA devices where PyTorch has its own, or none."""
    import torch

    stand_in = _Cuda()
    monkeypatch.setattr(torch, "cuda", stand_in)
    return stand_in


@pytest.mark.torch
def test_cuda_is_timed_by_events_on_the_current_stream_of_its_device(cuda: _Cuda) -> None:
    """Events are made and recorded on the stream that is current on the device that was named, whichever is current."""
    clock = clock_for(["cuda:1"])
    assert isinstance(clock, EventClock)
    assert (clock.device, set(cuda.asked)) == ("cuda:1", {("device", 1)})
    start = clock.mark()
    cuda.current = SimpleNamespace(cuda_stream=77)
    end = clock.mark()
    assert (start.stream, end.stream, end.event.streams[-1]) == (0, 77, cuda.current)
    assert clock.elapsed_ns(start, end) == 4e6
    clock.synchronize()
    assert cuda.asked[-1] == ("synchronize", 1)
    assert clock.driver.memory() == Memory(1, 2, 3)
    assert not clock.driver.is_capturing()


@pytest.mark.torch
def test_pytorchs_warnings_of_waits_are_counted_and_others_go_on(cuda: _Cuda) -> None:
    """Each wait that PyTorch warns of counts, seen before or not; other warnings are shown; the mode is restored."""
    clock = clock_for(["cuda:1"])
    assert isinstance(clock, EventClock)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        with clock.driver.counting_syncs() as count:
            assert count is not None
            modes = [cuda.mode]
            for _ in range(3):
                warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
            warnings.simplefilter("always")
            warnings.warn("something else", stacklevel=1)
            assert count() == 3
    assert [*modes, cuda.mode] == ["warn", 0]
    assert [str(warning.message) for warning in shown] == ["something else"]


@pytest.mark.torch
@pytest.mark.parametrize(("held", "device"), [("mps:0", "mps"), ("xpu:1", "xpu:1")])
def test_other_devices_are_waited_for(held: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's and Intel's GPUs have the host's clock, read once PyTorch says that they are done."""
    import torch

    waits: list[object] = []
    accelerator = SimpleNamespace(
        current_accelerator=lambda: SimpleNamespace(type="xpu"), is_available=lambda: True, synchronize=waits.append
    )
    monkeypatch.setattr(torch, "accelerator", accelerator)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("mps"))
    clock = clock_for(["cpu", held])
    assert isinstance(clock, SyncClock)
    assert (clock.device, clock.is_synced) == (device, True)
    assert clock.elapsed_ns(clock.mark(), clock.mark()) >= 0
    assert waits == [device] * 2
    assert (clock.driver.memory(), clock.driver.is_capturing()) == (None, False)


_GPU = VirtualGPU("virtual:9")
_GLOBAL = _GPU.allocate(1)


class _Slotted:
    __slots__ = ("__weakref__", "empty", "tensor")

    def __init__(self, tensor: VirtualTensor) -> None:
        self.tensor = tensor


class _Private:
    __slots__ = ("__tensor",)

    def __init__(self, tensor: VirtualTensor) -> None:
        self.__tensor = tensor


class _Agent:
    def __init__(self, held: object) -> None:
        self.held = held

    def update(self) -> object:
        return self.held


def _closure(tensor: object) -> Any:
    return lambda: tensor


def _reads_a_global() -> object:
    return _GLOBAL


@pytest.mark.parametrize(
    "hold",
    [
        lambda tensor: tensor,
        lambda tensor: [{"deep": (tensor,)}],
        lambda tensor: {tensor},
        _Agent,
        lambda tensor: _Agent(tensor).update,
        _closure,
        lambda tensor: partial(print, tensor),
        lambda tensor: partial(print, end=tensor),
        lambda tensor: partial(_Agent(tensor).update),
        _Slotted,
        _Private,
    ],
    ids=[
        *("itself", "containers", "set", "attribute", "method", "closure", "partial", "keyword", "its function"),
        *("slot", "private slot"),
    ],
)
def test_devices_are_found_wherever_tensors_are_held(hold: Any) -> None:
    """Attributes, containers, closures, bound methods and partials lead to tensors."""
    assert devices_of([hold(VirtualGPU().allocate(8))]) == ("virtual:0",)


def test_devices_are_found_in_what_a_function_refers_to() -> None:
    """A function's globals count as held, and of several objects all do; cycles end."""
    agent = _Agent(_reads_a_global)
    agent.cycle = agent  # type: ignore[attr-defined]
    assert devices_of([agent, VirtualGPU().allocate(8)]) == ("virtual:0", "virtual:9")
    assert devices_of([]) == devices_of([lambda: None, 3, "cuda:0"]) == ()


class _Unhashable(type):
    def __eq__(cls, other: object) -> bool:
        raise NotImplementedError

    __hash__ = None  # type: ignore[assignment]


class _Strange(metaclass=_Unhashable):
    pass


def test_devices_are_found_beside_objects_of_strange_classes() -> None:
    """A lazy object's class may be neither compared nor hashed, which is no reason to look no further."""
    assert devices_of([[_Strange(), _Strange(), VirtualGPU().allocate(8)]]) == ("virtual:0",)


class _Episodes(Mapping[str, object]):
    """A mapping that loads what it gives."""

    def __init__(self, tensor: object) -> None:
        self.cache = {"first": tensor}

    def __getitem__(self, key: str) -> object:
        raise AssertionError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["first", "second"])

    def __len__(self) -> int:
        return 2


def test_a_mapping_that_loads_its_values_is_not_asked_for_them() -> None:
    """Only for what it holds: there may be more than the memory has room for."""
    assert devices_of([_Episodes(VirtualGPU().allocate(8))]) == ("virtual:0",)
    assert devices_of([MappingProxyType({"held": VirtualGPU().allocate(8)})]) == ("virtual:0",)


class _Array:
    """An array of a library that is not PyTorch, by the array API's standard."""

    def __init__(self, *place: int) -> None:
        self._place = place

    def __dlpack_device__(self) -> tuple[int, ...]:
        return self._place


_Array.__module__ = "cupy.core"


def test_arrays_of_other_libraries_on_a_device_are_never_the_hosts_to_time(wording: Wording) -> None:
    """They are found, and are an error unless somebody drives the device; in the host's memory they are nothing."""
    (name,) = devices_of([{"array": _Array(2, 1)}])
    with wording.raises(DeviceClockError):
        clock_for([name])
    with driving(VirtualGPU(name)):
        assert clock_for([name]).device == "cupy cuda:1"
    assert devices_of([_Array(99, 0)]) == ("cupy device:0",)
    assert devices_of([_Array(1, 0), _Array(3, 0), _Array(), _Array]) == ()


@pytest.mark.torch
def test_tensors_modules_and_optimizers_tell_their_devices() -> None:
    """PyTorch's tensors are found directly, in modules and through optimizers."""
    import torch

    module = torch.nn.Linear(2, 2, device="meta")
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert devices_of([torch.zeros(1)]) == ("cpu",)
    assert devices_of([_Agent(module)]) == ("meta",)
    assert devices_of([torch.optim.SGD([parameter]), _closure(module)]) == ("cpu", "meta")
