"""A measured run beside faults: whatever one test does, the others have their verdicts, and the files are written."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from _pytest.capture import CaptureIO
from _pytest.logging import LogCaptureHandler, LoggingPlugin
from builders import ONE_CALL, scratch_left, source, write
from example import FAILED, OK, USAGE, Example, Run
from wording import Wording, without_figures

from pytest_rlperf.measure.worker import wait_all
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers import process, session
from pytest_rlperf.workers.guardian import VARIABLE, Guardian
from pytest_rlperf.workers.process import Process, Stem, WorkerLostError, connected, popen

SOUND = "def test_it(rlperf): rlperf(lambda: sum(range(1000)))\n"


def measure(directory: Path, tests: str, *args: str, code: int | None = None, conftest: str = "") -> Run:
    """Measure one call of each test in a file, with no other plugin."""
    example = Example(directory, {"conftest.py": conftest, "test_it.py": tests})
    return example.pytest(*ONE_CALL, "-v", *args, code=code)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Run:
    conftest, tests = source("reliability/conftest.py"), source("reliability/tests.py")
    return measure(tmp_path_factory.mktemp("faults"), tests, code=FAILED, conftest=conftest)


@pytest.mark.parametrize(
    "test", ["test_garbage", "test_no_message", "test_half", "test_clock_back", "test_breaks", "test_hangs"]
)
def test_a_fault_is_an_error_of_its_test(faults: Run, test: str, wording: Wording) -> None:
    """Garbage, half a message, a clock that runs back, a broken coordinator, a hanging fixture: each fails its test."""
    assert faults.statuses[test] == "ERROR"
    assert re.search(rf"(?m)^{test} +ERROR$", faults.section("rlperf"))
    assert without_figures(faults.reasons[test]) == wording


def test_the_other_tests_have_verdicts(faults: Run) -> None:
    """The tests without a fault are in the table and the JSON; a clock that a test replaces is not the one used."""
    sound = {test: status for test, status in faults.statuses.items() if status != "ERROR"}
    assert sound == {"test_patched_clock": "NEW", "test_sound": "NEW"}, faults.text
    assert "INTERNALERROR" not in faults.text
    assert "test_sound" in faults.section("rlperf")


KILLED = source("reliability/killed.py")


@pytest.mark.parametrize("end", ["killed", "finished"])
def test_a_guardian_ends_what_a_run_has_left(tmp_path: Path, end: str) -> None:
    """Processes in sessions of their own, a command's too, end with their run, and the run's files are removed."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", KILLED, end], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    *pids, scratch = run.stdout.split()
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s and (Path(scratch).exists() or any(_is_running(int(pid)) for pid in pids)):
        time.sleep(0.05)
    assert not [pid for pid in pids if _is_running(int(pid))]
    assert not Path(scratch).exists()


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def dead_scratch(temporary: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-c", "from pytest_rlperf.scratch import make_scratch; print(make_scratch()[0])"],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(made.stdout.strip())


def test_scratch_of_dead_runs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run removes the scratch of runs that are gone, and leaves that of living ones."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living, next_run, dead = Guardian(), Guardian(), dead_scratch(tmp_path)
    kept = living.new_directory()
    assert not dead.exists()
    dead = dead_scratch(tmp_path)
    next_run.new_directory()
    assert kept.exists()
    assert not dead.exists()
    living.close()
    next_run.close()
    assert scratch_left(tmp_path) == []


LOOK_ALIKE: dict[str, Callable[[Path], Path]] = {
    "a directory with a lock in it": lambda dead: write(dead.parent.parent / "rlperf-notes", {"lock": ""}),
    "a copy of scratch": lambda dead: shutil.copytree(dead, dead.parent / "copy"),
    "a forged mark elsewhere": lambda dead: forged(dead, dead.parent.parent / "pytest-rlperf-notes/notes"),
    "a link to another directory": lambda dead: linked(dead, dead.parent / "link"),
}


def forged(dead: Path, place: Path) -> Path:
    """Make a directory with the mark that scratch would have there."""
    mark = (dead / "lock").read_text().replace(str(dead), str(place))
    return write(place, {"lock": mark})


def linked(dead: Path, place: Path) -> Path:
    """Make a directory whose mark has the path of a link that leads to it."""
    target = write(dead.parent.parent / "mine", {"lock": (dead / "lock").read_text().replace(str(dead), str(place))})
    place.symlink_to(target)
    return target


@pytest.mark.parametrize("what", LOOK_ALIKE)
def test_what_no_run_has_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A run removes nothing that only looks like scratch of a dead one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = LOOK_ALIKE[what](dead_scratch(tmp_path))
    kept.chmod(0o700)
    (kept / "thesis.txt").write_text("mine")
    run = Guardian()
    run.new_directory()
    run.close()
    assert (kept / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("planted", ["a link", "a link that leads nowhere", "an open directory", "another user's"])
def test_a_planted_place_of_scratch_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """Where others may own or read the place of scratch, a run makes a new directory, and touches nothing there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = dead_scratch(tmp_path)
    place = dead.parent
    if "link" in planted:
        place.rename(tmp_path / "mine")
        place.symlink_to(tmp_path / ("mine" if planted == "a link" else "nowhere"))
        dead = tmp_path / "mine" / dead.name
    elif planted == "an open directory":
        place.chmod(0o755)
    else:
        lstat = Path.lstat
        monkeypatch.setattr(Path, "lstat", lambda path: owned(lstat(path), os.getuid() + (path == place)))
    before = set(tmp_path.iterdir())
    run = Guardian()
    directory = run.new_directory()
    (new,) = set(tmp_path.iterdir()) - before
    assert directory.is_relative_to(new)
    assert new.stat().st_mode & 0o777 == 0o700
    assert dead.exists()
    run.close()
    assert set(tmp_path.iterdir()) == before


def test_no_place_for_temporary_files_is_a_usage_error(tmp_path: Path) -> None:
    """A run that can make no temporary files measures nothing, and names the reason and the variable."""
    run = measure(tmp_path, SOUND, code=USAGE, conftest="import tempfile\n\ntempfile.tempdir = '/proc/none'\n")
    assert "INTERNALERROR" not in run.text
    assert "/proc/none" in run.text
    assert "TMPDIR" in run.text


def owned(found: os.stat_result, user: int) -> os.stat_result:
    return os.stat_result((*found[:4], user, *found[5:]))


def test_a_daemon_of_a_test_ends_with_the_run(tmp_path: Path) -> None:
    """A process that a test leaves in a session of its own goes on while others are measured, and no longer."""
    tests = """
        import subprocess

        def test_leaves(rlperf):
            left = subprocess.Popen(["sleep", "287"], start_new_session=True)
            open("pids", "a").write(f"{left.pid} ")
            rlperf(lambda: sum(range(100)))

        def test_sound(rlperf):
            rlperf(lambda: sum(range(100)))
    """
    run = measure(tmp_path, tests, code=OK)
    assert run.counts == "2 passed"
    pids = (tmp_path / "project" / "pids").read_text().split()
    assert pids
    assert not [pid for pid in pids if _is_running(int(pid))]


def test_a_worker_ended_by_force_takes_its_descendants_with_it(tmp_path: Path) -> None:
    """Also those in sessions of their own, which no signal to its process group reaches."""
    here, there = connected()
    sleep = "import subprocess, time\nsubprocess.Popen(['sleep', '289'], start_new_session=True)\ntime.sleep(289)"
    child = popen([sys.executable, "-c", sleep], there, "KEY", dict(os.environ), tmp_path)
    worker = Process("worker", here, tmp_path, Guardian(), child)
    deadline_s = time.monotonic() + 60
    while not (children := psutil.Process(child.pid).children()):
        assert time.monotonic() < deadline_s
    assert worker.memory() > 0
    worker.end(0)
    assert child.poll() == -signal.SIGKILL
    psutil.wait_procs(children, timeout=60)
    assert not _is_running(children[0].pid)
    assert (worker.alive, worker.memory(), worker.cpu_s()) == (False, 0, 0.0)
    worker.end(0)  # once more does no harm


def test_a_message_in_time_is_read_late(tmp_path: Path) -> None:
    """One that came within its limit counts, also where the run looks for it after the limit."""
    here, there = connected()
    with here, there:
        m.send(there, m.Answer(1))
        worker = Process("worker", here, tmp_path, Guardian())
        assert worker.receive(time.monotonic() - 1, 30, "") == m.Answer(1)


def test_a_copy_that_hangs_at_its_fork_is_waited_for_shortly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """However long the setup of tests may take; one that has begun may take as long as that."""
    now = itertools.count(step=0.5)
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    monkeypatch.setattr(process, "_POLL_S", 0.001)
    start = m.Start(0, [], [], [], str(tmp_path), False, False, [], [], [], "", False, "", {}, "", "", [], forks=True)
    lost = []
    for has_begun in (False, True):
        here, there = connected()
        stem = Stem("stem", start, Guardian(), 300, here)
        begun_s = next(now)
        if has_begun:
            m.send(there, m.Started(2**22 + 1))  # the number of no process
        with there, pytest.raises(WorkerLostError) as caught:
            stem.wait_ready()
        lost.append((str(caught.value), (next(now) - begun_s) // 100 * 100))
    assert [waited_s for _, waited_s in lost] == [0, 300]
    assert [text for text, _ in lost] == wording


def test_workers_that_hang_together_take_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three first calls that hang are waited for as long as one, and all of the workers are ended."""
    now = itertools.count(step=0.5)
    clock = SimpleNamespace(monotonic=lambda: float(next(now)))  # time passes only for who looks at it
    monkeypatch.setattr(process, "time", clock)
    monkeypatch.setattr(process, "_POLL_S", 0.001)
    start = m.Start(0, [], [], [], str(tmp_path), False, False, [], [], [], "", False, "", {}, "", "", [])
    ends = [connected() for _ in range(3)]
    workers = [Stem("worker", start, Guardian(), 300, here).worker() for here, _ in ends]
    for worker in workers:
        worker.start_run("test", None, setup_s=300, patience_s=300)
        worker.start_check()
    begun_s = clock.monotonic()
    with pytest.raises(WorkerLostError):
        wait_all(workers, lambda worker: worker.wait_checked())
    assert clock.monotonic() - begun_s < 2 * 300
    assert not any(worker.alive for worker in workers)
    for _, there in ends:
        there.close()


GUARD = source("reliability/guard.py")
# A run that ends while another process holds its pipe: once the guardian has looked for it, by a descriptor.
GONE = source("reliability/gone.py")


@pytest.mark.parametrize("end", ["finished", "closed", "gone", "never there", "no /proc", "no pidfd_open"])
def test_the_guardians_program(tmp_path: Path, end: str) -> None:
    """It ends the workers that it was to watch, and what has the run's mark; it leaves the others alone."""
    (tmp_path / "scratch").mkdir()
    arguments = [str(tmp_path / "scratch"), str(os.getppid() if end == "never there" else os.getpid())]
    marked = {} if end in ("closed", "no /proc") else {VARIABLE: arguments[0]}
    worker, daemon, forgotten = (
        subprocess.Popen(["sleep", "300"], start_new_session=True, env=os.environ | variables)
        for variables in ({}, marked, {})
    )
    command = ["-c", GONE, GUARD, arguments[0]] if end == "gone" else ["-c", GUARD, *arguments, end]
    lines = f"+{forgotten.pid}\n+{worker.pid}\n-{forgotten.pid}\n" + ("finished\n" if end == "finished" else "")
    with subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        if end == "gone":
            program.wait(60)  # the pipe stays open, and has no line
        else:
            program.stdin.write(lines.encode())
            program.stdin.close()
            program.wait(60)
        if marked:
            assert daemon.wait(60) == -signal.SIGKILL
        if end not in ("gone", "never there"):
            assert worker.wait(60) == (-signal.SIGKILL if end == "finished" else -signal.SIGTERM)
        assert forgotten.poll() is None
        deadline_s = time.monotonic() + 60
        while (tmp_path / "scratch").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    for each in (worker, daemon, forgotten):
        each.kill()
        each.wait()


def test_a_guardian_that_was_killed_leaves_its_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose guardian is gone goes on, and removes its files itself."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    guardian = Guardian()
    guardian.close()  # without files there is nothing to guard
    guardian.new_directory()
    assert guardian._process is not None
    guardian._process.kill()
    guardian._process.wait()
    guardian.watch(os.getpid())
    guardian.close()
    guardian.forget(os.getpid())
    assert scratch_left(tmp_path) == []


def test_a_package_that_is_loaded_for_all_is_not_seen_to_print(tmp_path: Path) -> None:
    """In the end it is one whose copies cannot even begin."""
    text = """
        import os, sys
        print("printed at import")
        os.write(2, b"written at import")
        os.register_at_fork(after_in_child=lambda: os._exit(3))
    """
    example = Example(tmp_path / "project", {"test_it.py": f"import noisy\n{SOUND}"})
    write(tmp_path / "installed", {"noisy.py": text})
    path = os.pathsep.join([str(tmp_path / "installed"), example.env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    run = example.pytest(*ONE_CALL, code=OK, PYTHONPATH=path)
    assert run.statuses == {"test_it": "NEW"}
    assert "new interpreter" in run.out
    assert "at import" not in run.text


def test_output_of_calls_is_cut(tmp_path: Path, wording: Wording) -> None:
    """Calls that print more than a megabyte keep the first one, with a note in the output and one of the run."""
    tests = """
        import os

        line = "x" * 599_999

        def work():
            print(line)
            os.write(1, line.encode())

        def test_loud(rlperf):
            print("the beginning")
            rlperf(work)
            print("the end")
    """
    run = measure(tmp_path, tests, "-rP", "--rlperf-counters=off", code=OK)
    assert 1_000_000 < len(run.out) < 1_200_000
    assert "the beginning" in run.out
    assert re.findall(r"x\n(.*)\nthe end", run.out) == wording
    (note,) = re.findall(r"test_it.py::test_loud: .* [\d.]+ MB .*", run.out)
    assert without_figures(note) == wording


def test_streams_in_memory_and_logs_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that --capture=sys keeps in memory are cut, and so are logs; the user's own files are left alone."""
    logs = LoggingPlugin.__new__(LoggingPlugin)
    logs.caplog_handler, logs.report_handler = LogCaptureHandler(), LogCaptureHandler()
    logs.report_handler.handle(logging.LogRecord("name", logging.WARNING, "file", 1, "y" * 5000, (), None))
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: logs))
    captured, own = CaptureIO(), (tmp_path / "own").open("w+")
    monkeypatch.setattr("sys.stdout", captured)
    monkeypatch.setattr("sys.stderr", own)
    for stream in (captured, own):
        stream.write("x" * 5000)
    (tmp_path / "scratch").mkdir()
    limit = session.OutputLimit(tmp_path / "scratch", most=1000)
    for _ in range(2):
        limit.apply(config)
    monkeypatch.undo()
    note = "\n[rlperf: output of measured calls over 0 MB is dropped]\n"
    assert captured.getvalue() == "x" * 1000 + note
    assert own.tell() == 5000
    assert logs.report_handler.stream.getvalue().endswith(note)
    assert limit.dropped >= 2 * (4000 - len(note))
    own.close()
