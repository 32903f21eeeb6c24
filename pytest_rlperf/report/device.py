"""What is known of a test on an accelerator, in words: both paces, conditions, and phases by the device's clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model import Conditions, DeviceFigures, Outcome, Pace, Phase, Result
from pytest_rlperf.report.rows import is_synced
from pytest_rlperf.report.table import Cell, Column, make_table
from pytest_rlperf.report.text import table_text

_UNKNOWN = "–"


def device_lines(outcome: Outcome) -> list[str]:
    """Return the lines about a test on a device; none for one on the host."""
    result = outcome.result
    figures = [worker.device for worker in result.workers if worker.device is not None]
    if not figures:
        return []
    return [_paces(figures), _state(figures), *_settings(figures[-1]), *_phases(result)]


def _paces(figures: Sequence[DeviceFigures]) -> str:
    """Say the two figures a call has on a device, and which of them is judged."""
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
    """Say under which conditions the worker that had the worst of them measured."""
    states = [each.conditions for each in figures if each.conditions is not None]
    if not states:
        return "conditions: unknown"
    slowest = min(states, key=lambda state: state.sm_clock_hz or 0.0)
    others = max((state.others for state in states if state.others is not None), default=_UNKNOWN)
    return f"conditions: {_clocks(slowest)}; throttled: {_throttled(states)}; other processes: {others}"


def _throttled(states: Sequence[Conditions]) -> str:
    """Say why the device was held back; that it was not is another thing than that nobody could tell."""
    told = [state.throttled for state in states if state.throttled is not None]
    if not told:
        return "not known"
    return ", ".join(sorted({reason for reasons in told for reason in reasons})) or "no"


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
