"""The live pairs of one test: they are begun, warmed up and measured until there is a verdict.

Each pair has a lane: one of the CPUs of this machine, on which one pair at a time measures.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.judge.findings import OF_READINGS
from pytest_rlperf.judge.live import (
    PAIRS_MOST,
    UNPLACED_LEAST,
    are_placed,
    fewest_worthwhile,
    is_nearly_decided,
    judge_records,
    shared_error,
    slower_least,
)
from pytest_rlperf.judge.mean_call import MeanCalls
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.live import PairRecord, RareCalls, log_ratios
from pytest_rlperf.model.measured import Shape
from pytest_rlperf.model.reasons import Code
from pytest_rlperf.model.stored import PairSpread
from pytest_rlperf.options import MAX_TIME_S
from pytest_rlperf.run.endpoints import DriverLostError, PairDriver
from pytest_rlperf.run.results import PairsMeasured
from pytest_rlperf.run.schedule import AnyOf, Held, Job, Spawn, Steps, if_broken_off
from pytest_rlperf.run.test import OpenTest

_LOST_MOST = 3  # drivers of one pair, through no fault of the test
# n pairs of t seconds, each set up in u seconds, take n(t + u) for a variance of (s² + e²)/n, where s is the spread
# between pairs and e a pair's own error, e² ~ 1/t. The time to a given variance is least if e/s = √(t/u).
_ERROR_OF_SPREAD = 0.5
_ERROR_OF_TOLERANCE = 1 / 3  # until a spread is known: pairs of equal code differ by about as much on a busy machine
_SPREAD_LEAST = 3  # pairs


class OpenPair(NamedTuple):
    """A checked pair with the test open at its call; once measured it ``stays`` there, or leaves the test.

    ``import_s`` are the seconds to import the tests, the base's first. ``has_counts`` if both sides have exact counts
    by now.
    """

    driver: PairDriver
    stays: bool
    import_s: tuple[float, float] = (0.0, 0.0)
    has_counts: bool = False


OpenNext: TypeAlias = Callable[[int, int], Steps[OpenPair]]
"""Opens the pair of a number, of the preload server of a number."""


class PairsTaken(NamedTuple):
    """The verdict by a test's pairs, their figures, the first pair's driver, and the cost of rare calls, if any."""

    verdict: Verdict
    measured: PairsMeasured
    first: PairDriver
    rare_calls: RareCalls | None


class _WarmPair(NamedTuple):
    """A warm pair and its lane, which ``has`` gives back; ``share_s`` is its part of the test's time.

    Setting it up took ``setup_s``.
    """

    number: int
    open: OpenPair
    held: Held
    has: ExitStack
    share_s: float
    setup_s: float
    is_single: bool


class Pairs:
    """The pairs of one test so far, and the facts that the first pair has shown.

    The head is ``slowed`` by the same number of steps in every pair: otherwise pairs would differ by the errors of
    sizing.
    """

    def __init__(
        self,
        test: OpenTest,
        open_pair: OpenNext,
        history: PairSpread | None = None,
        slowed: wire.Slowdown | None = None,
    ) -> None:
        test.ratio = None
        self._test = test
        self._open = open_pair
        self._history = history
        self._policy = policy = test.policy  # with more pairs, if the run has time to spare
        self._confirming = max(policy.pairs[0] + 1, slower_least(policy))  # the first pair that may confirm a change
        # The time is shared out so that this pair has its part.
        self._times = PairTimes(
            least=max(self._confirming, 0 if test.lanes.has_cpus else UNPLACED_LEAST + 1),
            least_unplaced=UNPLACED_LEAST + 1,
            max_time_s=test.settings.max_time_s,
            tolerance=policy.tolerance,
        )
        self._reads = any(policy.findings[kind] != OFF for kind in OF_READINGS)
        self._begun = 0
        self._has_counts = False
        # Whether one thread did the work, in observers or in the first pair, on the base and on the head.
        self._single = [test.needs_machine is False] * 2
        self._slowed = slowed
        self._shape: Shape | None = None
        self._call_s = 0.0
        self._calls = 0

    def take(self) -> Steps[PairsTaken]:
        """Take pairs, and judge them in order after each one, until there is a verdict; return it with all figures.

        The first pair shows what the others need; then several are taken at once, each in its own lane.
        """
        running: list[Job[None]] = []
        verdict: Verdict | None = None
        try:
            first = yield from self._warm(0)
            self._begun = 1
            running.append((yield from Spawn(self._measure(first))))
            while verdict is None:
                for _ in range(self._missing(len(running))):
                    index, self._begun = self._begun, self._begun + 1
                    running.append((yield from Spawn(self._pair(index))))
                yield from AnyOf(running)
                for job in [job for job in running if job.is_done]:
                    running.remove(job)
                    job.outcome()
                verdict = self._judge(is_last=not running)
        finally:
            for job in running:
                job.close()
        shares = yield from self._test.ask(first.open.driver, wire.EndIdle())
        measured = self._times.measured(shares)
        if verdict.status is not Status.UNDECIDED:  # otherwise reports do not show other processes
            measured = replace(measured, pairs=tuple(replace(pair, other_work=None) for pair in measured.pairs))
        return PairsTaken(verdict, measured, first.open.driver, self._times.rare_calls())

    def _missing(self, running: int) -> int:
        """Return how many pairs to begin: the fewest first, then one, or as many as there are idle lanes; few at once.

        One more than the most may be begun, as it may confirm.
        """
        (least, most), lanes = self._policy.pairs, self._test.lanes
        if self._begun < least:
            return max(0, min(least - self._begun, lanes.pairs_most - running))
        if running:
            return 0
        return self._times.begin(max(1, min(lanes.free, lanes.pairs_most, most + 1 - self._begun)))

    def _server(self, index: int) -> int:
        """Return the number of the preload server for a pair: pairs of the second server confirm a change."""
        ratios = log_ratios(self._times.records())
        if not ratios or index + 1 < self._confirming:
            return 0
        # The judge's figure is the mean; a single pair that was disturbed changes it, and confirms nothing.
        over, half = math.log1p(self._test.policy.tolerance), math.log1p(self._test.policy.tolerance / 2)
        return int(abs(statistics.fmean(ratios)) > over and abs(statistics.median(ratios)) > half)

    def _judge(self, *, is_last: bool) -> Verdict | None:
        """Return the verdict by the pairs so far; ``is_last`` if no other pair is under way."""
        records = self._times.records()
        if not records:
            return None
        ratios, placed, error = log_ratios(records), are_placed(records), shared_error(records)
        self._test.ratio = math.exp(statistics.fmean(ratios))
        policy, counted, history = self._policy, self._has_counts, self._history
        verdict = judge_records(records, policy, final=False, history=history, counted=counted)
        if verdict is not None and self._takes_more(verdict, records):
            return None
        if verdict is None and is_last and self._times.is_up:
            is_nearly = is_nearly_decided(ratios, policy, placed=placed, history=history, error=error)
            if self._times.usual_s < self._spare_s() or is_nearly:
                self._times.extend()
                return None
            verdict = judge_records(records, policy, final=True, history=history, counted=counted)
        return verdict

    def _takes_more(self, verdict: Verdict, records: Sequence[PairRecord]) -> bool:
        """Whether more than the most pairs may well decide, and the run can spare their time; then they are taken."""
        least, most = self._test.policy.pairs
        is_set = (least, most) != Policy().pairs
        if verdict.status is not Status.UNDECIDED or verdict.reason.code is Code.MOVED or is_set:
            return False
        ratios, placed, error = log_ratios(records), are_placed(records), shared_error(records)
        more = fewest_worthwhile(
            ratios, self._policy, PAIRS_MOST * most, placed=placed, history=self._history, error=error
        )
        pair_s = statistics.fmean(record.setup_s + record.seconds for record in records)
        if more is None or (more - len(records)) * pair_s > self._spare_s():
            return False
        self._policy = replace(self._policy, pairs=(least, more))
        return True

    def _spare_s(self) -> float:
        """Return the time that the run can spare for an UNDECIDED test; 0 if the user wants the test to be brief."""
        budget, is_brief = self._test.budget, self._test.settings.max_time_s < MAX_TIME_S
        return 0.0 if budget is None or is_brief else budget.spare_s()

    # ------------------------------------------------------------------ one pair

    def _pair(self, index: int) -> Steps[None]:
        """Set up one pair and measure it; if its driver is lost, another driver does it."""
        for attempt in range(_LOST_MOST):
            try:
                warm = yield from self._warm(index)
                yield from self._measure(warm)
                return
            except DriverLostError:
                if attempt == _LOST_MOST - 1:
                    raise

    def _warm(self, index: int) -> Steps[_WarmPair]:
        """Set up one pair in a lane, and warm it up."""
        test, times = self._test, self._times
        with ExitStack() as has:
            held = has.enter_context((yield from test.lane(index, whole=test.needs_machine is None)))
            started_s = time.monotonic()
            pair = yield from self._open(index, self._server(index))
            has.enter_context(test.having(pair.driver))
            self._has_counts = pair.has_counts
            setup_s = time.monotonic() - started_s
            share_s = times.share_s()
            test.show(f"pair {index + 1}")
            with if_broken_off(times.give_back, share_s):
                order = wire.WarmAll(share_s, self._shape, self._call_s, self._slowed, calls=self._calls)
                warmed = yield from test.ask(pair.driver, order, share_s + test.patience_s)
            is_single = self._learn(index, warmed)
            if not test.needs_machine:
                held.narrow()
            share_s = times.share_again_s(index, share_s, is_single=is_single)
            return _WarmPair(index, pair, held, has.pop_all(), share_s, setup_s, is_single)

    def _learn(self, index: int, warmed: wire.Warmed) -> bool:
        """Learn from a pair's warm-up; return whether one thread does the work on both sides."""
        sides = (warmed.base, warmed.head)
        if self._slowed is not None:
            self._slowed = wire.Slowdown(self._slowed.share, warmed.steps)
        # A pair may warm up for too little time to find out.
        found = [known if side.single is None else side.single for side, known in zip(sides, self._single, strict=True)]
        if self._shape is None:
            self._shape, self._call_s, self._calls = warmed.head.shape, warmed.head.call_s, warmed.head.calls
            self._single = found
        needs_machine = not all(found) or any(side.accelerated for side in sides)
        self._test.needs_machine = needs_machine or (index > 0 and self._test.needs_machine is True)
        return all(found)

    def _measure(self, warm: _WarmPair) -> Steps[None]:
        """Measure a pair in its lane, or with the machine to itself if it needs that."""
        test, times, held, pair = self._test, self._times, warm.held, warm.open
        with warm.has, if_broken_off(times.give_back, warm.share_s):
            if test.needs_machine and not held.is_whole:
                held.release()
                held = warm.has.enter_context((yield from test.lane(warm.number)))
            cpu = held.cpu if warm.is_single else None
            order = wire.TakePair(cpu, warm.share_s, times.enough_error, self._reads)
            taken = yield from test.ask(pair.driver, order, warm.share_s + test.patience_s)
            record = replace(taken.pair, setup_s=warm.setup_s, loader=pair.driver.preloaded, import_s=pair.import_s)
            times.add(warm.number, warm.share_s, wire.Taken(record, taken.traced, taken.rounds))
            test.leaves.update(taken.leaves)
            test.segments.update(taken.segments)
            if not pair.stays:
                yield from test.leave(pair.driver)


