"""Kernels that PyTorch's operations launch, as its profiler is told of them."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_rlperf.counters.instrument import CannotCountError
from pytest_rlperf.counters.recording import WHOLE, Recorder, lineage, open_stack
from pytest_rlperf.model import Count
from pytest_rlperf.timers.node import Node

_EDGE = "rlperf edge"


class Kernels:
    """Counts kernels on CUDA and ROCm devices.

    The profiler knows which operation launched a kernel, and marks among the operations tell in which phase that was:
    both by the host's clock, so that the device's need not agree with it.
    """

    names: tuple[str, ...] = ("kernels",)

    def __init__(self) -> None:
        self.recorder = Recorder(self._edge)
        self._thread = threading.get_ident()
        self._nodes: list[Node | None] = []
        self._marker: Any = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Be in place while the body runs; CannotCountError where another profiler is."""
        import torch

        if torch._C._autograd._profiler_enabled():
            raise CannotCountError("a profiler of PyTorch's is at work")
        self._marker = torch._C._profiler._RecordFunctionFast(_EDGE)
        yield

    def count(self, call: Callable[[], object]) -> tuple[Count, ...]:
        """Call once, and return what was counted, by phase."""
        import torch

        kinds = torch.profiler.ProfilerActivity
        with self.recorder.recording(), torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiler:
            self._nodes = []  # now: to begin recording reads the clock
            self._edge()
            call()
            self._edge()
            torch.cuda.synchronize()
        whole, stretches = launches(profiler.events() or ())
        counted: Counter[str] = Counter({WHOLE: whole})
        paths = self.recorder.paths()
        self.recorder.clear()
        for node, number in zip(self._nodes[1:], stretches[1:], strict=False):
            counted.update({paths[each]: number for each in (lineage(node) if node else ()) if each in paths})
        return tuple(Count(path, "kernels", number) for path, number in counted.items())

    def _edge(self) -> int:
        """Put a mark among the profiler's events at a phase's edge, and remember which phase was open."""
        if threading.get_ident() == self._thread and self._marker is not None:
            stack = open_stack()
            self._nodes.append(None if stack is None else stack.node)
            with self._marker:
                pass
        return 0


def launches(events: Iterable[Any]) -> tuple[int, Sequence[int]]:
    """Return how many kernels there were, and how many of them operations launched before each mark, after the last.

    ``events`` are those of a profiler: on the host with the kernels each has launched, and on the device.
    """
    whole = 0
    marks: list[float] = []
    starts: list[float] = []
    for event in events:
        if event.device_type.name == "CPU":
            if event.name == _EDGE:
                marks.append(event.time_range.start)
            starts += [event.time_range.start] * sum(_is_kernel(kernel.name) for kernel in event.kernels)
        elif not getattr(event, "is_user_annotation", False) and event.name != _EDGE:
            whole += _is_kernel(event.name)
    marks.sort()
    places = Counter(bisect_right(marks, start) for start in starts)
    return whole, [places[place] for place in range(len(marks) + 1)]


def _is_kernel(name: str) -> bool:
    return not name.startswith(("Memcpy", "Memset"))
