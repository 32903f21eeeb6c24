"""What traced slices record: a workload's own phases, or those that probes make of it; by the device's clock, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from pytest_rlperf.devices import Tape
from pytest_rlperf.devices.tracing import trace_call
from pytest_rlperf.measure.device import Accelerator
from pytest_rlperf.measure.rounds import ClockNs, Timed
from pytest_rlperf.model import Phase, Probe, Workload
from pytest_rlperf.model.spans import Span
from pytest_rlperf.probes import attached, standing_probes
from pytest_rlperf.timers import Tree, recording_into

_UNSEEN_LOOKS = 3  # of which the median tells: a host that is woken late looks like a device that still works


class Trace(Protocol):
    """One traced slice: what its rounds run, with which probes in place, and the phases that they had."""

    timed: Timed
    probes: tuple[Probe, ...]

    def recording(self) -> AbstractContextManager[None]:
        """Return the context that a round runs in."""

    def phases(self, calls: int) -> tuple[Phase, ...]:
        """Return what was recorded of ``calls``, per call."""


class HostTrace:
    """Phases by the host's clock."""

    def __init__(self, timed: Timed, probes: tuple[Probe, ...], wall_ns: ClockNs) -> None:
        self.timed = timed
        self.probes = probes
        self._tree = Tree(clock=wall_ns)

    def recording(self) -> AbstractContextManager[None]:
        """Record into the tree."""
        return recording_into(self._tree)

    def phases(self, calls: int) -> tuple[Phase, ...]:
        """Return the tree's paths."""
        return self._tree.phases(calls)


class DeviceTrace:
    """Phases by the host's clock and by the device's, at the pace that is gated.

    The tape is read between rounds, whose time that would be. Where it is to ``look``, two calls are recorded before
    the first round: one in which the tape looks at memory, which counts for no time, and one whose first wait is the
    tape's own, which tells it whether the device worked on unseen.
    """

    def __init__(
        self,
        device: Accelerator,
        call: Callable[[], object],
        setup: Callable[[], None] | None,
        probes: tuple[Probe, ...],
        *,
        look: bool,
    ) -> None:
        self.probes = probes
        self._device = device
        self._tape = Tape(device.clock, sync=device.sync_edges)
        self._is_to_look = look
        tape = self._tape

        def recorded() -> None:
            __tracebackhide__ = True
            tape.begin_iteration()
            call()
            tape.end_iteration()

        def prepare() -> None:
            __tracebackhide__ = True
            if self._is_to_look:
                self._is_to_look = False
                self._look(call, setup)
            tape.resolve(waited=True)  # by the round
            if setup is not None:
                setup()

        self.timed = device.timed(device.gated, recorded, prepare)

    def recording(self) -> AbstractContextManager[None]:
        """Record into the tape's tree."""
        return recording_into(self._tape.tree)

    def phases(self, calls: int) -> tuple[Phase, ...]:
        """Return the tape's paths."""
        found = self._tape.resolve(waited=True)
        self._device.note(self._tape.notes)
        return found

    def _look(self, call: Callable[[], object], setup: Callable[[], None] | None) -> None:
        __tracebackhide__ = True
        prepare = self._device.idle_after(setup)
        for look in (True, *(False,) * _UNSEEN_LOOKS):
            prepare()
            with self.recording():
                self._tape.begin_iteration(look=look)
                try:
                    call()
                finally:
                    self._tape.end_iteration()
            self._tape.resolve()


class Tracer:
    """Chooses how to see the phases of one workload; code without timers of its own is harvested."""

    def __init__(self, workload: Workload, wall_ns: ClockNs) -> None:
        self._workload = workload
        self._wall_ns = wall_ns
        self._has_phases: bool | None = None
        self._has_looked = False

    def begin(self, device: Accelerator | None) -> Trace:
        """Return what a slice is to run and record."""
        call, probes = self._source()
        setup = self._workload.setup
        if device is None:
            return HostTrace(Timed(call, setup), probes, self._wall_ns)
        return DeviceTrace(device, call, setup, probes, look=not self._has_looked)

    def keep(self) -> None:
        """Have later slices look no more: one that did was kept, and once tells, as calls may be long."""
        self._has_looked = True

    def trace_call(self, device: Accelerator | None) -> tuple[tuple[Span, ...], tuple[str, ...]]:
        """Record one call, every entry by itself; return the spans, and notes on what they lack."""
        call, probes = self._source()
        setup = self._workload.setup
        if device is None:
            return trace_call(call, setup=setup, probes=probes, clock=self._wall_ns)
        tape = Tape(device.clock, sync=device.sync_edges)
        return trace_call(call, setup=device.idle_after(setup), probes=probes, clock=self._wall_ns, tape=tape)

    def _source(self) -> tuple[Callable[[], object], tuple[Probe, ...]]:
        """Return the call that is recorded and the probes to put in place."""
        workload = self._workload
        probes = (*standing_probes(), *workload.probes)
        if workload.harvest is None:
            return workload.call, probes
        if self._has_phases is None:
            tree = Tree(clock=self._wall_ns)
            if workload.setup is not None:
                workload.setup()
            with attached(probes), recording_into(tree):
                workload.call()
            workload.processed(0)
            self._has_phases = any(phase.depth for phase in tree.phases(1))
        if self._has_phases:
            return workload.call, probes
        return workload.harvest.call, (*standing_probes(), *workload.harvest.probes)
