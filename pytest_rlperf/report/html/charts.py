"""The charts of one test: the place of every mark, line and box in per cent of the width, and each chart in words."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_rlperf import units
from pytest_rlperf.model import Estimate, Outcome, Phase, Result, Status
from pytest_rlperf.report.wording import blame_text, bounds_text

CALL = "one call"
REST = "(unaccounted)"
_CLOCKS = {"cpu": "CPU time", "wall": "Wall time"}
_ROW_PX = {"change": 22, "times": 40}  # even, so that the middle of a row is a whole number
_BOX_PX = 38  # a level of phases
_AXIS_PX = 40
_TICKS_MOST = 5
_NARROWEST_NAMED = 5.0  # per cent of the width: a narrower box has no room for a name
_LETTER = 0.7  # per cent of the width of a page on a screen that has a pointer
_OPEN = -5.0, 105.0  # where a bound is drawn that is infinite: it runs out of the picture


@dataclass(frozen=True)
class Mark:
    """A sign in a row: a filled ``dot``, a ``ring`` or a ``diamond``, and the text that a pointer shows."""

    sign: str
    x: float
    y: int
    text: str


@dataclass(frozen=True)
class Line:
    """A straight line: the ``interval`` of an estimate, or what ``joins`` the two of a pair."""

    kind: str
    x1: float
    y1: int
    x2: float
    y2: int


@dataclass(frozen=True)
class Plot:
    """Rows of marks above an axis; ``ticks`` are places with labels, ``band`` is where the tolerance lies."""

    names: Sequence[str]
    row_px: int
    axis: str
    ticks: Sequence[tuple[float, str]]
    marks: Sequence[Mark]
    lines: Sequence[Line]
    band: tuple[float, float] | None = None
    zero: float | None = None

    @property
    def rows_px(self) -> int:
        """The height of all rows."""
        return self.row_px * len(self.names)

    @property
    def height_px(self) -> int:
        """The height with the axis."""
        return self.rows_px + _AXIS_PX


@dataclass
class Box:
    """A phase as a box: its place and width, and how much colour it has, from -1 (faster) to 1 (slower)."""

    path: str
    parent: str | None
    level: int
    label: str
    own_s: float
    total_s: float
    added_s: float
    shade: float = 0.0
    width: float = 0.0
    x: float = 0.0

    @property
    def y(self) -> int:
        """The upper edge."""
        return _BOX_PX * self.level

    @property
    def is_named(self) -> bool:
        """Whether there is room for a name."""
        return self.width >= _NARROWEST_NAMED

    @property
    def is_whole(self) -> bool:
        """Whether there is room for the name and all figures, so that a pointer need not show them."""
        return self.is_named and self.width >= _LETTER * max(len(self.label), len(self.figures))

    @property
    def figures(self) -> str:
        """The time of the phase, and what it adds to the change, where that is known."""
        return " · ".join(
            [units.seconds(self.total_s), *([units.signed_seconds(self.added_s)] if self.added_s else [])]
        )

    @property
    def text(self) -> str:
        """The text that a pointer shows."""
        added = f", adds {units.signed_seconds(self.added_s)} to the change" if self.added_s else ""
        return f"{self.path.removeprefix('/') or CALL}: {units.seconds(self.total_s)}{added}"


@dataclass(frozen=True)
class Icicle:
    """One side's phases as boxes, each below the phase that it is a part of."""

    name: str
    wide_s: float
    boxes: Sequence[Box]

    @property
    def height_px(self) -> int:
        """The height of all levels."""
        return _BOX_PX * (1 + max(box.level for box in self.boxes))


@dataclass(frozen=True)
class Chart:
    """One chart: its title, its content in words, the meaning of its signs, and a plot or icicles."""

    kind: str
    title: str
    words: str
    legend: str
    plot: Plot | None = None
    icicles: Sequence[Icicle] = field(default=())


def charts(outcome: Outcome, tolerance: float | None) -> list[Chart]:
    """Return the charts there are data for: of the change, of the times, of the phases."""
    found = [_change(outcome, tolerance), _times(outcome), _phases(outcome, tolerance)]
    return [chart for chart in found if chart is not None]


def sides(outcome: Outcome) -> list[tuple[str, Result]]:
    """Return the results by side, the one that is compared with first: base and head, or baseline and now."""
    before, names = outcome.before, ("base", "head") if outcome.live is not None else ("baseline", "now")
    found = [] if before is None else [(names[0], before)]
    if outcome.result.measured:
        found.append((names[1], outcome.result))
    return found


# --------------------------------------------------------------------------- axes


@dataclass(frozen=True)
class Axis:
    """A range of values across the whole width."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return a value's place, in per cent of the width."""
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self, sign: str, unit: str) -> list[tuple[float, str]]:
        """Return round values with their places, six at most."""
        least = (self.high - self.low) / _TICKS_MOST
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [(self.at(number * step), f"{number * step:{sign if number else ''}.6g}{unit}") for number in numbers]


