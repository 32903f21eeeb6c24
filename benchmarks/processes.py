"""End a run by each signal, at each stage, while it does something that is hard to end; count what is left.

INT2 and INT3 are two and three Ctrl-C, half a second apart. At the stage clone a program that git has
started is stuck, at the stage save the run's own process, and what the next run finds is tried too.

`python benchmarks/processes.py [--jobs N] [WORD ...]` prints a table of the cases whose names hold every word.

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shared import ROOT, commit, environment, git, print_table, tell, write

SIGNALS = ("KILL", "TERM", "HUP", "INT", "INT2", "INT3")
STAGES = ("collect", "setup", "check", "slice", "teardown", "clone", "save")
KINDS = ("python", "native", "child", "daemon", "detached")
OPTIONS = {
    "clone": ["--rlperf-against=HEAD~1", "-o", "rlperf_reach=off"],
    "save": ["--rlperf-save-baseline", "--rlperf-max-time=20"],
}
AGAIN_S = 0.5
REACH_LIMIT_S = 120.0
END_LIMIT_S = 60.0
LEFT_LIMIT_S = 15.0  # a guardian's grace is five seconds

STUCK = """
    import itertools
    import os
    import subprocess
    import sys
    import time

    STAGE, KIND, PLACE = os.environ["STAGE"], os.environ["KIND"], os.environ["PLACE"]


    def stuck(worker, stage):
        if worker != "rlperf0" or stage != STAGE or os.environ.get("FREE"):
            return
        if KIND == "child":
            subprocess.Popen(["sleep", "300"])
        elif KIND == "daemon":
            subprocess.Popen(["sh", "-c", "sleep 300 & exec sleep 300"], start_new_session=True)
        elif KIND == "detached" and not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            for descriptor in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.closerange(3, 256)
            # Its argument alone leads back to this case.
            os.execve("/bin/sh", ["sh", "-c", "while :; do sleep 1; done", PLACE], {})
        with open(f"{PLACE}/reached", "w"):
            pass
        if KIND == "native":
            all(itertools.repeat(True))  # never returns to the interpreter, so no handler of a signal runs
        while True:
            time.sleep(0.01)


    if __name__ == "__main__":  # a filter of git
        stuck("rlperf0", "clone")
        sys.stdout.write(sys.stdin.read())
"""
CONFTEST = """
    import os

    import pytest

    from stuck import stuck

    if os.environ["STAGE"] == "save" and "PYTEST_RLPERF_RUN" not in os.environ:
        synchronize = os.fsync

        def fsync(descriptor):
            if "baselines" in os.readlink(f"/proc/self/fd/{descriptor}"):
                stuck("rlperf0", "save")
            synchronize(descriptor)

        os.fsync = fsync


    def worker_of(config):
        return getattr(config, "workerinput", {}).get("workerid")


    def pytest_collection_modifyitems(config):
        stuck(worker_of(config), "collect")


    @pytest.fixture
    def worker(request):
        name = worker_of(request.config)
        if request.node.name == "test_first":
            yield None
            return
        stuck(name, "setup")
        yield name
        stuck(name, "teardown")
"""

TESTS = """
    from stuck import stuck


    def test_first(rlperf, worker):
        rlperf(lambda: sum(range(1000)))


    def test_second(rlperf, worker):
        calls = 0

        def call():
            nonlocal calls
            calls += 1
            if calls == 1:
                stuck(worker, "check")
            elif calls > 50:
                stuck(worker, "slice")
            return sum(range(1000))

        rlperf(call)
"""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its status, the parts of its report, the seconds until nothing was left, and what was left."""

    status: int
    report: str
    seconds: float
    left: tuple[str, ...]


