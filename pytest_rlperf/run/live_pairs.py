"""Live pairs of one test: they are begun, warmed up and measured until there is a verdict.

Each pair has a lane: one of the CPUs of this machine, on which one pair at a time measures.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from pytest_rlperf import wire
from pytest_rlperf.judge.findings import OF_READINGS
from pytest_rlperf.judge.live import UNPLACED_LEAST, judge_records, slower_least
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Status, Verdict
from pytest_rlperf.model.live import RareCalls, log_ratios
from pytest_rlperf.model.measured import Shape
from pytest_rlperf.model.stored import PairSpread
from pytest_rlperf.run.endpoints import Driver, DriverLostError
from pytest_rlperf.run.on_test import OnTest
from pytest_rlperf.run.pair_times import PairTimes
from pytest_rlperf.run.results import PairsMeasured
from pytest_rlperf.run.schedule import Begin, Ended, Held, Job, Steps

_LOST_MOST = 3  # drivers of one pair, by no fault of the test


class OpenPair(NamedTuple):
    """A pair with the test open at its call, checked; ``import_s`` is what importing the tests took, base's first."""

    driver: Driver
    import_s: tuple[float, float] = (0.0, 0.0)
    slowed: wire.Slowdown | None = None


class Opener(Protocol):
    """How the pairs of a comparison begin and end."""

    def open(self, index: int, server: int) -> Steps[OpenPair]:
        """Return a pair of that preload server with the test at its call."""

    def warmed(self, warmed: wire.Warmed) -> None:
        """Learn how a pair has warmed up."""

    def close(self, index: int, pair: OpenPair) -> Steps[None]:
        """Let a pair that has been measured leave the test."""

    @property
    def has_counts(self) -> bool:
        """Whether both sides have exact counts."""


class WarmPair(NamedTuple):
    """A pair that is warm, with its lane; ``share_s`` is its part of the test's time, ``setup_s`` went by before."""

    number: int
    open: OpenPair
    held: Held
    share_s: float
    setup_s: float
    is_single: bool


