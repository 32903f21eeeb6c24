"""Plants slowdowns in a repository of many commits, and shows which of them two searches find, at which cost.

``python benchmarks/bisection.py --commits 200`` runs `pytest --rlperf-bisect`, and for each test `git bisect run`
with pytest-benchmark's `--benchmark-compare-fail=median:5%`. Everything happens in a scratch directory.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROUNDS = 20_000
_OURS, _PEER = "pytest --rlperf-bisect", "git bisect run, median:5%"
LIBRARY = """{broken}
NUMBER = {number}


def scan():
    return sum(range({scan}))


def sample():
    return sum(range({sample}))


def forward():
    return sum(range({forward}))


def backward():
    return sum(range({backward}))


def update():
    return forward(), backward()
"""
TESTS = """
import library


def test_scan(rlperf):
    rlperf(library.scan)


def test_sample(rlperf):
    rlperf(library.sample)


def test_update(rlperf):
    rlperf(library.update, phases={"forward": library.forward, "backward": library.backward})
"""
PEER = """
import library


def test_scan(benchmark):
    benchmark(library.scan)


def test_sample(benchmark):
    benchmark(library.sample)


def test_update(benchmark):
    benchmark(library.update)
"""
# 125 has git bisect skip a commit.
STEP = """#!/bin/sh
{python} -c 'import library' 2>/dev/null || exit 125
{python} -m pytest -q -p no:cacheprovider {peer} -k {test} --benchmark-storage={storage} --benchmark-compare=0001 \\
    --benchmark-compare-fail=median:5% >/dev/null 2>&1
