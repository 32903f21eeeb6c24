"""``rlperf show`` and ``machine``: what runs have written, read again."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import builders
import pytest
from wording import Wording

from pytest_rlperf.baseline.machine import this_machine
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.cli import COMMANDS, main
from pytest_rlperf.cli.command import Exit
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.measured import Phase, Result
from pytest_rlperf.model.selfcheck import Fitness, Selfcheck
from pytest_rlperf.model.stored import Machine, Provenance
from pytest_rlperf.report.run_json import selfcheck_document, written
from pytest_rlperf.report.summary import Summary
from pytest_rlperf.report.terminal import render_summary
from pytest_rlperf.units import round_significant

HERE = builders.MACHINE
THEN = Provenance("a" * 40, "b" * 40, dirty=False, created="2026-01-02T03:04:05+00:00", packages={"numpy": "2.1"})
NOW = Provenance("c" * 40, "d" * 40, dirty=False, created="2026-02-03T04:05:06+00:00", packages={"numpy": "2.2"})
UPDATE, SAMPLE = "tests/test_sac.py::test_update[256]", "tests/test_replay.py::test_sample"

Save = Callable[..., str]


def result(key: str, call_s: float, spread: float = 0.02, workers: int = 5, **changes: Any) -> Result:
    """Return a result with a median of ``call_s``, workers as far apart as ``spread``, and two phases."""
    figures = [round_significant(call_s * (1 + spread * (index / (workers - 1) - 0.5))) for index in range(workers)]
    records = tuple(
        builders.worker(worker_s, round_significant(worker_s / 1e-3), 1.0, items_per_call=256.0) for worker_s in figures
    )
    own_s = min(0.4e-3, round_significant(call_s / 2))
    critic_s = round_significant(call_s - own_s)
    phases = (Phase("update", 1.0, call_s, own_s, "host"), Phase("update/critic", 2.0, critic_s, critic_s, "host"))
    fields: dict[str, Any] = {
        "component": "sac_update",
        "items": 256.0,
        "workers": records,
        "phases": phases,
        "traced_call_s": call_s,
    }
    return builders.result(key, **(fields | changes))


def outcome(found: Result, status: Status = Status.SAME, ratio: float | None = None, **changes: Any) -> Outcome:
    """Return a result's outcome, its verdict's fields in ``changes``."""
    before = None if ratio is None else result(found.nodeid, found.call_s / ratio)
    return builders.outcome(found, builders.verdict(status, ratio, message="because", **changes), before)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return what writes a run of outcomes to a file, and returns its path."""

    def write(name: str, *outcomes: Outcome, machine: Machine = HERE, **more: Any) -> str:
        more = {"provenance": NOW, **more}
        tests = {one.result.nodeid: one for one in outcomes}
        path = tmp_path / name
        path.write_text(
            written(builders.run_document(machine, tests, ["a baseline"], ["a note"], **more)), encoding="utf-8"
        )
        return str(path)

    return write


def stored(directory: Path, *results: Result, machine: Machine = HERE) -> Store:
    store = Store(directory, "default", machine)
    store.write("then", THEN, {one.nodeid: builders.stored(one) for one in results})
    return store


