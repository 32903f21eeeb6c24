from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import builders
import pytest
from wording import Wording

from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.html import Chart, chart, check_html, render_html
from pytest_rlperf.report.summary import NextStep, Summary
from pytest_rlperf.report.table import LOOKS
from pytest_rlperf.writing import OutputError

pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-rlperf[html]'")

SUMMARY = Summary(
    ["Some CPU, 2 cores"], ["HEAD with main, live"], ["a note"], [NextStep("show all", ("pytest --rlperf -v",))]
)
BASE, HEAD = 40 * "a", 40 * "b"
compared = partial(builders.compared, status=Status.SLOWER, ratio=1.1, call_s=11e-3, live=True, margin=0.02)


def render(*outcomes: Outcome, summary: Summary = SUMMARY) -> str:
    tolerances = {outcome.result.nodeid: 0.03 for outcome in outcomes}
    provenance = builders.provenance(commit=HEAD, created="2026-11-21T14:05:09+00:00")
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
    names = re.findall(r"<h3>(.*?)</h3>", page)
    assert names[:6] == [f"tests/test_{n % 7}.py::test_c[{n}]" for n in range(0, 60, 10)]
    assert sorted(names) == sorted(test.result.nodeid for test in some)
    assert re.findall(r"<a href=#(\S+?)>", page) == re.findall(r"<details id=(\S+?)[ >]", page)
    assert len(set(re.findall(r"<figcaption>.*?</figcaption>", page))) == 1
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
    page = render(replace(test, live=replace(test.live, base_commit=base_commit), baseline=baseline))
    assert re.findall(r"<h4>(.*?)</h4>", page) == effects
    search = f"pytest --rlperf-bisect={BASE[:12]}..{HEAD[:12]} t.py::test_a"
    assert (f"<code>{search}</code>" in page) == (effects[1:2] == ["Find the commit that made it slower"])


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
    assert re.findall(r"<figcaption>(.*?)</figcaption>", render(compared("t.py::test_a"))) == wording


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
    with pytest.raises(OutputError, match=re.escape("pip install 'pytest-rlperf[html]'")):
        render(compared("t.py::test_a"))
