"""A GPU in virtual time, for tests of code that measures one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pytest_rlperf.devices.clocks import Memory
from pytest_rlperf.model.device import Conditions
from pytest_rlperf.timers import FakeClock
from pytest_rlperf.worker.device_state import ConditionReader, DeviceLibrary

_HOST_TO_DEVICE_BYTES_PER_S = 16e9
_MALLOC_S = 100e-6  # the host's time to ask the device for memory
_BLOCK_BYTES = 512  # what PyTorch's allocator for CUDA rounds up to
QUANTUM_NS = 500  # CUDA's events resolve about half a microsecond
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class VirtualGPU:
    """A GPU with work of given lengths, by a clock that stands still otherwise.

    It is a :class:`~pytest_rlperf.devices.clocks.DeviceDriver`, so ``EventClock(gpu, host_ns=gpu.clock)`` reads its
    time, and ``driving(gpu)`` makes it known by its name. A launch takes the host ``launch_s``, and recording an event
    ``event_s``; the device's clock runs faster than the host's by the share ``drift``.

    Like a real one it takes work and lets the host run on: :meth:`launch` queues on a stream, :meth:`item` and copies
    of pageable memory wait. It counts ``launches``, ``copies``, ``syncs`` of any kind, the ``implicit_syncs`` among
    them, ``events_made`` and ``recompiles``; :meth:`counts` returns them by the counters' names.
    """

    def __init__(
        self,
        device: str = "virtual:0",
        *,
        clock: FakeClock | None = None,
        launch_s: float = 5e-6,
        event_s: float = 0.0,
        drift: float = 0.0,
    ) -> None:
        self.device = device
        self.clock = clock or FakeClock()
        self.launch_s = launch_s
        self.event_s = event_s
        self.drift = drift
        self.launches = self.syncs = self.implicit_syncs = self.events_made = self.recompiles = 0
        self.copies_to_device = self.copies_to_host = self.pageable_copies = 0
        self.sm_clock_hz = 1.5e9
        self.memory_clock_hz = 2.6e9
        self.temperature_c = 40.0
        self.throttled: tuple[str, ...] = ()
        self.others = 0
        self._slowdown = 1.0
        self._is_lost = False
        self._streams = Streams()
        self._current = 0
        self._graph: VirtualGraph | None = None
        self._allocator = CachingAllocator()

    # ------------------------------------------------------------------ work

    def host(self, seconds: float) -> None:
        """Let the host work for ``seconds``."""
        self.clock.advance(seconds)

    def launch(self, seconds: float, stream: int | None = None) -> None:
        """Queue ``seconds`` of work on the current stream, or another; the host goes on after ``launch_s``."""
        self._check("launch")
        self.launches += 1
        self.host(self.launch_s)
        self._queue(seconds, self._current if stream is None else stream)

    def item(self) -> None:
        self._wait(self._current, is_implicit=True)

    def copy_to_device(self, size_bytes: int, *, pinned: bool) -> None:
        """Copy from the host's memory; the host waits unless that is ``pinned``."""
        self._copy(size_bytes, pinned=pinned)
        self.copies_to_device += 1

    def copy_to_host(self, size_bytes: int, *, pinned: bool) -> None:
        """Copy to the host's memory; the host waits unless that is ``pinned``."""
        self._copy(size_bytes, pinned=pinned)
        self.copies_to_host += 1

    @contextmanager
    def use(self, stream: int) -> Iterator[None]:
        """Within the context, have this stream be the current one; 0 is the default."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    @contextmanager
    def capture(self) -> Iterator[VirtualGraph]:
        """Within the context, put what is launched into the yielded graph, and do none of it."""
        self._check("capture")
        if self._graph is not None:
            raise RuntimeError(NOT_PERMITTED)
        graph = self._graph = VirtualGraph(self._replay)
        try:
            yield graph
        finally:
            self._graph = None

    def allocate(self, size_bytes: int) -> VirtualTensor:
        """Return memory of the device: cached memory, or else newly allocated, which takes the host a while."""
        self._check("allocate")
        block, was_asked = self._allocator.take(size_bytes)
        if was_asked:
            self.host(_MALLOC_S)
        return VirtualTensor(self.device, size_bytes, lambda: self._allocator.give_back(block))

    def compile(self, seconds: float) -> None:
        """Compile code anew, which takes the host ``seconds``."""
        self.recompiles += 1
        self.host(seconds)

    @property
    def copies(self) -> int:
        return self.copies_to_device + self.copies_to_host

    # ------------------------------------------------------------------ conditions

    def throttle(self, *reasons: str, slowdown: float = 1.0) -> None:
        """Hold the clocks back for ``reasons``, none to let go: later work takes ``slowdown`` times as long."""
        self.throttled = reasons
        self._slowdown = slowdown

    def conditions(self) -> Conditions:
        self._check("conditions")
        return Conditions(
            sm_clock_hz=self.sm_clock_hz / self._slowdown,
            memory_clock_hz=self.memory_clock_hz,
            temperature_c=self.temperature_c,
            throttled=self.throttled,
            others=self.others,
        )

    def counts(self) -> dict[str, int]:
        return {
            "syncs": self.implicit_syncs,
            "copies_to_device": self.copies_to_device,
            "copies_to_host": self.copies_to_host,
            "pageable_copies": self.pageable_copies,
            "kernels": self.launches,
            "device_allocations": self._allocator.allocations,
        }

    def lose(self) -> None:
        """Let the device fall off the bus: every later call is an error."""
        self._is_lost = True

    # ------------------------------------------------------------------ as a driver

    def make_event(self) -> VirtualEvent:
        self._check("make_event")
        self.events_made += 1
        return VirtualEvent(self.device)

    def stream(self) -> Hashable:
        return self._current

    def record(self, event: VirtualEvent) -> None:
        """Let the current stream stamp ``event`` when it gets there."""
        self._check("record")
        event.is_captured = self._graph is not None
        event.stream = self._current
        event.stamp_ns = max(float(self.clock.now_ns), self._streams.done_ns(self._current))
        self.host(self.event_s)

    def elapsed_ms(self, start: VirtualEvent, end: VirtualEvent) -> float:
        """Return float32 milliseconds between two events, to half a microsecond; RuntimeError where CUDA raises one."""
        self._check("elapsed_ms")
        if self._graph is not None:
            raise RuntimeError(NOT_PERMITTED)
        return elapsed_ms(start, end, self.clock.now_ns, self.drift)

    def synchronize(self) -> None:
        self._wait(None, is_implicit=False)

    def is_capturing(self) -> bool:
        return self._graph is not None

    def memory(self) -> Memory | None:
        allocator = self._allocator
        return Memory(allocator.allocated_bytes, allocator.peak_bytes, allocator.allocations)

    def reset_peak(self) -> None:
        self._allocator.reset_peak()

    @contextmanager
    def counting_syncs(self) -> Iterator[Callable[[], int] | None]:
        """Yield a function that counts the host's implicit waits within the context."""
        before = self.implicit_syncs
        yield lambda: self.implicit_syncs - before

    def name(self) -> str:
        return "virtual"

    # ------------------------------------------------------------------ within

    def _check(self, what: str) -> None:
        if self._is_lost:
            raise RuntimeError(f"CUDA error: device {self.device} is lost, in {what}")

    def _queue(self, seconds: float, stream: int) -> None:
        work_ns = seconds * self._slowdown * 1e9
        if self._graph is not None:
            self._graph.launches += 1
            self._graph.work_ns[stream] = self._graph.work_ns.get(stream, 0.0) + work_ns
        else:
            self._streams.add(stream, self.clock.now_ns, work_ns)

    def _replay(self, graph: VirtualGraph) -> None:
        self._check("replay")
        if self._graph is not None:
            raise RuntimeError(NOT_PERMITTED)
        self.launches += 1
        self.host(self.launch_s)
        # All of a graph's work is in the order of the stream it is launched on, whatever it was captured from.
        self._streams.add(self._current, self.clock.now_ns, max(graph.work_ns.values(), default=0.0))

    def _copy(self, size_bytes: int, *, pinned: bool) -> None:
        self._check("copy")
        if self._graph is not None and not pinned:
            raise RuntimeError(NOT_PERMITTED)
        self.pageable_copies += not pinned
        self.host(self.launch_s)
        self._queue(size_bytes / _HOST_TO_DEVICE_BYTES_PER_S, self._current)
        if not pinned:
            self._wait(self._current, is_implicit=True)

    def _wait(self, stream: int | None, *, is_implicit: bool) -> None:
        self._check("synchronize")
        if self._graph is not None:
            raise RuntimeError(NOT_PERMITTED)
        self.syncs += 1
        self.implicit_syncs += is_implicit
        # Up to the next nanosecond: the host's clock has whole ones.
        self.clock.now_ns = max(self.clock.now_ns, -int(-self._streams.done_ns(stream) // 1))


class VirtualReader(ConditionReader):
    """Reads a virtual GPU's conditions, as NVML does a real one's."""

    def __init__(self, gpu: VirtualGPU) -> None:
        super().__init__("")
        self._gpu = gpu

    def read(self) -> Conditions | None:
        return self._gpu.conditions()


class VirtualLibrary(DeviceLibrary):
    """The library that a workload uses a virtual GPU by, as PyTorch is of a real one."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self.reader: ConditionReader = VirtualReader(gpu)
        self._gpu = gpu

    def used(self) -> Mapping[str, int]:
        return {self._gpu.device: self._gpu.launches + self._gpu.copies}

    def recompiles(self) -> int:
        return self._gpu.recompiles

    def conditions(self, device: str) -> ConditionReader:
        return self.reader


class VirtualTensor:
    """Memory of a virtual device, which ``device`` names; :meth:`free` gives it back."""

    holds_device_memory = True  # devices_of() looks for it

    def __init__(self, device: str, size_bytes: int, free: Callable[[], None]) -> None:
        self.device = device
        self.size_bytes = size_bytes
        self._free: Callable[[], None] | None = free

    def free(self) -> None:
        """Give the memory back; once is enough."""
        if self._free is not None:
            self._free()
            self._free = None


class CachingAllocator:
    """Gives out blocks: freed ones that are large enough first, else new memory of the device."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.allocations = 0
        self._cached: list[int] = []

    def take(self, size_bytes: int) -> tuple[int, bool]:
        """Return the bytes of a block for ``size_bytes``, and whether the device allocated it."""
        needed = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        fitting = [block for block in self._cached if block >= needed]
        if fitting:
            block = min(fitting)
            self._cached.remove(block)
        else:
            block = needed
            self.allocations += 1
        self.allocated_bytes += block
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block, not fitting

    def give_back(self, block: int) -> None:
        self.allocated_bytes -= block
        self._cached.append(block)

    def reset_peak(self) -> None:
        self.peak_bytes = self.allocated_bytes


class VirtualEvent:
    """A moment in the order of a stream's work; ``stamp_ns`` is None until it is recorded."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.stamp_ns: float | None = None
        self.stream = 0
        self.is_captured = False


@dataclass
class VirtualGraph:
    """Work that was captured, in nanoseconds by stream; a replay launches all of it at once."""

    _replay: object = field(repr=False)
    work_ns: dict[int, float] = field(default_factory=dict)
    launches: int = 0

    def replay(self) -> None:
        assert callable(self._replay)
        self._replay(self)


class Streams:
    """The end of each stream's work so far, by the host's clock."""

    def __init__(self) -> None:
        self._done_ns: dict[int, float] = {}

    def add(self, stream: int, now_ns: float, work_ns: float) -> None:
        """Queue work, which begins when the stream gets there, and not before ``now_ns``."""
        self._done_ns[stream] = max(now_ns, self._done_ns.get(stream, 0.0)) + work_ns

    def done_ns(self, stream: int | None = None) -> float:
        if stream is None:
            return max(self._done_ns.values(), default=0.0)
        return self._done_ns.get(stream, 0.0)


def elapsed_ms(start: VirtualEvent, end: VirtualEvent, now_ns: float, drift: float) -> float:
    """Return float32 milliseconds as ``cudaEventElapsedTime`` does; RuntimeError where it fails."""
    if start.device != end.device:
        raise RuntimeError(f"CUDA error: invalid resource handle: events of {start.device} and {end.device}")
    if start.is_captured or end.is_captured:
        raise RuntimeError("CUDA error: operation not permitted on an event last recorded in a capturing stream")
    if start.stamp_ns is None or end.stamp_ns is None:
        raise RuntimeError("CUDA error: invalid resource handle: an event was not recorded")
    if max(start.stamp_ns, end.stamp_ns) > now_ns:
        raise RuntimeError("CUDA error: device not ready")
    exact_ns = (end.stamp_ns - start.stamp_ns) * (1.0 + drift)
    quantised_ms = round(exact_ns / QUANTUM_NS) * QUANTUM_NS / 1e6
    (as_float32,) = struct.unpack("f", struct.pack("f", quantised_ms))
    return float(as_float32)