def around(values: Sequence[float]) -> Axis:
    """Return an axis with some room on both sides of all values."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room)


# --------------------------------------------------------------------------- the change


def _change(outcome: Outcome, tolerance: float | None) -> Chart | None:
    estimate, live = outcome.verdict.estimate, outcome.live
    if estimate is None or not math.isfinite(estimate.ratio):
        return None
    ratios = [] if live is None else [math.exp(ratio) for ratio in live.log_ratios]
    legend = (
        f"{'● one pair, ' if ratios else ''}◆ the estimate with its {100 * estimate.confidence:.0f} % interval"
        f"{'' if tolerance is None else ', shaded: the tolerance'}; further to the right is slower"
    )
    title = "Change from the baseline" if live is None else "Change, pair by pair"
    plot = _change_plot(ratios, estimate, tolerance)
    return Chart("change", title, _change_words(ratios, estimate, tolerance), legend, plot)


def _change_plot(ratios: Sequence[float], estimate: Estimate, tolerance: float | None) -> Plot:
    band = None if tolerance is None else (_percent(1 / (1 + tolerance)), _percent(1 + tolerance))
    # The band is always in sight: it shows how far a figure is from it.
    known = [*map(_percent, (*ratios, estimate.low, estimate.high, estimate.ratio)), 0.0, *(band or ())]
    axis = around([value for value in known if math.isfinite(value)])
    row_px = _ROW_PX["change"]

    def middle(row: int) -> int:
        return row_px // 2 + row_px * row

    low, high = (
        axis.at(_percent(bound)) if math.isfinite(bound) else edge
        for bound, edge in zip((estimate.low, estimate.high), _OPEN, strict=True)
    )
    last = middle(len(ratios))
    pairs = [
        Mark("dot", axis.at(_percent(ratio)), middle(row), f"pair {row + 1}: {units.change(ratio)}")
        for row, ratio in enumerate(ratios)
    ]
    return Plot(
        names=[*(f"pair {row + 1}" for row in range(len(ratios))), "estimate"],
        row_px=row_px,
        axis="",
        ticks=axis.ticks("+", " %"),
        marks=[
            *pairs,
            Mark("diamond", axis.at(_percent(estimate.ratio)), last, f"estimate: {units.change(estimate.ratio)}"),
        ],
        lines=[Line("interval", low, last, high, last)],
        band=None if band is None else (axis.at(band[0]), axis.at(band[1])),
        zero=axis.at(0.0),
    )


def _change_words(ratios: Sequence[float], estimate: Estimate, tolerance: float | None) -> str:
    each = ", ".join(units.change(ratio) for ratio in ratios)
    parts = [
        f"{units.counted(len(ratios), 'pair')}: {each}." if ratios else "",
        f"Estimate {units.change(estimate.ratio)},",
        f"{100 * estimate.confidence:.0f} % interval {bounds_text(estimate)}.",
        "" if tolerance is None else f"Tolerance ±{units.percent(tolerance, signed=False)}.",
    ]
    return " ".join(part for part in parts if part)


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


# --------------------------------------------------------------------------- the times


def _times(outcome: Outcome) -> Chart | None:
    """Return every worker's time per call, side by side; the two of a live pair are joined."""
    clock = outcome.result.clock if outcome.live is None else outcome.live.clock
    values = [(name, _calls_s(result, clock)) for name, result in sides(outcome) if result.workers]
    if not values:
        return None
    words = " ".join(
        f"{name} ×{len(side)}: {units.seconds(min(side))} to {units.seconds(max(side))}." for name, side in values
    )
    paired = outcome.live is not None
    legend = "○ base, ● head; a line joins the two of a pair" if paired else "each sign is one process"
    title = f"{_CLOCKS[clock]} per call of each process"
    return Chart("times", title, words, legend, _times_plot(values, paired=paired))


