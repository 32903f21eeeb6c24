"""The turns of a pair: a process of each side takes slices, one after the other.

Contention on a shared machine lasts seconds to minutes, and slows alike what alternates within tens of milliseconds.
The rest of the variation belongs to the pair of processes (memory layout, hash seeds) and shrinks with more pairs only.
So a pair gives one figure however long it runs, and pairs are added until the run has enough of them.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf.model.durations import WARM_UP_MOST_S
from pytest_rlperf.model.figures import (
    PAIR_TRIM,
    Clock,
    by_cpu,
    by_wall,
    never_waits,
    trimmed_mean,
    typical_call_s,
)
from pytest_rlperf.model.live import PAIR_BLOCKS, OtherWork, PairRecord, PhaseRatio, Reading
from pytest_rlperf.model.measured import Figures, SliceKind, Usage, Warm, WorkerRecord
from pytest_rlperf.model.phases import Block, slices_of, typical_shares
from pytest_rlperf.pair.leftovers import SHARED, Amount, Leftovers, with_left
from pytest_rlperf.pair.pace import BlockPace
from pytest_rlperf.pair.processes import Worker
from pytest_rlperf.pair.records import rounds_of, worker_record
from pytest_rlperf.pair.watches import IdleWatch, OtherWorkWatch
from pytest_rlperf.wire import Place, PriceCollections, Slow, Taken, TakePair, WarmAll, Warmed, WarmUp

PAIR_S = 1.2  # measuring time of one pair, after warming up: from here on only more pairs narrow the interval
PAIR_LEAST_S = 0.3  # the same if the pair's own error is small already: what disturbs a machine lasts for longer
PAIR_ROUNDS = 13  # least in a pair, within PAIR_S, so that it includes what happens on one call of twelve
_WARM_UP_SHARE = 6  # part of a pair's time that one side may warm up for
_OVERLAP = math.sqrt(2)  # each slice is in two ratios, so their mean errs by this factor more than it seems
_IN_TURN, _ERROR_LEAST = 4.0, 1e-6  # times the lesser error; less is not even the clock's
LONGER_STRETCHES = 12
_LONGER_LEAST = 6  # stretches, if the calls are so long that all would take more than twice the time
_READ_FIRST = 4  # blocks before the first reading of resources; twice as many before each later one
_ERROR_BLOCKS_LEAST = 6  # fewer are sometimes off together, and seem to agree


class LogRatios(NamedTuple):
    """The logarithms of the head's time over the base's, for every two successive slices; by which side is first.

    Each slice but the first and the last is in two ratios. If the machine's pace jumps, only one ratio is off. A traced
    block may lie between two slices.
    """

    within: list[float]  # blocks
    between: list[float]  # a block's second slice and the next one's first

    @classmethod
    def of(cls, blocks: Sequence[Block], clock: Clock, *, head_first: bool) -> LogRatios:
        """Compare the slices of blocks, in which the head or the base was first."""
        base, head = ([math.log(clock(record)) for record in slices_of(blocks, side)] for side in ("base", "head"))
        next_first = zip(base, head[1:], strict=False) if head_first else zip(base[1:], head, strict=False)
        return cls(
            [theirs - ours for ours, theirs in zip(base, head, strict=True)],
            [theirs - ours for ours, theirs in next_first],
        )

    def figure(self) -> float:
        """Return a pair's figure; from two blocks on, a drifting pace cancels, unless calls differ in turn."""
        kinds = (self.within,) if self._differ_in_turn else self
        return statistics.fmean(trimmed_mean(kind, PAIR_TRIM) for kind in kinds if kind)

    def error(self) -> float:
        """Return the standard error of the figure, only by these ratios; infinite for too few."""
        if len(self.within) < _ERROR_BLOCKS_LEAST:
            return math.inf
        return _OVERLAP * _trimmed_error([*self.within, *self.between])

    @property
    def _differ_in_turn(self) -> bool:
        """Whether successive slices of a side do different work: every second update may do more.

        The slices of a block are the same calls of both sides. Noise seldom spreads the steps of one side, or what lies
        between blocks, so much more than the other's, or blocks.
        """
        if len(self.within) < _ERROR_BLOCKS_LEAST:
            return False
        steps = [next_one - before for before, next_one in zip(self.within, self.between, strict=False)]
        others = [after - next_one for next_one, after in zip(self.between, self.within[1:], strict=True)]
        within, between, one, other = map(_trimmed_error, (self.within, self.between, steps, others))
        return any(
            most > max(_IN_TURN * least, _ERROR_LEAST)
            for least, most in ((within, between), (one, other), (other, one))
        )


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


