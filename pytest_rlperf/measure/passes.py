"""The passes beside timed slices: tracing records a call's phases, counting its exact counts, attribution its owners.

Counting runs right after the check, when a test's state is the same in every process, and before anything is timed;
attribution once all timed slices are taken.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TypeAlias

from pytest_rlperf import units
from pytest_rlperf.counters import tally
from pytest_rlperf.counters.attribution import ProfilerBusyError, shares
from pytest_rlperf.counters.memory import quiet
from pytest_rlperf.devices import JaxDevice, clock_for, devices_of, wait_for_all
from pytest_rlperf.devices.clocks import Device, HostClock
from pytest_rlperf.devices.tape import Tape
from pytest_rlperf.measure.device import Accelerator
from pytest_rlperf.measure.rounds import ClockNs, Timed
from pytest_rlperf.measure.worker import Worker, wait_all
from pytest_rlperf.model.measured import Counting, Harvest, Phase, PhaseCounts, Probe, Share, Tally, Workload
from pytest_rlperf.probes import attached
from pytest_rlperf.probes.torch import Ranges, quieten_ranges
from pytest_rlperf.timers import Tree, recording_into


def call_plainly(workload: Workload) -> None:
    """Call a workload once without instruments, after one with them failed: raises where they are not to blame."""
    __tracebackhide__ = True
    if workload.setup is not None:
        workload.setup()
    workload.call()
    workload.processed(0)


# --------------------------------------------------------------------------- tracing

_UNSEEN_LOOKS = 3  # of which the median counts: a host that is woken late looks like a device that still works


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
    """Phases by the host's clock and by the device's, at the pace that is gated.

    The tape is read between rounds, so that no round has that in its time. Where it is to ``look``, some calls are
    recorded before the first round: one in which the tape looks at memory, which counts for no time, and others whose
    first wait is the tape's own, which shows whether the device worked on unseen.
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
    """Return the call to record and the probes to put in place; code without timers of its own is harvested."""
    if workload.harvest is None:
        return _own_phases(workload)
    found = look_for_phases(workload, clock_ns)[1]
    workload.processed(0)
    return found


