"""What the charts are drawn from, as plain data, and each chart in words."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_rlperf import units
from pytest_rlperf.model import Estimate, Live, Outcome, Phase, Result
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.rows import blame_lines

CALL = "one call"
REST = "(unaccounted)"
_CLOCKS = {"cpu": "CPU's clock", "wall": "wall clock"}


@dataclass(frozen=True)
class Chart:
    """One chart: its kind, its title, what it shows in words, and the data it is drawn from."""

    kind: str
    title: str
    words: str
    data: dict[str, Any]


def charts(outcome: Outcome, tolerance: float | None) -> list[Chart]:
    """Return the charts there are data for: of the change, of the times, of the phases."""
    found = [_change(outcome, tolerance), _times(outcome), _phases(outcome, tolerance)]
    return [chart for chart in found if chart is not None]


def sides(outcome: Outcome) -> list[tuple[str, Result]]:
    """Return what was measured, what it is compared with first: base and head, or baseline and now."""
    before, names = outcome.before, ("base", "head") if outcome.live is not None else ("baseline", "now")
    shown = [] if before is None else [(names[0], before)]
    if outcome.result.measured:
        shown.append((names[1], outcome.result))
    return shown


# --------------------------------------------------------------------------- the change


def _change(outcome: Outcome, tolerance: float | None) -> Chart | None:
    estimate, live = outcome.verdict.estimate, outcome.live
    if estimate is None:
        return None
    ratios = [] if live is None else [math.exp(ratio) for ratio in live.log_ratios]
    band = None if tolerance is None else [_percent(1 / (1 + tolerance)), _percent(1 + tolerance)]
    data = {
        "pairs": [_percent(ratio) for ratio in ratios],
        "mean": _percent(estimate.ratio),
        "low": _percent(estimate.low),
        "high": _percent(estimate.high),
        "interval": f"{100 * estimate.confidence:.0f} % interval",
        "band": band,
    }
    return Chart("change", _change_title(live), _change_words(ratios, estimate, tolerance), data)


def _change_title(live: Live | None) -> str:
    return "Change from the baseline" if live is None else "Change from base to head, pair by pair"


def _change_words(ratios: Sequence[float], estimate: Estimate, tolerance: float | None) -> str:
    each = ", ".join(units.change(ratio) for ratio in ratios)
    parts = [
        f"{units.counted(len(ratios), 'pair')}: {each}." if ratios else "",
        f"Estimate {units.change(estimate.ratio)},",
        f"{100 * estimate.confidence:.0f} % interval {units.change(estimate.low)} to {units.change(estimate.high)}.",
        "" if tolerance is None else f"Tolerance ±{units.percent(tolerance, signed=False)}.",
    ]
    return " ".join(part for part in parts if part)


def _percent(ratio: float) -> float | None:
    return round(100 * (ratio - 1), 3) if math.isfinite(ratio) else None


# --------------------------------------------------------------------------- the times


def _times(outcome: Outcome) -> Chart | None:
    """Return every worker's time per call, side by side; those of a live pair are told as one."""
    measured = sides(outcome)
    clock = outcome.result.clock if outcome.live is None else outcome.live.clock
    values = [(name, _calls_s(result, clock)) for name, result in measured if result.workers]
    if not values:
        return None
    step, unit = _scale(max(value for _, side in values for value in side))
    data = {
        "unit": unit,
        "sides": [{"name": name, "values": [_rounded(value / step) for value in side]} for name, side in values],
        "paired": outcome.live is not None,
    }
    words = " ".join(
        f"{name}: {len(side)} process{'' if len(side) == 1 else 'es'}, "
        f"{units.seconds(min(side))} to {units.seconds(max(side))}."
        for name, side in values
    )
    return Chart("times", f"Time per call of each process, by the {_CLOCKS[clock]}", words, data)


def _calls_s(result: Result, clock: str) -> list[float]:
    return [(worker.cpu if clock == "cpu" else worker.wall).call_s for worker in result.workers]


def _scale(largest_s: float) -> tuple[float, str]:
    """Return the unit in which the largest figure is at least one, in seconds, and its name."""
    steps = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    return next((step for step in steps if largest_s >= step[0]), (1e-9, "ns"))


# --------------------------------------------------------------------------- the phases


