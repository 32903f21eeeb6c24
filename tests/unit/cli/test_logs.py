"""Texts from outside in terminals and CI logs: what shows them goes through one function, and nothing in them acts."""

from __future__ import annotations

import ast
import functools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import git
from logs import acting

import pytest_rlperf
from pytest_rlperf import cli
from pytest_rlperf.cli import main
from pytest_rlperf.errors import for_log

PACKAGE = Path(pytest_rlperf.__file__).parent
HOSTILE = (
    "::error title=x::hacked",
    "##[error]hacked",
    "a ##vso[task.setvariable variable=x]hacked",
    "a\n::set-env name=x::hacked\nb",
    "a\r::stop-commands::hacked",
    "a\n \u00a0::add-mask::hacked",
    "\x1b[2K\x1b]0;hacked\x07\x9b31m",
    "\x1b[31m::error::hacked",
    "a\u2028::error::hacked \u202e dekcah",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_a_text_acts(text: str) -> None:
    """Neither as it is nor with colours of ours beside it, which stay; words can still be read."""
    assert acting(text)
    shown = for_log(text)
    assert acting(shown) == []
    assert "hacked" in shown
    assert shown.count("\n") == text.count("\n")
    assert for_log(shown) == shown
    styled = for_log(f"\x1b[1m{for_log(text)}\x1b[0m", styled=True)
    assert styled.startswith("\x1b[1m")
    assert acting(styled.replace("\x1b[1m", "").replace("\x1b[0m", "")) == []


def test_a_plain_text_stays() -> None:
    """Names of tests, tables, addresses and indented lines are as they were."""
    text = "tests/test_a.py::test_b[x]  ▲ +4.2 %\n  see https://example.org/#here\n\n## a heading [1]\nC++::f ✓"
    assert for_log(text) == text


# --------------------------------------------------------------------------- files that are read


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all strings, keys too, in JSON."""
    if isinstance(document, str):
        yield path
    for key, value in document.items() if isinstance(document, dict) else ():
        yield (*path, f"key {key}")
        yield from places(value, (*path, key))
    for index, value in enumerate(document) if isinstance(document, list) else ():
        yield from places(value, (*path, index))


def changed(document: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return the document with another text in one place."""
    if not path:
        return text
    first, rest = path[0], path[1:]
    if isinstance(document, list):
        return [changed(value, rest, text) if index == first else value for index, value in enumerate(document)]
    if isinstance(first, str) and first.startswith("key ") and not rest:
        return {text if f"key {name}" == first else name: value for name, value in document.items()}
    return {name: changed(value, rest, text) if name == first else value for name, value in document.items()}


SAMPLES = Path(__file__).parents[2] / "samples"
COMMANDS = {
    "run.json": ("show", "show -v", "show --format=github", "show --format=markdown", "merge"),
    "baseline.json": ("show",),
    "mlagents_timers.json": ("tree", "tree --format=json", "tree --format=chrome"),
}


@pytest.fixture
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all commands of a test share the parser, which takes longer to make than most commands take."""
    monkeypatch.setattr(cli, "make_parser", functools.cache(cli.make_parser))


# The slow cases have every place, the others each 8th or, of small files, each 2nd, which leaves out none of the texts.
@pytest.mark.usefixtures("one_parser")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name, commands in COMMANDS.items() for command in commands]
)
def test_no_string_of_a_file_acts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: str, step: int
) -> None:
    """Whichever string of a run, a baseline or a timer tree is hostile, and whether or not it can still be read."""
    document = json.loads((SAMPLES / name).read_bytes())
    if command == "merge":
        document["shard"] = {"number": 1, "count": 1, "collected": [*document["tests"]], "common": {"tests": "all"}}
    path = tmp_path / "file.json"
    found, codes = [], Counter[int]()
    for number, place in list(enumerate(places(document)))[:: step if name == "run.json" else min(step, 2)]:
        text = HOSTILE[number % len(HOSTILE)]
        path.write_text(json.dumps(changed(document, place, text)), encoding="utf-8")
        codes[main([*command.split(), str(path)])] += 1
        out, err = capsys.readouterr()
        found += [(place, line) for line in acting(out) + acting(err)]
    assert found == []
    assert codes[4]
    assert codes.total() > codes[4] > 3


@pytest.fixture(scope="module")
def with_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository with one version of a baseline: `rlperf history` reads all that there are."""
    top = tmp_path_factory.mktemp("with-history")
    git(top, "init", "--quiet")
    (top / "baselines/default").mkdir(parents=True)
    shutil.copy(SAMPLES / "baseline.json", top / "baselines/default/linux-00000000.json")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message", "store")
    return top


@pytest.mark.usefixtures("one_parser")
@pytest.mark.parametrize("text", HOSTILE)
def test_no_argument_of_a_command_acts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, with_history: Path, text: str
) -> None:
    """A file, a test, a choice, an option and a command that are not there are named in errors that do nothing."""
    monkeypatch.chdir(with_history)
    commands = [[text], ["show", text], ["show", f"{text}.json"], ["show", "--format", text], ["show", f"--{text}"]]
    commands += [[name, text] for name in ("tree", "merge", "history")]
    for command in commands:
        try:
            code = main(command)
        except SystemExit as end:  # argparse's way
            code = int(str(end.code))
        assert code == 4
    out, err = capsys.readouterr()
    assert "hacked" in err
    assert acting(out) + acting(err) == []


