"""What a run says of a change: the tests that it touches come first and name it, others are spared.

Which changes touch a test is in test_reach_cases.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import builders
import pytest
from example import FAILED, OK, Example, Run
from msgspec.structs import replace

from pytest_rlperf.judge.untouched import shared_shift
from pytest_rlperf.model import notes
from pytest_rlperf.model.judged import Status
from pytest_rlperf.model.measured import CounterChange, FunctionCounts
from pytest_rlperf.model.reach import ChangedPart, Kind, Touched
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.reach.coverage import Coverage
from pytest_rlperf.reach.reads import compare_reads
from pytest_rlperf.reach.touch import Change, Reached
from pytest_rlperf.report.html import difference
from pytest_rlperf.report.wording import note_lines, touched_lines

LIB = """
import copy

ROWS = [[0.0] * 8 for _ in range(100)]


class Buffer:
    def sample(self):
        return {sample}

    def grow(self):
        return len(ROWS)

    def save(self):
        return {save}
"""
TESTS = """
    from lib import Buffer

    def test_grow(rlperf):
        rlperf(Buffer().grow)

    def test_sample(rlperf):
        rlperf(Buffer().sample)
"""
QUICK = (
    *("--rlperf-against=HEAD", "-o", "rlperf_pairs=2..8", "--rlperf-max-time=4"),
    *("--rlperf-tolerance=50%", "--rlperf-findings=growth=off"),
)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Measure two tests of a change, of which one runs it, as GitHub would; return the run and its page."""
    example = Example(
        tmp_path_factory.mktemp("changed"),
        {"lib.py": LIB.format(sample="ROWS[:64]", save="1"), "test_it.py": TESTS},
        GITHUB_ACTIONS="true",
    )
    example.commit()
    example.write({"lib.py": LIB.format(sample="copy.deepcopy(ROWS[:64])", save="2")})
    page = example.tmp / "page.html"
    run = example.pytest(*QUICK, "-v", f"--rlperf-html={page}", code=FAILED, GITHUB_WORKSPACE=str(example.root))
    return run, page


def test_only_what_a_change_touches_is_measured_and_first(changed: tuple[Run, Path]) -> None:
    """A test that runs another function of the same class has no figures, and is reported last."""
    run, _ = changed
    assert run.results == [("test_sample", "FAILED"), ("test_grow", "PASSED")]
    assert (run.statuses["test_grow"], run.codes["test_grow"]) == ("SAME", "reach")
    assert run.tests["test_grow"]["live"] is None
    assert run.statuses["test_sample"] == "SLOWER"


def test_a_slower_test_names_the_changed_function(changed: tuple[Run, Path]) -> None:
    """First of all, with its place and what it calls more; in JSON too, with its text on both sides."""
    run, _ = changed
    (touched,) = run.tests["test_sample"]["touched"]
    assert touched["entries"] == [1, 1]
    assert touched["calls"] == [{"path": "", "name": "copy.deepcopy", "was": 0, "now": 1}]
    part = touched["part"]
    assert (part["kind"], part["file"], part["name"], part["line"]) == ("function", "lib.py", "Buffer.sample", 8)
    assert (part["differs"], "deepcopy" in part["was"], "deepcopy" in part["now"]) == (9, False, True)
    lines = run.error("test_sample").splitlines()
    assert [line.partition(" ·")[0] for line in lines[2:3]] == ["changed: lib.py:8 Buffer.sample"]


def test_an_annotation_stands_at_the_changed_line(changed: tuple[Run, Path]) -> None:
    """Which a pull request shows, while the line of the test is in no diff."""
    run, _ = changed
    (annotation,) = re.findall(r"^::error file=(\S+?),line=(\d+),", run.out, re.MULTILINE)
    assert annotation == ("lib.py", "9")


def test_a_page_has_the_function_on_both_sides(changed: tuple[Run, Path]) -> None:
    """Folded, beside each other; the run names the page."""
    run, page = changed
    assert f"wrote {page}" in run.out.splitlines()
    assert "rlperf show --html" not in run.out
    text = page.read_text(encoding="utf-8")
    assert "<summary>lib.py:8 Buffer.sample</summary>" in text
    assert text.count("<details class=difference>") == 1


