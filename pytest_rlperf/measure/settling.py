"""Warming up: calls are run until they stop getting faster."""

from __future__ import annotations

import statistics

from pytest_rlperf.measure.rounds import Clocks, Timed, round_ns

WARM_UP_S = 0.25
WARM_UP_MOST_S = 2.0
WARM_UP_AGAIN_S = 0.1
_BLOCK_S = 0.02


def settle(timed: Timed, limit_s: float, clocks: Clocks) -> float:
    """Run blocks of calls until their median stops falling; return the mean seconds of a call by then."""
    __tracebackhide__ = True
    clock = clocks.wall_ns
    deadline_ns = clock() + int(1e9 * min(limit_s, WARM_UP_MOST_S))
    enough_ns = clock() + int(1e9 * min(limit_s, WARM_UP_S))
    iterations = 1
    medians: list[float] = []
    means: list[float] = []
    while True:
        block_ns: list[float] = []
        block_end_ns = clock() + int(1e9 * _BLOCK_S)
        while True:
            if timed.setup is not None:
                timed.setup()
            block_ns.append(round_ns(timed, iterations, clock) / iterations)
            if timed.setup is None and block_ns[-1] * iterations < 10 * clocks.floor_ns:
                iterations *= 4  # the clock would be most of so short a round
            if clock() >= block_end_ns:
                break
        medians.append(statistics.median(block_ns))
        means.append(statistics.fmean(block_ns))
        falling = len(medians) > 1 and medians[-1] < 0.98 * min(medians[-4:-1])
        now_ns = clock()
        if now_ns >= deadline_ns or (now_ns >= enough_ns and not falling):
            # Calls may be of different lengths, which a block's mean tells, and one stall is one block's.
            return statistics.median(means[-3:]) / 1e9
