"""The tables under a test's charts: phases, counts, where the time goes, the device, the conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_rlperf import units
from pytest_rlperf.model.counting import PhaseCounts
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.live import PairRecord
from pytest_rlperf.model.measured import Result, WorkerRecord
from pytest_rlperf.report.table import Cell, Column, Table, make_table
from pytest_rlperf.report.tables import device_tables, phase_table, share_table, sides
from pytest_rlperf.report.wording import disturbances_text, phases_note

_WHOLE = "(whole call)"
_NONE = ""  # written as a dash; a column of nothing else is left out


@dataclass(frozen=True)
class Block:
    """A table with notes; one that has a ``summary`` is folded away below it."""

    table: Table | None
    notes: Sequence[str] = field(default=())
    summary: str = ""


def all_of(outcome: Outcome) -> list[Block]:
    """Return the tables of a test that there is something in; :func:`changed_counts` stands by itself."""
    found = [_phases(outcome), _shares(outcome), _all_counts(outcome), *_device(outcome), _conditions(outcome)]
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


def _all_counts(outcome: Outcome) -> Block | None:
    """Return every count of either side, folded up: a row a count, a column a phase.

    Most counts of most tests have not changed, so that a figure stands once where both sides agree.
    """
    now, before = _counts(outcome.result), {} if outcome.before is None else _counts(outcome.before)
    keys = list(dict.fromkeys([*now, *before]))
    notes = () if outcome.result.counting is None else outcome.result.counting.notes
    if not keys and not notes:
        return None
    paths, names = (list(dict.fromkeys(part)) for part in zip(*keys, strict=True)) if keys else ([], [])
    columns = [Column("count of", "count", "left"), *(Column(f"in {path}", path or _WHOLE) for path in paths)]
    rows = ([name, *(_before_and_now(before, now, (path, name)) for path in paths)] for name in names)
    table = make_table(columns, rows, "Counts of one call") if keys else None
    return Block(table, notes, f"All {units.counted(len(keys), 'count')} of one call")


_Counts = Mapping[tuple[str, str], str]


def _before_and_now(before: _Counts, now: _Counts, key: tuple[str, str]) -> str:
    """Return a count, with the one before where there are counts of before and this one differs."""
    then, found = before.get(key, _NONE), now.get(key, _NONE)
    return found if then == found or not before else f"{then or '–'} → {found or '–'}"


def _counts(result: Result) -> dict[tuple[str, str], str]:
    phases: Sequence[PhaseCounts] = () if result.counting is None else result.counting.phases
    exact = {(phase.path, name): f"{value:,}" for phase in phases for name, value in phase.exact.items()}
    inexact = {
        (phase.path, name): f"{least:,} to {most:,}"
        for phase in phases
        for name, (least, most) in phase.inexact.items()
    }
    return exact | inexact


def _device(outcome: Outcome) -> list[Block]:
    """Return the tables of what ran on a device, with its disturbances and notes."""
    tables = device_tables(outcome)
    devices = [worker.device for _, result in sides(outcome) for worker in result.workers if worker.device is not None]
    texts = [text for device in devices for text in (disturbances_text(device.disturbances), *device.notes) if text]
    return [Block(table, list(dict.fromkeys(texts)) if not number else ()) for number, table in enumerate(tables)]


# --------------------------------------------------------------------------- the conditions


_WORKER_COLUMNS = (
    "call, wall",
    "call, CPU",
    "cpu/wall",
    "idle CPU",
    "threads",
    "seed",
    "slices",
    "calls",
    "collections",
)


def _conditions(outcome: Outcome) -> Block | None:
    """Return the figures and conditions of every process."""
    if outcome.live is not None and outcome.live.pairs:
        figures = (*_WORKER_COLUMNS, "kept on CPU", "ended on", "set up in")
        rows = [
            [f"{number} {name}", *_worker_cells(worker), *_pair_cells(pair)]
            for number, pair in enumerate(outcome.live.pairs, 1)
            for name, worker in (("base", pair.base), ("head", pair.head))
        ]
        return _differing(_made("Conditions of every pair", ["pair"], figures, rows))
    if not outcome.result.measured:
        return None
    rows = [
        [f"{number} {name}", *_worker_cells(worker)]
        for name, result in sides(outcome)
        for number, worker in enumerate(result.workers, 1)
    ]
    return _differing(_made("Conditions of every process", ["process"], _WORKER_COLUMNS, rows))


def _differing(table: Table) -> Block:
    """Return a table, folded up, of the columns in which rows differ; a note states what all of several rows share."""
    if len(table.rows) < 2:
        return Block(table, summary=table.title)
    first, *others = table.rows
    shared = [place for place in range(1, len(first)) if all(row[place].text == first[place].text for row in others)]
    text = "; ".join(f"{table.columns[place].title} {first[place].text}" for place in shared)
    kept = [column.key for place, column in enumerate(table.columns) if place not in shared]
    return Block(table.only(kept), [f"the same in all: {text}"] if shared else [], table.title)


def _worker_cells(worker: WorkerRecord) -> list[str]:
    return [
        units.seconds(worker.wall.call_s),
        units.seconds(worker.cpu.call_s),
        f"{worker.cpu_share:.2f}",
        units.percent(worker.idle_cpu_share, signed=False),
        str(worker.threads),
        str(worker.seed) if worker.seed else _NONE,
        str(worker.slices),
        f"{worker.calls:,}",
        str(worker.collections),
    ]


def _pair_cells(pair: PairRecord) -> list[str]:
    return [
        "any" if pair.placed is None else str(pair.placed),
        ", ".join(map(str, pair.cpus)) or _NONE,
        units.seconds(pair.setup_s),
    ]
