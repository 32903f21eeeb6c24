from __future__ import annotations

import builders
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from pytest_rlperf.model.live import Contribution
from pytest_rlperf.report.github import escape, grid
from pytest_rlperf.report.summary import failure_text
from pytest_rlperf.report.table import Cell, Column, Table, make_table, print_facts, rendered, table_lines, table_text
from pytest_rlperf.report.tables import phase_table, verdict_table

NAME = Column("name", "left", folds=True)
COLUMNS = (NAME, Column("A", priority=2), Column("B", priority=1), Column("word", "left"))


def figures(*names: str) -> Table:
    return make_table(COLUMNS, [(name, "1.00 ms", "12", "SAME") for name in names], "Times")


def test_columns_are_chosen_by_title_and_empty_ones_left_out() -> None:
    """The first column names the rows and stays."""
    table = make_table(COLUMNS, [("x", "", "2", ""), ("", "", "3", "")])
    assert [column.title for column in table.without_empty().columns] == ["name", "B"]
    chosen = table.only(["B", "name"])
    assert [[cell.text for cell in row] for row in chosen.rows] == [["2", "x"], ["3", ""]]


def test_text_is_aligned_below_its_titles() -> None:
    """Names to the left, figures to the right, a line between titles and rows."""
    assert table_text(figures("short", "a longer name"), 80) == [
        "name                 A   B  word",
        "────────────────────────────────",
        "short          1.00 ms  12  SAME",
        "a longer name  1.00 ms  12  SAME",
    ]
    assert table_text(figures("x"), None, titled=False) == ["x  1.00 ms  12  SAME"]


@pytest.mark.parametrize(
    ("width", "kept"),
    [(80, ["name", "A", "B", "word"]), (30, ["name", "B", "word"]), (25, ["name", "word"]), (5, ["name", "word"])],
)
def test_columns_without_room_go_in_their_order(width: int, kept: list[str]) -> None:
    """The highest number first; those of 0 stay, and no figure is cut."""
    table = figures("a_name_of_twenty_letters"[:20])
    titles, _, row, *_ = table_text(table, width)
    assert titles.split() == kept
    assert ("1.00 ms" in row) == ("A" in kept)


def test_long_text_folds_between_words_where_there_are_any() -> None:
    """A name is folded anywhere, below its own depth; the columns beside it keep their figures whole."""
    words = make_table((NAME, Column("v", "left")), [("two words or three", "SLOWER (accepted)")])
    assert table_text(words, 30, titled=False) == ["two words or      SLOWER (accepted)", "three"]
    folded = make_table((NAME,), [(Cell("test_" + "x" * 30, depth=1),)])
    assert table_text(folded, 16, titled=False) == ["  test_" + "x" * 9, "  " + "x" * 14, "  " + "x" * 7]


def test_wide_letters_take_two_columns() -> None:
    """A name in Japanese does not push its figures out of line."""
    lines = table_text(figures("日本", "abcd"), 80)
    assert {cell_len(line) for line in lines[2:]} == {cell_len(lines[3])}


def test_colours_are_those_of_statuses() -> None:
    """A cell's kind is its colour on a terminal that has any, and nothing elsewhere."""
    (line,) = table_lines(make_table((NAME,), [(Cell("SLOWER", "SLOWER"),)]), 80, titled=False)
    assert [span.style for span in line.spans] == ["bold red"]
    text = rendered(lambda console: print_facts(console, [("fit", "no")]), width=40, color=False)
    assert text == "fit       no\n"


def test_markdown_has_nothing_but_text_in_its_cells() -> None:
    """A pipe or markup in a name is text, kinds are bold and code, and depth is space that GitHub keeps."""
    table = make_table(
        (Column("n", "left"), Column("v")),
        [(Cell("a|<b>", depth=1), Cell("+1 %", "strong")), ("", Cell("*", "code"))],
    )
    assert grid(table).splitlines() == [
        "| n | v |",
        "| :-- | --: |",
        f"| &nbsp;&nbsp;&nbsp;&nbsp;{escape('a|<b>')} | **+1 %** |",
        "|  | <code>&#42;</code> |",
    ]
    assert "|" not in escape("a|<b>")
    assert grid(make_table((NAME,), [])) == ""


@pytest.mark.parametrize(
    ("base_ms", "shown"),
    [(50.2, "50.2 ms"), (49.5, "49.5 ms"), (294.0, ""), (20.0, "")],
    ids=["true", "near", "far", "less"],
)
def test_medians_that_contradict_the_change_are_not_shown_beside_each_other(base_ms: float, shown: str) -> None:
    """A change of pairs that differ much is no ratio of medians over all of them: the row has its interval alone."""
    found = builders.compared(ratio=1.006, call_s=50.5e-3, live=True)
    assert found.live is not None
    slow = replace(found.live.base, workers=(builders.worker(base_ms / 1e3),) * 5)
    found = replace(found, live=replace(found.live, base=slow))
    table = verdict_table([found])
    cells = {column.title: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert cells["median"] == "50.5 ms"
    assert cells.get("baseline", "") == shown
    assert (" on main" in failure_text(found, "main", against=True)) == bool(shown)


@pytest.mark.parametrize(("pace", "shown"), [(1.0, "48.1 ms"), (1.7, "")], ids=["as today's", "another"])
def test_a_stored_time_of_another_pace_does_not_stand_beside_a_change_that_it_contradicts(
    pace: float, shown: str
) -> None:
    """A change of stored figures is relative to the kernels: the machine's pace was another when they were taken."""
    found = builders.compared(ratio=1.05, call_s=50.5e-3, live=False)
    assert found.baseline is not None
    stored = replace(found.baseline.result, workers=(builders.worker(pace * 50.5e-3 / 1.05),) * 5)
    table = verdict_table([replace(found, baseline=replace(found.baseline, result=stored))])
    cells = {column.title: cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert cells.get("baseline", "") == shown


@pytest.mark.parametrize(
    ("change_s", "shown"), [(0.5e-3, "+500 µs"), (5e-3, ""), (-0.5e-3, "-500 µs"), (-5e-3, "")], ids=str
)
def test_time_outside_all_phases_adds_no_more_than_it_is(change_s: float, shown: str) -> None:
    """What no phase surely adds is that time's, of 1 ms before and now, unless it is more."""
    found = builders.compared(ratio=1.0, call_s=50e-3, live=True)
    assert found.live is not None
    found = replace(found, live=replace(found.live, contributions=(Contribution("", change_s),)))
    table = phase_table(found)
    assert [cell.text for cell in table.rows[-1]][:2] == ["(unaccounted)", "1.00 ms"]
    adds = [row[-1].text for row in table.rows] if table.columns[-1].title == "adds to the change" else [""]
    assert adds[-1] == shown
