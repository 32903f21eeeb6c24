"""Makes one page of a run's outcomes: the templates show plain values."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlperf import units
from pytest_rlperf.errors import shown
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.charts import chart, plot
from pytest_rlperf.report.summary import Summary, by_gravity, change_text, headline
from pytest_rlperf.report.table import GRAVEST_FIRST, LOOKS, Table
from pytest_rlperf.report.tables import CHANGE, device_tables, phase_comparison, share_table, sides, verdict_table
from pytest_rlperf.report.wording import (
    PARTS_MOST,
    blame_text,
    cost_text,
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
_FIRST_REM = 42.0  # of a window: for the columns that are always there
_COLUMN_REM = {"right": 6.75, "left": 11.25}  # for each further one, with figures or with text
_DIGITS = 12  # of a commit
_LINES_MOST = 200  # of a part of a change
_BREAKS = re.compile(r"(?<=[_\[/])(?=.)|(?<=::)")  # within a name


def check_html(path: Path, option: str = _OPTION) -> None:
    """Raise OutputError if a page could not be made or written, before any time is spent on measuring."""
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
    """Return a run as one self-contained page; OutputError without jinja2.

    ``tolerances`` are the tests' tolerances by node id, as far as they are known; 0.03 is 3 %. ``command`` measures a
    test again if the test's id is appended. ``provenance`` describes the code that was measured.
    """
    ordered = by_gravity(outcomes, strict=False)
    notes = [_notes(outcome) for outcome in ordered]
    shared = _shared(notes)
    counts = Counter(outcome.verdict.status for outcome in ordered)
    verdicts = verdict_table(ordered).leading("test", "verdict", CHANGE)
    created = [] if provenance is None else [("measured", f"{provenance.created[:16].replace('T', ' ')} UTC")]
    return (
        environment()
        .get_template("page.html")
        .render(
            headline=headline(ordered, counts[Status.ERROR], strict=False),
            counts={status: counts[status] for status in GRAVEST_FIRST if counts[status]},
            plot=plot(ordered, tolerances),
            shared=shared,
            facts=[*created, *summary.facts()],
            verdicts=verdicts,
            widths=_widths(verdicts),
            tests=[
                _test(outcome, tolerances.get(outcome.result.nodeid), command, provenance)
                | {"notes": [text for text in own if text not in shared]}
                for outcome, own in zip(ordered, notes, strict=True)
            ],
            any_ungated=not all(outcome.verdict.gated for outcome in ordered),
            commands=[(f"{step.effect}:", "\n".join(step.lines)) for step in summary.steps],
        )
    )


def _widths(table: Table) -> list[tuple[int, float]]:
    """Return the columns that a narrow window leaves out: each one's number, and the least width with room for it.

    As in a terminal, a column goes before those with a lower priority number; its figures also stand at the test.
    """
    ranked = sorted(
        (column.priority, number, column.align) for number, column in enumerate(table.columns, 1) if column.priority
    )
    least = accumulate((_COLUMN_REM[align] for _, _, align in ranked), initial=_FIRST_REM)
    return [(number, width) for (_, number, _), width in zip(ranked, islice(least, 1, None), strict=True)]


def environment(option: str = _OPTION) -> jinja2.Environment:
    """Return the templates; all text in them is escaped, and invisible characters are written out.

    Without jinja2, OutputError names the ``option``.
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
    environment.filters |= {"zip": zip, "lines": _lines, "breaking": _breaking}
    return environment


def _lines(text: str) -> Markup:
    """Return a text as markup that keeps its lines."""
    from markupsafe import Markup

    return Markup("<br>").join(map(_breaking, text.split("\n")))


def _breaking(text: str) -> Markup:
    """Return a text in one line as markup that breaks within names, between their parts."""
    from markupsafe import Markup

    return Markup("<wbr>").join(_BREAKS.split(shown(text) if text else ""))


def _visible(value: object) -> object:
    """Return a text in one line; characters that are invisible or change the direction of writing are written out."""
    return value if type(value) is not str or value.isprintable() else shown(value)


# --------------------------------------------------------------------------- one test


