"""One side by itself: each worker takes its slices by turns with the reference kernels.

The workers measure one after another, so that they do not disturb each other. Contention on a shared machine lasts
seconds to minutes and slows the kernels' slices as it slows the workload's beside them. The rest of the variation
differs from process to process, so each worker gives one figure, and the workers are the sample.

Long calls have no median that would leave out a preempted call. Where a process never waits, its wall time beyond its
CPU time was taken by other processes, and CPU time may stand in for it; so a worker's figures exist by both clocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_rlperf import units
from pytest_rlperf.model.durations import SLICE_S, WARM_UP_AGAIN_S, WARM_UP_MOST_S, WARM_UP_S
from pytest_rlperf.model.figures import Clock, by_cpu, by_wall, mean_log, trimmed_mean, typical_call_s
from pytest_rlperf.model.measured import Figures, Phase, SliceKind, SliceRecord, Usage, Warm, WorkerRecord
from pytest_rlperf.model.notes import Progress
from pytest_rlperf.pair.counting import CountingPass
from pytest_rlperf.pair.figures import merge_phases, traced_call_s, untraced, worker_record
from pytest_rlperf.pair.watches import IdleWatch
from pytest_rlperf.spawn.contract import Worker, check

WORKERS = 3  # the sample of a stored comparison
WORKER_S = 0.3  # measuring time of one worker, after warming up
KERNELS = (SliceKind.INTERPRETER, SliceKind.MEMORY)
BLOCKS_LEAST = 3
TRACED_EVERY = 4  # blocks
SINGLE_CALL_S = 1.0  # from here on a block has one call of the workload, not two
_CHECK_S = 1.0  # a first call may load modules for so long, of which all workers but the first do so at once
_ANSWER_S = 1e-5  # no worker answers an order sooner
_OPTIONS = "(--rlperf-max-time, --rlperf-budget)"  # which set a test's time


@dataclass(frozen=True)
class SideMeasurement:
    """The figures that the workers of one side took of one test, and what each held from time to time."""

    workers: tuple[WorkerRecord, ...]
    phases: tuple[Phase, ...]
    traced_call_s: float
    notes: tuple[str, ...]
    usages: tuple[tuple[Usage, ...], ...] = ()


class BlockPace:
    """Decides when another block is taken, and after which blocks phases are recorded; the same for pairs.

    Blocks end after ``enough_s``, once there are ``least``; or where the next one would not fit ``share_s``. The first
    is taken in any case. ``traced_blocks`` is how long recording phases takes, in blocks.
    """

    def __init__(
        self,
        share_s: float,
        enough_s: float,
        clock: Callable[[], float],
        *,
        least: int = BLOCKS_LEAST,
        traced_blocks: float = 0.0,
    ) -> None:
        self.blocks = 0
        self._share_s = share_s
        self._enough_s = enough_s
        self._least = least
        self._clock = clock
        self._traced_blocks = traced_blocks
        self._longest_s = 0.0
        self._started_s = self._block_started_s = clock()

    @property
    def elapsed_s(self) -> float:
        """The seconds since the first block began."""
        return self._clock() - self._started_s

    def begins(self) -> bool:
        """Whether another block is to be taken; its time counts from this call."""
        if self.blocks:
            elapsed_s = self.elapsed_s
            is_enough = self.blocks >= self._least and elapsed_s >= self._enough_s
            if is_enough or elapsed_s + self._longest_s > self._share_s:
                return False
        self.blocks += 1
        self._block_started_s = self._clock()
        return True

    def traces(self) -> bool:
        """Whether phases are to be recorded after the block just taken: the first one, and every fourth from there on.

        From the first on, so that a short measurement has phases too.
        """
        self._longest_s = max(self._longest_s, self._clock() - self._block_started_s)
        is_due = self.blocks % TRACED_EVERY == 1
        return is_due and self.elapsed_s + self._traced_blocks * self._longest_s <= self._share_s


@dataclass(frozen=True)
class _Block:
    """Both kernels, the workload twice, both kernels: too short for the machine to change much in between."""

    before: dict[SliceKind, SliceRecord]
    plain: tuple[SliceRecord, ...]
    after: dict[SliceKind, SliceRecord]

    @classmethod
    def take(cls, worker: Worker, *, single: bool) -> _Block:
        """Have a worker take one; with one slice of the workload where ``single``."""
        __tracebackhide__ = True
        before = {kernel: worker.take(kernel) for kernel in KERNELS}
        plain = tuple(worker.take(SliceKind.PLAIN) for _ in range(1 if single else 2))
        return cls(before, plain, {kernel: worker.take(kernel) for kernel in reversed(KERNELS)})

    def log_ratio(self, kernel: SliceKind, clock: Clock) -> float:
        """Return the logarithm of the workload's time over a kernel's."""
        return mean_log(self.plain, clock) - mean_log((self.before[kernel], self.after[kernel]), by_wall)


@dataclass(frozen=True)
class WorkerSlices:
    """One worker's slices: blocks, traced ones and, on a device, some at the pace that is not gated."""

    worker: Worker
    warm: Warm
    blocks: list[_Block] = field(default_factory=list)
    traced: list[SliceRecord] = field(default_factory=list)
    other_pace: list[SliceRecord] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)

    def take(self, share_s: float, clock: Callable[[], float]) -> None:
        """Take slices for up to ``share_s``, and read what the worker holds between blocks."""
        __tracebackhide__ = True
        pace = BlockPace(share_s, WORKER_S, clock)
        self.usages.append(self.worker.usage())
        while pace.begins():
            self.blocks.append(_Block.take(self.worker, single=self.warm.call_s >= SINGLE_CALL_S))
            if pace.traces():
                self.traced.append(self.worker.take(SliceKind.TRACED))
                if self._plain[0].device is not None:
                    self.other_pace.append(self.worker.take(SliceKind.OTHER_PACE))
            self.usages.append(self.worker.usage())

    @property
    def _plain(self) -> list[SliceRecord]:
        return [record for block in self.blocks for record in block.plain]

    def record(self, idle_cpu_share: float) -> WorkerRecord:
        """Return this worker's figures."""
        return worker_record(
            self._plain,
            self._figures(by_wall),
            self._figures(by_cpu),
            self.warm,
            seed=self.worker.seed,
            idle_cpu_share=idle_cpu_share,
            other=self.other_pace,
            traced=self.traced,
        )

    def _figures(self, clock: Clock) -> Figures:
        interpreter, memory = (
            math.exp(trimmed_mean([block.log_ratio(kernel, clock) for block in self.blocks])) for kernel in KERNELS
        )
        return Figures(typical_call_s(self._plain, clock), interpreter, memory)


