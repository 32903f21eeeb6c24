"""What is looked at in a test's workers once nothing is timed any more: where the time goes, and one call's spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_rlperf.model import Outcome
from pytest_rlperf.model.spans import Trace
from pytest_rlperf.run.outcomes import Ledger
from pytest_rlperf.workers.pool import BaseSides, WorkerGroup

Show = Callable[[str, float], None]


def explain(group: WorkerGroup, base_sides: BaseSides, outcome: Outcome, ledger: Ledger, show: Show) -> Outcome:
    """Return the outcome with where a call's time goes, as one worker of head's sees it."""
    for worker in group.workers:
        if worker.called is not None and worker.checked_s is not None and not base_sides.is_base(worker):
            show("looking where the time goes", 0.0)
            found = worker.explain()
            notes = (*outcome.result.notes, *found.notes)
            result = replace(outcome.result, shares=found.shares, notes=notes)
            return ledger.amend(replace(outcome, result=result))
    return outcome


def trace(group: WorkerGroup, base_sides: BaseSides, outcome: Outcome, ledger: Ledger, show: Show) -> None:
    """Record one call of each side that is at it."""
    live = outcome.live
    labels = {"head": "working tree", "base": ""}
    if live is not None:
        labels = {"head": live.head_label, "base": live.base_label}
    traced: set[str] = set()
    for worker in group.workers:
        side = "base" if base_sides.is_base(worker) else "head"
        if worker.called is not None and worker.checked_s is not None and side not in traced:
            show(f"tracing {side}", 0.0)
            found = worker.trace()
            ledger.traces.append(Trace(group.key, side, labels[side], found.spans, found.notes))
            traced.add(side)
