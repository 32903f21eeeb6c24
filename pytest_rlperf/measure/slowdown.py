"""Known slowdowns: real work beside a workload's own, sized in the run that uses it.

The extra work is arithmetic of the interpreter, in steps of tens of nanoseconds. How many steps make a given share of
a call is found by turns with the call itself, just before they are used: at another time the same steps may be
another share.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import repeat

from pytest_rlperf.measure.figures import trimmed_mean

_ROUNDS = 9
_ROUNDS_LEAST = 3
_TOO_LONG_NS = 5_000_000_000  # for more than the fewest rounds
_LONG_ENOUGH_NS = 1_000_000_000  # for all rounds: an error here is an error in every slowdown
_LONG_CALL_NS = 2_000_000  # caches that a call finds cold are no more than a thousandth of it
_CALLS_NS = 4_000_000
_ROUND_NS = 200_000
_STEPS = 1000


def slowed(call: Callable[[], object], steps: int) -> Callable[[], object]:
    """Return ``call`` followed by ``steps`` of extra work."""

    def both() -> object:
        result = call()
        work(steps)
        return result

    return both


def steps_for(
    share: float, call: Callable[[], object], setup: Callable[[], None] | None, clock: Callable[[], int]
) -> int:
    """Return the steps that make a call longer by ``share``, as found from calls with and without some.

    Work between calls costs more than the same work by itself, for it and the call throw each other out of the
    caches; so few and many steps are measured beside the call, and the right number is interpolated between them.
    Beside a long call that difference is small, but calls differ by more than a few steps take: there work as long as
    the call is measured beside it, and a share of that is taken. ``setup`` runs untimed before each call, where the
    call needs it.
    """
    as_long, call_ns = _as_long(call, setup, clock)
    few = max(1, round(share * as_long))
    if call_ns >= _LONG_CALL_NS:
        many = max(few, round(as_long))
        (at_many,) = _added(call, (many,), setup, clock)
        return round(share / at_many * many) if at_many > 0 else few
    low, high = max(1, few // 2), 2 * few + 8
    at_low, at_high = _added(call, (low, high), setup, clock)
    if at_high <= at_low:
        return few  # the measurement is too noisy to interpolate
    return max(0, round(low + (share - at_low) / (at_high - at_low) * (high - low)))


def _added(
    call: Callable[[], object], counts: Sequence[int], setup: Callable[[], None] | None, clock: Callable[[], int]
) -> list[float]:
    """Return by what share each of ``counts`` steps after a call makes it longer."""
    variants = (call, *(slowed(call, steps) for steps in counts))
    rounds: list[list[float]] = []
    start_ns = clock()
    while _goes_on(len(rounds), clock() - start_ns):
        plain_ns, *slowed_ns = (_call_ns(variant, clock, setup) for variant in variants)
        rounds.append([taken_ns / plain_ns - 1 for taken_ns in slowed_ns])
    return [trimmed_mean(shares) for shares in zip(*rounds, strict=True)]


def _as_long(
    call: Callable[[], object], setup: Callable[[], None] | None, clock: Callable[[], int]
) -> tuple[float, float]:
    """Return how many steps take as long as a call, each by itself, and the nanoseconds of a call."""
    calls_ns: list[float] = []
    ratios: list[float] = []
    start_ns = clock()
    while len(ratios) < _ROUNDS_LEAST or (len(ratios) < _ROUNDS and clock() - start_ns < _TOO_LONG_NS):
        calls_ns.append(_call_ns(call, clock, setup))
        ratios.append(calls_ns[-1] / (_call_ns(_thousand, clock) / _STEPS))
    return statistics.median(ratios), statistics.median(calls_ns)


def _goes_on(rounds: int, taken_ns: int) -> bool:
    """Return whether one more round is worth its time: long calls have few."""
    if rounds < _ROUNDS_LEAST:
        return True
    return taken_ns < (_TOO_LONG_NS if rounds < _ROUNDS else _LONG_ENOUGH_NS)


def _thousand() -> int:
    return work(_STEPS)


def work(steps: int) -> int:
    """Do a fixed amount of arithmetic ``steps`` times over."""
    state = 1
    for _ in repeat(None, steps):
        state = (48271 * state) % 2147483647
    return state


def _call_ns(call: Callable[[], object], clock: Callable[[], int], setup: Callable[[], None] | None = None) -> float:
    """Return the median nanoseconds of a call, over a few milliseconds or one call."""
    iterations = 1
    rounds_ns: list[float] = []
    end_ns = clock() + _CALLS_NS
    while True:
        if setup is not None:
            setup()
        calls = repeat(None, iterations)
        start_ns = clock()
        for _ in calls:
            call()
        now_ns = clock()
        rounds_ns.append((now_ns - start_ns) / iterations)
        if setup is None and rounds_ns[-1] * iterations < _ROUND_NS:
            iterations *= 2
            rounds_ns.clear()  # the clock was too much of so short a round
        elif now_ns >= end_ns:
            return statistics.median(rounds_ns)
