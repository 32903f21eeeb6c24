"""The self-check: one test is compared with itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time

from pytest_rlperf import wire
from pytest_rlperf.model.judged import Selfcheck, Trial
from pytest_rlperf.model.measured import Result, test_name
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.live_pairs import LivePairs, OpenPair
from pytest_rlperf.run.on_test import SEED, OnTest
from pytest_rlperf.run.results import make_result
from pytest_rlperf.run.schedule import Steps

SLOWDOWNS: tuple[float, ...] = (0.02, 0.03, 0.05, 0.10)


class _SlowedPairs:
    """The pairs of one trial, which all trials of a test share: head's workers do extra work in every round.

    They do as many steps in every pair: otherwise pairs would differ by the errors of sizing.
    """

    has_counts = False

    def __init__(self, test: OnTest, drivers: Drivers, open_pairs: dict[tuple[int, int], OpenPair], slowdown: float):
        self._test = test
        self._drivers = drivers
        self._open_pairs = open_pairs
        self._slowdown = slowdown
        self._steps: int | None = None if slowdown else 0

    def open(self, index: int, server: int) -> Steps[OpenPair]:
        """Return the pair that an earlier trial has opened, or a new one."""
        pair = self._open_pairs.get((index, server))
        if pair is None or not pair.driver.alive:
            used = [each.driver for each in self._open_pairs.values()]
            driver = yield from self._drivers.lease(used, server=server)
            yield from self._test.open(driver, self._drivers, [SEED] * 2, last_first=not index % 2)
            yield from self._test.ask(driver, wire.CheckAll())
            pair = self._open_pairs[index, server] = OpenPair(driver)
        return pair._replace(slowed=wire.Slowdown(self._slowdown, self._steps))

    def warmed(self, warmed: wire.Warmed) -> None:
        """Have the other pairs of the trial do as many steps as the first."""
        self._steps = warmed.steps

    def close(self, index: int, pair: OpenPair) -> Steps[None]:
        """Keep a pair for the next trials."""
        yield from ()


def check_self(test: OnTest, drivers: Drivers) -> Steps[Selfcheck]:
    """Compare one test with itself, unchanged and with known slowdowns.

    Both sides run the same code, each in workers of its own. The trials of a test share their pairs: a difference
    between two processes shows in all trials alike.
    """
    pairs: dict[tuple[int, int], OpenPair] = {}
    drivers = test.of(drivers)
    result: Result | None = None
    trials: list[Trial] = []
    for slowdown in (0.0, *SLOWDOWNS):
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        test.begin(f"{test_name(test.key)}, {change}")
        verdict, measured = yield from LivePairs(test, _SlowedPairs(test, drivers, pairs, slowdown)).run()
        assert test.called is not None
        result = result or make_result(test.key, test.called, measured.head)
        trials.append(Trial(slowdown, verdict, measured.pairs, time.monotonic() - started_s))
    assert result is not None
    return Selfcheck(result, tuple(trials))
