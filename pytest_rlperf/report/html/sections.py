"""One test: why its verdict is what it is, and all that it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.model import Estimate, Outcome, Result, Status
from pytest_rlperf.report.html import tables
from pytest_rlperf.report.html.charts import Chart
from pytest_rlperf.report.html.markup import EMPTY, Markup, facts, join, tag, text
from pytest_rlperf.report.rows import blame_lines, by_counts, cost_text, creep_text
from pytest_rlperf.report.statuses import LOOKS


@dataclass(frozen=True)
class Entry:
    """One test on the page: its place, counted from the top, what came out, and the charts of that."""

    place: int
    outcome: Outcome
    tolerance: float | None
    charts: Sequence[Chart]


def badge(status: Status) -> Markup:
    """Return a status as a word with a sign and a colour."""
    sign = tag("span", LOOKS[status].sign, aria_hidden="true")
    return tag("span", sign, f" {status.value}", class_=f"badge {status.value.lower()}")


def section(entry: Entry, command: str) -> Markup:
    """Return all about one test, folded up; its charts are drawn when it is opened."""
    outcome = entry.outcome
    change = _change(outcome)
    told = tag("span", change, class_="figure") if change else EMPTY
    drawn = [_figure(entry.place, chart) for chart in entry.charts]
    counts = tables.changed_counts(outcome) or EMPTY
    parts = [
        _reason(outcome),
        counts if by_counts(outcome) else EMPTY,  # where they decide they stand first, as no chart tells of them
        _facts(outcome, entry.tolerance),
        tag("div", *drawn, class_="charts") if drawn else EMPTY,
        EMPTY if by_counts(outcome) else counts,
        *tables.all_of(outcome),
        tag("h4", "Measure it again"),
        tag("pre", tag("code", f"{command} {shlex.quote(outcome.result.nodeid)}")),
    ]
    summary = tag("summary", badge(outcome.verdict.status), tag("h3", outcome.result.nodeid), told)
    return tag("details", summary, *parts, id=f"test-{entry.place}")


def _change(outcome: Outcome) -> str:
    """Say how a test has changed by what its verdict rests on."""
    verdict = outcome.verdict
    if by_counts(outcome):
        return f"does {'more' if verdict.status is Status.SLOWER else 'less'} in a call"
    return "" if verdict.estimate is None else units.change(verdict.estimate.ratio)


def _reason(outcome: Outcome) -> Markup:
    sentences = [outcome.verdict.reason.message, *blame_lines(outcome)]
    notes = join(tag("p", f"Note: {note}") for note in outcome.result.notes)
    return tag("div", *(tag("p", sentence) for sentence in sentences), notes, class_="reason")


def _facts(outcome: Outcome, tolerance: float | None) -> Markup:
    """Return the figures of the whole call."""
    result, verdict, before = outcome.result, outcome.verdict, outcome.before
    seen = "" if verdict.smallest_seen is None else units.percent(verdict.smallest_seen)
    items = f"{units.quantity(result.items_per_s)} items/s; an item: {result.unit}" if result.measured else ""
    shown = [
        ("component", result.component),
        ("time per call", _call(result)),
        ("throughput", items),
        ("before" if outcome.live is None else "base", _call(before)),
        ("change", "" if verdict.estimate is None else _interval(verdict.estimate)),
        ("since first", creep_text(outcome)),
        ("tolerance", "" if tolerance is None else f"±{units.percent(tolerance, signed=False)}"),
        ("smallest slowdown it could have seen", seen),
        ("compared", "" if outcome.live is None else f"{outcome.live.head_label} with {outcome.live.base_label}, live"),
        ("fails its test", "" if verdict.gated else "never: shown, not gated"),
        ("rests on", cost_text(outcome)),
    ]
    return facts((term, text(said)) for term, said in shown)


def _call(result: Result | None) -> str:
    return units.seconds(result.call_s) if result is not None and result.measured else ""


def _interval(estimate: Estimate) -> str:
    low, high = units.change(estimate.low), units.change(estimate.high)
    return f"{units.change(estimate.ratio)}, {100 * estimate.confidence:.0f} % interval {low} to {high}"


def _figure(place: int, chart: Chart) -> Markup:
    """Return an empty chart with its title and its content in words."""
    canvas = tag("div", class_="chart", data_chart=chart.kind, data_test=str(place), role="img", aria_label=chart.words)
    legend = tag("p", class_="legend", data_legend=chart.kind)
    return tag("figure", tag("figcaption", tag("b", chart.title), tag("span", chart.words)), legend, canvas)
