"""The summary's exact text, and how the live line moves."""

from __future__ import annotations

import ast
import io
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from _pytest._io import TerminalWriter
from msgspec.structs import replace
from rich.cells import cell_len
from wording import Wording

import pytest_rlperf
from pytest_rlperf import units
from pytest_rlperf.errors import in_encoding
from pytest_rlperf.model.facts import InWords
from pytest_rlperf.model.judged import Finding, Outcome, Remedy, RemedyKind, Shard, Status
from pytest_rlperf.model.notes import Plan, UnderWay
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.report.summary import NextStep, Summary, next_steps
from pytest_rlperf.report.table import folded
from pytest_rlperf.report.tables import phase_table
from pytest_rlperf.report.terminal import LiveLine, LogLines, Screen, not_slower_lines, render_summary
from pytest_rlperf.report.wording import origin_text, phases_note, plan_text
from pytest_rlperf.run.budget import TimeLeft
from pytest_rlperf.run.end_of_run import repeated, typed
from pytest_rlperf.sides.specs import Candidate

PACKAGE = Path(pytest_rlperf.__file__).parent
SUMMARY = Summary(
    machines=["Some CPU, 2 cores, Linux x86_64, CPython 3.11"],
    origins=["baseline 'default' of 2026-11-21, commit 0123456789ab"],
    notes=["stored 1 result in\nbaselines/default/linux.json"],
    steps=[NextStep("if it was meant to get slower", ("Rlperf-Accept: tests/test_perf.py::test_sac <= +51% why",))],
)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_line_fits_the_terminal(width: int) -> None:
    """Long names fold in the table, and nothing is cut off; where a name is to be copied it is whole."""
    name = "test_" + "very_" * 12 + "long[param-0]"
    text = render_summary(
        [builders.compared(name, Status.SLOWER, 1.5)], SUMMARY, width=width, color=False, verbose=False
    )
    said, _, command = text.partition("next ")
    assert "Rlperf-Accept: tests/test_perf.py::test_sac <= +51% why" in command  # which is copied whole
    assert all(len(line) <= width for line in said.splitlines() if line != f"{name}  SLOWER")
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

    storing, accepting, again = lines(new, slower)
    assert storing == again == "pytest --rlperf-save-baseline"
    assert accepting.startswith("Rlperf-Accept: ")
    assert lines(same, command="pytest -v", verbose=True) == lines() == []
    assert lines(new, command="pytest -k a", saved=True) == ["pytest -k a --rlperf -v"]


@pytest.mark.parametrize(
    ("root", "pyargs", "path"),
    [(".", False, "t.py"), ("..", False, "../t.py"), ("a", False, "a/t.py"), ("..", True, "t.py")],
)
def test_the_command_that_settles_a_test_measures_it_alone(root: str, pyargs: bool, path: str) -> None:
    """By its path from here, or its module; with the time or the pairs that it needs. Other remedies are no command."""
    remedies = Remedy(RemedyKind.PAIRS, 27), Remedy(RemedyKind.TIME, 40), Remedy(RemedyKind.QUIET)
    tests = [
        builders.outcome(
            builders.result(f"t.py::test_{each.kind.value}[a/.. b]"), builders.verdict(Status.UNDECIDED, remedy=each)
        )
        for each in remedies
    ]
    alone = "pytest --rlperf-against=v1"
    config = SimpleNamespace(rootpath=Path(root).resolve(), getoption={"pyargs": pyargs}.__getitem__)
    named = partial(typed, config)  # type: ignore[arg-type]
    steps = next_steps(tests, "pytest -k a", saved=False, against=True, verbose=True, alone=alone, typed=named)
    assert [line for step in steps for line in step.lines if line.startswith("pytest")] == [
        f"{alone} '{path}::test_pairs[a/.. b]' -o rlperf_pairs=3..27",
        f"{alone} '{path}::test_time[a/.. b]' --rlperf-max-time=40",
    ]


def test_after_a_search_each_undecided_test_has_its_own_remedy() -> None:
    """A command where more pairs or more time decide, else what does; with the options that the search had."""
    remedies = Remedy(RemedyKind.PAIRS, 27), Remedy(RemedyKind.TIME, 40), Remedy(RemedyKind.CALLS), None
    found: dict[str, Outcome | str] = {
        f"t.py::test_{number}": builders.outcome(builders.result(), builders.verdict(Status.UNDECIDED, remedy=remedy))
        for number, remedy in enumerate(remedies)
    }
    last = "../{}".format, ["--rlperf-tolerance=10%"]
    first, *lines = not_slower_lines(Candidate("a", "commit a"), Candidate("b", "commit b"), found, *last)
    assert first == "not found: no test is SLOWER on commit b against commit a"
    again = "for what is UNDECIDED: rlperf bisect a..b ../t.py::test_{} --rlperf-tolerance=10% {}"
    assert lines[1:] == [
        again.format(0, "-o rlperf_pairs=3..27"),
        again.format(1, "--rlperf-max-time=40"),
        again.format(3, "-o rlperf_pairs=3..30"),
    ]
    assert lines[0].startswith("t.py::test_2 is UNDECIDED: make a call longer")


