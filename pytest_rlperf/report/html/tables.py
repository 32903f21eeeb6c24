"""The tables under a test's charts: phases, counts, where the time goes, the device, the conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_rlperf import units
from pytest_rlperf.model import (
    DeviceFigures,
    DeviceTimes,
    Outcome,
    PairRecord,
    PhaseCounts,
    Result,
    WorkerRecord,
)
from pytest_rlperf.report.details import owner_label
from pytest_rlperf.report.html.charts import sides
from pytest_rlperf.report.rows import phase_rows
from pytest_rlperf.report.table import Cell, Column, Table, make_table
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
    makers = (_phases, _shares, _all_counts, _device, _device_phases, _conditions)
    return [block for make in makers if (block := make(outcome)) is not None]


def _made(title: str, texts: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> Table:
    """Return a table: first columns of ``texts``, then of ``figures``, by their titles."""
    columns = [*(Column(name, name, "left") for name in texts), *(Column(name, name) for name in figures)]
    return make_table(columns, rows, title).without_empty()


def _phases(outcome: Outcome) -> Block | None:
    """Return the phases as a table."""
    rows = phase_rows(outcome)
    if not rows:
        return None
    before = "base" if outcome.live is not None else "baseline"
    figures = ("time per call", "share", "entries", before, "adds to the change")
    cells: list[list[Cell | str]] = [
        [
            Cell(row.name, depth=row.depth),
            units.seconds(row.total_s),
            units.percent(row.share, signed=False),
            _NONE if row.count is None else f"×{row.count:.3g}",
            _NONE if row.was_s is None else units.seconds(row.was_s),
            _NONE if row.change_s is None else units.signed_seconds(row.change_s),
        ]
        for row in rows
    ]
    note = phases_note(outcome.result)
    return Block(_made("Phases of one call", ["phase"], figures, cells), [note] if note else [])


def _shares(outcome: Outcome) -> Block | None:
    """Return where a call's time goes, as bars with their figures."""
    if not outcome.result.shares:
        return None
    was = {} if outcome.before is None else {share.name: share.share for share in outcome.before.shares}
    rows: list[list[Cell | str]] = [
        [
            owner_label(share.name),
            Cell(units.percent(share.share, signed=False), bar=min(1.0, max(0.0, share.share))),
            units.percent(was[share.name], signed=False) if share.name in was else _NONE,
        ]
        for share in outcome.result.shares
    ]
    return Block(_made("Where the time goes", ["part", "share of a call"], ["before"], rows))


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


# --------------------------------------------------------------------------- the device


_DEVICE_COLUMNS = ("device", "latency", "steady", "judged by", "cycles", "peak memory", "allocations", "slices retaken")
_CONDITION_COLUMNS = ("lowest SM clock", "lowest memory clock", "hottest", "held back by", "other processes")


def _device(outcome: Outcome) -> Block | None:
    """Return each process's figures on a device, and the state the device was in."""
    found = [
        (f"{number} {name}", worker.device)
        for name, result in sides(outcome)
        for number, worker in enumerate(result.workers, 1)
        if worker.device is not None
    ]
    if not found:
        return None
    texts, figures = ("process", _DEVICE_COLUMNS[0]), (*_DEVICE_COLUMNS[1:], *_CONDITION_COLUMNS, "settings")
    rows = ([name, *_device_cells(device), *_condition_cells(device), _flags(device)] for name, device in found)
    notes = dict.fromkeys(
        text for _, device in found for text in (disturbances_text(device.disturbances), *device.notes) if text
    )
    return Block(_made("On the device, per call", texts, figures, rows), list(notes))


def _device_cells(device: DeviceFigures) -> list[str]:
    return [
        device.device,
        _known(device.latency_s, units.seconds),
        _known(device.steady_s, units.seconds),
        device.gated.value,
        _known(device.cycles, units.quantity),
        _bytes(device.peak_bytes),
        f"{device.allocations:.3g}",
        str(device.retaken),
    ]


def _condition_cells(device: DeviceFigures) -> list[str]:
    """Return the worst that was seen of the device's state."""
    conditions = device.conditions
    if conditions is None:
        return [_NONE] * len(_CONDITION_COLUMNS)
    return [
        _known(conditions.sm_clock_hz, _hertz),
        _known(conditions.memory_clock_hz, _hertz),
        _known(conditions.temperature_c, lambda degrees: f"{degrees:.0f} °C"),
        "not known" if conditions.throttled is None else ", ".join(conditions.throttled) or "nothing",
        _NONE if conditions.others is None else str(conditions.others),
    ]


def _flags(device: DeviceFigures) -> str:
    return ", ".join(f"{name} {value}" for name, value in device.flags.items()) or _NONE


def _bytes(value: float) -> str:
    return f"{units.quantity(value)}B"


def _hertz(value: float) -> str:
    return f"{value / 1e6:.0f} MHz"


def _known(value: float | None, write: Callable[[float], str]) -> str:
    return _NONE if value is None else write(value)


def _device_phases(outcome: Outcome) -> Block | None:
    """Return the phases by the device's own clock, which never mixes with the host's."""
    found = [(phase, phase.on_device) for phase in outcome.result.phases if phase.on_device is not None]
    if not found:
        return None
    figures = ("device time", "self time", "host time", "lag in", "lag out", "bound by", "peak memory", "allocations",
               "stream")  # fmt: skip
    rows = ([phase.path, *_phase_cells(times, phase.total_s)] for phase, times in found)
    return Block(_made("Phases by the device's clock", ["phase"], figures, rows))


def _phase_cells(times: DeviceTimes, host_s: float) -> list[str]:
    return [
        _known(times.span_s, units.seconds),
        _known(times.self_s, units.seconds),
        units.seconds(host_s),
        _known(times.lag_in_s, units.seconds),
        _known(times.lag_out_s, units.seconds),
        f"{times.bound.value}{', waited for at every edge' if times.is_synced else ''}",
        _known(times.peak_bytes, _bytes),
        _known(times.allocations, "{:.3g}".format),
        times.stream,
    ]


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
    """Return a table with the columns in which rows differ; a note states once what all of several rows share."""
    if len(table.rows) < 2:
        return Block(table)
    first, *others = table.rows
    shared = [place for place in range(1, len(first)) if all(row[place].text == first[place].text for row in others)]
    text = "; ".join(f"{table.columns[place].title} {first[place].text}" for place in shared)
    kept = [column.key for place, column in enumerate(table.columns) if place not in shared]
    return Block(table.only(kept), [f"the same in all: {text}"] if shared else [])


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
