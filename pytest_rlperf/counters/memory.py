"""Host memory of Python and NumPy, which tracemalloc is told of."""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pytest_rlperf.counters.instrument import CannotCountError
from pytest_rlperf.counters.levels import Levels
from pytest_rlperf.counters.names import STEPS
from pytest_rlperf.counters.recording import Recorder, lineage, open_stack
from pytest_rlperf.model import Count
from pytest_rlperf.timers.node import Node

_EDGES_MOST = 5000  # of a call; every one takes a tenth of a millisecond, and more where the call makes many objects


@contextmanager
def tracing() -> Iterator[None]:
    """Trace memory while the body runs, and no longer unless it was traced before.

    That is on for some calls before memory is counted: what they replace is of a size that nobody knows.
    """
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start()
    try:
        yield
    finally:
        if not was_on:
            tracemalloc.stop()


class HostMemory:
    """Counts bytes that Python's allocators gave out, NumPy's arrays included; it needs :func:`tracing`.

    At every edge of a phase the collector runs and caches are cleared. What is left is what somebody holds.
    """

    names: tuple[str, ...] = ("host_peak_bytes", "host_net_bytes")

    def __init__(self) -> None:
        self.recorder = Recorder(self._edge)
        self._thread = threading.get_ident()
        self._is_counting = False
        # Of each edge the innermost phase that was open, and the memory in use and at most since the last edge. There
        # is room for as many edges as the last call had: nothing is allocated to keep them.
        self._nodes: list[Node | None] = []
        self._bytes = array("q")
        self._edges = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Do nothing but to let the body run."""
        yield

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase."""
        self._nodes, self._bytes = [None] * (self._edges + 2), array("q", bytes(16 * (self._edges + 2)))
        self._edges = 0
        with self.recorder.recording():
            _clear_caches()  # it may hold what was before
            self._is_counting = True
            try:
                self._edge()
                call()
                self._edge()
            finally:
                self._is_counting = False
        paths = self.recorder.paths()
        self.recorder.clear()
        if self._edges > _EDGES_MOST:
            raise CannotCountError(f"a call enters over {_EDGES_MOST // 2} phases, and looking at memory takes time")
        counts = self._levels().counts(paths, *self.names)
        return tuple(_rounded(count) for count in counts)

    def _edge(self) -> int:
        """Note the memory at a phase's edge, and read 0: a number to keep would be memory too."""
        if self._is_counting and threading.get_ident() == self._thread:
            number = self._edges
            if number > _EDGES_MOST:
                return 0
            self._edges = number + 1
            if number == len(self._nodes):
                self._nodes.append(None)
                self._bytes.extend((0, 0))
            stack = open_stack()
            self._nodes[number] = None if stack is None else stack.node
            self._bytes[2 * number + 1] = _traced_bytes()[1]
            _clear_caches()
            self._bytes[2 * number] = _traced_bytes()[0]
            tracemalloc.reset_peak()
        return 0

    def _levels(self) -> Levels:
        """Return the stretches of the last call."""
        levels = Levels(self._bytes[0])
        for number in range(1, self._edges):
            node = self._nodes[number]
            open_nodes = [] if node is None else lineage(node)
            levels.note(open_nodes, self._bytes[2 * number], self._bytes[2 * number + 1])
        return levels


def _rounded(count: Count) -> Count:
    """Round a peak: names that caches hold on to within a phase make less of a difference, but make one."""
    step = STEPS.get(count.name, 1)
    return replace(count, value=count.value // step * step)


def _clear_caches() -> None:
    """Free what Python keeps for itself: objects to use again, and names of attributes that were looked up."""
    if sys.version_info >= (3, 13):
        sys._clear_internal_caches()
    else:
        sys._clear_type_cache()
    gc.collect()


def _traced_bytes() -> tuple[int, int]:
    """Return the bytes in use and the most that were; CannotCountError where nobody is told of them any more."""
    if not tracemalloc.is_tracing():
        raise CannotCountError("the call itself stops tracemalloc")
    return tracemalloc.get_traced_memory()
