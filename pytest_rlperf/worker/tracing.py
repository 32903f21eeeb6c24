"""Traced slices: the phases of a call, by the host's clock and by a device's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from pytest_rlperf.devices import wait_for_all
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.model.measured import Harvest, Phase, Probe, Workload
from pytest_rlperf.probes import attached
from pytest_rlperf.probes.torch import Ranges
from pytest_rlperf.timers import Tree, recording_into
from pytest_rlperf.worker.device import Accelerator
from pytest_rlperf.worker.rounds import ClockNs, Timed


def call_plainly(workload: Workload) -> None:
    """Call a workload once without instruments, after a call with them failed; it raises if they are not to blame."""
    __tracebackhide__ = True
    if workload.setup is not None:
        workload.setup()
    workload.call()
    workload.processed(0)


_UNSEEN_LOOKS = 3  # whose median counts: a host that is woken late looks like a device that still works


class TracedHostSlice:
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


class TracedDeviceSlice:
    """Phases by the host's clock and by the device's, at the gated pace.

    The tape is read between rounds, so that no round includes the reading. With ``look``, some calls are recorded
    before the first round. In one, which counts for no time, the tape looks at memory. In the others, the first wait is
    the tape's own, which shows whether the device still worked after the last phase.
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
        self._tape = Tape(device.clock)
        self._is_to_look = look
        tape = self._tape

        def recorded() -> object:
            __tracebackhide__ = True
            tape.begin_iteration()
            output = call()
            tape.end_iteration()
            return output

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


TracedSlice: TypeAlias = TracedHostSlice | TracedDeviceSlice


def source_of_phases(workload: Workload, clock_ns: ClockNs) -> Harvest:
    """Return the call to record and the probes to attach; code without its own timers is harvested."""
    if workload.harvest is None:
        return _own_phases(workload)
    found = look_for_phases(workload, clock_ns)[1]
    workload.processed(0)
    return found


def look_for_phases(workload: Workload, clock_ns: ClockNs) -> tuple[float, Harvest]:
    """Run one call; return its seconds, and the call and probes that show its phases.

    A workload without its own phases shows them by the call and probes of its harvest.
    """
    __tracebackhide__ = True
    own = _own_phases(workload)
    tree = Tree(clock=clock_ns)
    wait = wait_for_all()
    if workload.setup is not None:
        workload.setup()
    with attached(own.probes), recording_into(tree):
        start_ns = clock_ns()
        workload.call()
        wait()
        call_s = (clock_ns() - start_ns) / 1e9
    if workload.harvest is None or any(phase.depth for phase in tree.phases(1)):
        return call_s, own
    return call_s, Harvest(workload.harvest.call, (Ranges(), *workload.harvest.probes))


def _own_phases(workload: Workload) -> Harvest:
    return Harvest(workload.call, (Ranges(), *workload.probes))
