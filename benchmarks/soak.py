"""Measure thousands of tests in one session, and see whether anything grows; or whether planted leaks are found.

::

    python benchmarks/soak.py                # 2,000 tests by themselves
    python benchmarks/soak.py 500 --against  # 500 tests in live pairs with an earlier commit
    python benchmarks/soak.py --planted 20   # three leaks, each planted in 20 tests of another length

The run's own process notes its memory and what it holds every few tests. The table has the means of each quarter of the
run. The exit code is 1 where the last quarter has more than the second: more descriptors, threads, processes, scratch
or cache, or over ``--kilobytes`` of memory a test, which keeps its outcome and its reports for the end.

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from shared import ROOT, commit, print_table, python, write

from pytest_rlperf import units

CONFTEST = """
    import os
    from pathlib import Path

    import psutil

    OWN, EVERY = psutil.Process(), 10
    tests = 0


    def kilobytes(place):
        return sum(path.lstat().st_size for path in Path(place).rglob("*") if path.is_file()) / 1e3


    def pytest_runtest_logfinish():
        global tests
        tests += 1
        if tests % EVERY or "PYTEST_RLPERF_RUN" in os.environ:
            return
        children = OWN.children(recursive=True)
        memory = [child.memory_info().rss / 1e6 for child in children]
        figures = (
            tests, OWN.memory_info().rss / 1e6, OWN.num_fds(), OWN.num_threads(), len(children), max(memory, default=0),
            kilobytes(os.environ["TMPDIR"]), kilobytes(os.environ["XDG_CACHE_HOME"]),
        )
        with open(os.environ["SOAK"], "a") as file:
            print(*figures, file=file)
"""
TEST = """
    import pytest

    from work import work


    @pytest.mark.parametrize("number", range({tests}))
    def test_it(rlperf, number):
        rlperf(work)
"""
LEAKY = """
    import itertools
    import threading

    KEPT, CALLS = [], itertools.count(1)
    LEAKS = {{
        "objects": lambda: KEPT.append(bytes(167)),
        "threads": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
        "open_files": lambda: next(CALLS) % 100 or KEPT.append(open("/dev/null")),
    }}

    def work(kind, rounds):
        {leak}
        return sum(number * number for number in range(rounds))
"""
LEAKS = {  # each with the fewest rounds of a call: threads and files end where the system has no more of them
    "objects": ("200 B a call", 100),
    "threads": ("a thread a call", 8_000),
    "open_files": ("a file in 100 calls", 2_000),
}
ROUNDS_MOST = 16_000  # about 1 ms
PLANTED = """
    import leaky
    import pytest

    @pytest.mark.parametrize("kind, rounds", {parameters})
    def test_it(rlperf, kind, rounds):
        rlperf(lambda: leaky.work(kind, rounds))
"""
FIGURES = ("memory, MB", "descriptors", "threads", "processes", "largest worker, MB", "scratch, kB", "cache, kB")
# By how much the last quarter may have more than the second: a sample may fall on a moment when workers start or end.
SLACK = {"descriptors": 1.0, "threads": 0.5, "processes": 0.5, "scratch, kB": 100.0, "cache, kB": 10.0}


def main() -> int:
    """Run, print the table, and return 1 where something grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=int, nargs="?", default=2000)
    parser.add_argument("--against", action="store_true", help="in live pairs with an earlier commit")
    parser.add_argument("--kilobytes", type=float, default=30.0, help="of memory that a test may add")
    parser.add_argument("--planted", type=int, metavar="TIMES", help="plant each leak so often, and do nothing else")
    given = parser.parse_args()
    if given.planted:
        with tempfile.TemporaryDirectory() as place:
            return find_planted(Path(place), given.planted)
    with tempfile.TemporaryDirectory() as place:
        summary, samples = soak(Path(place), given.tests, against=given.against)
    print(summary)
    return show(samples, given.kilobytes)


