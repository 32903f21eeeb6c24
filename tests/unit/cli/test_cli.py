"""``rlperf`` on the command line: trees of timers, and what runs have written, read again."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import builders
import pytest
from example import USAGE, Example
from rich.cells import cell_len
from wording import Wording

from pytest_rlperf.baseline.store import Store
from pytest_rlperf.cli import COMMANDS, main
from pytest_rlperf.cli.command import Exit
from pytest_rlperf.model.judged import Fitness, Outcome, Selfcheck, Status
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.model.timing import Gauge, TimerTree, Timing
from pytest_rlperf.report.run_json import selfcheck_document, written
from pytest_rlperf.report.summary import Summary
from pytest_rlperf.report.tables import render_tree
from pytest_rlperf.report.terminal import render_summary
from pytest_rlperf.timers import files

ROOT = Path(__file__).parents[3]
SAMPLE = "tests/samples/mlagents_timers.json"
MS = 1_000_000
THEN = Provenance("a" * 40, "b" * 40, dirty=False, created="2026-01-02T03:04:05+00:00", packages={"numpy": "2.1"})
UPDATE, DRAW = "tests/test_sac.py::test_update[256]", "tests/test_replay.py::test_sample"

Save = Callable[..., str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return what writes trees, or outcomes of a run, to a file, and returns its path."""

    def write(name: str, *parts: TimerTree | Outcome) -> str:
        trees = [part for part in parts if isinstance(part, TimerTree)]
        tests = {part.result.nodeid: part for part in parts if isinstance(part, Outcome)}
        run = partial(builders.run_document, builders.MACHINE, tests, ["a baseline"], ["a note"], provenance=THEN)
        path = tmp_path / name
        path.write_text(written(run()) if name.startswith("run") else files.write(trees, "json"), encoding="utf-8")
        return str(path)

    return write


def sac(critic_ms: int) -> TimerTree:
    backward = Timing("backward", 20, 4 * MS, 100_000, 400_000, 200_000)
    critic = Timing("critic", 10, critic_ms * MS, MS, 2 * MS, MS, (backward,))
    update = Timing("sac_update", 10, (critic_ms + 5) * MS, children=(critic,))
    return TimerTree(Timing("learner", 1, 40 * MS, children=(update,)))


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pytest_rlperf", *arguments]
    options = {"stdout": subprocess.PIPE, **options}
    return subprocess.run(command, stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False, **options)


# --------------------------------------------------------------------------- trees


