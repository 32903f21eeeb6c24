from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import builders
import pytest
from wording import Wording

from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.live import Contribution
from pytest_rlperf.model.measured import CounterChange, Counting, Phase, PhaseCounts, Share
from pytest_rlperf.model.reasons import WrittenReason
from pytest_rlperf.report.html import Chart, chart, check_html, render_html
from pytest_rlperf.report.summary import NextStep, Summary
from pytest_rlperf.report.table import LOOKS
from pytest_rlperf.writing import OutputError

pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-rlperf[html]'")

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`|&<!--\u2028\u202e\x1b[31m\x00\udc80${7*7}"
SUMMARY = Summary(
    ["Some CPU, 2 cores"], ["HEAD with main, live"], ["a note"], [NextStep("show all", ("pytest --rlperf -v",))]
)
BASE, HEAD = 40 * "a", 40 * "b"
VOID = {"br", "input", "meta"}
CLOSED_BY = {
    "tr": {"tr", "th", "td"},
    "th": {"th", "td"},
    "td": {"th", "td"},
    "tbody": {"thead", "tr", "th", "td"},
    "dt": {"dt", "dd"},
    "dd": {"dt", "dd"},
    **{tag: {"p"} for tag in ("p", "div", "dl", "table", "h4", "details")},
    "/table": {"tbody", "tr", "th", "td"},
    "/thead": {"tr", "th"},
    "/tbody": {"tr", "th", "td"},
    "/tr": {"th", "td"},
    "/dl": {"dt", "dd"},
    "/div": {"p"},
    "/details": {"p"},
}
"""The elements without an end tag that a start tag, or an end tag, closes."""
WHOLES = {"html", "body", "main", "section", "details", "div", "table", "tbody", "tr"}


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, the texts by element, and what stands in scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.scripts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(source)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._close_before(tag)
        self.elements.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the element that is open: anything else is bad markup."""
        self._close_before(f"/{tag}")
        assert self._open.pop() == tag

    def _close_before(self, tag: str) -> None:
        while self._open and self._open[-1] in CLOSED_BY.get(tag, ()):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        """Give a text to every element that is open, those left out that hold most of the page."""
        if self._open[-1:] == ["script"]:
            self.scripts[str(self.elements[-1][1].get("id", "code"))] = data
            return
        for tag in set(self._open) - WHOLES:
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


compared = partial(builders.compared, status=Status.SLOWER, ratio=1.1, call_s=11e-3, live=True, margin=0.02)


def render(*outcomes: Outcome, summary: Summary = SUMMARY) -> str:
    tolerances = {outcome.result.nodeid: 0.03 for outcome in outcomes}
    provenance = builders.provenance(commit=HEAD, created="2026-11-21T14:05:09+00:00")
    return render_html(outcomes, summary, tolerances=tolerances, command="pytest --rlperf", provenance=provenance)


def parsed(*outcomes: Outcome) -> Page:
    return Page(render(*outcomes))


def drawn(outcome: Outcome) -> Chart:
    found = chart(outcome, 0.03)
    assert found is not None
    return found


def value_at(found: Chart, x: float) -> float:
    """Return the value that a place stands for, by the axis's labels."""
    (x1, first), (x2, second) = ((x, float(label.removesuffix(" %"))) for x, label in found.ticks[:2])
    return first + (x - x1) / (x2 - x1) * (second - first)


def test_the_headline_says_what_happened(wording: Wording) -> None:
    """How many tests are slower, by how much, and what became of the others."""
    page = parsed(
        compared("t.py::test_a", status=Status.SAME),
        compared("t.py::test_b"),
        compared("t.py::test_c", status=Status.SAME),
    )
    assert page.texts["h1"] == wording
    assert page.texts["title"][:1] == wording
    assert "1 slower · 2 the same" in page.texts["p"]
    assert parsed(compared("t.py::test_a", status=Status.NEW)).texts["h1"] == wording


@pytest.mark.parametrize("status", Status)
def test_a_status_is_told_by_a_word(status: Status) -> None:
    """In the table, and at the test; colours and signs come on top."""
    page = parsed(compared("t.py::test_a", status=status, gated=False))
    assert page.texts["b"][:2] == [status.value] * 2
    assert f'.{status.value.lower()}::before {{ content: "{LOOKS[status].sign}"; }}' in page.texts["style"][0]
    assert any(text.endswith(f"{status.value} *") for text in page.texts["td"])
    assert [text for text in page.texts["p"] if text.startswith("* ")]


def test_sixty_tests_are_all_there_the_slower_ones_first() -> None:
    """Each has its row, its section, and its charts; the row leads to the section."""
    some = [
        compared(f"tests/test_{n % 7}.py::test_c[{n}]", status=Status.SAME if n % 10 else Status.SLOWER)
        for n in range(60)
    ]
    page = parsed(*some)
    ids = [attributes["id"] for attributes in page.all("details") if "id" in attributes]
    assert page.texts["h3"][:6] == [f"tests/test_{n % 7}.py::test_c[{n}]" for n in range(0, 60, 10)]
    assert sorted(page.texts["h3"]) == sorted(test.result.nodeid for test in some)
    assert [attributes["href"] for attributes in page.all("a")][1:] == [f"#{name}" for name in ids]
    assert page.texts["figcaption"] == 60 * page.texts["figcaption"][:1]


@pytest.mark.parametrize(
    ("status", "base_commit", "stored", "effects"),
    [
        (Status.SLOWER, BASE, False, ["Measure it again", "Find the commit that made it slower"]),
        (Status.SLOWER, HEAD, False, ["Measure it again"]),
        (Status.SLOWER, None, False, ["Measure it again"]),
        (Status.SLOWER, None, True, ["Measure it again", "Show its course over commits"]),
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
    page = parsed(replace(test, live=replace(test.live, base_commit=base_commit), baseline=baseline))
    assert page.texts["h4"] == effects
    search = f"pytest --rlperf-bisect={BASE[:12]}..{HEAD[:12]} t.py::test_a"
    assert (search in page.texts["code"]) == (effects[1:2] == ["Find the commit that made it slower"])


def test_nothing_in_a_name_is_markup() -> None:
    """A hostile id, reason, note, phase and counter are shown as text, what is invisible spelled out."""
    test = compared(f"tests/{HOSTILE}.py::{HOSTILE}")
    assert test.live is not None
    hostile = (Contribution(HOSTILE, 1e-3),)
    test = replace(
        test,
        result=replace(
            test.result,
            notes=(HOSTILE,),
            phases=(Phase(HOSTILE.replace("/", ""), 1.0, 1e-3, 1e-3, "host"),),
            counting=Counting((PhaseCounts(HOSTILE, {HOSTILE: 1}, {}),), 3, 2, (HOSTILE,)),
            shares=(Share(HOSTILE, 0.5),),
        ),
        live=replace(test.live, base_label=HOSTILE, contributions=hostile, carriers=hostile),
        verdict=replace(
            test.verdict,
            reason=WrittenReason("x", f"{HOSTILE}\nand more"),
            counters=(CounterChange(HOSTILE, HOSTILE, 1, 2),),
        ),
    )
    source = render(test, summary=Summary([HOSTILE], [HOSTILE], [HOSTILE], [NextStep(HOSTILE, (HOSTILE,))]))
    source.encode("utf-8")
    assert not set(source) & {"\u2028", "\u202e", "\x1b", "\x00"}
    page = Page(source)
    assert "img" not in {name for name, _ in page.elements}
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    shown = "</script><img src=x onerror=alert(1)>\"'`|&<!--\\u2028\\u202e\\x1b[31m\\x00\\udc80${7*7}"
    assert page.texts["h3"] == [f"tests/{shown}.py::{shown}"]
    assert f"Note: {shown}" in page.texts["p"]
    assert shown.replace("/", "") in page.texts["th"]


def test_the_page_loads_nothing() -> None:
    """No element names another file or host, and the browser is told to fetch none."""
    page = parsed(compared("t.py::test_a"))
    links = [
        str(value) for _, attributes in page.elements for key, value in attributes.items() if key in {"src", "href"}
    ]
    assert all(link.startswith("#") for link in links)
    style = page.texts["style"][0]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'; ")
    assert page.all("html") == [{"lang": "en"}]


def test_the_change_is_drawn_with_its_interval_and_the_tolerance(wording: Wording) -> None:
    """In per cent: the pairs, the estimate, its bounds, and the band in which it is the same; and all in words."""
    found = drawn(compared("t.py::test_a"))
    assert found.names == [*(f"pair {number}" for number in range(1, 5)), "estimate"]
    assert [value_at(found, x) for x, _ in found.marks] == pytest.approx([10.0] * 5)
    assert [value_at(found, x) for x in found.interval] == pytest.approx([8, 12])
    assert found.band is not None
    assert tuple(value_at(found, x) for x in found.band) == pytest.approx((-2.913, 3.0), abs=1e-3)
    assert value_at(found, found.zero) == pytest.approx(0)
    assert parsed(compared("t.py::test_a")).texts["figcaption"][0] == wording


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


def test_a_test_that_could_not_be_measured_has_its_reason() -> None:
    """No figure, no chart; the reason is what there is to say."""
    test = compared("t.py::test_a", status=Status.NEW)
    silent = replace(test.result, workers=(), phases=(), traced_call_s=0.0)
    page = parsed(replace(test, result=silent, live=None, verdict=replace(test.verdict, estimate=None)))
    assert page.all("figure") == []
    assert "why" in page.texts["p"]


def test_a_missing_jinja2_is_reported_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to type."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(OutputError, match=re.escape("pip install 'pytest-rlperf[html]'")):
        check_html(tmp_path / "report.html")
    with pytest.raises(OutputError, match=re.escape("pip install 'pytest-rlperf[html]'")):
        render(compared("t.py::test_a"))