class _Usages(NamedTuple):
    """What both workers of a pair hold after ``blocks`` blocks, and what these blocks may have left."""

    blocks: int
    base: Usage
    head: Usage
    base_left: Mapping[str, Amount]
    head_left: Mapping[str, Amount]


class Pair:
    """A worker of each side with the test open at its call and checked; the head may have the first turn."""

    def __init__(
        self,
        base: Worker,
        head: Worker,
        *,
        head_first: bool,
        run: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        leftovers: Leftovers | None = None,
    ) -> None:
        self._base = base
        self._head = head
        self._head_first = head_first
        self._run = run  # the run's process
        self._clock = clock
        self._idle = IdleWatch(clock, wait)
        self._leftovers = leftovers or Leftovers.of_run(Path(str(base.guardian.scratch)))
        self._warm_s = 0.0
        self._blocks: list[Block] = []
        self._traced: list[Block] = []

    # ------------------------------------------------------------------ warming up

    def warm_up(self, order: WarmAll) -> Warmed:
        """Warm up both sides, one after the other; the first head worker sizes the slices of all.

        The pace is a second call's: the first may have compiled, imported or allocated. Both workers have made equally
        many calls when their slices begin. Workers of other pairs have made a whole number of slices more or fewer, so
        a slice has the same calls, by number, in all pairs.
        """
        __tracebackhide__ = True
        started_s = self._clock()
        part_s = order.share_s / _WARM_UP_SHARE
        most_s = min(WARM_UP_MOST_S, part_s)
        steps = 0
        if order.shape is None:
            check_s = max(self._base.checked_s, self._head.checked_s)
            head = self._head.ask(WarmUp(most_s if check_s < order.share_s / 2 else 0.0, kernels=False))
            base_s = most_s if head.call_s < part_s else 0.0
            base = self._base.ask(WarmUp(base_s, head.shape, kernels=False, calls=head.calls))
        else:
            most_s = most_s if order.call_s < part_s else 0.0
            one, other = self._in_turn()
            first = one.ask(WarmUp(most_s, order.shape, kernels=False, calls=order.calls, exactly=False))
            second = other.ask(WarmUp(most_s, order.shape, kernels=False, calls=first.calls))
            base, head = (second, first) if self._head_first else (first, second)
        if order.slowed is not None:
            self._base.ask(Slow(0.0, 0))
            steps = self._head.ask(Slow(order.slowed.share, order.slowed.steps))
        self._warm = base, head
        self._warm_s = self._clock() - started_s
        self._blocks, self._traced = [], []
        return Warmed(base, head, steps)

    def _in_turn(self) -> tuple[Worker, Worker]:
        return (self._head, self._base) if self._head_first else (self._base, self._head)

    # ------------------------------------------------------------------ taking slices

    def take(self, order: TakePair) -> Taken:
        """Take blocks of both sides' slices, and a traced one every few blocks; return the pair's figures.

        It ends when the standard error of the pair's figure is under ``enough_error``, in logarithms, or after PAIR_S
        and PAIR_BLOCKS. Turns alternate strictly: a slice after another of the same process would find warmer caches.
        """
        __tracebackhide__ = True
        started_s = self._clock()
        if order.cpu is not None:
            for worker in (self._base, self._head):
                worker.ask(Place([order.cpu]))
        pace = BlockPace(order.share_s - self._warm_s, PAIR_S, self._clock, least=PAIR_BLOCKS, traced_blocks=1.0)
        usages, watch = [self._usages(self._blocks)] if order.reads else [], OtherWorkWatch(self._run)
        while pace.begins():
            self._blocks.append(self._block(SliceKind.PLAIN))
            if pace.traces():
                self._traced.append(self._block(SliceKind.TRACED))
            if usages and len(self._blocks) >= max(_READ_FIRST, 2 * usages[-1].blocks):
                usages.append(self._usages(self._blocks))
            if self._has_enough(pace.elapsed_s, order.enough_error):
                break
        if usages and len(self._blocks) > usages[-1].blocks:
            usages.append(self._usages(self._blocks))
        other_work = watch.seen()
        leaves = self._prove(usages)
        segments = [each for worker in (self._base, self._head) for each in worker.segments()]
        seconds = self._warm_s + self._clock() - started_s
        record = self._record(order.cpu, seconds, self._readings(self._blocks, usages), other_work)
        self._idle.begin([self._base, self._head])
        sides = [slices_of(self._blocks, side) for side in ("base", "head")]
        return Taken(record, self._traced, rounds_of(sides, is_mean=self._warm[0].shape.long), leaves, segments)

    def _has_enough(self, elapsed_s: float, enough_error: float) -> bool:
        """Whether the slices so far are enough for the pair's figure."""
        rounds = len(self._blocks) * self._warm[0].shape.rounds
        is_short = elapsed_s < PAIR_LEAST_S or (rounds < PAIR_ROUNDS and elapsed_s < PAIR_S)
        return not is_short and self._log_ratios(by_wall).error() < enough_error

    def _block(self, kind: SliceKind) -> Block:
        """Let both workers take a slice."""
        __tracebackhide__ = True
        first, second = (self._leftovers.take(worker, kind) for worker in self._in_turn())
        return Block(second, first) if self._head_first else Block(first, second)

    def go_on(self, seconds: float) -> tuple[Reading, ...]:
        """Take further blocks, which are in no figure, for ``seconds``; return readings of equal stretches."""
        __tracebackhide__ = True
        blocks: list[Block] = []
        usages = [self._usages(blocks)]
        last_s = self._clock() + 2 * seconds
        for made in range(LONGER_STRETCHES):
            if made >= _LONGER_LEAST and self._clock() > last_s:
                break
            end_s = self._clock() + seconds / LONGER_STRETCHES
            while self._clock() < end_s or len(blocks) == usages[-1].blocks:
                blocks.append(self._block(SliceKind.PLAIN))
            usages.append(self._usages(blocks))
        self._prove(usages)
        return self._readings(blocks, usages)

    def trace(self, blocks: int) -> list[Block]:
        """Take ``blocks`` further traced blocks."""
        __tracebackhide__ = True
        return [self._block(SliceKind.TRACED) for _ in range(blocks)]

    def idle_shares(self) -> tuple[float, float]:
        """Return the CPU time of the base and of the head since they were measured, over the time since then."""
        self._idle.end()
        return self._idle.share(self._base), self._idle.share(self._head)

    def _usages(self, blocks: Sequence[Block]) -> _Usages:
        """Return what both sides hold after these blocks."""
        (base, base_left), (head, head_left) = (self._leftovers.usage(worker) for worker in (self._base, self._head))
        return _Usages(len(blocks), base, head, base_left, head_left)

    def _prove(self, usages: list[_Usages]) -> list[str]:
        """Return how names that calls leave begin; add to the readings what came where the head's calls leave some.

        What others have made there counts for both sides, so the head has to have more than the base.
        """
        __tracebackhide__ = True
        base, head = (self._leftovers.proved(worker) if usages else {} for worker in (self._base, self._head))
        usages[:] = [
            each._replace(
                base=with_left(each.base, each.base_left, head), head=with_left(each.head, each.head_left, head)
            )
            for each in usages
        ]
        return [name for found in (base, head) if (name := found.get(SHARED))]

    # ------------------------------------------------------------------ the record

    def _readings(self, blocks: Sequence[Block], usages: Sequence[_Usages]) -> tuple[Reading, ...]:
        """Return the resources of both sides at every reading, with the pair's figure for the slices before it.

        A last stretch that is less than half as long as the one before becomes part of it.
        """
        kept = list(usages)
        if len(kept) > 2 and kept[-1].blocks - kept[-2].blocks < (kept[-2].blocks - kept[-3].blocks) / 2:
            del kept[-2]
        found = [Reading(first.base, first.head) for first in kept[:1]]
        for before, after in itertools.pairwise(kept):
            stretch = blocks[before.blocks : after.blocks]
            ratios = LogRatios.of(stretch, by_wall, head_first=self._head_first)
            found.append(Reading(after.base, after.head, trimmed_mean(ratios.within, PAIR_TRIM)))
        return tuple(found)

    def _phases(self) -> tuple[PhaseRatio, ...]:
        """Return how long the head takes in each phase compared with the base, for phases that both have."""
        if not self._traced:
            return ()
        base, head = (
            {phase.path: phase.total_s for phase in typical_shares(slices_of(self._traced, side))}
            for side in ("base", "head")
        )
        ratio = self._log_ratios(by_wall).figure()
        return tuple(
            PhaseRatio(path, math.log(head[path] / share) + ratio, share)
            for path, share in base.items()
            if share > 0 and head.get(path, 0.0) > 0
        )

    def _log_ratios(self, clock: Clock) -> LogRatios:
        return LogRatios.of(self._blocks, clock, head_first=self._head_first)

    def _record(
        self, placed: int | None, seconds: float, readings: tuple[Reading, ...], other_work: OtherWork | None
    ) -> PairRecord:
        base, head = (
            replace(self._worker(side, worker, warm), collecting_s=collecting_s)
            for side, worker, warm, collecting_s in zip(
                ("base", "head"), (self._base, self._head), self._warm, self._price_collections(), strict=True
            )
        )
        slices = (record for block in self._blocks for record in block)
        return PairRecord(
            wall_log_ratio=self._log_ratios(by_wall).figure(),
            cpu_log_ratio=self._log_ratios(by_cpu).figure(),
            alone=base.alone and head.alone,
            blocks=len(self._blocks),
            base=base,
            head=head,
            placed=placed,
            cpus=tuple(sorted({record.cpu for record in slices})),
            setup_s=0.0,
            seconds=seconds,
            readings=readings,
            phases=self._phases(),
            first_call_s=(self._base.start_s(base.wall.call_s), self._head.start_s(head.wall.call_s)),
            other_work=other_work,
            total_log_ratio=math.log(self._total_s("head", head) / self._total_s("base", base)),
        )

    def _total_s(self, side: str, worker: WorkerRecord) -> float:
        """Return a side's time per call over all slices: CPU time if neither side waits."""
        busy = all(never_waits(slices_of(self._blocks, each)) for each in ("base", "head"))
        total_s = sum(record.cpu_s if busy else record.rounds_s for record in slices_of(self._blocks, side))
        return max(total_s, 1e-9) / worker.calls + worker.collecting_s

    def _price_collections(self) -> tuple[float, float]:
        """Return what a call's full collections cost each side, if there are any.

        If both sides make equally many, a few calls show whether the code asks for them.
        """
        sides = [slices_of(self._blocks, side) for side in ("base", "head")]
        base, head = (sum(record.full_collections for record in slices) for slices in sides)
        if not base + head:
            return 0.0, 0.0
        calls = sum(record.calls for record in sides[0])
        order = PriceCollections(math.ceil(2 * calls / base) if base == head else calls)
        return self._base.ask(order), self._head.ask(order)

    def _worker(self, side: str, worker: Worker, warm: Warm) -> WorkerRecord:
        plain, traced = slices_of(self._blocks, side), slices_of(self._traced, side)
        wall, cpu = (Figures(typical_call_s(plain, clock), 0.0, 0.0) for clock in (by_wall, by_cpu))
        return worker_record(plain, wall, cpu, warm, seed=worker.seed, traced=traced)
