"""A call's times on an accelerator, and the conditions they were measured under."""

from __future__ import annotations

import enum

import msgspec

POWER_CAP = "power cap"  # a reason for throttling a device


class Pace(str, enum.Enum):
    """How a call on a device is timed end to end: two figures that are never mixed.

    LATENCY is one call, with the device idle before it and done after it. STEADY is the time of many calls and one wait
    for the device, divided by the calls: the cost of a call if calls follow each other.
    """

    LATENCY = "latency"
    STEADY = "steady"


class Bound(str, enum.Enum):
    """The limit on a phase's time on a device.

    LAUNCH: the device waits for the host. DEVICE: the host runs ahead, and work queues up. SYNC: within the phase the
    host waited until the device had caught up, or was busy until it had.
    """

    LAUNCH = "launch"
    DEVICE = "device"
    SYNC = "sync"


class DeviceTimes(msgspec.Struct, frozen=True):
    """One phase on a device, per iteration: seconds by the device's own clock.

    ``span_s`` is from the phase's first edge to its last as the device reached them. ``self_s`` is the part of it in no
    child phase on the same stream. Both are None if edges, of the phase or of a child, are on different streams.
    ``lag_in_s`` and ``lag_out_s`` are how far the device was behind the host at the two edges, a mean over entries.
    ``stream`` is ``"main"`` for the stream that was current when the iteration began, ``"side 1"``… for others.
    ``is_synced`` marks times with a wait for the device at every edge, which are compared only with times of this kind.
    ``peak_bytes`` is the most device memory in use within the phase, ``allocations`` how often memory was requested
    from the device; each is None if it was not recorded, or if the driver does not count it.
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


class Conditions(msgspec.Struct, frozen=True):
    """The state of a device at one moment, by its driver; a field is None if the driver does not report it.

    ``throttled`` names the reasons why the device held its clocks back, empty if it did not. ``others`` counts
    processes beside ours.
    """

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...] | None
    others: int | None


class Disturbance(msgspec.Struct, frozen=True):
    """The reasons why one try of a slice on a device does not count.

    ``throttled`` are the reasons why the device held its clocks back. ``recompiled``: code was compiled within the
    slice. ``allocated``: memory was requested from the device, not from the library's cache.
    """

    throttled: tuple[str, ...] = ()
    recompiled: bool = False
    allocated: bool = False

    def __bool__(self) -> bool:
        return bool(self.throttled) or self.recompiled or self.allocated


class DeviceSlice(msgspec.Struct, frozen=True):
    """The figures of one slice of a workload on a device, beside its time.

    ``pace`` is how the slice was timed. ``disturbances`` has one entry for each try if all tries were disturbed, and is
    empty if the slice counts. ``retaken`` counts the tries thrown away before this one. ``cycles`` is the figure in
    cycles of the device's clock, None if not known. ``peak_bytes`` is the most device memory in use during the slice,
    ``allocations`` the requests for device memory per call, ``compiled`` the programs compiled per call. ``flags`` are
    the process's settings that change results on the device. ``notes`` name settings that the workload changed, and
    conditions that could not be read.
    """

    device: str
    pace: Pace
    cycles: float | None
    before: Conditions | None
    after: Conditions | None
    retaken: int
    peak_bytes: int
    allocations: float
    flags: dict[str, str]
    notes: tuple[str, ...]
    disturbances: tuple[Disturbance, ...] = ()
    compiled: float = 0.0


class DeviceFigures(msgspec.Struct, frozen=True):
    """One worker's figures on a device: seconds per call at each pace, and the pace that is ``gated``.

    The pace that is not gated is None if no slices were taken at it. ``flags`` are the process's settings that change
    what a device computes, such as TF32. ``conditions`` are the worst seen: the lowest clocks, the highest temperature,
    every reason, the most other processes. ``retaken`` counts the slices that were disturbed and thrown away for
    others; ``disturbances`` are those of the first slice that does not count, empty if all count: figures with
    disturbances are worthless. ``compiled`` is how many programs a call compiles. ``notes`` name other influences on
    the figures.
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
    retaken: int
    notes: tuple[str, ...]
    disturbances: tuple[Disturbance, ...] = ()
    compiled: float = 0.0
