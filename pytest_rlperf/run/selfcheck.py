"""The self-check: today's code compared with itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.measure.placement import usable_cpus
from pytest_rlperf.model import Policy, Progress, Result, Selfcheck, Trial, test_name
from pytest_rlperf.run.lanes import Lanes, LanesOfTest
from pytest_rlperf.run.live_comparison import LivePairs, WorkerPair, make_result
from pytest_rlperf.workers.pool import WorkerGroup, WorkerPool

SLOWDOWNS: tuple[float, ...] = (0.02, 0.03, 0.05, 0.10)


class _SlowedPairs(LivePairs):
    """The pairs of one trial: head's workers do extra work in every round."""

    def __init__(self, pools: tuple[WorkerPool, WorkerPool], slowdown: float, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pools = pools
        self._slowdown = slowdown
        self._steps: int | None = None if slowdown else 0

    def open(self, indices: Sequence[int]) -> list[WorkerPair]:
        """Return workers that all trials of the test have in common."""
        count = max(indices) + 1
        base, head = self._pools
        # Head's first: the first worker of a group is the one that reports.
        heads, bases = self.group.engage((head, count), (base, count))
        return [(bases[index], heads[index]) for index in indices]

    def adjust(self, pair: WorkerPair) -> None:
        """Slow head down, by as many steps in every pair: otherwise pairs would differ by the errors of sizing."""
        base, head = pair
        base.slow_down(0.0, 0)
        self._steps = head.slow_down(self._slowdown, self._steps)


class SelfcheckOfTest:
    """Compares one test with itself, unchanged and with known slowdowns.

    Both sides run the same code, each in workers of its own. The trials of a test share their pairs: a difference
    between two processes shows in all trials alike.
    """

    def __init__(
        self,
        group: WorkerGroup,
        heads: WorkerPool,
        others: WorkerPool,
        policy: Policy,
        limits: PairLimits,
        progress: Progress,
    ) -> None:
        self._group = group
        self._pools = others, heads
        self._policy = policy
        self._limits = limits
        self._progress = progress
        self._lanes = LanesOfTest(Lanes(1, usable_cpus()))
        self._result: Result | None = None

    def run(self, max_time_s: float) -> Selfcheck:
        """Run all trials, each in ``max_time_s`` at most."""
        trials = tuple(self._try(slowdown, max_time_s) for slowdown in (0.0, *SLOWDOWNS))
        for pool in self._pools:
            pool.trim()
        assert self._result is not None
        return Selfcheck(self._result, trials)

    def _try(self, slowdown: float, max_time_s: float) -> Trial:
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        self._progress.begin(f"{test_name(self._group.key)}, {change}")
        pairs = _SlowedPairs(
            self._pools,
            slowdown,
            self._group,
            self._policy,
            self._limits,
            self._lanes,
            self._progress,
            max_time_s,
        )
        verdict, measured = pairs.run()
        if self._result is None:
            self._result = make_result(self._group.key, self._group.called, measured.head)
        return Trial(slowdown, verdict, measured.pairs, time.monotonic() - started_s)
