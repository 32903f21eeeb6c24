"""Baselines as tables, which ``rlperf show`` shows beside a run's summary."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model.measured import Result, test_name
from pytest_rlperf.model.stored import Baseline, StoredResult
from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.report.table import Column, make_table
from pytest_rlperf.report.text import table_text
from pytest_rlperf.report.tree import render_tree
from pytest_rlperf.report.wording import phases_note


def render_baseline(baseline: Baseline, keys: Sequence[str], *, width: int, verbose: bool) -> str:
    """Return a baseline's figures, a line a test; its origin, why it was accepted and, if ``verbose``, its phases."""
    stored = {key: baseline.results[key] for key in keys}
    columns = (
        Column("test", "test", "left", overflow="fold"),
        Column("median", "median"),
        Column("items", "items/s"),
        Column("workers", "workers"),
        Column("stored", "stored", "left"),
    )
    rows = [
        (
            test_name(key),
            units.seconds(entry.result.call_s) if entry.result.measured else "",
            units.quantity(entry.result.items_per_s) if entry.result.measured else "",
            str(len(entry.result.workers)),
            _origin(baseline, entry),
        )
        for key, entry in stored.items()
    ]
    lines = table_text(make_table(columns, rows), width)
    accepted = [f"  {test_name(key)}: {_acceptance(entry)}" for key, entry in stored.items() if entry.accepted]
    if accepted:
        lines += ["", "accepted although slower:", *accepted]
    text = "".join(f"{line}\n" for line in lines)
    if verbose:
        text += "".join(f"\n{phases_table(one.result, width=width)}" for one in stored.values() if one.result.phases)
    return text


def _origin(baseline: Baseline, entry: StoredResult) -> str:
    provenance = baseline.sessions.get(entry.session)
    if provenance is None:
        return entry.session
    code = "outside git" if provenance.commit is None else f"commit {provenance.commit[:12]}"
    return f"{provenance.created.partition('T')[0]}, {code}{', uncommitted changes' if provenance.dirty else ''}"


def _acceptance(entry: StoredResult) -> str:
    accepted = entry.accepted
    assert accepted is not None
    day = accepted.created.partition("T")[0]
    by = f" by {accepted.by}" if accepted.by else ""
    return f"{units.seconds(accepted.previous_call_s)} before; {day}{by}: {accepted.reason}"


def phases_table(result: Result, *, width: int | None) -> str:
    """Return a result's phases as the table that trees of timers have, per call, and what they add up to."""
    children: dict[str, list[str]] = {}
    for phase in result.phases:
        children.setdefault(phase.path.rpartition("/")[0], []).append(phase.path)
    by_path = {phase.path: phase for phase in result.phases}

    def timing(path: str) -> Timing:
        phase = by_path[path]
        below = tuple(timing(child) for child in children.get(path, ()))
        return Timing(phase.name, round(phase.count), round(1e9 * phase.total_s), children=below)

    whole = Timing(
        result.nodeid,
        1,
        round(1e9 * result.traced_call_s),
        children=tuple(timing(path) for path in children.get("", ())),
    )
    note = phases_note(result)
    return render_tree(TimerTree(whole), width=width) + (f"{note}\n" if note else "")
