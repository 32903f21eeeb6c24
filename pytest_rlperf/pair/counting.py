"""Who counts, and for how long; and the counts of several workers together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from pytest_rlperf import units
from pytest_rlperf.model.measured import Counting, PhaseCounts, Tally
from pytest_rlperf.spawn.contract import Worker, wait_all
from pytest_rlperf.worker.counting import REPETITIONS

_SHARE = 0.1  # of the time a test may be measured, for all of its workers together
_GATING_SHARE = 0.5  # likewise, where counts decide: a gate that is left out lets everything pass
_FIRST_CALL_SHARE = 0.1  # likewise: a first call that took longer leaves no time for another
_LENIENCE = 4.0  # times the first worker's limit for the others, whose calls are as long but for a cold start
_ONCE_WORKERS = 4


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
