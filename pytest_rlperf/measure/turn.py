"""One worker's turn at a test: its slices, and the figures they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pytest_rlperf.measure.figures import (
    Clock,
    by_cpu,
    by_wall,
    mean_log,
    trimmed_mean,
    typical_call_s,
    worker_record,
)
from pytest_rlperf.model import Figures, Shape, SliceKind, SliceRecord, Warm, WorkerRecord

WORKER_S = 1.5  # measuring time of one worker, after warming up
KERNELS = (SliceKind.INTERPRETER, SliceKind.MEMORY)
BLOCKS_LEAST = 3
TRACED_EVERY = 4  # blocks
SINGLE_CALL_S = 1.0  # from here on a block has one call of the workload, not two


class Turns(Protocol):
    """Who takes slices when told: a worker process, or a meter in this one."""

    number: int
    seed: int

    def start_check(self) -> None:
        """Begin to run the component once."""

    def wait_checked(self) -> tuple[float, float]:
        """Wait for that; return the seconds it took and the items it processed."""

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
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
        return mean_log(self.plain, clock) - mean_log((self.before[kernel], self.after[kernel]), by_wall)


class Turn:
    """One worker's slices: blocks, and now and then a traced one, and on a device one at the pace that is not gated."""

    def __init__(
        self, worker: Turns, warm: Warm, share_s: float, clock: Callable[[], float], tick: Callable[[float], None]
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