def _phases(outcome: Outcome, tolerance: float | None) -> Chart | None:
    """Return the phases of either side as nested boxes on one scale, with what each adds to the change."""
    traced = [(name, result) for name, result in sides(outcome) if result.phases and result.traced_call_s > 0]
    if not traced:
        return None
    changes_s = {} if outcome.live is None else {part.path: part.change_s for part in outcome.live.contributions}
    before = outcome.before
    least_s = 0.0 if before is None or tolerance is None else tolerance * before.traced_call_s
    data = {
        "sides": [_boxes(name, result, changes_s) for name, result in traced],
        # What fills the colour: the largest change, or the tolerance, so that noise is pale.
        "full": max([least_s, *(abs(change_s) for change_s in _node_changes(traced, changes_s))]) or 1.0,
        "colours": _colours(outcome),
    }
    words = ". ".join(f"{name}: {_largest(result)}" for name, result in traced)
    told = "".join(f" Change: {line}." for line in blame_lines(outcome))
    return Chart("phases", "Phases of one call", f"{words}.{told} The table of phases has every figure.", data)


def _colours(outcome: Outcome) -> str:
    """Say what the colours mean, or why there are none."""
    if outcome.live is None:
        return "No colours: phases are compared in live pairs only."
    if not outcome.live.contributions:
        return "No colours: there is no change to share out, or too little was traced to do so."
    return "Orange adds time to the change, blue takes time away; grey adds nothing that can be told from noise."


def _largest(result: Result) -> str:
    """Say which phases at the top take how much."""
    top = sorted((phase for phase in result.phases if not phase.depth), key=lambda phase: -phase.total_s)[:4]
    return ", ".join(f"{phase.name} {units.seconds(phase.total_s)}" for phase in top)


def _node_changes(traced: Sequence[tuple[str, Result]], changes_s: Mapping[str, float]) -> list[float]:
    paths = {phase.path for _, result in traced for phase in result.phases}
    return [_added_s(path, changes_s) for path in ("", *paths)]


def _added_s(path: str, changes_s: Mapping[str, float]) -> float:
    """Return what a phase and all below it add to the change."""
    return math.fsum(
        change_s for part, change_s in changes_s.items() if not path or part == path or part.startswith(f"{path}/")
    )


def _boxes(name: str, result: Result, changes_s: Mapping[str, float]) -> dict[str, Any]:
    """Return one side's boxes: each has its own time only, so that a box is as wide as what it holds, whatever it is.

    Time in no child phase is a box of its own, as it can change like any other.
    """
    known = {phase.path for phase in result.phases}
    children: dict[str, list[Phase]] = {}
    for phase in result.phases:
        children.setdefault(_parent(phase.path, known), []).append(phase)
    totals_s = {"": result.traced_call_s} | {phase.path: phase.total_s for phase in result.phases}
    boxes = [_box("", None, CALL, 0.0, result.traced_call_s, _added_s("", changes_s))]
    for parent, phases in children.items():
        for phase in phases:
            own_s = 0.0 if phase.path in children else phase.total_s
            boxes.append(_box(phase.path, parent, phase.name, own_s, phase.total_s, _added_s(phase.path, changes_s)))
        rest_s = totals_s[parent] - sum(phase.total_s for phase in phases)
        if rest_s > 0:
            boxes.append(_box(f"{parent}/{REST}", parent, REST, rest_s, rest_s, changes_s.get(parent, 0.0)))
    wide_s = math.fsum(box["own"] for box in boxes)
    return {"name": name, "total": units.seconds(result.traced_call_s), "wide": wide_s, "boxes": boxes}


def _parent(path: str, known: Container[str]) -> str:
    """Return the nearest phase above, "" for the whole call."""
    parent = path.rpartition("/")[0]
    while parent and parent not in known:
        parent = parent.rpartition("/")[0]
    return parent


def _box(path: str, parent: str | None, label: str, own_s: float, total_s: float, added_s: float) -> dict[str, Any]:
    """Return a box; the whole call has no parent. Ids begin with a slash, as plotly takes an empty one for none."""
    return {
        "id": f"/{path}",
        "parent": "" if parent is None else f"/{parent}",
        "level": 0 if parent is None else path.count("/") + 1,
        "label": shown(label),
        "path": shown(path or CALL),
        "own": _rounded(own_s),
        "total": units.seconds(total_s),
        "added": _rounded(added_s),
        "change": units.signed_seconds(added_s) if added_s else "",
    }


def _rounded(value: float) -> float:
    return units.round_significant(value, 6)