def measure_one_side(
    workers: Sequence[Worker],
    max_time_s: float,
    progress: Progress,
    counting: CountingPass,
    *,
    long: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SideMeasurement:
    """Measure a test that every one of ``workers`` has open at its call, in about ``max_time_s`` at most.

    ``long`` is whether the stored result used the mean of a slice's rounds, None where there is no stored result.
    Workers run ``counting`` as soon as they have checked, outside of ``max_time_s``. Where calls are too long for all
    workers, one measures, down to the one call that checked the component; ``notes`` of the result report that.
    Where calls are short, every worker takes at least one block, a tenth of a second or two: a comparison with too few
    workers is worth nothing.
    """
    __tracebackhide__ = True
    deadline_s = clock() + max_time_s
    first = workers[0]
    progress.show("checking")
    first.start_check()
    check_s, items = first.wait_checked()
    deadline_s += _counted_s(counting, [first], clock)
    left_s = deadline_s - clock()
    if left_s <= 0:
        return _first_call_only(first, check_s, items, max_time_s)
    # The pace is that of a second call: the first may have compiled, imported or allocated.
    warm = first.warm_up(None, min(WARM_UP_MOST_S, left_s / (3 * len(workers))), long)
    others_s = (len(workers) - 1) * (check_s + warm.call_s)
    is_short = warm.call_s <= SLICE_S and check_s <= _CHECK_S
    chosen = workers if is_short or warm.call_s + others_s <= deadline_s - clock() else workers[:1]
    check(chosen)
    deadline_s += _counted_s(counting, chosen, clock)
    taken, records = _take_turns(chosen, warm, deadline_s, clock, progress)
    traced = [record for slices in taken for record in slices.traced]
    few = f"only {len(records)} of {len(workers)} workers measured in a test's {max_time_s:g} s {_OPTIONS}"
    notes = (*([few] if len(records) < len(workers) else ()), *untraced(traced))
    usages = tuple(tuple(slices.usages) for slices in taken)
    return SideMeasurement(tuple(records), merge_phases(traced), traced_call_s(traced), notes, usages)


def _counted_s(counting: CountingPass, workers: Sequence[Worker], clock: Callable[[], float]) -> float:
    """Have workers count, and return the seconds that it took, which are none of the time to measure."""
    __tracebackhide__ = True
    started_s = clock()
    counting.run(workers)
    return clock() - started_s


def _take_turns(
    chosen: Sequence[Worker], warm: Warm, deadline_s: float, clock: Callable[[], float], progress: Progress
) -> tuple[list[WorkerSlices], list[WorkerRecord]]:
    """Have workers take their slices one after the other, and return each one's slices and figures.

    ``warm`` is what warming up the first one gave.
    """
    __tracebackhide__ = True
    taken: list[WorkerSlices] = []
    idle = IdleWatch(clock)
    pace_s = warm.call_s
    most_s = WARM_UP_AGAIN_S if warm.warm_up_s < 2 * WARM_UP_S else WARM_UP_MOST_S  # what settled soon does so again
    for index, worker in enumerate(chosen):
        left_s = deadline_s - clock()
        if left_s <= 0 and taken and pace_s > SLICE_S:
            break
        share_s = left_s / (len(chosen) - index)
        progress.show(f"worker {index + 1} of {len(chosen)}")
        if index:
            warm_up_s = min(most_s, share_s / 3) if pace_s < share_s / 4 else 0.0
            warm = worker.warm_up(warm.shape, warm_up_s)
            pace_s = min(pace_s, warm.call_s)  # without time to warm up it is that of the checked call
            share_s -= warm.warm_up_s
        taken.append(WorkerSlices(worker, warm))
        idle.begin([other for other in chosen if other is not worker])
        taken[-1].take(share_s, clock)
        idle.end(0.0)
    return taken, [slices.record(idle.share(slices.worker)) for slices in taken]


def workers_needed(max_time_s: float) -> int:
    """Return how many workers a test needs: one where its checked call takes all of its time, however short it is."""
    return WORKERS if max_time_s > _ANSWER_S else 1


def _first_call_only(first: Worker, call_s: float, items: float, max_time_s: float) -> SideMeasurement:
    """Make do with the call that checked the component: it took all the time."""
    figures = Figures(call_s, relative=0.0, relative_memory=0.0)
    record = WorkerRecord(
        wall=figures,
        cpu=figures,
        long=True,
        alone=False,
        items_per_call=items,
        slices=0,
        calls=1,
        cpu_share=1.0,
        idle_cpu_share=0.0,
        collections=0,
        threads=0,
        seed=first.seed,
    )
    note = f"the first call took {units.seconds(call_s)}, all of a test's {max_time_s:g} s: it is the only figure"
    return SideMeasurement((record,), (), 0.0, (f"{note} {_OPTIONS}",))
