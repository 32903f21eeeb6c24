"""A measured run beside faults: whatever one test does, the others have their verdicts, and the files are written."""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
from builders import FIRST_CALLS, ONE_CALL, source, template_settings, write
from example import FAILED, OK, USAGE, Example, Run
from wording import Wording, without_figures

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError
from pytest_rlperf.pair import processes
from pytest_rlperf.pair.processes import Template, wait_all
from pytest_rlperf.spawn import process, surroundings
from pytest_rlperf.spawn.connections import connected, interpreter, sender_of
from pytest_rlperf.spawn.guardian import LEAVE, VARIABLE, Guardian
from pytest_rlperf.spawn.process import Process, ProcessLostError
from pytest_rlperf.spawn.surroundings import check_surroundings

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
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and (Path(scratch).exists() or any(_is_running(int(pid)) for pid in pids)):
        time.sleep(0.05)
    assert not [pid for pid in pids if _is_running(int(pid))]
    assert not Path(scratch).exists()


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_place_for_temporary_files_is_a_usage_error(tmp_path: Path) -> None:
    """A run that can make no temporary files measures nothing, and names the reason and the variable."""
    run = measure(tmp_path, SOUND, code=USAGE, conftest="import tempfile\n\ntempfile.tempdir = '/proc/none'\n")
    assert "INTERNALERROR" not in run.text
    assert "/proc/none" in run.text
    assert "TMPDIR" in run.text


@pytest.mark.parametrize(
    "name",
    ["a:b", pytest.param("a[b]", marks=pytest.mark.slow), pytest.param("a$HOME", marks=pytest.mark.slow), "a\udcff"],
)
def test_a_place_for_temporary_files_that_does_not_work_is_a_usage_error(
    tmp_path: Path, name: str, wording: Wording
) -> None:
    """What virtual environments or pytest read as more than a name is refused before anything is made there."""
    place = tmp_path / name
    place.mkdir()
    run = Example(tmp_path, {"test_it.py": SOUND}).pytest("--rlperf", code=USAGE, TMPDIR=str(place))
    assert [line for line in run.err.splitlines() if line] == wording
    assert not list(place.iterdir())


