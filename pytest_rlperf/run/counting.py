"""The pairs of a test that count, and their counts together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from pytest_rlperf import wire
from pytest_rlperf.judge.counters import EVERY, compare
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.measured import Counting, FunctionCounts, PhaseCounts, Tally
from pytest_rlperf.options import Config

_SHARE = 0.1  # of the time for measuring a test, for all of its workers together
_GATING_SHARE = 0.5  # the same share if counts decide: a gate that is left out lets everything pass
_FIRST_CALL_SHARE = 0.1  # of the same time: a first call that took longer leaves no time for another
_WORKERS = 6  # that share that time
_PAIRS_MOST = 3  # that count, the later ones only what differs
_LENIENCE = 4.0


def count_order(settings: Config, instruments: Iterable[str] = (), lenience: float = 1.0) -> wire.CountAll | None:
    """Return the order for a test's workers to count; None if counts are not wanted.

    Workers of later pairs may take a few times as long: except for a cold start, their calls take as long.
    """
    if settings.findings["counts"] == OFF:
        return None
    share = _GATING_SHARE if settings.gating_counts else _SHARE
    limit_s = lenience * share * settings.max_time_s / _WORKERS
    return wire.CountAll(limit_s, _FIRST_CALL_SHARE * settings.max_time_s, list(instruments))


class CountingPairs:
    """Decides which pairs of one test count: the first, and if the sides differ two more, which count what differs.

    A count is exact if two processes agree. If both sides agree, one pair has two such processes; otherwise it takes
    more pairs to tell a change in the code from one in the process.

    If a call fails while it is counted, the next pair makes its calls uncounted: a call of a certain number, such as
    the 20th of a process, fails there too if counting is not to blame.
    """

    def __init__(self, settings: Config) -> None:
        self._settings = settings
        self._base: list[Tally] = []
        self._head: list[Tally] = []
        self._pairs = 0
        self._rests = 0  # pairs that make their calls uncounted

    def order(self) -> wire.CountAll | None:
        """Return the order for the next pair; None if it need not count."""
        if self._rests:
            self._rests -= 1
            return None
        if not self._pairs:
            return count_order(self._settings)
        differing = self._differing() if self._pairs < _PAIRS_MOST else []
        return count_order(self._settings, differing, _LENIENCE) if differing else None

    def add(self, tallies: Sequence[Tally | None], *, head_first: bool) -> None:
        """Add what a pair has counted, in the order in which its workers began."""
        head, base = tallies if head_first else tallies[::-1]
        self._base += [base] if base is not None else []
        self._head += [head] if head is not None else []
        found = [tally for tally in tallies if tally is not None]
        if any(tally.has_failed for tally in found):
            self._rests = 1
        elif not all(tally.repetitions for tally in found):
            self._pairs = _PAIRS_MOST  # there is no time for more
        else:
            self._pairs += 1

    def _differing(self) -> list[str]:
        """Return the names of counts that differ between the sides, without those that merely vary."""
        base, head = self.learned()
        return [] if base is None or head is None else sorted({each.name for each in compare(base, head, EVERY)})

    def functions(self) -> tuple[Sequence[FunctionCounts], Sequence[FunctionCounts]]:
        """Return the counts of functions of the code under test, in a call of the base and in one of the head."""
        return self._base[0].functions if self._base else (), self._head[0].functions if self._head else ()

    def learned(self) -> tuple[Counting | None, Counting | None]:
        """Return the base's counts, and the head's."""
        return learn(self._base, self._head), learn(self._head, self._base)


def learn(tallies: Sequence[Tally], others: Sequence[Tally] = ()) -> Counting | None:
    """Return the counts of several workers of one side together; None without any worker.

    A count is exact if it was equal in every repetition of at least two workers. Workers of the other side count among
    them if they have the same value. A count that a repetition lacks is zero there, if its instrument ran.
    """
    if not tallies:
        return None
    own, theirs = _repetitions(tallies), _repetitions(others)
    phases: dict[str, PhaseCounts] = {}
    for place in dict.fromkeys(chain.from_iterable(chain.from_iterable(own))):
        path, name = place
        values, workers = _values(own, place)
        if not values:
            continue
        more, agreeing = _values(theirs, place)
        is_shared = bool(more) and {*more} == {*values}
        phase = phases.setdefault(path, PhaseCounts(path, {}, {}))
        if min(values) == max(values) and workers + (agreeing if is_shared else 0) > 1:
            phase.exact[name] = values[0]
        else:
            phase.inexact[name] = min(values), max(values)
    notes = tuple(dict.fromkeys(note for each in tallies for note in each.notes))
    return Counting(
        tuple(phases.values()), len(own) + len(theirs), max(len(each.repetitions) for each in tallies), notes
    )


def _repetitions(tallies: Sequence[Tally]) -> list[list[dict[tuple[str, str], int]]]:
    """Return the counts of every repetition, grouped by the workers that have counted."""
    return [
        [{(count.path, count.name): count.value for count in counts} for counts in each.repetitions]
        for each in tallies
        if each.repetitions
    ]


def _values(workers: Sequence[Sequence[dict[tuple[str, str], int]]], place: tuple[str, str]) -> tuple[list[int], int]:
    """Return a count in every repetition whose instrument ran, and the number of workers with such a repetition."""
    instrument = place[1].partition(":")[0]
    # An instrument that ran has its own counts of the whole call, even if they are zero.
    ran = [[counts for counts in worker if ("", instrument) in counts] for worker in workers]
    return [counts.get(place, 0) for worker in ran for counts in worker], sum(bool(worker) for worker in ran)
