"""The self-check: one test is compared with itself, unchanged and with known slowdowns."""

from __future__ import annotations

import time

from pytest_rlperf import wire
from pytest_rlperf.model.judged import Selfcheck, SlowdownTrial
from pytest_rlperf.model.measured import Result, test_name
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.pairs import OpenPair, Pairs
from pytest_rlperf.run.results import make_result
from pytest_rlperf.run.schedule import Steps
from pytest_rlperf.run.test import SEED, OpenTest

SLOWDOWNS: tuple[float, ...] = (0.02, 0.03, 0.05, 0.10)


def check_self(test: OpenTest, drivers: Drivers) -> Steps[Selfcheck]:
    """Compare one test with itself, unchanged and with known slowdowns.

    Both sides run the same code, each in its own workers. The trials of a test share their pairs, so a difference
    between two processes shows equally in all trials.
    """
    drivers = drivers.of(fresh=test.fresh)
    opened: dict[tuple[int, int], OpenPair] = {}

    def open_pair(index: int, server: int) -> Steps[OpenPair]:
        """Return the pair that an earlier trial has opened, or a new one."""
        pair = opened.get((index, server))
        if pair is None or not pair.driver.alive:
            driver = yield from drivers.lease([each.driver for each in opened.values()], server=server)
            yield from test.open(driver, [SEED] * 2, last_first=not index % 2)
            yield from test.ask(driver, wire.CheckAll())
            pair = opened[index, server] = OpenPair(driver, stays=True)
        return pair

    result: Result | None = None
    trials: list[SlowdownTrial] = []
    for slowdown in (0.0, *SLOWDOWNS):
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        test.title = f"{test_name(test.key)}, {change}"
        slowed = wire.Slowdown(slowdown, None if slowdown else 0)
        taken = yield from Pairs(test, open_pair, slowed=slowed).take()
        assert test.called is not None
        result = result or make_result(test.key, test.called, taken.measured.of_side("head"))
        trials.append(SlowdownTrial(slowdown, taken.verdict, taken.measured.pairs, time.monotonic() - started_s))
    assert result is not None
    return Selfcheck(result, tuple(trials))
