"""The time of a run: the part that each test gets, and an estimate of the time left."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence

from pytest_rlperf.options import Config

_LEAST_LEFT = 0.25  # of its usual time, expected for a test that has already taken longer than that
_BUDGET_S = 1800.0  # for all tests, if no budget is given
_LEAST_PAIR_S = 3.0  # of the budget, for each of a test's fewest pairs
_INSTANT_S = 1e-6
_SLOWER = 2  # times the pace so far: the tests to come need no more


class Budget:
    """The time for all tests of a run: each test gets an equal part of the time left when it begins.

    So tests that are settled early leave their time to others, and to those that are UNDECIDED when their time is up.
    ``lanes`` tests are measured at once. Without --rlperf-total-time many tests get less than --rlperf-max-time each,
    but always enough for the fewest pairs.
    """

    def __init__(
        self, settings: Config, tests: int, lanes: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lanes = lanes
        self._tests = self._tests_left = tests
        given_s = settings.total_time_s
        # The time of imports and fixtures is not counted, so that a pair's time is about that of a quiet machine.
        least_s = settings.pairs[0] * _LEAST_PAIR_S
        if given_s is None:
            given_s = math.inf if settings.selfcheck else max(_BUDGET_S, tests * least_s / lanes)
        self._total_s = given_s
        self._least_s = least_s if settings.total_time_s is None else _INSTANT_S
        self._end_s: float | None = None

    def next_s(self) -> float:
        """Return the longest time for the test that begins now."""
        tests, self._tests_left = max(1, self._tests_left), self._tests_left - 1
        now_s = self._clock()
        self._end_s = now_s + self._total_s if self._end_s is None else self._end_s
        left_s = self._end_s - now_s
        return max(self._least_s, left_s * min(self._lanes, tests) / tests)

    def spare_s(self) -> float:
        """Return the time that the tests to come do not need, not even at half the pace so far; 0 without a limit."""
        if self._end_s is None or math.isinf(self._end_s):
            return 0.0
        left_s = self._end_s - self._clock()
        begun = max(1, self._tests - self._tests_left)
        return max(0.0, left_s - _SLOWER * (self._total_s - left_s) / begun * self._tests_left)


class TimeLeft:
    """Estimates the time that a run's tests will take: as in earlier runs here, but more and more at this run's pace.

    ``usual_s`` are the seconds by tests, as ``learned_s`` of the run before returned them. ``lanes`` tests run at once.
    """

    def __init__(
        self,
        keys: Sequence[str],
        usual_s: Mapping[str, float],
        lanes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        known = [usual_s[key] for key in keys if key in usual_s]
        self._expected_s = {key: usual_s.get(key, sum(known) / len(known)) for key in keys} if known else {}
        self._usual_s, self._lanes, self._clock = usual_s, lanes, clock
        self._begun_s: dict[str, float] = {}
        self._took_s: dict[str, float] = {}

    def leave_out(self, key: str) -> None:
        """Expect no time for a test that need not be measured."""
        self._expected_s.pop(key, None)

    def begin(self, key: str) -> None:
        """Note that a test begins."""
        self._begun_s[key] = self._clock()

    def end(self, key: str) -> None:
        """Note that a test is done."""
        self._took_s[key] = self._clock() - self._begun_s[key]

    def left_s(self) -> float:
        """Return the time left, 0 if no earlier run says how long tests take."""
        if not self._expected_s:
            return 0.0
        took_s, now_s = dict(self._took_s), self._clock()
        whole_s = sum(self._expected_s.values())  # it weighs as much in the pace as all tests that ended
        pace = (whole_s + sum(took_s.values())) / (whole_s + sum(self._expected_s[key] for key in took_s))
        ends_s = [0.0] * self._lanes
        for key, expected_s in self._expected_s.items():
            if key not in took_s:
                spent_s = now_s - self._begun_s.get(key, now_s)
                heapq.heapreplace(ends_s, ends_s[0] + max(expected_s * pace - spent_s, _LEAST_LEFT * expected_s))
        return max(ends_s)

    def learned_s(self) -> dict[str, float]:
        """Return the usual seconds of tests: each run moves them half of the way to its own."""
        moved = {key: (took_s + self._usual_s.get(key, took_s)) / 2 for key, took_s in self._took_s.items()}
        return {**self._usual_s, **moved}
