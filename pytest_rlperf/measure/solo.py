"""A test by itself: each worker takes its slices in turns with the reference kernels.

One worker after another, so that they do not disturb each other. Contention on a shared machine lasts seconds to
minutes and slows the kernels' slices as it slows the workload's beside them; what is left differs from process to
process, so each worker gives one figure, and the workers are the sample.

Long calls have no median that would leave out being preempted. Where a process never waits, its wall time beyond its
CPU time is others' doing, and CPU time may stand in for it; so a worker's figures are told by both clocks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from pytest_rlperf.measure.slices import SLICE_S, WARM_UP_MOST_S, WARM_UP_S
from pytest_rlperf.model import Figures, Phase, Shape, SliceKind, SliceRecord, Warm, WorkerRecord

WORKERS = 5  # the sample of a stored comparison
WORKER_S = 1.5  # measuring time of one worker, after warming up
KERNELS = (SliceKind.INTERPRETER, SliceKind.MEMORY)
BLOCKS_LEAST = 3
TRIM = 0.2
_TRACED_EVERY = 4  # blocks
_SINGLE_CALL_S = 1.0  # from here on a block has one call of the workload, not two
_ONE_THREAD = 1.02  # CPU time over wall time up to which one thread can have used it
_STRAY = 0.1  # share of slices in which something else may have made the process wait
_UNDISTURBED = 0.97  # CPU time over wall time from which on a slice was not held up


Clock = Callable[[SliceRecord], float]


class Turns(Protocol):
    """Who takes slices when told: a worker process, or a meter in this one."""

    number: int
    seed: int

    def start_check(self) -> None:
        """Begin to run the component once."""

    def wait_checked(self) -> tuple[float, float]:
        """Wait for that; return the seconds it took and the items it processed."""

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None) -> Warm:
        """Warm up."""

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take one slice."""

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, children included."""


@dataclass(frozen=True)
class Solo:
    """What the workers of one test found."""

    workers: tuple[WorkerRecord, ...]
    phases: tuple[Phase, ...]
    traced_call_s: float
    notes: tuple[str, ...]


def measure_solo(
    workers: Sequence[Turns],
    max_time_s: float,
    progress: Callable[[str, float], None],
    clock: Callable[[], float] = time.monotonic,
    long: bool | None = None,
) -> Solo:
    """Measure a test that every one of ``workers`` has ready, in about ``max_time_s`` at most.

    ``long`` says which figure the stored result has, if there is one. ``progress`` is told what goes on and how many
    seconds are left. Where calls are too long for the time, fewer workers measure, down to the one call that checked
    the component; ``notes`` say so. Where they are short, every worker takes one block at least, a tenth of a second
    or two: a comparison with too few workers is worth nothing.
    """
    __tracebackhide__ = True
    started_s = clock()
    first = workers[0]
    progress("checking", expected_s(len(workers)))
    first.start_check()
    check_s, items = first.wait_checked()
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
    turns: list[_Turn] = []
    idle = _IdleWatch(chosen, clock)
    for index, worker in enumerate(chosen):
        left_s = max_time_s - (clock() - started_s)
        if left_s <= 0 and turns and warm.call_s > SLICE_S:
            notes.append(f"only {index} of {len(workers)} workers measured within --rlperf-max-time={max_time_s:g}")
            break
        share_s = left_s / (len(chosen) - index)
        step = f"worker {index + 1} of {len(chosen)}"
        progress(step, expected_s(len(chosen) - index))
        if worker is not first:
            warm_up_s = min(WARM_UP_MOST_S, share_s / 3) if warm.call_s < share_s / 4 else 0.0
            warm = worker.warm_up(warm.shape, warm_up_s)
            share_s -= warm.warm_up_s
        with idle.while_measuring(worker):
            tick = partial(_tick, progress, step, expected_s(len(chosen) - index - 1))
            turns.append(_Turn(worker, warm, share_s, clock, tick))
    traced = [record for turn in turns for record in turn.traced]
    records = tuple(turn.record(idle.share(turn.worker)) for turn in turns)
    return Solo(records, merge_phases(traced), _traced_call_s(traced), tuple(notes))


def expected_s(workers: int) -> float:
    """Return about how long ``workers`` take for a test of short calls."""
    return workers * (WORKER_S + WARM_UP_S + 0.1)


def _tick(progress: Callable[[str, float], None], step: str, later_s: float, left_s: float) -> None:
    progress(step, later_s + left_s)


class _IdleWatch:
    """Tells who burns CPU time while it is another worker's turn."""

    def __init__(self, workers: Sequence[Turns], clock: Callable[[], float]) -> None:
        self._workers = workers
        self._clock = clock
        self._used_s = [0.0] * len(workers)
        self._watched_s = [0.0] * len(workers)

    @contextmanager
    def while_measuring(self, measuring: Turns) -> Iterator[None]:
        """Watch all workers but ``measuring`` during the body."""
        started_s = self._clock()
        before_s = [worker.cpu_s() for worker in self._workers]
        yield
        watched_s = self._clock() - started_s
        for index, worker in enumerate(self._workers):
            if worker is not measuring:
                self._used_s[index] += worker.cpu_s() - before_s[index]
                self._watched_s[index] += watched_s

    def share(self, worker: Turns) -> float:
        """Return the CPU time ``worker`` used while watched, over the time it was watched."""
        index = next(index for index, other in enumerate(self._workers) if other is worker)
        return self._used_s[index] / self._watched_s[index] if self._watched_s[index] else 0.0


