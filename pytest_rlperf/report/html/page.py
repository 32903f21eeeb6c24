"""The whole page: what happened in a sentence, the table of verdicts, then test by test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources

from pytest_rlperf import units
from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.html.charts import charts
from pytest_rlperf.report.html.markup import Markup, embedded, facts, join, scrolling, tag, text
from pytest_rlperf.report.html.output import plotly_source
from pytest_rlperf.report.html.sections import Entry, badge, section
from pytest_rlperf.report.rows import by_counts, test_name, verdict_table
from pytest_rlperf.report.statuses import GRAVEST_FIRST, LOOKS
from pytest_rlperf.report.summary import Summary
from pytest_rlperf.report.table import Cell

_NAMED_MOST = 3
_FIRST = ("test", "verdict", "change")
# Nothing is ever loaded, from wherever: all there is stands in the file.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def render_html(
    outcomes: Sequence[Outcome], summary: Summary, *, tolerances: Mapping[str, float], command: str, created: str
) -> str:
    """Return a run as one page that needs nothing beside itself; OutputError without plotly.

    ``tolerances`` are the tests' by node id, 0.03 being 3 %, as far as they are known. ``command`` is what measures
    again where a test's id is put behind it. ``created`` is when the run was, in words.
    """
    ordered = sorted(outcomes, key=lambda outcome: GRAVEST_FIRST.index(outcome.verdict.status))
    known = [tolerances.get(outcome.result.nodeid) for outcome in ordered]
    entries = [
        Entry(place, outcome, tolerance, charts(outcome, tolerance))
        for place, (outcome, tolerance) in enumerate(zip(ordered, known, strict=True))
    ]
    headline = _headline(ordered)
    body = tag(
        "body",
        tag("a", "Skip to the verdicts", href="#verdicts", class_="skip"),
        tag("header", tag("h1", headline), _counts(ordered), _run_facts(summary, created)),
        tag("main", _verdicts(ordered), _tests(entries, command)) if entries else tag("main"),
        _footer(summary),
        embedded({"tests": [{chart.kind: chart.data for chart in entry.charts} for entry in entries]}, "data"),
        # Not run before the first chart is asked for: a page of hundreds of tests opens at once.
        Markup(f'<script type="text/plain" id="plotly">{plotly_source()}</script>'),
        tag("script", Markup(_asset("page.js"))),
    )
    return f"<!DOCTYPE html>\n{tag('html', _head(headline), body, lang='en')}\n"


def _head(headline: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"rlperf: {headline}"),
        tag("style", Markup(_asset("page.css"))),
    )


def _asset(name: str) -> str:
    return resources.files("pytest_rlperf.report.html").joinpath(name).read_text(encoding="utf-8")


def _headline(outcomes: Sequence[Outcome]) -> str:
    """Say what happened: how many tests are slower, and the first few of them by name."""
    if not outcomes:
        return "Nothing was measured"
    slower = [outcome for outcome in outcomes if outcome.verdict.status is Status.SLOWER]
    tests = units.counted(len(outcomes), "test")
    if not slower:
        return f"None of {tests} was found slower"
    named = ", ".join(_named(outcome) for outcome in slower[:_NAMED_MOST])
    more = "" if len(slower) <= _NAMED_MOST else f" and {len(slower) - _NAMED_MOST} more"
    return f"{len(slower)} of {tests} got slower: {named}{more}"


def _named(outcome: Outcome) -> str:
    """Name a slower test: how much slower it is, unless it is only what it does, and whether that is meant."""
    verdict, estimate = outcome.verdict, outcome.verdict.estimate
    how = "does more in a call" if by_counts(outcome) else "" if estimate is None else units.change(estimate.ratio)
    return f"{test_name(outcome)} {how}{' (accepted)' if verdict.accepted else ''}".strip()


def _counts(outcomes: Sequence[Outcome]) -> Markup:
    counts = Counter(outcome.verdict.status for outcome in outcomes)
    told = [f"{counts[status]} {LOOKS[status].word}" for status in GRAVEST_FIRST if counts[status]]
    return tag("p", " · ".join(told), class_="counts")


def _run_facts(summary: Summary, created: str) -> Markup:
    shown = [("machine", text(summary.machine)), ("measured", text(created))]
    shown += [("compared", text(origin)) for origin in summary.origins]
    shown += [("note", text(note)) for note in summary.notes]
    return facts(shown)


def _verdicts(outcomes: Sequence[Outcome]) -> Markup:
    """Return the table of verdicts, with what sorts and filters it; that is shown only where it works."""
    table = verdict_table(outcomes)
    # On a narrow screen a test's verdict is seen before its figures.
    keys = [column.key for column in table.columns]
    found = table.only(sorted(keys, key=lambda key: (*_FIRST, *keys).index(key)))
    heads = join(tag("th", " ".join(column.title.split()), scope="col") for column in found.columns)
    rows = [
        tag(
            "tr",
            *(_cell(c.key, cell, outcome, place) for c, cell in zip(found.columns, row, strict=True)),
            data_status=outcome.verdict.status.value,
            data_test=str(place),
        )
        for place, (outcome, row) in enumerate(zip(outcomes, found.rows, strict=True))
    ]
    caption = tag("caption", "Verdicts, those that want attention first")
    whole = tag("table", caption, tag("thead", tag("tr", heads)), tag("tbody", *rows), id="verdict-table")
    ungated = [] if all(outcome.verdict.gated for outcome in outcomes) else [tag("p", "* shown, not gated")]
    return tag(
        "section", tag("h2", "Verdicts"), _controls(outcomes), scrolling(whole, "Verdicts"), *ungated,
        id="verdicts", tabindex="-1",
    )  # fmt: skip


def _cell(key: str, cell: Cell, outcome: Outcome, place: int) -> Markup:
    """Return one cell, with what it is sorted by where that is not its text."""
    if key == "test":
        path = outcome.result.nodeid.partition("::")[0]
        link = tag("a", cell.text, href=f"#test-{place}")
        return tag("th", link, tag("small", path), scope="row")
    order = None if cell.order is None else f"{cell.order:.9g}"
    if key == "verdict":
        status = outcome.verdict.status
        return tag("td", badge(status), cell.text.removeprefix(status.value), data_key=order)
    return tag("td", cell.text, data_key=order)


def _controls(outcomes: Sequence[Outcome]) -> Markup:
    counts = Counter(outcome.verdict.status for outcome in outcomes)
    buttons = [
        tag("button", f"{status.value} {counts[status]}", type="button", aria_pressed="true", value=status.value)
        for status in GRAVEST_FIRST
        if counts[status]
    ]
    field = tag("label", "Filter by name ", tag("input", type="search", id="filter", autocomplete="off"))
    group = tag("span", *buttons, role="group", aria_label="Show verdicts")
    said = tag("output", id="shown", aria_live="polite")
    return tag("div", field, group, said, class_="controls", hidden=True)


def _tests(entries: Sequence[Entry], command: str) -> Markup:
    warning = tag("noscript", tag("p", "The charts need JavaScript. The tables beside them have every figure."))
    return tag("section", tag("h2", "Tests"), warning, *(section(entry, command) for entry in entries), id="tests")


def _footer(summary: Summary) -> Markup:
    told = [command.partition("\n") for command in summary.commands]
    steps = [tag("li", title, tag("pre", tag("code", rest.strip())) if rest else "") for title, _, rest in told]
    return tag("footer", *([tag("h2", "Next"), tag("ul", *steps)] if steps else []))
