"""A live comparison: pairs of processes, one of each side, take slices by turns.

Contention on a shared machine lasts seconds to minutes, and slows alike what alternates within tens of milliseconds.
The rest of the variation belongs to the pair of processes (memory layout, hash seeds) and shrinks with more pairs only.
So a pair gives one figure however long it runs, and pairs are added until the caller has enough of them.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pytest_rlperf.model.durations import WARM_UP_AGAIN_S, WARM_UP_MOST_S, WARM_UP_S
from pytest_rlperf.model.figures import Clock, by_cpu, by_wall, trimmed_mean, typical_call_s
from pytest_rlperf.model.live import PAIR_BLOCKS, OtherWork, PairRecord, PhaseRatio, Reading
from pytest_rlperf.model.measured import Figures, Phase, Shape, SliceKind, SliceRecord, Usage, Warm, WorkerRecord
from pytest_rlperf.model.notes import Progress
from pytest_rlperf.pair.figures import merge_phases, traced_call_s, untraced, worker_record
from pytest_rlperf.pair.one_side import BlockPace, SideMeasurement
from pytest_rlperf.pair.watches import IdleWatch, OtherWorkWatch
from pytest_rlperf.spawn.contract import Worker

PAIR_S = 1.2  # measuring time of one pair, after warming up: from here on only more pairs narrow the interval
PAIR_LEAST_S = 0.4  # likewise, where its own error is small already: what disturbs a machine lasts for longer
_WARM_UP_SHARE = 6  # part of a pair's time that one side may warm up for
# n pairs of t seconds, each set up in u seconds, take n(t + u) for a variance of (s² + e²)/n, where s is the spread
# between pairs and e a pair's own error, e² ~ 1/t. The time to a given variance is least where e/s = √(t/u).
_ERROR_OF_SPREAD = 0.5
_ERROR_OF_TOLERANCE = 1 / 6  # until a spread is known: that of pairs on a quiet machine is a third of the tolerance
_SPREAD_LEAST = 3  # pairs
PAIR_TRIM = 0.3  # of ratios, at each end: while others use the core, pace jumps between many of the slices
_OVERLAP = math.sqrt(2)  # each slice is in two ratios, so that their mean errs by so much more than it seems
_LONGER_STRETCHES = 6
_READ_FIRST = 4  # blocks before the first reading of resources; then at twice as many each time
_ERROR_BLOCKS_LEAST = 6  # fewer are off together now and then, and seem to agree


class Pair(NamedTuple):
    """A worker of each side with the test open at its call and the component checked, in ``check_s`` seconds a call.

    ``number`` is the pair's place among those of its test, from 0. ``loader`` is the number of the loader that both are
    forked from, None for new interpreters. ``import_s`` is what importing the tests took on base and on head.
    """

    number: int
    base: Worker
    head: Worker
    check_s: float
    setup_s: float
    loader: int | None = None
    import_s: tuple[float, float] = (0.0, 0.0)

    @property
    def head_first(self) -> bool:
        """Whether head has the first turn: in every other pair."""
        return self.number % 2 == 0


class Block(NamedTuple):
    """A slice of each side, one right after the other."""

    base: SliceRecord
    head: SliceRecord

    @classmethod
    def take(cls, pair: Pair, kind: SliceKind) -> Block:
        """Have both workers take a slice: head first where the pair's number is even."""
        __tracebackhide__ = True
        if pair.head_first:
            head = pair.head.take(kind)
            return cls(pair.base.take(kind), head)
        return cls(pair.base.take(kind), pair.head.take(kind))

    def shares(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return each side's phases: the time in none of their children, as shares of the side's own call.

        A slice that is held up has all its phases held up, so shares are right where times are not.
        """
        base, head = (
            {phase.path: _own_s(phase) / traced_call_s([side]) for phase in merge_phases([side])} for side in self
        )
        return base, head


def slices_of(blocks: Sequence[Block], side: str) -> list[SliceRecord]:
    """Return the slices of one side, ``"base"`` or ``"head"``, of several blocks."""
    return [getattr(block, side) for block in blocks]


class LogRatios(NamedTuple):
    """The logarithms of head's time over base's, for every two slices that follow each other; by which side is first.

    Each slice but the first and the last is in two of them. Where the machine's pace jumps, one of them is off and the
    others are not. A traced block may lie between two slices.
    """

    within: list[float]  # blocks
    between: list[float]  # a block's second slice and the next one's first

    @classmethod
    def of(cls, blocks: Sequence[Block], clock: Clock, *, head_first: bool) -> LogRatios:
        """Compare the slices of blocks, in which head was first or base."""
        base, head = ([math.log(clock(record)) for record in slices_of(blocks, side)] for side in ("base", "head"))
        next_first = zip(base, head[1:], strict=False) if head_first else zip(base[1:], head, strict=False)
        return cls(
            [theirs - ours for ours, theirs in zip(base, head, strict=True)],
            [theirs - ours for ours, theirs in next_first],
        )

    def figure(self) -> float:
        """Return what a pair shows; from two blocks on a pace that drifts cancels."""
        return statistics.fmean(trimmed_mean(kind, PAIR_TRIM) for kind in self if kind)

    def error(self) -> float:
        """Return the standard error of the figure, by these ratios alone; infinite of too few."""
        if len(self.within) < _ERROR_BLOCKS_LEAST:
            return math.inf
        return _OVERLAP * _trimmed_error([*self.within, *self.between])


def _trimmed_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean without PAIR_TRIM of the values at each end.

    (From the winsorized variance: J. W. Tukey and D. H. McLaughlin, "Less vulnerable confidence and significance
    procedures for location based on a single sample", Sankhyā A 25, 1963.)
    """
    cut = int(PAIR_TRIM * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = statistics.fmean(winsorized)
    squares = math.fsum((value - mean) ** 2 for value in winsorized)
    return math.sqrt(squares / (len(kept) * (len(kept) - 1)))


def _own_s(phase: Phase) -> float:
    """Return the time in no child phase, by the device's clock where that has it: the host only launches."""
    times = phase.on_device
    return phase.self_s if times is None or times.self_s is None else times.self_s


def typical_shares(slices: Sequence[SliceRecord]) -> tuple[Phase, ...]:
    """Return every phase's median share of its slice's call, which one stall does not move as it would a mean."""
    counted = merge_phases(slices)
    shares = [{phase.path: phase.total_s / traced_call_s([record]) for phase in record.phases} for record in slices]
    totals = {phase.path: statistics.median(each.get(phase.path, 0.0) for each in shares) for phase in counted}

    def own(path: str) -> float:
        return totals[path] - sum(total for other, total in totals.items() if other.rpartition("/")[0] == path)

    return tuple(replace(phase, total_s=totals[phase.path], self_s=max(0.0, own(phase.path))) for phase in counted)


class _Usages(NamedTuple):
    """What both workers of a pair hold when they have taken ``blocks`` blocks."""

    blocks: int
    base: Usage
    head: Usage


@dataclass
class WarmPair:
    """A pair that is warm, and then its blocks; ``share_s`` is its part of the test's time.

    Both workers are on the CPU ``placed``, None where the kernel places them. ``waited_s`` went by without a turn to
    measure, since it was warm. It ``reads`` from time to time what its processes hold.
    """

    pair: Pair
    warm: tuple[Warm, Warm]
    share_s: float
    started_s: float
    reads: bool = True
    waited_s: float = 0.0
    placed: int | None = None
    blocks: list[Block] = field(default_factory=list)
    traced: list[Block] = field(default_factory=list)

    @property
    def is_single(self) -> bool:
        """Whether one thread of one process does the work of a call, on both sides."""
        return all(side.single for side in self.warm)

    @property
    def needs_machine(self) -> bool:
        """Whether nothing else should be measured meanwhile: more than one CPU or an accelerator does the work."""
        return not self.is_single or any(side.accelerated for side in self.warm)

    def place(self, cpu: int) -> None:
        """Keep both workers on one CPU."""
        __tracebackhide__ = True
        for worker in (self.pair.base, self.pair.head):
            worker.place([cpu])
        self.placed = cpu

    def take(self, clock: Callable[[], float], enough_error: float) -> PairRecord:
        """Take blocks of both sides' slices, and a traced one every few blocks; return the pair's figures.

        It ends when the standard error of the pair's figure is under ``enough_error``, in logarithms, or after PAIR_S
        and PAIR_BLOCKS. Turns alternate strictly: a slice after one of the same process would find warmer caches than
        the others.
        """
        __tracebackhide__ = True
        share_s = self.share_s - self._spent_s(clock)
        pace = BlockPace(share_s, PAIR_S, clock, least=PAIR_BLOCKS, traced_blocks=1.0)
        usages, watch = [self._usages(self.blocks)] if self.reads else [], OtherWorkWatch()
        while not (pace.elapsed_s >= PAIR_LEAST_S and self._log_ratios(by_wall).error() < enough_error):
            if not pace.begins():
                break
            self.blocks.append(Block.take(self.pair, SliceKind.PLAIN))
            if pace.traces():
                self.traced.append(Block.take(self.pair, SliceKind.TRACED))
            if usages and len(self.blocks) >= max(_READ_FIRST, 2 * usages[-1].blocks):
                usages.append(self._usages(self.blocks))
        if usages and len(self.blocks) > usages[-1].blocks:
            usages.append(self._usages(self.blocks))
        other_work = watch.seen()
        return self._record(self._spent_s(clock), self._readings(self.blocks, usages), other_work)

    def go_on(self, seconds: float, clock: Callable[[], float]) -> tuple[Reading, ...]:
        """Take further blocks for so long, which are in no figure; return readings of six stretches of equal length."""
        __tracebackhide__ = True
        blocks: list[Block] = []
        usages = [self._usages(blocks)]
        for _ in range(_LONGER_STRETCHES):
            end_s = clock() + seconds / _LONGER_STRETCHES
            while clock() < end_s or len(blocks) == usages[-1].blocks:
                blocks.append(Block.take(self.pair, SliceKind.PLAIN))
            usages.append(self._usages(blocks))
        return self._readings(blocks, usages)

    def _usages(self, blocks: Sequence[Block]) -> _Usages:
        """Return what both sides hold after these blocks."""
        return _Usages(len(blocks), self.pair.base.usage(), self.pair.head.usage())

    def _readings(self, blocks: Sequence[Block], usages: Sequence[_Usages]) -> tuple[Reading, ...]:
        """Return the resources of both sides at every reading, with the pair's figure for the slices before it.

        A last stretch that is less than half as long as the one before is part of that.
        """
        kept = list(usages)
        if len(kept) > 2 and kept[-1].blocks - kept[-2].blocks < (kept[-2].blocks - kept[-3].blocks) / 2:
            del kept[-2]
        found = [Reading(first.base, first.head) for first in kept[:1]]
        for before, after in itertools.pairwise(kept):
            stretch = blocks[before.blocks : after.blocks]
            ratios = LogRatios.of(stretch, by_wall, head_first=self.pair.head_first)
            found.append(Reading(after.base, after.head, trimmed_mean(ratios.within, PAIR_TRIM)))
        return tuple(found)

    def _phases(self) -> tuple[PhaseRatio, ...]:
        """Return how long head takes in each phase compared with base, for phases that both have."""
        if not self.traced:
            return ()
        base, head = (
            {phase.path: phase.total_s for phase in typical_shares(slices_of(self.traced, side))}
            for side in ("base", "head")
        )
        ratio = self._log_ratios(by_wall).figure()
        return tuple(
            PhaseRatio(path, math.log(head[path] / share) + ratio, share)
            for path, share in base.items()
            if share > 0 and head.get(path, 0.0) > 0
        )

    def _spent_s(self, clock: Callable[[], float]) -> float:
        return clock() - self.started_s - self.waited_s

    def _log_ratios(self, clock: Clock) -> LogRatios:
        return LogRatios.of(self.blocks, clock, head_first=self.pair.head_first)

    def _record(self, seconds: float, readings: tuple[Reading, ...], other_work: OtherWork | None) -> PairRecord:
        base, head = (self._worker(side, warm) for side, warm in zip(("base", "head"), self.warm, strict=True))
        slices = (record for block in self.blocks for record in block)
        return PairRecord(
            wall_log_ratio=self._log_ratios(by_wall).figure(),
            cpu_log_ratio=self._log_ratios(by_cpu).figure(),
            alone=base.alone and head.alone,
            blocks=len(self.blocks),
            base=base,
            head=head,
            placed=self.placed,
            cpus=tuple(sorted({record.cpu for record in slices})),
            setup_s=self.pair.setup_s,
            loader=self.pair.loader,
            seconds=seconds,
            readings=readings,
            phases=self._phases(),
            first_call_s=(self.pair.base.checked_s or 0.0, self.pair.head.checked_s or 0.0),
            import_s=self.pair.import_s,
            other_work=other_work,
        )

    def _worker(self, side: str, warm: Warm) -> WorkerRecord:
        worker: Worker = getattr(self.pair, side)
        plain, traced = slices_of(self.blocks, side), slices_of(self.traced, side)
        wall, cpu = (Figures(typical_call_s(plain, clock), 0.0, 0.0) for clock in (by_wall, by_cpu))
        return worker_record(plain, wall, cpu, warm, seed=worker.seed, traced=traced)


@dataclass(frozen=True)
class PairsMeasured:
    """The figures of all pairs: by pair, by side with phases as shares of a call, and in traced blocks."""

    pairs: tuple[PairRecord, ...]
    base: SideMeasurement
    head: SideMeasurement
    traced: tuple[Block, ...]


class PairedMeasurement:
    """Measures one test by live pairs: :meth:`warm_up` a pair, then :meth:`take` its slices.

    Several pairs may be under way at once, each in a thread of its own. All pairs together take about ``max_time_s``,
    beside the time to start workers and set up. It is shared out among ``least`` pairs, or ``least_unplaced`` where the
    kernel places workers. A pair ends once its own error is small beside ``tolerance``, in logarithms, or beside the
    spread of the pairs before. ``reads`` has every pair read what its processes hold.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        least: int,
        least_unplaced: int = 0,
        max_time_s: float,
        tolerance: float = 0.0,
        reads: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._progress = progress
        self._least = least
        self._least_unplaced = least_unplaced
        self._left_s = max_time_s
        self._tolerance = tolerance
        self._reads = reads
        self._enough_error = _ERROR_OF_TOLERANCE * tolerance
        self._clock = clock
        self._idle = IdleWatch(clock, wait)
        self._begun = 0
        self._beginning = 0  # of the pairs that begin at once, how many have not begun yet
        self._taken: dict[int, tuple[WarmPair, PairRecord]] = {}
        self._lock = threading.Lock()
        self._sizing = threading.Lock()
        self._shape: Shape | None = None
        self._call_s = 0.0
        self._settles_soon = False  # calls had stopped getting faster by the end of the first worker's warm-up

    @property
    def count(self) -> int:
        """How many pairs have been measured, of those from the first one on without a gap."""
        return next(index for index in itertools.count() if index not in self._taken)

    @property
    def is_time_up(self) -> bool:
        """Whether there is no time for half of another pair as long as those so far."""
        return self._left_s <= self._usual_s() / 2

    def begin(self, most: int) -> int:
        """Return how many pairs to begin at once, ``most`` or as many as there is time for; they share that time."""
        with self._lock:
            usual_s = self._usual_s()
            self._beginning = max(1, min(most, int(self._left_s / usual_s))) if usual_s else most
            return self._beginning

    def _usual_s(self) -> float:
        return statistics.fmean(record.seconds for _, record in self._taken.values()) if self._taken else 0.0

    def warm_up(self, pair: Pair) -> WarmPair:
        """Warm up both workers of the next pair."""
        __tracebackhide__ = True
        started_s = self._clock()
        index = pair.number
        with self._lock:
            missing = max(1, self._least - self._begun, self._beginning)
            self._beginning -= 1
            self._begun += 1
            share_s = self._left_s / missing
            self._left_s -= share_s
        self._progress.show(f"pair {index + 1}")
        warm = self._warm_up(pair, share_s)
        with self._lock:
            if self._least < self._least_unplaced and not all(side.single for side in warm):
                self._least = self._least_unplaced
                self._left_s += share_s
                share_s = self._left_s / max(1, self._least - index)
                self._left_s -= share_s
        return WarmPair(pair, warm, share_s, started_s, self._reads)

    def _warm_up(self, pair: Pair, share_s: float) -> tuple[Warm, Warm]:
        """Warm up both sides, one after the other; the first head worker sizes the slices of all.

        The pace is that of a second call: the first may have compiled, imported or allocated. Where the first pair
        needed no longer than the least, the others warm up for less.
        """
        __tracebackhide__ = True
        part_s = share_s / _WARM_UP_SHARE
        most_s = min(WARM_UP_MOST_S, part_s)
        with self._sizing if self._shape is None else nullcontext():
            if self._shape is None:
                head = pair.head.warm_up(None, most_s if pair.check_s < share_s / 2 else 0.0, kernels=False)
                self._shape, self._call_s = head.shape, head.call_s
                self._settles_soon = head.warm_up_s < 2 * WARM_UP_S <= most_s
                return pair.base.warm_up(head.shape, most_s if head.call_s < part_s else 0.0, kernels=False), head
        most_s = most_s if self._call_s < part_s else 0.0
        sides = [pair.head, pair.base] if pair.head_first else [pair.base, pair.head]
        if self._settles_soon:
            most_s = min(WARM_UP_AGAIN_S, most_s)
        first, second = (worker.warm_up(self._shape, most_s, kernels=False) for worker in sides)
        return (second, first) if pair.head_first else (first, second)

    def take(self, pair: WarmPair) -> None:
        """Take the slices of a pair that is warm, and then watch whether the first pair works while it waits."""
        __tracebackhide__ = True
        record = pair.take(self._clock, self._enough_error)
        with self._lock:
            self._left_s += pair.share_s - record.seconds
            self._taken[pair.pair.number] = pair, record
            ratios = [taken.wall_log_ratio for _, taken in self._taken.values()]
            if self._tolerance and len(ratios) >= _SPREAD_LEAST:
                of_spread = _ERROR_OF_SPREAD * statistics.stdev(ratios)
                self._enough_error = max(_ERROR_OF_TOLERANCE * self._tolerance, of_spread)
        if pair.pair.number == 0:
            self._idle.begin([pair.pair.base, pair.pair.head])

    def go_on(self, seconds: float) -> tuple[Reading, ...]:
        """Have the first pair take slices for so much longer; return readings of its resources."""
        __tracebackhide__ = True
        return self._taken[0][0].go_on(seconds, self._clock)

    def records(self) -> list[PairRecord]:
        """Return the figures of every pair, from the first one on without a gap."""
        return [self._taken[index][1] for index in range(self.count)]

    def measured(self) -> PairsMeasured:
        """Return the figures of all pairs, with the CPU time that the first one has used since it was measured."""
        self._idle.end()
        records = self.records()
        base, head = (
            replace(worker, idle_cpu_share=self._idle.share(watched))
            for worker, watched in zip((records[0].base, records[0].head), self._taken[0][0].pair[1:3], strict=True)
        )
        records[0] = replace(records[0], base=base, head=head)
        traced = tuple(block for index in range(self.count) for block in self._taken[index][0].traced)
        of_base, of_head = (
            SideMeasurement(
                tuple(getattr(record, side) for record in records),
                typical_shares(slices),
                1.0 if slices else 0.0,
                untraced(slices),
            )
            for side, slices in ((side, slices_of(traced, side)) for side in ("base", "head"))
        )
        return PairsMeasured(tuple(records), of_base, of_head, traced)
