"""The charts of one test: the place of every mark and line in per cent of the width, and each chart in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.model.judged import Estimate, Outcome
from pytest_rlperf.model.measured import Result
from pytest_rlperf.report.tables import sides
from pytest_rlperf.report.wording import bounds_text

_CLOCKS = {"cpu": "CPU time", "wall": "Wall time"}
_ROW_PX = {"change": 22, "times": 40}  # even, so that the middle of a row is a whole number
_TICKS_MOST = 5
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


@dataclass(frozen=True)
class Chart:
    """One chart: its title, its content in words, the meaning of its signs, and the plot."""

    kind: str
    title: str
    words: str
    legend: str
    plot: Plot


def charts(outcome: Outcome, tolerance: float | None) -> list[Chart]:
    """Return the charts there are data for: of the change, of the times."""
    found = [_change(outcome, tolerance), _times(outcome)]
    return [chart for chart in found if chart is not None]


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