"""


def git(top: Path, *arguments: str) -> str:
    """Run git and return its output."""
    identity = ("-c", "user.name=bisect", "-c", "user.email=bisect@example.org", "-c", "commit.gpgSign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=top, capture_output=True, text=True, check=False)
    return done.stdout


def planted(commits: int) -> dict[str, int]:
    """Return the number of the commit that each test's slowdown is in."""
    return {"test_scan": commits // 5, "test_sample": commits * 11 // 20, "test_update": commits * 4 // 5}


def undone(commits: int) -> range:
    """Return the commits on which the slowdown of test_sample lasts that is undone."""
    return range(commits * 3 // 10, commits * 2 // 5)


def library(number: int, commits: int) -> str:
    """Return the library at a commit: +4 %, +8 % after +5 % that is undone, and +7 % in one phase; ten do not build."""
    at = planted(commits)
    is_moved = number >= at["test_update"]
    built = {0, commits, *at.values(), undone(commits).start}
    sample = (1.05 if number in undone(commits) else 1) * (1.08 if number >= at["test_sample"] else 1)
    broken = number % max(3, commits // 11) == 2 and number not in built
    return LIBRARY.format(
        broken="raise ImportError('this commit does not build')" if broken else "",
        number=number,
        scan=round(ROUNDS * (1.04 if number >= at["test_scan"] else 1)),
        sample=round(ROUNDS * sample),
        forward=round(ROUNDS / 2 * (0.9 if is_moved else 1)),
        backward=round(ROUNDS / 2 * (1.24 if is_moved else 1)),
    )


def make_repository(top: Path, commits: int) -> list[str]:
    """Make the repository, and return its commits from the good one on."""
    (top / "tests").mkdir(parents=True)
    git(top, "init", "--quiet")
    (top / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    (top / "tests/test_speed.py").write_text(TESTS)
    (top / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    for number in range(commits + 1):
        (top / "library.py").write_text(library(number, commits))
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "--message", f"number {number}")
    return git(top, "rev-list", "--reverse", "HEAD").split()


def judged(test: str, number: int, commits: list[str]) -> str:
    """Return whether a commit is the one that a slowdown of a test was planted in."""
    if test == "test_sample" and number == undone(len(commits) - 1).start:
        return "the slowdown that is undone"
    return "right" if number == planted(len(commits) - 1)[test] else "WRONG"


def search(top: Path, commits: list[str], more: list[str], counts: Counter[tuple[str, str]]) -> None:
    """Search by live pairs, print what is found, and count it."""
    at = planted(len(commits) - 1)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rlperf-bisect={commits[0]}", *more]
    started_s = time.monotonic()
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False)
    minutes = (time.monotonic() - started_s) / 60
    print(done.stdout[done.stdout.find("= rlperf bisect =") :])
    print(f"pytest --rlperf-bisect: {minutes:.1f} minutes for all three tests together, exit code {done.returncode}")
    for test, number in at.items():
        found = re.search(rf"{test}: (.*) \(.*; (\d+) probes?, (\d+) pairs?\)", done.stdout)
        if found is None:
            print(f"{test}: no search")
            counts[_OURS, "nothing"] += 1
            continue
        text, probes, pairs = found.groups()
        named = re.match(r"commit (\w+) is the first slower one", text)
        right = "a range"
        if named is not None:
            right = judged(test, next(at for at, sha in enumerate(commits) if sha.startswith(named[1])), commits)
        counts[_OURS, right] += 1
        print(f"{test}: planted {commits[number][:12]}; {text}: {right}, {probes} probes, {pairs} pairs", flush=True)


def search_by_median(top: Path, commits: list[str], scratch: Path, counts: Counter[tuple[str, str]]) -> None:
    """Search with `git bisect run` and pytest-benchmark, test by test, print what is found, and count it."""
    peer = scratch / "test_peer.py"
    scratch.mkdir()
    peer.write_text(PEER)
    for test in planted(len(commits) - 1):
        storage, step = scratch / f"storage-{test}", scratch / f"step-{test}.sh"
        words = {"python": sys.executable, "peer": str(peer), "test": test, "storage": str(storage)}
        step.write_text(STEP.format(**{name: shlex.quote(word) for name, word in words.items()}))
        step.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(top), "PYTHONDONTWRITEBYTECODE": "1"}
        started_s = time.monotonic()
        git(top, "checkout", "--quiet", commits[0])
        save = [f"--benchmark-storage={storage}", "--benchmark-save=good"]
        base = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(peer), "-k", test]
        subprocess.run([*base, *save], cwd=top, env=environment, capture_output=True, check=True)
        git(top, "bisect", "start", commits[-1], commits[0])
        done = subprocess.run(
            ["git", "bisect", "run", str(step)], cwd=top, env=environment, capture_output=True, text=True, check=False
        )
        found = re.search(r"^(\w{40}) is the first bad commit", done.stdout, re.MULTILINE)
        git(top, "bisect", "reset")
        git(top, "checkout", "--quiet", commits[-1])
        steps = done.stdout.count("running ")
        right = "nothing" if found is None else judged(test, commits.index(found[1]), commits)
        counts[_PEER, right] += 1
        named = "" if found is None else f"number {commits.index(found[1])}, "
        minutes = (time.monotonic() - started_s) / 60
        print(f"{_PEER}, {test}: {named}{right}, {steps} steps, {minutes:.1f} minutes", flush=True)


def main() -> None:
    """Run both searches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=1, help="of both searches, in turn")
    parser.add_argument("--no-peer", action="store_true", help="leave out git bisect run")
    parser.add_argument("more", nargs="*", help="further arguments of pytest, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlperf-bisect-") as directory:
        scratch = Path(directory)
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        top = scratch / "repository"
        commits = make_repository(top, arguments.commits)
        counts: Counter[tuple[str, str]] = Counter()
        for number in range(arguments.repetitions):
            search(top, commits, arguments.more, counts)
            if not arguments.no_peer:
                search_by_median(top, commits, scratch / f"peer-{number}", counts)
        for (searched, right), count in sorted(counts.items()):
            print(f"{searched}: {count} {right}")


if __name__ == "__main__":
    main()
