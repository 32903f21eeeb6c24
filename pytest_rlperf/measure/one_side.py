"""A test by itself: each worker takes its slices in turns with the reference kernels.

One worker after another, so that they do not disturb each other. Contention on a shared machine lasts seconds to
minutes and slows the kernels' slices as it slows the workload's beside them; what is left differs from process to
process, so each worker gives one figure, and the workers are the sample.

Long calls have no median that would leave out being preempted. Where a process never waits, its wall time beyond its
CPU time is others' doing, and CPU time may stand in for it; so a worker's figures are told by both clocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_rlperf import units
from pytest_rlperf.measure.figures import (
    ONE_THREAD,
    Clock,
    by_cpu,
    by_wall,
    mean_log,
    merged_times,
    trimmed_mean,
    typical_call_s,
    worker_record,
)
from pytest_rlperf.measure.placement import IdleWatch
from pytest_rlperf.measure.slices import SLICE_S, WARM_UP_MOST_S, WARM_UP_S
from pytest_rlperf.measure.worker import AnyWorker, Worker
from pytest_rlperf.model import DeviceTimes, Figures, Phase, Progress, SliceKind, SliceRecord, Warm, WorkerRecord

WORKER_S = 1.5  # measuring time of one worker, after warming up
KERNELS = (SliceKind.INTERPRETER, SliceKind.MEMORY)
BLOCKS_LEAST = 3
TRACED_EVERY = 4  # blocks
SINGLE_CALL_S = 1.0  # from here on a block has one call of the workload, not two


@dataclass(frozen=True)
class _Block:
    """Both kernels, the workload twice, both kernels: too short for the machine to change much in between."""

    before: dict[SliceKind, SliceRecord]
    plain: tuple[SliceRecord, ...]
    after: dict[SliceKind, SliceRecord]

    def log_ratio(self, kernel: SliceKind, clock: Clock) -> float:
        """Return the logarithm of the workload's time over a kernel's."""
        return mean_log(self.plain, clock) - mean_log((self.before[kernel], self.after[kernel]), by_wall)


class WorkerSlices:
    """One worker's slices: blocks, and now and then a traced one, and on a device one at the pace that is not gated."""

    def __init__(
        self, worker: Worker, warm: Warm, share_s: float, clock: Callable[[], float], tick: Callable[[float], None]
    ) -> None:
        __tracebackhide__ = True
        self.worker = worker
        self.warm = warm
        self.traced: list[SliceRecord] = []
        self.other_pace: list[SliceRecord] = []
        self._blocks: list[_Block] = []
        started_s = clock()
        longest_s = 0.0
        while True:
            block_start_s = clock()
            self._blocks.append(self._take_block())
            # From the first block on, so that a short measurement has phases too.
            if len(self._blocks) % TRACED_EVERY == 1 and clock() - started_s < share_s:
                self.traced.append(worker.take(SliceKind.TRACED))
                if self._plain[0].device is not None:
                    self.other_pace.append(worker.take(SliceKind.OTHER_PACE))
            now_s = clock()
            tick(max(0.0, WORKER_S - (now_s - started_s)))
            longest_s = max(longest_s, now_s - block_start_s)
            enough = len(self._blocks) >= BLOCKS_LEAST and now_s - started_s >= WORKER_S
            if enough or now_s - started_s + longest_s > share_s:
                break

    def _take_block(self) -> _Block:
        __tracebackhide__ = True
        before = {kernel: self.worker.take(kernel) for kernel in KERNELS}
        plain = [self.worker.take(SliceKind.PLAIN)]
        if self.warm.call_s < SINGLE_CALL_S:
            plain.append(self.worker.take(SliceKind.PLAIN))
        return _Block(before, tuple(plain), {kernel: self.worker.take(kernel) for kernel in reversed(KERNELS)})

    @property
    def _plain(self) -> list[SliceRecord]:
        return [record for block in self._blocks for record in block.plain]

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
            math.exp(trimmed_mean([block.log_ratio(kernel, clock) for block in self._blocks])) for kernel in KERNELS
        )
        return Figures(typical_call_s(self._plain, clock), interpreter, memory)


WORKERS = 5  # the sample of a stored comparison
_RESTLESS = 1.5  # slowest worker over fastest from which on a note is due
_TIMES = "(--rlperf-max-time, --rlperf-budget)"  # what gives a test its time


@dataclass(frozen=True)
class SideMeasurement:
    """What the workers of one test found."""

    workers: tuple[WorkerRecord, ...]
    phases: tuple[Phase, ...]
    traced_call_s: float
    notes: tuple[str, ...]


