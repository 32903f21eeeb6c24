"""Who counts: the workers of one test, each once, right after their check, if there is time for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_rlperf import units
from pytest_rlperf.measure.counters import REPETITIONS, learn
from pytest_rlperf.measure.crew import wait_all
from pytest_rlperf.model import Counting, Tally

_SHARE = 0.15  # of the time a test may be measured, for all of its workers together
_GATING_SHARE = 0.5  # likewise, where counts decide: a gate that is left out lets everything pass
_FIRST_CALL_SHARE = 0.1  # likewise: a first call that took longer leaves no time for another
_LENIENCE = 4.0  # times the first worker's limit for the others, whose calls are as long but for a cold start


class Counter(Protocol):
    """Who counts when told: a worker process, or a meter in this one."""

    tally: Tally | None

    @property
    def checked_s(self) -> float | None:
        """The seconds that the first call took, check included."""

    def start_count(self, repetitions: int, limit_s: float) -> None:
        """Begin to count what a call does."""

    def wait_counted(self) -> Tally:
        """Wait for that, and return it."""


class Census:
    """Has workers of one test count, in about 15 % of ``max_time_s`` for ``workers`` of them.

    It takes up to half of that time where what they count ``gates``. The first one tells for all: where it finds that
    calls are too long for that, no other is asked. Where nothing ``is_wanted``, none is.
    """

    def __init__(self, max_time_s: float, workers: int, *, is_wanted: bool, gates: bool) -> None:
        self._limit_s = (_GATING_SHARE if gates else _SHARE) * max_time_s / workers
        self._longest_first_s = _FIRST_CALL_SHARE * max_time_s
        self._is_wanted = is_wanted
        self._declined: Tally | None = None
        self._has_counted = False

    def take(self, workers: Sequence[Counter]) -> None:
        """Have those of ``workers`` count that have not yet done it; all have checked their component."""
        __tracebackhide__ = True
        fresh = [worker for worker in workers if worker.tally is None]
        if not fresh or not self._is_wanted:
            return
        first = fresh[0]
        if (first.checked_s or 0.0) > self._longest_first_s:
            note = f"not counted: the first call took {units.seconds(first.checked_s or 0.0)}"
            self._declined = Tally((), (f"{note}; a longer --rlperf-max-time leaves time for it",))
        for group in (fresh[:1], fresh[1:]):
            self._ask(group)

    def _ask(self, workers: Sequence[Counter]) -> None:
        __tracebackhide__ = True
        if self._declined is not None:
            for worker in workers:
                worker.tally = self._declined
            return
        for worker in workers:
            worker.start_count(REPETITIONS, self._limit_s * (_LENIENCE if self._has_counted else 1.0))
        for worker, tally in zip(workers, wait_all(workers, lambda worker: worker.wait_counted()), strict=True):
            worker.tally = tally
            if tally.repetitions:
                self._has_counted = True
            elif not self._has_counted:
                self._declined = tally


def counted_by(workers: Sequence[Counter]) -> Counting | None:
    """Return what is learnt from those of ``workers`` that were asked to count."""
    return learn([worker.tally for worker in workers if worker.tally is not None])