def test_a_command_judges_as_the_run_did() -> None:
    """By the options of its command line, in either form."""
    given = ["-q", "--pyargs", "--rlperf-tolerance", "2%", "t", "--rlperf-findings=counts=gate", "--rlperf-max-time=4"]
    config = SimpleNamespace(invocation_params=SimpleNamespace(args=tuple(given)))
    expected = ["--pyargs", "--rlperf-tolerance=2%", "--rlperf-findings=counts=gate"]
    assert repeated(config) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("kinds", [["growth"], []])
def test_a_test_with_two_lines_to_accept_it_needs_both(kinds: list[str]) -> None:
    """One line is for its time, and one for what its calls leave."""
    findings = tuple(Finding(kind, InWords("more"), {}, gates=True) for kind in kinds)
    slower = builders.compared(status=Status.SLOWER, ratio=1.5, live=True, findings=findings)
    (accept, *_) = next_steps([slower], "pytest", saved=False, against=True, verbose=True)
    assert ("both lines" in accept.effect, len(accept.lines)) == (bool(kinds), 1 + len(kinds))


class Terminal(io.StringIO):
    """A terminal of some columns, as far as pytest and the live line use it: wrapping, colours left out."""

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        self.width = width

    @property
    def rows(self) -> list[str]:
        """What stands on it."""
        rows, row, column = [""], 0, 0
        for command in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[^\x1b]", self.getvalue()):
            if command == "\n":
                row, column = row + 1, 0
            elif command == "\x1b[2K":
                rows[row] = ""
            elif command == "\x1b[1A":
                row -= 1
            elif command.endswith("G"):
                column = int(command[2:-1]) - 1
            elif not command.startswith("\x1b"):
                if column == self.width:
                    row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
                rows[row] = rows[row].ljust(column)[:column] + command + rows[row][column + 1 :]
                column += 1
            rows += [""] * (row + 1 - len(rows))
        return [each.rstrip() for each in rows]


def pytest_on(file: io.StringIO, width: int = 80) -> TerminalWriter:
    """Return pytest's writer to a terminal."""
    writer = TerminalWriter(file)
    writer.fullwidth, writer.hasmarkup = width, True
    return writer


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
    terminal = Terminal(100)

    def shown() -> str:
        line.show("pair 2")
        return terminal.rows[-1]

    line = LiveLine(Screen(pytest_on(terminal, 100)), 100)
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
    terminal = Terminal()
    line = LiveLine(Screen(pytest_on(terminal)), 80)
    line.count(0, 1, {})
    for step in ("pair 1", "pair 2"):
        line.show(step)
        assert terminal.rows[-1] == f"  rlperf: {step}"


PLAN = Plan(tests=9, touched=3, measured=3, paired=3, pairs=(3, 10), lanes=2, expected_s=82.0)


def log_of(clock: builders.Seconds, **options: Any) -> tuple[LogLines, list[str]]:
    """Return a log, and the lines that are written to it, which grow."""
    written = list[str]()
    return LogLines(lambda text, color: written.append(text), clock, **options), written


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        PLAN._replace(expected_s=0.0, pairs=(4, 4)),
        PLAN._replace(touched=0, measured=0, paired=0, expected_s=0.0),
        PLAN._replace(measured=9, paired=9, expected_s=431.0),
        PLAN._replace(touched=None, measured=9, paired=5, expected_s=3.0),
        PLAN._replace(touched=None, measured=9, paired=0, expected_s=18.0),
        PLAN._replace(tests=1, touched=1, measured=1, paired=1, shard=Shard(1, 4, ("a", "b", "c", "d"), {})),
    ],
)
def test_a_plan_says_what_is_known(wording: Wording, plan: Plan) -> None:
    """How many tests, how many the change touches, pairs, and the time by earlier runs; nothing that is not known."""
    assert plan_text(plan) == wording


