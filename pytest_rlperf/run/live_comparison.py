"""One test's live comparison: pairs are started, verified and measured until there is a verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from pytest_rlperf.judge.live import UNPLACED_LEAST, PairLimits, carriers, contributions, judge_records
from pytest_rlperf.measure.counting_pass import CountingPass, counted_by
from pytest_rlperf.measure.figures import device_notes
from pytest_rlperf.measure.one_side import SideMeasurement
from pytest_rlperf.measure.pairs import Pair, PairedMeasurement, PairsMeasured, WarmPair
from pytest_rlperf.measure.worker import check
from pytest_rlperf.model import (
    Contribution,
    Live,
    PairSpread,
    Policy,
    Progress,
    Result,
    Status,
    Verdict,
    Work,
    reasons,
)
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.pool import BaseSide, WorkerGroup, WorkerPool
from pytest_rlperf.workers.process import WorkerProcess

COUNTED_PAIRS = 3
_MANY_CALLS_S = 1.0


class OtherWorkError(Exception):
    """A call is not the same work on both sides; ``reason`` has both."""

    def __init__(self, reason: reasons.OtherWork) -> None:
        super().__init__(reason)
        self.reason = reason


class SameCodeError(Exception):
    """Nothing that either side has loaded for this test differs."""


class LivePairs:
    """The live pairs of one test, taken one after the other and judged after each, until there is a ``verdict``.

    For each pair: :meth:`start`, :meth:`warm_up`, :meth:`measure`.
    """

    def __init__(
        self,
        group: WorkerGroup,
        base: WorkerPool,
        head: WorkerPool,
        policy: Policy,
        limits: PairLimits,
        progress: Progress,
        max_time_s: float,
        history: PairSpread | None = None,
    ) -> None:
        self.workers: list[tuple[WorkerProcess, WorkerProcess]] = []  # base's and head's, by pair
        self.verdict: Verdict | None = None
        self._group = group
        self._base = base
        self._head = head
        self._policy = policy
        self._limits = limits
        self._history = history
        self._progress = progress
        # The time is shared out so that a pair that confirms has its part.
        self._measurement = PairedMeasurement(
            progress, least=limits.least + 1, least_unplaced=UNPLACED_LEAST + 1, max_time_s=max_time_s
        )
        self._started_s = 0.0
        self._check_s = 0.0
        self._warm: WarmPair | None = None

    def start(self) -> tuple[WorkerProcess, WorkerProcess]:
        """Return base's and head's worker of the next pair, with the test at its call and the component checked.

        The first call starts all pairs that are needed in any case.
        """
        self._started_s = time.monotonic()
        index = len(self.workers)
        count = max(index + 1, self._limits.least)
        self._progress.show("starting a pair" if index else "starting pairs")
        # Head's first: the first worker of a group is the one that reports.
        heads, bases = self._group.engage((self._head, count), (self._base, count))
        base, head = bases[index], heads[index]
        self._check_s = check((base, head))
        self.workers.append((base, head))
        return base, head

    def warm_up(self) -> None:
        """Warm up the pair that was started."""
        base, head = self.workers[-1]
        pair = Pair(base, head, self._check_s, time.monotonic() - self._started_s)
        self._warm = self._measurement.warm_up(pair)

    def measure(self) -> None:
        """Take the slices of the pair that is warm, and judge all pairs so far."""
        assert self._warm is not None
        self._measurement.take(self._warm)
        self.verdict = self._judge(final=False)
        if self.verdict is None and self._measurement.is_time_up:
            self.verdict = self._judge(final=True)

    def _judge(self, *, final: bool) -> Verdict | None:
        records = self._measurement.records()
        return judge_records(records, self._policy, self._limits, final=final, history=self._history)

    def measured(self) -> PairsMeasured:
        """Return the figures of all pairs."""
        return self._measurement.measured()


class LiveComparison:
    """Compares one test's head with ``base_side``, by time and by the counts of the first pairs' workers."""

    def __init__(
        self,
        group: WorkerGroup,
        base_side: BaseSide,
        policy: Policy,
        limits: PairLimits,
        counting: CountingPass,
        progress: Progress,
        history: PairSpread | None = None,
    ) -> None:
        self._group = group
        self._base_side = base_side
        self._policy = policy
        self._limits = limits
        self._counting = counting
        self._progress = progress
        self._history = history

    def run(self, max_time_s: float) -> tuple[Result, Live]:
        """Return head's result, and the comparison with base.

        SameCodeError where there is nothing to measure, OtherWorkError where it is not the same work on both sides,
        SideError where a side has the other's code.
        """
        pools = self._base_side.base, self._base_side.head
        pairs = LivePairs(self._group, *pools, self._policy, self._limits, self._progress, max_time_s, self._history)
        while pairs.verdict is None:
            base, head = pairs.start()
            self._verify(base, head, is_counted=len(pairs.workers) <= COUNTED_PAIRS)
            pairs.warm_up()
            pairs.measure()
        return self._found(pairs.measured(), pairs.workers, pairs.verdict)

    def _verify(self, base: WorkerProcess, head: WorkerProcess, *, is_counted: bool) -> None:
        """Check that a pair does the same work with code that may differ; have it count where it ``is_counted``."""
        self._refuse_other_work(base.called, head.called)
        may_differ = self._base_side.may_differ(base, head)
        if is_counted:
            self._counting.run((head, base))
        if not may_differ and not self._many_calls_may_differ(base, head):
            raise SameCodeError

    def _found(
        self, measured: PairsMeasured, workers: Sequence[tuple[WorkerProcess, WorkerProcess]], verdict: Verdict
    ) -> tuple[Result, Live]:
        """Return the comparison, from the figures of all pairs and the verdict on their times."""
        sides = self._base_side.sides
        result, base = (
            replace(_at_pace(make_result(self._group.key, self._group.called, side)), counting=counted_by(counted))
            for side, counted in (
                (measured.head, [head for _, head in workers]),
                (measured.base, [base for base, _ in workers]),
            )
        )
        parts = _contributions(measured, base, verdict)
        return result, Live(sides.base.label, sides.head.label, base, measured.pairs, parts, carriers(parts))

    def _many_calls_may_differ(self, base: WorkerProcess, head: WorkerProcess) -> bool:
        """Whether many calls have loaded code that may differ, where the first call has loaded none."""
        for worker in (base, head):
            worker.warm_up(None, _MANY_CALLS_S, kernels=False)
            worker.survey()
        return self._base_side.may_differ(base, head)

    def _refuse_other_work(self, base: m.Called | None, head: m.Called | None) -> None:
        """Raise OtherWorkError where a call is not the same work on both sides."""
        assert base is not None
        assert head is not None
        if base != head:
            sides = self._base_side.sides
            raise OtherWorkError(reasons.OtherWork(sides.head.label, sides.base.label, _work(head), _work(base)))


def make_result(key: str, called: m.Called, measured: SideMeasurement) -> Result:
    """Return the result of a test, made of its workers' figures."""
    return Result(
        nodeid=key,
        component=called.component,
        unit=called.unit,
        items=statistics.fmean(worker.items_per_call for worker in measured.workers),
        workers=measured.workers,
        phases=measured.phases,
        traced_call_s=measured.traced_call_s,
        notes=(*measured.notes, *device_notes(measured.workers)),
    )


def _work(called: m.Called) -> Work:
    return Work(called.component, called.unit, called.items)


def _at_pace(result: Result) -> Result:
    """Return ``result`` with its phases as shares of the figure that is judged.

    Two processes on one CPU, on a machine that others use, are held up within slices; the figure leaves that out.
    """
    if not result.traced_call_s:
        return result
    pace = result.call_s / result.traced_call_s
    phases = tuple(replace(phase, total_s=pace * phase.total_s, self_s=pace * phase.self_s) for phase in result.phases)
    return replace(result, phases=phases, traced_call_s=result.call_s)


def _contributions(measured: PairsMeasured, base: Result, verdict: Verdict) -> tuple[Contribution, ...]:
    """Return the part of every phase in a change, where there is one."""
    if verdict.status not in (Status.SLOWER, Status.FASTER) or verdict.estimate is None:
        return ()
    ratio = verdict.estimate.ratio
    # The estimate is of the length of a call, traced slices are of the share of it that a phase has.
    blocks = [
        (base_shares, {path: ratio * share for path, share in head_shares.items()})
        for base_shares, head_shares in (block.shares() for block in measured.traced)
    ]
    return contributions(blocks, base.call_s, base.call_s * (ratio - 1))
