"""The summary's exact text, and how the live line moves."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace

import builders
import pytest
from wording import Wording

from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Creep, Outcome, Status
from pytest_rlperf.model.notes import ShortOfTime
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.summary import NextStep, Summary, next_steps
from pytest_rlperf.report.tables import phase_rows
from pytest_rlperf.report.terminal import LiveLine, LogLine, render_summary
from pytest_rlperf.report.wording import note_lines, origin_text, phases_note
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


@pytest.mark.parametrize("width", [78, 80, 81])
@pytest.mark.parametrize("name", ["test_meant[params0-128]", "test_meant_" + "very_" * 8 + "long"])
def test_a_verdict_that_does_not_fit_goes_on_below(width: int, name: str) -> None:
    """An accepted slowdown never loses a letter of its verdict."""
    base = builders.compared(name, Status.SLOWER, 1.5, 21.4e-3, margin=0.06)
    text = render_summary(
        [replace(base, verdict=replace(base.verdict, accepted=True))], SUMMARY, width=width, color=False, verbose=False
    )
    table = text.partition("\n\n")[0].splitlines()[2:]
    assert " SLOWER" in table[0]
    assert "(accepted)" in " ".join(table)
    assert "[+44, +56]" in table[0]
    assert all(len(line) <= width for line in table)


LONG = "test_update_with_a_long_name[params0-128]"


def grown(base: Outcome, ratio: float, *, accepted: bool = False, gated: bool = True) -> Outcome:
    """Return the outcome as that of a baseline which was stored twice, so many times as slow as the first time."""
    verdict = replace(base.verdict, accepted=accepted, gated=gated)
    return replace(
        base, verdict=verdict, creep=Creep(ratio, ratio - 0.02, ratio + 0.02, "2026-01-02T03:04:05", "0123456789abcdef")
    )


def stored_twice() -> list[Outcome]:
    return [
        grown(builders.compared(LONG, Status.SLOWER, 1.5, 21.4e-3, margin=0.06), 1.62, accepted=True),
        grown(builders.compared("test_sample", Status.SAME, 1.004, 12.9e-6, margin=0.04), 1.061, gated=False),
        builders.compared("test_other", Status.INCOMPARABLE, None, 12.9e-6),
    ]


def table_of(outcomes: list[Outcome], width: int) -> list[str]:
    """Return the lines of the table and of what is told right below it."""
    return render_summary(outcomes, SUMMARY, width=width, color=False, verbose=False).partition("\n\n")[0].splitlines()


EVERY_TITLE = ["test", "median", "items/s", "baseline", "change      99 % CI", "since first", "verdict"]


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (132, EVERY_TITLE),
        (102, EVERY_TITLE),
        (101, ["test", "median", "items/s", "baseline", "change      99 % CI", "verdict"]),
        (80, ["test", "median", "items/s", "baseline", "change      99 % CI", "verdict"]),
        (79, ["test", "median", "baseline", "change      99 % CI", "verdict"]),
        (70, ["test", "median", "change      99 % CI", "verdict"]),
        (60, ["test", "change      99 % CI", "verdict"]),
        (40, ["test", "change      99 % CI", "verdict"]),
    ],
)
def test_what_has_no_room_is_left_out_in_its_order(width: int, kept: list[str]) -> None:
    """Columns go one by one; the name, the change and the verdict stay, and no figure is cut at any width."""
    title, _, *lines = table_of(stored_twice(), width)
    assert [part for part in EVERY_TITLE if part in title] == kept
    rows = list(itertools.takewhile(lambda line: not line.startswith(("since first:", "* shown")), lines))
    for column, cells in {
        "median": ["21.4 ms", "12.9 µs"],
        "items/s": ["12.0k", "19.8M"],
        "baseline": ["14.3 ms", "12.8 µs"],
        "change      99 % CI": ["+50.0 %   [+44, +56]", "+0.4 % [-3.6, +4.4]"],
        "since first": ["+62.0 %   [+60, +64]", "+6.1 % [+4.1, +8.1]"],
        "verdict": ["SLOWER", "(accepted)", "SAME *", "INCOMPARABLE"],
    }.items():
        assert [any(cell in row for row in rows) for cell in cells] == [column in kept] * len(cells)


@pytest.mark.parametrize(
    ("base", "head", "alone", "expected"),
    [
        (1.0, 1.2, False, None),
        (0.4, 0.4, True, None),  # CPU time decides: others took the rest of the wall's
        (1.0, 3.91, False, "1.0→3.9"),
        (3.9, 1.0, False, "3.9→1.0"),
        (3.9, 4.1, False, "4.1"),
        (0.041, 0.5, False, None),  # others may have taken the rest
    ],
)
def test_more_than_one_cpu_has_a_column(base: float, head: float, alone: bool, expected: str | None) -> None:
    """CPU seconds a wall second stand in the table where they are clearly over one, in 80 columns, too."""
    outcome = builders.compared("test_step[64]", Status.SLOWER, 1.5, live=True)
    assert outcome.live is not None
    of_base, of_head = ((builders.worker(cpu_share=share, alone=alone),) for share in (base, head))
    live = replace(outcome.live, base=replace(outcome.live.base, workers=of_base))
    outcome = replace(outcome, result=replace(outcome.result, workers=of_head), live=live)
    title, _, *rows = table_of([outcome], 80)
    assert ("cpu/wall" in title) is (expected is not None)
    assert any(f" {expected}  " in row for row in rows) is (expected is not None)
    assert all(len(line) <= 80 for line in rows)


def test_a_name_keeps_sixteen_columns() -> None:
    """Figures go before a long name has less, and a terminal that is narrower still cuts neither."""
    rows = table_of(stored_twice(), 40)[2:]
    assert "".join(row[:16] for row in rows[:3]) == LONG
    assert max(map(len, rows[:5])) == 16 + 2 + len("+50.0 %   [+44, +56]") + 2 + len("INCOMPARABLE")


def test_a_short_name_needs_no_more_than_it_has() -> None:
    """Every column fits 89, and all but one 80, stored twice or not."""
    short = [grown(builders.compared("test_a", Status.SAME, 1.004, 12.9e-6, margin=0.04), 1.061)]
    assert [title for title in EVERY_TITLE if title in table_of(short, 89)[0]] == EVERY_TITLE


def test_changes_since_the_first_are_told_where_their_column_is_not() -> None:
    """Below the table those that have grown the most, under -v every test's, with where it began."""
    ratios = {"test_a": 1.02, "test_b": 2.5, "test_c": 0.9, "test_d": 1.3}
    outcomes = [grown(builders.compared(name, Status.SAME, 1.0), ratio) for name, ratio in ratios.items()]
    told = "since first: test_b ×2.5, test_d +30.0 %, test_a +2.0 %, 1 more with -v"
    assert told in table_of(outcomes, 72)
    assert told not in table_of(outcomes, 132)
    verbose = render_summary(outcomes, SUMMARY, width=72, color=False, verbose=True)
    assert "since first: -10.0 % [-12, -8] since 2026-01-02, commit 0123456789ab" in verbose
    assert told not in verbose


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
    rows = phase_rows(builders.compared("t", Status.NEW, None, 1.0))
    tops = [row.total_s for row in rows if row.depth == 0]
    assert sum(tops) == pytest.approx(1.0)
    assert [row.name for row in rows if row.depth == 1] == ["critic", "actor", "(unaccounted)"]
    result = builders.compared("t", Status.NEW, None, 2e-3).result
    assert phases_note(replace(result, traced_call_s=9.0, workers=())) == ""
    assert phases_note(replace(result, traced_call_s=0.0, phases=())) == ""


