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
    host waited until the device had caught up, or was busy until it had.
    """

    LAUNCH = "launch"
    DEVICE = "device"
    SYNC = "sync"


@dataclass(frozen=True)
class DeviceTimes:
    """One phase on a device, per iteration: seconds by the device's own clock.

    ``span_s`` is from the phase's first edge to its last as the device reached them, ``self_s`` what of it lies in no
    child phase on the same stream; None where edges, of the phase or of a child, are on different streams.
    ``lag_in_s`` and ``lag_out_s`` are how far the device was behind the host at the two edges, a mean over entries.
    ``stream`` is ``"main"`` for the one that was current where the iteration began, ``"side 1"``… for others.
    ``is_synced`` says that the device was waited for at every edge, which such times are never compared without.
    ``peak_bytes`` is the most device memory in use within the phase, ``allocations`` how often memory was asked of the
    device; None where nobody looked, or the device does not tell.
    """

    span_s: float | None
    self_s: float | None
    stream: str
    lag_in_s: float
    lag_out_s: float
    bound: Bound
    is_synced: bool
    peak_bytes: int | None
    allocations: float | None


@dataclass(frozen=True)
class Conditions:
    """The state of a device at one moment, as its driver tells; None where it does not.

    ``throttled`` names the reasons for which the device held its clocks back, empty where it did not; ``others`` counts
    processes beside ours.
    """

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...] | None
    others: int | None


@dataclass(frozen=True)
class DeviceSlice:
    """What a slice of a workload on a device has beside its figure.

    ``pace`` is how the slice was timed. ``disturbed`` says why the slice does not count, empty where it does: it
    was throttled, code was recompiled, memory was asked of it. ``retaken`` counts the slices thrown away for such a
    reason before this one. ``cycles`` is the figure in cycles of the device's clock, None where that is not known.
    ``peak_bytes`` is the most device memory in use during the slice, ``allocations`` how often a call asked the device
    for more. ``flags`` are the process's settings that change what the device computes, ``notes`` what the workload
    changed that it should not have, and what could not be read.
    """

    device: str
    pace: Pace
    cycles: float | None
    before: Conditions | None
    after: Conditions | None
    disturbed: str
    retaken: int
    peak_bytes: int
    allocations: float
    flags: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DeviceFigures:
    """One worker's figures on a device: seconds per call at either pace, the one that is ``gated`` named.

    The pace that is not gated is None where no slices were taken at it. ``flags`` are the process's settings that
    change what a device computes, such as TF32. ``conditions`` are the worst seen: the lowest clocks, the highest
    temperature, every reason, the most other processes. ``retaken`` counts the slices that were disturbed and thrown
    away for others; ``disturbed`` says what makes the figures worthless, empty where nothing does. ``notes`` are what
    else there is to know of how they came about.
    """

    device: str
    gated: Pace
    latency_s: float | None
    steady_s: float | None
    cycles: float | None
    peak_bytes: int
    allocations: float
    flags: dict[str, str]
    conditions: Conditions | None
    disturbed: str
    retaken: int
    notes: tuple[str, ...]
