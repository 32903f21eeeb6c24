"""The tables under a test's charts: phases, counts, where the time goes, the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.report.table import Cell, Column, Table, make_table
from pytest_rlperf.report.tables import device_tables, phase_table, share_table, sides
from pytest_rlperf.report.wording import disturbances_text, phases_note

_WHOLE = "(whole call)"


@dataclass(frozen=True)
class Block:
    """A table with notes; one that has a ``summary`` is folded away below it."""

    table: Table | None
    notes: Sequence[str] = field(default=())
    summary: str = ""


def all_of(outcome: Outcome) -> list[Block]:
    """Return the tables of a test that there is something in; :func:`changed_counts` stands by itself."""
    found = [_phases(outcome), _shares(outcome), *_device(outcome)]
    return [block for block in found if block is not None]


def _made(title: str, texts: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> Table:
    """Return a table: first columns of ``texts``, then of ``figures``, by their titles."""
    columns = [*(Column(name, name, "left") for name in texts), *(Column(name, name) for name in figures)]
    return make_table(columns, rows, title).without_empty()


def _phases(outcome: Outcome) -> Block | None:
    table, note = phase_table(outcome).leading("phase", "change", "total", "was"), phases_note(outcome.result)
    return Block(table, [note] if note else []) if table.rows else None


def _shares(outcome: Outcome) -> Block | None:
    return Block(share_table(outcome)) if outcome.result.shares else None


# --------------------------------------------------------------------------- counts


def changed_counts(outcome: Outcome) -> Block | None:
    """Return the exact counts that changed, those that rose first."""
    changes = sorted(outcome.verdict.counters, key=lambda change: (not change.is_more, change.path, change.name))
    if not changes:
        return None
    rows = [
        [
            change.name,
            change.path or _WHOLE,
            f"{change.was:,}",
            f"{change.now:,}",
            f"{abs(change.now - change.was):,} {'more ▲' if change.is_more else 'fewer ▼'}",
        ]
        for change in changes
    ]
    return Block(_made("Exact counts that changed", ["count", "phase"], ["before", "now", "change"], rows))


def _device(outcome: Outcome) -> list[Block]:
    """Return the tables of what ran on a device, with its disturbances and notes."""
    tables = device_tables(outcome)
    devices = [worker.device for _, result in sides(outcome) for worker in result.workers if worker.device is not None]
    texts = [text for device in devices for text in (disturbances_text(device.disturbances), *device.notes) if text]
    return [Block(table, list(dict.fromkeys(texts)) if not number else ()) for number, table in enumerate(tables)]