def measure_one_side(
    workers: Sequence[AnyWorker],
    max_time_s: float,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    long: bool | None = None,
    count: Callable[[Sequence[AnyWorker]], None] = lambda workers: None,
) -> SideMeasurement:
    """Measure a test that every one of ``workers`` has ready, in about ``max_time_s`` at most.

    ``long`` is whether the stored result used the mean of a slice's rounds, None where there is no stored result.
    ``count`` receives workers as soon as they have checked; the time it takes is not part of ``max_time_s``. Where
    calls are too long for the time, fewer workers measure, down to the one call that checked the component; ``notes``
    of the result report that. Where calls are short, every worker takes at least one block, a tenth of a second or
    two: a comparison with too few workers is worth nothing.
    """
    __tracebackhide__ = True
    started_s = clock()
    first = workers[0]
    progress.show("checking", expected_s(len(workers)))
    first.start_check()
    check_s, items = first.wait_checked()
    started_s += _spent_s(clock, partial(count, [first]))
    left_s = max_time_s - (clock() - started_s)
    if left_s <= 0:
        return _first_call_only(first, check_s, items, max_time_s)
    # Only a second call tells the pace: the first may have compiled, imported or allocated.
    warm = first.warm_up(None, min(WARM_UP_MOST_S, left_s / (3 * len(workers))), long)
    chosen, notes = _affordable(workers, check_s, warm.call_s, max_time_s - (clock() - started_s))
    for worker in chosen[1:]:
        worker.start_check()
    for worker in chosen[1:]:
        worker.wait_checked()
    started_s += _spent_s(clock, partial(count, chosen[1:]))
    turns: list[WorkerSlices] = []
    idle = IdleWatch(clock)
    for index, worker in enumerate(chosen):
        left_s = max_time_s - (clock() - started_s)
        if left_s <= 0 and turns and warm.call_s > SLICE_S:
            notes.append(f"only {index} of {len(workers)} workers measured in a test's {max_time_s:g} s {_TIMES}")
            break
        share_s = left_s / (len(chosen) - index)
        step = f"worker {index + 1} of {len(chosen)}"
        progress.show(step, expected_s(len(chosen) - index))
        if worker is not first:
            warm_up_s = min(WARM_UP_MOST_S, share_s / 3) if warm.call_s < share_s / 4 else 0.0
            warm = worker.warm_up(warm.shape, warm_up_s)
            share_s -= warm.warm_up_s
        with idle.while_measuring([worker], chosen):
            tick = partial(_tick, progress, step, expected_s(len(chosen) - index - 1))
            turns.append(WorkerSlices(worker, warm, share_s, clock, tick))
    traced = [record for turn in turns for record in turn.traced]
    records = tuple(turn.record(idle.share(turn.worker)) for turn in turns)
    notes += _restless(records)
    return SideMeasurement(records, merge_phases(traced), traced_call_s(traced), tuple(notes))


def expected_s(workers: int) -> float:
    """Return about how long ``workers`` take for a test of short calls."""
    return workers * (WORKER_S + WARM_UP_S + 0.1)


def _spent_s(clock: Callable[[], float], work: Callable[[], None]) -> float:
    """Do work that is not measured time, and return how long it took."""
    __tracebackhide__ = True
    started_s = clock()
    work()
    return clock() - started_s


def _tick(progress: Progress, step: str, later_s: float, left_s: float) -> None:
    progress.show(step, later_s + left_s)


def _restless(records: Sequence[WorkerRecord]) -> list[str]:
    """Say so where workers differ so much that nothing can be told from them, with what helps."""
    calls_s = [record.cpu.call_s if record.alone else record.wall.call_s for record in records]
    if max(calls_s) < _RESTLESS * min(calls_s):
        return []
    note = f"workers took {units.seconds(min(calls_s))} to {units.seconds(max(calls_s))} a call: a restless machine"
    if max(record.cpu_share for record in records) > ONE_THREAD:
        note += ", and a workload of several threads; torch.set_num_threads(1) in a conftest.py steadies it"
    return [note]


def _affordable(
    workers: Sequence[AnyWorker], check_s: float, call_s: float, left_s: float
) -> tuple[list[AnyWorker], list[str]]:
    """Return the workers there is time for: the first, which is warm, and for each other a check and a call."""
    each_s = check_s + call_s
    fit = 1 + max(0, int((left_s - call_s) / each_s))
    if fit >= len(workers) or each_s <= SLICE_S:
        return list(workers), []
    note = (
        f"a call takes {units.seconds(call_s)}: --rlperf-max-time leaves time for {fit} of {len(workers)} workers, "
        f"all of them take about {math.ceil(each_s * (len(workers) + 1))} s"
    )
    return list(workers[:fit]), [note]


def _first_call_only(first: Worker, call_s: float, items: float, max_time_s: float) -> SideMeasurement:
    """Make do with the call that checked the component: it used up all the time."""
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
    note = (
        f"the first call took {units.seconds(call_s)}, all of a test's {max_time_s:g} s: it is the only figure {_TIMES}"
    )
    return SideMeasurement((record,), (), 0.0, (note,))


def merge_phases(traced: Sequence[SliceRecord]) -> tuple[Phase, ...]:
    """Return phases per iteration over all slices, weighted by their calls, so that children still add up."""
    calls = sum(record.calls for record in traced)
    merged: dict[str, Phase] = {}
    times: dict[str, list[tuple[float, DeviceTimes]]] = {}
    for record in traced:
        weight = record.calls / calls
        for phase in record.phases:
            zero = Phase(phase.path, 0.0, 0.0, 0.0, phase.device)
            so_far = merged.get(phase.path, zero)
            merged[phase.path] = replace(
                so_far,
                count=so_far.count + weight * phase.count,
                total_s=so_far.total_s + weight * phase.total_s,
                self_s=so_far.self_s + weight * phase.self_s,
            )
            if phase.on_device is not None:
                times.setdefault(phase.path, []).append((weight, phase.on_device))
    return tuple(replace(phase, on_device=merged_times(times.get(path, []))) for path, phase in merged.items())


def traced_call_s(traced: Sequence[SliceRecord]) -> float:
    """Return the mean seconds of a call in traced slices, the whole that phases are shares of."""
    calls = sum(record.calls for record in traced)
    return sum(record.rounds_s for record in traced) / calls if calls else 0.0