def test_a_run_ends_with_the_changed_functions_that_no_test_runs(changed: tuple[Run, Path]) -> None:
    """A green gate says nothing of these; it is a note, and fails nothing."""
    run, _ = changed
    assert run.document["changed"] == 2
    assert [part["name"] for part in run.document["untested"]] == ["Buffer.save"]
    assert len(run.notes("Buffer.save (lib.py:14)")) == 1


@pytest.mark.parametrize("ends", [pytest.param("exits", marks=pytest.mark.slow), "crashes"])
def test_a_spared_test_that_ends_its_process_in_the_teardown_is_an_error(tmp_path: Path, ends: str) -> None:
    """Whatever its observers have shown: it is the same only if it has passed."""
    names = (ends, "closes")
    tests = """
        import os
        import signal
        import pytest
        from lib import Buffer

        @pytest.fixture(params=KINDS)
        def buffer(request):
            yield Buffer()
            if request.param == "exits":
                os._exit(0)
            if request.param == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)

        def test_grow(rlperf, buffer):
            rlperf(buffer.grow)
    """
    example = Example(
        tmp_path, {"lib.py": LIB.format(sample="1", save="1"), "test_it.py": tests.replace("KINDS", repr(names))}
    )
    example.commit()
    example.write({"lib.py": LIB.format(sample="1", save="2")})
    run = example.pytest(*QUICK, "-v", "--rlperf-max-time=0.1", code=FAILED)
    assert [run.statuses[f"test_grow[{name}]"] for name in names] == ["ERROR", "SAME"], run.text
    assert [run.outcomes[f"test_grow[{name}]"] for name in names] == ["ERROR", "PASSED"]
    assert not run.notes("new interpreters")


def test_code_that_no_test_reads_is_named(tmp_path: Path) -> None:
    """A script that nothing loads, and what a loaded module does as a program; the copy of its lines is the same."""
    script = """
        from lib import Buffer

        ROWS = {0}


        def train():
            return {0}


        if __name__ == "__main__":
            train()
    """
    test = "import run\n\ndef test_copy(rlperf): rlperf(lambda: sum(range(9)))\n"
    main = "\n\nif __name__ == '__main__':\n    print({})\n"
    example = Example(tmp_path, {"ppo.py": script.format(1), "run.py": main.format(1), "perf/test_it.py": test})
    example.write({"pytest.ini": "[pytest]\npythonpath = .\n"})
    example.commit()
    example.write({"ppo.py": script.format(2), "run.py": main.format(2)})
    run = example.pytest(*QUICK, *builders.TWO_PAIRS)
    untested = [(part["file"], part["name"]) for part in run.document["untested"]]
    assert sorted(untested) == [("ppo.py", ""), ("ppo.py", "train"), ("run.py", "__main__")]
    (note,) = run.notes("no test of this run was seen to run")
    assert "ppo.py:4 the body of the module" in note
    assert "run.py:4 the body of the module as a program" in note
    assert len(run.notes("a changed function may run without being observed")) == 1


@pytest.mark.slow  # test_code_that_no_test_reads_is_named
def test_a_script_that_a_test_runs_as_a_program_is_not_named(tmp_path: Path) -> None:
    """No process tells that the body of a program has run, but only that a test has read its file."""
    test = """
        import runpy

        def test_script(rlperf):
            rlperf(lambda: runpy.run_path("script.py", run_name="__main__"))
    """
    script = "if __name__ == '__main__':\n    sum(range({}00))\n"
    example = Example(tmp_path, {"script.py": script.format(1), "test_it.py": test})
    example.commit()
    example.write({"script.py": script.format(2)})
    run = example.pytest(*QUICK, *builders.TWO_PAIRS)
    assert run.tests["test_script"]["live"] is not None
    assert run.document["untested"] == []


@pytest.mark.slow  # test_sides_cases: test_what_git_ignores_is_there_on_both_sides
def test_reach_off_measures_all(tmp_path: Path) -> None:
    """By the command line or, as here, by the settings; a comment is a difference then."""
    example = Example(tmp_path, {"lib.py": LIB.format(sample="1", save="1"), "test_it.py": TESTS})
    example.commit()
    example.write({"lib.py": LIB.format(sample="1", save="1") + "# a comment\n"})
    example.write({"pytest.ini": "[pytest]\nrlperf_reach = off\n"})
    run = example.pytest(*QUICK, *builders.TWO_PAIRS, code=OK)
    assert all(test["live"] is not None for test in run.tests.values())
    assert run.tests["test_grow"]["touched"] == []