def soak(place: Path, tests: int, *, against: bool) -> tuple[str, list[list[float]]]:
    """Return the last line of pytest's output, and the samples."""
    project = place / "project"
    write(project, {"pytest.ini": "[pytest]\n", "conftest.py": CONFTEST, "test_it.py": TEST.format(tests=tests)})
    for name in ("tmp", "cache"):
        (place / name).mkdir()
    for size in (100, 101):  # two commits
        write(project, {"work.py": f"def work():\n    return sum(range({size}))\n"})
        commit(project, f"{size}")
    variables = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "SOAK": str(place / "samples"),
        "TMPDIR": str(place / "tmp"),
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    options = [
        "--rlperf",
        "--rlperf-max-time=0.000001",
        *(["--rlperf-against=HEAD~1", "-o", "rlperf_reach=off"] if against else []),
    ]
    command = ["-m", "pytest", "-p", "rlperf", "-p", "no:cacheprovider", "-q", *options]
    ended = python(command, project, PYTHONPATH=str(ROOT), **variables)
    if not (place / "samples").exists():
        raise SystemExit(ended.output)
    last = ended.output.rstrip().rpartition("\n")[2].strip("= ")
    return last, [[float(field) for field in line.split()] for line in (place / "samples").read_text().splitlines()]


def find_planted(project: Path, times: int) -> int:
    """Print how many of the planted leaks are named, and in how long; return 1 where one is not."""
    parameters = [
        (kind, round(least * (ROUNDS_MOST / least) ** (number / max(1, times - 1))))
        for kind, (_, least) in LEAKS.items()
        for number in range(times)
    ]
    write(project, {"pytest.ini": "[pytest]\n", "test_it.py": PLANTED.format(parameters=parameters)})
    for leak in ("pass", "LEAKS[kind]()"):
        write(project, {"leaky.py": LEAKY.format(leak=leak)})
        commit(project, leak)
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--rlperf-against=HEAD~1",
        "-o",
        "rlperf_reach=off",
        "--rlperf-json=run.json",
    ]
    ended = python(["-m", "pytest", *options], project, PYTHONPATH=str(ROOT))
    if not (project / "run.json").exists():
        raise SystemExit(ended.output)
    tests = json.loads((project / "run.json").read_text(encoding="utf-8"))["tests"]
    rows, missed = [], 0
    for kind, (leak, _) in LEAKS.items():
        of_kind = [test for key, test in tests.items() if f"[{kind}-" in key]
        found = [test for test in of_kind if any(kind in each["figures"] for each in test["verdict"]["findings"])]
        missed += len(of_kind) - len(found)
        seconds, calls = ([test[name] for test in of_kind] for name in ("seconds", "base_call_s"))
        lengths = f"{units.seconds(min(calls))} to {units.seconds(max(calls))}"
        rows.append([leak, lengths, f"{len(found)} of {len(of_kind)}", f"{fmean(seconds):.1f}", f"{max(seconds):.1f}"])
    print_table(["planted", "a call", "named", "s a test", "at most"], rows)
    return int(missed > 0)


def show(samples: list[list[float]], kilobytes: float) -> int:
    """Print the means of each quarter; return 1 where the last one has more than the second."""
    quarters = [samples[number * len(samples) // 4 : (number + 1) * len(samples) // 4] for number in range(4)]
    tests = fmean(sample[0] for sample in quarters[3]) - fmean(sample[0] for sample in quarters[1])
    rows, is_grown = [], False
    for index, name in enumerate(FIGURES, 1):
        means = [fmean(sample[index] for sample in quarter) for quarter in quarters]
        growth = means[3] - means[1]
        is_memory = name.endswith("MB")
        grows = growth > (tests * kilobytes / 1e3 if is_memory else SLACK[name])
        is_grown = is_grown or grows
        note = f"{1e3 * growth / tests:+.1f} kB a test" if is_memory else ""
        rows.append([name, *(f"{mean:.1f}" for mean in means), f"{note}{' GROWS' if grows else ''}"])
    print_table(["", "1st quarter", "2nd", "3rd", "4th", ""], rows)
    return int(is_grown)


if __name__ == "__main__":
    sys.exit(main())
