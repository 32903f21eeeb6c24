"""Host memory, Python's and NumPy's by tracemalloc and PyTorch's by its profiler, and the garbage collector's work.

Also the contexts in which instruments work: undisturbed by the collector, and without warnings.
"""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from gc import get_objects  # without those that are frozen; measured code sees all
from importlib import import_module
from itertools import chain
from typing import Any

from msgspec.structs import replace

from pytest_rlperf.counters.instrument import (
    STEPS,
    WHOLE,
    CannotCountError,
    Instrument,
    Levels,
    Recorder,
    TotalsInstrument,
    lineage,
)
from pytest_rlperf.counters.operations import Profiled
from pytest_rlperf.counters.proc import children_of, entries
from pytest_rlperf.model.measured import Count
from pytest_rlperf.probes import put
from pytest_rlperf.probes.torch import MARK
from pytest_rlperf.timers.node import Node

OF_GARBAGE = ("garbage_bytes", "garbage_files", "garbage_threads", "garbage_processes")
_EDGES_MOST = 5000  # per call; each takes a tenth of a millisecond, or more if the call makes many objects


@contextmanager
def tracing(frames: int = 1) -> Iterator[None]:
    """Trace memory, with ``frames`` frames per block, while the body runs, and later only if it was traced before.

    Tracing is on for some calls before memory is counted, because earlier blocks have no known size.
    """
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start(frames)
    try:
        yield
    finally:
        if not was_on:
            tracemalloc.stop()


class HostMemory(Instrument):
    """Counts bytes that Python's allocators gave out, including NumPy's arrays; it needs :func:`tracing`.

    At every edge of a phase, the collector runs and caches are cleared, so that only memory that is still held counts.
    """

    names: tuple[str, ...] = ("host_peak_bytes", "host_net_bytes", *OF_GARBAGE)
    needs_first = True

    def __init__(self) -> None:
        self.recorder = Recorder(on_edge=self._edge)
        self._garbage = array("q", bytes(8 * len(OF_GARBAGE)))
        # For each edge: the innermost phase that was open, the memory in use, and its peak since the last edge. There
        # is room for as many edges as the last call had, so keeping them allocates nothing.
        self._nodes: list[Node | None] = []
        self._bytes = array("q")
        self._edges = 0

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase."""
        self._nodes, self._bytes = [None] * (self._edges + 2), array("q", bytes(16 * (self._edges + 2)))
        self._edges = 0
        with self.recorder.recording():
            _clear_caches()  # they may hold earlier objects
            self._edge(None)
            self._garbage = array("q", bytes(8 * len(OF_GARBAGE)))
            call()
            self._edge(None)
        if self._edges > _EDGES_MOST:
            raise CannotCountError(f"a call enters over {_EDGES_MOST // 2} phases, and looking at memory takes time")
        # Peaks are rounded: names that caches keep within a phase make a smaller difference than a step.
        garbage = (Count(WHOLE, name, value) for name, value in zip(OF_GARBAGE, self._garbage, strict=True))
        return tuple(
            replace(count, value=count.value // STEPS.get(count.name, 1) * STEPS.get(count.name, 1))
            for count in (*self._levels().counts(self.recorder.paths(), *self.names[:2]), *garbage)
        )

    def _edge(self, innermost: Node | None) -> None:
        """Note the memory at a phase's edge."""
        number = self._edges
        if number > _EDGES_MOST:
            return
        self._edges = number + 1
        if number == len(self._nodes):
            self._nodes.append(None)
            self._bytes.extend((0, 0))
        self._nodes[number] = innermost
        self._bytes[2 * number + 1] = _traced_bytes()[1]
        self._free_garbage()
        self._bytes[2 * number] = _traced_bytes()[0]
        tracemalloc.reset_peak()

    def _free_garbage(self) -> None:
        """Let the collector run, and note what this process held until then."""
        held = _held()
        if _clear_caches():
            for place, (before, now) in enumerate(zip(held, _held(), strict=True)):
                self._garbage[place] += max(0, before - now)

    def _levels(self) -> Levels:
        """Return the levels in the last call's stretches."""
        levels = Levels(self._bytes[0])
        for number in range(1, self._edges):
            levels.note(lineage(self._nodes[number]), self._bytes[2 * number], self._bytes[2 * number + 1])
        return levels


def _clear_caches() -> int:
    """Free what Python keeps for itself: objects to reuse, and names of attributes that were looked up.

    Return how many objects only the collector could free.
    """
    if sys.version_info >= (3, 13):
        sys._clear_internal_caches()
    else:
        sys._clear_type_cache()
    return gc.collect()


def _held() -> tuple[int, int, int, int]:
    """Return this process's bytes, open files, threads and child processes; without /proc, only the bytes."""
    in_use = _traced_bytes()[0]
    try:
        files, tasks = entries("/proc/self/fd"), entries("/proc/self/task")
        return in_use, len(files), len(tasks), sum(len(children_of(task)) for task in tasks)
    except OSError:
        return in_use, 0, 0, 0


def _traced_bytes() -> tuple[int, int]:
    """Return the bytes in use and their peak; CannotCountError if tracemalloc was stopped."""
    if not tracemalloc.is_tracing():
        raise CannotCountError("the call itself stops tracemalloc")
    return tracemalloc.get_traced_memory()


_STDERR = 2
_Sizes = list[int]  # bytes allocated, negative if freed