def test_trees_are_shown_with_the_columns_they_fill(capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """A real file of ML-Agents has gauges below."""
    assert main(["tree", str(ROOT / SAMPLE)]) == 0
    assert capsys.readouterr().out == wording


def test_several_files_are_told_apart(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Each one's trees stand below its name; one document has all, and an unreadable one is an error of the whole."""
    one, other = save("a.json", sac(10), sac(12)), save("b.json", sac(14))
    assert main(["tree", one, other]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"(?m)^(/.*|learner)", out) == [f"{one}:", "learner", "learner", f"{other}:", "learner"]
    assert main(["tree", one, other, "--format", "json"]) == 0
    assert files.parse(capsys.readouterr().out.encode(), "x") == [sac(10), sac(12), sac(14)]
    assert main(["tree", one, "missing", "--format", "json"]) == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("form", files.WRITERS)
def test_a_file_is_converted(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each format is written to standard output; our own reads back."""
    assert main(["tree", str(ROOT / SAMPLE), "--format", form]) == 0
    out = capsys.readouterr().out
    assert out == files.write(files.read(ROOT / SAMPLE), form)
    if form == "json":
        assert files.parse(out.encode(), "x") == files.read(ROOT / SAMPLE)


def test_names_cannot_command_a_terminal(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, line breaks, direction marks and lone surrogates are shown, not sent."""
    names = ["\x1b[2J\x9b1m", "a\nb\r\x07", "\u202eabc", "\ud800", "", "é 日本"]
    children = tuple(Timing(name, 1, MS) for name in names)
    path = save("a.json", TimerTree(Timing("root\x1b", 1, 9 * MS, children=children), {"\x1b[1m": Gauge(1, 1, 1, 1)}))
    assert main(["tree", path]) == 0
    out = capsys.readouterr().out
    assert main(["tree", path, "evil\x1b[2J.json"]) == 4
    err = capsys.readouterr().err
    assert all(line.isprintable() for text in (out, err) for line in text.split("\n"))
    for text in ("\\x1b[2J\\x9b1m ", "a\\nb\\r\\x07 ", "\\u202eabc ", "\\ud800 ", "'' ", "é 日本 "):
        assert f"  {text}" in out
    assert "evil\\x1b[2J.json" in err


WIDE = TimerTree(
    Timing("root", 1, 500 * MS, 1, 500 * MS, children=tuple(Timing("日本語" * 20, 3, MS) for _ in range(300)))
)


def deep(depth: int) -> TimerTree:
    here: tuple[Timing, ...] = ()
    for level in range(depth, 0, -1):
        here = (Timing(f"level {level}", 1, (depth - level) * MS, 1, MS, children=here),)
    return TimerTree(Timing("root", 1, depth * MS, children=here))


@pytest.mark.parametrize("width", [60, 132])
@pytest.mark.parametrize("tree", [WIDE, deep(300), sac(10)], ids=["wide", "deep", "usual"])
def test_tables_fit_the_terminal(tree: TimerTree, width: int) -> None:
    """No line is wider than the terminal, however deep or wide the tree is; names and times are always there."""
    head, *rows, _ = render_tree(tree, width=width).split("\n")
    assert "name" in head
    assert max(map(cell_len, (head, *rows))) <= width
    # A long name goes on below its row, where there is no time.
    assert sum(1 for row in rows if re.search(r"\d ?[mµn]?s  ", row)) == 1 + sum(1 for _ in tree.root.walk())


def test_narrow_terminal_shows_what_matters_most(
    save: Save, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Extremes go first, then the mean; a depth that leaves no room is cut, a name is folded. A pipe gets all."""
    table = render_tree(deep(12), width=60).split("\n")
    assert table[0].split() == ["name", "count", "total", "self", "mean", "share"]
    assert table[6].startswith("          level 5 ")
    assert table[13].startswith("         level 12 ")
    monkeypatch.setenv("COLUMNS", "60")
    main(["tree", save("a.json", sac(10))])
    assert capsys.readouterr().out.split("\n")[0].split()[-3:] == ["min", "max", "share"]


# --------------------------------------------------------------------------- runs, baselines, self-checks

SLOWER = builders.compared(UPDATE, Status.SLOWER, 1.2, 1.2e-3, message="because")
SAME = builders.compared(DRAW, call_s=12e-6, message="because")


def stored(directory: Path) -> Store:
    store = Store(directory, "default", builders.MACHINE)
    results = (SLOWER.result, builders.result(DRAW, 12e-6, component="replay_sample"))
    store.write("then", THEN, {one.nodeid: builders.stored(one) for one in results})
    return store


def test_a_run_is_shown_as_pytest_showed_it(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """The same table, phases and lines, as text or as GitHub's summary; exit code 1 where something is SLOWER."""
    path = save("run.json", SLOWER, SAME)
    summary = Summary(["Made Up 9000, 4 cores, Linux x86_64, CPython 3.11"], ["a baseline"], ["a note"], ())
    for flags, verbose in (([], False), (["-v"], True)):
        assert main(["show", path, *flags]) == Exit.SLOWER
        expected = render_summary([SLOWER, SAME], summary, width=120, color=False, verbose=verbose)
        assert capsys.readouterr().out == expected
    assert main(["show", path, "--format=github"]) == Exit.SLOWER
    assert capsys.readouterr().out.startswith("## ❌ 1 of 2 ")
    assert main(["show", path, "--format=markdown"]) == Exit.SLOWER
    header, rule, *rows = capsys.readouterr().out.splitlines()
    assert ("verdict" in header, set(rule), len(rows)) == (True, set("|:- "), 2)


def test_a_page_is_named_in_place_of_the_table(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line has the page's name; another format is printed as it is, for the program that reads it."""
    pytest.importorskip("jinja2")
    path, page = save("run.json", SLOWER, SAME), tmp_path / "page.html"
    assert main(["show", path, "--html", str(page)]) == Exit.SLOWER
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert "test_update" in page.read_text(encoding="utf-8")
    assert main(["show", path, "--format=pytest-benchmark", "--html", str(page)]) == Exit.SLOWER
    assert len(json.loads(capsys.readouterr().out)["benchmarks"]) == 2


@pytest.mark.parametrize(
    ("patterns", "code"),
    [
        (["sample"], Exit.NOTHING_SLOWER),
        (["*replay*"], Exit.NOTHING_SLOWER),
        (["tests/test_replay.py::test_sampl?"], Exit.NOTHING_SLOWER),
        (["*update[256]"], Exit.SLOWER),
        (["sample", "[256]"], Exit.SLOWER),
        (["-v", "*update[256]"], Exit.SLOWER),
        (["nope"], Exit.USAGE),
    ],
)
def test_chosen_tests_decide(patterns: list[str], code: Exit, save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """A part of an id or a pattern chooses, brackets as they are; the exit code is theirs."""
    path = save("run.json", SLOWER, SAME)
    assert main(["show", path, *patterns]) == code
    out, err = capsys.readouterr()
    assert ("test_update" in out) == (code == Exit.SLOWER)
    assert ("nope" in err) == (code == Exit.USAGE)


def test_accepted_and_ungated_slowness_is_no_failure(save: Save) -> None:
    """The exit code says what the run's own tests said; without any, that nothing was measured."""
    for changes in ({"accepted": True}, {"gated": False}):
        assert main(["show", save("run.json", builders.compared(UPDATE, Status.SLOWER, 1.2, **changes))]) == 0
    assert main(["show", save("run.json")]) == Exit.NOTHING_MEASURED


def test_a_baseline_and_a_selfcheck_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, day and commit, by the file or the directory that it is in; a self-check has a table of its own."""
    store = stored(tmp_path / "baselines")
    assert main(["show", str(tmp_path / "baselines")]) == Exit.NOTHING_SLOWER
    out = capsys.readouterr().out
    assert out.startswith(f"{store.path}:\n")
    rows = [line.split() for line in out.splitlines() if line and "─" not in line]
    assert rows[1:4] == [
        ["test", "median", "items/s", "workers", "stored"],
        ["test_sample", "12.0", "µs", "83.3k", "5", "2026-01-02,", "commit", "aaaaaaaaaaaa"],
        ["test_update[256]", "1.20", "ms", "213k", "5", "2026-01-02,", "commit", "aaaaaaaaaaaa"],
    ]
    assert main(["show", str(store.path), "--format=github"]) == Exit.USAGE
    fitness = Fitness(0.03, is_fit=True, false_alarms=0)
    document = selfcheck_document(builders.MACHINE, {UPDATE: Selfcheck(SLOWER.result, ())}, fitness)
    path = tmp_path / "self.json"
    path.write_text(written(document), encoding="utf-8")
    assert main(["show", str(path)]) == Exit.NOTHING_SLOWER
    assert "Made Up 9000" in capsys.readouterr().out


# --------------------------------------------------------------------------- what cannot be read or written


def test_standard_input_is_a_file(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash reads what is piped in, and is a usage error where that is nothing of ours."""
    run = Path(save("run.json", SAME)).read_bytes()
    for command, data, code in (
        ("show", run, Exit.NOTHING_SLOWER),
        ("show", b"{}", Exit.USAGE),
        ("tree", (ROOT / SAMPLE).read_bytes(), Exit.NOTHING_SLOWER),
        ("tree", run[:60], Exit.USAGE),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main([command, "-"]) == code


@pytest.mark.parametrize("command", ["show", "tree"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zero", "1000"),
        ("x" * 300, "xxx"),
        ("loop", "loop"),
        ("nul\0", "nul"),
        ("empty.json", "empty.json"),
        ("none", "none"),
        ("newer.json", "7"),
    ],
)
def test_a_path_that_is_no_file_ends_no_command(
    command: str, name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It is a usage error in a sentence: a device without an end is read to a bound."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_rlperf.cli.command.LARGEST_BYTES", 1000)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "none").mkdir()
    (tmp_path / "empty.json").touch()
    (tmp_path / "newer.json").write_text('{"schema": 7, "kind": "run"}', encoding="utf-8")
    assert main([command, f"{tmp_path}/{name}"]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rlperf: error: ")
    assert value in err or command == "tree"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["grow"], "'grow'"),
        (["tree"], "FILE"),
        (["tree", "a", "--format", "xml"], "'xml'"),
        (["tree", "a", "-n"], "-n"),
    ],
)
def test_usage_errors(arguments: list[str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command ends with its reason and with exit code 4, as pytest's does."""
    with pytest.raises(SystemExit, match="4"):
        main(arguments)
    assert value in capsys.readouterr().err


def test_without_arguments_it_helps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command, where files come from and the exit codes; but nothing was done, so it is no success."""
    monkeypatch.setattr("sys.argv", ["rlperf"])
    assert main() == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    for text in (*(command.name for command in COMMANDS), "--rlperf-json=run.json", "exit codes: 0 "):
        assert text in err


# --------------------------------------------------------------------------- as a program


def test_module_runs_as_a_program(tmp_path: Path) -> None:
    """Where the script is not on the path, and where the terminal's encoding lacks a letter."""
    done = Example(tmp_path).rlperf("tree", str(ROOT / SAMPLE), code=0, PYTHONIOENCODING="ascii")
    assert (done.out.split()[:4], done.err) == (["name", "count", "total", "self"], "")
    assert "worker_root |" in done.out


def test_reader_may_leave() -> None:
    """A pipe that nobody reads any more ends the program quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    done = program("tree", SAMPLE, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(wording: Wording) -> None:
    """Output that cannot be written is an error, with no second one as Python ends."""
    with Path("/dev/full").open("wb") as full:
        done = program("tree", SAMPLE, stdout=full)
    assert done.returncode == USAGE
    assert done.stderr.decode() == wording


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_complete_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The documented command of shtab yields a script that has every command and its options."""
    from shtab.main import main as complete

    complete([f"--shell={shell}", "--prog=rlperf", "pytest_rlperf.cli.make_parser"])  # type: ignore[no-untyped-call]
    script = capsys.readouterr().out
    assert [one.name for one in COMMANDS if one.name not in script] == []


def test_commands_load_no_pytest(save: Save) -> None:
    """The script that is installed is this one; it loads nothing that only measuring needs, and less at its start."""
    assert 'rlperf = "pytest_rlperf.cli:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    code = (
        "import sys, json; from pytest_rlperf.cli import main\n"
        "loaded = lambda: print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
        f"loaded(); main(['show', {save('run.json', SAME)!r}]); loaded()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    first, *_, last = map(set, map(json.loads, filter(lambda line: line.startswith("["), done.stdout.splitlines())))
    assert not last & {"pytest", "_pytest", "torch", "gymnasium", "scipy", "numpy"}
    assert not first & {"rich", "jinja2"}
