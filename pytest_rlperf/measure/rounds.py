"""Rounds: back-to-back calls under one pair of clock readings, and fixed work that is timed beside or added to them.

A slice of 5-20 ms is some rounds of a workload or of a reference kernel. The kernels are two fixed pieces of work,
which stored times are relative to. A slow spell of the machine slows a kernel down too. So the ratio of a workload's
time to the kernel's, taken by turns within tens of milliseconds, is stable where the times are not. One kernel moves
with the pace of the processor alone. The other also reads memory at random, in about the proportion that a replay
buffer's sample does: a neighbour that fills the shared cache slows both of these by about as much, and leaves a loop of
Python as it is (``docs/evidence.md``). They use nothing but the interpreter and its standard library, so that no
package upgrade moves them; the interpreter's minor version is part of the machine class.

Known slowdowns are extra work of the interpreter beside a workload's own, arithmetic in steps of tens of nanoseconds.
How many steps make a given share of a call is found by turns with the call itself, just before they are used: at
another time the same steps may be another share.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from operator import itemgetter

from pytest_rlperf.measure.figures import trimmed_mean
from pytest_rlperf.model.measured import Shape, SliceKind

SLICE_S = 0.015
TURN_S = 0.0075  # a slice in turn with another process: the machine's pace changes within tens of milliseconds
LONG_CALL_S = 0.002  # from here on a slice holds too few rounds for a median, three in a turn: its figure is the mean
_ROUND_RESOLUTIONS = 1000  # a round is this many clock resolutions long, so that reading the clock costs 0.1 %
_STEADY_CALLS = 8  # at least: the device's first wait for work and its last are parts of one round's time
_STEADY_S = 0.25  # for so many, of long calls
_STEADY_TRACED = 32  # calls in a row at most whose phases a device stamps before they are read

ClockNs = Callable[[], int]


@dataclass(frozen=True)
class Clocks:
    """A meter's clocks, in nanoseconds; ``floor_ns`` is the cost of two readings of wall time, or its resolution."""

    wall_ns: ClockNs
    cpu_ns: ClockNs
    floor_ns: float

    @classmethod
    def host(cls, wall_ns: ClockNs = time.perf_counter_ns, cpu_ns: ClockNs = time.process_time_ns) -> Clocks:
        """Return this machine's clocks: those of import time, for a test may put others in the place of time's."""
        pair_ns = min(_pair_ns(wall_ns) for _ in range(20))
        resolution_ns = 1e9 * time.get_clock_info("perf_counter").resolution
        return cls(wall_ns, cpu_ns, max(pair_ns, resolution_ns))


def _pair_ns(clock: ClockNs) -> float:
    """Return the nanoseconds of two readings, over a hundred of them."""
    start_ns = clock()
    for _ in repeat(None, 50):
        clock()
        clock()
    return (clock() - start_ns) / 51


@dataclass(frozen=True)
class Timed:
    """The parts of a round: ``setup`` before the clock is read, then calls, and within their time ``finish`` once."""

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

    It has as many calls as ``shape``, or eight, or as many as fit a quarter of a second where that is more; at least
    two, for a single call follows nothing. Calls with a setup of their own (``single``) cannot follow each
    other: there a round stays one call.
    """
    if single:
        return shape
    fitting = min(_STEADY_CALLS, max(2, int(_STEADY_S / max(call_s, 1e-9))))
    return Shape(iterations=max(shape.iterations * shape.rounds, fitting), rounds=1, long=shape.long)


def traced_shape(shape: Shape) -> Shape:
    """Return the slice in which the phases of calls on a device are recorded, of the slice that times them."""
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


# --------------------------------------------------------------------------- reference kernels

_KERNEL_ITERATIONS = 2  # calls a round: of a fixed number, as the median round of one call is not that of two
_KERNEL_STEPS = 400
_MEMORY_BYTES = 16 << 20  # about as much as a replay buffer of 100k small transitions; larger than a core's own caches
_GATHERS = 32
_GATHERED = 2000


def make_kernels() -> dict[SliceKind, Callable[[], object]]:
    """Return both kernels by the kind of slice that runs them; one pair serves a process, the memory's takes room."""
    return {SliceKind.INTERPRETER: interpreter_kernel(), SliceKind.MEMORY: memory_kernel()}


def interpreter_kernel() -> Callable[[], object]:
    """Return a fixed amount of interpreter work: arithmetic, dict and list traffic, calls."""
    table = {index: float(index) for index in range(64)}
    cells = list(range(256))

    def mix(left: float, right: float) -> float:
        return 0.5 * (left + right)

    def kernel() -> float:
        total = 0.0
        state = 1
        for index in range(_KERNEL_STEPS):
            state = (1103515245 * state + 12345) & 0x7FFFFFFF
            cells[index & 255] = state & 63
            total = mix(total, table[cells[(index * 7) & 255] & 63])
        return total

    return kernel


def memory_kernel() -> Callable[[], object]:
    """Return the interpreter's work, and reads at random places of a buffer that a core's own caches do not hold."""
    places = random.Random(0)
    buffer = bytearray(b"\x01") * _MEMORY_BYTES  # written, so that every page of it is its own
    gathers = cycle([itemgetter(*(places.randrange(_MEMORY_BYTES) for _ in range(_GATHERED))) for _ in range(_GATHERS)])
    interpret = interpreter_kernel()

    def kernel() -> object:
        return interpret(), next(gathers)(buffer)

    return kernel


# --------------------------------------------------------------------------- known slowdowns

_ROUNDS = 9
_ROUNDS_LEAST = 3
_TOO_LONG_NS = 5_000_000_000  # for more than the fewest rounds
_LONG_ENOUGH_NS = 1_000_000_000  # for all rounds: an error here is an error in every slowdown
_LONG_CALL_NS = 2_000_000  # caches that a call finds cold are no more than a thousandth of it
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
    """Return the steps that make a call longer by ``share``, as found from calls with and without some.

    Work between calls costs more than the same work by itself, for it and the call throw each other out of the
    caches; so few and many steps are measured beside the call, and the right number is interpolated between them.
    Beside a long call that difference is small, but calls differ by more than a few steps take: there work as long as
    the call is measured beside it, and a share of that is taken. ``setup`` runs untimed before each call, where the
    call needs it.
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


def work(steps: int) -> int:
    """Do a fixed amount of arithmetic ``steps`` times over."""
    state = 1
    for _ in repeat(None, steps):
        state = (48271 * state) % 2147483647
    return state


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
            rounds_ns.clear()  # the clock was too much of so short a round
        elif clock() >= end_ns:
            return statistics.median(rounds_ns)
