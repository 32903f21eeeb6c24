"""The tables under a test's charts: phases, counts, where the time goes, the device, the conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from pytest_rlperf import units
from pytest_rlperf.model import (
    DeviceFigures,
    DeviceTimes,
    Outcome,
    PairRecord,
    PhaseCounts,
    Result,
    WorkerRecord,
    disturbances_text,
)
from pytest_rlperf.report.html.charts import sides
from pytest_rlperf.report.html.markup import NOTHING, Markup, join, table, tag
from pytest_rlperf.report.rows import phase_rows, phases_note

_WHOLE = "(whole call)"


def all_of(outcome: Outcome) -> Iterator[Markup]:
    """Yield the tables of a test that there is something in; :func:`changed_counts` stands by itself."""
    for made in (_phases, _shares, _all_counts, _device, _device_phases, _conditions):
        found = made(outcome)
        if found:
            yield found


def _phases(outcome: Outcome) -> Markup | None:
    """Return the chart of phases as a table."""
    rows = phase_rows(outcome)
    if not rows:
        return None
    before = "base" if outcome.live is not None else "baseline"
    header = ["phase", "time per call", "share", "entries", before, "adds to the change"]
    cells = [
        [
            tag("span", row.name, class_="indent", style=f"--depth:{row.depth}"),
            units.seconds(row.total_s),
            units.percent(row.share, signed=False),
            NOTHING if row.count is None else f"×{row.count:.3g}",
            NOTHING if row.was_s is None else units.seconds(row.was_s),
            NOTHING if row.change_s is None else units.signed_seconds(row.change_s),
        ]
        for row in rows
    ]
    note = phases_note(outcome.result)
    return join([table("Phases of one call", header, cells), *([tag("p", f"Note: {note}")] if note else [])])


def _shares(outcome: Outcome) -> Markup | None:
    """Return where a call's time goes, as bars with their figures."""
    if not outcome.result.shares:
        return None
    was = {} if outcome.before is None else {share.name: share.share for share in outcome.before.shares}
    rows = [
        [
            share.name,
            join([_bar(share.share), units.percent(share.share, signed=False)]),
            units.percent(was[share.name], signed=False) if share.name in was else NOTHING,
        ]
        for share in outcome.result.shares
    ]
    return table("Where the time goes", ["what", "share of a call", "before"], rows, texts=2)


def _bar(share: float) -> Markup:
    return tag("span", class_="bar", style=f"--share:{min(1.0, max(0.0, share)):.4f}", aria_hidden="true")


# --------------------------------------------------------------------------- counts


def changed_counts(outcome: Outcome) -> Markup | None:
    """Return what changed of what a call does, more of it first."""
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
    return table("Exact counts that changed", ["count", "phase", "before", "now", "change"], rows, texts=2)


def _all_counts(outcome: Outcome) -> Markup | None:
    """Return every count of either side, folded up; of those that were not exact the least and the most."""
    now, before = _counts(outcome.result), {} if outcome.before is None else _counts(outcome.before)
    keys = list(dict.fromkeys([*now, *before]))
    notes = () if outcome.result.counting is None else outcome.result.counting.notes
    if not keys and not notes:
        return None
    rows = (
        [name, path or _WHOLE, before.get((path, name), NOTHING), now.get((path, name), NOTHING)] for path, name in keys
    )
    whole = table("Counts of one call", ["count", "phase", "before", "now"], rows, texts=2) if keys else Markup("")
    said = join(tag("p", f"Note: {note}") for note in notes)
    return tag("details", tag("summary", f"All {units.counted(len(keys), 'count')} of one call"), said, whole)


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


def _device(outcome: Outcome) -> Markup | None:
    """Return each process's figures on a device, and the state the device was in."""
    found = [
        (f"{number} {name}", worker.device)
        for name, result in sides(outcome)
        for number, worker in enumerate(result.workers, 1)
        if worker.device is not None
    ]
    if not found:
        return None
    header = ["process", *_DEVICE_COLUMNS, *_CONDITION_COLUMNS, "settings"]
    rows = ([name, *_device_cells(device), *_condition_cells(device), _flags(device)] for name, device in found)
    whole = table("On the device, per call", header, rows, texts=2)
    said = dict.fromkeys(
        text for _, device in found for text in (disturbances_text(device.disturbances), *device.notes) if text
    )
    return join([whole, *(tag("p", f"Note: {text}") for text in said)])


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
        return [NOTHING] * len(_CONDITION_COLUMNS)
    return [
        _known(conditions.sm_clock_hz, _hertz),
        _known(conditions.memory_clock_hz, _hertz),
        _known(conditions.temperature_c, lambda degrees: f"{degrees:.0f} °C"),
        "not known" if conditions.throttled is None else ", ".join(conditions.throttled) or "nothing",
        NOTHING if conditions.others is None else str(conditions.others),
    ]


def _flags(device: DeviceFigures) -> str:
    return ", ".join(f"{name} {value}" for name, value in device.flags.items()) or NOTHING


def _bytes(value: float) -> str:
    return f"{units.quantity(value)}B"


def _hertz(value: float) -> str:
    return f"{value / 1e6:.0f} MHz"


def _known(value: float | None, write: Callable[[float], str]) -> str:
    return NOTHING if value is None else write(value)


def _device_phases(outcome: Outcome) -> Markup | None:
    """Return the phases by the device's own clock, which never mixes with the host's."""
    found = [(phase, phase.on_device) for phase in outcome.result.phases if phase.on_device is not None]
    if not found:
        return None
    header = ["phase", "device time", "of it no child's", "host time", "lag in", "lag out", "bound by", "peak memory",
              "allocations", "stream"]  # fmt: skip
    rows = ([phase.path, *_phase_cells(times, phase.total_s)] for phase, times in found)
    return table("Phases by the device's clock", header, rows)


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


def _conditions(outcome: Outcome) -> Markup | None:
    """Return what every process found, and what it found it under; of live pairs the change of each."""
    if outcome.live is not None and outcome.live.pairs:
        header = ["pair", "change", *_WORKER_COLUMNS, "kept on CPU", "ended on", "set up in"]
        changes = [units.change(math.exp(ratio)) for ratio in outcome.live.log_ratios]
        rows = [
            [f"{number} {name}", change, *_worker_cells(worker), *_pair_cells(pair)]
            for number, (pair, change) in enumerate(zip(outcome.live.pairs, changes, strict=True), 1)
            for name, worker in (("base", pair.base), ("head", pair.head))
        ]
        return table("Conditions of every pair", header, rows)
    if not outcome.result.measured:
        return None
    rows = [
        [f"{number} {name}", *_worker_cells(worker)]
        for name, result in sides(outcome)
        for number, worker in enumerate(result.workers, 1)
    ]
    return table("Conditions of every process", ["process", *_WORKER_COLUMNS], rows)


def _worker_cells(worker: WorkerRecord) -> list[str]:
    return [
        units.seconds(worker.wall.call_s),
        units.seconds(worker.cpu.call_s),
        f"{worker.cpu_share:.2f}",
        units.percent(worker.idle_cpu_share, signed=False),
        str(worker.threads),
        str(worker.seed) if worker.seed else NOTHING,
        str(worker.slices),
        f"{worker.calls:,}",
        str(worker.collections),
    ]


def _pair_cells(pair: PairRecord) -> list[str]:
    return [
        "any" if pair.placed is None else str(pair.placed),
        ", ".join(map(str, pair.cpus)) or NOTHING,
        units.seconds(pair.setup_s),
    ]
