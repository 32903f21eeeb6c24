"""Known slowdowns: extra interpreter work beside a workload's own, arithmetic in steps of tens of nanoseconds.

The number of steps in a given share of a call is measured in turns with the call itself, just before they are used: at
another time, the same steps may be another share.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from pytest_rlperf.model.figures import trimmed_mean
from pytest_rlperf.worker.rounds import Timed, round_ns, work

_ROUNDS = 9
_ROUNDS_LEAST = 3
_TOO_LONG_NS = 5_000_000_000  # of a round: from here on, the fewest rounds are enough
_LONG_ENOUGH_NS = 1_000_000_000  # for all rounds: an error here is an error in every slowdown
_LONG_CALL_NS = 2_000_000  # cold caches cost at most a thousandth of such a call
_CALLS_NS = 4_000_000
_ROUND_NS = 200_000
_THOUSAND = 1000  # steps, which take tens of microseconds


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
    """Return the steps that make a call longer by ``share``, as measured by calls with and without steps.

    Work between calls costs more than the same work by itself, as it and the call throw each other out of the caches.
    So few and many steps are measured beside the call, and the right number is interpolated between them. Beside a long
    call that difference is small, but calls differ by more than a few steps take. So work as long as the call is
    measured beside it, and a share of that work is taken. ``setup``, if the call needs it, runs untimed before each
    call.
    """
    call_ns, thousand = _by_turns([call, _thousand], setup, clock, enough_ns=0)
    few = max(1, round(share * _THOUSAND / thousand))
    if call_ns >= _LONG_CALL_NS:
        many = max(few, round(_THOUSAND / thousand))
        _, at_many = _by_turns([call, slowed(call, many)], setup, clock)
        return round(share / (at_many - 1) * many) if at_many > 1 else few
    low, high = max(1, few // 2), 2 * few + 8
    _, at_low, at_high = _by_turns([call, slowed(call, low), slowed(call, high)], setup, clock)
    if at_high <= at_low:
        return few  # the measurement is too noisy to interpolate
    return max(0, round(low + (1 + share - at_low) / (at_high - at_low) * (high - low)))


def _by_turns(
    calls: Sequence[Callable[[], object]],
    setup: Callable[[], None] | None,
    clock: Callable[[], int],
    enough_ns: int = _LONG_ENOUGH_NS,
) -> list[float]:
    """Return the nanoseconds of the first call, and how many times as long each of the others takes.

    They are measured for ``enough_ns``, and in some rounds at least; long calls have few.
    """
    rounds: list[list[float]] = []
    start_ns = clock()
    while len(rounds) < _ROUNDS_LEAST or clock() - start_ns < (_TOO_LONG_NS if len(rounds) < _ROUNDS else enough_ns):
        first_ns, *others_ns = (_call_ns(call, clock, setup) for call in calls)
        rounds.append([first_ns, *(taken_ns / first_ns for taken_ns in others_ns)])
    return [trimmed_mean(column) for column in zip(*rounds, strict=True)]


def _thousand() -> int:
    return work(_THOUSAND)


def _call_ns(call: Callable[[], object], clock: Callable[[], int], setup: Callable[[], None] | None) -> float:
    """Return the median nanoseconds of a call, over a few milliseconds or one call."""
    iterations = 1
    rounds_ns: list[float] = []
    end_ns = clock() + _CALLS_NS
    while True:
        if setup is not None:
            setup()
        rounds_ns.append(round_ns(Timed(call, None), iterations, clock) / iterations)
        if setup is None and rounds_ns[-1] * iterations < _ROUND_NS:
            iterations *= 2
            rounds_ns.clear()  # the clock took too much of the round
        elif clock() >= end_ns:
            return statistics.median(rounds_ns)
