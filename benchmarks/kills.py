"""Kill a random process of a run at a random time, again and again; count hangs, and what is left.

``python benchmarks/kills.py [COUNT] [SEED]`` prints a line a kill. Two small tests are compared with a commit.

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
from shared import commit, write

KINDS = ("run", "guardian", "preload server", "driver", "template", "worker")
FORKED = KINDS[2:]  # by how many copies each is away from the preload server
DELAYS_S = (1.0, 5.5)
LIMIT_S = 150.0
LEFT_S = 20.0
FILES = {
    "lib.py": "def work(n): return sum(range(n))\n",
    "test_it.py": """
        def test_it(rlperf):
            import lib
            rlperf(lambda: lib.work(1000))

        def test_two(rlperf):
            import lib
            rlperf(lambda: lib.work(3000))
    """,
}


def kind_of(process: psutil.Process) -> str:
    """Return which process of a run this is, empty where it is none or has ended."""
    depth = -1
    with contextlib.suppress(psutil.Error):
        if "guardian.py" in " ".join(process.cmdline()):
            return "guardian"
        each: psutil.Process | None = process
        while each is not None and "sys.argv.pop()" in " ".join(each.cmdline()):
            depth, each = depth + 1, each.parent()
    return FORKED[min(depth, len(FORKED) - 1)] if depth >= 0 else ""


def victims(run: int, kind: str) -> Iterator[int]:
    """Yield the processes of a kind."""
    if kind == "run":
        yield run
    with contextlib.suppress(psutil.Error):
        yield from (each.pid for each in psutil.Process(run).children(recursive=True) if kind_of(each) == kind)


def left_of(place: Path) -> list[str]:
    """Return the processes that have the run's temporary directory, until there are none."""
    end_s = time.monotonic() + LEFT_S
    while True:
        left = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get("TMPDIR") == str(place) and each.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{kind_of(each)} {each.pid}")
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.2)


def kill_one(project: Path, kind: str, delay_s: float, draw: random.Random) -> tuple[str, bool]:
    """Run, kill a process of this kind after a while, and return what came of it, and whether all was well."""
    place = Path(tempfile.mkdtemp(dir=project.parent))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--rlperf-against=HEAD",
        "-o",
        "rlperf_reach=off",
    ]
    run = subprocess.Popen(
        command,
        cwd=project,
        env=os.environ | {"TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    time.sleep(delay_s)
    found = list(victims(run.pid, kind)) if run.poll() is None else []
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(found), signal.SIGKILL)
    try:
        output, hangs = run.communicate(timeout=LIMIT_S)[0], False
    except subprocess.TimeoutExpired:
        run.kill()
        output, hangs = run.communicate()[0], True
    left = left_of(place)
    is_well = not (hangs or left or "INTERNALERROR" in output)
    shutil.rmtree(place, ignore_errors=True)
    last = [line for line in output.splitlines() if line.strip()][-1:]
    outcome = "hangs" if hangs else f"exit {run.returncode}"
    return f"{'killed' if found else 'not there'}, {outcome}, left {left or 'nothing'}, {' '.join(last)}", is_well


def main(count: int = 100, seed: int = 1) -> int:
    """Kill so many processes, and return how many runs did not end well."""
    draw, killed, faults = random.Random(seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        project = Path(directory) / "project"
        write(project, FILES)
        commit(project, "one")
        with (project / "lib.py").open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        for number in range(count):
            kind, delay_s = draw.choice(KINDS), draw.uniform(*DELAYS_S)
            text, is_well = kill_one(project, kind, delay_s, draw)
            killed[kind] += text.startswith("killed")
            faults += not is_well
            print(f"{number + 1}: {kind} after {delay_s:.1f} s: {text}", flush=True)
    print(f"killed {dict(killed)}; {faults} of {count} runs did not end well")
    return faults


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
