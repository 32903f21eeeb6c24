"""What is known of a call's time on an accelerator, and of the conditions it was measured under."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Pace(str, enum.Enum):
    """How a call on a device is timed end to end: two figures that are never mixed.

    LATENCY is one call with the device idle before it and done after it. STEADY is many calls and one wait for the
    device, divided: what a call costs where calls follow each other.
    """

    LATENCY = "latency"
    STEADY = "steady"


class Bound(str, enum.Enum):
    """What a phase's time on a device hangs on.

    LAUNCH: the device waits for the host. DEVICE: the host runs ahead, and work queues up. SYNC: within the phase the
    host waited until the device had caught up.
    """

    LAUNCH = "launch"
    DEVICE = "device"
    SYNC = "sync"


@dataclass(frozen=True)
class DeviceTimes:
    """One phase on a device, per iteration: seconds by the device's own clock.

    ``span_s`` is from the phase's first edge to its last as the device reached them, ``self_s`` what of it lies in no
    child phase. ``lag_in_s`` and ``lag_out_s`` are how far the device was behind the host at the two edges.
    ``is_synced`` says that the device was waited for at every edge, which such times are never compared without.
    ``peak_bytes`` is the most device memory in use within it, ``allocations`` how often memory was asked of the device.
    ``stream`` names the stream of the edges, several where they differ; such spans are of no one stream.
    """

    span_s: float
    self_s: float
    stream: str
    lag_in_s: float
    lag_out_s: float
    bound: Bound
    is_synced: bool
    peak_bytes: int
    allocations: float


@dataclass(frozen=True)
class Conditions:
    """The state of a device at one moment, as its driver tells; None where it does not.

    ``throttled`` names the reasons for which the device held its clocks back, ``others`` counts processes beside ours.
    """

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]
    others: int


@dataclass(frozen=True)
class DeviceSlice:
    """What a slice of a workload on a device has beside its figure.

    ``pace`` is how the slice was timed. ``disturbed`` says why the slice does not count, empty where it does: it
    was throttled, code was recompiled, memory was asked of it. ``cycles`` is the figure in cycles of the
    device's clock, None where that is not known.
    """

    device: str
    pace: Pace
    cycles: float | None
    before: Conditions | None
    after: Conditions | None
    disturbed: str


@dataclass(frozen=True)
class DeviceFigures:
    """One worker's figures on a device: seconds per call at either pace, the one that is ``gated`` named.

    ``flags`` are the process's settings that change what a device computes, such as TF32.
    """

    device: str
    gated: Pace
    latency_s: float
    steady_s: float
    cycles: float | None
    peak_bytes: int
    allocations: float
    flags: dict[str, str]
