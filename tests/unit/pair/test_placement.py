"""Where a process may run, where it is, which of its threads work, and for how long."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from time import sleep, thread_time
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from builders import source

from pytest_rlperf.pair.watches import OtherWorkWatch
from pytest_rlperf.spawn.cpus import usable_cpus
from pytest_rlperf.timers import FakeClock
from pytest_rlperf.worker.resources import Activity, ActivityWatch, children_seen, cpu_reader, place, stopwatch

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the kernel places processes here")


def run_apart(script: str) -> str:
    """Run a script in a process of its own, which may then do to its CPUs what it likes, and return its output."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_affinity
def test_every_thread_of_a_process_is_kept_on_its_cpus() -> None:
    """Threads there are and threads to come stay on the CPUs told, and go back to all of them when told so."""
    assert run_apart(source("placement/threads.py")) == "done"


@needs_affinity
def test_the_cpu_told_is_one_that_may_be_used() -> None:
    """A slice ends on a CPU that this process may run on."""
    assert cpu_reader()() in usable_cpus()


def test_a_system_that_tells_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without affinity there is no CPU to choose and nothing to place; without a reader every slice is on -1."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert usable_cpus() == ()
    place([0])
    children_seen()  # which has what was there before, and leaves it removed
    assert not hasattr(os, "sched_setaffinity")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert cpu_reader()() == -1

    def missing(name: object) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cpu_reader()() == -1


Usage = dict[int, tuple[float, float]]
QUIET, BUSY = (1.0, 1.0), (1.5, 1.5)


@pytest.mark.parametrize(
    ("before", "after", "watched_s", "children", "threads"),
    [
        pytest.param({1: QUIET, 2: (9.0, 9.0)}, {1: BUSY, 2: (9.0, 9.01)}, 1.0, 0, 1, id="an idle one's tick is none"),
        pytest.param({1: QUIET, 2: QUIET}, {1: (1.6, 1.0), 2: (1.0, 1.4)}, 1.0, 0, 2, id="user's and system's time"),
        pytest.param({1: QUIET}, {1: BUSY, 2: (0.5, 0.0)}, 1.0, 0, 2, id="a new one's is all since"),
        pytest.param({1: QUIET, 2: QUIET}, {1: BUSY}, 1.0, 0, 1, id="one that has ended"),
        pytest.param({1: QUIET, 2: QUIET}, {1: BUSY, 2: (1.4, 1.0)}, 10.0, 0, 1, id="4 % of the time"),
        pytest.param({1: QUIET, 2: QUIET}, {1: BUSY, 2: (1.6, 1.0)}, 10.0, 0, 2, id="6 % of the time"),
        pytest.param({1: QUIET}, {1: BUSY}, 1.0, 2, 1, id="children of children too"),
        pytest.param({1: QUIET}, {1: BUSY}, 0.039, 0, None, id="of less than a few ticks nothing is known"),
        pytest.param({1: QUIET}, {1: BUSY}, 0.041, 0, 1, id="a few ticks"),
    ],
)
def test_one_thread_that_works_without_children_is_single(
    before: Usage,
    after: Usage,
    watched_s: float,
    children: int,
    threads: int | None,
) -> None:
    """By the user and system seconds of each thread before and after some time: only a single one is ever placed."""
    clock = FakeClock()
    now = [before]

    def shown() -> list[SimpleNamespace]:
        return [SimpleNamespace(id=each, user_time=user, system_time=system) for each, (user, system) in now[0].items()]

    process = SimpleNamespace(threads=shown, children=lambda recursive: [object()] * children * recursive)
    watch = ActivityWatch(lambda: clock.now_ns / 1e9, lambda: process)  # type: ignore[arg-type, return-value]
    clock.advance(watched_s)
    now[0] = after
    seen = watch.seen()
    assert seen == Activity(threads, children)
    assert seen.is_single == (None if threads is None else threads == 1 and not children)


def test_real_children_are_found() -> None:
    """A child that waits for its input is seen, and its own child with it."""
    script = """
import subprocess, sys
from pytest_rlperf.worker.resources import ActivityWatch
watch = ActivityWatch()
print(watch.seen().children)
code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print(watch.seen().children)
    child.communicate(b"\\n")
print(watch.seen().children)
"""
    assert run_apart(script).split() == ["0", "2", "0"]


# --------------------------------------------------------------------------- other work

TICK_S = 0.01
NO_PROCESS = -1
Processes = dict[int, tuple[str, int, int, int]]