def look_for_phases(workload: Workload, clock_ns: ClockNs) -> tuple[float, Harvest]:
    """Run one call; return its seconds, and the call and probes that show its phases.

    A workload without phases of its own shows them by the call and probes of its harvest.
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


# --------------------------------------------------------------------------- counting

REPETITIONS = 2
_SHARE = 0.1  # of the time a test may be measured, for all of its workers together
_GATING_SHARE = 0.5  # likewise, where counts decide: a gate that is left out lets everything pass
_FIRST_CALL_SHARE = 0.1  # likewise: a first call that took longer leaves no time for another
_LENIENCE = 4.0  # times the first worker's limit for the others, whose calls are as long but for a cold start
_ONCE = 4.0  # times the limit for a long call that is counted once: several workers show whether it is exact
_ONCE_WORKERS = 4
_COST_CALLS = 20  # plain calls that take as long as counting one call: every instrument has a pass, and slows it


def count(
    workload: Workload, repetitions: int, limit_s: float, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> Tally:
    """Count the workload's call ``repetitions`` times, in about ``limit_s``; a long one once, in up to four times that.

    A call before that shows how long it takes and where its phases come from. Where it takes too long it is timed once
    more: it may have been held up. Nothing is counted, with a note, where there is no time for one call.
    """
    __tracebackhide__ = True
    quieten_ranges()
    with quiet():
        try:
            call_s, traced = look_for_phases(workload, clock_ns)
        except Exception as error:
            call_plainly(workload)  # raises where looking for phases is not to blame
            failed = f"the call fails while its phases are recorded: {type(error).__name__}: {error}"
            return Tally((), (f"not counted: {failed}",), has_failed=True)
        longest_s = limit_s / (repetitions * _COST_CALLS)
        once_s = _ONCE * limit_s / _COST_CALLS
        if longest_s < call_s <= limit_s:
            call_s = min(call_s, look_for_phases(workload, clock_ns)[0])
        if call_s > once_s:
            reason = (
                f"a call takes {units.seconds(call_s)}, so counting would take about "
                f"{units.seconds(_COST_CALLS * call_s)} a worker, over the {units.seconds(_ONCE * limit_s)} that "
                "--rlperf-max-time leaves for it"
            )
            found = Tally((), (f"not counted: {reason}",))
        else:
            found = tally(
                traced.call,
                setup=workload.setup,
                probes=traced.probes,
                repetitions=repetitions if call_s <= longest_s else 1,
                devices=_devices(workload),
                environments=_environments(),
            )
            wait_for_all()()  # or the calls would go on while other workers measure
    workload.processed(0)  # items processed while counting belong to no slice
    return found


def _environments() -> tuple[str, ...]:
    """Return the classes of environments whose steps are counted; none where NumPy, which all of them use, is missing.

    The tables that name them load NumPy, which a test without it should neither wait for nor have among its packages.
    """
    if "numpy" not in sys.modules:
        return ()
    from pytest_rlperf.components.libraries import environments

    return environments()


def _devices(workload: Workload) -> tuple[Device, ...] | None:
    """Return the device that the workload holds things on, as its clock drives it; None where it is the host.

    JAX counts nothing on its devices.
    """
    clock = clock_for(devices_of((*workload.holds, workload.call)))
    if isinstance(clock, HostClock):
        return None
    return () if isinstance(clock.driver, JaxDevice) else (clock.driver,)


def learn(tallies: Sequence[Tally]) -> Counting | None:
    """Return the counts of several workers together; None without any worker.

    A count is exact where it was equal in every worker and repetition, of at least two workers. A count that a
    repetition lacks is zero there; but where an instrument did not run in every worker, its counts are left out.
    """
    counted = [each for each in tallies if each.repetitions]
    notes = tuple(dict.fromkeys(note for each in tallies for note in each.notes))
    repetitions = [
        {(count.path, count.name): count.value for count in counts} for each in counted for counts in each.repetitions
    ]
    # An instrument that ran has its own counts of the whole call, even if they are zero.
    ran = [{name for path, name in counts if not path} for counts in repetitions]
    everywhere = set[str].intersection(*ran) if ran else set()
    phases: dict[str, PhaseCounts] = {}
    for place in dict.fromkeys(chain.from_iterable(repetitions)):
        path, name = place
        if name.partition(":")[0] in everywhere:
            values = [each.get(place, 0) for each in repetitions]
            phase = phases.setdefault(path, PhaseCounts(path, {}, {}))
            if min(values) == max(values) and len(counted) > 1:
                phase.exact[name] = values[0]
            else:
                phase.inexact[name] = min(values), max(values)
    if not tallies:
        return None
    return Counting(tuple(phases.values()), len(counted), max(len(each.repetitions) for each in tallies), notes)


class CountingPass:
    """Decides which workers of one test count, and for how long: about 10 % of ``max_time_s`` for ``workers`` of them.

    It takes up to half of that time where counts ``gates`` the test. The first worker decides for all: where calls are
    too long for its share, no other counts; where it counted a long call once, so do the others, and those of two pairs
    are enough. Where counts are not wanted (``is_wanted``), none does.

    Where a call fails while it is counted, the next workers make their calls uncounted: one of a certain number, such
    as the 20th of a process, fails there too if counting it is not to blame.
    """

    def __init__(self, max_time_s: float, workers: int, *, is_wanted: bool, gates: bool) -> None:
        self._limit_s = (_GATING_SHARE if gates else _SHARE) * max_time_s / workers
        self._longest_first_s = _FIRST_CALL_SHARE * max_time_s
        self._is_wanted = is_wanted
        self._declined: Tally | None = None
        self._repetitions = REPETITIONS
        self._counted = 0  # workers
        self._is_in_doubt = False

    def run(self, workers: Sequence[Worker]) -> None:
        """Have those of ``workers`` count that have not done so; all of them have checked their component."""
        __tracebackhide__ = True
        fresh = [worker for worker in workers if worker.tally is None]
        is_enough = self._repetitions == 1 and self._counted >= _ONCE_WORKERS
        if not fresh or not self._is_wanted or is_enough:
            return
        if self._is_in_doubt:
            self._is_in_doubt = False
            return
        first = fresh[0]
        if (first.checked_s or 0.0) > self._longest_first_s:
            note = f"not counted: the first call took {units.seconds(first.checked_s or 0.0)}"
            self._declined = Tally((), (f"{note}; a longer --rlperf-max-time leaves time for it",))
        for group in (fresh[:1], fresh[1:]):
            if not self._is_in_doubt:
                self._count(group)

    def _count(self, workers: Sequence[Worker]) -> None:
        __tracebackhide__ = True
        if self._declined is not None:
            for worker in workers:
                worker.tally = self._declined
            return
        for worker in workers:
            worker.start_count(self._repetitions, self._limit_s * (_LENIENCE if self._counted else 1.0))
        for worker, counted in zip(workers, wait_all(workers, lambda worker: worker.wait_counted()), strict=True):
            worker.tally = counted
            self._is_in_doubt |= counted.has_failed
            if counted.repetitions:
                self._repetitions = len(counted.repetitions)
                self._counted += 1
            elif not self._counted:
                self._declined = counted


def counted_by(workers: Sequence[Worker]) -> Counting | None:
    """Return the counts of ``workers`` together, None where none of them has counted."""
    return learn([worker.tally for worker in workers if worker.tally is not None])


# --------------------------------------------------------------------------- attribution

_PLAIN_S = 0.1  # of plain calls; profiled ones take several times as long
_LEAST_CALLS, _MOST_CALLS = 8, 600
_LONGEST_CALL_S = 0.5  # from here on the profiled calls would take longer than the whole measurement
_WAITS = 5


def explain(
    workload: Workload, call_s: float, wait: Callable[[], None] | None
) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    """Return the shares of a call that takes about ``call_s``; or none, and notes with the reason.

    ``wait`` waits until the device of the call is done; None for a call on the host.
    """
    if call_s > _LONGEST_CALL_S:
        return (), (f"where the time goes is unknown: a call is too long to profile, it takes {units.seconds(call_s)}",)
    calls = max(_LEAST_CALLS, min(_MOST_CALLS, round(_PLAIN_S / max(call_s, 1e-9))))
    call, device_wait_s = workload.call, 0.0
    if wait is not None:
        call = _waiting(workload.call, wait)
        device_wait_s = _waited_s(workload, wait)
    try:
        found = shares(call, setup=workload.setup, calls=calls, device_wait_s=device_wait_s)
    except ProfilerBusyError as busy:
        return (), (str(busy),)
    except Exception as error:  # by code that cannot be profiled; its measurement is complete
        call_plainly(workload)
        return (), (
            f"where the time goes is unknown: under the profiler, the call raised {type(error).__name__}: {error}",
        )
    finally:
        workload.processed(0)  # these calls belong to no slice
    return found, ()


def _waiting(call: Callable[[], object], wait: Callable[[], None]) -> Callable[[], object]:
    def call_and_wait() -> None:
        call()
        wait()

    return call_and_wait


def _waited_s(workload: Workload, wait: Callable[[], None]) -> float:
    """Return how long the host waits for the device after a call, on average of a few."""
    waited_s = 0.0
    for _ in range(_WAITS):
        if workload.setup is not None:
            workload.setup()
        workload.call()
        start_s = time.perf_counter()
        wait()
        waited_s += time.perf_counter() - start_s
    return waited_s / _WAITS
