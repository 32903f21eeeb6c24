"""The size of a baseline's file, and what a large one costs to load, compare, save and show.

The tests are copies of this repository's own baseline, each with ten earlier sessions and some pairs. Every step runs
in a fresh process. Its CPU time is that of the step alone, with the imports that it makes: comparing and saving begin
with a loaded baseline. Its peak memory is the process's::

    python benchmarks/baseline_size.py          # 5,000 tests
    python benchmarks/baseline_size.py 100
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from pytest_rlperf.baseline.schema import decode, encode
from pytest_rlperf.baseline.store import SESSIONS_MOST, Store
from pytest_rlperf.model.stored import Baseline, PairSpread, StoredResult, session_figures

OWN = Path(__file__).parents[1] / "baselines" / "default"
STEPS = ("load", "compare", "save", "show")


def main() -> None:
    """Write a large baseline, and print the size of its parts and the cost of each step."""
    tests = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    own = decode(next(iter(sorted(OWN.glob("*.json")))).read_bytes())
    with tempfile.TemporaryDirectory() as directory:
        baseline = replace(own, results=dict(large(own, tests)))
        store = Store(Path(directory), "default", baseline.machine)
        store.directory.mkdir()
        store.path.write_bytes(encode(baseline))
        size = store.path.stat().st_size
        print(f"{tests} tests: {size / 1e6:.1f} MB, {size / tests:.0f} bytes a test\n")
        print("step      CPU seconds  peak MB")
        for step in STEPS:
            print(f"{step:<8}      {'  '.join(measure(step, store.path))}", flush=True)


def large(own: Baseline, tests: int) -> list[tuple[str, StoredResult]]:
    """Return so many entries like those of a baseline, each stored in ten sessions."""
    found = []
    for number, entry in enumerate(islice(cycle(own.results.values()), tests)):
        key = f"{entry.result.nodeid}[{number}]"
        history = tuple(
            session_figures(entry.result, f"{entry.session} {index}", same_code=True) for index in range(SESSIONS_MOST)
        )
        result = replace(entry.result, nodeid=key)
        found.append((key, replace(entry, result=result, history=history, pairs=PairSpread(1.2e-3, 12.0))))
    return found


def measure(step: str, path: Path) -> tuple[str, str]:
    """Run a step in a process of its own, and return its CPU seconds and its peak megabytes."""
    done = subprocess.run(
        [sys.executable, __file__, "--step", step, str(path)], capture_output=True, text=True, check=True
    )
    seconds, kibibytes = done.stdout.split()
    return f"{float(seconds):7.2f}", f"{int(kibibytes) / 1024:7.0f}"


def run_step(step: str, path: Path) -> None:
    """Do a step with the baseline in a file, and print its CPU seconds and this process's peak memory in KiB."""
    baseline = decode(path.read_bytes()) if step in ("compare", "save") else None
    entries = None if baseline is None else as_of_now(baseline)
    started_s = time.process_time()
    from pytest_rlperf.cli import main as rlperf
    from pytest_rlperf.judge.stored import judge_stored
    from pytest_rlperf.model.judged import Policy

    if step == "show":
        with contextlib.redirect_stdout(io.StringIO()):
            rlperf(["show", str(path)])
    elif baseline is None or entries is None:
        decode(path.read_bytes())
    elif step == "compare":
        policy = Policy(tests=len(entries))
        for entry in baseline.results.values():
            judge_stored(entry.result, entry, [], policy)
    else:
        store = Store(path.parents[1], path.parent.name, baseline.machine)
        store.write("now", next(iter(baseline.sessions.values())), entries)
    seconds = time.process_time() - started_s
    # Not by getrusage, which begins with the parent's peak.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(seconds, status.partition("VmHWM:")[2].split()[0])


def as_of_now(baseline: Baseline) -> dict[str, StoredResult]:
    """Return all entries as another session's."""
    return {key: replace(entry, session="now", history=entry.history[-1:]) for key, entry in baseline.results.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        run_step(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