def show(proc: Path, processes: Processes, machine: int) -> None:
    """Write the system's files: each process's name, parent, own ticks and those of its ended children."""
    shutil.rmtree(proc, ignore_errors=True)
    lines = {"stat": f"cpu {machine} 0 0 9999 9 9 9 0 0 0\ncpu0 0 0\ncpu1 0 0\ncpu2 0 0\ncpu3 0 0\nintr 1"}
    for pid, (name, parent, own, ended) in processes.items():
        lines[f"{pid}/stat"] = f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {own} 0 {ended} 0 20 0 1 0 77 0"
    builders.write(proc, lines)


OWN = os.getpid()
BEFORE: Processes = {1: ("init", 0, 50, 0), 7: ("train) (x", 1, 10, 0), 8: ("make", 1, 0, 0), 9: ("cc", 8, 30, 0)}
BEFORE |= {OWN: ("pytest", 1, 90, 0), 99990: ("worker", OWN, 10, 0)}


@needs_affinity
@pytest.mark.parametrize(
    ("after", "used", "named", "cpus"),
    [
        ({7: ("train) (x", 1, 97, 0)}, 87, ("train) (x", 7), (0.87, 0.87, 0.0)),
        ({7: ("train) (x", 1, 20, 0), 11: ("new", 7, 60, 0)}, 70, ("new", 11), (0.6, 0.7, 0.0)),
        ({7: ("train) (x", 1, 70, 0), 11: ("cc", 8, 50, 0), 9: ("cc", 8, 70, 0)}, 150, ("cc", 11), (0.9, 1.5, 0.0)),
        ({OWN: ("pytest", 1, 190, 0), 99990: ("worker", OWN, 110, 0)}, 200, ("", 0), (0.0, 0.0, 0.0)),
        ({99990: None, OWN: ("pytest", 1, 90, 110)}, 100, ("", 0), (0.0, 0.0, 0.0)),
        ({9: None, 8: ("make", 1, 0, 110)}, 80, ("make", 8), (0.8, 0.8, 0.0)),
        ({9: None, 8: None, 1: ("init", 0, 50, 110)}, 80, ("init", 1), (0.8, 0.8, 0.0)),
        ({7: ("train) (x", 1, 20, 0)}, 130, ("train) (x", 7), (0.1, 0.1, 1.2)),
    ],
)
def test_other_work_is_what_others_used(
    after: dict[int, Any], used: int, named: tuple[str, int], cpus: tuple[float, float, float], tmp_path: Path
) -> None:
    """In CPUs over one second: of those of the name that used the most, of all that are seen, and of all that are not.

    This process and those it started are no others; who has ended is its parent's.
    """
    clock = builders.Seconds()
    show(tmp_path, BEFORE, 1000)
    watch = OtherWorkWatch(OWN, clock, tmp_path)
    clock.sleep(100 * TICK_S)
    show(tmp_path, {pid: each for pid, each in (BEFORE | after).items() if each}, 1000 + used)
    seen = watch.seen()
    assert seen is not None
    assert (seen.process, seen.pid) == named
    found = seen.cpu_share, len(usable_cpus()) * seen.seen_share, 4 * seen.unseen_share
    assert found == pytest.approx(cpus)


def test_a_system_that_shows_no_processes_is_no_error(tmp_path: Path) -> None:
    """There is no other work then."""
    assert OtherWorkWatch(OWN, proc=tmp_path).seen() is None


@needs_affinity
def test_a_process_that_spins_is_named(tmp_path: Path) -> None:
    """By its name and number in the system's own files, and never by its arguments."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass", "secret"])
    try:
        for name in ("stat", str(spinning.pid)):
            (tmp_path / name).symlink_to(f"/proc/{name}")
        watch = OtherWorkWatch(NO_PROCESS, proc=tmp_path)
        while (seen := watch.seen()) is None or not seen.pid:
            time.sleep(TICK_S)
    finally:
        spinning.kill()
        spinning.wait()
    assert seen.pid == spinning.pid
    assert seen.process.startswith("python")
    assert "secret" not in repr(seen)


def test_a_stopwatch_counts_work_and_waits_but_no_waits_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a test has frozen the time: the look at what it runs would have no end."""
    for name in ("time.monotonic", "pytest_rlperf.worker.resources.monotonic"):
        monkeypatch.setattr(name, lambda: 7.0)
    own_s, began_s, end_s = stopwatch(), thread_time(), thread_time() + 0.02
    while thread_time() < end_s:
        pass
    assert own_s() >= thread_time() - began_s - 0.001 >= 0.019
    own_s = stopwatch()  # anew: of the work before, the kernel may count some as a wait, too
    sleep(0.02)
    assert own_s() >= 0.019
