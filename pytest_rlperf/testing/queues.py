"""What a virtual GPU keeps of the work it was given: when streams are done, events, and graphs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

QUANTUM_NS = 500  # CUDA's events resolve about half a microsecond
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class VirtualEvent:
    """A moment in the order of a stream's work: ``stamp_ns`` is when it gets there, None where it was not recorded."""

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
        """Launch what was captured."""
        assert callable(self._replay)
        self._replay(self)


class Streams:
    """When each stream will have done what it was given so far, by the host's clock."""

    def __init__(self) -> None:
        self._done_ns: dict[int, float] = {}

    def add(self, stream: int, now_ns: float, work_ns: float) -> None:
        """Queue work, which begins when the stream gets there, and not before ``now_ns``."""
        self._done_ns[stream] = max(now_ns, self._done_ns.get(stream, 0.0)) + work_ns

    def done_ns(self, stream: int | None = None) -> float:
        """Return when a stream, or all, will have nothing left to do."""
        if stream is None:
            return max(self._done_ns.values(), default=0.0)
        return self._done_ns.get(stream, 0.0)


def elapsed_ms(start: VirtualEvent, end: VirtualEvent, now_ns: float, drift: float) -> float:
    """Return what ``cudaEventElapsedTime`` would: float32 milliseconds; RuntimeError where it would fail."""
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