def test_a_run_is_shown_as_pytest_showed_it(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """The same table, phases and lines, and exit code 1 where something is SLOWER."""
    outcomes = [outcome(result(UPDATE, 1.2e-3), Status.SLOWER, 1.2), outcome(result(SAMPLE, 12e-6))]
    path = save("run.json", *outcomes)
    summary = Summary(["Made Up 9000, 4 cores, Linux x86_64, CPython 3.11"], ["a baseline"], ["a note"], ())
    for flags, verbose in (([], False), (["-v"], True)):
        assert main(["show", path, *flags]) == Exit.SLOWER
        expected = render_summary(outcomes, summary, width=120, color=False, verbose=verbose)
        assert capsys.readouterr().out == expected


def test_chosen_tests_are_shown_and_decide(save: Save, capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    """-k takes a part of an id or a pattern, brackets as they are; the exit code is theirs."""
    path = save("run.json", outcome(result(UPDATE, 1.2e-3), Status.SLOWER, 1.2), outcome(result(SAMPLE, 12e-6)))
    for pattern in ("sample", "*replay*", "tests/test_replay.py::test_sampl?"):
        assert main(["show", path, "-k", pattern]) == Exit.NOTHING_SLOWER
        assert "test_update" not in capsys.readouterr().out
    assert main(["show", path, "-k", "*update[256]"]) == Exit.SLOWER
    assert main(["show", path, "-k", "sample", "-k", "[256]"]) == Exit.SLOWER
    assert main(["show", path, "-k", "nope"]) == Exit.USAGE
    assert capsys.readouterr().err == wording


def test_accepted_and_ungated_slowness_is_no_failure(save: Save) -> None:
    """The exit code says what the run's own tests said."""
    slower = result(UPDATE, 1.2e-3)
    assert main(["show", save("a.json", outcome(slower, Status.SLOWER, 1.2, accepted=True))]) == Exit.NOTHING_SLOWER
    assert main(["show", save("b.json", outcome(slower, Status.SLOWER, 1.2, gated=False))]) == Exit.NOTHING_SLOWER
    assert main(["show", save("c.json")]) == Exit.NOTHING_MEASURED


def test_a_baseline_is_shown_with_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, day and commit, why they were accepted, and phases with -v."""
    store = stored(tmp_path, result(UPDATE, 1.2e-3), result(SAMPLE, 12e-6, phases=()))
    assert main(["show", str(store.path), "-v"]) == Exit.NOTHING_SLOWER
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line and "─" not in line] == [
        ["test", "median", "items/s", "workers", "stored"],
        ["test_sample", "12.0", "µs", "21.3M", "5", "2026-01-02,", "commit", "aaaaaaaaaaaa"],
        ["test_update[256]", "1.20", "ms", "213k", "5", "2026-01-02,", "commit", "aaaaaaaaaaaa"],
        ["name", "count", "total", "self", "mean", "share"],
        [UPDATE, "1", "1.20", "ms", "0", "ns", "1.20", "ms", "100", "%"],
        ["update", "1", "1.20", "ms", "400", "µs", "1.20", "ms", "100", "%"],
        ["critic", "2", "800", "µs", "800", "µs", "400", "µs", "66.7", "%"],
        ["machine", "Made", "Up", "9000,", "4", "cores,", "Linux", "x86_64,", "CPython", "3.11"],
    ]


def test_a_selfcheck_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own table, from its own kind of file."""
    fitness = Fitness(0.03, is_fit=True, false_alarms=0)
    document = selfcheck_document(HERE, {UPDATE: Selfcheck(result(UPDATE, 1e-3), ())}, fitness)
    path = tmp_path / "self.json"
    path.write_text(written(document), encoding="utf-8")
    assert main(["show", str(path)]) == Exit.NOTHING_SLOWER
    out = capsys.readouterr().out
    assert "5 %" in out
    assert "Made Up 9000" in out


def test_standard_input_is_a_file(
    save: Save, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """A dash reads what is piped in, and says so where it is no run."""
    data = Path(save("run.json", outcome(result(SAMPLE, 12e-6)))).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["show", "-"]) == Exit.NOTHING_SLOWER
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert main(["show", "-"]) == Exit.USAGE
    assert capsys.readouterr().err == wording


@pytest.mark.parametrize("place", ["", "default"])
def test_a_directory_stands_for_the_one_file_in_it(
    place: str, save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There or one directory deeper, as baselines lie; it is said which it is, and what is no run is passed over."""
    store = stored(tmp_path / "baselines", result(SAMPLE, 12e-6))
    (tmp_path / "baselines" / "settings.json").write_text("{}", encoding="utf-8")
    directory = str(tmp_path / "baselines" / place)
    assert main(["show", str(store.path)]) == Exit.NOTHING_SLOWER
    table = capsys.readouterr().out
    assert main(["show", directory]) == Exit.NOTHING_SLOWER
    assert capsys.readouterr().out == f"{store.path}:\n\n{table}"
    assert main(["show", directory, save("run.json", outcome(result(SAMPLE, 12e-6)))]) == Exit.NOTHING_SLOWER
    assert capsys.readouterr().out.startswith(f"A  {store.path}\n")


def test_a_directory_of_several_files_or_none_is_a_usage_error(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Those that can be named are listed; where there is none, what would write one."""
    for found in ("show", "machine"):
        assert main([found, str(tmp_path)]) == Exit.USAGE
    store, run = stored(tmp_path, result(SAMPLE, 12e-6)), save("run.json", outcome(result(SAMPLE, 12e-6)))
    assert main(["show", run, str(tmp_path)]) == Exit.USAGE
    assert capsys.readouterr().err == wording
    store.path.unlink()
    Path(run).write_text("{", encoding="utf-8")
    assert main(["show", str(tmp_path)]) == Exit.USAGE


def test_a_directory_is_searched_for_files_alone(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe, a device, a directory of such a name are passed over; what links lead to twice is one file."""
    save("run.json", outcome(result(SAMPLE, 12e-6)))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "nowhere.json").symlink_to("nowhere")
    (tmp_path / "directory.json").mkdir()
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "a.json").symlink_to("run.json")
    assert main(["show", str(tmp_path)]) == Exit.NOTHING_SLOWER
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'a.json'}:\n\n")


@pytest.mark.parametrize("command", ["show", "machine"])
@pytest.mark.parametrize("name", ["zero", "x" * 300, "loop", "nul\0"])
def test_a_path_that_is_no_file_ends_no_command(
    command: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    """It is refused: a device without an end is read to a bound."""
    monkeypatch.setattr("pytest_rlperf.cli.command.LARGEST_BYTES", 1000)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    path = f"{tmp_path}/{name}"
    assert main([command, path]) == Exit.USAGE
    assert capsys.readouterr().err == wording


def test_what_is_written_into_a_pipe_is_read(save: Save, capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell's <(...) does, which is written into while it is read."""
    data = Path(save("run.json", outcome(result(SAMPLE, 12e-6)))).read_bytes()
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)

    writer = Thread(target=write)
    writer.start()
    assert main(["show", f"/dev/fd/{reading}"]) == Exit.NOTHING_SLOWER
    writer.join()
    os.close(reading)
    assert "test_sample" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "machine"])
def test_a_newer_file_is_a_usage_error(
    command: str, save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """It says which version it has, and what to do; no traceback."""
    path = Path(save("run.json"))
    path.write_text(path.read_text(encoding="utf-8").replace('"schema": 1', '"schema": 7'), encoding="utf-8")
    assert main([command, str(path)]) == Exit.USAGE
    assert capsys.readouterr().err == wording


def test_a_run_is_shown_as_markdown(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Markdown is the table, GitHub's the whole job summary; a baseline has no verdicts to show."""
    path = save("run.json", outcome(result(UPDATE, 1.2e-3), Status.SLOWER, 1.2))
    assert main(["show", path, "--format=markdown"]) == Exit.SLOWER
    header, rule, row = capsys.readouterr().out.splitlines()
    assert [cell.strip().split(" ")[0] for cell in header.strip("|").split("|")] == [
        *("test", "median", "items/s", "baseline", "change", "verdict")
    ]
    assert set(rule) == set("|:- ")
    assert "SLOWER" in row
    assert main(["show", path, "--format=github"]) == Exit.SLOWER
    assert capsys.readouterr().out.startswith("## ❌ 1 of 1 ")
    baseline = str(stored(tmp_path / "baselines", result(UPDATE, 1e-3)).path)
    assert main(["show", baseline, "--format=markdown"]) == Exit.USAGE
    assert capsys.readouterr().err == wording


def test_two_files_are_shown_side_by_side(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run and a baseline, the times of each in a column; a test of one file alone, or without figures, has a gap."""
    store = stored(tmp_path / "b", result(UPDATE, 1.0e-3), result(SAMPLE, 12e-6))
    unmeasured = outcome(builders.result("t.py::test_equal", workers=()))
    slower = outcome(result(UPDATE, 1.2e-3), Status.SLOWER, 1.2)
    run = save("run.json", slower, outcome(result("t.py::test_new", 1e-3)), unmeasured)
    assert main(["show", str(store.path), run]) == Exit.NOTHING_SLOWER
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [["A", str(store.path)], ["B", run]]
    assert [line.split() for line in lines[3:] if "─" not in line][:5] == [
        ["test", "A", "B"],
        ["test_sample", "12.0", "µs"],
        ["test_update[256]", "1.00", "ms", "1.20", "ms"],
        ["test_new", "1.00", "ms"],
        ["test_equal"],
    ]
    assert "--rlperf-against=" in lines[-1]
    assert main(["show", run, run, "-k", "equal"]) == Exit.NOTHING_MEASURED
    assert "test_new" not in capsys.readouterr().out
    for option in ("-v", "--format=markdown"):
        with pytest.raises(SystemExit, match="4"):
            main(["show", run, run, option])


def test_this_machine_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file, the machine it runs on and the class that baselines are stored under."""
    assert main(["machine"]) == Exit.NOTHING_SLOWER
    out = capsys.readouterr().out
    assert this_machine().cpu in out
    assert Store(Path(), "x", this_machine()).path.stem in out


def test_machines_are_compared(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A difference is marked, with its consequence."""
    baseline = stored(tmp_path / "b", result(SAMPLE, 1e-3), machine=HERE).path
    run = save("run.json", machine=replace(HERE, cores=8, accelerators=("GPU 1", "GPU 2")))
    assert main(["machine", str(baseline), run]) == Exit.NOTHING_SLOWER
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(("cores", "accel"))] == ["≠", "≠"]
    assert "(cores, accelerators)" in out
    assert main(["machine", run, run]) == Exit.NOTHING_SLOWER
    assert "one class" in capsys.readouterr().out
    assert main(["machine", run]) == Exit.NOTHING_SLOWER
    assert "this machine" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="4"):
        main(["machine", run, run, run])


def test_without_arguments_it_helps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command, where files come from and the exit codes; but nothing was done, so it is no success."""
    monkeypatch.setattr("sys.argv", ["rlperf"])
    assert main() == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    for text in ("show", "tree", "suite", "machine", "--rlperf-json=run.json", "exit codes: 0 "):
        assert text in err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_complete_the_commands(shell: str) -> None:
    """The documented command of shtab yields a script that has every command and its options."""
    command = [sys.executable, "-m", "shtab", f"--shell={shell}", "--prog=rlperf", "pytest_rlperf.cli.make_parser"]
    script = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert [one.name for one in COMMANDS if one.name not in script] == []
    assert "--format" in script


def test_commands_load_no_pytest(save: Save) -> None:
    """A command that reads files loads neither pytest nor the libraries for measuring."""
    run = save("run.json", outcome(result(UPDATE, 1e-3)))
    code = (
        "import sys, json\nfrom pytest_rlperf.cli import main\n"
        f"main(['show', {run!r}]); main(['show', {run!r}, {run!r}]); main(['machine'])\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & {"pytest", "_pytest", "torch", "gymnasium", "scipy", "numpy"}