def try_case(name: str, stage: str, kind: str) -> Outcome:
    """Start a run, send it a signal when it is stuck, and wait until nothing of it is left; perhaps run again."""
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    directory = make_project(place / "project")
    variables = {
        "STAGE": stage, "KIND": kind, "PLACE": str(place), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(place / "tmp"), "XDG_CACHE_HOME": str(place / "cache"),
        "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
    }  # fmt: skip
    options = [option.format(directory=directory) for option in OPTIONS.get(stage, [])]
    run = start(directory, variables, options)
    try:
        wait_for(place, run)
        sent_s = time.monotonic()
        run.send_signal(signal.Signals[f"SIG{name.rstrip('23')}"])
        for _ in range(int(name[-1]) - 1 if name[-1].isdigit() else 0):
            time.sleep(AGAIN_S)
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
        status = run.wait(END_LIMIT_S)
        deadline_s = time.monotonic() + LEFT_LIMIT_S
        while (left := left_of(place)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        seconds = time.monotonic() - sent_s
        text = (directory / "output").read_text(errors="replace")
        parts = ["table"] * ("== rlperf ==" in text) + ["JSON"] * (directory / "run.json").exists()
        parts += ["INTERNALERROR"] * ("INTERNALERROR" in text) + ["traceback"] * ("Traceback" in text)
        if options:
            quick = [*options, "--rlperf-max-time=0.000001"]
            again = start(directory, variables | {"FREE": "1"}, quick).wait(REACH_LIMIT_S)
            left += () if again == 0 else (f"the next run ends with {again}",)
            left += tuple(path.name for path in directory.glob("baselines/*/.rlperf-*") if name != "KILL")
        return Outcome(status, " and ".join(parts) or "–", seconds, left)
    finally:
        for pid in processes_of(place):
            os.kill(pid, signal.SIGKILL)
        run.wait()
        shutil.rmtree(place, ignore_errors=True)


def make_project(directory: Path) -> Path:
    """Write a project of two commits, with a filter of git, and return its directory."""
    directory.mkdir()
    for name in ("tmp", "cache"):
        (directory.parent / name).mkdir(mode=0o700)
    git(directory, "init", "--quiet")
    git(directory, "config", "filter.stuck.smudge", f"{sys.executable} {directory}/stuck.py")
    files = {
        "pytest.ini": "[pytest]\n", "conftest.py": CONFTEST, "stuck.py": STUCK, "test_it.py": TESTS,
        ".gitattributes": "*.txt filter=stuck\n", "filtered.txt": "text\n",
        ".gitignore": "output\nreached\n__pycache__\n*.json\n",
    }  # fmt: skip
    write(directory, files)
    commit(directory, "one")
    commit(directory, "two")
    with (directory / "test_it.py").open("a") as file:
        file.write("\n")
    return directory


def start(directory: Path, variables: dict[str, str], options: list[str]) -> subprocess.Popen[bytes]:
    """Start a run of pytest, whose output is added to a file."""
    args = ["-p", "rlperf", "-p", "no:cacheprovider", "--rlperf", "--rlperf-max-time=3", "--rlperf-json=run.json"]
    with (directory / "output").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *args, *options],
            cwd=directory,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def wait_for(place: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait until a worker is stuck; RuntimeError where it does not get there."""
    deadline_s = time.monotonic() + REACH_LIMIT_S
    while not (place / "reached").exists():
        if run.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the run did not come to this stage:\n{(place / 'project/output').read_text()}")
        time.sleep(0.02)


def left_of(place: Path) -> tuple[str, ...]:
    """Return the processes and scratch directories of a run that are still there."""
    processes = []
    for pid in processes_of(place):
        try:
            processes.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:40])
        except OSError:
            continue
    return *processes, *(path.name for path in (place / "tmp").glob("pytest-rlperf-*"))


def processes_of(place: Path) -> list[int]:
    """Return the processes that have the run's own temporary directory in their environment, or its place as a word."""
    marker, word, found = f"TMPDIR={place / 'tmp'}".encode(), os.fsencode(place), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if word in words or marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def is_case(case: tuple[str, str, str]) -> bool:
    """Whether something can be so: a program of git's has no worker above it, and saving starts nothing."""
    name, stage, kind = case
    if stage == "save":
        return kind == "python" or (kind, name) == ("native", "KILL")
    return stage != "clone" or kind != "detached"


def main() -> int:
    """Print the table; return 1 where anything was left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="a signal, a stage, a kind: others are left out")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    given = parser.parse_args()
    every = filter(is_case, itertools.product(SIGNALS, STAGES, KINDS))
    cases = [case for case in every if all(word in case for word in given.words)]
    rows, is_clean = [], True
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    with ThreadPoolExecutor(given.jobs) as pool:
        for case, outcome in zip(cases, pool.map(lambda case: try_case(*case), cases), strict=True):
            left = ", ".join(outcome.left) or "nothing"
            rows.append([*case, str(outcome.status), outcome.report, f"{outcome.seconds:.1f} s", left])
            tell(", ".join(rows[-1]))
            is_clean = is_clean and not outcome.left
    print_table(["signal", "stage", "stuck in", "exit status", "report", "nothing left after", "left"], rows)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
