"""The self-check: today's code compared with itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.model import Policy, Progress, Result, Selfcheck, Trial, test_name
from pytest_rlperf.run.live_comparison import LivePairs, make_result
from pytest_rlperf.workers.pool import WorkerGroup, WorkerPool


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
        self._heads = heads
        self._others = others
        self._policy = policy
        self._limits = limits
        self._progress = progress
        self._result: Result | None = None

    def run(self, max_time_s: float, slowdowns: Sequence[float]) -> Selfcheck:
        """Run all trials, each in ``max_time_s`` at most."""
        trials = tuple(self._try(slowdown, max_time_s) for slowdown in (0.0, *slowdowns))
        for pool in (self._heads, self._others):
            pool.trim()
        assert self._result is not None
        return Selfcheck(self._result, trials)

    def _try(self, slowdown: float, max_time_s: float) -> Trial:
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        self._progress.begin(f"{test_name(self._group.key)}, {change}")
        pairs = LivePairs(
            self._group, self._others, self._heads, self._policy, self._limits, self._progress, max_time_s
        )
        steps: int | None = None if slowdown else 0
        while pairs.verdict is None:
            base, head = pairs.start()
            pairs.warm_up()
            base.slow_down(0.0, 0)
            # Sized once for all pairs: otherwise pairs would differ by the errors of sizing.
            steps = head.slow_down(slowdown, steps)
            pairs.measure()
        measured = pairs.measured()
        if self._result is None:
            self._result = make_result(self._group.key, self._group.called, measured.head)
        return Trial(slowdown, pairs.verdict, measured.pairs, time.monotonic() - started_s)
