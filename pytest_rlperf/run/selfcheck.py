"""The self-check: today's code compared with itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, TypeAlias

from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.measure.placement import usable_cpus
from pytest_rlperf.model import Policy, Progress, Result, Selfcheck, Trial, test_name
from pytest_rlperf.run.lanes import Lanes
from pytest_rlperf.run.live_comparison import LivePairs, WorkerPair, make_result
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.stems import Stems, WorkerGroup

OpenPairs: TypeAlias = dict[tuple[int, int], WorkerPair]
"""Pairs by their number and that of their loader."""

SLOWDOWNS: tuple[float, ...] = (0.02, 0.03, 0.05, 0.10)


class _SlowedPairs(LivePairs):
    """The pairs of one trial, which all trials of a test share: head's workers do extra work in every round."""

    def __init__(self, stems: Stems, open_pairs: OpenPairs, slowdown: float, *arguments: Any) -> None:
        super().__init__(*arguments)
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
                self.group.at_end(partial(self._stems.let_go, worker))
            self.group.reports_by(head)
            self.group.open([base, head])
        return self._open_pairs[key]

    def adjust(self, pair: WorkerPair) -> None:
        """Slow head down, by as many steps in every pair: otherwise pairs would differ by the errors of sizing."""
        base, head = pair
        base.ask(m.Slow(0.0, 0))
        self._steps = head.ask(m.Slow(self._slowdown, self._steps))


class SelfcheckOfTest:
    """Compares one test with itself, unchanged and with known slowdowns.

    Both sides run the same code, each in workers of its own. The trials of a test share their pairs: a difference
    between two processes shows in all trials alike.
    """

    def __init__(
        self, group: WorkerGroup, stems: Stems, policy: Policy, limits: PairLimits, progress: Progress
    ) -> None:
        self._group = group
        self._stems = stems
        self._policy = policy
        self._limits = limits
        self._progress = progress
        self._lanes = Lanes(1, usable_cpus())
        self._pairs: OpenPairs = {}
        self._result: Result | None = None

    def run(self, max_time_s: float) -> Selfcheck:
        """Run all trials, each in ``max_time_s`` at most."""
        trials = tuple(self._try(slowdown, max_time_s) for slowdown in (0.0, *SLOWDOWNS))
        self._stems.trim()
        assert self._result is not None
        return Selfcheck(self._result, trials)

    def _try(self, slowdown: float, max_time_s: float) -> Trial:
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        self._progress.begin(f"{test_name(self._group.key)}, {change}")
        arguments = (self._group, self._policy, self._limits, self._lanes, self._progress, max_time_s)
        pairs = _SlowedPairs(self._stems, self._pairs, slowdown, *arguments)
        verdict, measured = pairs.run()
        if self._result is None:
            self._result = make_result(self._group.key, self._group.called, measured.head)
        return Trial(slowdown, verdict, measured.pairs, time.monotonic() - started_s)