@pytest.mark.parametrize(("traced_s", "says"), [(7.5e-3, True), (1.2e-3, True), (2.49e-3, False), (1.51e-3, False)])
def test_phases_that_do_not_add_up_to_the_median_say_so(traced_s: float, says: bool, wording: Wording) -> None:
    """A stall in a traced call makes its phases longer than the call is by its median: the tree ends with both."""
    base = builders.compared("t", Status.INCOMPARABLE, None, 2e-3)
    found = replace(base, result=replace(base.result, traced_call_s=traced_s))
    tree = render_summary([found], SUMMARY, width=80, color=False, verbose=False).split("\n\n")[1].splitlines()
    note = phases_note(found.result)
    assert note == wording
    assert bool(note) == says
    assert (tree[-1] == f"  {note}") if says else "(unaccounted)" in tree[-1]


@pytest.mark.parametrize("width", [60, 80])
def test_a_tree_of_phases_fits(width: int) -> None:
    """A line of it is a line, in a narrow log too, with what a change adds."""
    found = builders.compared("t", Status.SLOWER, 1.5, 2e-3)
    text = render_summary([found], SUMMARY, width=width, color=False, verbose=False)
    tree = text.split("\n\n")[1].splitlines()[2:]
    assert tree.pop(0).split()[0] == "phase"
    assert len(tree) == len(phase_rows(found))
    assert all(re.search(r"\d\.\d %", line) and len(line) <= width for line in tree)


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


def test_a_new_test_with_a_note_shows_it(wording: Wording) -> None:
    """A note of the measurement is not left out with the phases."""
    new = builders.compared("test_new", Status.NEW, None)
    noted = replace(new, result=replace(new.result, notes=("a restless machine",)))
    assert render_summary([noted], SUMMARY, width=80, color=False, verbose=False) == wording


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


def test_tests_that_were_not_settled_in_time_are_named_once(wording: Wording) -> None:
    """One line has how many they are, the first of them, and what helps."""
    notes = [ShortOfTime(f"tests/test_it.py::test_{number}", 12.0 + number) for number in range(7)]
    assert note_lines(notes, verbose=False) == wording
    spread = builders.verdict(Status.UNDECIDED, 1.0)
    for reason, is_short in (
        (reasons.PairsUndecided(reasons.Code.SPREAD, 1.1, 0.2, time_is_short=True), True),
        (reasons.PairsUndecided(reasons.Code.SPREAD, 1.1, 0.2, time_is_short=False), False),
        (reasons.PairsUndecided(reasons.Code.PAIRS, None, time_is_short=True), True),
    ):
        assert replace(spread, reason=reason).was_cut_short is is_short


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