class PairTimes:
    """Shares ``max_time_s`` out among pairs, without the time to start workers and set up; keeps the pairs' figures.

    Several pairs may be under way at once. There will be ``least`` pairs, or ``least_unplaced`` if the kernel places
    workers. A pair is good enough once its own error is small compared with ``tolerance``, in logarithms, or with the
    spread of the pairs before.
    """

    def __init__(self, *, least: int, least_unplaced: int = 0, max_time_s: float, tolerance: float = 0.0) -> None:
        self.enough_error = _ERROR_OF_TOLERANCE * tolerance
        self._least = least
        self._least_unplaced = least_unplaced
        self._left_s = max_time_s
        self._tolerance = tolerance
        self._begun = 0
        self._beginning = 0  # how many of the pairs that begin at once have not begun yet
        self._taken: dict[int, wire.Taken] = {}
        self._mean_calls = MeanCalls([])
        self._records: list[PairRecord] = []  # from the first pair on without a gap, made once for each pair added

    @property
    def count(self) -> int:
        """How many pairs have been measured, from the first one on without a gap."""
        return next(index for index in itertools.count() if index not in self._taken)

    @property
    def is_up(self) -> bool:
        """Whether there is not even time for half of a pair as long as those so far."""
        return self._left_s <= self.usual_s / 2

    def extend(self) -> None:
        """Allow the time of one more pair, as long as those so far."""
        self._left_s = self.usual_s

    def begin(self, most: int) -> int:
        """Return how many pairs to begin at once: ``most``, or as many as there is time for; they share that time."""
        usual_s = self.usual_s
        self._beginning = max(1, min(most, int(self._left_s / usual_s))) if usual_s else most
        return self._beginning

    @property
    def usual_s(self) -> float:
        """The mean seconds of the pairs so far, 0 before the first."""
        return statistics.fmean(taken.pair.seconds for taken in self._taken.values()) if self._taken else 0.0

    def share_s(self) -> float:
        """Return the time for the pair that is to be warmed up and measured now."""
        missing = max(1, self._least - self._begun, self._beginning)
        self._beginning -= 1
        self._begun += 1
        share_s = self._left_s / missing
        self._left_s -= share_s
        return share_s

    def share_again_s(self, index: int, share_s: float, *, is_single: bool) -> float:
        """Return the time for a warm pair: more pairs share it if one turns out not to be placed."""
        if self._least < self._least_unplaced and not is_single:
            self._least = self._least_unplaced
            self._left_s += share_s
            share_s = self._left_s / max(1, self._least - index)
            self._left_s -= share_s
        return share_s

    def give_back(self, share_s: float) -> None:
        """Take back the time of a pair that was lost."""
        self._left_s += share_s
        self._begun -= 1

    def add(self, index: int, share_s: float, taken: wire.Taken) -> None:
        """Add a pair that was measured."""
        self._left_s += share_s - taken.pair.seconds
        self._taken[index] = taken
        in_order = self._in_order()
        self._mean_calls = MeanCalls([each.rounds for each in in_order])
        self._records = self._mean_calls.added_to([each.pair for each in in_order])
        ratios = [each.pair.wall_log_ratio for each in self._taken.values()]
        if self._tolerance and len(ratios) >= _SPREAD_LEAST:
            of_spread = _ERROR_OF_SPREAD * statistics.stdev(ratios)
            self.enough_error = max(_ERROR_OF_TOLERANCE * self._tolerance, of_spread)
        if self._mean_calls.are_few:
            self.enough_error = 0.0  # no error is: the pair takes its whole time

    def records(self) -> list[PairRecord]:
        """Return the figures of the pairs, from the first one on without a gap."""
        return list(self._records)

    def rare_calls(self) -> RareCalls | None:
        """Return how much the rare calls cost; None if no call costs more than others."""
        return self._mean_calls.rare_calls(self._records)

    def _in_order(self) -> list[wire.Taken]:
        return [self._taken[index] for index in range(self.count)]

    def measured(self, idle_shares: Sequence[float] = (0.0, 0.0)) -> PairsMeasured:
        """Return the figures of all pairs, with the CPU time that the first pair has used since it was measured."""
        records = self.records()
        base, head = (
            replace(worker, idle_cpu_share=max(worker.idle_cpu_share, share))
            for worker, share in zip((records[0].base, records[0].head), idle_shares, strict=True)
        )
        records[0] = replace(records[0], base=base, head=head)
        return PairsMeasured(tuple(records), tuple(block for each in self._in_order() for block in each.traced))
