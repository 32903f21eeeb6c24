"""A live comparison: pairs of processes, one of each side, take slices in turns.

Contention on a shared machine lasts seconds to minutes; what alternates within tens of milliseconds it slows alike.
What is left belongs to the pair of processes (memory layout, hash seeds) and shrinks with more pairs only, so a pair
gives one figure however long it runs, and pairs are added until the rule that was given is content.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_rlperf.measure.figures import (
    Clock,
    by_cpu,
    by_wall,
    mean_log,
    trimmed_mean,
    typical_call_s,
    worker_record,
)
from pytest_rlperf.measure.one_side import (
    BLOCKS_LEAST,
    SINGLE_CALL_S,
    TRACED_EVERY,
    SideMeasurement,
    merge_phases,
    traced_call_s,
)
from pytest_rlperf.measure.placement import IdleWatch, usable_cpus
from pytest_rlperf.measure.slices import WARM_UP_MOST_S
from pytest_rlperf.measure.worker import Worker
from pytest_rlperf.model import Figures, PairRecord, Phase, Progress, Shape, SliceKind, SliceRecord, Warm, WorkerRecord

PAIR_S = 1.2  # measuring time of one pair, after warming up: from here on only more pairs tell more
_WARM_UP_SHARE = 6  # part of a pair's time that one side may warm up for


class Pair(NamedTuple):
    """A worker of each side that has the test ready and its component checked, in seconds of ``check_s`` a call."""

    base: Worker
    head: Worker
    check_s: float
    setup_s: float


@dataclass(frozen=True)
class Block:
    """Slices in the order ABBA or BAAB, too short for the machine to change much in between."""

    base: tuple[SliceRecord, ...]
    head: tuple[SliceRecord, ...]

    @classmethod
    def take(cls, pair: Pair, kind: SliceKind, *, swapped: bool, single: bool) -> Block:
        """Have both workers take their turns: the head's first where ``swapped``, one each where ``single``."""
        __tracebackhide__ = True
        order = [pair.head, pair.base] if swapped else [pair.base, pair.head]
        if not single:
            order += reversed(order)
        taken = [(worker is pair.base, worker.take(kind)) for worker in order]
        return cls(
            base=tuple(record for is_base, record in taken if is_base),
            head=tuple(record for is_base, record in taken if not is_base),
        )

    def log_ratio(self, clock: Clock) -> float:
        """Return the logarithm of head's time over base's."""
        return mean_log(self.head, clock) - mean_log(self.base, clock)

    def shares(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return each side's phases: the time in none of their children, as shares of the side's own call.

        What holds up a slice holds up any of its phases, so shares stand where times do not.
        """
        base, head = (
            {phase.path: _own_s(phase) / traced_call_s(side) for phase in merge_phases(side)}
            for side in (self.base, self.head)
        )
        return base, head


def slices_of(blocks: Sequence[Block], side: str) -> list[SliceRecord]:
    """Return the slices of one side, ``"base"`` or ``"head"``, of several blocks."""
    return [record for block in blocks for record in getattr(block, side)]


def _own_s(phase: Phase) -> float:
    """Return the time in no child phase, by the device's clock where that tells it: the host only launches."""
    times = phase.on_device
    return phase.self_s if times is None or times.self_s is None else times.self_s


@dataclass(frozen=True)
class PairsMeasured:
    """What the pairs found: by pair, by side with phases as shares of a call, and in traced turns."""

    pairs: tuple[PairRecord, ...]
    base: SideMeasurement
    head: SideMeasurement
    traced: tuple[Block, ...]


def typical_shares(slices: Sequence[SliceRecord]) -> tuple[Phase, ...]:
    """Return every phase's median share of its slice's call, which one stall does not move as it would a mean."""
    counted = merge_phases(slices)
    shares = [{phase.path: phase.total_s / traced_call_s([record]) for phase in record.phases} for record in slices]
    totals = {phase.path: statistics.median(each.get(phase.path, 0.0) for each in shares) for phase in counted}

    def own(path: str) -> float:
        return totals[path] - sum(total for other, total in totals.items() if other.rpartition("/")[0] == path)

    return tuple(replace(phase, total_s=totals[phase.path], self_s=max(0.0, own(phase.path))) for phase in counted)


Placer = Callable[[int], int | None]
"""Chooses the CPU for both workers of the pair with an index, None to leave it to the kernel."""


def one_cpu_per_pair(index: int) -> int | None:
    """Return one CPU for both sides: the machine's in turn, as one may be slower than another for a while."""
    cpus = usable_cpus()
    return cpus[index % len(cpus)] if cpus else None


class _PairSlices:
    """One pair's blocks, and now and then a traced one."""

    def __init__(
        self, pair: Pair, warm: tuple[Warm, Warm], share_s: float, clock: Callable[[], float], *, swapped: bool
    ) -> None:
        __tracebackhide__ = True
        self.pair = pair
        self.warm = warm
        self.blocks: list[Block] = []
        self.traced: list[Block] = []
        single = max(side.call_s for side in warm) >= SINGLE_CALL_S
        started_s = clock()
        longest_s = 0.0
        while True:
            block_start_s = clock()
            swapped = not swapped
            self.blocks.append(Block.take(pair, SliceKind.PLAIN, swapped=swapped, single=single))
            longest_s = max(longest_s, clock() - block_start_s)
            if len(self.blocks) % TRACED_EVERY == 1 and clock() - started_s + longest_s <= share_s:
                first = swapped == (len(self.traced) % 2 == 0)  # not always the side that begins every fourth block
                self.traced.append(Block.take(pair, SliceKind.TRACED, swapped=first, single=single))
            now_s = clock()
            enough = len(self.blocks) >= BLOCKS_LEAST and now_s - started_s >= PAIR_S
            if enough or now_s - started_s + longest_s > share_s:
                break

    def log_ratio(self, clock: Clock) -> float:
        """Return the pair's one figure."""
        return trimmed_mean([block.log_ratio(clock) for block in self.blocks])

    def workers(self, idle: IdleWatch) -> tuple[WorkerRecord, WorkerRecord]:
        """Return what either side's worker took by itself."""
        base, head = (self._worker(side, warm, idle) for side, warm in zip(("base", "head"), self.warm, strict=True))
        return base, head

    def _worker(self, side: str, warm: Warm, idle: IdleWatch) -> WorkerRecord:
        worker: Worker = getattr(self.pair, side)
        plain, traced = slices_of(self.blocks, side), slices_of(self.traced, side)
        wall, cpu = (Figures(typical_call_s(plain, clock), 0.0, 0.0) for clock in (by_wall, by_cpu))
        return worker_record(plain, wall, cpu, warm, seed=worker.seed, idle_cpu_share=idle.share(worker), traced=traced)

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that slices ended on."""
        slices = (record for block in self.blocks for record in (*block.base, *block.head))
        return tuple(sorted({record.cpu for record in slices}))


class PairedMeasurement:
    """Measures one test by live pairs, in about ``max_time_s`` beside what starting workers and setting up take.

    ``next_pair`` makes the pair with an index ready. ``is_content`` is told all pairs so far, and whether there can be
    no more of them; the last pair is the first it is content with. ``least`` is how many the time is shared out among,
    ``least_unplaced`` where the kernel places workers.
    ``before_turns`` is given each pair once it is warm.
    """

    def __init__(
        self,
        next_pair: Callable[[int], Pair],
        is_content: Callable[[Sequence[PairRecord], bool], bool],
        progress: Progress,
        *,
        least: int,
        least_unplaced: int = 0,
        max_time_s: float,
        before_turns: Callable[[Pair], None] = lambda pair: None,
        placer: Placer = one_cpu_per_pair,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._next_pair = next_pair
        self._is_content = is_content
        self._progress = progress
        self._least = least
        self._least_unplaced = least_unplaced
        self._left_s = max_time_s
        self._before_turns = before_turns
        self._placer = placer
        self._clock = clock
        self._idle = IdleWatch(clock)
        self._turns: list[_PairSlices] = []
        self._costs: list[tuple[float, float]] = []
        self._placed: list[int | None] = []
        self._shape: Shape | None = None
        self._call_s = 0.0

    def measure(self) -> PairsMeasured:
        """Take pairs until the rule is content or the time is up."""
        __tracebackhide__ = True
        while True:
            self._take_pair()
            if self._is_content(self.records(), False):
                break
            if self._left_s <= 0:
                self._is_content(self.records(), True)
                break
        records = self.records()
        traced = tuple(block for turn in self._turns for block in turn.traced)
        base, head = (
            SideMeasurement(
                tuple(getattr(record, side) for record in records),
                typical_shares(slices),
                1.0 if slices else 0.0,
                (),
            )
            for side, slices in ((side, slices_of(traced, side)) for side in ("base", "head"))
        )
        return PairsMeasured(tuple(records), base, head, traced)

    def _take_pair(self) -> None:
        __tracebackhide__ = True
        index = len(self._turns)
        pair = self._next_pair(index)
        started_s = self._clock()
        missing = max(1, self._least - index)
        share_s = self._left_s / missing
        self._progress.show(f"pair {index + 1}", missing * (PAIR_S + 0.8))
        warm = self._warm_up(pair, share_s)
        cpu = self._placer(index) if all(side.single for side in warm) else None
        if cpu is None and self._least < self._least_unplaced:
            self._least = self._least_unplaced
            share_s = self._left_s / max(1, self._least - index)
        if cpu is not None:
            for worker in (pair.base, pair.head):
                worker.place([cpu])
        self._before_turns(pair)
        waiting = [worker for turn in self._turns for worker in (turn.pair.base, turn.pair.head)]
        with self._idle.while_measuring([], waiting):
            left_s = share_s - (self._clock() - started_s)
            self._turns.append(_PairSlices(pair, warm, left_s, self._clock, swapped=index % 2 == 1))
        self._placed.append(cpu)
        self._costs.append((pair.setup_s, self._clock() - started_s))
        self._left_s -= self._clock() - started_s

    def _warm_up(self, pair: Pair, share_s: float) -> tuple[Warm, Warm]:
        """Warm up both sides, one after the other; the first head worker sizes the slices of all.

        Only a second call tells the pace: the first may have compiled, imported or allocated.
        """
        __tracebackhide__ = True
        part_s = share_s / _WARM_UP_SHARE
        most_s = min(WARM_UP_MOST_S, part_s)
        affordable = pair.check_s < share_s / 2 if self._shape is None else self._call_s < part_s
        head = pair.head.warm_up(self._shape, most_s if affordable else 0.0, kernels=False)
        self._shape, self._call_s = head.shape, head.call_s
        return pair.base.warm_up(self._shape, most_s if head.call_s < part_s else 0.0, kernels=False), head

    def records(self) -> list[PairRecord]:
        """Return what every pair so far found."""
        return [
            self._record(turn, placed, cost)
            for turn, placed, cost in zip(self._turns, self._placed, self._costs, strict=True)
        ]

    def _record(self, turn: _PairSlices, placed: int | None, cost: tuple[float, float]) -> PairRecord:
        base, head = turn.workers(self._idle)
        return PairRecord(
            wall_log_ratio=turn.log_ratio(by_wall),
            cpu_log_ratio=turn.log_ratio(by_cpu),
            alone=base.alone and head.alone,
            blocks=len(turn.blocks),
            base=base,
            head=head,
            placed=placed,
            cpus=turn.cpus,
            setup_s=cost[0],
            seconds=cost[1],
        )