def _times_plot(values: Sequence[tuple[str, list[float]]], *, paired: bool) -> Plot:
    step, unit = _scale(max(value for _, side in values for value in side))
    axis = around([value / step for _, side in values for value in side])
    row_px = _ROW_PX["times"]
    middles = [row_px // 2 + row_px * row for row in range(len(values))]
    marks = [
        Mark(
            "ring" if name in ("base", "baseline") else "dot",
            axis.at(value / step),
            middle,
            f"{name} {number}: {value / step:.4g} {unit}",
        )
        for (name, side), middle in zip(values, middles, strict=True)
        for number, value in enumerate(side, 1)
    ]
    lines = []
    if paired and len(values) == 2:
        (_, base), (_, head) = values
        lines = [
            Line("joins", axis.at(then / step), middles[0], axis.at(now / step), middles[1])
            for then, now in zip(base, head, strict=False)
        ]
    return Plot([name for name, _ in values], row_px, f"{unit} per call", axis.ticks("", ""), marks, lines)


def _calls_s(result: Result, clock: str) -> list[float]:
    return [(worker.cpu if clock == "cpu" else worker.wall).call_s for worker in result.workers]


def _scale(largest_s: float) -> tuple[float, str]:
    """Return the unit in which the largest figure is at least one, in seconds, and its name."""
    steps = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    return next((step for step in steps if largest_s >= step[0]), (1e-9, "ns"))


# --------------------------------------------------------------------------- the phases


def _phases(outcome: Outcome, tolerance: float | None) -> Chart | None:
    """Return the phases of either side as nested boxes on one scale, coloured by what each adds to the change."""
    traced = [(name, result) for name, result in sides(outcome) if result.phases and result.traced_call_s > 0]
    if not traced:
        return None
    changes_s = {} if outcome.live is None else {part.path: part.change_s for part in outcome.live.contributions}
    # Where nothing changed one drawing shows both sides; the table has the figures of each.
    drawn = traced[-1:] if outcome.verdict.status is Status.SAME and not changes_s else traced
    icicles = [_icicle(name, result, changes_s) for name, result in drawn]
    before = outcome.before
    # The largest change has full colour, or the tolerance where that is more, so that noise is pale.
    least_s = 0.0 if before is None or tolerance is None else tolerance * before.traced_call_s
    boxes = [box for icicle in icicles for box in icicle.boxes]
    full_s = max([least_s, *(abs(box.added_s) for box in boxes)]) or 1.0
    widest_s = max(icicle.wide_s for icicle in icicles)
    for icicle in icicles:
        _place(icicle.boxes, widest_s)
    for box in boxes:
        box.shade = box.added_s / full_s
    words = ". ".join(f"{name}: {_largest(result)}" for name, result in traced)
    blame = blame_text(outcome)
    change = f" Change: {blame}." if blame else ""
    width = "Width is time, on one scale; a box lies below the phase that it is a part of. The table has every figure."
    legend = f"{width} {_colours(outcome)}"
    words = f"{words}.{change}"
    return Chart("phases", "Phases of one call", words, legend, icicles=icicles)


def _colours(outcome: Outcome) -> str:
    """Return the meaning of the colours, or why there are none."""
    if outcome.live is None:
        return "No colours: phases are compared in live pairs only."
    if not outcome.live.contributions:
        return "No colours: there is no change to share out, or too little was traced to do so."
    return "Orange adds time to the change, blue takes time away; grey adds nothing that stands out from noise."


def _largest(result: Result) -> str:
    """Return the phases at the top that take most, with their times."""
    top = sorted((phase for phase in result.phases if not phase.depth), key=lambda phase: -phase.total_s)[:4]
    return ", ".join(f"{phase.name} {units.seconds(phase.total_s)}" for phase in top)


def _added_s(path: str, changes_s: Mapping[str, float]) -> float:
    """Return what a phase and all below it add to the change."""
    return math.fsum(
        change_s for part, change_s in changes_s.items() if not path or part == path or part.startswith(f"{path}/")
    )


def _icicle(name: str, result: Result, changes_s: Mapping[str, float]) -> Icicle:
    """Return one side's boxes, parents first; only those without children have a width of their own.

    Time in no child phase is a box of its own, as it can change like any other.
    """
    known = {phase.path for phase in result.phases}
    children: dict[str, list[Phase]] = {}
    for phase in result.phases:
        children.setdefault(_parent(phase.path, known), []).append(phase)
    totals_s = {"": result.traced_call_s} | {phase.path: phase.total_s for phase in result.phases}
    boxes = [Box("", None, 0, f"{name}: {CALL}", 0.0, result.traced_call_s, _added_s("", changes_s))]
    for parent, phases in children.items():
        for phase in phases:
            own_s = 0.0 if phase.path in children else phase.total_s
            added_s = _added_s(phase.path, changes_s)
            boxes.append(Box(phase.path, parent, phase.depth + 1, phase.name, own_s, phase.total_s, added_s))
        rest_s = totals_s[parent] - sum(phase.total_s for phase in phases)
        if rest_s > 0:
            path, level = f"{parent}/{REST}", phases[0].depth + 1
            boxes.append(Box(path, parent, level, REST, rest_s, rest_s, changes_s.get(parent, 0.0)))
    boxes.sort(key=lambda box: box.level)
    return Icicle(name, math.fsum(box.own_s for box in boxes), boxes)


def _parent(path: str, known: Container[str]) -> str:
    """Return the nearest phase above, "" for the whole call."""
    parent = path.rpartition("/")[0]
    while parent and parent not in known:
        parent = parent.rpartition("/")[0]
    return parent


def _place(boxes: Sequence[Box], widest_s: float) -> None:
    """Give boxes their widths, as wide as all that lies below them, and their places side by side."""
    by_path = {box.path: box for box in boxes}
    for box in boxes:
        box.width = 100 * box.own_s / widest_s
    for box in reversed(boxes):
        if box.parent is not None:
            by_path[box.parent].width += box.width
    ends: dict[str, float] = {}
    for box in boxes:
        if box.parent is not None:
            box.x = ends.get(box.parent, by_path[box.parent].x)
            ends[box.parent] = box.x + box.width
