"""``rlperf`` on the command line."""

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

import pytest
from example import USAGE, Example
from rich.cells import cell_len
from wording import Wording

from pytest_rlperf import traces
from pytest_rlperf.cli import main
from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.tree import render_diff, render_tree
from pytest_rlperf.traces.reading import levels

ROOT = Path(__file__).parents[1]
SAMPLES = Path(__file__).parent / "samples"
MS = 1_000_000

Save = Callable[..., str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return what writes trees to a file of our own JSON, and returns its path."""

    def write(name: str, *trees: TimerTree) -> str:
        path = tmp_path / name
        path.write_text(traces.write(trees, "json"), encoding="utf-8")
        return str(path)

    return write


def sac(critic_ms: int, *more: Timing) -> TimerTree:
    backward = Timing("backward", 20, 4 * MS, 100_000, 400_000, 200_000)
    critic = Timing("critic", 10, critic_ms * MS, MS, 2 * MS, MS, (backward,))
    update = Timing("sac_update", 10, (critic_ms + 5) * MS, children=(critic, *more))
    return TimerTree(Timing("learner", 1, 40 * MS, children=(update,)))


def test_a_sample_is_shown(capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """A real file of ML-Agents has its gauges below."""
    assert main(["tree", str(SAMPLES / "mlagents_timers.json")]) == 0
    assert capsys.readouterr().out == wording


def test_extremes_and_modes_have_columns_where_there_are_any(
    save: Save, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """The last entry or the mean of the recent ones is shown beside the sum."""
    last = Timing("wait", 2, 3 * MS, MS, 2 * MS, 2 * MS, mode=Mode.LAST)
    mean = Timing("act", 2_000_000, 4 * MS, mode=Mode.MEAN, recent_ns=(1000, 2000))
    path = save("a.json", TimerTree(Timing("actor", 1, 10 * MS, children=(last, mean))))
    assert main(["tree", path]) == 0
    assert capsys.readouterr().out == wording


def test_several_files_are_told_apart(save: Save, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """Each file's trees stand below its name; one that cannot be read keeps no other from being shown."""
    one, other = save("a.json", sac(10), sac(12)), save("b.json", sac(14))
    assert main(["tree", one, "missing.json", other]) == 4
    out, err = capsys.readouterr()
    assert err == wording
    assert [line for line in out.split("\n") if not line.startswith(" ")] == wording


def test_standard_input_is_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """A dash reads what is piped in; what is wrong with it is said of it."""
    data = (SAMPLES / "mlagents_timers.json").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["tree", "-"]) == 0
    assert "C.step" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data[:60])))
    assert main(["tree", "-"]) == 4
    assert capsys.readouterr().err == wording


