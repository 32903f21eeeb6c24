"""The self-check: today's code compared with itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from pytest_rlperf.measure.resources import usable_cpus
from pytest_rlperf.model.judged import Selfcheck, Trial
from pytest_rlperf.model.measured import Result, test_name
from pytest_rlperf.run.lanes import Lanes
from pytest_rlperf.run.live_comparison import LivePairs, Measuring, WorkerPair, make_result
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.stems import Stems

OpenPairs: TypeAlias = dict[tuple[int, int], WorkerPair]
"""Pairs by their number and that of their loader."""

SLOWDOWNS: tuple[float, ...] = (0.02, 0.03, 0.05, 0.10)


class _SlowedPairs(LivePairs):
    """The pairs of one trial, which all trials of a test share: head's workers do extra work in every round."""

    def __init__(self, test: Measuring, stems: Stems, open_pairs: OpenPairs, slowdown: float) -> None:
        super().__init__(test)
        self._stems = stems
        self._open_pairs = open_pairs
        self._slowdown = slowdown
        self._steps: int | None = None if slowdown else 0

    def open(self, index: int, loader: int) -> WorkerPair:
        """Return the pair that an earlier trial has opened, or a new one."""
        key = index, loader
        if key not in self._open_pairs:
            base, head = self._stems.workers(*key)
            self._open_pairs[key] = base, head
            for worker in (base, head):
                self.test.group.at_end(partial(self._stems.let_go, worker))
            self.test.group.reports_by(head)
            self.test.group.open([base, head])
        return self._open_pairs[key]

    def adjust(self, pair: WorkerPair) -> None:
        """Slow head down, by as many steps in every pair: otherwise pairs would differ by the errors of sizing."""
        base, head = pair
        base.ask(m.Slow(0.0, 0))
        self._steps = head.ask(m.Slow(self._slowdown, self._steps))


def check_self(test: Measuring, stems: Stems) -> Selfcheck:
    """Compare one test with itself, unchanged and with known slowdowns.

    Both sides run the same code, each in workers of its own. The trials of a test share their pairs: a difference
    between two processes shows in all trials alike.
    """
    pairs: OpenPairs = {}
    test, stems = replace(test, lanes=Lanes(1, usable_cpus())), test.stems(stems)
    result: Result | None = None
    trials: list[Trial] = []
    for slowdown in (0.0, *SLOWDOWNS):
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        test.progress.begin(f"{test_name(test.group.key)}, {change}")
        verdict, measured = _SlowedPairs(test, stems, pairs, slowdown).run()
        result = result or make_result(test.group.key, test.group.called, measured.head)
        trials.append(Trial(slowdown, verdict, measured.pairs, time.monotonic() - started_s))
    stems.trim()
    assert result is not None
    return Selfcheck(result, tuple(trials))
