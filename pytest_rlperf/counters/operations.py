"""Tensor operations that PyTorch dispatches, the kernels that they launch, and counts of one device."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pytest_rlperf.counters.instrument import (
    WHOLE,
    CannotCountError,
    Instrument,
    Levels,
    Recorder,
    TotalsInstrument,
    is_own,
    lineage,
)
from pytest_rlperf.devices.clocks import Device
from pytest_rlperf.model.measured import Count
from pytest_rlperf.probes.torch import MARK
from pytest_rlperf.timers.node import Node

_COPIES = frozenset({"aten::_to_copy", "aten::copy_"})
_ITEM = "aten::_local_scalar_dense"  # item()
_DETACH = "aten::detach"  # ends what grad_ops is about, and is not part of it


class Operations(TotalsInstrument):
    """Counts tensor operations by a dispatch mode: below autograd, whichever thread its backward runs in."""

    names: tuple[str, ...] = ("ops", "ops_backward", "float64_ops", "grad_ops")

    def __init__(self) -> None:
        super().__init__()
        if _has_accelerator():
            self.names = (*self.names, "copies_to_device", "copies_to_host", "pageable_copies")

    def begin(self) -> None:
        """Begin to count; if PyTorch is not loaded, it dispatches nothing."""
        self._mode = _make_mode(self) if "torch" in sys.modules else nullcontext()
        self._mode.__enter__()

    def end(self) -> None:
        """Stop counting."""
        self._mode.__exit__(None, None, None)

    def note(self, name: str, inputs: list[Any], outputs: list[Any]) -> None:
        """Count one operation."""
        import torch

        names = ["ops", f"ops:{name}"]
        if torch._C._current_graph_task_id() != -1:
            names.append("ops_backward")
        if any(tensor.dtype is torch.float64 for tensor in (*inputs, *outputs)):
            names.append("float64_ops")
        if name != _DETACH and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            names.append("grad_ops")
        names += _copies(name, inputs, outputs)
        self.totals.packed += self.totals.unit(*names)


def _has_accelerator() -> bool:
    if "torch" not in sys.modules:
        return False
    import torch

    # PyTorch before 2.6 has no torch.accelerator.
    known = getattr(torch, "accelerator", None)
    return bool(torch.cuda.is_available() or torch.backends.mps.is_available() or (known and known.is_available()))


def _copies(name: str, inputs: list[Any], outputs: list[Any]) -> Iterator[str]:
    """Yield the counters of an operation that copies between a device and the host."""
    if name == _ITEM:
        if inputs[0].device.type != "cpu":
            yield from ("copies_to_host", "pageable_copies")
    elif name in _COPIES:
        # copy_(target, source) and _to_copy(source) both return the target.
        source, target = inputs[-1], outputs[0]
        if source.device.type != target.device.type and "cpu" in (source.device.type, target.device.type):
            to_host = target.device.type == "cpu"
            yield "copies_to_host" if to_host else "copies_to_device"
            if not (target if to_host else source).is_pinned():
                yield "pageable_copies"


def _make_mode(counter: Operations) -> AbstractContextManager[None]:
    """Return a dispatch mode that notes every operation in the counter."""
    from torch.utils import _python_dispatch

    def dispatch(self: object, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        # Profilers' marks are not operations, and a probe's own operations do not count.
        caller = sys._getframe().f_back  # None in autograd's own threads
        if not name.startswith("profiler::") and not (caller is not None and is_own(caller.f_code)):
            counter.note(name, tensors_in((*args, *(kwargs or {}).values())), tensors_in((result,)))
        return result

    base: Any = _python_dispatch.TorchDispatchMode
    # Without the second, PyTorch would import its compiler to decide whether to skip it, which takes most of a second.
    members = {"__torch_dispatch__": dispatch, "_should_skip_dynamo": classmethod(lambda cls: False)}
    mode: AbstractContextManager[None] = type("CountingMode", (base,), members)()
    return mode


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Return the tensors among values, and in lists and tuples among them."""
    import torch

    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


class Profiled(Instrument):
    """An instrument that uses PyTorch's profiler, with a mark among its events at every edge of a phase.

    ``nodes`` has, for each mark, the innermost phase that was open until then.
    """

    def __init__(self) -> None:
        self.recorder = Recorder(on_edge=self._edge)
        self.nodes: list[Node | None] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Allow counting during the block; CannotCountError if another profiler is active."""
        torch = sys.modules.get("torch")
        if torch is not None and torch._C._autograd._profiler_enabled():
            raise CannotCountError("a PyTorch profiler is active")
        yield

    def run(self, call: Callable[[], object]) -> None:
        """Call once, between two marks."""
        self.nodes = []
        self._edge(None)
        call()
        self._edge(None)

    def _edge(self, innermost: Node | None) -> None:
        from torch.autograd.profiler import record_function

        self.nodes.append(innermost)
        with record_function(MARK):
            pass


class Kernels(Profiled):
    """Counts kernels on CUDA and ROCm devices, by PyTorch's profiler.

    The profiler records which operation launched a kernel, and marks among the operations separate the phases. Both
    have the host's time, so that the device's clock need not agree with it.
    """

    names: tuple[str, ...] = ("kernels",)
    needs_first = True

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase."""
        import torch

        kinds = torch.profiler.ProfilerActivity
        with self.recorder.recording(), torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiler:
            self.run(call)
            torch.cuda.synchronize()
        whole, stretches = launches(profiler.events() or ())
        counted: Counter[str] = Counter({WHOLE: whole})
        paths = self.recorder.paths()
        for node, number in zip(self.nodes[1:], stretches[1:], strict=False):
            counted.update({paths[each]: number for each in lineage(node) if each in paths})
        return tuple(Count(path, "kernels", number) for path, number in counted.items())


