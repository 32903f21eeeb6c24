"""Figures of slices: seconds per call by the wall's clock and the CPU's, and means that one stall does not move."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from pytest_rlperf.model.measured import SliceRecord

TRIM = 0.2
PAIR_TRIM = 0.3  # of ratios, at each end: while others use the core, the pace jumps between many slices
ONE_THREAD = 1.02  # the most CPU time over wall time that one thread can use
_STRAY = 0.1  # share of slices in which something else may have made the process wait
_UNDISTURBED = 0.97  # the least CPU time over wall time of a slice that was not held up
Clock = Callable[[SliceRecord], float]


def by_wall(record: SliceRecord) -> float:
    """Return a slice's seconds per call."""
    return record.call_s


def by_cpu(record: SliceRecord) -> float:
    """Return a slice's CPU seconds per call, at most the wall time and more than zero."""
    return min(record.call_s, max(record.cpu_s / record.calls, 1e-12))


def trimmed_mean(values: Sequence[float], trim: float = TRIM) -> float:
    """Return the mean of ``values`` without a share of the lowest and highest, at least one each of three or more.

    ``trim`` is that share, at each end.
    """
    cut = max(int(trim * len(values)), 1 if len(values) >= 3 else 0)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def mean_log(records: Sequence[SliceRecord], clock: Clock) -> float:
    """Return the mean logarithm of the slices' times per call."""
    return statistics.fmean(math.log(clock(record)) for record in records)


def typical_call_s(plain: Sequence[SliceRecord], clock: Clock) -> float:
    """Return the median slice's seconds per call, of undisturbed slices if there are enough."""
    undisturbed = [record for record in plain if record.cpu_s >= _UNDISTURBED * record.wall_s]
    steady = undisturbed if len(undisturbed) >= max(3, len(plain) // 4) else plain
    return statistics.median(clock(record) for record in steady)


def never_waits(plain: Sequence[SliceRecord]) -> bool:
    """Whether a process had one busy thread, and except for a stray slice never gave up its CPU by itself."""
    waiting = sum(record.waits > 0 for record in plain)
    return waiting <= _STRAY * len(plain) and all(record.cpu_s <= ONE_THREAD * record.wall_s for record in plain)
