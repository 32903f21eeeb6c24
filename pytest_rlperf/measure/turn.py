"""One worker's turn at a test: its slices, and the figures they make."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_rlperf.model import Figures, Shape, SliceKind, SliceRecord, Warm, WorkerRecord

WORKER_S = 1.5  # measuring time of one worker, after warming up
KERNELS = (SliceKind.INTERPRETER, SliceKind.MEMORY)
BLOCKS_LEAST = 3
TRIM = 0.2
_TRACED_EVERY = 4  # blocks
_SINGLE_CALL_S = 1.0  # from here on a block has one call of the workload, not two
ONE_THREAD = 1.02  # CPU time over wall time up to which one thread can have used it
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
class _Block:
    """Both kernels, the workload twice, both kernels: too short for the machine to change much in between."""

    before: dict[SliceKind, SliceRecord]
    plain: tuple[SliceRecord, ...]
    after: dict[SliceKind, SliceRecord]

    def log_ratio(self, kernel: SliceKind, clock: Clock) -> float:
        """Return the logarithm of the workload's time over a kernel's."""
        work = statistics.fmean(math.log(clock(record)) for record in self.plain)
        return work - 0.5 * (math.log(self.before[kernel].call_s) + math.log(self.after[kernel].call_s))


class Turn:
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
        return waiting <= _STRAY * len(plain) and all(record.cpu_s <= ONE_THREAD * record.wall_s for record in plain)


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