def test_other_words_for_reach_are_refused(tmp_path: Path) -> None:
    """With those that there are."""
    run = Example(tmp_path, {"test_it.py": TESTS}).pytest("--rlperf", "-o", "rlperf_reach=none", code=4)
    assert "on or off" in run.err


# --------------------------------------------------------------------------- what is counted of a change


def both_sides(top: Path, base: str, head: str, name: str = "lib.py") -> Sides:
    """Write two versions of a file, and return their sides."""
    for side, text in (("base", base), ("head", head)):
        builders.write(top / side, {name: text})
    today = builders.project(top / "head").side("HEAD", "python", (), (top / "head",))
    now = replace(today, tree=top / "head")
    return Sides(replace(now, homes=(top / "base",), tree=top / "base"), now, (), (name,), ())


def reached(sides: Sides, *lines: int) -> tuple[Change, Reached]:
    """Return a change, and what processes reach of it that run functions at some lines of both sides."""
    change = Change(sides)
    prints = [
        builders.footprint([str(side.homes[0] / "lib.py")], {str(side.homes[0] / "lib.py"): list(lines)})
        for side in (sides.base, sides.head)
    ]
    return change, change.reached(compare_reads(sides, *(each.files for each in prints)), *prints)


def test_parts_that_do_the_most_more_come_first(tmp_path: Path) -> None:
    """By the calls that one call makes more, then by their entries."""
    code = "def first():\n    return {0}\n\n\ndef second():\n    return {0}\n\n\ndef third():\n    return {0}\n"
    sides = both_sides(tmp_path, code.format(1), code.format(2))
    change, found = reached(sides, 1, 5, 9)

    def counts(side: str, *entries: tuple[int, int, dict[str, int]]) -> list[FunctionCounts]:
        return [FunctionCounts(str(tmp_path / side / "lib.py"), *each) for each in entries]

    base = counts("base", (1, 1, {}), (5, 2, {"math.sqrt": 1}), (9, 8, {}))
    head = counts("head", (1, 1, {}), (5, 2, {"math.sqrt": 9}), (9, 8, {}))
    touched = change.touched(found.executes, base, head)
    assert [each.part.name for each in touched] == ["second", "third", "first"]
    assert touched[0].calls == (CounterChange("", "math.sqrt", 1, 9),)
    assert [each.entries for each in touched] == [(2, 2), (8, 8), (1, 1)]
    assert {each.entries for each in change.touched(found.executes, (), ())} == {None}


def test_functions_of_a_script_that_runpy_runs_are_named(tmp_path: Path) -> None:
    """It opens the file as others open data, so the test is measured whatever of it runs."""
    sides = both_sides(tmp_path, "def f(): return 1\n", "def f(): return 2\n")
    change, files = Change(sides), [str(side.homes[0] / "lib.py") for side in (sides.base, sides.head)]
    prints = [builders.footprint([file], {file: [1]}, data=[file]) for file in files]
    found = change.reached(compare_reads(sides, *([file] for file in files)), *prints)
    assert {(part.kind, part.name) for part in found.executes} == {(Kind.FUNCTION, "f"), (Kind.FILE, "")}
    assert [each.part.name for each in change.touched(found.executes, (), ())] == ["f"]
    prints = [builders.footprint([file], data=[file]) for file in files]
    found = change.reached(compare_reads(sides, *([file] for file in files)), *prints)
    assert [part.kind for part in found.executes] == [Kind.FILE]


def test_functions_of_a_change_are_all_that_differ(tmp_path: Path) -> None:
    """New ones and those that are gone, too, and no body."""
    sides = both_sides(
        tmp_path, "N = 1\ndef gone(): ...\ndef kept(): ...\n", "N = 2\ndef new(): ...\ndef kept(): ...\n"
    )
    change, found = reached(sides, 3)
    assert {part.name: part.is_gone for part in change.functions} == {"new": False, "gone": True}
    assert [(part.kind, part.name) for part in found.executes] == [(Kind.BODY, "")]


