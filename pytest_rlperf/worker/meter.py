"""One process's side of measuring: check, warm up, size the rounds, take slices of 5-20 ms."""

from __future__ import annotations

import gc
import mmap
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import repeat
from os import _exit, getpid
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf.components.checks import output_parts
from pytest_rlperf.counters.compiled import Programs
from pytest_rlperf.counters.memory import quiet
from pytest_rlperf.devices import live_arrays, new_arrays
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.durations import PAIR_WARM_UP_S, SLICE_S, TURN_S, WARM_UP_AGAIN_S, WARM_UP_MOST_S, WARM_UP_S
from pytest_rlperf.model.measured import (
    Harvest,
    OutputPart,
    Shape,
    Share,
    SliceKind,
    SliceRecord,
    Usage,
    Warm,
    Workload,
)
from pytest_rlperf.probes import attached
from pytest_rlperf.probes.torch import quieten_ranges
from pytest_rlperf.wire import Allocation, WarmUp
from pytest_rlperf.worker.allocations import find_allocations
from pytest_rlperf.worker.device import Accelerator, find_accelerator
from pytest_rlperf.worker.device_state import DeviceLibrary, Torch, used_between
from pytest_rlperf.worker.resources import (
    ActivityWatch,
    children,
    count_threads,
    cpu_reader,
    read_usage,
    used_by_others_ns,
    waits,
)
from pytest_rlperf.worker.rounds import (
    Clocks,
    Timed,
    kernel_shape,
    round_ns,
    slice_figure_ns,
    slice_shape,
    steady_shape,
    traced_shape,
)
from pytest_rlperf.worker.shares import explain
from pytest_rlperf.worker.slowdowns import steps_for
from pytest_rlperf.worker.trace import chrome_trace, trace_call
from pytest_rlperf.worker.tracing import TracedDeviceSlice, TracedHostSlice, TracedSlice, call_plainly, source_of_phases

_BLOCK_S = 0.02
_AS_WARM_S = 1.5 * PAIR_WARM_UP_S  # for as many calls as another process made, perhaps faster, in PAIR_WARM_UP_S
_CPU_ROUND_S = 250e-6  # a round from which on reading the CPU's clock costs at most a few thousandths
_COLLECTING_S = 0.5  # for calls whose collections are counted
_COPY_LIMIT_S = 0.2  # for a copy of this process to return from a call that this process has returned from


class Settled(NamedTuple):
    """The mean seconds per call once warming up has ended, and how many calls it made."""

    call_s: float
    calls: int


def settle(timed: Timed, limit_s: float, clocks: Clocks) -> Settled:
    """Run blocks of calls until their median stops falling; return the mean seconds per call by then."""
    __tracebackhide__ = True
    clock = clocks.wall_ns
    deadline_ns = clock() + int(1e9 * min(limit_s, WARM_UP_MOST_S))
    enough_ns = clock() + int(1e9 * min(limit_s, WARM_UP_S))
    iterations, calls = 1, 0
    medians: list[float] = []
    means: list[float] = []
    while True:
        block_ns: list[float] = []
        block_end_ns = clock() + int(1e9 * _BLOCK_S)
        while True:
            if timed.setup is not None:
                timed.setup()
            block_ns.append(round_ns(timed, iterations, clock) / iterations)
            calls += iterations
            if timed.setup is None and block_ns[-1] * iterations < 10 * clocks.floor_ns:
                iterations *= 4  # the clock would take most of the round
            if clock() >= block_end_ns:
                break
        medians.append(statistics.median(block_ns))
        means.append(statistics.fmean(block_ns))
        falling = len(medians) > 1 and medians[-1] < 0.98 * min(medians[-4:-1])
        now_ns = clock()
        if now_ns >= deadline_ns or (now_ns >= enough_ns and not falling):
            # A block's mean includes calls of different lengths; one stall affects one block.
            return Settled(statistics.median(means[-3:]) / 1e9, calls)


