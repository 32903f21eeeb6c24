"""The lines about one test beside its times: exact counts, figures on a device, and where its time goes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from pytest_rlperf import units
from pytest_rlperf.model import (
    Conditions,
    CounterChange,
    Counting,
    DeviceFigures,
    Outcome,
    Pace,
    Phase,
    PhaseCounts,
    Result,
)
from pytest_rlperf.model.counting import Share
from pytest_rlperf.report.rows import is_synced
from pytest_rlperf.report.table import Cell, Column, make_table
from pytest_rlperf.report.text import table_text

_OPERATIONS = "ops:"  # left out: what follows names PyTorch's operation fully
_CHANGES_MOST = 8  # of one phase, without -v


def counter_lines(outcome: Outcome, *, verbose: bool) -> list[str]:
    """Return the lines about a test's counts: those that changed and, where ``verbose``, all of the whole call."""
    lines = list(_changes(outcome.verdict.counters, None if verbose else _CHANGES_MOST))
    counting = outcome.result.counting
    if not verbose or counting is None:
        return lines
    lines += _whole_call(counting)
    lines += _by_phase(counting, outcome.verdict.counters)
    return [*lines, *counting.notes]


def _changes(changes: tuple[CounterChange, ...], most: int | None) -> Iterator[str]:
    """Yield what changed, a line for each phase; less is marked as better."""
    for path in dict.fromkeys(change.path for change in changes):
        found = [f"{_label(change.name)} {change.was} → {change.now}" for change in changes if change.path == path]
        more = f"; {len(found) - most} more" if most is not None and len(found) > most else ""
        yield f"{path or 'the call'}: {'; '.join(found[:most])}{more}"


def _whole_call(counting: Counting) -> Iterator[str]:
    """Yield the counts of the whole call that are not zero, sums only: exact ones plain, others from..to."""
    for phase in counting.phases:
        if phase.path == "":
            counts = [f"{name} {text}" for name, text in _texts(phase).items() if ":" not in name and text != "0"]
            yield f"counted: {', '.join(counts) or 'nothing'}"


def _by_phase(counting: Counting, changes: tuple[CounterChange, ...]) -> Iterator[str]:
    """Yield where in the call a count that changed is."""
    for name in dict.fromkeys(change.name for change in changes):
        places = [(phase.path or "the call", _texts(phase).get(name)) for phase in counting.phases]
        yield f"{_label(name)}: {', '.join(f'{path} {text}' for path, text in places if text is not None)}"


def _texts(phase: PhaseCounts) -> dict[str, str]:
    ranges = {name: f"{least}..{most}" for name, (least, most) in phase.inexact.items()}
    return {name: str(value) for name, value in phase.exact.items()} | ranges


def _label(name: str) -> str:
    return name.removeprefix(_OPERATIONS)


_UNKNOWN = "–"


def device_lines(outcome: Outcome) -> list[str]:
    """Return the lines about a test on a device; none for one on the host."""
    result = outcome.result
    figures = [worker.device for worker in result.workers if worker.device is not None]
    if not figures:
        return []
    return [_paces(figures), _state(figures), *_settings(figures[-1]), *_phases(result)]


def _paces(figures: Sequence[DeviceFigures]) -> str:
    """Return the two times of a call on a device, with a mark at the one that is judged."""
    found = [
        _pace(Pace.LATENCY, [each.latency_s for each in figures], figures[0].gated),
        _pace(Pace.STEADY, [each.steady_s for each in figures], figures[0].gated),
    ]
    cycles = [each.cycles for each in figures if each.cycles is not None]
    if cycles:
        found.append(f"{units.quantity(statistics.median(cycles))} cycles")
    peak_bytes = max(each.peak_bytes for each in figures)
    found.append(f"peak {units.quantity(peak_bytes)}B" if peak_bytes else "peak unknown")  # what runs there has some
    allocations = statistics.fmean(each.allocations for each in figures)
    if allocations:
        found.append(f"{allocations:.3g} allocations")
    return f"on {figures[0].device}, a call: {', '.join(found)}"


