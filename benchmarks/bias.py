"""The mean of many pairs of equal code: whether anything makes one side of a live comparison the faster one.

A clone of this project has a commit more, which changes a comment in a module that every test loads. Its suite is
compared live with the commit before again and again, by pytest as users run it, and each test's log-ratios of head to
base are averaged over all pairs. Variants bring back what was found to differ between the sides; they take turns,
session by session. Prints Markdown tables and judges nothing::

    python benchmarks/bias.py                                  # the product as it is, 10 to 20 minutes
    python benchmarks/bias.py --only replay,gae --variants now,trees --sessions 20

Its figures are in benchmarks/results/bias.txt.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from bias_plugin import SECONDS, SUSPECTS, VARIANT
from shared import ROOT, SUITE, commit_comment, git, print_table, python, tell

COMPONENTS = ("vecenv", "replay", "gae", "ppo", "sac")
NOW = "now"
TITLES = ("test", "variant", "mean %", "standard error", "SD of a pair", "largest", "pairs")

Ratios: TypeAlias = dict[tuple[str, str], list[float]]
"""Log-ratios by test and variant."""


def make_project(project: Path) -> None:
    """Clone this project, compiled as it would be after a first run, with a commit more that changes a comment."""
    git(ROOT, "clone", "--quiet", str(ROOT), str(project))
    commit_comment(project)
    compileall.compile_dir(str(project / "pytest_rlperf"), quiet=2)


def run(scratch: Path, variant: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Run the suite once; return every test's log-ratios, in the order of its pairs."""
    project, found = scratch / "project", scratch / "run.json"
    found.unlink(missing_ok=True)
    variables = {
        "PYTHONPATH": os.pathsep.join([str(project), str(ROOT / "benchmarks")]),
        # Variants leave different compiled modules in a side's tree.
        "XDG_CACHE_HOME": str(scratch / f"cache-{variant}"),
        "PYTEST_PLUGINS": "bias_plugin",
        VARIANT: variant,
        SECONDS: str(options.seconds),
    }
    arguments = [
        "--rlperf-against=HEAD~1",
        "-o",
        "rlperf_reach=off",
        f"--rlperf-json={found}",
        "--rlperf-max-time=1000",
    ]
    # No interval fits a tolerance this small, so every test takes all its pairs.
    arguments += ["-o", f"rlperf_pairs={options.pairs}..{options.pairs}", "--rlperf-tolerance=0.001%"]
    tests = [str(SUITE.relative_to(ROOT) / f"test_{name}.py") for name in options.only.split(",")]
    ended = python(["-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *tests], project, **variables)
    if not found.exists() or "INTERNALERROR" in ended.output:
        raise SystemExit(ended.output)
    ratios = {}
    for key, test in json.loads(found.read_text(encoding="utf-8"))["tests"].items():
        live = test["live"]
        if live is None:
            raise SystemExit(f"{key}: {test['verdict']}")
        ratios[key.rpartition("::")[2]] = [pair[f"{live['clock']}_log_ratio"] for pair in live["pairs"]]
    return ratios


def row(test: str, variant: str, ratios: Sequence[float]) -> Sequence[str]:
    """Return a test's row of the table, in per cent."""
    spread = statistics.stdev(ratios)
    error = spread / math.sqrt(len(ratios))
    figures = f"{100 * statistics.fmean(ratios):+.2f}", f"{100 * error:.2f}", f"{100 * spread:.2f}"
    return test, variant, *figures, f"{100 * max(ratios, key=abs):+.1f}", str(len(ratios))


def show(ratios: Ratios) -> None:
    """Print the mean of all pairs by test and variant."""
    print_table(TITLES, [row(test, variant, values) for (test, variant), values in sorted(ratios.items())])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=12, help="runs of pytest of each variant")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of a test in a session")
    parser.add_argument("--seconds", type=float, default=0.5, help="the longest measuring time of a pair")
    parser.add_argument("--only", default=",".join(COMPONENTS), help="components, parted by commas")
    names = ", ".join([NOW, *SUSPECTS])
    parser.add_argument("--variants", default=NOW, help=f"parted by commas: {names}, several joined by +")
    options = parser.parse_args()
    variants = options.variants.split(",")
    for name in "+".join(variants).split("+"):
        if name not in (NOW, *SUSPECTS):
            parser.error(f"--variants={options.variants}: {name!r} is none of {names}")
    ratios: Ratios = {}
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bias-") as name:
        scratch = Path(name).resolve()
        make_project(scratch / "project")
        for session in range(options.sessions):
            for variant in variants if session % 2 else variants[::-1]:
                for test, values in run(scratch, variant, options).items():
                    ratios.setdefault((test, variant), []).extend(values)
            elapsed_s = time.monotonic() - started_s
            tell(f"{elapsed_s:.0f} s, session {session + 1} of {options.sessions}")
    show(ratios)
    cpus, load = os.cpu_count(), os.getloadavg()[2]
    print(f"\n{cpus} CPUs, load average {load:.1f} over the last 15 minutes, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
