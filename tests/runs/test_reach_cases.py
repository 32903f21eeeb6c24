"""Which tests a change reaches: changes of many kinds, each with a test that it can slow down or not.

The cases are texts in samples/reach. ``functions.txt`` is one project, whose cases are functions that differ and what
is read; each has a test below a line ``#! chosen: why``. ``bodies.txt`` has a project for each case, for these change
what is run as modules are imported. A line that ends with ``#-`` is base's alone, one that ends with ``#+`` head's,
and ``LOOP`` stands for a loop that only head has.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import builders
import numpy as np
import pytest
from example import Example
from msgspec.structs import replace

from pytest_rlperf.model.reach import ChangedPart, Footprint, Kind
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.reach.differences import changed_parts
from pytest_rlperf.reach.reads import compare_reads
from pytest_rlperf.reach.source import Source
from pytest_rlperf.reach.touch import Change, Reached

SAMPLES = Path(__file__).parents[1] / "samples" / "reach"
PACKAGE = Path(__file__).parents[2] / "pytest_rlperf"
ENDINGS = {"base": "-", "head": "+"}
ROUNDS = {"base": 1, "head": 200}  # in files that are no text
LIMITS = {
    "code_renamed": "Code that was given another file and line is not known as the function that it was made of.",
    "file_asked_for": "Python tells nobody that it is asked whether a file exists.",
    "method_asked_for": "A method that is added and never runs counts as nothing, though code may ask for it.",
    "version_read": "What computes with its own __version__ is not looked for.",
    "docstring_read": "A docstring counts as nothing, though code may read it as data.",
}
"""Tests that are spared although the change slows them down, each with the reason."""


# --------------------------------------------------------------------------- the cases


@dataclass(frozen=True)
class Case:
    """A test, its project, and whether it is expected to be ``chosen``, ``spared``, or a ``limit``."""

    name: str
    project: str
    expected: str
    why: str


def parts_of(text: str, mark: str) -> list[tuple[str, str]]:
    """Return the headers that begin with a mark, each with the text below it."""
    found = re.split(rf"^{mark} (.*)\n", text, flags=re.MULTILINE)
    return list(zip(found[1::2], found[2::2], strict=True))


FUNCTIONS, BODIES = (
    parts_of((SAMPLES / f"{name}.txt").read_text(encoding="utf-8"), "===") for name in ("functions", "bodies")
)


def cases() -> Iterator[Case]:
    """Yield all cases, in the order of the files."""
    for _, text in FUNCTIONS:
        found = re.findall(r"^#! (\w+): (.*)\n(?:@.*\n)*def test_(\w+)", text, re.MULTILINE)
        yield from (Case(name, "functions", expected, why) for expected, why, name in found)
    for header, _ in BODIES:
        name, expected, why = header.split(": ", 2)
        yield Case(name, f"bodies/{name}", expected, why)


CASES = tuple(cases())


def expected_to_be(expected: str) -> pytest.MarkDecorator:
    """Return the parameters of a test for all cases of which one thing is expected; four of five are slow.

    Cases of a kind are beside each other in their file.
    """
    return builders.others_are_slow("case", {case.name: case for case in CASES if case.expected == expected}, of=5)


def of_side(text: str, side: str) -> str:
    """Return one side's version of a file."""
    lines: list[str] = []
    for line in text.splitlines():
        found = re.fullmatch(r"(.*?)\s*#([-+])", line)
        if line.strip() == "LOOP":
            indent = line.removesuffix("LOOP")
            lines += [f"{indent}for _ in range(200):", f"{indent}    pass"] if side == "head" else []
        elif found is None or found[2] == ENDINGS[side]:
            lines.append(line if found is None else found[1])
    return "\n".join(lines).rstrip("\n") + "\n"


def write_side(top: Path, side: str) -> None:
    """Write one side's version of all projects."""
    files = {f"functions/{name}": text for name, text in FUNCTIONS}
    for header, text in BODIES:
        project = f"bodies/{header.partition(':')[0]}"
        files |= {f"{project}/{name}": content for name, content in parts_of(text, "---")}
        files[f"{project}/pytest.ini"] = "[pytest]\n"
    for header, text in files.items():
        name, _, only = header.partition(" ")
        if only in ("", ENDINGS[side]):
            builders.write(top, {name: of_side(text, side)})
    (top / "bodies/linked_module/engine.py").symlink_to("common/core.py")
    with contextlib.closing(sqlite3.connect(top / "functions/cases/database/rounds.sqlite")) as database:
        database.execute("create table settings (rounds integer)")
        database.execute("insert into settings values (?)", [ROUNDS[side]])
        database.commit()
    np.savez(top / "bodies/data_npz/engine/table.npz", rounds=ROUNDS[side])