def _affordable(
    workers: Sequence[Turns], check_s: float, call_s: float, left_s: float
) -> tuple[list[Turns], list[str]]:
    """Return the workers there is time for: the first, which is warm, and for each other a check and a call."""
    each_s = check_s + call_s
    fit = 1 + max(0, int((left_s - call_s) / each_s))
    if fit >= len(workers) or each_s <= SLICE_S:
        return list(workers), []
    note = (
        f"a call takes {call_s:.3g} s: {fit} of {len(workers)} workers fit --rlperf-max-time; "
        f"all would need about {math.ceil(each_s * (len(workers) + 1))}"
    )
    return list(workers[:fit]), [note]


def _first_call_only(first: Turns, call_s: float, items: float, max_time_s: float) -> Solo:
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
    note = f"the first call took {call_s:.3g} s, all of --rlperf-max-time={max_time_s:g}: it is all there is"
    return Solo((record,), (), 0.0, (note,))


@dataclass(frozen=True)
class _Block:
    """Both kernels, the workload twice, both kernels: too short for the machine to change much in between."""

    before: dict[SliceKind, SliceRecord]
    plain: tuple[SliceRecord, ...]
    after: dict[SliceKind, SliceRecord]

    def log_ratio(self, kernel: SliceKind, clock: Clock) -> float:
        """Return the logarithm of the workload's time over a kernel's."""
        work = statistics.fmean(math.log(clock(record)) for record in self.plain)
        return work - 0.5 * (math.log(self.before[kernel].call_s) + math.log(self.after[kernel].call_s))


class _Turn:
    """One worker's slices: blocks, and now and then a traced slice."""

    def __init__(
        self, worker: Turns, warm: Warm, share_s: float, clock: Callable[[], float], tick: Callable[[float], None]
    ) -> None:
        __tracebackhide__ = True
        self.worker = worker
        self.warm = warm
        self.traced: list[SliceRecord] = []
        self._blocks: list[_Block] = []
        started_s = clock()
        longest_s = 0.0
        while True:
            block_start_s = clock()
            self._blocks.append(self._take_block())
            # From the first block on, so that a short measurement has phases too.
            if len(self._blocks) % _TRACED_EVERY == 1 and clock() - started_s < share_s:
                self.traced.append(worker.take(SliceKind.TRACED))
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
        if self.warm.call_s < _SINGLE_CALL_S:
            plain.append(self.worker.take(SliceKind.PLAIN))
        return _Block(before, tuple(plain), {kernel: self.worker.take(kernel) for kernel in reversed(KERNELS)})

    @property
    def _plain(self) -> list[SliceRecord]:
        return [record for block in self._blocks for record in block.plain]

    def record(self, idle_cpu_share: float) -> WorkerRecord:
        """Return this worker's figures."""
        plain = self._plain
        calls = sum(record.calls for record in plain)
        return WorkerRecord(
            wall=self._figures(_wall_s),
            cpu=self._figures(_cpu_s),
            long=self.warm.shape.long,
            alone=self.warm.shape.long and self._never_waits(),
            items_per_call=sum(record.items for record in plain) / calls,
            slices=len(plain),
            calls=calls,
            cpu_share=sum(record.cpu_s for record in plain) / sum(record.wall_s for record in plain),
            idle_cpu_share=idle_cpu_share,
            collections=sum(record.collections for record in plain),
            threads=self.warm.threads,
            seed=self.worker.seed,
        )

    def _figures(self, clock: Clock) -> Figures:
        plain = self._plain
        undisturbed = [record for record in plain if record.cpu_s >= _UNDISTURBED * record.wall_s]
        steady = undisturbed if len(undisturbed) >= max(3, len(plain) // 4) else plain
        interpreter, memory = (
            math.exp(trimmed_mean([block.log_ratio(kernel, clock) for block in self._blocks])) for kernel in KERNELS
        )
        return Figures(statistics.median(clock(record) for record in steady), interpreter, memory)

    def _never_waits(self) -> bool:
        """Whether the process had one busy thread, and but for a stray slice never gave up its CPU by itself."""
        plain = self._plain
        waiting = sum(record.waits > 0 for record in plain)
        return waiting <= _STRAY * len(plain) and all(record.cpu_s <= _ONE_THREAD * record.wall_s for record in plain)


def _wall_s(record: SliceRecord) -> float:
    """Return a slice's seconds per call."""
    return record.call_s


def _cpu_s(record: SliceRecord) -> float:
    """Return a slice's CPU seconds per call, as many as the wall's clock saw at most, and more than none."""
    return min(record.call_s, max(record.cpu_s / record.calls, 1e-12))


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean of ``values`` without the lowest and the highest fifth of them."""
    cut = int(TRIM * len(values))
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def merge_phases(traced: Sequence[SliceRecord]) -> tuple[Phase, ...]:
    """Return phases per iteration over all slices, weighted by their calls, so that children still add up."""
    calls = sum(record.calls for record in traced)
    merged: dict[str, Phase] = {}
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
    return tuple(merged.values())


def _traced_call_s(traced: Sequence[SliceRecord]) -> float:
    """Return the mean seconds of a call in traced slices, the whole that phases are shares of."""
    calls = sum(record.calls for record in traced)
    return sum(record.rounds_s for record in traced) / calls if calls else 0.0
