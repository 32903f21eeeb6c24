"""A workload on an accelerator: the two paces it is timed at, and slices that nothing disturbed.

A host's clock around a call sees the launches, not the work; so every timed round ends with a wait for the device.
Where that wait stands makes two figures: after every call (latency), or once after many (steady).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pytest_rlperf.devices import clock_for, devices_of
from pytest_rlperf.devices.clocks import DeviceClockError, EventClock, HostClock, SyncClock
from pytest_rlperf.devices.jax import JaxDevice
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.device_state import CLOCK_STEADY, DeviceLibrary, Jax, all_reasons
from pytest_rlperf.measure.rounds import ClockNs, Timed
from pytest_rlperf.model.device import POWER_CAP, POWER_CAP_VARIES, Conditions, DeviceSlice, Disturbance, Pace
from pytest_rlperf.model.measured import SliceKind, SliceRecord, Workload


class PowerCap:
    """Distinguishes a power cap that is always on, for slices of one kind, from one that comes and goes.

    The cap is always on where all tries of a slice were under it, and no slice without it was kept before. From then
    on a slice that is not under it, or runs at another clock, does not count.
    """

    def __init__(self) -> None:
        self._clock_hz: float | None = None  # that the device is held at, where the cap is always on
        self._was_free = False
        self._tries_hz: list[float | None] = []

    def begin(self) -> None:
        """Begin the tries of another slice."""
        self._tries_hz = []

    def disturbing(self, before: Conditions | None, after: Conditions | None) -> tuple[str, ...]:
        """Return the reasons for which a try does not count, by the states of the device before and after it."""
        reasons = all_reasons(state for state in (before, after) if state is not None) or ()
        clock_hz = capped_clock_hz(before, after)
        self._tries_hz.append(clock_hz)
        if self._clock_hz is None:
            return reasons
        if clock_hz is not None and _holds_still([self._clock_hz, clock_hz]):
            return ()
        return tuple(POWER_CAP_VARIES if reason == POWER_CAP else reason for reason in reasons) or (POWER_CAP_VARIES,)

    def keep(self) -> None:
        """Take note of a slice that counts."""
        self._was_free = self._was_free or self._clock_hz is None

    def is_always_on(self) -> bool:
        """Whether the tries of this slice, all of them disturbed, show a cap that is always on; this is kept."""
        tries_hz = [clock_hz for clock_hz in self._tries_hz if clock_hz is not None]
        if self._was_free or self._clock_hz is not None or len(tries_hz) < len(self._tries_hz):
            return False
        if not _holds_still(tries_hz):
            return False
        self._clock_hz = tries_hz[-1]
        return True


def capped_clock_hz(before: Conditions | None, after: Conditions | None) -> float | None:
    """Return the clock that a device was held at by its power cap and nothing else; None where it moved or was not."""
    clocks_hz: list[float] = []
    for state in (before, after):
        if state is None or state.throttled != (POWER_CAP,) or state.sm_clock_hz is None:
            return None
        clocks_hz.append(state.sm_clock_hz)
    return clocks_hz[-1] if _holds_still(clocks_hz) else None


def _holds_still(clocks_hz: Sequence[float]) -> bool:
    return max(clocks_hz) - min(clocks_hz) <= CLOCK_STEADY * max(clocks_hz)


RETAKES = 3  # a device that disturbs a slice as often again cannot be measured on
_WARM_UPS_MOST = 10  # of a tenth of a second each: compiling is over by then, or never


@dataclass(frozen=True)
class _Edge:
    """The state of a device between two slices; ``allocations`` and ``recompiles`` are running totals."""

    conditions: Conditions | None
    allocations: int
    recompiles: int


class Accelerator:
    """The device that a workload runs on.

    ``settings`` are the library's before the workload first ran; they are restored after every slice.
    """

    def __init__(
        self,
        clock: EventClock | SyncClock,
        library: DeviceLibrary,
        gated: Pace,
        settings: Mapping[str, object],
    ) -> None:
        self.clock = clock
        self.name = clock.device
        self.gated = gated
        self._library = library
        self._reader = library.conditions(self.name)
        self._notes = dict.fromkeys([self._reader.missing] if self._reader.missing else [])
        self._settings = settings or library.settings()
        # Goes with the settings: a machine may have several models, and partitions of one GPU differ as much.
        self._model = {"model": clock.state().get("name", "unknown")}
        self._allocates = False
        self._gave_up = self._gave_up_tracing = False
        self._caps = {kind: PowerCap() for kind in SliceKind}
        self._restore()

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
            is_steady, throttles_alike = _is_steady(before, after), _reasons(before) == _reasons(after)
            if (is_steady and throttles_alike and not change) or not has_time():
                break
        # A workload that requests memory however long it runs does so in every call: that is counted, no disturbance.
        self._allocates = change.allocated
        changes = [
            *([_in_words(change)] if change else []),
            *([] if is_steady else ["its clock changed"]),
            *([] if throttles_alike else ["its throttling changed"]),
        ]
        if changes:
            self._notes[f"{self.name} had not settled when warming up ended: {', '.join(changes)}"] = None

    def note(self, notes: Iterable[str]) -> None:
        """Have these notes go with every slice from now on."""
        self._notes |= dict.fromkeys(notes)

    def undisturbed(self, kind: SliceKind, take: Callable[[], SliceRecord]) -> SliceRecord:
        """Return a slice with the state of the device, retaken where it was disturbed.

        Where the retakes are disturbed as well, the last one has all disturbances, and later slices are not retaken.
        For traced slices this is decided separately: tracing itself may have code recompiled. Where a power cap that is
        always on was the only disturbance, the last one counts, with a note.
        """
        __tracebackhide__ = True
        is_traced = kind is SliceKind.TRACED
        tries = 1 if self._gave_up or (is_traced and self._gave_up_tracing) else 1 + RETAKES
        disturbances: list[Disturbance] = []
        cap = self._caps[kind]
        cap.begin()
        while True:
            with self.answering():
                before = self._edge()
                self._reset_peak()
                record = take()
                after = self._edge()
            disturbance = self._disturbance(before, after, cap)
            if disturbance:
                disturbances.append(disturbance)
            if not disturbance or len(disturbances) == tries:
                break
        if self._is_always_capped(disturbances, cap):
            disturbances, disturbance = [], Disturbance()
        if not disturbance:
            cap.keep()
        if len(disturbances) == tries and not self._gave_up:
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
        finally:
            self._restore()

    def _is_always_capped(self, disturbances: Sequence[Disturbance], cap: PowerCap) -> bool:
        """Whether all tries of a slice were under a power cap that is always on, and had no other fault."""
        if len(disturbances) <= RETAKES or {*disturbances} != {Disturbance((POWER_CAP,))} or not cap.is_always_on():
            return False
        self.note([f"{self.name} is under its {POWER_CAP} all the time, at a steady clock: that disturbs nothing"])
        return True

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

    def _disturbance(self, before: _Edge, after: _Edge, cap: PowerCap) -> Disturbance:
        """Return why the slice between two edges does not count, false where it does."""
        change = _change(before, after)
        return replace(
            change,
            throttled=cap.disturbing(before.conditions, after.conditions),
            allocated=change.allocated and not self._allocates,
        )

    def _restore(self) -> None:
        """Restore the settings of the whole process that the workload has changed, and note that it did."""
        try:
            now = self._library.settings()
            changed = {name: value for name, value in self._settings.items() if now.get(name) != value}
            self._library.restore(changed)
        except RuntimeError:
            return  # a device that is gone has no settings; the next wait for it raises
        self.note(
            f"the workload left the {name} at {now.get(name)!r}; it was put back to {value!r} after every slice"
            for name, value in changed.items()
        )


def find_accelerator(
    workload: Workload,
    library: DeviceLibrary,
    settings: Mapping[str, object],
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
        library, settings = Jax(), {}
    return Accelerator(clock, library, workload.pace, settings)


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
