"""End a run by each signal, at each stage, while a worker does something that is hard to end; count what is left.

`python benchmarks/faults/processes.py [--jobs N] [WORD ...]` prints a table of the cases whose names hold every word.
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
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SIGNALS = ("KILL", "TERM", "HUP", "INT")
STAGES = ("collect", "setup", "check", "slice", "teardown")
KINDS = ("python", "native", "child", "daemon")
REACH_LIMIT_S = 120.0
END_LIMIT_S = 60.0
LEFT_LIMIT_S = 15.0  # a guardian's grace is five seconds

CONFTEST = """
    import itertools
    import os
    import subprocess
    import time

    import pytest

    STAGE, KIND = os.environ["STAGE"], os.environ["KIND"]


    def stuck(worker, stage):
        if worker != "rlperf0" or stage != STAGE:
            return
        if KIND == "child":
            subprocess.Popen(["sleep", "300"])
        elif KIND == "daemon":
            subprocess.Popen(["sh", "-c", "sleep 300 & exec sleep 300"], start_new_session=True)
        open("reached", "w").close()
        if KIND == "native":
            all(itertools.repeat(True))  # never returns to the interpreter, so no handler of a signal runs
        while True:
            time.sleep(0.01)


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
    from conftest import stuck


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
    """Start a run, send it a signal when a worker is stuck, and wait until nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="faults-"))
    (directory / "tmp").mkdir()
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (directory / "test_it.py").write_text(textwrap.dedent(TESTS))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"STAGE": stage, "KIND": kind, "TMPDIR": str(directory / "tmp")}
    args = ["-p", "rlperf", "-p", "no:cacheprovider", "--rlperf", "--rlperf-max-time=3", "--rlperf-json=run.json"]
    with (directory / "output").open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", *args],
            cwd=directory,
            env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(directory / "reached", run)
        sent_s = time.monotonic()
        run.send_signal(signal.Signals[f"SIG{name}"])
        status = run.wait(END_LIMIT_S)
        deadline_s = time.monotonic() + LEFT_LIMIT_S
        while (left := left_of(directory)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        text = (directory / "output").read_text(errors="replace")
        parts = ["table"] * ("== rlperf ==" in text) + ["JSON"] * (directory / "run.json").exists()
        parts += ["INTERNALERROR"] * ("INTERNALERROR" in text) + ["traceback"] * ("Traceback" in text)
        return Outcome(status, " and ".join(parts) or "–", time.monotonic() - sent_s, left)
    finally:
        for pid in processes_of(directory):
            os.kill(pid, signal.SIGKILL)
        run.wait()
        shutil.rmtree(directory, ignore_errors=True)


def wait_for(path: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait until a worker is stuck; RuntimeError where it does not get there."""
    deadline_s = time.monotonic() + REACH_LIMIT_S
    while not path.exists():
        if run.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the run did not come to this stage:\n{(path.parent / 'output').read_text()}")
        time.sleep(0.02)


def left_of(directory: Path) -> tuple[str, ...]:
    """Return the processes and scratch directories of a run that are still there."""
    processes = []
    for pid in processes_of(directory):
        try:
            processes.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:40])
        except OSError:
            continue
    return *processes, *(path.name for path in (directory / "tmp").glob("rlperf-*"))


def processes_of(directory: Path) -> list[int]:
    """Return the processes that have the run's own temporary directory in their environment."""
    marker, found = f"TMPDIR={directory / 'tmp'}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def main() -> int:
    """Print the table; return 1 where anything was left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="a signal, a stage, a kind: others are left out")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    given = parser.parse_args()
    cases = [case for case in itertools.product(SIGNALS, STAGES, KINDS) if set(given.words) <= set(case)]
    print("| signal | stage | worker is in | exit status | report | nothing left after | left |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    is_clean = True
    with ThreadPoolExecutor(given.jobs) as pool:
        for case, outcome in zip(cases, pool.map(lambda case: try_case(*case), cases), strict=True):
            left = ", ".join(outcome.left) or "nothing"
            print(f"| {' | '.join(case)} | {outcome.status} | {outcome.report} | {outcome.seconds:.1f} s | {left} |")
            sys.stdout.flush()
            is_clean = is_clean and not outcome.left
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
