"""Diagnostics of a test once all timed slices are taken: where the time goes, and the trace of one call."""

from __future__ import annotations

from dataclasses import replace

from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.progress import Progress
from pytest_rlperf.model.spans import Trace
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.stems import WorkerGroup


def explain(group: WorkerGroup, outcome: Outcome, progress: Progress) -> Outcome:
    """Return the outcome with where a call's time goes, as one worker of head's sees it."""
    for worker in group.workers:
        if worker.called is not None and worker.checked_s is not None and not worker.is_base:
            progress.show("looking where the time goes")
            found: m.Explained = worker.ask(m.Explain())
            notes = (*outcome.result.notes, *found.notes)
            result = replace(outcome.result, shares=found.shares, notes=notes)
            return replace(outcome, result=result)
    return outcome


def trace(group: WorkerGroup, outcome: Outcome, progress: Progress) -> list[Trace]:
    """Return the trace of one call of each side whose workers have the test open."""
    live = outcome.live
    labels = {"head": "working tree", "base": ""}
    if live is not None:
        labels = {"head": live.head_label, "base": live.base_label}
    traces: dict[str, Trace] = {}
    for worker in group.workers:
        side = "base" if worker.is_base else "head"
        if worker.called is not None and worker.checked_s is not None and side not in traces:
            progress.show(f"tracing {side}")
            found: m.Traced = worker.ask(m.TraceCall())
            traces[side] = Trace(group.key, side, labels[side], found.spans, found.notes)
    return list(traces.values())