# --------------------------------------------------------------------------- what is decided on them

Looks: TypeAlias = list[Footprint]  # after the first call, and after all of them


class Decided:
    """What processes of both sides have shown of cases, and what follows of it."""

    def __init__(self, top: Path, cases: Collection[Case]) -> None:
        self.top, self.cases = top, cases
        for side in ENDINGS:
            write_side(top / side, side)
            (top / f"{side}_found").mkdir()
        projects = list(dict.fromkeys(case.project for case in cases))
        self.changes = {project: self._change(project) for project in projects}
        observers = [self._start(side, projects) for side in ENDINGS]
        self.output = "\n".join(observer.communicate()[0] for observer in observers)

    def _start(self, side: str, projects: Iterable[str]) -> subprocess.Popen[str]:
        tops = [self.top / side / project for project in projects]
        command: list[str | Path] = [sys.executable, SAMPLES / "observe.py", self.top / f"{side}_found", *tops]
        names = " ".join(f"test_{case.name}" for case in self.cases)
        variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "", "PYTEST_ADDOPTS": ""}
        variables["OBSERVED"] = names
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            env=variables,
        )

    def _change(self, project: str) -> tuple[Sides, Change]:
        base, head = (self.top / side / project for side in ENDINGS)
        names = {str(path.relative_to(top)) for top in (base, head) for path in top.rglob("*") if path.is_file()}
        changed = tuple(sorted(name for name in names if contents(base / name) != contents(head / name)))
        side = replace(builders.project(head).side("HEAD", sys.executable, (), (head,)), tree=head)
        sides = Sides(replace(side, label="commit 1", homes=(base,), tree=base), side, (), changed, ())
        return sides, Change(sides)

    def looks(self, case: Case) -> tuple[Looks, Looks]:
        """Return what processes of base and of head have run and read in a test."""
        found = [self.top / f"{side}_found" / f"test_{case.name}.json" for side in ENDINGS]
        assert all(path.exists() for path in found), self.output
        base, head = ([Footprint(**look) for look in json.loads(path.read_bytes())] for path in found)
        return base, head

    def reached(self, case: Case) -> tuple[Reached, bool]:
        """Return what a test has reached, and whether its sides differ otherwise, as the run does."""
        sides, change = self.changes[case.project]
        base, head = self.looks(case)
        reached = Reached()
        for both in zip(base, head, strict=True):
            reached |= change.reached(compare_reads(sides, both[0].files, both[1].files), *both)
        return reached, not change.is_empty and change.is_uneven(base[:1], head[:1])


def contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Decided:
    """Return what is decided of the cases that this session runs."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    cases = [each["case"] for each in parameters if isinstance(each.get("case"), Case)]
    return Decided(tmp_path_factory.mktemp("reach").resolve(), cases or CASES)


def test_the_page_says_how_many_cases_there_are() -> None:
    """And of each kind."""
    kinds = Counter(case.expected for case in CASES)
    said = f"The {len(CASES)} cases in `tests/samples/reach/`"
    said += (
        f" are small projects with a change: {kinds['chosen']} must be measured, {kinds['spared']} need not be, and in"
    )
    said += f" {kinds['limit']} no"
    page = PACKAGE.parent / "docs" / "evidence.md"
    assert said in page.read_text(encoding="utf-8").replace("\n", " ")


@expected_to_be("chosen")
def test_a_test_that_the_change_slows_down_is_measured(decided: Decided, case: Case) -> None:
    """It reaches a part of the change, or one side has met what the other has not."""
    reached, is_uneven = decided.reached(case)
    assert not reached.nothing or is_uneven, case.why


@expected_to_be("spared")
def test_a_test_that_runs_nothing_of_the_change_is_spared(decided: Decided, case: Case) -> None:
    """Neither side executes or reads a part of it, and both meet the same."""
    assert decided.reached(case) == (Reached(), False), case.why


@expected_to_be("limit")
def test_what_no_rule_sees_is_spared(decided: Decided, case: Case) -> None:
    """These limits are known, each with its reason."""
    why = LIMITS[case.name]
    assert decided.reached(case) == (Reached(), False), why


@pytest.mark.parametrize(("name", "is_uneven"), [("wire.py", False), ("suite/work.py", True)])
def test_one_side_alone_reports_its_test(tmp_path: Path, name: str, is_uneven: bool) -> None:
    """Where this package is the code under test, that is no sign of a change; what else one side alone runs is."""
    place = f"pytest_rlperf/{name}"
    base, head = (
        builders.write(tmp_path / side, {place: "def it(): pass\n", "lib.py": f"SIDE = '{side}'\n"}) for side in ENDINGS
    )
    side = replace(builders.project(head).side("HEAD", sys.executable, (), (head,)), tree=head)
    change = Change(Sides(replace(side, homes=(base,), tree=base), side, (), ("lib.py",), ()))
    runs = builders.footprint(functions={str(head / place): [1]})
    assert change.is_uneven([builders.footprint()], [runs]) is is_uneven


def test_what_chance_makes_a_side_meet_is_not_uneven(tmp_path: Path) -> None:
    """After different numbers of calls: only what a side has met in every look, and the other in none, counts."""
    side = builders.project(tmp_path).side("HEAD", sys.executable, (), (tmp_path,))
    change = Change(Sides(side, side, (), (), ()))
    nothing, rare, other = (builders.footprint(modules=names) for names in ([], ["rare"], ["other"]))
    assert change.is_always_uneven([nothing], [rare])
    assert change.is_always_uneven([nothing, other], [rare, rare])
    assert change.is_always_uneven([rare, rare], [nothing, other])
    assert not change.is_always_uneven([nothing, nothing], [rare, nothing])
    assert not change.is_always_uneven([nothing, rare], [rare, rare])


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        pytest.param(
            {
                "rounds.py": "def answer(pipe):\n    pipe.send(1)\n",
                "test_it.py": """
                    import multiprocessing, rounds

                    CONTEXT = multiprocessing.get_context("spawn")
                    HERE, THERE = CONTEXT.Pipe()
                    PROCESS = CONTEXT.Process(target=rounds.answer, args=(THERE,))
                    PROCESS.start()
                    ROUNDS = HERE.recv()
                    PROCESS.join()

                    def test_it(rlperf):
                        rlperf(lambda: sum(range(ROUNDS)))
                    """,
            },
            id="spawned as a module is imported",
        ),
        pytest.param(
            {
                "rounds.py": "raise SystemExit(1)\n",
                "test_it.py": """
                    import ctypes, os, sys
                    import pytest

                    @pytest.fixture
                    def rounds():
                        status = ctypes.CDLL(None).system(f"{sys.executable} rounds.py".encode())
                        return os.waitstatus_to_exitcode(status)

                    def test_it(rlperf, rounds):
                        rlperf(lambda: sum(range(rounds)))
                    """,
            },
            id="started by C in a fixture",
        ),
    ],
)
def test_children_that_no_event_tells_of_count(tmp_path: Path, files: Mapping[str, str]) -> None:
    """Though they have ended before the call: what they ran and read is not known."""
    example = Example(tmp_path, files)
    example.commit()
    example.write({"rounds.py": files["rounds.py"].replace("(1)", "(200)")})
    run = example.pytest("--rlperf-against=HEAD", *builders.TWO_PAIRS)
    assert run.tests["test_it"]["live"]["pairs"], run.reasons


CHOICE = """
import backend

def work():
    return backend.choose()(200)
"""
BACKEND = """
from pathlib import Path

def fast(n):
    return n

def slow(n):
    return sum(range(n))

def choose():
    return fast if (Path(__file__).parent / "fast.cfg").exists() else slow
"""


@pytest.mark.parametrize("change", ["file", pytest.param("link", marks=pytest.mark.slow)])
def test_a_choice_by_what_nobody_reads_is_measured(tmp_path: Path, change: str) -> None:
    """A file that is only asked for is gone, or a link leads elsewhere: one side runs what the other does not."""
    test = "import engine\n\ndef test_it(rlperf):\n    rlperf(engine.work)\n"
    example = Example(tmp_path, {"engine.py": CHOICE, "test_it.py": test, "pytest.ini": "[pytest]\npythonpath = .\n"})
    if change == "file":
        example.write({"backend.py": BACKEND, "fast.cfg": ""})
    else:
        example.write(
            {f"backend_{name}/__init__.py": f"{BACKEND}\ndef choose(): return {name}\n" for name in ("fast", "slow")}
        )
        (example.root / "backend").symlink_to("backend_fast")
    example.commit()
    (example.root / {"file": "fast.cfg", "link": "backend"}[change]).unlink()
    if change == "link":
        (example.root / "backend").symlink_to("backend_slow")
    run = example.pytest("--rlperf-against=HEAD", *builders.TWO_PAIRS)
    assert run.tests["test_it"]["live"] is not None, run.reasons


# --------------------------------------------------------------------------- sources of all kinds

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
PLANTED = "assert 'planted'"


def functions_in(node: ast.AST, prefix: str = "", outermost: str = "") -> Iterator[tuple[str, Function]]:
    """Yield all functions below a node, each with the name of the outermost one around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            name = outermost or f"{prefix}{child.name}"
            yield name, child
            yield from functions_in(child, prefix, name)
        elif isinstance(child, ast.ClassDef):
            yield from functions_in(child, f"{prefix}{child.name}.", outermost)
        else:
            yield from functions_in(child, prefix, outermost)


