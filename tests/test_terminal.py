"""The summary's exact text, and how the live line moves."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import builders
import pytest
from wording import Wording

from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.summary import NextStep, Summary, next_steps
from pytest_rlperf.report.tables import phase_table
from pytest_rlperf.report.terminal import LiveLine, LogLine, render_summary
from pytest_rlperf.report.wording import origin_text, phases_note
from pytest_rlperf.run.loop import TimeLeft

SUMMARY = Summary(
    machines=["Some CPU, 2 cores, Linux x86_64, CPython 3.11"],
    origins=["baseline 'default' of 2026-11-21, commit 0123456789ab"],
    notes=["stored 1 result in\nbaselines/default/linux.json"],
    steps=[NextStep("if it was meant to get slower", ('pytest --rlperf-save-baseline --rlperf-accept="why"',))],
)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_line_fits_the_terminal(width: int) -> None:
    """Long names fold, and nothing is cut off."""
    name = "test_" + "very_" * 12 + "long[param-0]"
    text = render_summary(
        [builders.compared(name, Status.SLOWER, 1.5)], SUMMARY, width=width, color=False, verbose=False
    )
    said, _, command = text.partition("next ")
    assert "--rlperf-accept" in command  # which is copied whole
    assert all(len(line) <= width for line in said.splitlines())
    table = text.partition("\n\n")[0]
    folded = "".join(re.split(r"\s{2,}", line)[0].strip() for line in table.splitlines()[2:])
    assert folded == name


def test_colour_says_nothing_that_words_do_not() -> None:
    """With colour the text is the same text."""
    outcomes = [builders.compared("test_a", Status.SLOWER, 1.5), builders.compared("test_b", Status.SAME, 1.0)]
    plain = render_summary(outcomes, SUMMARY, width=80, color=False, verbose=False)
    colored = render_summary(outcomes, SUMMARY, width=80, color=True, verbose=False)
    assert "\x1b[" in colored
    assert "\x1b" not in plain
    stripped = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()]
    assert stripped == plain.splitlines()


def test_same_code_at_another_time_says_why() -> None:
    """A SAME beside figures that differ is explained, in short; any other needs no word."""
    for code, is_shown in (("environment", True), ("stored", False)):
        same = builders.compared("test_a", ratio=1.4, code=code, message="no package has changed")
        text = render_summary([same], SUMMARY, width=80, color=False, verbose=False)
        assert ("test_a  SAME\n  no package has changed\n\nmachine" in text) == is_shown


def test_a_hostile_name_is_only_text() -> None:
    """Markup in a test's id is shown, not obeyed."""
    name = "test_x[[red]a[/red]]"
    text = render_summary([builders.compared(name, Status.NEW, None)], SUMMARY, width=80, color=False, verbose=False)
    assert name in text


def test_the_parts_of_a_tree_add_up() -> None:
    """At each level, children and what is unaccounted make the parent; without a median there is nothing to say."""
    rows = phase_table(builders.compared("t", Status.NEW, None, 1.0)).rows
    assert sum(total.order or 0.0 for name, total, *_ in rows if name.depth == 0) == pytest.approx(1.0)
    assert [name.text for name, *_ in rows if name.depth == 1] == ["critic", "actor", "(unaccounted)"]
    result = builders.compared("t", Status.NEW, None, 2e-3).result
    assert phases_note(replace(result, traced_call_s=9.0, workers=())) == ""
    assert phases_note(replace(result, traced_call_s=0.0, phases=())) == ""


def test_an_origin_says_whether_its_code_can_be_had(wording: Wording) -> None:
    """A baseline from a clean commit names it; others state that live pairs cannot run their code."""
    clean = Provenance("0123456789abcdef", "t", dirty=False, created="2026-11-21T10:00:00+00:00", packages={})
    assert origin_text("default", clean) == "baseline 'default' of 2026-11-21, commit 0123456789ab"
    assert origin_text("default", replace(clean, dirty=True)) == wording
    assert "outside git" in origin_text("default", replace(clean, commit=None))


def test_what_to_type_next_follows_from_the_verdicts() -> None:
    """Each situation names its command, once."""
    new, slower = builders.compared("a", Status.NEW, None), builders.compared("b", Status.SLOWER, 1.5)
    same = builders.compared("a")

    def lines(*tests: Outcome, command: str = "pytest", saved: bool = False, verbose: bool = False) -> list[str]:
        steps = next_steps(tests, command, saved=saved, against=False, verbose=verbose)
        return [line for step in steps for line in step.lines]

    assert ["--rlperf-accept" in line for line in lines(new, slower, slower)] == [False, True]
    assert lines(same, command="pytest -v", verbose=True) == lines() == []
    assert lines(new, command="pytest -k a", saved=True) == ["pytest -k a --rlperf -v"]


class Screen:
    """A terminal 40 columns wide, with 11 of them written."""

    width_of_current_line = 11
    fullwidth = 40


def test_new_tests_print_one_line_each(wording: Wording) -> None:
    """A first run of fifty tests has a row for each, and their common reason once; with -v it has their phases."""
    new = [builders.compared(f"test_{number}", Status.NEW, None, message="no baseline yet") for number in range(50)]
    lines = render_summary(new, SUMMARY, width=80, color=False, verbose=False).splitlines()
    assert lines[52:57] == wording
    assert len(lines) == 63
    verbose = render_summary(new[:1], SUMMARY, width=80, color=False, verbose=True)
    assert verbose == wording


