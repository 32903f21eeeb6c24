"""Rounds: back-to-back calls under one pair of clock readings, and fixed work that is timed beside or added to them.

A slice of 5-20 ms is some rounds of a workload or of a reference kernel.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from itertools import repeat

import msgspec

from pytest_rlperf.model.durations import SLICE_S
from pytest_rlperf.model.measured import Shape

LONG_CALL_S = 0.002  # from here on, a turn's three rounds are too few for a median: a slice's figure is the mean
_ROUND_RESOLUTIONS = 1000  # a round is this many clock resolutions long, so that reading the clock costs 0.1 %
_STEADY_CALLS = 8  # at least: a round's time includes the device's first wait for work and its last
_STEADY_S = 0.25  # for that many long calls
_STEADY_TRACED = 32  # at most: calls in a row whose phases a device stamps before they are read

ClockNs = Callable[[], int]


class Clocks(msgspec.Struct, frozen=True):
    """A meter's clocks, in nanoseconds; ``floor_ns`` is the cost of two readings of wall time, or its resolution."""

    wall_ns: ClockNs
    cpu_ns: ClockNs
    floor_ns: float

    @classmethod
    def host(cls, wall_ns: ClockNs = time.perf_counter_ns, cpu_ns: ClockNs = time.process_time_ns) -> Clocks:
        """Return this machine's clocks, as they were at import time: a test may replace those in ``time``."""
        pair_ns = min(_pair_ns(wall_ns) for _ in range(20))
        resolution_ns = 1e9 * time.get_clock_info("perf_counter").resolution
        return cls(wall_ns, cpu_ns, max(pair_ns, resolution_ns))


def _pair_ns(clock: ClockNs) -> float:
    """Return the nanoseconds of two readings, averaged over a hundred readings."""
    start_ns = clock()
    for _ in repeat(None, 50):
        clock()
        clock()
    return (clock() - start_ns) / 51


class Timed(msgspec.Struct, frozen=True):
    """The parts of a round: ``setup`` before the clock is read, then calls, and ``finish`` once within their time."""

    call: Callable[[], object]
    setup: Callable[[], None] | None
    finish: Callable[[], None] | None = None


def slice_shape(
    call_s: float, floor_ns: float, *, single: bool, long: bool | None = None, slice_s: float = SLICE_S
) -> Shape:
    """Return the rounds and iterations that fill a slice of ``slice_s`` with calls of ``call_s``.

    A round is at least 1000 times ``floor_ns`` long, unless ``single`` limits a round to one call.
    """
    call_ns = max(1.0, 1e9 * call_s)
    iterations = 1 if single else max(1, math.ceil(_ROUND_RESOLUTIONS * floor_ns / call_ns))
    rounds = max(1, round(1e9 * slice_s / (iterations * call_ns)))
    return Shape(iterations=iterations, rounds=rounds, long=call_s >= LONG_CALL_S if long is None else long)


def steady_shape(shape: Shape, call_s: float, *, single: bool) -> Shape:
    """Return a slice of one round, for calls that follow each other on a device without waiting for it.

    It has at least as many calls as ``shape``, and at least eight, or as many as fit a quarter of a second, but at
    least two, as a single call follows nothing. Calls with a setup of their own (``single``) cannot follow each other:
    their rounds stay one call.
    """
    if single:
        return shape
    fitting = min(_STEADY_CALLS, max(2, int(_STEADY_S / max(call_s, 1e-9))))
    return Shape(iterations=max(shape.iterations * shape.rounds, fitting), rounds=1, long=shape.long)


def traced_shape(shape: Shape) -> Shape:
    """Return the slice that records the phases of calls on a device, from the slice that times them."""
    return Shape(iterations=min(shape.iterations, _STEADY_TRACED), rounds=shape.rounds, long=shape.long)


def kernel_shape(call_s: float) -> Shape:
    """Return the rounds that fill a slice with kernel calls of ``call_s``."""
    rounds = max(1, round(SLICE_S / (_KERNEL_ITERATIONS * max(call_s, 1e-9))))
    return Shape(iterations=_KERNEL_ITERATIONS, rounds=rounds, long=False)


def slice_figure_ns(rounds_ns: list[int], shape: Shape) -> float:
    """Return a slice's nanoseconds per call: the mean round for long calls, the median for short ones."""
    average = statistics.fmean if shape.long else statistics.median
    return average(rounds_ns) / shape.iterations


def round_ns(timed: Timed, iterations: int, clock: ClockNs, extra_steps: int = 0) -> int:
    """Run ``iterations`` calls back to back under one pair of clock readings, and ``extra_steps`` of extra work."""
    __tracebackhide__ = True
    call, finish = timed.call, timed.finish
    if extra_steps or finish is not None:
        start_ns = clock()
        for _ in repeat(None, iterations):
            call()
        if finish is not None:
            finish()
        if extra_steps:
            work(extra_steps)  # after the wait for a device, which would hide it
        return clock() - start_ns
    if iterations == 1:
        start_ns = clock()
        call()
        return clock() - start_ns
    calls = repeat(None, iterations)
    start_ns = clock()
    for _ in calls:
        call()
    return clock() - start_ns


_KERNEL_ITERATIONS = 2  # calls per round: a fixed number, as one call's median round is not that of two


def work(steps: int) -> int:
    """Do a fixed amount of arithmetic ``steps`` times over."""
    state = 1
    for _ in repeat(None, steps):
        state = (48271 * state) % 2147483647
    return state
