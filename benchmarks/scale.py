"""How long many trivial tests take on one machine, unsharded and in shards.

    python benchmarks/scale.py DIRECTORY --tests 300 --shards 4

It makes a project in DIRECTORY with a library, that many tests of calls of about 1 ms, and a commit that slows one test
of a hundred down to half of its speed. It compares all tests with the commit before, then each shard, one after another
on this machine, and merges the shards.

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from shared import ROOT, Ended, commit, python, write

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


def main() -> None:
    """Measure all tests, then the shards, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tests", type=int, default=300)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--max-time", type=float, default=60.0, help="seconds a test, as --rlperf-max-time")
    parser.add_argument("--tolerance", default="10%", help="as --rlperf-tolerance: a high one settles tests soon")
    arguments = parser.parse_args()
    project = arguments.directory
    options = [f"--rlperf-max-time={arguments.max_time:g}", f"--rlperf-tolerance={arguments.tolerance}"]
    make_project(project, arguments.tests)
    whole = run_pytest(project, *options, "--rlperf-json=whole.json")
    report("unsharded", whole, read(project / "whole.json"))
    names = [f"shard-{number}.json" for number in range(1, arguments.shards + 1)]
    for number, name in enumerate(names, 1):
        found = run_pytest(project, *options, f"--rlperf-shard={number}/{arguments.shards}", f"--rlperf-json={name}")
        report(f"shard {number} of {arguments.shards}", found, read(project / name))
    merge = ["-m", "pytest_rlperf", "merge", *names, "--json=merged.json"]
    found = python(merge, project, PYTHONPATH=str(ROOT))
    report("merge", found, read(project / "merged.json"))
    compare(read(project / "whole.json"), read(project / "merged.json"))


def make_project(project: Path, tests: int) -> None:
    """Write the project, and commit a change of its library."""
    own = {"test_scale.py": TESTS.format(tests=tests, rounds=ROUNDS), "pytest.ini": "[pytest]\n"}
    write(project, own | {".gitignore": "*.json\n__pycache__\n", "scale_library.py": LIBRARY.format(factor=1)})
    commit(project, "Work")
    write(project, {"scale_library.py": LIBRARY.format(factor=2)})
    commit(project, "Slow down one of a hundred")


def run_pytest(project: Path, *arguments: str) -> Ended:
    """Measure the project's tests."""
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rlperf-against=HEAD~1",
        "-o",
        "rlperf_reach=off",
        *arguments,
    ]
    return python(command, project, PYTHONPATH=str(ROOT))


def read(path: Path) -> dict[str, Any]:
    """Return the tests in a run's JSON."""
    tests: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["tests"]
    return tests


def report(name: str, found: Ended, tests: dict[str, Any]) -> None:
    """Print what a run took: beside the measured slices is everything else, divided by the tests."""
    counts = Counter(test["verdict"]["status"] for test in tests.values())
    timed_s = sum(0.0 if test["live"] is None else test["live"]["measured_s"] for test in tests.values())
    print(
        f"{name:14} {len(tests):4} tests {found.seconds:7.1f} s, timed in lanes {timed_s:7.1f} s, "
        f"{found.seconds / max(1, len(tests)):5.2f} s a test, "
        f"exit {found.code}: {', '.join(f'{count} {status}' for status, count in sorted(counts.items()))}",
        flush=True,
    )


def compare(whole: dict[str, Any], merged: dict[str, Any]) -> None:
    """Print how many tests have the same verdict both ways."""
    print(f"the same tests in the same order: {list(whole) == list(merged)}")
    both = [tuple(tests[key]["verdict"]["status"] for tests in (whole, merged)) for key in whole if key in merged]
    print(f"the same verdict: {sum(one == other for one, other in both)} of {len(whole)}")
    for (one, other), count in sorted(Counter(both).items()):
        if one != other:
            print(f"  {count} {one} unsharded and {other} merged")


if __name__ == "__main__":
    main()
