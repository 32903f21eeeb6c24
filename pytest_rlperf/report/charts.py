"""Charts as plain values, which templates draw: one test's change pair by pair, and the changes of all tests."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from pytest_rlperf import units
from pytest_rlperf.model.judged import LIVE_TOLERANCE, Estimate, Outcome, Status
from pytest_rlperf.report.table import LOOKS
from pytest_rlperf.report.tables import verdict_label
from pytest_rlperf.report.wording import bounds_text, not_drawn_text, plot_legend

_TICKS_MOST = 5
_REACH = 12  # tolerances, to the end of the axis of all tests
_ROWS_MOST = 40  # of the plot of all tests, before those that are the same are folded away
_OUTSIDE = -5.0, 105.0  # where an infinite bound is drawn: it runs out of the picture


class Axis(msgspec.Struct, frozen=True):
    """A range of values across the whole width."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return a value's place, in per cent of the width."""
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return round percentages with their places, at most six."""
        least = (self.high - self.low) / _TICKS_MOST
        power = 10.0 ** math.floor(math.log10(least))
        step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [(self.at(number * step), f"{number * step:{'+' if number else ''}.6g} %") for number in numbers]


def around(values: Sequence[float]) -> Axis:
    """Return an axis with some room on both sides of all values."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room)


class Chart(msgspec.Struct, frozen=True):
    """A row with a mark for each live pair and, last, the estimate; places are in per cent of the width.

    ``words`` say the same. ``marks`` have the texts that a pointer shows, ``ticks`` are labelled, and ``band`` is the
    range of the tolerance.
    """

    title: str
    words: str
    legend: str
    names: Sequence[str]
    marks: Sequence[tuple[float, str]]
    interval: tuple[float, float]
    ticks: Sequence[tuple[float, str]]
    band: tuple[float, float] | None
    zero: float


def chart(outcome: Outcome, tolerance: float | None) -> Chart | None:
    """Return the chart of a test's change, None if there is no estimate of it."""
    estimate, live = _estimate(outcome), outcome.live
    if estimate is None:
        return None
    ratios = [] if live is None else [math.exp(ratio) for ratio in live.log_ratios]
    names = [*(f"pair {number}" for number in range(1, len(ratios) + 1)), "estimate"]
    band = _band(tolerance)
    # The band is always in sight: it shows how far a figure is from it.
    known = (*ratios, estimate.low, estimate.high, estimate.ratio, 1.0, *(band or ()))
    axis = around([100 * (ratio - 1) for ratio in known if math.isfinite(ratio)])

    def at(ratio: float) -> float:
        return min(max(axis.at(100 * (ratio - 1)), _OUTSIDE[0]), _OUTSIDE[1])

    return Chart(
        title="Change from the baseline" if live is None else "Change, pair by pair",
        words=_chart_words(ratios, estimate, tolerance),
        legend=f"{'● one pair, ' if ratios else ''}◆ the estimate with its {100 * estimate.confidence:.0f} % interval"
        f"{'' if tolerance is None else ', shaded: the tolerance'}; further to the right is slower",
        names=names,
        marks=[
            (at(ratio), f"{name}: {units.change(ratio)}")
            for name, ratio in zip(names, (*ratios, estimate.ratio), strict=True)
        ],
        interval=(at(estimate.low), at(estimate.high)),
        ticks=axis.ticks(),
        band=None if band is None else (at(band[0]), at(band[1])),
        zero=at(1.0),
    )


def _chart_words(ratios: Sequence[float], estimate: Estimate, tolerance: float | None) -> str:
    pairs = f"{units.counted(len(ratios), 'pair')}: {', '.join(map(units.change, ratios))}. " if ratios else ""
    change = f"Estimate {units.change(estimate.ratio)}, {100 * estimate.confidence:.0f} % interval"
    within = "" if tolerance is None else f" Tolerance ±{units.percent(tolerance, signed=False)}."
    return f"{pairs}{change} {bounds_text(estimate)}.{within}"


# --------------------------------------------------------------------------- the changes of all tests


class ChartRow(msgspec.Struct, frozen=True):
    """A test in the plot of all tests: places in per cent of the width; ``number`` is its place among the page's tests.

    ``beyond`` is 1 if the estimate is further to the right than the axis reaches, -1 to the left, else 0.
    """

    number: int
    name: str
    status: Status
    label: str
    change: str
    bounds: str
    is_live: bool
    x: float
    beyond: int
    interval: tuple[float, float]
    band: tuple[float, float] | None


