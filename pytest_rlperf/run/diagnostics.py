"""Diagnostics of a test once all timed slices are taken: where the time goes."""

from __future__ import annotations

from dataclasses import replace

from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.progress import Progress
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
