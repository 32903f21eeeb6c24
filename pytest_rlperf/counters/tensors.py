"""Host memory of PyTorch, whose profiler is told of every allocation."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from pytest_rlperf.counters.instrument import CannotCountError
from pytest_rlperf.counters.levels import Levels
from pytest_rlperf.counters.recording import WHOLE, Recorder, open_stack
from pytest_rlperf.model import Count
from pytest_rlperf.timers.node import Node

_EDGE = "rlperf edge"
_STDERR = 2
_Sizes = list[int]  # bytes asked for, negative where given back


class TensorMemory:
    """Counts bytes that PyTorch's allocator of host memory gave out, in the order that they were asked for.

    The profiler is the older one of PyTorch's two, which keeps the order of its events and starts within microseconds.
    It complains on stderr of every block that is freed and was there before, in C++: while it is at work file
    descriptor 2 leads nowhere, for the whole process.
    """

    names: tuple[str, ...] = ("tensor_peak_bytes", "tensor_net_bytes", "tensor_allocations")

    def __init__(self) -> None:
        self.recorder = Recorder(self._edge)
        self._thread = threading.get_ident()
        self._marker: Any = None
        self._open: list[list[Node]] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Be in place while the body runs; CannotCountError where another profiler is."""
        profiler = _profiler()
        if profiler is not None:
            if not hasattr(profiler, "_enable_profiler_legacy"):
                raise CannotCountError("this PyTorch lacks the profiler that tells of allocations in their order")
            if profiler._profiler_enabled():
                raise CannotCountError("a profiler of PyTorch's is at work")
            self._marker = sys.modules["torch"]._C._profiler._RecordFunctionFast(_EDGE)
        yield

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase; where PyTorch is not loaded it asks for nothing."""
        profiler = _profiler()
        if profiler is None or self._marker is None:
            call()
            return ()
        with self.recorder.recording():
            self._open = []  # now: to begin recording reads the clock
            with _no_stderr():
                profiler._enable_profiler_legacy(_settings())
                try:
                    self._edge()
                    call()
                    self._edge()
                finally:
                    threads = profiler._disable_profiler_legacy()
        paths = self.recorder.paths()
        self.recorder.clear()
        stretches, elsewhere = _stretches(threads)
        return tuple(self._counts(stretches, elsewhere, paths))

    def _edge(self) -> int:
        """Put a mark among the profiler's events at a phase's edge, and remember which phases were open."""
        if threading.get_ident() == self._thread and self._marker is not None:
            stack = open_stack()
            self._open.append([] if stack is None else stack.open_nodes())
            with self._marker:
                pass
        return 0

    def _counts(self, stretches: list[_Sizes], elsewhere: _Sizes, paths: dict[Node, str]) -> Iterator[Count]:
        """Yield counts; what other threads ask for has no place among the edges, and is the whole call's alone."""
        levels = Levels(0)
        asked: Counter[str] = Counter()
        level = 0
        for open_nodes, sizes in zip(self._open[1:], stretches, strict=False):
            peak = level
            for size in sizes:
                level += size
                peak = max(peak, level)
            levels.note(open_nodes, level, peak)
            allocations = sum(size > 0 for size in sizes)
            asked.update(dict.fromkeys((paths.get(node, WHOLE) for node in open_nodes), allocations))
        levels.note([], level + sum(elsewhere), level)
        yield from levels.counts(paths, "tensor_peak_bytes", "tensor_net_bytes")
        yield Count(WHOLE, "tensor_allocations", sum(size > 0 for size in chain(elsewhere, *stretches)))
        for path, count in asked.items():
            if count and path != WHOLE:
                yield Count(path, "tensor_allocations", count)


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Have file descriptor 2 lead nowhere while the body runs; where a process has none there is nothing to do."""
    try:
        kept = os.dup(_STDERR)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nowhere)


def _profiler() -> Any:
    torch = sys.modules.get("torch")
    return None if torch is None else torch._C._autograd


def _settings() -> Any:
    kinds: Any = sys.modules["torch"]._C._profiler
    return kinds.ProfilerConfig(
        kinds.ProfilerState.CPU,
        False,  # report input shapes
        True,  # profile memory
        False,  # with stack
        False,  # with flops
        False,  # with modules
        kinds._ExperimentalConfig(),
    )


def _stretches(threads: Any) -> tuple[list[_Sizes], _Sizes]:
    """Return the sizes between each two edges, and those of threads without edges."""
    stretches: list[_Sizes] = []
    elsewhere: _Sizes = []
    for events in threads:
        own: list[_Sizes] = []
        sizes = elsewhere
        for event in events:
            if event.name() == _EDGE and event.kind() == "push":
                own.append(sizes := [])
            elif event.kind() == "memory_alloc":
                sizes.append(event.cpu_memory_usage())
        stretches += own[:-1]  # nothing comes after the last edge
    return stretches, elsewhere