@contextmanager
def in_one_process(
    clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Raise MeasurementError if the body forks and the copy of this process leaves it too; end the copy there.

    The copy would go on with the measurement, and each of its calls would fork again. Children may end within the
    body, or outlive it with work of their own.
    """
    own, has_left = getpid(), mmap.mmap(-1, 1)  # memory that copies share
    before = children()
    try:
        yield
    finally:
        if getpid() != own:
            has_left[0] = 1
            _exit(1)
    if children() - before:
        end_s = clock() + _COPY_LIMIT_S
        while not has_left[0] and clock() < end_s:
            wait(_COPY_LIMIT_S / 100)
    if has_left[0]:
        raise MeasurementError(
            "the call forks this process, and the copy returns from the call too, so both would be measured: end the "
            "copy within the call by os._exit(), or start a process by multiprocessing or subprocess"
        )


# A kernel's pace is steady at once, but for the memory's: its first reads touch each page of the buffer.
_KERNEL_WARM_UP_S = {SliceKind.INTERPRETER: _BLOCK_S, SliceKind.MEMORY: 0.05}


class Meter:
    """Takes slices of one workload and of the reference kernels, which are made when needed, in this process.

    ``library`` is the one that the workload uses a device by, if it does. The check sets ``device``.
    """

    def __init__(
        self,
        workload: Workload,
        kernels: Callable[[], Mapping[SliceKind, Callable[[], object]]],
        clocks: Clocks | None = None,
        library: DeviceLibrary | None = None,
    ) -> None:
        self.workload = workload
        self.clocks = clocks or Clocks.host()
        if workload.children_ns is not None:
            self.clocks = replace(self.clocks, cpu_ns=workload.children_ns)
        self._make_kernels = kernels
        self._kernels: Mapping[SliceKind, Callable[[], object]] = {}
        self._cpu = cpu_reader()
        self._shapes: dict[SliceKind, Shape] = {}
        self._call_s = 0.0
        self._calls = 0  # in slices
        self._made = 0  # calls of all kinds, since the test began
        self._extra_steps = 0
        self._untraceable = ""
        self._others_ns: dict[int, int] | None = None  # what others than this thread had used after the last slice
        self._single: bool | None = None
        self._source: Harvest | None = None  # of phases
        self._has_looked = False
        self.output: tuple[OutputPart, ...] = ()  # of the checked call
        self.device: Accelerator | None = None
        self.programs = Programs()
        self._library: DeviceLibrary = library or Torch()
        quieten_ranges()

    def check(self) -> tuple[float, float | None]:
        """Run the component once, outside any verdict, and check it; return the seconds that this took.

        If that compiled something, also return those of one more call, which tell how long a call takes.
        """
        __tracebackhide__ = True
        # The only collection that walks every loaded module. Counting and warming up collect only what has been made
        # since.
        gc.collect()
        gc.freeze()
        used_before, arrays_before = self._library.used(), live_arrays()
        watch, start_ns = ActivityWatch(), self.clocks.wall_ns()
        with in_one_process():
            output = self.workload.check()
            checked_ns = self.clocks.wall_ns() - start_ns
        if checked_ns >= 1e9 * WARM_UP_S:  # a call of this length may get no warm-up
            self._single = watch.seen().is_single
        self.device = find_accelerator(
            self.workload,
            self._library,
            self.clocks.wall_ns,
            made=(output, *new_arrays(arrays_before)),
            used=used_between(used_before, self._library.used()),
        )
        if self.device is not None:
            start_ns = self.clocks.wall_ns()
            with self.device.answering():
                self.device.clock.synchronize()
            checked_ns += self.clocks.wall_ns() - start_ns
        second_s = None
        if self.device is not None and self.device.compiles_first:
            second_s = self._second_call_ns(self.device) / 1e9
        self.output = output_parts(output)
        self._made += 1
        self._call_s = checked_ns / 1e9 if second_s is None else second_s
        return checked_ns / 1e9, second_s

    def _second_call_ns(self, device: Accelerator) -> int:
        """Time a second call; discard the time and items of the check's call, which compiled."""
        __tracebackhide__ = True
        self.workload.processed(0)
        timed = self._timed(SliceKind.PLAIN)
        with device.answering():
            if timed.setup is not None:
                timed.setup()
            return round_ns(timed, 1, self.clocks.wall_ns)

    def made(self, calls: int) -> None:
        """Count calls of the workload that were made elsewhere."""
        self._made += calls

    def warm_up(self, order: WarmUp) -> Warm:
        """Run until calls stop getting faster, and size the slices, as the order says."""
        __tracebackhide__ = True
        start_ns = self.clocks.wall_ns()
        workload = self._timed(SliceKind.PLAIN)
        with quiet():
            if order.limit_s > 0:
                self._warm(workload, order)
            self._kernels = self._make_kernels() if order.kernels else {}
            for kind, kernel in self._kernels.items():
                settled = settle(Timed(kernel, None), _KERNEL_WARM_UP_S[kind], self.clocks)
                self._shapes[kind] = kernel_shape(settled.call_s)
        self._choose_shapes(order.shape, order.long, SLICE_S if order.kernels else TURN_S)
        self.workload.processed(0)  # items processed while warming up belong to no slice
        gc.collect()
        gc.freeze()  # later collections do not walk older objects; thaw() undoes it
        return Warm(
            shape=self._shapes[SliceKind.PLAIN],
            call_s=self._call_s,
            warm_up_s=(self.clocks.wall_ns() - start_ns) / 1e9,
            threads=count_threads(),
            single=False if self.workload.whole_machine else self._single,
            accelerated=self.device is not None,
            calls=self._made,
        )

    def _warm(self, workload: Timed, order: WarmUp) -> None:
        """Make as many calls as are ordered; if none are, as many as it takes."""
        __tracebackhide__ = True
        shape, calls, limit_s = None if order.exactly else order.shape, order.calls, order.limit_s
        if not calls or self.device is not None:
            is_paired = not order.kernels and self.device is None
            self._settle_workload(workload, min(PAIR_WARM_UP_S, limit_s) if is_paired else limit_s)
            return
        self._warm_until(workload, calls, limit_s if shape is None else min(_AS_WARM_S, limit_s))
        if shape is not None:
            self._call(workload, (calls - self._made) % (shape.iterations * shape.rounds))

    def _warm_until(self, workload: Timed, calls: int, limit_s: float) -> None:
        """Make calls until the process has made ``calls``, for at most ``limit_s``."""
        __tracebackhide__ = True
        clock, watches = self.clocks.wall_ns, [ActivityWatch()]
        start_ns, before = clock(), self._made
        deadline_ns = start_ns + int(1e9 * limit_s)
        while self._made < calls and clock() < deadline_ns:
            if len(watches) == 1 and self._made >= (before + calls) / 2:
                watches.append(ActivityWatch())  # a library's idle threads may spin at first
            self._call(workload)
        if self._made > before:
            self._call_s = (clock() - start_ns) / (self._made - before) / 1e9
        seen = [watch.seen().is_single for watch in watches]
        self._single = next((found for found in (True, False) if found in seen), self._single)

    def _call(self, workload: Timed, calls: int = 1) -> None:
        __tracebackhide__ = True
        for _ in range(calls):
            if workload.setup is not None:
                workload.setup()
            workload.call()
            self._made += 1

    def _settle_workload(self, workload: Timed, limit_s: float) -> None:
        __tracebackhide__ = True
        watch = ActivityWatch()
        deadline_ns = self.clocks.wall_ns() + 1e9 * limit_s
        device = self.device
        with nullcontext() if device is None else device.answering():
            self._call_s = self._settled(workload, limit_s)
        activity = watch.seen()
        if (activity.threads or 0) > 1:
            # A library's idle threads may spin for a while after it was loaded; a working thread is busy again.
            watch = ActivityWatch()
            self._settled(workload, WARM_UP_AGAIN_S)
            activity = watch.seen()
        self._single = activity.is_single
        if device is not None:
            device.warm_up(
                lambda: self._settled(workload, WARM_UP_AGAIN_S), lambda: self.clocks.wall_ns() < deadline_ns
            )

    def _settled(self, workload: Timed, limit_s: float) -> float:
        """Run until calls stop getting faster; return the seconds per call by then."""
        __tracebackhide__ = True
        settled = settle(workload, limit_s, self.clocks)
        self._made += settled.calls
        return settled.call_s

    def _choose_shapes(self, shape: Shape | None, long: bool | None, slice_s: float) -> None:
        """Size the slices of the workload; those at the gated pace have ``shape`` if it is given.

        On a device, a slice is always SLICE_S long, as the device's conditions are read before and after each.
        """
        single = self.workload.setup is not None
        slice_s = slice_s if self.device is None else SLICE_S
        latency = slice_shape(self._call_s, self.clocks.floor_ns, single=single, long=long, slice_s=slice_s)
        if self.device is None:
            self._shapes |= dict.fromkeys([SliceKind.PLAIN, SliceKind.TRACED], shape or latency)
            return
        paces = {Pace.LATENCY: latency, Pace.STEADY: steady_shape(latency, self._call_s, single=single)}
        self._shapes |= {
            SliceKind.PLAIN: shape or paces[self.device.gated],
            SliceKind.OTHER_PACE: paces[self.device.other],
            SliceKind.TRACED: traced_shape(shape or paces[self.device.gated]),
        }

    def _timed(self, kind: SliceKind) -> Timed:
        """Return the parts of a round in a kind of slice, without timers."""
        if kind in self._kernels:
            return Timed(self._kernels[kind], None)
        if self.device is None:
            return Timed(self.workload.call, self.workload.setup)
        return self.device.timed(self.device.pace_of(kind), self.workload.call, self.workload.setup)

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take one slice, after :meth:`warm_up`, and return its figures.

        On a device, a disturbed slice is retaken a few times; if that does not help, the record has the disturbances.
        """
        __tracebackhide__ = True
        if kind is SliceKind.TRACED:
            return self._take_traced()
        if self.device is None or kind in self._kernels:
            return self._take(kind)
        return self.device.undisturbed(kind, lambda: self._take(kind))

    def _take_traced(self) -> SliceRecord:
        """Take a traced slice, or a plain one with a note if the call fails only while it is traced."""
        __tracebackhide__ = True
        kind, device = SliceKind.TRACED, self.device
        if not self._untraceable:
            try:
                record = self._take(kind) if device is None else device.undisturbed(kind, lambda: self._take(kind))
            except Exception as error:
                call_plainly(self.workload)  # raises if tracing is not to blame
                self._untraceable = f"no phases: the call fails while it is traced: {type(error).__name__}: {error}"
            else:
                self._has_looked = True  # in a kept slice; once is enough, as calls may be long
                return record
        return replace(self._take(SliceKind.PLAIN), kind=kind, note=self._untraceable)

    def _trace(self) -> TracedSlice:
        """Return a new traced slice."""
        source = self._source = self._source or source_of_phases(self.workload, self.clocks.wall_ns)
        call, setup, device = source.call, self.workload.setup, self.device
        if device is None:
            return TracedHostSlice(Timed(call, setup), source.probes, self.clocks.wall_ns)
        return TracedDeviceSlice(device, call, setup, source.probes, look=not self._has_looked)

    def _take(self, kind: SliceKind) -> SliceRecord:
        __tracebackhide__ = True
        shape = self._shapes[kind]
        is_kernel = kind in self._kernels
        trace = self._trace() if kind is SliceKind.TRACED else None
        timed = self._timed(kind) if trace is None else trace.timed
        off_turn_s = 0.0 if is_kernel else self._used_off_turn_s()
        collections, full, waited = _collections(), _full_collections(), waits()
        start_ns, start_cpu_ns = self.clocks.wall_ns(), self.clocks.cpu_ns()
        with quiet(), attached(() if trace is None else trace.probes):
            rounds_ns, each_cpu_ns = self._rounds(timed, shape, trace, 0 if is_kernel else self._extra_steps)
        wall_ns, cpu_ns = self.clocks.wall_ns() - start_ns, self.clocks.cpu_ns() - start_cpu_ns
        rounds_cpu_ns, is_plain = sum(each_cpu_ns), kind is SliceKind.PLAIN
        calls, first_call = shape.iterations * shape.rounds, self._made
        if not is_kernel:
            self._calls += calls
            self._made += calls
            self._others_ns = used_by_others_ns()
        return SliceRecord(
            kind=kind,
            call_s=slice_figure_ns(rounds_ns, shape) / 1e9,
            rounds_s=sum(rounds_ns) / 1e9,
            calls=calls,
            items=0.0 if is_kernel else self.workload.processed(calls),
            wall_s=(sum(rounds_ns) if shape.long else wall_ns) / 1e9,
            cpu_s=(rounds_cpu_ns if shape.long else cpu_ns) / 1e9,
            waits=0 if self.workload.children_ns is not None else waits() - waited,  # it waits for its children
            collections=_collections() - collections,
            cpu=self._cpu(),
            phases=() if trace is None else trace.phases(calls),
            first_call=first_call,
            rounds_ns=tuple(rounds_ns) if is_plain else (),
            rounds_cpu_ns=tuple(each_cpu_ns) if is_plain else (),
            full_collections=_full_collections() - full,
            off_turn_s=off_turn_s,
        )

    def _used_off_turn_s(self) -> float:
        """Return the CPU time of threads and child processes since the last slice of the workload; 0 before any."""
        before = self._others_ns
        if before is None:
            return 0.0
        return sum(max(0, used_ns - before.get(number, 0)) for number, used_ns in used_by_others_ns().items()) / 1e9

    def usage(self) -> Usage:
        """Return the resources that this process holds after the calls of all slices so far."""
        return replace(read_usage(self._calls), compiled=self.programs.count())

    def allocations(self, calls: int, tree: str, packages: Collection[str]) -> list[Allocation]:
        """Return the lines below ``tree``, or of ``packages``, that allocate what further calls keep, largest first."""
        __tracebackhide__ = True
        with quiet():
            found = find_allocations(self.workload.call, self.workload.setup, calls, tree, packages)
        self.workload.processed(0)
        return found

    def explain(self) -> tuple[tuple[Share, ...], tuple[str, ...]]:
        """Return where a call's time goes, and notes if that is unknown."""
        __tracebackhide__ = True
        wait = None if self.device is None else self.device.clock.synchronize
        with quiet(), nullcontext() if self.device is None else self.device.answering():
            return explain(self.workload, self._call_s, wait)

    def trace(self, title: str) -> str:
        """Return the trace of one call outside all slices, as Chrome's trace events."""
        __tracebackhide__ = True
        source = self._source = self._source or source_of_phases(self.workload, self.clocks.wall_ns)
        with quiet(), nullcontext() if self.device is None else self.device.answering():
            found = trace_call(source, self.workload.setup, self.device, self.clocks.wall_ns)
        self.workload.processed(0)
        return chrome_trace(found, title)

    def slow_down(self, share: float, steps: int | None) -> int:
        """Add extra work to every round from now on, and return its steps; without ``steps``, size it by ``share``.

        The work is done once per round: a share of a single call may be too short to be sized.
        """
        if steps is None:
            # A single thread that is held up does not work, so its CPU time measures its work. A workload that waits
            # has hardly any CPU time, and a share of that is not a share of the call.
            busy = self._single is True and self.device is None and self.take(SliceKind.PLAIN).waits == 0
            clock = self.clocks.cpu_ns if busy else self.clocks.wall_ns
            timed, iterations = self._timed(SliceKind.PLAIN), self._shapes[SliceKind.PLAIN].iterations
            call = timed.call

            def calls() -> None:
                self._made += iterations
                for _ in repeat(None, iterations):
                    call()
                if timed.finish is not None:
                    timed.finish()

            with quiet():
                steps = steps_for(share, calls, timed.setup, clock)
        self._extra_steps = steps
        self.workload.processed(0)
        return steps

    def collecting_s(self, calls: int) -> float:
        """Return the seconds per call that its full collections take with all of this process's objects; 0 without any.

        Warming up has frozen these objects, so that the collector's own runs cost little in a slice. Only collections
        that the code asks for are counted, over as many ``calls`` as there is time for: how often the collector runs by
        itself depends on what is frozen.
        """
        __tracebackhide__ = True
        asked = 0

        def note(phase: str, info: dict[str, int]) -> None:
            nonlocal asked
            by_itself = gc.isenabled() and 0 < gc.get_threshold()[0] < gc.get_count()[0]
            asked += phase == "start" and info["generation"] == len(gc.get_threshold()) - 1 and not by_itself

        calls = max(1, min(calls, int(_COLLECTING_S / max(self._call_s, 1e-9))))
        gc.callbacks.append(note)
        try:
            with quiet():
                self._call(Timed(self.workload.call, self.workload.setup), calls)
        finally:
            gc.callbacks.remove(note)
        self.workload.processed(0)
        if not asked:
            return 0.0
        frozen_ns = self._collection_ns()
        gc.unfreeze()
        gc.collect()
        whole_ns = self._collection_ns()
        gc.freeze()
        return asked / calls * max(0, whole_ns - frozen_ns) / 1e9

    def _collection_ns(self) -> int:
        taken_ns = []
        for _ in range(3):
            start_ns = self.clocks.cpu_ns()
            gc.collect()
            taken_ns.append(self.clocks.cpu_ns() - start_ns)
        return min(taken_ns)

    def thaw(self) -> None:
        """Return the objects frozen by warming up to the collector, and release what the fixture made."""
        gc.unfreeze()
        self.workload.close()

    def _rounds(
        self, timed: Timed, shape: Shape, trace: TracedSlice | None, extra_steps: int
    ) -> tuple[list[int], list[int]]:
        """Time each round by itself; its setup runs before the clock is read, and is not recorded.

        Return each round's nanoseconds, and its CPU time if rounds are so long that reading that clock costs nothing.
        """
        __tracebackhide__ = True
        wall_ns, cpu_ns = self.clocks.wall_ns, self.clocks.cpu_ns
        rounds_ns: list[int] = []
        rounds_cpu_ns: list[int] = []
        reads_cpu = shape.long or self._call_s * shape.iterations >= _CPU_ROUND_S
        for _ in range(shape.rounds):
            if timed.setup is not None:
                timed.setup()
            with nullcontext() if trace is None else trace.recording():
                start_cpu_ns = cpu_ns() if reads_cpu else 0
                taken_ns = round_ns(timed, shape.iterations, wall_ns, extra_steps)
                if reads_cpu:
                    rounds_cpu_ns.append(cpu_ns() - start_cpu_ns)
            rounds_ns.append(taken_ns)
        return rounds_ns, rounds_cpu_ns


def _collections() -> int:
    """Return how often the garbage collector has run in this process."""
    return sum(generation["collections"] for generation in gc.get_stats())


def _full_collections() -> int:
    """Return how often this process has collected all generations of objects."""
    return int(gc.get_stats()[-1]["collections"])