def launches(events: Iterable[Any]) -> tuple[int, Sequence[int]]:
    """Return how many kernels there were, and how many were launched before each mark, and after the last.

    ``events`` are a profiler's: on the host, with the kernels that each has launched, and on the device.
    """
    whole = 0
    marks: list[float] = []
    starts: list[float] = []
    for event in events:
        if event.device_type.name == "CPU":
            if event.name == MARK:
                marks.append(event.time_range.start)
            starts += [event.time_range.start] * sum(_is_kernel(kernel.name) for kernel in event.kernels)
        elif not getattr(event, "is_user_annotation", False) and event.name != MARK:
            whole += _is_kernel(event.name)
    marks.sort()
    places = Counter(bisect_right(marks, start) for start in starts)
    return whole, [places[place] for place in range(len(marks) + 1)]


def _is_kernel(name: str) -> bool:
    return not name.startswith(("Memcpy", "Memset"))


class DeviceCounts(TotalsInstrument):
    """Counts one device's work by phase, by reading its totals at phases' edges."""

    needs_first = True

    def __init__(self, driver: Device) -> None:
        super().__init__(on_edge=self._note_level)
        self._driver = driver
        self._waits: Callable[[], int] | None = None
        self._levels: Levels | None = None
        self._last: dict[str, int] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Install the hooks for the block, and remove them afterwards."""
        with self._driver.counting_syncs() as self._waits:
            peak = () if self._driver.memory() is None else ("device_peak_bytes",)
            self.names = (*self._all_counts(), *peak)
            yield

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase; CannotCountError if the call interferes."""
        mode, memory = _sync_debug_mode(), self._driver.memory()
        if memory is not None:
            self._driver.reset_peak()
            self._levels = Levels(memory.allocated_bytes)
        try:
            found = super().count(call)
        finally:
            self._levels = None
        if _sync_debug_mode() != mode:
            raise CannotCountError("the call itself sets PyTorch's sync debug mode, by which waits are counted")
        return found

    def _counts(self, whole: int) -> tuple[Count, ...]:
        """Return the counts of the call that has just been recorded, and its memory's peaks."""
        if self._levels is None:
            return super()._counts(whole)
        levels = self._levels.counts(self.recorder.paths(), "device_peak_bytes", "")
        peaks = [each for each in levels if each.name]
        return (*super()._counts(whole), *peaks)

    def begin(self) -> None:
        """Begin to count, just before the call."""
        self._note_level(None)

    def end(self) -> None:
        """Stop counting, just after the call."""
        self._note_level(None)

    def _note_level(self, innermost: Node | None) -> None:
        """Note the memory at a phase's edge, and begin a new peak."""
        memory = None if self._levels is None else self._driver.memory()
        if self._levels is not None and memory is not None:
            self._levels.note(lineage(innermost), memory.allocated_bytes, memory.peak_bytes)
            self._driver.reset_peak()

    def read(self) -> int:
        """Return the totals so far, packed."""
        for name, value in self._all_counts().items():
            grown = value - self._last.get(name, value)
            self._last[name] = value
            # A call may reset its library's statistics; what it did between the last edge and the reset is lost.
            self.totals.packed += (grown if grown >= 0 else value) * self.totals.unit(name)
        return self.totals.packed

    def _all_counts(self) -> dict[str, int]:
        """Return the totals so far of waits and allocations; a driver's own ``counts()`` replace ours."""
        memory = self._driver.memory()
        found = {} if memory is None else {"device_allocations": memory.allocations}
        if self._waits is not None:
            found["syncs"] = self._waits()
        return found | getattr(self._driver, "counts", dict)()


def _sync_debug_mode() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.get_sync_debug_mode()) if torch is not None and torch.cuda.is_initialized() else 0


def devices_in_use() -> tuple[Device, ...]:
    """Return the device that PyTorch already uses in this process, if any; the look starts nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ()
    from pytest_rlperf.devices.clocks import CudaDriver

    return (CudaDriver(f"cuda:{torch.cuda.current_device()}"),)