def test_a_log_has_a_line_every_fifteen_seconds(wording: Wording) -> None:
    """Unless another one was written meanwhile: with the tests under way, their pairs, and what these show so far."""
    clock = builders.Seconds()
    log, written = log_of(clock)
    log.begin("HEAD~1 (c32d96c9f144)")
    for second in range(1, 61):
        clock.now = float(second)
        if second < 20:
            log.show("building")
            continue
        if second == 20:
            log.plan(PLAN)
        log.count(0, 9, {}, left_s=82.0 - second)
        if second == 40:
            log.settle(builders.compared("test_gae"), fails=False)
        pair, ratio = (1, None) if second < 30 else (second // 10, 1.004)
        log.measuring([UnderWay("test_sac_update", f"pair {pair}", ratio), UnderWay("test_x\n", "starting pairs")])
        log.clear()
    assert "\n".join(written) == wording
    assert not any("\n" in line for line in written)


def test_a_log_has_one_line_on_each_test(wording: Wording) -> None:
    """Its verdict, its change, its name, its seconds, and how many are over; a name is whole, or the id if need be."""
    log, written = log_of(builders.Seconds(), ambiguous={"tests/test_a.py::test_twice"})
    log.plan(PLAN)
    same = builders.compared("tests/test_a.py::test_same")
    equal = builders.compared("tests/test_a.py::test_equal", Status.SAME, None)
    for outcome in (
        same,
        builders.compared("tests/test_a.py::test_twice", Status.SLOWER, 1.5),
        same,
        builders.compared(f"tests/test_a.py::test_{'long_' * 12}name", Status.UNDECIDED, 1.02),
        replace(equal, result=replace(equal.result, workers=())),
    ):
        log.settle(outcome, fails=outcome.verdict.status is Status.SLOWER)
    log.tell("tests/test_a.py::test_of_a_fixture", "ERROR", "red")
    assert "\n".join(written) == wording


@pytest.mark.parametrize(
    ("status", "gated", "color"),
    [
        (Status.SAME, True, "green"),
        (Status.SLOWER, True, "red"),
        (Status.UNDECIDED, True, "yellow"),
        (Status.UNDECIDED, False, "green"),
        (Status.INVALID, True, "yellow"),
        (Status.INCOMPARABLE, True, "yellow"),
        (Status.NEW, True, "green"),
    ],
)
def test_a_log_colours_what_is_open(status: Status, gated: bool, color: str) -> None:
    """A test that its verdict could fail, but that may have got slower unseen, is neither green nor red."""
    colors = list[str]()
    log = LogLines(lambda text, color: colors.append(color))
    log.settle(builders.compared("a", status, 1.02, gated=gated), fails=status is Status.SLOWER)
    assert colors == [color]


def test_a_first_run_estimates_its_time_by_the_first_test() -> None:
    """Once, in the line behind its verdict, and only where no earlier run has shown how long tests take."""
    outcome = replace(builders.compared("a"), seconds=20.0)
    for plan, expected in (
        (PLAN, []),
        (
            PLAN._replace(expected_s=0.0),
            ["rlperf: about 10 s for the other 2 tests, if each takes as long as this one"],
        ),
        (
            PLAN._replace(expected_s=0.0, measured=2, lanes=1),
            ["rlperf: about 20 s for the other test, if it takes as long as this one"],
        ),
        (PLAN._replace(expected_s=0.0, measured=2), []),
    ):
        log, written = log_of(builders.Seconds())
        log.plan(plan)
        log.settle(replace(outcome, result=replace(outcome.result, nodeid="b", workers=())), fails=False)
        log.settle(outcome, fails=False)
        log.settle(replace(outcome, result=replace(outcome.result, nodeid="c")), fails=False)
        assert [line for line in written[1:] if "rlperf" in line] == expected


@pytest.mark.parametrize(("verbosity", "expected"), [(1, 3), (0, 3), (-1, 1), (-2, 0)])
def test_a_quiet_log_has_its_plan_alone(verbosity: int, expected: int) -> None:
    """With -q no verdict, no progress and no estimate; with -qq nothing; with -v pytest shows how each test ended."""
    clock = builders.Seconds()
    log, written = log_of(clock, verbosity=verbosity, tells_verdicts=False)
    log.plan(PLAN._replace(expected_s=0.0))
    log.settle(builders.compared("a"), fails=False)
    clock.now = 100.0
    log.measuring([UnderWay("b", "pair 1")])
    assert len(written) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.0, "5 s"), (18.0, "20 s"), (58.9, "1 min"), (77.0, "1 min 20 s"), (296.0, "5 min"), (3700.0, "62 min")],
)
def test_an_estimate_is_a_round_figure(seconds: float, expected: str) -> None:
    """The longer it is, the rounder."""
    assert units.roughly(seconds) == expected


