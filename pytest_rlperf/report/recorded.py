"""Baselines as tables, which ``rlperf show`` shows beside a run's summary."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model.measured import test_name
from pytest_rlperf.model.stored import Baseline, StoredResult
from pytest_rlperf.report.table import Column, make_table
from pytest_rlperf.report.text import table_text


def render_baseline(baseline: Baseline, keys: Sequence[str], *, width: int) -> str:
    """Return a baseline's figures, a line a test, with its origin."""
    stored = {key: baseline.results[key] for key in keys}
    columns = (
        Column("test", "test", "left", folds=True),
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
    return "".join(f"{line}\n" for line in table_text(make_table(columns, rows), width))


def _origin(baseline: Baseline, entry: StoredResult) -> str:
    provenance = baseline.sessions.get(entry.session)
    if provenance is None:
        return entry.session
    code = "outside git" if provenance.commit is None else f"commit {provenance.commit[:12]}"
    return f"{provenance.created.partition('T')[0]}, {code}{', uncommitted changes' if provenance.dirty else ''}"