class LivePairs:
    """The live pairs of one test, judged in their order after each, until there is a verdict.

    The first pair shows what the others need; then several are taken at once, in a lane each.
    """

    def __init__(self, test: OnTest, opener: Opener, history: PairSpread | None = None) -> None:
        self.first: OpenPair | None = None
        test.ratio = None
        self._test = test
        self._opener = opener
        self._history = history
        policy = test.policy
        # The time is shared out so that a pair that confirms has its part.
        self._times = PairTimes(
            least=max((policy.pairs[0] if test.lanes.has_cpus else UNPLACED_LEAST) + 1, slower_least(policy)),
            least_unplaced=UNPLACED_LEAST + 1,
            max_time_s=test.settings.max_time_s,
            tolerance=policy.tolerance,
        )
        self._reads = any(policy.findings[kind] != OFF for kind in OF_READINGS)
        self._begun = 0
        self._single = (False, False)  # whether one thread did the work in the first pair, on base and on head
        self._shape: Shape | None = None
        self._call_s = 0.0
        self._calls = 0

    def run(self) -> Steps[tuple[Verdict, PairsMeasured]]:
        """Take pairs until there is a verdict; return it with the figures of all of them."""
        running: list[Job[None]] = []
        verdict: Verdict | None = None
        try:
            first = yield from self._warm(0)
            self._begun = 1
            running.append((yield Begin(self._take(first))))
            while verdict is None:
                for _ in range(self._missing(len(running))):
                    index, self._begun = self._begun, self._begun + 1
                    running.append((yield Begin(self._pair(index))))
                yield Ended(running)
                for job in [job for job in running if job.is_done]:
                    running.remove(job)
                    job.outcome()
                verdict = self._judge(is_last=not running)
        finally:
            for job in running:
                job.close()
        assert self.first is not None
        shares: Sequence[float] = yield from self._test.ask(self.first.driver, wire.EndIdle())
        measured = self._times.measured(shares)
        if verdict.status is not Status.UNDECIDED:  # else other processes are of no interest to a report
            measured = replace(measured, pairs=tuple(replace(pair, other_work=None) for pair in measured.pairs))
        return verdict, measured

    def rare_calls(self) -> RareCalls | None:
        """Return how dear the rare calls of the pairs so far are; None where no call is dearer than others."""
        return self._times.rare_calls()

    def _missing(self, running: int) -> int:
        """Return how many pairs to begin: the fewest, then one, or as many as lanes are idle; few at once.

        One more than the most may be begun, as it may confirm.
        """
        (least, most), lanes = self._test.policy.pairs, self._test.lanes
        if self._begun < least:
            return max(0, min(least - self._begun, lanes.pairs_most - running))
        if running:
            return 0
        return self._times.begin(max(1, min(lanes.free, lanes.pairs_most, most + 1 - self._begun)))

    def _server(self) -> int:
        """Return the number of the preload server for the next pair: a change is confirmed by the second one's."""
        ratios = log_ratios(self._times.records())
        return int(bool(ratios) and abs(statistics.median(ratios)) > self._test.policy.tolerance)

    def _judge(self, *, is_last: bool) -> Verdict | None:
        """Return the verdict by the pairs so far, of which ``is_last`` says that no other is under way."""
        records = self._times.records()
        if not records:
            return None
        self._test.ratio = math.exp(statistics.fmean(log_ratios(records)))
        policy, counted = self._test.policy, self._opener.has_counts
        verdict = judge_records(records, policy, final=False, history=self._history, counted=counted)
        if verdict is None and is_last and self._times.is_up:
            verdict = judge_records(records, policy, final=True, history=self._history, counted=counted)
        return verdict

    # ------------------------------------------------------------------ one pair

    def _pair(self, index: int) -> Steps[None]:
        """Set up one pair and measure it; where its driver is lost, another one is to do that."""
        for attempt in range(_LOST_MOST):
            try:
                warm = yield from self._warm(index)
                yield from self._take(warm)
                return
            except DriverLostError:
                if attempt == _LOST_MOST - 1:
                    raise

    def _warm(self, index: int) -> Steps[WarmPair]:
        """Set up one pair in a lane, and warm it up."""
        test = self._test
        held: Held = yield test.lane(index, whole=test.needs_machine is None)
        pair, share_s = None, 0.0
        try:
            started_s = time.monotonic()
            pair = yield from self._opener.open(index, self._server())
            setup_s = time.monotonic() - started_s
            self.first = self.first or pair
            share_s = self._times.share_s()
            test.show(f"pair {index + 1}")
            order = wire.WarmAll(share_s, self._shape, self._call_s, pair.slowed, calls=self._calls)
            warmed: wire.Warmed = yield from test.ask(pair.driver, order, share_s + test.patience_s)
        except BaseException:
            held.release()
            if share_s:
                self._times.give_back(share_s)
            if pair is not None and pair.driver is not test.reporter:
                test.let_go(pair.driver)
            raise
        self._opener.warmed(warmed)
        if self._shape is None:
            self._shape, self._call_s = warmed.head.shape, warmed.head.call_s
            self._calls = warmed.head.calls
            self._single = warmed.base.single is True, warmed.head.single is True
        sides = (warmed.base, warmed.head)
        # As many calls as a busy machine made slowly may take a later pair too little time to find out.
        found = [known if side.single is None else side.single for side, known in zip(sides, self._single, strict=True)]
        is_single = all(found)
        share_s = self._times.share_again_s(index, share_s, is_single=is_single)
        needs_machine = not is_single or any(side.accelerated for side in sides)
        test.needs_machine = needs_machine or (index > 0 and test.needs_machine is True)
        if not test.needs_machine:
            held.narrow()
        return WarmPair(index, pair, held, share_s, setup_s, is_single)

    def _take(self, warm: WarmPair) -> Steps[None]:
        """Measure a pair in its lane, or with the machine to itself where it needs that."""
        test, held, (driver, import_s, _) = self._test, warm.held, warm.open
        try:
            if test.needs_machine and not held.is_whole:
                held.release()
                held = yield test.lane(warm.number)
            cpu = held.cpu if warm.is_single else None
            order = wire.TakePair(cpu, warm.share_s, self._times.enough_error, self._reads)
            taken: wire.Taken = yield from test.ask(driver, order, warm.share_s + test.patience_s)
            record = replace(taken.pair, setup_s=warm.setup_s, loader=driver.preloaded, import_s=import_s)
            self._times.add(warm.number, warm.share_s, record, taken.traced, taken.rounds)
            yield from self._opener.close(warm.number, warm.open)
        except BaseException as error:
            if isinstance(error, DriverLostError):
                self._times.give_back(warm.share_s)
            if driver is not test.reporter:
                test.let_go(driver)
            raise
        finally:
            held.release()
