"""A workload on an accelerator: the two paces it is timed at, and slices that nothing disturbed.

A host's clock around a call sees the launches, not the work; so every timed round ends with a wait for the device.
The place of that wait makes two figures: after every call (latency), or once after many (steady).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from pytest_rlperf.devices import JaxDevice, clock_for, devices_of
from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, HostClock, SyncClock
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.model.device import POWER_CAP, Conditions, DeviceSlice, Disturbance, Pace
from pytest_rlperf.model.measured import SliceKind, SliceRecord, Workload
from pytest_rlperf.worker.device_state import CLOCK_STEADY, DeviceLibrary, Jax
from pytest_rlperf.worker.rounds import ClockNs, Timed

RETAKES = 3  # a device that disturbs a slice and as many retakes cannot be measured on
_WARM_UPS_MOST = 10  # of a tenth of a second each: compiling is over by then, or never


class _Edge(msgspec.Struct, frozen=True):
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
        # Recorded with the settings: a machine may have several models, and partitions of one GPU differ as much.
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
        """Return the parts of a round at ``pace``; the device is idle when the round begins, and done when it ends."""
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
        """Return ``setup`` with a wait for its work on the device, which is not part of the call that follows."""

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
        # A workload that still requests memory does so in every call: that is counted, and is not a disturbance.
        self._allocates = change.allocated
        changes = [*([_in_words(change)] if change else []), *([] if is_steady else ["its clock changed"])]
        if changes:
            self._notes[f"{self.name} had not settled when warming up ended: {', '.join(changes)}"] = None

    def note(self, notes: Iterable[str]) -> None:
        """Add these notes to every slice from now on."""
        self._notes |= dict.fromkeys(notes)

    def undisturbed(self, kind: SliceKind, take: Callable[[], SliceRecord]) -> SliceRecord:
        """Return a slice with the state of the device, retaken if it was disturbed.

        If the retakes are disturbed as well, the last one has all disturbances, and later slices are not retaken.
        This is decided separately for traced slices: tracing itself may make code recompile.
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
        """Raise MeasurementError, naming the device, if work fails because the device is gone.

        A library raises the error of a lost device wherever it next uses the device, also within the workload. So if
        the device cannot be waited for after an error, the error is the device's.
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
        """Retake no more slices, or no more traced slices."""
        self._gave_up, self._gave_up_tracing = not is_traced, is_traced
        if is_traced:
            self.note([f"phases on {self.name} are of slices that were disturbed: {_in_words(disturbance)}"])

    def _slice(
        self, pace: Pace, record: SliceRecord, before: _Edge, after: _Edge, disturbances: Sequence[Disturbance]
    ) -> DeviceSlice:
        clocks_hz = [edge.conditions.sm_clock_hz for edge in (before, after) if edge.conditions is not None]
        # If the clock moved in between, the time at each speed is unknown.
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
            compiled=(after.recompiles - before.recompiles) / record.calls,
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
        """Return why the slice between two edges does not count, false if it does.

        A power cap is a GPU's full load, under which both sides of a comparison run: it is only among the conditions.
        """
        change = _change(before, after)
        states = [edge.conditions for edge in (before, after) if edge.conditions is not None]
        throttled = [reason for state in states for reason in state.throttled or ()]
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
    output, and arrays that exist since it ran. MeasurementError if the device's time cannot be read, or if there are
    several devices.
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
    """Return the one-time events between two edges, without throttling."""
    return Disturbance(
        recompiled=after.recompiles > before.recompiles, allocated=after.allocations > before.allocations
    )


def _in_words(disturbance: Disturbance) -> str:
    """Return a disturbance in words; few workers need the import."""
    from pytest_rlperf.report.wording import disturbance_text

    return disturbance_text(disturbance)


def _is_steady(before: _Edge, after: _Edge) -> bool:
    """Whether the device's clock holds still, as far as is known."""
    was, now = (None if edge.conditions is None else edge.conditions.sm_clock_hz for edge in (before, after))
    return was is None or now is None or abs(now - was) <= CLOCK_STEADY * was
