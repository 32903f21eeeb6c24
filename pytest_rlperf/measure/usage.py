"""The resources that this process holds between two slices: memory, objects, files, threads and child processes."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from pytest_rlperf import units
from pytest_rlperf.model.measured import Usage


def read_usage(calls: int) -> Usage:
    """Return what this process holds after so many calls; collects garbage, which takes under a millisecond.

    Objects are those of this process alone; memory, files and threads those of its child processes, too.
    """
    own = psutil.Process()
    processes = [own, *own.children(recursive=True)] if _may_have_children() else [own]
    objects, private = sys.getallocatedblocks(), _sum(processes, _private_bytes)
    gc.collect()
    kept, kept_private = sys.getallocatedblocks(), _sum(processes, _private_bytes)
    return Usage(
        calls=calls,
        objects=kept,
        private_bytes=kept_private,
        waiting_objects=max(0, objects - kept),
        waiting_bytes=max(0, private - kept_private),
        device_bytes=_device_bytes(),
        open_files=_sum(processes, psutil.Process.num_fds),
        threads=_sum(processes, psutil.Process.num_threads),
        processes=len(processes),
    )


def _may_have_children() -> bool:
    """Whether this process has children, by one system call: to search all processes takes milliseconds."""
    if sys.platform == "linux":
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
    return True


def _private_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process that no file backs, where the system tells it apart."""
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def _sum(processes: Sequence[psutil.Process], of: Callable[[psutil.Process], int]) -> int:
    """Return the sum of a figure over processes, less those that have just ended."""
    found = 0
    for process in processes:
        with suppress(psutil.Error):
            found += of(process)
    return found


def _device_bytes() -> int:
    """Return the bytes of live tensors on CUDA devices, where PyTorch is at work there."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))


_CALLS_MOST, _CALLS_LEAST, _TIME_S = 1000, 4, 1.0
_LINES_MOST = 3


def find_allocations(
    call: Callable[[], object], setup: Callable[[], object] | None, call_s: float, least_bytes: float
) -> list[str]:
    """Return the lines whose allocations calls keep, the largest first: ``buffer.py:42 (200B a call)``.

    Python's own allocations and NumPy's are seen, those of native libraries are not.
    """
    calls = max(_CALLS_LEAST, min(_CALLS_MOST, int(_TIME_S / max(call_s, 1e-9) / 4)))
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        _repeat(call, setup, _CALLS_LEAST)
        before = _traced()
        _repeat(call, setup, calls)
        after = _traced()
    finally:
        if not was_tracing:
            tracemalloc.stop()
    kept = [each for each in after.compare_to(before, "lineno") if each.size_diff > 0]
    kept.sort(key=lambda each: -each.size_diff)
    return [
        f"{Path(each.traceback[0].filename).name}:{each.traceback[0].lineno} "
        f"({units.quantity(each.size_diff / calls)}B a call)"
        for each in kept[:_LINES_MOST]
        if each.size_diff >= least_bytes * calls
    ]


def _repeat(call: Callable[[], object], setup: Callable[[], object] | None, calls: int) -> None:
    for _ in range(calls):
        if setup is not None:
            setup()
        call()


def _traced() -> tracemalloc.Snapshot:
    gc.collect()
    own = [tracemalloc.__file__, __file__]
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, name) for name in own])