def test_a_system_that_lacks_what_a_run_needs_is_refused(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """Too few files that may be open, and no /proc, are named before any time is spent."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (15, usual[1]))
        with wording.raises(SideError):
            check_surroundings()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    check_surroundings()
    monkeypatch.setattr(surroundings, "_PROC", Path("/nowhere"))
    monkeypatch.setattr(sys, "platform", "linux")
    with wording.raises(SideError):
        check_surroundings()


def test_a_guardian_that_cannot_start_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's files are removed by the guardian, so without one there are none."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(OSError, match="/nowhere"):
        Guardian().new_directory()
    assert not list(tmp_path.iterdir())


def test_a_guardian_that_is_stopped_does_not_hold_up_the_run(tmp_path: Path) -> None:
    """It is ended after a while, with a note, and the run itself ends what a test has left."""
    tests = """
        import os, signal, subprocess
        from pathlib import Path

        def test_it(rlperf):
            run = os.environ["PYTEST_RLPERF_RUN"]
            for place in Path("/proc").glob("[0-9]*"):
                line = (place / "cmdline").read_bytes()
                if b"guardian.py" in line and run.encode() in line:
                    os.kill(int(place.name), signal.SIGSTOP)
            left = subprocess.Popen(["sleep", "287"], start_new_session=True)
            open("left", "w").write(str(left.pid))
            rlperf(lambda: sum(range(100)))
    """
    conftest = """
        from pytest_rlperf.spawn import guardian

        guardian._CLOSE_LIMIT_S = 0.5
    """
    run = measure(tmp_path, tests, code=OK, conftest=conftest)
    assert run.statuses == {"test_it": "NEW"}
    assert run.out.rstrip().splitlines()[-1].startswith("rlperf: the process that cleans up after tests did not answer")
    assert not _is_running(int((tmp_path / "project" / "left").read_text()))
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("workers", ["auto", pytest.param("fresh", marks=pytest.mark.slow)])
def test_temporary_files_of_modules_are_removed(tmp_path: Path, workers: str) -> None:
    """As at the end of an interpreter; and while a run goes on, its tests do not each leave one more."""
    tests = """
        import tempfile
        import pytest

        FILE, DIRECTORY = tempfile.NamedTemporaryFile(), tempfile.TemporaryDirectory()

        @pytest.mark.parametrize("number", range(6))
        def test_it(rlperf, number):
            rlperf(lambda: sum(range(100)))
    """
    conftest = """
        import json
        import os

        def pytest_runtest_logreport(report):
            if report.when == "teardown" and "PYTEST_RLPERF_RUN" not in os.environ:
                # Unlike rglob, walk goes on where a process that ends removes its directory meanwhile.
                files = [os.path.join(at, name) for at, _, names in os.walk(os.environ["TMPDIR"]) for name in names]
                with open("ends", "a") as ends:
                    print(json.dumps(files), file=ends)

        def pytest_terminal_summary():
            with open(os.environ["SUMMARIES"], "a") as summaries:
                print("a summary", file=summaries)
    """
    summaries = tmp_path / "summaries"
    example = Example(tmp_path, {"conftest.py": conftest, "test_it.py": tests}, SUMMARIES=str(summaries))
    example.pytest(*FIRST_CALLS, "-o", "rlperf_lanes=1", "-o", f"rlperf_workers={workers}", code=OK)
    assert not list(example.tmp.iterdir())
    assert summaries.read_text() == "a summary\n", "the run's alone: nobody sees those of workers"
    ends = [{*json.loads(line)} for line in (example.root / "ends").read_text().splitlines()]
    # A worker may end, and a template begin, while later tests are measured; two tests later workers are gone.
    stayed = [(ends[test] - ends[test - 1]) & ends[-1] for test in (1, 2, 3)]
    assert set() in stayed, stayed


def test_a_worker_ended_by_force_takes_its_children_with_it(tmp_path: Path) -> None:
    """Those of its session; others end with the run."""
    sleep = "import subprocess, time\nsubprocess.Popen(['sleep', '289'])\ntime.sleep(289)"
    child, here = interpreter(sleep, dict(os.environ), tmp_path)
    worker = Process("worker", here, tmp_path, Guardian(), child)
    deadline_s = time.monotonic() + 60
    while not (children := psutil.Process(child.pid).children()):
        assert time.monotonic() < deadline_s
    worker.end(0)
    assert child.poll() == -signal.SIGKILL
    psutil.wait_procs(children, timeout=60)
    assert not _is_running(children[0].pid)
    assert (worker.alive, worker.cpu_s()) == (False, 0.0)
    worker.end(0)  # once more does no harm


def test_a_message_in_time_is_read_late(tmp_path: Path) -> None:
    """One that came within its limit counts, also where the run looks for it after the limit."""
    here, there = connected()
    with here, there:
        wire.send(there, wire.Answer(1))
        worker = Process("worker", here, tmp_path, Guardian())
        assert worker.receive(time.monotonic() - 1, 30, "") == wire.Answer(1)


def begun_copy(connection: Connection) -> int:
    """Return the number of a copy of this process that says that it has begun, and then hangs."""
    pid = os.fork()
    if not pid:
        os.setsid()
        faulthandler.disable()  # what ends it is a signal for which that writes down the stack
        wire.send(connection, wire.Started())
        signal.pause()
        os._exit(0)
    return pid


REPLACED = (
    *("builtins.open", "subprocess.Popen", "os.kill", "os.write", "os.fork", "os.getpid", "os.waitpid"),
    *("threading.Thread", "tempfile.mkdtemp", "json.loads", "time.monotonic", "time.sleep", "pathlib.Path.open"),
)


@pytest.mark.parametrize("workers", ["auto", pytest.param("fresh", marks=pytest.mark.slow)])
def test_what_test_modules_replace_is_not_what_a_run_uses(tmp_path: Path, workers: str) -> None:
    """Functions of the standard library that raise from the collection on, and sockets' default time limit.

    A module that has another number returned for its process does not get that one killed.
    """
    raising = [name for name in REPLACED if name != "os.getpid"]
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    tests = f"""
        import json, os, pathlib, socket, subprocess, tempfile, threading, time
        from importlib import import_module

        socket.setdefaulttimeout(1)
        os.getpid = lambda: {stranger.pid}

        def replaced(*args, **kwargs):
            raise RuntimeError("replaced")

        for name in {raising}:
            place, _, attribute = name.rpartition(".")
            setattr(pathlib.Path if place == "pathlib.Path" else import_module(place), attribute, replaced)

        def test_it(rlperf):
            rlperf(lambda: sum(range(1000)))
    """
    try:
        run = measure(tmp_path, tests, "--rlperf-max-time=0.3", "-o", f"rlperf_workers={workers}", code=OK)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert run.statuses == {"test_it": "NEW"}
    assert "new interpreter" not in run.out


REPLACES = f"""
    import pytest

    def raising(name):
        def replaced(*args, **kwargs):
            raise RuntimeError(f"{{name}} was called")

        return replaced

    @pytest.mark.parametrize("names", {[REPLACED[start::2] for start in range(2)]}, ids=range(2))
    def test_replaces(rlperf, monkeypatch, names):
        for name in names:
            monkeypatch.setattr(name, raising(name))
        rlperf(lambda: sum(range(1000)))
"""
LEAVES = """
    import subprocess

    def test_leaves(rlperf):
        left = subprocess.Popen(["sleep", "287"], start_new_session=True)
        open("left", "a").write(f"{left.pid} ")
        rlperf(lambda: sum(range(100)))

    def test_sound(rlperf):
        rlperf(lambda: sum(range(100)))
"""
FORKS = """
    import os, signal

    def handlers():
        return [each for each in signal.valid_signals() if callable(signal.getsignal(each)) and each != signal.SIGINT]

    def end_of(child):
        pid = os.fork()
        if not pid:
            child()
            os._exit(0)
        return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pid

    assert end_of(lambda: os._exit(len(handlers())))[0]() == 0  # where tests are collected

    def test_forks(rlperf):
        def call():
            ended, pid = end_of(signal.pause)
            os.kill(pid, signal.SIGTERM)  # at once, as the end of a pool
            assert ended() == -signal.SIGTERM

        assert end_of(lambda: os._exit(len(handlers())))[0]() == 0
        rlperf(call)
"""


class Sound(NamedTuple):
    """A run of tests that replace, leave, register and fork what they may, and the directory that it was in."""

    run: Run
    directory: Path


@pytest.fixture(scope="module", params=["auto", pytest.param("fresh", marks=pytest.mark.slow)])
def sound(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Sound:
    files = {"test_replaces.py": REPLACES, "test_leaves.py": LEAVES, "test_forks.py": FORKS}
    example = Example(tmp_path_factory.mktemp("sound"), {**files, "test_ends.py": source("reliability/ends.py")})
    workers = ("-o", f"rlperf_workers={request.param}")
    return Sound(example.pytest("--rlperf", "--rlperf-max-time=0.01", *workers, code=OK), example.root)


def test_what_tests_replace_is_not_what_measures_them(sound: Sound) -> None:
    """Neither before the call nor within it; the call itself has what its test wants."""
    names = {f"test_replaces[{number}]" for number in range(2)}
    found = {name: status for name, status in sound.run.statuses.items() if name in names}
    assert found == dict.fromkeys(names, "NEW"), sound.run.reasons
    assert "new interpreter" not in sound.run.out


def test_a_daemon_of_a_test_ends_with_the_run(sound: Sound) -> None:
    """A process that a test leaves in a session of its own goes on while others are measured, and no longer."""
    assert [sound.run.statuses[name] for name in ("test_leaves", "test_sound")] == ["NEW", "NEW"]
    pids = (sound.directory / "left").read_text().split()
    assert pids
    assert not [pid for pid in pids if _is_running(int(pid))]


def test_what_a_test_forks_has_no_handler_of_the_runs(sound: Sound) -> None:
    """A signal ends it as it does without this plugin, so that a pool's `terminate()` returns."""
    assert sound.run.statuses["test_forks"] == "NEW", sound.run.reasons


def test_workers_end_with_what_was_registered_for_their_end(sound: Sound) -> None:
    """Exit functions run once in every worker, and a thread that is no daemon comes to its own end first."""
    events = [line.split() for line in (sound.directory / "events").read_text().splitlines()]
    workers = {pid for text, pid in events if text == "test"}
    assert workers
    for worker in workers:
        assert [text for text, pid in events if pid == worker] == ["test", "thread", "exit"]


def test_a_file_system_that_is_made_up_is_for_the_call(tmp_path: Path) -> None:
    """Pyfakefs replaces modules by their names everywhere, and the measured call sees its files."""
    pytest.importorskip("pyfakefs")
    tests = """
        def test_it(fs, rlperf):
            fs.create_file("/made/up", contents="text")
            rlperf(lambda: open("/made/up").read(), check=lambda text: text == "text" or 1 / 0)
    """
    example = Example(tmp_path, {"test_it.py": tests})
    run = example.pytest(*ONE_CALL, "--rlperf-max-time=0.3", plugins=("rlperf", "pyfakefs.pytest_plugin"), code=OK)
    assert run.statuses == {"test_it": "NEW"}


def test_signals_go_to_processes_of_the_run_alone() -> None:
    """To a child that leads a session and what is left of one; to no other session, process, or child without one."""
    guardian, sleep = Guardian(), ["sleep", "300"]
    with subprocess.Popen(sleep, start_new_session=True) as own, subprocess.Popen(sleep) as within:
        assert [guardian.owns(process.pid) for process in (own, within)] == [True, False]
        own.kill()
        within.kill()
    assert guardian.owns(own.pid)
    assert not any(guardian.owns(pid) for pid in (-1, 0, 1, os.getpid(), os.getsid(0)))


@pytest.mark.skipif(sys.platform != "linux", reason="only there processes are copied")
def test_a_copy_of_another_run_is_refused(tmp_path: Path) -> None:
    """A process that begins at the end of a connection and is none of this run is named, and left alone."""
    here, there = connected()
    program = (
        "import os, sys; os.fork() and os._exit(0); os.setsid(); os.write(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))"
    )
    text = json.dumps({"type": "Started"}).encode()
    message = struct.pack("!i", len(text)) + text
    with here, there:
        descriptor = there.fileno()
        command = [sys.executable, "-c", f"{program}; import signal; signal.pause()", str(descriptor), message.hex()]
        subprocess.run(command, pass_fds=[descriptor], check=True)
        assert here.poll(60)
        stranger = sender_of(here)
        with pytest.raises(ProcessLostError, match=f"is process {stranger}, which this run did not start"):
            Process("worker", here, tmp_path, Guardian()).wait_begun()
        assert _is_running(stranger)
    os.kill(stranger, signal.SIGKILL)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Let time pass only when somebody looks at it, half a second each time."""
    now = itertools.count(step=0.5)
    for module in (process, processes):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    monkeypatch.setattr(process, "_POLL_S", 0.001)
    return now


def template_at(connection: Connection, scratch: Path, **changes: Any) -> Template:
    """Return a template at the other end of a connection, whose number is not yet known."""
    settings = template_settings(scratch=str(scratch), **changes)
    return Template(settings, Guardian(), 300, copy=(0, connection))


def test_a_copy_that_hangs_at_its_fork_is_waited_for_shortly(
    tmp_path: Path, clock: Iterator[float], wording: Wording
) -> None:
    """However long the setup of tests may take; one that has begun may take as long as that."""
    lost = []
    for has_begun in (False, True):
        here, there = connected()
        template = template_at(here, tmp_path, forks=True, name="stem")
        begun_s = next(clock)
        copy = begun_copy(there) if has_begun else 0
        assert not has_begun or here.poll(60)
        with there, pytest.raises(ProcessLostError) as caught:
            template.wait_ready()
        lost.append((str(caught.value), (next(clock) - begun_s) // 100 * 100))
        assert not (copy and psutil.pid_exists(copy))
    assert [waited_s for _, waited_s in lost] == [0, 300]
    assert [text for text, _ in lost] == wording


def test_workers_that_hang_together_take_one_limit(tmp_path: Path, clock: Iterator[float]) -> None:
    """Three first calls that hang are waited for as long as one, and all of the workers are ended."""
    ends = [connected() for _ in range(3)]
    workers = [template_at(here, tmp_path).lease() for here, _ in ends]
    order = wire.Open("test", None, [0], last_first=False, setup_s=300, patience_s=300, reports=False)
    for worker in workers:
        worker.start_run(order)
        worker.start(wire.Check())
    begun_s = next(clock)
    with pytest.raises(ProcessLostError):
        wait_all(workers, lambda worker: worker.answer(wire.Check()))
    assert next(clock) - begun_s < 2 * 300
    assert not any(worker.alive for worker in workers)
    for _, there in ends:
        there.close()


GUARD = source("reliability/guard.py")
# A run that ends while another process holds its pipe.
GONE = source("reliability/gone.py")


@pytest.mark.parametrize("end", ["finished", "closed", "gone", "never there", "no /proc"])
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
            assert worker.wait(60) == (-signal.SIGKILL if end == "finished" else -LEAVE)
        assert forgotten.poll() is None
        deadline_s = time.monotonic() + 60
        while (tmp_path / "scratch").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    for each in (worker, daemon, forgotten):
        each.kill()
        each.wait()


def test_sessions_of_others_are_never_ended() -> None:
    """In a container session 0 is that of whatever was started from outside, and 1 that of its first process."""
    program = "import os\nfrom pytest_rlperf.spawn import guardian\nprint(guardian._wait_for_end(os.getppid()))"
    done = subprocess.run(
        [sys.executable, "-c", program], input="+0\n+1\n+7\nfinished\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == "({7}, True)\n"


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


def test_much_output_is_an_error(tmp_path: Path, wording: Wording) -> None:
    """More than 16 MiB from calls, or from a test before its call, fails the test, is named, and is gone."""
    tests = """
        def test_loud(rlperf):
            rlperf(lambda: print("x" * (17 << 20)))

        def test_before(rlperf):
            print("x" * (17 << 20))
            rlperf(lambda: None)
    """
    fresh = ("-o", "rlperf_workers=fresh")  # which decide after copies, too
    run = measure(tmp_path, tests, "--rlperf-findings=counts=off", *fresh, code=FAILED)
    assert [run.error(test).splitlines()[-1] for test in ("test_loud", "test_before")] == wording
    assert len(run.out) < 100_000


@pytest.mark.parametrize("flags", ["LOCK_EX", pytest.param("LOCK_EX | fcntl.LOCK_NB", marks=pytest.mark.slow)])
def test_a_process_that_waits_for_a_lock_is_shown_where_it_waits(tmp_path: Path, flags: str) -> None:
    """The run has taken it, so that no process that imports the tests for itself gets it, waiting or asking again."""
    tests = f"""
        import fcntl, time

        lock = open("the-lock", "w")
        while True:
            try:
                fcntl.flock(lock, fcntl.{flags})
                break
            except BlockingIOError:
                time.sleep(0.01)

        def test_it(rlperf):
            rlperf(lambda: sum(range(1000)))
    """
    run = measure(tmp_path, tests, "-o", "rlperf_setup_timeout=4", code=FAILED)
    frames = re.findall(r'(?m)^E? *File "(.*)", line \d+ in <module>$', run.error("test_it"))
    assert frames[0] == str(tmp_path / "project" / "test_it.py")


@pytest.mark.slow
def test_a_threshold_for_coverage_is_off(tmp_path: Path, wording: Wording) -> None:
    """--cov-fail-under, which would fail every measured run, is off, with a note."""
    pytest.importorskip("pytest_cov")
    run = measure(tmp_path, SOUND, "-p", "pytest_cov", "--cov=.", "--cov-fail-under=99", code=OK)
    assert re.findall(r"(?m)^.*cov-fail-under is .*", run.out) == wording
