"""One process's side of measuring: check, warm up, size the rounds, take slices of 10-20 ms."""

from __future__ import annotations

import gc
import math
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import psutil

from pytest_rlperf.measure.kernel import ITERATIONS
from pytest_rlperf.measure.placement import ActivityWatch, cpu_reader
from pytest_rlperf.measure.slowdown import steps_for, work
from pytest_rlperf.model import Probe, Shape, SliceKind, SliceRecord, Warm, Workload
from pytest_rlperf.timers import Tree, recording_into
from pytest_rlperf.timers.probes import attached, quieten_torchrl, standing_probes

SLICE_S = 0.015
LONG_CALL_S = 0.002  # from here on a slice holds too few rounds for a median: its figure is the mean
WARM_UP_S = 0.25
WARM_UP_MOST_S = 2.0
_WARM_UP_AGAIN_S = 0.1
_KERNEL_WARM_UP_S = 0.05
_WARM_BLOCK_S = 0.02
_ROUND_RESOLUTIONS = 1000  # a round is this many clock resolutions long, so that reading the clock costs 0.1 %

ClockNs = Callable[[], int]


@dataclass(frozen=True)
class Clocks:
    """Where a meter reads time: wall and CPU nanoseconds, and what reading the former twice costs or resolves."""

    wall_ns: ClockNs
    cpu_ns: ClockNs
    floor_ns: float

    @classmethod
    def host(cls) -> Clocks:
        """Return this machine's clocks."""
        wall_ns = time.perf_counter_ns
        pair_ns = min(_pair_ns(wall_ns) for _ in range(20))
        resolution_ns = 1e9 * time.get_clock_info("perf_counter").resolution
        return cls(wall_ns, time.process_time_ns, max(pair_ns, resolution_ns))


def _pair_ns(clock: ClockNs) -> float:
    """Return what two readings cost, over a hundred of them."""
    start_ns = clock()
    for _ in repeat(None, 50):
        clock()
        clock()
    return (clock() - start_ns) / 51


class _Round(NamedTuple):
    """One round's time; its CPU time is read for long calls only."""

    wall_ns: int
    cpu_ns: int