def test_json_for_another_program_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a log would obey is written another way in JSON, and read back as it was."""
    path = tmp_path / "timers.json"
    name = "##[error]hacked"
    path.write_text(json.dumps({"name": name, "total": 1.0, "count": 1, "self": 1.0}), encoding="utf-8")
    assert main(["tree", str(path), "--format=chrome"]) == 0
    out = capsys.readouterr().out
    assert acting(out) == []
    assert name in str(json.loads(out))


# --------------------------------------------------------------------------- what writes


# What may write without calling for_log beside it, and why.
EXEMPT = {
    "report/terminal.py: Screen.write": "it stands for the file that pytest writes everything to",
    "report/terminal.py: Screen.show": "its caller has made the text safe",
    "run/forwarding.py: PlainRepr.toterminal": "made safe where the text was given",
    "run/forwarding.py: ReportForwarder._warn": "a warning of the test's code, shown as pytest shows it without us",
    "spawn/preload.py: _run_site_lines": "a process of the run, whose output is a file of its scratch",
    "compat/torchrl.py: _show": "a program's own timers, printed by that program as with TorchRL",
}


def writing(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, bool]]:
    """Yield functions that write to a terminal or make errors that pytest prints, and whether they call for_log."""
    for node in ast.iter_child_nodes(tree):
        name = f"{scope}.{node.name}".lstrip(".") if isinstance(node, ast.ClassDef | ast.FunctionDef) else scope
        yield from writing(node, name)
        if isinstance(node, ast.FunctionDef):
            functions = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
            called = {ast.unparse(each) for each in functions if _MAY_WRITE.search(last_name(each))}
            if any(_WRITES.search(function) for function in called):
                yield name, "for_log" in called


def last_name(function: ast.expr) -> str:
    """Return the name by which a function is called, or the attribute; texts of all calls would take long."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


_NAMES = r"print|write_line|line|write|UsageError|exit|\w*Warning"  # of all that _WRITES finds
_MAY_WRITE = re.compile(rf"^({_NAMES}|for_log)$")
_MAY_BE_CALLED = re.compile(rf"\b({_NAMES})\s*\(")
_WRITES = re.compile(
    r"^print$|\.write_line$|^tw\.line$|(reporter|stdout|stderr|_file)\.write$|\.UsageError$|Warning$|^self\.exit$"
)


def test_what_writes_makes_its_text_safe() -> None:
    """Every function that writes to a terminal or a log, or makes an error that pytest prints, calls for_log."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name, is_safe in writing(ast.parse(text)) if _MAY_BE_CALLED.search(text) else ():
            found[f"{path.relative_to(PACKAGE).as_posix()}: {name}"] = is_safe
    assert {name for name, is_safe in found.items() if not is_safe} == EXEMPT.keys()
    assert {"cli/command.py: print_text", "cli/command.py: complain", "options.py: usage_error"} <= found.keys()
