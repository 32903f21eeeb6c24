"""What a baseline keeps of the figures that it has replaced."""

from __future__ import annotations

import math

from pytest_rlperf.model import Baseline, FirstFigures, Result, StoredResult

_SAME_SIZE = 0.05  # calls whose number of items differs by more are of another workload


def first_figures(old: Baseline | None, key: str, new: StoredResult) -> FirstFigures | None:
    """Return the oldest figures of a test that ``new`` comes after; None where it is the first of its workload."""
    stored = None if old is None else old.results.get(key)
    if old is None or stored is None or not is_same_work(stored.result, new.result):
        return None
    if stored.first is not None or stored.session == new.session:
        return stored.first
    session, clock = old.sessions[stored.session], stored.result.clock
    relative = tuple(getattr(worker, clock).relative for worker in stored.result.workers)
    return FirstFigures(session.created, session.commit, clock, relative)


def is_same_work(then: Result, now: Result) -> bool:
    """Whether two results are of the same workload, of calls of one size.

    Env steps of a call vary a little with where episodes end.
    """
    same = (then.component, then.unit) == (now.component, now.unit)
    return same and math.isclose(then.items, now.items, rel_tol=_SAME_SIZE)