def test_unmeasured_tests_have_their_reason_once() -> None:
    """Tests of equal code have a row each, and one reason; with -v it stands with each test."""
    plain = builders.compared("test_0", Status.SAME, None, message="same code as HEAD~1")
    same = [replace(plain, result=replace(plain.result, nodeid=f"test_{number}", workers=())) for number in range(9)]
    text = render_summary(same, SUMMARY, width=80, color=False, verbose=False)
    assert "\n\n9 tests  SAME\n  same code as HEAD~1\n\nmachine" in text
    verbose = render_summary(same, SUMMARY, width=80, color=False, verbose=True)
    assert verbose.count("same code as HEAD~1") == 9


def test_a_run_of_many_tests_shows_how_far_it_is() -> None:
    """The live line has the test's number, the verdicts so far and, once a test is done, the time left."""
    screen, file = Screen(), io.StringIO()
    screen.fullwidth = 100

    def shown() -> str:
        line.show("pair 2")
        return file.getvalue().rpartition("\x1b[2K")[2].partition("\x1b")[0]

    line = LiveLine(screen, file)
    line.count(0, 300, {})
    line.begin("test_step")
    assert shown() == "  rlperf: test 1 of 300 · test_step · pair 2"
    line.count(20, 300, {"SLOWER": 1, "SAME": 19}, left_s=840.0)
    assert shown() == "  rlperf: test 21 of 300 · 1 SLOWER, 19 SAME · about 14 min left · test_step · pair 2"
    line.count(298, 300, {"SAME": 298}, left_s=4.0)
    assert "test 299 of 300 · 298 SAME · about 4 s left" in shown()


def test_the_time_left_goes_by_earlier_runs_and_by_this_run_s_pace() -> None:
    """Two tests go on at once, in any order; a test that takes longer than usual has a quarter of its time left."""
    clock = builders.Seconds()
    usual_s = {"a": 20.0, "b": 20.0, "c": 40.0}
    left = TimeLeft([*"abcd"], usual_s, 2, clock)
    found = [left.left_s()]
    for seconds, ended, begun in (
        (0.0, "", "ab"),
        (10.0, "", ""),
        (10.0, "b", "c"),  # d is as long as the mean of those that are known
        (20.0, "", ""),
        (20.0, "ac", "d"),
        (20.0, "d", ""),
    ):
        clock.now += seconds
        for key in ended:
            left.end(key)
        for key in begun:
            left.begin(key)
        found.append(left.left_s())
    assert found == pytest.approx([60.0, 60.0, 50.0, 40.0, 31.7, 32.4, 0.0], abs=0.1)
    assert left.learned_s() == {"a": 40.0, "b": 20.0, "c": 40.0, "d": 20.0}


def test_the_time_left_of_a_first_run_is_unknown() -> None:
    """How long its tests take cannot be told from those that have ended: they differ by more than three times."""
    clock = builders.Seconds()
    left = TimeLeft(["a", "b"], {}, 2, clock)
    left.begin("a")
    clock.now = 5.0
    left.end("a")
    assert left.left_s() == 0.0
    assert left.learned_s() == {"a": 5.0}


def test_a_run_of_one_test_shows_its_step_alone() -> None:
    """There is no test to take a time from."""
    file = io.StringIO()
    line = LiveLine(Screen(), file)
    line.count(0, 1, {})
    line.show("pair 1")
    line.show("pair 2")
    assert re.findall(r"rlperf: (.*?)\x1b", file.getvalue()) == ["pair 1", "pair 2"]


def test_a_log_has_a_line_a_minute() -> None:
    """Where there is no terminal, the same line is written once a minute, as a whole line."""
    clock, written = builders.Seconds(), list[str]()
    line = LogLine(written.append, clock)
    line.count(0, 3, {})
    line.begin("test_step")
    for second in range(1, 200):
        clock.now = float(second)
        if second >= 100:
            line.count(1, 3, {"SAME": 1}, left_s=300.0 - second)
        line.show("pair 1")
        line.clear()
    assert written == [
        "rlperf: test 1 of 3 · test_step · pair 1",
        "rlperf: test 2 of 3 · 1 SAME · about 3 min left · test_step · pair 1",
        "rlperf: test 2 of 3 · 1 SAME · about 2 min left · test_step · pair 1",
    ]


def test_the_live_line_leaves_the_cursor_where_it_was() -> None:
    """It is written one line down and the cursor goes back up to the column after what pytest wrote."""
    file = io.StringIO()
    line = LiveLine(Screen(), file)
    line.begin("test_step")
    line.show("checking what fits the line")
    assert file.getvalue() == "\n\x1b[2K  rlperf: test_step · checking what fit\x1b[1A\x1b[12G"
    line.show("checking what fits the line")
    assert file.getvalue().count("rlperf") == 1, "only what changes is written"
    line.clear()
    line.clear()
    assert file.getvalue().endswith("\n\x1b[2K\x1b[1A\x1b[12G")
    assert file.getvalue().count("\n") == 2