def _test(outcome: Outcome, tolerance: float | None, command: str, provenance: Provenance | None) -> dict[str, Any]:
    """Return a test as the page shows it; its commands are the next ones to type, each with its effect."""
    result, verdict = outcome.result, outcome.verdict
    tables = [phase_comparison(outcome), share_table(outcome)]
    return {
        "key": result.nodeid,
        "status": verdict.status,
        "change": "" if verdict.by_counts else change_text(outcome),
        "reason": [message(outcome), *filter(None, [blame_text(outcome)])],
        "name": result.name,
        "facts": [(term, text) for term, text in _facts(outcome, tolerance) if text],
        "chart": chart(outcome, tolerance),
        "differences": [(part_text(each.part), difference(each.part)) for each in outcome.touched[:PARTS_MOST]],
        "tables": [table for table in (*tables, *device_tables(outcome)) if table.rows],
        "commands": [
            ("Measure it again", f"{command} {shlex.quote(result.nodeid)}"),
            *(_searches(outcome, provenance) if verdict.status is Status.SLOWER else ()),
        ],
    }


def _notes(outcome: Outcome) -> list[str]:
    """Return notes on what a test's measurement lacked, and on what disturbed it, each once."""
    devices = [worker.device for _, side in sides(outcome) for worker in side.workers if worker.device is not None]
    found = [text for device in devices for text in (disturbances_text(device.disturbances), *device.notes)]
    return [*filter(None, dict.fromkeys([*outcome.result.notes, phases_note(outcome.result), *found]))]


def _shared(notes: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Return the notes that several tests share, each with the numbers of these tests."""
    numbers: dict[str, list[int]] = {}
    for number, own in enumerate(notes):
        for text in own:
            numbers.setdefault(text, []).append(number)
    return {text: found for text, found in numbers.items() if len(found) > 1}


def difference(part: ChangedPart) -> list[tuple[str, str, bool]]:
    """Return the lines of a part on the base and the head, side by side, and whether they differ; none without text."""
    was, now = (text.splitlines()[:_LINES_MOST] for text in (part.was, part.now))
    rows: list[tuple[str, str, bool]] = []
    for tag, start, end, start_now, end_now in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        both = zip_longest(was[start:end], now[start_now:end_now], fillvalue="")
        rows += [(one, other, tag != "equal") for one, other in both]
    return rows


def _searches(outcome: Outcome, provenance: Provenance | None) -> Iterator[tuple[str, str]]:
    """Yield the commands that find when a test got slower, as far as there are commits to search."""
    name, live = shlex.quote(outcome.result.nodeid), outcome.live
    head = "" if provenance is None else provenance.clean_commit
    if live is not None and live.base_commit and head and head != live.base_commit:
        span = f"{live.base_commit[:_DIGITS]}..{head[:_DIGITS]}"
        yield "Find the commit that made it slower", f"rlperf bisect {span} {name}"
    if outcome.baseline is not None:
        yield "Show its history over commits", f"rlperf history --html history.html {name}"


def _facts(outcome: Outcome, tolerance: float | None) -> list[tuple[str, str]]:
    """Return the facts of the whole call; a text is empty if there is no figure. The chart states the change."""
    result, verdict, before_s = outcome.result, outcome.verdict, outcome.before_call_s
    items = f"{units.quantity(result.items_per_s)} items/s; an item: {result.unit}" if result.measured else ""
    return [
        ("exact counts", "\n".join(phase_changes(verdict.counters, None))),
        ("component", result.component),
        ("time per call", units.seconds(result.call_s) if result.measured else ""),
        ("mean call", units.seconds(result.mean_call_s) if outcome.has_rare_calls else ""),
        ("throughput", items),
        ("before" if outcome.live is None else "base", "" if before_s is None else units.seconds(before_s)),
        ("tolerance", "" if tolerance is None else f"±{units.percent(tolerance, signed=False)}"),
        ("finds slowdowns from", "" if verdict.smallest_seen is None else units.change(1 + verdict.smallest_seen)),
        ("compared", "" if outcome.live is None else f"{outcome.live.head_label} with {outcome.live.base_label}, live"),
        ("fails its test", "" if verdict.gated else "never: shown, not gated"),
        ("rests on", cost_text(outcome)),
    ]
