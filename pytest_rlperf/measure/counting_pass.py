"""The counting pass: exact counts of a call, by one worker, and the counts that several workers agree on.

It runs right after the check, when a test's state is the same in every process, and before anything is timed.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import chain

from pytest_rlperf import units
from pytest_rlperf.counters import tally
from pytest_rlperf.devices import clock_for, devices_of
from pytest_rlperf.devices.clocks import Device, HostClock
from pytest_rlperf.devices.jax import JaxDevice, wait_for_all
from pytest_rlperf.measure.tracing_pass import look_for_phases
from pytest_rlperf.measure.worker import Worker, wait_all
from pytest_rlperf.model.counting import Counting, PhaseCounts, Tally
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.probes.torch import quieten_ranges

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in slices
        call_s, traced = look_for_phases(workload, clock_ns)
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
    """

    def __init__(self, max_time_s: float, workers: int, *, is_wanted: bool, gates: bool) -> None:
        self._limit_s = (_GATING_SHARE if gates else _SHARE) * max_time_s / workers
        self._longest_first_s = _FIRST_CALL_SHARE * max_time_s
        self._is_wanted = is_wanted
        self._declined: Tally | None = None
        self._repetitions = REPETITIONS
        self._counted = 0  # workers

    def run(self, workers: Sequence[Worker]) -> None:
        """Have those of ``workers`` count that have not done so; all of them have checked their component."""
        __tracebackhide__ = True
        fresh = [worker for worker in workers if worker.tally is None]
        is_enough = self._repetitions == 1 and self._counted >= _ONCE_WORKERS
        if not fresh or not self._is_wanted or is_enough:
            return
        first = fresh[0]
        if (first.checked_s or 0.0) > self._longest_first_s:
            note = f"not counted: the first call took {units.seconds(first.checked_s or 0.0)}"
            self._declined = Tally((), (f"{note}; a longer --rlperf-max-time leaves time for it",))
        for group in (fresh[:1], fresh[1:]):
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
            if counted.repetitions:
                self._repetitions = len(counted.repetitions)
                self._counted += 1
            elif not self._counted:
                self._declined = counted


def counted_by(workers: Sequence[Worker]) -> Counting | None:
    """Return the counts of ``workers`` together, None where none of them has counted."""
    return learn([worker.tally for worker in workers if worker.tally is not None])
