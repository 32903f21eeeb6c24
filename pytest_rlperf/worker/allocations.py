"""The lines of code whose allocations further calls keep."""

from __future__ import annotations

import gc
import linecache
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_rlperf.counters.memory import tracing
from pytest_rlperf.wire import Allocation

_CALLS_LEAST, _TIME_S = 4, 3.0
_BLOCKS_MOST, _LOOK_S = 50_000, 0.02  # reading where that many were made takes half a second
_FRAMES = 16  # a copy of nested objects is made deep in the standard library
_BYTES_LEAST = 8.0  # per call, from a line that is worth naming
_LINES_MOST = 50


def find_allocations(
    call: Callable[[], object],
    setup: Callable[[], object] | None,
    calls: int,
    tree: str,
    packages: Collection[str] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> list[Allocation]:
    """Return the lines whose allocations ``calls`` calls keep, the largest first.

    A line is the innermost one in a file below ``tree`` or of the installed ``packages`` that are compared, if there is
    one: the calling code stands for what a library allocates. Python's own allocations and NumPy's are seen; those of
    native libraries are not.
    """
    with tracing(_FRAMES):
        before = _kept(tree, packages)  # nothing, unless memory was traced before
        made = _repeat(call, setup, max(_CALLS_LEAST, calls), clock)
        kept = _kept(tree, packages)
    kept.subtract(before)
    return [
        Allocation(Path(file).name, line, linecache.getline(file, line).strip(), size / made)
        for (file, line), size in kept.most_common(_LINES_MOST)
        if size >= _BYTES_LEAST * made
    ]


def _repeat(
    call: Callable[[], object], setup: Callable[[], object] | None, calls: int, clock: Callable[[], float]
) -> int:
    """Make ``calls`` calls, or fewer if they take long or have kept much; return how many."""
    most, now_s = sys.getallocatedblocks() + _BLOCKS_MOST, clock()
    look_s, end_s = now_s, now_s + _TIME_S
    for made in range(calls):
        now_s = clock()
        if now_s >= look_s and made >= _CALLS_LEAST:
            if now_s > end_s or sys.getallocatedblocks() > most:
                return made
            look_s = now_s + _LOOK_S
        if setup is not None:
            setup()
        call()
    return calls


def _kept(tree: str, packages: Collection[str]) -> Counter[tuple[str, int]]:
    """Return the bytes that are allocated now, by the lines that allocated them."""
    gc.collect()
    found: Counter[tuple[str, int]] = Counter()
    for alike in tracemalloc.take_snapshot().statistics("traceback"):
        frames = [*alike.traceback][::-1]
        if frames[0].filename in (tracemalloc.__file__, __file__):
            continue
        own = (frame for frame in frames if _is_under_test(frame.filename, tree, packages))
        frame = next(own, frames[0])
        found[frame.filename, frame.lineno] += alike.size
    return found


def _is_under_test(file: str, tree: str, packages: Collection[str]) -> bool:
    _, is_installed, place = file.rpartition("/site-packages/")
    if is_installed:
        return place.partition("/")[0].removesuffix(".py") in packages
    return bool(tree) and file.startswith(f"{tree}/")