def test_the_live_line_is_erased_before_anything_else_is_written() -> None:
    """Whoever writes: nothing of it is left over, also where pytest's line has wrapped, and pytest's text is whole."""
    terminal = Terminal()
    writer = pytest_on(terminal)
    line = LiveLine(Screen(writer), 80)
    written = [
        "collected 2 items",
        "tests/test_perf.py ",
        f"\n  SLOWER  {'a_name_' * 12}",
        " [ 50%]\n",
        "=== rlperf ===\n",
    ]
    line.begin("HEAD~1 (c32d96c9f144)")
    for number, text in enumerate(written):
        line.show(f"starting {'workers ' * (5 - number)}")
        assert "rlperf: HEAD~1" in terminal.rows[-1]
        writer.write(text)
    line.show("ending")
    line.clear()
    line.clear()
    plain = Terminal()
    plain.write("".join(written))
    assert terminal.rows[: len(plain.rows)] == plain.rows
    assert not any(terminal.rows[len(plain.rows) :])


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_live_line_fits_the_terminal(width: int) -> None:
    """The name of a test gives way, at the end of one of its parts; the step can be read."""
    for name in ("test_the_update_of_the_soft_actor_critic[128]", "test_日本_日本_日本_日本_日本_日本_日本_日本_日本"):
        terminal = Terminal(width)
        line = LiveLine(Screen(pytest_on(terminal, width)), width)
        line.begin(name)
        line.show("pair 3")
        shown = terminal.rows[-1]
        assert cell_len(shown) < width
        assert shown.endswith(" · pair 3")
        kept, cut, _ = shown.removeprefix("  rlperf: ").partition("…")
        assert not cut or (name.startswith(kept) and kept.endswith("_"))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_text_is_in_the_encoding_of_the_output(encoding: str) -> None:
    """What an encoding lacks is ASCII, so that lines stay lines and tables tables; pytest would escape them whole."""
    raw = io.BytesIO()
    writer = pytest_on(io.TextIOWrapper(raw, encoding=encoding))  # type: ignore[arg-type]
    screen = Screen(writer)
    text = render_summary(
        [builders.compared("test_é", Status.SLOWER, 2.5)], SUMMARY, width=80, color=False, verbose=True
    )
    writer.write(text)
    LiveLine(screen, 80).show("µ")
    screen.flush()
    shown = raw.getvalue().decode(encoding)
    assert shown.count("\n") == text.count("\n") + 1
    assert "\\n" not in shown
    assert "\\u" not in shown
    rule = shown.splitlines()[1]
    assert set(rule) == ({"─"} if encoding == "utf-8" else {"-"})
    assert cell_len(rule) == cell_len(text.splitlines()[1])
    assert ("test_é" in shown) == (encoding != "ascii")


def test_every_sign_of_ours_has_one_in_ascii() -> None:
    """No text that this package writes to a terminal has a sign for which there is none in ASCII."""
    used = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.isascii() and not re.search(r"\\[uUxN0-7]", text):  # no sign, nor one that is escaped
            continue
        nodes = [*ast.walk(ast.parse(text))]
        described = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        left_out = {id(node.body[0].value) for node in described if node.body and isinstance(node.body[0], ast.Expr)}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in left_out]
        used |= {sign for node in texts for sign in str(node.value)}
    signs = {sign for sign in used if not sign.isascii() and sign.isprintable()}
    assert len(signs) > 20
    assert in_encoding("".join(signs), "ascii").isascii()
    assert "\\" not in in_encoding("".join(signs), "ascii")


def test_what_is_to_be_copied_is_never_wrapped() -> None:
    """Commands, trailers, addresses and the names of tests stand in a line of their own, however long."""
    name = f"test_{'a_long_name_' * 8}[1]"
    outcome = builders.compared(f"tests/test_it.py::{name}", Status.SLOWER, 1.5)
    note = f"{'many words ' * 6}`git fetch --unshallow origin` and https://example.org/{'a' * 90} more"
    trailer = f"Rlperf-Accept: tests/test_it.py::{name} <= +60% why"
    accepting = NextStep("accept it", (trailer, "Rlperf-Accept: test_b <= +9% why"))
    summary = replace(SUMMARY, notes=[note], steps=[accepting, NextStep("store it", ("pytest --x",))])
    lines = render_summary([outcome], summary, width=80, color=False, verbose=False).splitlines()
    assert lines[lines.index(trailer) + 1] == "Rlperf-Accept: test_b <= +9% why"  # lines of one step begin alike
    assert f"{'':<12}pytest --x" in lines
    assert f"{name}  SLOWER" in lines
    assert [line for line in lines if "git" in line and line.strip().startswith("`git fetch --unshallow origin`")]
    assert any(line.endswith("a" * 90) for line in lines)


def test_a_name_is_folded_between_its_parts() -> None:
    """Also a path or a node id; a part that is wider than the column is broken where the column ends."""
    assert folded("test_the_update_of_the_soft_actor_critic[128]", 21) == [
        "test_the_update_of_",
        "the_soft_actor_",
        "critic[128]",
    ]
    assert folded("a/path/of_several/parts.py::test_it", 20) == ["a/path/of_several/", "parts.py::test_it"]
    assert folded(f"test_{'x' * 20}", 16) == ["test_xxxxxxxxxxx", "xxxxxxxxx"]
    assert folded("two words or `more than two`", 12) == ["two words or", "`more than two`"]