@pytest.mark.parametrize(
    ("head", "is_empty"),
    [
        ("N = 1  # one\n", True),
        ('"""It is a module."""\nN = 1\n', True),
        ('__version__ = "1.2"\nN = 1\n', False),
        ("N = 2\n", False),
        ("N = 1\ndef f(x: int): ...\n", False),
        ("import patches\nN = 1\n", False),
        ("__all__ = []\nN = 1\n", False),
        ("N =\n", False),
    ],
)
def test_a_change_of_comments_alone_is_empty(tmp_path: Path, head: str, is_empty: bool) -> None:
    """Of functions, too, if not of what they say of their arguments; a file that one side lacks may be looked for."""
    sides = both_sides(tmp_path, "N = 1\n", head)
    assert Change(sides).is_empty == is_empty
    (tmp_path / "base/lib.py").unlink()
    assert not Change(sides).is_empty


def test_a_source_that_cannot_be_parsed_differs_as_a_whole(tmp_path: Path) -> None:
    """It may be anything."""
    _, found = reached(both_sides(tmp_path, "def f(): ...\n", "def f(:\n"), 1)
    assert [(part.kind, part.file) for part in found.executes] == [(Kind.FILE, "lib.py")]


def test_a_file_of_nothing_but_a_version_is_no_change(tmp_path: Path) -> None:
    """Many packages read one when they are imported; any other number may be a size."""
    for base, head, differs in (("2.8.0\n", "2.9.0a1\n", False), ("1000\n", "2000\n", True), ("1.5\n", "2.5\n", True)):
        sides = both_sides(tmp_path / base.strip(), base, head, "lib.txt")
        prints = [builders.footprint([str(side.homes[0] / "lib.txt")]) for side in (sides.base, sides.head)]
        found = Change(sides).reached(compare_reads(sides, *(each.files for each in prints)), *prints)
        assert bool(found.executes) == differs, base


def test_modules_that_any_process_may_have_opened_are_named_only_by_themselves(tmp_path: Path) -> None:
    """The system does not say who opened a file: another test may have been observed at the same time."""
    names = ("lib.py", "other.py", "sizes.txt")
    for side, text in (("base", "def f():\n    return 1\n"), ("head", "def f():\n    return 2\n")):
        builders.write(tmp_path / side, dict.fromkeys(names, text))
    sides = both_sides(tmp_path, "def f():\n    return 1\n", "def f():\n    return 2\n")
    change = Change(replace(sides, changed=names))

    def named(opened: Sequence[str], runs: bool, reads: Sequence[str] = ()) -> list[str]:
        found = []
        for side in (sides.base, sides.head):
            own, others, data = ([str(side.homes[0] / name) for name in each] for each in (names[:1], opened, reads))
            ran = {own[0]: [1]} if runs else {}
            found.append(builders.footprint([*ran, *data], ran, opened=others, data=data))
        reads_of = compare_reads(sides, *((*each.files, *each.opened) for each in found))
        return [part.file for part in change.reached(reads_of, *found).named]

    assert named(["other.py", "sizes.txt"], runs=True) == ["lib.py", "sizes.txt"]
    assert named(["other.py"], runs=False) == ["other.py"]
    assert named(["other.py"], runs=True, reads=["other.py"]) == ["lib.py", "other.py"]


# --------------------------------------------------------------------------- what tests reach together

F, G, H = (
    ChangedPart(Kind.FUNCTION, file, name, 1, 1, "was", "now")
    for file, name in (("lib/a.py", "f"), ("lib/b.py", "g"), ("docs/conf.py", "h"))
)
GONE = dataclasses.replace(F, name="gone", now="")


def test_coverage_lists_what_no_test_executes() -> None:
    """Wherever it lies: a test may measure a copy of a script's lines."""
    coverage = Coverage()
    coverage.add("test_1", (F, G, H, GONE), Reached((F,)))
    assert (coverage.changed, [part.name for part in coverage.untested]) == ([F, G, H], ["g", "h"])
    coverage.add("test_2", (F, G, H, GONE), None)
    assert coverage.unknown == ["test_2"]
    coverage.add("test_3", (F, G, H, GONE), Reached((G,), (H,)))
    assert [part.name for part in coverage.untested] == ["h"]


