from __future__ import annotations

import functools
import math
import re
import sys
from functools import partial
from pathlib import Path

import builders
import pytest
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report import html
from pytest_rlperf.report.charts import Chart, chart, plot
from pytest_rlperf.report.html import check_html, render_html
from pytest_rlperf.report.summary import NextStep, Summary
from pytest_rlperf.report.table import LOOKS
from pytest_rlperf.writing import OutputError

pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-rlperf[html]'")

SUMMARY = Summary(
    ["Some CPU, 2 cores"], ["HEAD with main, live"], ["a note"], [NextStep("show all", ("pytest --rlperf -v",))]
)
BASE, HEAD = 40 * "a", 40 * "b"
compared = partial(builders.compared, status=Status.SLOWER, ratio=1.1, call_s=11e-3, live=True, margin=0.02)


templates = functools.cache(html.environment)  # which are compiled once for all pages


def render(*outcomes: Outcome, summary: Summary = SUMMARY) -> str:
    tolerances = {outcome.result.nodeid: 0.03 for outcome in outcomes}
    provenance = builders.provenance(commit=HEAD, created="2026-11-21T14:05:09+00:00")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(html, "environment", templates)
        return render_html(outcomes, summary, tolerances=tolerances, command="pytest --rlperf", provenance=provenance)


def drawn(outcome: Outcome) -> Chart:
    found = chart(outcome, 0.03)
    assert found is not None
    return found


def value_at(found: Chart, x: float) -> float:
    """Return the value that a place stands for, by the axis's labels."""
    (x1, first), (x2, second) = ((x, float(label.removesuffix(" %"))) for x, label in found.ticks[:2])
    return first + (x - x1) / (x2 - x1) * (second - first)


