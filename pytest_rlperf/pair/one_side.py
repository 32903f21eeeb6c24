"""One side by itself: each worker alternates its slices with the reference kernels.

The workers measure one after another, so that they do not disturb each other. Contention on a shared machine lasts
seconds to minutes, and slows the kernels' slices like the workload's beside them. The rest of the variation differs
between processes, so each worker gives one figure, and the workers are the sample.

Long calls have no median that would leave out a preempted call. If a process never waits, other processes took its wall
time beyond its CPU time, and CPU time may stand in for wall time. So a worker's figures exist by both clocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from pytest_rlperf import units
from pytest_rlperf.model.durations import SLICE_S, WARM_UP_MOST_S
from pytest_rlperf.model.figures import Clock, by_cpu, by_wall, mean_log, trimmed_mean, typical_call_s
from pytest_rlperf.model.measured import Figures, SliceKind, SliceRecord, Tally, Usage, Warm, WorkerRecord
from pytest_rlperf.model.phases import merge_phases, traced_call_s, untraced
from pytest_rlperf.pair.counting import count_in
from pytest_rlperf.pair.pace import BlockPace
from pytest_rlperf.pair.processes import Worker, check
from pytest_rlperf.pair.records import rounds_of, worker_record
from pytest_rlperf.pair.watches import IdleWatch
from pytest_rlperf.wire import Alone, MeasureAlone, ReadUsage, Take, WarmUp

WORKER_S = 0.3  # measuring time of one worker, after warming up
KERNELS = (SliceKind.INTERPRETER, SliceKind.MEMORY)
SINGLE_CALL_S = 1.0  # from here on, a block has one call of the workload, not two
_CHECK_S = 1.0  # a first call may load modules for this long; all workers but the first do so at once
_OPTIONS = "(--rlperf-max-time, --rlperf-total-time)"  # these set a test's time


class _Block(msgspec.Struct, frozen=True):
    """Both kernels, the workload twice, both kernels: too short for the machine to change much in between."""

    before: dict[SliceKind, SliceRecord]
    plain: tuple[SliceRecord, ...]
    after: dict[SliceKind, SliceRecord]

    @classmethod
    def take(cls, worker: Worker, *, single: bool) -> _Block:
        """Take a block from a worker, with only one slice of the workload if ``single``."""
        __tracebackhide__ = True
        before = {kernel: worker.ask(Take(kernel)) for kernel in KERNELS}
        plain = tuple(worker.ask(Take(SliceKind.PLAIN)) for _ in range(1 if single else 2))
        return cls(before, plain, {kernel: worker.ask(Take(kernel)) for kernel in reversed(KERNELS)})

    def log_ratio(self, kernel: SliceKind, clock: Clock) -> float:
        """Return the logarithm of the workload's time over a kernel's."""
        return mean_log(self.plain, clock) - mean_log((self.before[kernel], self.after[kernel]), by_wall)


class WorkerSlices(msgspec.Struct, frozen=True):
    """One worker's slices: blocks, traced slices and, on a device, some slices at the pace that is not gated."""

    worker: Worker
    warm: Warm
    blocks: list[_Block] = msgspec.field(default_factory=list)
    traced: list[SliceRecord] = msgspec.field(default_factory=list)
    other_pace: list[SliceRecord] = msgspec.field(default_factory=list)
    usages: list[Usage] = msgspec.field(default_factory=list)

    def take(self, share_s: float, clock: Callable[[], float]) -> None:
        """Take slices for up to ``share_s``, and read what the worker holds between blocks."""
        __tracebackhide__ = True
        pace = BlockPace(share_s, WORKER_S, clock)
        self.usages.append(self.worker.ask(ReadUsage()))
        while pace.begins():
            self.blocks.append(_Block.take(self.worker, single=self.warm.call_s >= SINGLE_CALL_S))
            if pace.traces():
                self.traced.append(self.worker.ask(Take(SliceKind.TRACED)))
                if self.plain[0].device is not None:
                    self.other_pace.append(self.worker.ask(Take(SliceKind.OTHER_PACE)))
            self.usages.append(self.worker.ask(ReadUsage()))

    @property
    def plain(self) -> list[SliceRecord]:
        """All slices of the workload."""
        return [record for block in self.blocks for record in block.plain]

    def record(self, idle_cpu_share: float) -> WorkerRecord:
        """Return this worker's figures."""
        return worker_record(
            self.plain,
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
        return Figures(typical_call_s(self.plain, clock), interpreter, memory)


def measure_one_side(
    workers: Sequence[Worker],
    order: MeasureAlone,
    show: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Alone:
    """Measure a test that all ``workers`` have open at its call, in about ``max_time_s`` at most.

    The order's ``long`` is whether the stored result used the mean of a slice's rounds, None without a stored result.
    Workers count as soon as they have checked, outside ``max_time_s``. If calls are too long for all workers, one
    measures, down to the one call that checked the component; the result's ``notes`` report that. If calls are short,
    every worker takes at least one block, a tenth of a second or two, as a comparison with too few workers is worth
    nothing.
    """
    __tracebackhide__ = True
    max_time_s = order.max_time_s
    deadline_s = clock() + max_time_s
    first = workers[0]
    check([first])
    tallies, counted_s = _counted([first], order, clock)
    deadline_s += counted_s
    left_s = deadline_s - clock()
    if left_s <= 0:
        return _first_call_only(first, max_time_s, tallies)
    # The pace is a second call's: the first may have compiled, imported or allocated.
    warm = first.ask(WarmUp(min(WARM_UP_MOST_S, left_s / (3 * len(workers))), long=order.long))
    others_s = (len(workers) - 1) * (first.checked_s + warm.call_s)
    is_short = warm.call_s <= SLICE_S and first.checked_s <= _CHECK_S
    chosen = workers if is_short or warm.call_s + others_s <= deadline_s - clock() else workers[:1]
    check(chosen)
    if order.count is not None and tallies and tallies[0].repetitions and not tallies[0].has_failed:
        more, counted_s = _counted(chosen[1 : order.count.wanted], order, clock)
        tallies += more
        deadline_s += counted_s
    taken, records = _take_turns(chosen, warm, deadline_s, clock, show)
    few = f"only {len(records)} of {len(workers)} workers measured in a test's {max_time_s:g} s {_OPTIONS}"
    return _together(taken, records, [few] if len(records) < len(workers) else [], tallies)


def _together(
    taken: Sequence[WorkerSlices], records: list[WorkerRecord], notes: list[str], tallies: list[Tally]
) -> Alone:
    """Put the workers' figures together."""
    traced = [record for slices in taken for record in slices.traced]
    return Alone(
        records,
        list(merge_phases(traced)),
        traced_call_s(traced),
        [*notes, *untraced(traced)],
        [slices.usages for slices in taken],
        tallies,
        rounds_of([slices.plain for slices in taken], is_mean=taken[0].warm.shape.long),
    )


def _counted(workers: Sequence[Worker], order: MeasureAlone, clock: Callable[[], float]) -> tuple[list[Tally], float]:
    """Let workers count; return the counts, and the seconds it took, which are not measuring time."""
    __tracebackhide__ = True
    started_s = clock()
    found = count_in(workers, order.count) if order.count is not None and workers else []
    return [tally for tally in found if tally is not None], clock() - started_s


def _take_turns(
    chosen: Sequence[Worker], warm: Warm, deadline_s: float, clock: Callable[[], float], show: Callable[[str], None]
) -> tuple[list[WorkerSlices], list[WorkerRecord]]:
    """Let workers take their slices one after the other, and return each one's slices and figures.

    ``warm`` is the result of warming up the first worker.
    """
    __tracebackhide__ = True
    taken: list[WorkerSlices] = []
    idle = IdleWatch(clock)
    pace_s, calls = warm.call_s, warm.calls
    for index, worker in enumerate(chosen):
        left_s = deadline_s - clock()
        if left_s <= 0 and taken and pace_s > SLICE_S:
            break
        share_s = left_s / (len(chosen) - index)
        show(f"worker {index + 1} of {len(chosen)}")
        if index:
            warm_up_s = min(WARM_UP_MOST_S, share_s / 3) if pace_s < share_s / 4 else 0.0
            warm = worker.ask(WarmUp(warm_up_s, warm.shape, calls=calls if warm_up_s else 0))
            pace_s = min(pace_s, warm.call_s)  # without time to warm up, it is the checked call's
            share_s -= warm.warm_up_s
        taken.append(WorkerSlices(worker, warm))
        idle.begin([other for other in chosen if other is not worker])
        taken[-1].take(share_s, clock)
        idle.end(0.0)
    return taken, [slices.record(idle.share(slices.worker)) for slices in taken]


def _first_call_only(first: Worker, max_time_s: float, tallies: list[Tally]) -> Alone:
    """Use the call that checked the component as the only figure, because it took all the time."""
    assert first.checked is not None
    call_s = first.checked_s
    figures = Figures(call_s, relative=0.0, relative_memory=0.0)
    record = WorkerRecord(
        wall=figures,
        cpu=figures,
        long=True,
        alone=False,
        items_per_call=first.checked.items,
        slices=0,
        calls=1,
        cpu_share=1.0,
        idle_cpu_share=0.0,
        collections=0,
        threads=0,
        seed=first.seed,
    )
    note = f"the first call took {units.seconds(call_s)}, all of a test's {max_time_s:g} s: it is the only figure"
    return Alone([record], [], 0.0, [f"{note} {_OPTIONS}"], [], tallies)