def test_one_tree_or_workers_are_chosen(save: Save, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """Trees are chosen by name; workers are trees by themselves when asked for."""
    worker = TimerTree(Timing("worker 3", 1, MS), workers=(TimerTree(Timing("its own", 1, MS)),))
    path = save("a.json", TimerTree(Timing("main", 1, MS), workers=(worker,)), TimerTree(Timing("other", 1, MS)))

    def names(*arguments: str) -> list[str]:
        assert main(["tree", path, *arguments]) == 0
        return re.findall(r"(?m)^(?!name)(\S.*?)  ", capsys.readouterr().out)

    assert names() == ["main", "other"]
    assert names("--workers") == ["main", "worker 3", "its own", "other"]
    assert names("--tree", "other") == ["other"]
    assert main(["tree", path, "--tree", "worker 3"]) == 4
    assert capsys.readouterr().err == wording


def test_file_without_trees_is_an_error(save: Save, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """Nothing to show is said, not shown."""
    assert main(["tree", save("a.json")]) == 4
    assert capsys.readouterr().err == wording


def test_names_cannot_command_a_terminal(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, line breaks, direction marks and lone surrogates are shown, not sent."""
    names = ["\x1b[2J\x9b1m", "a\nb\r\x07", "\u202eabc", "\ud800", "", "é 日本"]
    children = tuple(Timing(name, 1, MS) for name in names)
    path = save("a.json", TimerTree(Timing("root\x1b", 1, 9 * MS, children=children), {"\x1b[1m": Gauge(1, 1, 1, 1)}))
    assert main(["tree", path, "evil\x1b[2J.json"]) == 4
    out, err = capsys.readouterr()
    assert all(line.isprintable() for text in (out, err) for line in text.split("\n"))
    for text in ("\\x1b[2J\\x9b1m ", "a\\nb\\r\\x07 ", "\\u202eabc ", "\\ud800 ", "'' ", "é 日本 "):
        assert f"  {text}" in out
    assert "evil\\x1b[2J.json" in err


def test_diff_goes_path_by_path(save: Save, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """Means are compared where entries are counted; what is in one tree alone is marked, in the place it has."""
    before = sac(10, Timing("alpha", 10, MS), Timing("polyak", 0, 2 * MS))
    after = sac(25, Timing("target_q", 5, 2 * MS), Timing("polyak", 0, 3 * MS), Timing("log", 1, MS))
    a, b = save("a.json", before), save("b.json", after)
    assert main(["tree", "--diff", a, b]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"A  {a}\nB  {b}\n\n")
    assert out == wording


def test_only_trees_are_compared_whatever_they_are_called(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Formats name the same tree unlike each other."""
    mine, theirs = TimerTree(Timing("learner", 1, 4 * MS)), TimerTree(Timing("root", 1, 5 * MS))
    assert main(["tree", "--diff", save("a.json", mine), save("b.json", theirs)]) == 0
    line = capsys.readouterr().out.split("\n")[4]
    assert re.split(" {2,}", line)[:5] == ["learner → root", "1", "1", "4.00 ms", "5.00 ms"]
    assert "+25.0 %" in line


def test_siblings_and_phases_without_time_are_compared() -> None:
    """A sum and a last entry may share a name, the first is compared with the first; without time there is no ratio."""
    one = TimerTree(Timing("root", 1, 9, children=(Timing("a", 1, 2), Timing("a", 1, 4, mode=Mode.LAST))))
    other = TimerTree(Timing("root", 1, 9, children=(Timing("a", 1, 3), Timing("a", 1, 4), Timing("a", 1, 1))))
    text = render_diff([one], [other], width=None)
    assert re.findall(r"[+-]\d+\.\d %|added", text) == ["+0.0 %", "+50.0 %", "+0.0 %", "added"]
    one, other = (TimerTree(Timing("root", 1, ns)) for ns in (0, 5))
    assert render_diff([one], [other], width=None).split("\n")[1].split()[-4:] == ["–", "–", "100", "%"]


def test_diff_needs_both_files(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is compared with a file that cannot be read, and each that cannot is named."""
    assert main(["tree", "--diff", "no.json", save("a.json", sac(1))]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("no.json")) == ("", 1)


WIDE = TimerTree(
    Timing("root", 1, 500 * MS, 1, 500 * MS, children=tuple(Timing("日本語" * 20, 3, MS) for _ in range(300)))
)


def deep(depth: int) -> TimerTree:
    here: tuple[Timing, ...] = ()
    for level in range(depth, 0, -1):
        here = (Timing(f"level {level}", 1, (depth - level) * MS, 1, MS, children=here),)
    return TimerTree(Timing("root", 1, depth * MS, children=here))


@pytest.mark.parametrize("width", [60, 80, 132])
@pytest.mark.parametrize("tree", [WIDE, deep(300), sac(10)], ids=["wide", "deep", "usual"])
def test_tables_fit_the_terminal(tree: TimerTree, width: int) -> None:
    """No line is wider than the terminal, however deep or wide the tree is; names and times are always there."""
    for text in (render_tree(tree, width=width), render_diff([tree], [sac(7)], width=width)):
        table = text.split("\n")
        assert max(map(cell_len, table)) <= width
        assert "name" in table[0]
    assert len(render_tree(tree, width=width).split("\n")) == 2 + sum(1 for _ in tree.root.walk()) + 1
    assert all(re.search(r"\d ?[mµn]?s  ", line) for line in render_tree(tree, width=width).split("\n")[1:-1])


def test_narrow_terminal_shows_what_matters_most() -> None:
    """Extremes go first, then the mean; a depth that leaves no room for the name is a figure."""
    table = render_tree(deep(12), width=60).split("\n")
    assert table[0].split() == ["name", "count", "total", "self", "share"]
    assert table[1].split() == ["root", "1", "12.0", "ms", "1.00", "ms", "100", "%"]
    assert table[6].startswith("          level 5 ")
    assert table[12].startswith("11› level 11 ")
    assert table[13].startswith("12› level 12 ")
    titles = render_diff([deep(12)], [sac(20)], width=60).split("\n")[0]
    assert titles.split("  ")[-3:] == ["mean A", " mean B", " change"]


def test_long_names_end_in_dots() -> None:
    """A name is cut where the figures begin."""
    row = render_tree(WIDE, width=60).split("\n")[2]
    assert row.startswith("  日本語")
    assert "…" in row
    assert row.endswith("0.2 %")


def test_terminal_width_counts_only_on_a_terminal(
    save: Save, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe gets every column, a terminal those that fit."""
    path = save("a.json", sac(10))
    monkeypatch.setenv("COLUMNS", "60")
    main(["tree", path])
    assert capsys.readouterr().out.split("\n")[0].split()[-3:] == ["min", "max", "share"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["tree", path])
    assert capsys.readouterr().out.split("\n")[0].split() == ["name", "count", "total", "self", "mean", "share"]


def test_shown_leaves_ordinary_names_alone() -> None:
    """Letters of any script, blanks and punctuation are as they were."""
    assert shown("aten::to [é] 日本 µ ∥") == "aten::to [é] 日本 µ ∥"


def calls(act: Callable[[TimerTree], object], tree: TimerTree) -> int:
    """Return how many calls of functions ``act`` makes on a tree: its work, whatever else the machine does."""
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act(tree)
    finally:
        sys.setprofile(before)
    return made


def many(rows: int) -> TimerTree:
    """Return a tree of as many rows: ten phases in each part of the work."""
    phases = tuple(Timing(f"phase {number}", 1, MS, MS, MS, MS) for number in range(9))
    parts = tuple(Timing(f"part {number}", 1, 10 * MS, MS, MS, MS, phases) for number in range(rows // 10))
    return TimerTree(Timing("root", 1, rows * MS, children=parts))


WORK: dict[str, Callable[[TimerTree], object]] = {
    "table": partial(render_tree, width=None),
    "table in a terminal": partial(render_tree, width=60),
    "difference": lambda tree: render_diff([tree], [tree], width=100),
    "our JSON": lambda tree: traces.parse(traces.write([tree], "json").encode(), "x"),
    "chrome": lambda tree: traces.write([tree], "chrome"),
}


@pytest.mark.parametrize("name", WORK)
def test_twice_the_rows_are_twice_the_work(name: str) -> None:
    """A row costs the same however many there are; a column once was measured anew for each of its cells."""
    WORK[name](many(10))  # what is loaded and cached once
    few, more, most = (calls(WORK[name], many(rows)) for rows in (200, 400, 800))
    assert most - more < 2.2 * (more - few)


def test_work_that_grows_faster_is_found() -> None:
    """The measure of the test above sees a row that looks at every other."""

    def compare(tree: TimerTree) -> list[int]:
        rows = list(levels(tree.root))
        return [abs(depth) for _ in rows for depth, _ in rows]

    few, more, most = (calls(compare, many(rows)) for rows in (20, 40, 80))
    assert most - more > 3 * (more - few)


@pytest.mark.parametrize("form", traces.WRITERS)
def test_a_file_is_converted(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each format is written to standard output; our own reads back."""
    sample = SAMPLES / "mlagents_timers.json"
    assert main(["tree", str(sample), "--format", form]) == 0
    written = capsys.readouterr().out
    assert written == traces.write(traces.read(sample), form)
    if form == "json":
        assert traces.parse(written.encode(), "x") == traces.read(sample)


def test_files_for_viewers_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Chrome trace is a usage error that names the file and two viewers."""
    (tmp_path / "a.json").write_text(traces.write([sac(10)], "chrome"), encoding="utf-8")
    assert main(["tree", str(tmp_path / "a.json")]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    for value in (str(tmp_path / "a.json"), "https://ui.perfetto.dev", "https://www.speedscope.app"):
        assert value in told.err


def test_several_files_become_one(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """Trees of all files go into one document, or none where one file is missing."""
    one, other = save("a.json", sac(10)), save("b.json", sac(12))
    assert main(["tree", one, other, "--format", "json"]) == 0
    assert traces.parse(capsys.readouterr().out.encode(), "x") == [sac(10), sac(12)]
    assert main(["tree", one, "missing", "--format", "json"]) == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["grow"], "'grow'"),
        (["tree"], "--diff"),
        (["tree", "--diff", "a"], "--diff"),
        (["tree", "a", "--diff", "a", "b"], "--diff"),
        (["tree", "--diff", "a", "b", "--format", "json"], "--diff"),
        (["tree", "a", "--format", "xml"], "'xml'"),
    ],
)
def test_usage_errors(arguments: list[str], value: str, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """A wrong command ends with its reason and with exit code 4, as pytest's does."""
    with pytest.raises(SystemExit, match="4"):
        main(arguments)
    error = capsys.readouterr().err.rpartition(" error: ")[2]
    assert value in error
    assert error.startswith("argument ") or error == wording  # Python's own words are other ones in each version


def test_module_runs_as_a_program(tmp_path: Path, wording: Wording) -> None:
    """The command works where the script is not on the path."""
    example = Example(tmp_path)
    done = example.rlperf("tree", str(SAMPLES / "mlagents_timers.json"), code=0)
    assert (done.out.split()[:4], done.err) == (["name", "count", "total", "self"], "")
    assert example.rlperf("tree", str(SAMPLES), code=USAGE).err == wording


def test_terminal_without_our_letters_gets_escapes(tmp_path: Path) -> None:
    """An encoding that lacks a letter is no reason to fail."""
    sample = str(SAMPLES / "mlagents_timers.json")
    done = Example(tmp_path).rlperf("tree", sample, code=0, PYTHONIOENCODING="ascii")
    assert done.err == ""
    assert r"worker_root \u2225" in done.out


@pytest.mark.parametrize("form", ["text", "json"])
def test_reader_may_leave(form: str) -> None:
    """A pipe that nobody reads any more ends the program quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "pytest_rlperf", "tree", "tests/samples/mlagents_timers.json"]
        done = subprocess.run(
            [*command, "--format", form], stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(wording: Wording) -> None:
    """Output that cannot be written is an error, with no second one as Python ends."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_rlperf", "tree", "tests/samples/mlagents_timers.json"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
    assert done.returncode == USAGE
    assert done.stderr.decode() == wording


def test_a_file_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """A device is read to a bound."""
    monkeypatch.setattr("pytest_rlperf.traces.LARGEST_FILE", 1000)
    monkeypatch.setattr("pytest_rlperf.traces.reading.LARGEST_FILE", 1000)
    assert main(["tree", "/dev/zero"]) == 4
    assert capsys.readouterr().err == wording
    with wording.raises(TimerFileError):
        traces.read("/dev/zero")


def test_the_command_is_named_and_starts_light() -> None:
    """The script that is installed is this one; importing it loads nothing that measuring needs."""
    assert 'rlperf = "pytest_rlperf.cli:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    code = "import pytest_rlperf.cli, sys, json; print(json.dumps(sorted({n.partition('.')[0] for n in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=60, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"pytest", "_pytest", "torch", "scipy", "numpy", "gymnasium", "msgspec", "rich", "jinja2"}
