"""What this machine can tell: today's code against itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.measure.pairs import Pair, PairedMeasurement
from pytest_rlperf.measure.worker import Worker, check
from pytest_rlperf.model import PairRecord, Policy, Progress, Result, Selfcheck, Trial, Verdict
from pytest_rlperf.run.live_comparison import UNPLACED_LEAST, judge_records, make_result
from pytest_rlperf.workers.pool import WorkerGroup, WorkerPool
from pytest_rlperf.workers.process import WorkerProcess


class SelfcheckOfTest:
    """Compares one test with itself, unchanged and with known slowdowns; ``show`` is told the step and seconds left.

    Both sides run the same code in workers of their own. The trials of a test share their pairs: what two processes
    differ by shows in all of them alike.
    """

    def __init__(
        self,
        group: WorkerGroup,
        heads: WorkerPool,
        twins: WorkerPool,
        policy: Policy,
        limits: PairLimits,
        progress: Progress,
    ) -> None:
        self._group = group
        self._heads = heads
        self._twins = twins
        self._policy = policy
        self._limits = limits
        self._progress = progress
        self._result: Result | None = None

    def run(self, max_time_s: float, slowdowns: Sequence[float]) -> Selfcheck:
        """Run all trials, each in ``max_time_s`` at most."""
        trials = tuple(self._try(slowdown, max_time_s) for slowdown in (0.0, *slowdowns))
        for pool in (self._heads, self._twins):
            pool.trim()
        assert self._result is not None
        return Selfcheck(self._result, trials)

    def _try(self, slowdown: float, max_time_s: float) -> Trial:
        started_s = time.monotonic()
        verdicts: list[Verdict] = []
        steps: int | None = None if slowdown else 0

        def is_content(records: Sequence[PairRecord], final: bool) -> bool:
            verdict = judge_records(records, self._policy, self._limits, final=final)
            verdicts.extend([] if verdict is None else [verdict])
            return verdict is not None

        def slow_down(pair: Pair) -> None:
            nonlocal steps
            _as_worker(pair.base).slow_down(0.0, 0)
            # Sized once for all pairs, or they would differ by the errors of that.
            steps = _as_worker(pair.head).slow_down(slowdown, steps)

        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        self._progress.begin(f"{self._group.key.rpartition('::')[2]}, {change}")
        measured = PairedMeasurement(
            self._next_pair,
            is_content,
            self._progress,
            least=self._limits.least + 1,  # one to confirm
            least_unplaced=UNPLACED_LEAST + 1,
            max_time_s=max_time_s,
            before_turns=slow_down,
        ).measure()
        if self._result is None:
            self._result = make_result(self._group.key, self._group.called, measured.head)
        return Trial(slowdown, verdicts[-1], measured.pairs, time.monotonic() - started_s)

    def _next_pair(self, index: int) -> Pair:
        """Make the pair with ``index`` ready."""
        started_s = time.monotonic()
        count = max(index + 1, self._limits.least)
        self._progress.show("starting workers")
        heads, twins = self._group.engage((self._heads, count), (self._twins, count))
        check_s = check((heads[index], twins[index]))
        return Pair(twins[index], heads[index], check_s, time.monotonic() - started_s)


def _as_worker(turns: Worker) -> WorkerProcess:
    assert isinstance(turns, WorkerProcess)
    return turns
