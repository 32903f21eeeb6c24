"""Slow creep: what many small slowdowns come to, each of which moved the baseline along."""

from __future__ import annotations

import statistics

from pytest_rlperf.model import Creep, Result, StoredResult


def creep(result: Result, stored: StoredResult | None, live_ratio: float | None) -> Creep | None:
    """Return how a test's time has changed since the oldest stored figures; None where there are none before the last.

    Times are told relative to the reference kernel, as the machine's pace was another. Live pairs have no kernel:
    ``live_ratio``, head over the code of the stored figures, stands for the last step.
    """
    first = None if stored is None else stored.first
    if stored is None or first is None:
        return None
    then = statistics.median(first.relative)
    now = [getattr(worker, first.clock).relative for worker in result.workers]
    if now and min(now) > 0:
        ratio = statistics.median(now) / then
    elif live_ratio is not None:
        last = [getattr(worker, first.clock).relative for worker in stored.result.workers]
        ratio = live_ratio * statistics.median(last) / then
    else:
        return None
    return Creep(ratio, first.created, first.commit)
