"""Makes the page from a run's outcomes: everything that the templates show, as plain values."""

from __future__ import annotations

import importlib.util
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf import units
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.files import OutputError, check_file
from pytest_rlperf.report.html.charts import Chart, charts
from pytest_rlperf.report.html.tables import Block, all_of, changed_counts
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.statuses import GRAVEST_FIRST, LOOKS
from pytest_rlperf.report.summary import Summary, by_gravity, headline
from pytest_rlperf.report.tables import verdict_table
from pytest_rlperf.report.wording import blame_text, cost_text, creep_text, message

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

_OPTION = "--rlperf-html"
_DIGITS = 12  # of a commit


def check_html(path: Path, option: str = _OPTION) -> None:
    """Raise OutputError, before any time is spent on measuring, where a page could not be made or written."""
    if importlib.util.find_spec("jinja2") is None:
        raise _without_jinja(option)
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
    tests = [_test(outcome, tolerances.get(outcome.result.nodeid), command, provenance) for outcome in ordered]
    return (
        environment()
        .get_template("page.html")
        .render(
            headline=headline(ordered, counts[Status.ERROR], strict=False),
            counts={status: counts[status] for status in GRAVEST_FIRST if counts[status]},
            facts=_run_facts(summary, provenance),
            verdicts=verdict_table(ordered).leading("test", "verdict", "change"),
            tests=tests,
            any_ungated=not all(outcome.verdict.gated for outcome in ordered),
            commands=[(f"{step.effect}:", "\n".join(step.lines)) for step in summary.steps],
        )
    )


def environment() -> jinja2.Environment:
    """Return the templates; all text in them is escaped, and what no reader can see is written out.

    OutputError without jinja2.
    """
    try:
        import jinja2
    except ImportError:
        raise _without_jinja() from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_rlperf.report.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["looks"] = LOOKS
    environment.filters |= {"zip": zip, "lines": _lines, "place": _place}
    return environment


def _lines(text: str) -> Markup:
    """Return a text as markup that keeps its lines."""
    from markupsafe import Markup

    return Markup("<br>").join(shown(line) if line else "" for line in text.split("\n"))


def _place(value: float) -> str:
    """Return a place in per cent with one decimal, half a pixel of a chart, and without a zero behind the point."""
    return f"{value:.1f}".removesuffix(".0")


def _visible(value: object) -> object:
    """Return a text in one line; characters that cannot be seen or turn the direction of writing are written out."""
    return value if type(value) is not str or value.isprintable() else shown(value)


def _without_jinja(option: str = _OPTION) -> OutputError:
    return OutputError(f"{option} needs jinja2, which is missing: pip install 'pytest-rlperf[html]'")


# --------------------------------------------------------------------------- the run


def _run_facts(summary: Summary, provenance: Provenance | None) -> list[tuple[str, str]]:
    created = "" if provenance is None else provenance.created[:16].replace("T", " ")
    return [
        *(("machine", machine) for machine in summary.machines),
        *([("measured", f"{created} UTC")] if created else []),
        *(("compared", origin) for origin in summary.origins),
        *(("note", note) for note in summary.notes),
    ]


# --------------------------------------------------------------------------- one test


@dataclass(frozen=True)
class Test:
    """A test as the page shows it: its change in a word, its reason, its figures, charts, tables and commands.

    ``counts`` are those that changed; where they decide they stand first, as no chart shows them. ``commands`` are what
    to type next, each with its effect.
    """

    key: str
    path: str
    status: Status
    change: str
    reason: Sequence[str]
    notes: Sequence[str]
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    counts: Block | None
    by_counts: bool
    blocks: Sequence[Block]
    commands: Sequence[tuple[str, str]]


def _test(outcome: Outcome, tolerance: float | None, command: str, provenance: Provenance | None) -> Test:
    result, verdict = outcome.result, outcome.verdict
    return Test(
        key=result.nodeid,
        path=result.nodeid.partition("::")[0],
        status=verdict.status,
        change=_change(outcome),
        reason=[message(outcome), *filter(None, [blame_text(outcome)])],
        notes=result.notes,
        facts=[(term, text) for term, text in _facts(outcome, tolerance) if text],
        charts=charts(outcome, tolerance),
        counts=changed_counts(outcome),
        by_counts=verdict.by_counts,
        blocks=all_of(outcome),
        commands=[
            ("Measure it again", f"{command} {shlex.quote(result.nodeid)}"),
            *(_searches(outcome, provenance) if verdict.status is Status.SLOWER else ()),
        ],
    )


def _searches(outcome: Outcome, provenance: Provenance | None) -> Iterator[tuple[str, str]]:
    """Yield the commands that tell since when a test is slower, as far as there are commits to search."""
    name, live = shlex.quote(outcome.result.nodeid), outcome.live
    head = "" if provenance is None else provenance.clean_commit
    if live is not None and live.base_commit and head and head != live.base_commit:
        span = f"{live.base_commit[:_DIGITS]}..{head[:_DIGITS]}"
        yield "Find the commit that made it slower", f"pytest --rlperf-bisect={span} {name}"
    if outcome.baseline is not None:
        yield "Show its course over commits", f"rlperf history --html history.html {name}"


def _change(outcome: Outcome) -> str:
    """Return how a test has changed by what its verdict rests on."""
    verdict = outcome.verdict
    if outcome.verdict.by_counts:
        return f"does {'more' if verdict.status is Status.SLOWER else 'less'} in a call"
    return "" if verdict.estimate is None else units.change(verdict.estimate.ratio)


def _facts(outcome: Outcome, tolerance: float | None) -> list[tuple[str, str]]:
    """Return the figures of the whole call, empty where there is none; the chart of the change states that one."""
    result, verdict, before = outcome.result, outcome.verdict, outcome.before
    items = f"{units.quantity(result.items_per_s)} items/s; an item: {result.unit}" if result.measured else ""
    return [
        ("component", result.component),
        ("time per call", _call(result)),
        ("throughput", items),
        ("before" if outcome.live is None else "base", _call(before)),
        ("since first", creep_text(outcome)),
        ("tolerance", "" if tolerance is None else f"±{units.percent(tolerance, signed=False)}"),
        ("finds slowdowns from", "" if verdict.smallest_seen is None else units.change(1 + verdict.smallest_seen)),
        ("compared", "" if outcome.live is None else f"{outcome.live.head_label} with {outcome.live.base_label}, live"),
        ("fails its test", "" if verdict.gated else "never: shown, not gated"),
        ("rests on", cost_text(outcome)),
    ]


def _call(result: Result | None) -> str:
    return units.seconds(result.call_s) if result is not None and result.measured else ""
