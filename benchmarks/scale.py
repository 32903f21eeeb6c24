"""How long many trivial tests take on one machine, unsharded and in shards.

    python benchmarks/scale.py DIRECTORY --tests 300 --shards 4

It makes a project in DIRECTORY with a library, that many tests of calls of about 1 ms, a stored baseline and a
commit that slows one test of a hundred down to half of its speed. It runs all tests, then each shard, one after another
on this machine, and merges the shards. With ``--against`` no baseline is stored, which would take the longest; tests
are compared with the commit before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = """
def work(rounds, test):
    if test % 100 == 50:
        rounds *= {factor}
    return sum(number * number for number in range(rounds))
"""
TESTS = """
import pytest
from scale_library import work


@pytest.mark.parametrize("number", range({tests}))
def test_work(rlperf, number):
    rlperf(lambda: work({rounds} + number % 7, number))
"""
ROUNDS = 16_000  # about 1 ms
_POLL_S = 0.1


class Run(NamedTuple):
    """A finished command: its exit code, its seconds, and the largest memory of its own process, in bytes."""

    code: int
    seconds: float
    peak_bytes: int


def main() -> None:
    """Measure all tests, then the shards, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tests", type=int, default=300)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--max-time", type=float, default=60.0, help="seconds a test, as --rlperf-max-time")
    parser.add_argument("--tolerance", default="10%", help="as --rlperf-tolerance: a high one settles tests soon")
    parser.add_argument("--against", action="store_true", help="compare with the commit before, not with a baseline")
    measure(parser.parse_args())


def measure(arguments: argparse.Namespace) -> None:
    """Run all tests, then the shards, and compare them."""
    project = arguments.directory
    options = [f"--rlperf-max-time={arguments.max_time:g}", f"--rlperf-tolerance={arguments.tolerance}"]
    options += ["--rlperf-against=HEAD~1"] if arguments.against else []
    make_project(project, arguments.tests, stores=not arguments.against)
    whole = run_pytest(project, *options, "--rlperf-json=whole.json")
    report("unsharded", whole, read(project / "whole.json"))
    names = [f"shard-{number}.json" for number in range(1, arguments.shards + 1)]
    for number, name in enumerate(names, 1):
        found = run_pytest(project, *options, f"--rlperf-shard={number}/{arguments.shards}", f"--rlperf-json={name}")
        report(f"shard {number} of {arguments.shards}", found, read(project / name))
    merge = [sys.executable, "-m", "pytest_rlperf", "merge", *names, "--json=merged.json"]
    found = run(merge, project, project / "merge.log")
    report("merge", found, read(project / "merged.json"))
    compare(verdicts(read(project / "whole.json")), verdicts(read(project / "merged.json")))


def make_project(project: Path, tests: int, *, stores: bool) -> None:
    """Write the project, store its baseline if that is wanted, and commit a change of its library."""
    project.mkdir(parents=True)
    library = project / "scale_library.py"
    library.write_text(LIBRARY.format(factor=1), encoding="utf-8")
    (project / "test_scale.py").write_text(TESTS.format(tests=tests, rounds=ROUNDS), encoding="utf-8")
    (project / ".gitignore").write_text("*.json\n*.log\n__pycache__\n.pytest_cache\n!baselines/**\n", encoding="utf-8")
    (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    git(project, "init", "--quiet")
    commit(project, "Work")
    if stores:
        stored = run_pytest(project, "--rlperf-save-baseline", "--rlperf-max-time=0.5")
        print(f"stored a baseline of {tests} tests in {stored.seconds:.0f} s", flush=True)
    library.write_text(LIBRARY.format(factor=2), encoding="utf-8")
    commit(project, "Slow down one of a hundred")


def commit(project: Path, subject: str) -> None:
    """Commit everything."""
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", subject)


def git(project: Path, *arguments: str) -> None:
    """Run git as a made-up author."""
    author = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *arguments], cwd=project, check=True)


def run_pytest(project: Path, *arguments: str) -> Run:
    """Measure the project's tests."""
    command = [sys.executable, "-m", "pytest", "--rlperf", "-q", "-p", "no:cacheprovider", *arguments]
    return run(command, project, project / "pytest.log")


def run(command: Sequence[str], directory: Path, log: Path) -> Run:
    """Run a command, and read its own process's peak memory as long as it runs."""
    started_s, peak = time.monotonic(), 0
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, peak_of(process.pid))
            time.sleep(_POLL_S)
    return Run(process.returncode, time.monotonic() - started_s, peak)


def peak_of(pid: int) -> int:
    """Return a process's peak memory in bytes, 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def read(path: Path) -> dict[str, Any]:
    """Return a run's JSON."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def report(name: str, found: Run, document: dict[str, Any]) -> None:
    """Print what a run took: beside the measured slices is everything else, divided by the tests."""
    tests = document["tests"].values()
    counts = Counter(test["verdict"]["status"] for test in tests)
    timed_s = sum(0.0 if test["live"] is None else test["live"]["measured_s"] for test in tests)
    print(
        f"{name:14} {len(tests):4} tests {found.seconds:7.1f} s, timed in lanes {timed_s:7.1f} s, "
        f"{found.seconds / max(1, len(tests)):5.2f} s a test, peak {found.peak_bytes / 1e6:4.0f} MB, "
        f"exit {found.code}: {', '.join(f'{count} {status}' for status, count in sorted(counts.items()))}",
        flush=True,
    )


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    """Return each test's status, in the order of the tests."""
    return {key: test["verdict"]["status"] for key, test in document["tests"].items()}


def compare(whole: dict[str, str], merged: dict[str, str]) -> None:
    """Print how many tests have the same verdict both ways."""
    print(f"the same tests in the same order: {list(whole) == list(merged)}")
    different = Counter((status, merged[key]) for key, status in whole.items() if merged.get(key) != status)
    print(f"the same verdict: {sum(merged.get(key) == status for key, status in whole.items())} of {len(whole)}")
    for (one, other), count in sorted(different.items()):
        print(f"  {count} {one} unsharded and {other} merged")


if __name__ == "__main__":
    main()