def _pace(pace: Pace, seconds: Sequence[float | None], gated: Pace) -> str:
    known = [value for value in seconds if value is not None]
    figure = units.seconds(statistics.median(known)) if known else "not taken"
    return f"{pace.value} {figure}{' (judged)' if pace is gated else ''}"


def _state(figures: Sequence[DeviceFigures]) -> str:
    """Return the device's state in the worker whose state was worst."""
    states = [each.conditions for each in figures if each.conditions is not None]
    if not states:
        return "conditions: unknown"
    slowest = min(states, key=lambda state: state.sm_clock_hz or 0.0)
    others = max((state.others for state in states if state.others is not None), default=_UNKNOWN)
    return f"conditions: {_clocks(slowest)}; throttled: {_throttled(states)}; other processes: {others}"


def _throttled(states: Sequence[Conditions]) -> str:
    """Return why the device was held back: ``no`` where it was not, ``not known`` where its driver has no answer."""
    known = [state.throttled for state in states if state.throttled is not None]
    if not known:
        return "not known"
    return ", ".join(sorted({reason for reasons in known for reason in reasons})) or "no"


def _clocks(state: Conditions) -> str:
    sm, memory = (
        _UNKNOWN if clock_hz is None else f"{clock_hz / 1e6:.0f} MHz"
        for clock_hz in (state.sm_clock_hz, state.memory_clock_hz)
    )
    degrees = _UNKNOWN if state.temperature_c is None else f"{state.temperature_c:.0f} °C"
    return f"SM clock {sm}, memory clock {memory}, {degrees} (the worst seen)"


def _settings(figures: DeviceFigures) -> list[str]:
    flags = ", ".join(f"{name}={value}" for name, value in figures.flags.items())
    return [f"settings: {flags}"] if flags else []


def _phases(result: Result) -> list[str]:
    """Return a table of the phases by the device's clock; ``lag`` is how far the device is behind the host."""
    timed = [phase for phase in result.phases if phase.on_device is not None]
    if not timed:
        return []
    synced = ", waiting at every edge" if any(is_synced(phase) for phase in timed) else ""
    columns = (
        Column("phase", f"phase on {timed[0].device}{synced}", "left"),
        Column("span", "span"),
        Column("self", "self"),
        Column("lag_in", "lag in"),
        Column("lag_out", "lag out"),
        Column("bound", "bound by"),
    )
    return table_text(make_table(columns, [_phase(phase) for phase in timed]), None, ruled=False)


def _phase(phase: Phase) -> list[Cell | str]:
    times = phase.on_device
    assert times is not None
    return [
        Cell(phase.name, depth=phase.depth),
        *(
            _UNKNOWN if value is None else units.seconds(value)
            for value in (times.span_s, times.self_s, times.lag_in_s, times.lag_out_s)
        ),
        times.bound.value,
    ]


_BAR_COLUMNS = 40
_NAME_COLUMNS = 24  # a line must fit into 80 columns
_LABELS = {"python": "python and operators"}  # a profiler does not see an extension's operators


def owner_label(name: str) -> str:
    """Return the name that a report shows for an owner of time."""
    return _LABELS.get(name, name)


def shares_lines(shares: Sequence[Share]) -> list[str]:
    """Return a line for each share: its name, percent and a bar; none where there are none."""
    columns = (Column("owner", "", "left"), Column("share", "", usual=7), Column("bar", "", "left"))
    rows = [
        (
            owner_label(share.name)[:_NAME_COLUMNS],
            units.percent(share.share, signed=False),
            "#" * round(_BAR_COLUMNS * min(1.0, max(0.0, share.share))),
        )
        for share in shares
    ]
    return table_text(make_table(columns, rows), None, titled=False)