class Plot(msgspec.Struct, frozen=True):
    """The changes of all tests that have an estimate, the largest slowdown first.

    ``same`` are rows that a page of many tests folds away, ``left_out`` says how many tests are not drawn.
    """

    rows: Sequence[ChartRow]
    same: Sequence[ChartRow]
    ticks: Sequence[tuple[float, str]]
    zero: float
    legend: str
    statuses: Sequence[Status]
    left_out: str


def plot(outcomes: Sequence[Outcome], tolerances: Mapping[str, float]) -> Plot:
    """Return the plot of a page's tests."""
    names = Counter(outcome.result.name for outcome in outcomes)
    drawn = [(number, found, estimate) for number, found in enumerate(outcomes) if (estimate := _estimate(found))]
    drawn.sort(key=lambda each: -each[2].ratio)
    bands = [_band(tolerances.get(found.result.nodeid)) for _, found, _ in drawn]
    axis = _axis([estimate for *_, estimate in drawn], [band for band in bands if band is not None])
    rows = [
        _row(axis, number, found, estimate, band, is_unique=names[found.result.name] == 1)
        for (number, found, estimate), band in zip(drawn, bands, strict=True)
    ]
    folded = {Status.SAME} if len(rows) > _ROWS_MOST else set()
    statuses = {row.status for row in rows}
    return Plot(
        rows=[row for row in rows if row.status not in folded],
        same=[row for row in rows if row.status in folded],
        ticks=axis.ticks(),
        zero=axis.at(0.0),
        legend=plot_legend(
            has_stored=not all(row.is_live for row in rows),
            has_band=any(bands),
            is_cut=any(row.beyond for row in rows),
        ),
        statuses=[status for status in LOOKS if status in statuses],
        left_out=not_drawn_text(outcome.verdict.status for outcome in outcomes if not _estimate(outcome)),
    )


def _axis(estimates: Sequence[Estimate], bands: Sequence[tuple[float, float]]) -> Axis:
    """Return the axis of the plot of all tests.

    The axis is linear, so that the intervals of all tests can be compared by their lengths. It ends at twelve times the
    usual tolerance, so the band stays wide enough to read even if one test changes a lot. An arrow marks an estimate
    beyond the end.
    """
    end = _REACH * (statistics.median([most - 1 for _, most in bands] or [LIVE_TOLERANCE]) or LIVE_TOLERANCE)
    bounds = [(estimate.low, estimate.high) for estimate in estimates]
    ratios = [1.0, *(ratio for both in (*bounds, *bands) for ratio in both)]
    return around([100 * min(max(ratio - 1, -end), end) for ratio in ratios])


def _row(
    axis: Axis,
    number: int,
    outcome: Outcome,
    estimate: Estimate,
    band: tuple[float, float] | None,
    *,
    is_unique: bool,
) -> ChartRow:
    def at(ratio: float) -> float:
        return min(max(axis.at(100 * (ratio - 1)), 0.0), 100.0)

    verdict, change = outcome.verdict, 100 * (estimate.ratio - 1)
    return ChartRow(
        number,
        name=outcome.result.name if is_unique else outcome.result.nodeid,
        status=verdict.status,
        label=verdict_label(verdict).removeprefix(verdict.status.value),
        change=units.change(estimate.ratio),
        bounds=units.interval(estimate.ratio, estimate.low, estimate.high),
        is_live=outcome.live is not None,
        x=at(estimate.ratio),
        beyond=(change > axis.high) - (change < axis.low),
        interval=(at(estimate.low), at(estimate.high)),
        band=None if band is None else (at(band[0]), at(band[1])),
    )


def _estimate(outcome: Outcome) -> Estimate | None:
    """Return a test's change if it has a place on an axis."""
    estimate = outcome.verdict.estimate
    return estimate if estimate is not None and math.isfinite(estimate.ratio) else None


def _band(tolerance: float | None) -> tuple[float, float] | None:
    """Return the ratios between which a test is the same."""
    return None if tolerance is None else (1 / (1 + tolerance), 1 + tolerance)