def parts_changed(base: str, head: str) -> list[ChangedPart]:
    return [part for part, _, _ in changed_parts(source(base), Source(head), "it.py")]


@functools.cache
def source(text: str) -> Source:
    return Source(text)


def check_planted(text: str, number: int, place: random.Random) -> None:
    """Plant a statement into one function of a file, and check that this function is all that differs."""
    tree = ast.parse(text)
    name, function = list(functions_in(tree))[number]
    function.body.insert(place.randint(0, len(function.body)), ast.parse(PLANTED).body[0])
    (part,) = parts_changed(text, ast.unparse(tree))
    assert (part.kind, part.name) == (Kind.FUNCTION, name)
    assert PLANTED in part.now
    assert PLANTED not in part.was


def test_a_statement_planted_into_a_function_that_runs_is_found(decided: Decided) -> None:
    """That function, of all that the cases execute, is then all that differs."""
    functions = [decided.looks(case)[0][1].functions for case in decided.cases]
    executed = {(path, line) for found in functions for path, lines in found.items() for line in lines}
    count = 0
    for path, first in sorted(executed):
        text = Path(path).read_text(encoding="utf-8")
        for number, (_, function) in enumerate(functions_in(ast.parse(text))):
            lines = [function.lineno, *(decorator.lineno for decorator in function.decorator_list)]
            if first == min(lines):
                check_planted(text, number, random.Random(first))
                count += 1
    assert count > len(decided.cases), executed


class Bare(ast.NodeTransformer):
    """Leaves out docstrings, and annotations of functions without decorators, which could read them.

    A function within another evaluates its annotations whenever the other runs.
    """

    _within = 0  # so many functions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._without_annotations(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._without_annotations(node)

    def _without_annotations(self, node: Function) -> ast.AST:
        if not node.decorator_list and not self._within:
            node.returns = None
            for each in ast.walk(node.args):
                if isinstance(each, ast.arg):
                    each.annotation = None
        self._within += 1
        found = self.generic_visit(node)
        self._within -= 1
        return found

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (Function, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Expr(ast.Constant("Another one."))
            if len(node.body) > 1:
                del node.body[0]
        return super().generic_visit(node)


PACKAGE_TEXTS = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]


@pytest.mark.slow
def test_a_statement_planted_into_any_function_is_found() -> None:
    """It is all that differs, in 200 of the package's own functions, drawn from files that are quickly taken apart."""
    drawing = random.Random(1)
    texts = [text for text in PACKAGE_TEXTS if len(text) < 10_000]
    numbered = [(text, number) for text in texts for number, _ in enumerate(functions_in(ast.parse(text)))]
    for text, number in drawing.sample(numbered, 200):
        check_planted(text, number, drawing)


def test_what_nested_blocks_contain_is_in_a_part_once() -> None:
    """As of a chain of branches, each of which lies in the one before."""
    branches = (f"elif n == {number}:\n    rounds = {number}\n" for number in range(1, 12))
    text = f"if n == 0:\n    rounds = 0\n{''.join(branches)}"
    (part,) = Source(text).parts.values()
    assert len(part.runs) < 100 * len(text)


def test_a_long_table_differs_at_its_line() -> None:
    """However often its lines repeat."""
    lines = ["TABLE = ["] + ["    1,", "    2,"] * 5_000 + ["]"]
    other = [*lines[:7_000], "    3,", *lines[7_001:9_000], *lines[9_050:]]
    (part,) = parts_changed("\n".join(lines), "\n".join(other))
    assert part.differs == 7_001


@pytest.mark.slow
def test_what_does_not_run_is_no_change() -> None:
    """Comments, layout, docstrings and annotations of functions, in each of the package's own files."""
    for text in PACKAGE_TEXTS:
        bare = ast.unparse(Bare().visit(ast.parse(text)))
        assert parts_changed(text, bare) == []