class Meter:
    """Takes slices of one workload and of the reference kernels, in this process; the latter are made when needed."""

    def __init__(
        self,
        workload: Workload,
        kernels: Callable[[], Mapping[SliceKind, Callable[[], object]]],
        clocks: Clocks | None = None,
    ) -> None:
        self.workload = workload
        self.clocks = clocks or Clocks.host()
        self._make_kernels = kernels
        self._kernels: Mapping[SliceKind, Callable[[], object]] = {}
        self._cpu = cpu_reader()
        self._shapes: dict[SliceKind, Shape] = {}
        self._call_s = 0.0
        self._extra_steps = 0
        self._single = False
        self._has_phases: bool | None = None
        quieten_torchrl()

    def check(self) -> float:
        """Run the component once, untimed by any verdict, and check it; return the seconds that took."""
        __tracebackhide__ = True
        start_ns = self.clocks.wall_ns()
        self.workload.check()
        self._call_s = (self.clocks.wall_ns() - start_ns) / 1e9
        return self._call_s

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        """Run until calls stop getting faster, for ``limit_s`` at most; size the slices unless ``shape`` is given.

        ``long`` says which figure a stored result has, for the new one to be told by the same. Without any time the
        checked call stands for the workload's pace, and nothing more is run. ``kernels`` says whether slices of the
        reference kernels will be asked for.
        """
        __tracebackhide__ = True
        start_ns = self.clocks.wall_ns()
        watch = ActivityWatch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if limit_s > 0:
                self._call_s = self._settle(self.workload.call, self.workload.setup, limit_s)
            activity = watch.seen()
            if limit_s > 0 and activity.threads is not None and activity.threads > 1:
                # A library's idle threads may spin for a while after it was loaded; one that works does so again.
                watch = ActivityWatch()
                self._settle(self.workload.call, self.workload.setup, _WARM_UP_AGAIN_S)
                activity = watch.seen()
            self._single = activity.is_single
            self._kernels = self._make_kernels() if kernels else {}
            for kind, kernel in self._kernels.items():
                self._shapes[kind] = kernel_shape(self._settle(kernel, None, _KERNEL_WARM_UP_S))
        if shape is None:
            single = self.workload.setup is not None
            shape = slice_shape(self._call_s, self.clocks.floor_ns, single=single, long=long)
        self._shapes |= {SliceKind.PLAIN: shape, SliceKind.TRACED: shape}
        self.workload.processed(0)  # what warming up processed belongs to no slice
        gc.collect()
        gc.freeze()  # a later collection need not walk what was there before measuring; thaw() undoes it
        warm_up_s = (self.clocks.wall_ns() - start_ns) / 1e9
        return Warm(
            shape=shape,
            call_s=self._call_s,
            warm_up_s=warm_up_s,
            threads=psutil.Process().num_threads(),
            single=self._single,
        )

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take one slice and return its figures; it comes after :meth:`warm_up`."""
        __tracebackhide__ = True
        shape = self._shapes[kind]
        kernel = self._kernels.get(kind)
        call, setup = (self.workload.call, self.workload.setup) if kernel is None else (kernel, None)
        trace = Tree(clock=self.clocks.wall_ns) if kind is SliceKind.TRACED else None
        probes: tuple[Probe, ...] = ()
        if trace is not None:
            call, probes = self._traced()
        collections, waits = _collections(), _waits()
        start_ns, start_cpu_ns = self.clocks.wall_ns(), self.clocks.cpu_ns()
        with warnings.catch_warnings():
            # The checked first call ran under the user's filters. Here a repeated warning costs what it costs
            # anywhere, a look at the filters, and not what pytest's recording of it would.
            warnings.simplefilter("ignore")
            with attached(probes):
                rounds = self._rounds(call, setup, shape, trace, 0 if kernel is not None else self._extra_steps)
        wall_ns, cpu_ns = self.clocks.wall_ns() - start_ns, self.clocks.cpu_ns() - start_cpu_ns
        rounds_ns = [round_.wall_ns for round_ in rounds]
        calls = shape.iterations * shape.rounds
        return SliceRecord(
            kind=kind,
            call_s=slice_figure_ns(rounds_ns, shape) / 1e9,
            rounds_s=sum(rounds_ns) / 1e9,
            calls=calls,
            items=0.0 if kernel is not None else self.workload.processed(calls),
            wall_s=(sum(rounds_ns) if shape.long else wall_ns) / 1e9,
            cpu_s=(sum(round_.cpu_ns for round_ in rounds) if shape.long else cpu_ns) / 1e9,
            waits=_waits() - waits,
            collections=_collections() - collections,
            cpu=self._cpu(),
            phases=() if trace is None else trace.phases(calls),
        )

    def _traced(self) -> tuple[Callable[[], object], tuple[Probe, ...]]:
        """Return the call that is recorded and the probes to put in place: code without timers is harvested."""
        workload = self.workload
        probes = (*standing_probes(), *workload.probes)
        if workload.harvest is None:
            return workload.call, probes
        if self._has_phases is None:
            tree = Tree(clock=self.clocks.wall_ns)
            if workload.setup is not None:
                workload.setup()
            with attached(probes), recording_into(tree):
                workload.call()
            workload.processed(0)
            self._has_phases = any(phase.depth for phase in tree.phases(1))
        if self._has_phases:
            return workload.call, probes
        return workload.harvest.call, (*standing_probes(), *workload.harvest.probes)

    def slow_down(self, share: float, steps: int | None) -> int:
        """Have every round do extra work from now on, ``share`` of it unless told in steps; return the steps.

        It is done once a round and not once a call, of which it may be too small a part to be sized.
        """
        if steps is None:
            # What holds up a single thread is not its work, and must not be taken for the measure of it.
            # Work that waits has hardly a CPU's time, of which a share is no share of the call.
            busy = self._single and self.take(SliceKind.PLAIN).waits == 0
            clock = self.clocks.cpu_ns if busy else self.clocks.wall_ns
            call, iterations = self.workload.call, self._shapes[SliceKind.PLAIN].iterations

            def calls() -> None:
                for _ in repeat(None, iterations):
                    call()

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as in slices
                steps = steps_for(share, calls, self.workload.setup, clock)
        self._extra_steps = steps
        self.workload.processed(0)
        return steps

    def thaw(self) -> None:
        """Give the objects frozen by warming up back to the collector, and release what the fixture made."""
        gc.unfreeze()
        self.workload.close()

    def _rounds(
        self,
        call: Callable[[], object],
        setup: Callable[[], None] | None,
        shape: Shape,
        trace: Tree | None,
        extra_steps: int,
    ) -> list[_Round]:
        """Time each round by itself; ``setup`` runs before the clock is read, and unrecorded."""
        __tracebackhide__ = True
        wall_ns, cpu_ns = self.clocks.wall_ns, self.clocks.cpu_ns
        rounds = []
        for _ in range(shape.rounds):
            if setup is not None:
                setup()
            with nullcontext() if trace is None else recording_into(trace):
                start_cpu_ns = cpu_ns() if shape.long else 0
                round_ns = _round_ns(call, shape.iterations, wall_ns, extra_steps)
                rounds.append(_Round(round_ns, cpu_ns() - start_cpu_ns if shape.long else 0))
        return rounds

    def _settle(self, call: Callable[[], object], setup: Callable[[], None] | None, limit_s: float) -> float:
        """Run blocks of calls until their median stops falling; return the mean seconds of a call by then."""
        __tracebackhide__ = True
        clock = self.clocks.wall_ns
        deadline_ns = clock() + int(1e9 * min(limit_s, WARM_UP_MOST_S))
        enough_ns = clock() + int(1e9 * min(limit_s, WARM_UP_S))
        iterations = 1
        medians: list[float] = []
        means: list[float] = []
        while True:
            block_ns: list[float] = []
            block_end_ns = clock() + int(1e9 * _WARM_BLOCK_S)
            while True:
                if setup is not None:
                    setup()
                block_ns.append(_round_ns(call, iterations, clock) / iterations)
                if setup is None and block_ns[-1] * iterations < 10 * self.clocks.floor_ns:
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


def slice_shape(call_s: float, floor_ns: float, *, single: bool, long: bool | None = None) -> Shape:
    """Return the rounds and iterations that fill a slice with calls of ``call_s``.

    A round is at least 1000 times ``floor_ns`` long, unless ``single`` asks for one call a round.
    """
    call_ns = max(1.0, 1e9 * call_s)
    iterations = 1 if single else max(1, math.ceil(_ROUND_RESOLUTIONS * floor_ns / call_ns))
    rounds = max(1, round(1e9 * SLICE_S / (iterations * call_ns)))
    return Shape(iterations=iterations, rounds=rounds, long=call_s >= LONG_CALL_S if long is None else long)


def kernel_shape(call_s: float) -> Shape:
    """Return the rounds that fill a slice with kernel calls of ``call_s``."""
    rounds = max(1, round(SLICE_S / (ITERATIONS * max(call_s, 1e-9))))
    return Shape(iterations=ITERATIONS, rounds=rounds, long=False)


def slice_figure_ns(rounds_ns: list[int], shape: Shape) -> float:
    """Return a slice's nanoseconds per call: the mean round for long calls, the median for short ones."""
    average = statistics.fmean if shape.long else statistics.median
    return average(rounds_ns) / shape.iterations


def _round_ns(call: Callable[[], object], iterations: int, clock: ClockNs, extra_steps: int = 0) -> int:
    """Run ``iterations`` calls back to back under one pair of clock readings, and extra work where that is asked."""
    __tracebackhide__ = True
    if extra_steps:
        start_ns = clock()
        for _ in repeat(None, iterations):
            call()
        work(extra_steps)
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


def _collections() -> int:
    """Return how often the garbage collector has run in this process."""
    return sum(generation["collections"] for generation in gc.get_stats())


def _waits() -> int:
    """Return how often this process has given up its CPU by itself."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
