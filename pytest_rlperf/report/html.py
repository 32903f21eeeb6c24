"""Makes a run's outcomes one page, with a chart of each test's change: the templates show plain values."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlperf import units
from pytest_rlperf.errors import shown
from pytest_rlperf.model.judged import Estimate, Outcome, Status
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.summary import Summary, by_gravity, change_text, headline
from pytest_rlperf.report.table import GRAVEST_FIRST, LOOKS
from pytest_rlperf.report.tables import CHANGE, device_tables, phase_table, share_table, sides, verdict_table
from pytest_rlperf.report.wording import (
    PARTS_MOST,
    blame_text,
    bounds_text,
    cost_text,
    creep_text,
    disturbances_text,
    message,
    part_text,
    phase_changes,
    phases_note,
)
from pytest_rlperf.writing import OutputError, check_file

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

_OPTION = "--rlperf-html"
_DIGITS = 12  # of a commit
_TICKS_MOST = 5
_LINES_MOST = 200  # of a part of a change
_OUTSIDE = -5.0, 105.0  # where a bound is drawn that is infinite: it runs out of the picture


def check_html(path: Path, option: str = _OPTION) -> None:
    """Raise OutputError, before any time is spent on measuring, where a page could not be made or written."""
    environment(option)
    check_file(option, path)


def render_html(
    outcomes: Sequence[Outcome],
    summary: Summary,
    *,
    tolerances: Mapping[str, float],
    command: str,
    provenance: Provenance | None,
) -> str:
    """Return a run as one page that needs nothing beside itself; OutputError without jinja2.

    ``tolerances`` are the tests' by node id, 0.03 being 3 %, as far as they are known. ``command`` is what measures
    again where a test's id is put behind it. ``provenance`` is of the code that was measured.
    """
    ordered = by_gravity(outcomes, strict=False)
    counts = Counter(outcome.verdict.status for outcome in ordered)
    created = [] if provenance is None else [("measured", f"{provenance.created[:16].replace('T', ' ')} UTC")]
    return (
        environment()
        .get_template("page.html")
        .render(
            headline=headline(ordered, counts[Status.ERROR], strict=False),
            counts={status: counts[status] for status in GRAVEST_FIRST if counts[status]},
            facts=[*created, *summary.facts()],
            verdicts=verdict_table(ordered).leading("test", "verdict", CHANGE),
            tests=[_test(outcome, tolerances.get(outcome.result.nodeid), command, provenance) for outcome in ordered],
            any_ungated=not all(outcome.verdict.gated for outcome in ordered),
            commands=[(f"{step.effect}:", "\n".join(step.lines)) for step in summary.steps],
        )
    )


def environment(option: str = _OPTION) -> jinja2.Environment:
    """Return the templates; all text in them is escaped, and what no reader can see is written out.

    OutputError, which names the ``option``, without jinja2.
    """
    try:
        import jinja2
    except ImportError:
        missing = f"{option} needs jinja2, which is missing: pip install 'pytest-rlperf[html]'"
        raise OutputError(missing) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_rlperf.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["looks"] = LOOKS
    environment.filters |= {"zip": zip, "lines": _lines}
    return environment


def _lines(text: str) -> Markup:
    """Return a text as markup that keeps its lines."""
    from markupsafe import Markup

    return Markup("<br>").join(shown(line) if line else "" for line in text.split("\n"))


def _visible(value: object) -> object:
    """Return a text in one line; characters that cannot be seen or turn the direction of writing are written out."""
    return value if type(value) is not str or value.isprintable() else shown(value)


# --------------------------------------------------------------------------- one test


def _test(outcome: Outcome, tolerance: float | None, command: str, provenance: Provenance | None) -> dict[str, Any]:
    """Return a test as the page shows it; its commands are what to type next, each with its effect."""
    result, verdict = outcome.result, outcome.verdict
    tables = [phase_table(outcome).leading("phase", "adds to the change", "time", "was"), share_table(outcome)]
    devices = [worker.device for _, side in sides(outcome) for worker in side.workers if worker.device is not None]
    found = [text for device in devices for text in (disturbances_text(device.disturbances), *device.notes)]
    return {
        "key": result.nodeid,
        "status": verdict.status,
        "change": "" if verdict.by_counts else change_text(outcome),
        "reason": [message(outcome), *filter(None, [blame_text(outcome)])],
        "notes": [*result.notes, *filter(None, dict.fromkeys([phases_note(result), *found]))],
        "facts": [(term, text) for term, text in _facts(outcome, tolerance) if text],
        "chart": chart(outcome, tolerance),
        "differences": [(part_text(each.part), difference(each.part)) for each in outcome.touched[:PARTS_MOST]],
        "tables": [table for table in (*tables, *device_tables(outcome)) if table.rows],
        "commands": [
            ("Measure it again", f"{command} {shlex.quote(result.nodeid)}"),
            *(_searches(outcome, provenance) if verdict.status is Status.SLOWER else ()),
        ],
    }


def difference(part: ChangedPart) -> list[tuple[str, str, bool]]:
    """Return the lines of a part on base, each beside that on head, and whether they differ; none without a text."""
    was, now = (text.splitlines()[:_LINES_MOST] for text in (part.was, part.now))
    rows: list[tuple[str, str, bool]] = []
    for tag, start, end, start_now, end_now in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        both = zip_longest(was[start:end], now[start_now:end_now], fillvalue="")
        rows += [(one, other, tag != "equal") for one, other in both]
    return rows


def _searches(outcome: Outcome, provenance: Provenance | None) -> Iterator[tuple[str, str]]:
    """Yield the commands that tell since when a test is slower, as far as there are commits to search."""
    name, live = shlex.quote(outcome.result.nodeid), outcome.live
    head = "" if provenance is None else provenance.clean_commit
    if live is not None and live.base_commit and head and head != live.base_commit:
        span = f"{live.base_commit[:_DIGITS]}..{head[:_DIGITS]}"
        yield "Find the commit that made it slower", f"pytest --rlperf-bisect={span} {name}"
    if outcome.baseline is not None:
        yield "Show its course over commits", f"rlperf history --html history.html {name}"


def _facts(outcome: Outcome, tolerance: float | None) -> list[tuple[str, str]]:
    """Return the figures of the whole call, empty where there is none; the chart of the change states that one."""
    result, verdict, before_s = outcome.result, outcome.verdict, outcome.before_call_s
    items = f"{units.quantity(result.items_per_s)} items/s; an item: {result.unit}" if result.measured else ""
    return [
        ("exact counts", "\n".join(phase_changes(verdict.counters, None))),
        ("component", result.component),
        ("time per call", _call(result)),
        ("throughput", items),
        ("before" if outcome.live is None else "base", "" if before_s is None else units.seconds(before_s)),
        ("since first", creep_text(outcome)),
        ("tolerance", "" if tolerance is None else f"±{units.percent(tolerance, signed=False)}"),
        ("finds slowdowns from", "" if verdict.smallest_seen is None else units.change(1 + verdict.smallest_seen)),
        ("compared", "" if outcome.live is None else f"{outcome.live.head_label} with {outcome.live.base_label}, live"),
        ("fails its test", "" if verdict.gated else "never: shown, not gated"),
        ("rests on", cost_text(outcome)),
    ]


def _call(result: Result | None) -> str:
    return units.seconds(result.call_s) if result is not None and result.measured else ""


# --------------------------------------------------------------------------- the chart of a test's change


@dataclass(frozen=True)
class Axis:
    """A range of values across the whole width."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Return a value's place, in per cent of the width."""
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return round percentages with their places, six at most."""
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


@dataclass(frozen=True)
class Chart:
    """A row with a mark for each live pair and, last, the estimate: places in per cent of the width, and all in words.

    ``marks`` have the texts that a pointer shows, ``ticks`` are labelled; ``band`` is where the tolerance lies.
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
    """Return the chart of a test's change, None where there is no estimate of it."""
    estimate, live = outcome.verdict.estimate, outcome.live
    if estimate is None or not math.isfinite(estimate.ratio):
        return None
    ratios = [] if live is None else [math.exp(ratio) for ratio in live.log_ratios]
    names = [*(f"pair {number}" for number in range(1, len(ratios) + 1)), "estimate"]
    band = None if tolerance is None else (1 / (1 + tolerance), 1 + tolerance)
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