def test_sixty_tests_are_all_there_the_slower_ones_first() -> None:
    """Each has its row, its section, and its charts; the row leads to the section."""
    some = [
        compared(f"tests/test_{n % 7}.py::test_c[{n}]", status=Status.SAME if n % 10 else Status.SLOWER)
        for n in range(60)
    ]
    page = render(*some)
    names = [whole(name) for name in re.findall(r"<h3>(.*?)</h3>", page)]
    assert names[:6] == [f"tests/test_{n % 7}.py::test_c[{n}]" for n in range(0, 60, 10)]
    assert sorted(names) == sorted(test.result.nodeid for test in some)
    assert re.findall(r"<th><a href=#(\S+?)>", page) == re.findall(r"<details id=(\S+?)[ >]", page)
    assert len(set(re.findall(r"<figcaption><b>Change, pair by pair.*?</figcaption>", page))) == 1
    for tag in ("details", "table", "figure", "svg", "section", "div", "dl"):
        assert len(re.findall(f"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag
    assert all(
        f'.{status.value.lower()}::before {{ content: "{look.sign}"; }}' in page for status, look in LOOKS.items()
    )


@pytest.mark.parametrize(
    ("status", "base_commit", "stored", "effects"),
    [
        (Status.SLOWER, BASE, False, ["Measure it again", "Find the commit that made it slower"]),
        (Status.SLOWER, HEAD, False, ["Measure it again"]),
        (Status.SLOWER, None, False, ["Measure it again"]),
        (Status.SLOWER, None, True, ["Measure it again", "Show its history over commits"]),
        (Status.SAME, BASE, True, ["Measure it again"]),
    ],
)
def test_a_slower_test_says_how_to_find_its_commit(
    status: Status, base_commit: str | None, stored: bool, effects: list[str]
) -> None:
    """Where there are commits between both sides, and a baseline that has a course."""
    test = compared("t.py::test_a", status=status)
    assert test.live is not None
    baseline = builders.stored(test.live.base) if stored else None
    page = render(replace(test, live=replace(test.live, base_commit=base_commit), baseline=baseline))
    assert re.findall(r"<h4>(.*?)</h4>", page) == effects
    search = f"rlperf bisect {BASE[:12]}..{HEAD[:12]} t.py::test_a"
    assert (f"<code>{search}</code>" in whole(page)) == (effects[1:2] == ["Find the commit that made it slower"])


def test_a_narrow_window_leaves_columns_out_as_a_terminal_does() -> None:
    """The less a column matters, the wider the window that it needs; tests, verdicts and changes always stay."""
    page = render(compared("t.py::test_a"), compared("t.py::test_b"))
    (head,) = re.findall("<thead><tr>(.*?)</tr>", page)[:1]
    titles = re.findall(r"<th[^>]*>([^<]+)", head)
    hides = re.findall(r"max-width: ([\d.]+)rem\) { #verdict-table :is\(th, td\):nth-child\((\d+)\)", page)
    widths = {titles[int(number) - 1]: float(width) for width, number in hides}
    assert titles[:3] == ["test", "verdict", "change 99 % CI"]
    assert list(widths) == ["median", "baseline", "items/s"]
    assert sorted(widths.values()) == list(widths.values())
    assert not {*titles[:3]} & {*widths}


def test_the_page_loads_nothing() -> None:
    """No element names another file or host, and the browser is told to fetch none."""
    page = render(compared("t.py::test_a"))
    assert all(link.startswith("#") for link in re.findall(r"""(?:src|href)=["']?([^"' >]*)""", page))
    assert not re.search(r"url\(|@import", page)
    assert """http-equiv="Content-Security-Policy" content="default-src 'none'; """ in page


def test_the_change_is_drawn_with_its_interval_and_the_tolerance(wording: Wording) -> None:
    """In per cent: the pairs, the estimate, its bounds, and the band in which it is the same; and all in words."""
    found = drawn(compared("t.py::test_a"))
    assert found.names == [*(f"pair {number}" for number in range(1, 5)), "estimate"]
    assert [value_at(found, x) for x, _ in found.marks] == pytest.approx([10.0] * 5)
    assert [value_at(found, x) for x in found.interval] == pytest.approx([8, 12])
    assert found.band is not None
    assert tuple(value_at(found, x) for x in found.band) == pytest.approx((-2.913, 3.0), abs=1e-3)
    assert value_at(found, found.zero) == pytest.approx(0)
    assert re.findall(r"<figcaption>(.*?)</figcaption>", render(compared("t.py::test_a"))).pop() == wording


def plotted(page: str) -> list[tuple[str, str]]:
    """Return the rows of the plot of all tests: the name, and what is drawn and written beside it."""
    rows = re.findall(r"<li><a href=#test-(\d+)>(.*?)</a>(.*?)</li>", page, re.DOTALL)
    sections = [whole(name) for name in re.findall(r"<h3>(.*?)</h3>", page)]
    assert [sections[int(number)].endswith(whole(name)) for number, name, _ in rows] == [True] * len(rows)
    return [(whole(name), drawing) for _, name, drawing in rows]


def whole(name: str) -> str:
    return name.replace("<wbr>", "")


MIXED = (
    compared("t.py::test_same", status=Status.SAME, ratio=0.999, margin=0.01),
    compared("t.py::test_huge", ratio=20.0, margin=0.3),
    compared("t.py::test_stored", ratio=1.3, live=False),
    compared("t.py::test_faster", status=Status.FASTER, ratio=0.8),
    compared("t.py::test_open", status=Status.UNDECIDED, ratio=1.04, margin=0.06),
    compared("t.py::test_new", status=Status.NEW, ratio=None),
    *(compared(f"t.py::test_unreached[{n}]", status=Status.SAME, ratio=None) for n in range(3)),
)


def test_all_changes_stand_first_the_largest_slowdown_on_top(wording: Wording) -> None:
    """Each with its name, which leads to its section, its figures, its verdict in words and a shape of its own."""
    page = render(*MIXED)
    assert page.index("</h1>") < page.index("<figure class=changes>") < page.index("<dl>")
    rows = plotted(page)
    assert [name for name, _ in rows] == [f"test_{name}" for name in ("huge", "stored", "open", "same", "faster")]
    statuses = ["slower", "slower", "undecided", "same", "faster"]
    assert [re.findall(r"href=#mark-([a-z]+)", drawing) for _, drawing in rows] == [[status] for status in statuses]
    assert [re.findall(r"<b class=[a-z]+>([A-Z]+)</b>", drawing) for _, drawing in rows] == [
        [status.upper()] for status in statuses
    ]
    assert {f"id=mark-{status.value.lower()} " in page for status in Status} == {True}
    assert ["interval stored" in drawing for _, drawing in rows] == [False, True, False, False, False]
    assert ">+4.0 % <i>[-2, +10]</i>" in dict(rows)["test_open"]
    (caption,) = re.findall(r"<figcaption><b>Change of each test</b>(.*?)<i>", page)
    assert [caption, *re.findall(r"<p>(Not drawn.*)</p>", page)] == wording


def test_one_huge_slowdown_leaves_the_tolerance_readable() -> None:
    """It is an arrow at the end of the axis with its figure; what others' rows show is as wide as if it were 30 %."""
    for ratio in (20.0, 1e6):
        huge, *others = (compared("t.py::test_a", ratio=ratio), *MIXED[2:5])
        found = plot([huge, *others], {outcome.result.nodeid: 0.03 for outcome in others})
        assert (found.rows[0].x, found.rows[0].beyond, found.rows[0].band) == (100, 1, None)
        bands = [row.band for row in found.rows[1:] if row.band]
        assert [end - start > 7 for start, end in bands] == [True, True, True]
        assert {row.beyond for row in found.rows[1:]} == {0}
        assert all(0 <= x <= 100 for row in found.rows for x in (*row.interval, row.x))
    drawing = dict(plotted(render(*MIXED)))["test_huge"]
    assert re.search(r'<svg x=100\.0% y=50% class=right><path d="[^"]+"/>.*<text [^>]*>×20\.0</text></svg>', drawing)
    fast = compared("t.py::test_a", status=Status.FASTER, ratio=0.01)
    assert [row.beyond for row in plot([fast], {}).rows] == [-1]


def test_each_row_has_the_tolerance_of_its_test() -> None:
    """Where that is known; the usual one sets how far the axis reaches."""
    keys = [f"t.py::test_{name}" for name in "abcd"]
    tests = [compared(key, status=Status.SAME, ratio=1.0 + 0.001 * n) for n, key in enumerate(keys)]
    rows = {row.name: row for row in plot(tests, dict(zip(keys, (0.03, 0.03, 0.5), strict=False))).rows}
    narrow, wide = rows["test_a"].band, rows["test_c"].band
    assert narrow is not None
    assert wide is not None
    assert (rows["test_b"].band, rows["test_d"].band) == (narrow, None)
    assert wide[0] < narrow[0] < rows["test_a"].x < narrow[1] < wide[1]
    assert narrow[1] - narrow[0] > 7


def test_of_many_tests_those_that_are_the_same_are_folded_away() -> None:
    """Rows of tests with other verdicts are in sight, and all are there; names that are not unique have their file."""
    same = [compared(f"tests/test_{n}.py::test_it[{n // 2}]", status=Status.SAME, ratio=1.0) for n in range(98)]
    page = render(compared("t.py::test_a"), *same, compared("t.py::test_b", status=Status.FASTER, ratio=0.9))
    shown, folded = page.split("<summary>98 tests that are SAME</summary>")
    assert [name for name, _ in plotted(page)][:2] == ["test_a", "test_b"]
    assert (shown.count("<li><a "), folded.count("<li><a ")) == (2, 98)
    assert {name for name, _ in plotted(page)[2:]} == {outcome.result.nodeid for outcome in same}


def test_names_break_between_their_parts() -> None:
    """A narrow page needs no scrolling, and what is copied is the name."""
    name = "tests/a_b.py::Test::test_&_rows[x_1-2]"
    page = render(compared(name))
    assert "<h3>tests/<wbr>a_<wbr>b.py::<wbr>Test::<wbr>test_<wbr>&amp;_<wbr>rows[<wbr>x_<wbr>1-2]</h3>" in page
    assert page.count("test_<wbr>&amp;_<wbr>rows[<wbr>x_<wbr>1-2]") == 5  # headline, plot, table, section, command


def test_a_note_of_several_tests_stands_once() -> None:
    """Folded, with the number of the tests that it applies to and links to them; others stay at their tests."""
    common, own = "counts are <not> taken", "alone"

    def noted(name: str, *notes: str) -> Outcome:
        outcome = compared(f"t.py::test_{name}", status=Status.SAME)
        return replace(outcome, result=replace(outcome.result, notes=notes))

    page = render(noted("a", common, own), noted("b", common), noted("c"))
    assert (page.count("counts are &lt;not&gt; taken"), page.count(f"Note: {own}")) == (1, 1)
    (text,) = re.findall(r"<summary>1 note shared by several tests</summary>(.*?)</details>", page, re.DOTALL)
    assert re.findall(r"2 of 3 tests|<a href=#test-\d+>test_<wbr>\w+</a>", text) == [
        "2 of 3 tests",
        "<a href=#test-0>test_<wbr>a</a>",
        "<a href=#test-1>test_<wbr>b</a>",
    ]
    assert "All 2 tests" in render(noted("a", common), noted("b", common))


def phases(outcome: Outcome) -> list[list[str]]:
    """Return the table of a test's phases."""
    (table,) = re.findall(r"<caption>Phases of one call(.*?)</table>", render(outcome), re.DOTALL)
    rows = [re.split("<t[hd][^>]*>", row)[1:] for row in table.split("<tr>")[1:]]
    return [[re.sub(r"<tbody>|\s+$", "", cell).strip() for cell in row] for row in rows]


def test_phases_stand_base_beside_head() -> None:
    """With the change of each, and a mark at what carries it; of stored figures too, and what is in no phase."""
    head, *rows = phases(compared("t.py::test_a"))
    assert head == ["phase", "base", "head", "change", "adds to the change", "share", "entries"]
    marked = [f"<b class=slower>{name}</b>" for name in ("backward", "actor")]
    assert [row[0].strip() for row in rows if "<b" in row[0]] == marked
    assert {row[3] for row in rows} == {"+10.0 %"}
    assert "" not in {row[1] for row in rows}
    head, *rows = phases(compared("t.py::test_a", live=False))
    assert head[:4] == ["phase", "baseline", "now", "change"]
    assert phases(compared("t.py::test_a", status=Status.NEW, ratio=None))[0] == ["phase", "time", "share", "entries"]


def test_everything_is_drawn_within_the_picture() -> None:
    """No mark or label is outside, however far apart the figures are; an infinite bound has no place on an axis."""
    test = compared("t.py::test_a")
    assert test.verdict.estimate is not None
    for high in (1.12, 1e6, math.inf):
        wide = replace(test, verdict=replace(test.verdict, estimate=replace(test.verdict.estimate, high=high)))
        render(wide)
        found = drawn(wide)
        assert all(0 <= x <= 100 for x, _ in (*found.marks, *found.ticks))
        assert 2 <= len(found.ticks) <= 7


def test_a_missing_jinja2_is_reported_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to type."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(OutputError, match=re.escape("pip install 'pytest-rlperf[html]'")):
        check_html(tmp_path / "report.html")
    templates.cache_clear()
    with pytest.raises(OutputError, match=re.escape("pip install 'pytest-rlperf[html]'")):
        render(compared("t.py::test_a"))