def test_what_a_build_has_left_of_code_that_runs_is_not_untested() -> None:
    """It has the same name and the same text; a function that is another one has neither."""
    built, other = dataclasses.replace(F, file="build/lib/a.py"), dataclasses.replace(F, file="lib/c.py", now="other")
    coverage = Coverage()
    coverage.add("test_1", (F, built, other), Reached((F,)))
    assert coverage.untested == [dataclasses.replace(other, was="", now="")]
    assert [part.file for part in coverage.untested] == ["lib/c.py"]


# --------------------------------------------------------------------------- what untouched tests say


@pytest.mark.parametrize(
    ("ratios", "shift"),
    [
        ((1.02, 1.03, 1.04), 1.03),
        ((0.97, 0.97, 1.0), 0.97),
        ((1.03, 1.0, 1.0), None),
        ((1.03, 1.03, 0.97, 0.97), None),
        ((1.03, 1.03), None),
    ],
)
def test_a_shift_that_most_untouched_tests_share_is_found(ratios: tuple[float, ...], shift: float | None) -> None:
    """They are the same code: more than half of them moved the same way by more than chance."""
    assert shared_shift([builders.estimate(ratio) for ratio in ratios]) == shift


# --------------------------------------------------------------------------- sentences


def outcome_of(status: Status, *touched: Touched) -> Any:
    return replace(builders.compared("test_it", status, 1.2), touched=touched)


def test_the_lines_of_a_change(wording: Any) -> None:
    """Places, entries, and what is called more; three at the most, and none of a test that is as fast as it was."""
    deep = CounterChange("", "copy.deepcopy", 0, 8)
    touched = (
        Touched(F, (1, 1), (deep,)),
        Touched(G, (1, 16)),
        Touched(ChangedPart(Kind.BODY, "lib/a.py", "Env", 3, 4)),
        Touched(H, (0, 0)),
        Touched(ChangedPart(Kind.FILE, "lib/data.json")),
    )
    assert touched_lines(outcome_of(Status.SAME, *touched)) == []
    assert touched_lines(outcome_of(Status.SLOWER)) == []
    assert touched_lines(outcome_of(Status.UNDECIDED, *touched)) == touched_lines(outcome_of(Status.SLOWER, *touched))
    texts = [touched_lines(outcome_of(Status.SLOWER, *each)) for each in (touched, touched[3:], touched[1:3])]
    assert "\n".join(line for lines in texts for line in lines) == wording


def test_the_notes_on_a_change(wording: Any) -> None:
    """How to write a test is a part of each."""
    found: list[notes.Note] = [
        notes.Untested(14, (F,), ()),
        notes.Untested(14, (F,), (), is_selection=True),
        notes.Untested(1, (dataclasses.replace(F, name="Agent.update"),), ()),
        notes.Untested(1, (dataclasses.replace(F, name="Agent.__init__"),), ()),
        notes.Untested(
            14,
            (F, G, H, *(dataclasses.replace(F, name=f"f{number}") for number in range(4))),
            ("test_it.py::test_fork",),
        ),
        notes.Untested(
            2, (ChangedPart(Kind.BODY, "ppo.py", "", 1, 3), ChangedPart(Kind.BODY, "ppo.py", "__main__", 60, 61)), ()
        ),
        notes.UntouchedMoved(8, 1.011),
        notes.MeasuredInDoubt("test_it.py::test_one", notes.Doubt.UNEVEN),
        notes.MeasuredInDoubt("test_it.py::test_two", notes.Doubt.UNEVEN),
        notes.MeasuredInDoubt("test_it.py::test_fork", notes.Doubt.CHILDREN),
        notes.MeasuredInDoubt("test_it.py::test_jit", notes.Doubt.UNSEEN),
    ]
    assert "\n".join(note_lines(found, verbose=False)) == wording


def test_a_difference_has_equal_lines_beside_each_other() -> None:
    """Where one side has more lines, the other has empty ones; a part without a text has none."""
    part = dataclasses.replace(F, was="def f():\n    return 1", now="def f():\n    g()\n    return 1")
    assert difference(part) == [
        ("def f():", "def f():", False),
        ("", "    g()", True),
        ("    return 1",) * 2 + (False,),
    ]
    assert difference(ChangedPart(Kind.FILE, "data.json")) == []
