"""Comparisons in a tree that never rests: whether any figure is of two versions of the code.

Two commits follow a base: one of equal code, and one that does twice the work. While runs compare today's tree with the
base, a thread edits the module and the test, checks the commits out in turn, rebases, and has git collect garbage. A
run is wrong where its change is not that of the version that its label names: the commit that was checked out, or, for
"working tree", one of those that the thread writes. Prints a Markdown table and judges nothing::

    python benchmarks/moving_tree.py              # 40 runs, five minutes
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import threading
from collections import Counter
from pathlib import Path

from shared import commit, git, print_table, python, tell, write

WORK = "def work():\n    s = 0\n    for i in range({calls}):\n        s += i * i\n    return s\n"
TEST = "from lib import work\n\n\ndef test_work(rlperf):\n    rlperf(work)\n"
CALLS = 1500
EDITS = (3, 5)  # times the work, of versions that are in no commit
NEAR = 1.15  # times: how far a change of a run beside others may lie from the true one


def make_project(project: Path) -> dict[str, float]:
    """Make the repository; return how many times slower each commit after the base is, by its label."""
    write(project, {".gitignore": "__pycache__/\n", "test_work.py": TEST, "lib.py": WORK.format(calls=CALLS)})
    commit(project, "base")
    git(project, "tag", "base")
    slower = {}
    for name, text, times in (
        ("same", WORK.format(calls=CALLS) + "# a comment\n", 1.0),
        ("twice", WORK.format(calls=2 * CALLS), 2.0),
    ):
        git(project, "checkout", "--quiet", "-b", name, "base")
        (project / "lib.py").write_text(text, encoding="utf-8")
        commit(project, name)
        slower[f"HEAD {git(project, 'rev-parse', 'HEAD')[:12]}"] = times
    return slower


def disturb(project: Path, stopped: threading.Event, number: int) -> None:
    """Edit, check out, rebase and collect garbage until the run is over, and leave no commit changed."""
    while not stopped.wait(0.4):
        number += 1
        branch = ("same", "twice")[number % 2]
        git(project, "checkout", "--quiet", "--force", branch)
        if stopped.wait(0.7):
            break
        (project / "lib.py").write_text(WORK.format(calls=EDITS[number % 2] * CALLS), encoding="utf-8")
        (project / "test_work.py").write_text(TEST + "\n", encoding="utf-8")
        if number % 3 == 0:
            git(project, "checkout", "--quiet", "--force", branch)
            git(project, "rebase", "--quiet", "--force-rebase", "--no-ff", "base", "--exec", "true")
            git(project, "reset", "--quiet", "--hard", f"{branch}@{{1}}")
        if number % 5 == 0:
            git(project, "gc", "--quiet")
    git(project, "checkout", "--quiet", "--force", "same")


def measured(project: Path, found: Path, cache: Path) -> tuple[str, float, str]:
    """Compare once; return the label of today's tree, how many times slower it was measured, and the verdict."""
    found.unlink(missing_ok=True)
    arguments = [
        "--rlperf-against=base",
        "-o",
        "rlperf_reach=off",
        f"--rlperf-json={found}",
        "-o",
        "rlperf_pairs=3..5",
        "--rlperf-max-time=10",
    ]
    ended = python(["-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], project, XDG_CACHE_HOME=str(cache))
    if not found.exists():
        return "no run", 0.0, ended.output.strip().splitlines()[-1][:90]
    document = json.loads(found.read_text(encoding="utf-8"))
    test = next(iter(document["tests"].values()), None)
    if test is None or test["live"] is None:
        status = "nothing was measured" if test is None else test["verdict"]["status"]
        return "no pairs", 0.0, status
    ratios = [pair[f"{test['live']['clock']}_log_ratio"] for pair in test["live"]["pairs"]]
    return test["live"]["head_label"], math.exp(statistics.fmean(ratios)), test["verdict"]["status"]


def main() -> None:
    """Compare in a tree that changes, and print what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    rows: Counter[tuple[str, str, str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="moving-tree-") as name:
        scratch = Path(name).resolve()
        slower = make_project(scratch / "project")
        for number in range(options.runs):
            stopped = threading.Event()
            thread = threading.Thread(target=disturb, args=(scratch / "project", stopped, number))
            thread.start()
            try:
                label, times, status = measured(scratch / "project", scratch / "run.json", scratch / "cache")
            finally:
                stopped.set()
                thread.join()
            possible = [slower[label]] if label in slower else [1.0, 2.0, *map(float, EDITS)]
            nearest = min(possible, key=lambda true: abs(math.log(times / true)) if times else 0.0)
            is_right = not times or 1 / NEAR < times / nearest < NEAR
            title = {1.0: "the commit of equal code", 2.0: "the commit of twice the work"}.get(
                slower.get(label, 0.0), label
            )
            rows[title, f"{times:.1f}" if times else "", status, "" if is_right else "WRONG"] += 1
            tell(f"run {number + 1} of {options.runs}: {label}, {times:.2f}, {status}")
    print_table(
        ("today's tree", "times slower", "verdict", "", "runs"),
        [(*row, str(runs)) for row, runs in sorted(rows.items())],
    )


if __name__ == "__main__":
    main()
