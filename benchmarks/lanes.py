"""Verdicts a minute, and how much pairs differ, with one lane and with all, of the shipped suite's unchanged code.

Each version of this repository that is compared is cloned; its figures are stored there, and a comment in a module
that every test loads makes its code one that may differ. Then the versions and numbers of lanes take turns, a run of
the suite each. Prints Markdown tables and judges nothing::

    python benchmarks/lanes.py --rounds 3                      # this commit: one lane, and as many as there are
    python benchmarks/lanes.py --rounds 3 --before REF         # and a version before, by its own rules
    python benchmarks/lanes.py --rounds 3 --busy               # beside a process that is always busy
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlperf.baseline.machine import describe, this_machine

ROOT = Path(__file__).resolve().parents[1]
CHANGED = "pytest_rlperf/units.py"  # loaded by every test of the suite
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass\n"


@dataclass(frozen=True)
class Mode:
    """A version of this repository in its clone, and the options that it runs with."""

    title: str
    clone: Path
    options: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One run of the suite: its seconds and, by test, what its JSON has."""

    seconds: float
    tests: dict[str, dict[str, Any]]


def git(folder: Path, *arguments: str) -> str:
    """Run git in ``folder`` and return its output."""
    found = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def pytest(folder: Path, *arguments: str) -> float:
    """Run pytest in ``folder`` with the package that is there; return its seconds."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    start_s = time.monotonic()
    own = kept | {"PYTHONPATH": str(folder)}  # before an installed version, in workers too
    done = subprocess.run(command, cwd=folder, env=own, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "ERROR" in done.stdout:
        raise SystemExit(f"{' '.join(command)} in {folder} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.monotonic() - start_s


def clone(reference: str, folder: Path) -> Path:
    """Clone a version of this repository, store its figures, and change a comment; return the clone."""
    show(f"preparing {reference}")
    git(ROOT, "clone", "--quiet", str(ROOT), str(folder))
    git(folder, "checkout", "--quiet", reference)
    for name, value in (("user.name", "benchmark"), ("user.email", "benchmark@localhost")):
        git(folder, "config", name, value)
    git(folder, "rm", "-r", "--quiet", "baselines")
    git(folder, "commit", "--quiet", "-m", "Remove figures of another version")
    pytest(folder, "--rlperf-save-baseline")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "Store figures")
    module = folder / CHANGED
    module.write_text(f"{module.read_text(encoding='utf-8')}\n# Another comment.\n", encoding="utf-8")
    git(folder, "commit", "--quiet", "-am", "Change a comment")
    return folder


def measure(mode: Mode, out: Path) -> Run:
    """Run the suite once."""
    seconds = pytest(mode.clone, "--rlperf", f"--rlperf-json={out}", *mode.options)
    tests = json.loads(out.read_text(encoding="utf-8"))["tests"]
    return Run(seconds, {key.rpartition("::")[2]: test for key, test in tests.items()})


@contextlib.contextmanager
def neighbour(*, is_busy: bool) -> Iterator[None]:
    """Keep one CPU busy beside the body, if at all."""
    process = subprocess.Popen([sys.executable, "-c", BUSY]) if is_busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def log_ratios(test: dict[str, Any]) -> list[float]:
    """Return the pairs' log ratios in %, by the clock that was judged; none where no pairs were taken."""
    live = test["live"]
    if live is None:
        return []
    return [100 * pair[f"{live['clock'].lower()}_log_ratio"] for pair in live["pairs"]]


def pooled(samples: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within samples."""
    parts = [(statistics.variance(sample), len(sample) - 1) for sample in samples if len(sample) > 1]
    freedom = sum(weight for _, weight in parts)
    return math.sqrt(sum(variance * weight for variance, weight in parts) / freedom) if freedom else math.nan


def report(runs: dict[str, list[Run]]) -> str:
    """Return the tables: a line a mode, then a line a test and mode."""
    lines = _head(
        "", "seconds a run", "verdicts", "verdicts a minute", "SD of a pair, %", "pairs", "measured, s", "set up, s"
    )
    for title, taken in runs.items():
        tests = [test for run in taken for test in run.tests.values()]
        statuses = [test["verdict"]["status"] for test in tests]
        verdicts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
        ratios = [log_ratios(test) for test in tests]
        pairs = [pair for test in tests if test["live"] for pair in test["live"]["pairs"]]
        each = " ".join(f"{run.seconds:.0f}" for run in taken)
        rate = 60 * len(tests) / sum(run.seconds for run in taken)
        times = [sum(pair[name] for pair in pairs) / len(taken) for name in ("seconds", "setup_s")]
        cells = [title, each, verdicts, f"{rate:.1f}", f"{pooled(ratios):.2f}", str(len(pairs))]
        lines.append(f"| {' | '.join([*cells, *(f'{each_s:.0f}' for each_s in times)])} |")
    columns = (
        "test",
        "",
        "SD of a pair, %",
        "pairs a verdict",
        "seconds a pair",
        "mean estimate, % (largest)",
        "verdicts",
    )
    lines += ["", *_head(*columns)]
    for name in dict.fromkeys(name for taken in runs.values() for run in taken for name in run.tests):
        for title, taken in runs.items():
            tests = [run.tests[name] for run in taken if name in run.tests]
            lines += [_line(name, title, tests)] if tests else []
    return "\n".join(lines)


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]


def _line(name: str, title: str, tests: Sequence[dict[str, Any]]) -> str:
    ratios = [log_ratios(test) for test in tests]
    pairs = [pair for test in tests if test["live"] for pair in test["live"]["pairs"]]
    means = [statistics.fmean(sample) for sample in ratios if sample] or [math.nan]
    statuses = [test["verdict"]["status"] for test in tests]
    cells = [
        name,
        title,
        f"{pooled(ratios):.2f}",
        f"{len(pairs) / len(tests):.1f}",
        f"{statistics.fmean(pair['seconds'] for pair in pairs):.2f}" if pairs else "–",
        f"{statistics.fmean(means):+.2f} ({max(means, key=abs):+.2f})",
        ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)),
    ]
    return f"| {' | '.join(cells)} |"


def show(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each mode (default: 3)")
    parser.add_argument("--before", help="a commit to compare with, which runs by its own rules")
    parser.add_argument("--busy", action="store_true", help="keep one CPU busy meanwhile")
    parser.add_argument("--lanes", nargs="*", default=["1", "auto"], help="numbers of lanes (default: 1 auto)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlperf-lanes-") as scratch, neighbour(is_busy=arguments.busy):
        folder = Path(scratch)
        today = clone("HEAD", folder / "today")
        modes = [Mode(f"lanes: {lanes}", today, (f"--rlperf-lanes={lanes}",)) for lanes in arguments.lanes]
        if arguments.before:
            modes.append(Mode(f"before ({arguments.before})", clone(arguments.before, folder / "before"), ()))
        runs: dict[str, list[Run]] = {mode.title: [] for mode in modes}
        for number in range(arguments.rounds):
            for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
                runs[mode.title].append(measure(mode, folder / "run.json"))
                show(f"round {number + 1} of {arguments.rounds}, {mode.title}: {runs[mode.title][-1].seconds:.0f} s")
    load = ", beside a busy process" if arguments.busy else ""
    print(f"{describe(this_machine())}; {arguments.rounds} rounds{load}\n")
    print(report(runs))


if __name__ == "__main__":
    main()