class TensorMemory(Profiled):
    """Counts the bytes that PyTorch's allocator of host memory gave out, in the order of the allocations.

    PyTorch's profiler complains, in C++, on stderr when an older block is freed: so while it is at work, file
    descriptor 2 leads nowhere, for the whole process.
    """

    names: tuple[str, ...] = ("tensor_peak_bytes", "tensor_net_bytes", "tensor_allocations", "tensor_garbage_bytes")
    needs_first = True

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return the counts by phase; none if PyTorch is not loaded."""
        if "torch" not in sys.modules:
            call()
            return ()
        with self.recorder.recording(), _no_stderr(), _profiling_memory() as profiler:
            self.run(call)
            gc.collect()
        (*stretches, freed), elsewhere = _stretches(profiler.kineto_results.events())
        garbage = Count(WHOLE, "tensor_garbage_bytes", -sum(size for size in freed if size < 0))
        return (*self._counts(stretches, elsewhere, self.recorder.paths()), garbage)

    def _counts(self, stretches: list[_Sizes], elsewhere: _Sizes, paths: dict[Node, str]) -> Iterator[Count]:
        """Yield counts; other threads' allocations have no place among the edges, and belong to no phase."""
        levels = Levels(0)
        allocated: Counter[str] = Counter()
        level = 0
        for node, sizes in zip(self.nodes[1:], stretches, strict=False):
            open_nodes = lineage(node)
            peak = level
            for size in sizes:
                level += size
                peak = max(peak, level)
            levels.note(open_nodes, level, peak)
            allocations = sum(size > 0 for size in sizes)
            allocated.update(dict.fromkeys((paths.get(each, WHOLE) for each in open_nodes), allocations))
        levels.note([], level + sum(elsewhere), level)
        yield from levels.counts(paths, "tensor_peak_bytes", "tensor_net_bytes")
        yield Count(WHOLE, "tensor_allocations", sum(size > 0 for size in chain(elsewhere, *stretches)))
        for path, count in allocated.items():
            if count and path != WHOLE:
                yield Count(path, "tensor_allocations", count)


@contextmanager
def _profiling_memory() -> Iterator[Any]:
    """Yield PyTorch's profiler while it records memory, and marks.

    It would record each operation, too, which takes as long as the call does, and has no public way not to.
    """
    from torch._C._profiler import RecordScope

    module: Any = import_module("torch.autograd.profiler")
    with ExitStack() as undoing:
        enable = partial(module._enable_profiler, scopes={RecordScope.USER_SCOPE})
        undoing.callback(put(module, "_enable_profiler", enable))
        with module.profile(profile_memory=True, use_kineto=False) as profiler:
            undoing.close()
            yield profiler


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Redirect file descriptor 2 to the null device while the body runs."""
    kept, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nowhere)


def _stretches(events: Sequence[Any]) -> tuple[list[_Sizes], _Sizes]:
    """Return the sizes from each mark to the next or the end, and those in threads without marks."""
    stretches: list[_Sizes] = []
    elsewhere: _Sizes = []
    marked = {event.start_thread_id() for event in events if event.name() == MARK}
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == MARK:
            stretches.append([])
        elif event.name() == "[memory]" and event.device_type().name == "CPU":
            if event.start_thread_id() not in marked:
                elsewhere.append(event.nbytes())
            elif stretches:
                stretches[-1].append(event.nbytes())
    return stretches, elsewhere


class CollectorWork(TotalsInstrument):
    """Counts runs of the collector, from just after a run of all generations, and the objects that it finds."""

    names: tuple[str, ...] = ("collections", "objects_left", "garbage")
    needs_first = True

    def __init__(self) -> None:
        super().__init__()
        self._run, self._object = self.totals.unit("collections"), self.totals.unit("garbage")

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return the counts; the final collection's belong to the whole call, and to no phase."""
        with self.recorder.recording():
            start = self.read()
            # Between the two readings, only the call makes objects that the collector tracks.
            before = _tracked()
            gc.callbacks.append(self._note)
            gc.enable()
            try:
                call()
            finally:
                gc.disable()
                gc.callbacks.remove(self._note)
            self.totals.packed += gc.collect() * self._object
            left = _tracked() - before
            whole = self.read() - start
        return (*self._counts(whole), Count(WHOLE, "objects_left", left))

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.totals.packed += self._run + info["collected"] * self._object


def _tracked() -> int:
    """Return how many objects the collector tracks, once it has stopped tracking those that need not be."""
    gc.collect()
    gc.collect()  # the first run untracks a tuple within a tuple, and the next the tuple around it
    return len(get_objects())


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings while the body runs.

    The checked first call ran under the user's filters. Later, a repeated warning costs a look at the filters, as
    outside pytest, which would record it.
    """
    __tracebackhide__ = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def as_usual() -> Iterator[None]:
    """Switch the collector on and tracing off while the body runs, within :func:`undisturbed` and :func:`tracing`."""
    was_on, was_traced = gc.isenabled(), tracemalloc.is_tracing()
    gc.enable()
    tracemalloc.stop()
    try:
        yield
    finally:
        if not was_on:
            gc.disable()
        if was_traced:
            tracemalloc.start()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Switch the collector off while the body runs; before, freeze all present objects, which stay frozen.

    Thresholds that the body itself sets stay, too.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
