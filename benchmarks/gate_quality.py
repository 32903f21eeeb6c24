"""False alarms, power and seconds of live pairs and of pytest-benchmark's gates, on the shipped suite beside a load.

Each repetition runs the suite as a gate, against a commit that differs by a comment; then against itself with 5 % of
real extra work on one side; then by pytest-benchmark: a stored run, a comparing run of unchanged code, and one with the
same extra work. No two of these runs share a process. A spinning neighbour is on for about 4 s and off for about 6 s
all the while, but for every other one of the gates that only ``--unchanged`` asks for. Prints Markdown tables and
judges nothing::

    python benchmarks/gate_quality.py                     # 15 repetitions of three to five minutes
    python benchmarks/gate_quality.py --unchanged 60      # and 45 gates more of unchanged code
    python benchmarks/gate_quality.py --out DIR           # what DIR has not yet, kept there
    python benchmarks/gate_quality.py --report DIR        # the tables of what is in DIR

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from gate_quality_plugin import VARIABLE
from gate_quality_tables import (
    GATES,
    LIMITS,
    RESULTS,
    STATISTICS,
    Benchmarks,
    Compared,
    Failed,
    Gate,
    Line,
    Log,
    Session,
    Slowed,
    Trial,
    in_brief,
    report,
)
from shared import ROOT, SUITE, Ended, commit, commit_comment, git, python, tell

from pytest_rlperf.baseline.machine import describe, this_machine

PLUGINS = str(ROOT / "benchmarks")
TESTS = [str(path) for path in sorted(SUITE.glob("test_*.py"))]  # without those of libraries
NEIGHBOUR = """
import os, random, time
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + random.uniform(3, 5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(5, 7))
"""

Figures: TypeAlias = Mapping[str, Mapping[str, float]]


class StepError(Exception):
    """A run gave no figures."""


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Load the machine beside the body; a neighbour whose parent was killed ends by itself."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(arguments: Sequence[str], folder: Path, **variables: str) -> Ended:
    """Run pytest in ``folder``."""
    return python(["-m", "pytest", "-p", "no:cacheprovider", *arguments], folder, **variables)


def clone(project: Path) -> None:
    """Clone this repository, store its figures, and change a comment."""
    tell("preparing a clone")
    git(ROOT, "clone", "--quiet", str(ROOT), str(project))
    git(project, "rm", "-r", "--quiet", "baselines")
    commit(project, "Remove figures of another machine")
    stored = run(["--rlperf-save-baseline"], project, PYTHONPATH=str(project))
    if stored.code not in (0, 1):
        raise SystemExit(stored.output)
    commit(project, "Store figures")
    commit_comment(project)


def run_gate(repetition: int, folder: Path, is_alone: bool) -> Gate:
    """Compare unchanged code by ``pytest --rlperf`` in a clone; the run's own JSON is kept in ``folder``."""
    project = folder.absolute() / "clone"
    if not project.exists():
        clone(project)
    path = folder.absolute() / f"gate-{repetition:02}.json"
    path.unlink(missing_ok=True)
    seconds, code, output = run(
        ["--rlperf", "-o", "rlperf_reach=off", f"--rlperf-json={path}"], project, PYTHONPATH=str(project)
    )
    if code not in (0, 1) or not path.exists():
        raise StepError(output)
    trials = []
    for nodeid, test in json.loads(path.read_text(encoding="utf-8"))["tests"].items():
        pairs = () if test["live"] is None else test["live"]["pairs"]
        trials.append(trial(nodeid, test["verdict"], len(pairs), test["seconds"]))
    return Gate(repetition, seconds, tuple(trials), is_alone)


def run_slowed(repetition: int, folder: Path) -> Slowed:
    """Compare the suite with itself, slowed down; the unchanged trials, in the same processes, are left out."""
    path = folder.absolute() / f"slowed-{repetition:02}.json"
    path.unlink(missing_ok=True)
    arguments = [*TESTS, "-p", "gate_quality_plugin", "--rlperf:check-machine", f"--rlperf-json={path}"]
    _, code, output = run(arguments, ROOT, PYTHONPATH=PLUGINS)
    if code != 0 or not path.exists():
        raise StepError(output)
    trials = []
    for nodeid, check in json.loads(path.read_text(encoding="utf-8"))["tests"].items():
        slowed = [each for each in check["trials"] if each["slowdown"]]
        trials += [trial(nodeid, each["verdict"], len(each["pairs"]), each["seconds"]) for each in slowed]
    return Slowed(repetition, tuple(trials))


def trial(nodeid: str, verdict: Mapping[str, Any], pairs: int, seconds: float) -> Trial:
    """Return what is kept of a verdict."""
    estimate = verdict["estimate"]
    ratio = None if estimate is None else estimate["ratio"]
    return Trial(nodeid.rpartition("::")[2], verdict["status"], ratio, pairs, seconds)


def run_benchmarks(repetition: int) -> Benchmarks:
    """Store the suite's figures by pytest-benchmark, and compare unchanged and slowed code with them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored_s, stored, _ = run_benchmark(folder, "--benchmark-save=stored", slow=False)
        return Benchmarks(repetition, stored_s, compare(folder, stored, slow=False), compare(folder, stored, slow=True))


def compare(folder: Path, stored: Figures, *, slow: bool) -> Compared:
    """Compare the suite with what pytest-benchmark stored in ``folder``."""
    # All gates after one flag: of several flags pytest-benchmark heeds the last.
    gates = ["--benchmark-compare=0001", "--benchmark-compare-fail", *GATES]
    seconds, found, failed = run_benchmark(folder, *gates, slow=slow)
    if found.keys() != stored.keys():
        raise StepError(f"stored {sorted(stored)}, but then measured {sorted(found)}")
    changes = {
        test: {name: figures[name] / stored[test][name] - 1 for name in STATISTICS} for test, figures in found.items()
    }
    over = {
        (test, f"{name}:{limit}%")
        for test, change in changes.items()
        for name, limit in product(STATISTICS, LIMITS)
        if 100 * change[name] > limit
    }
    if over != {(test, gate) for test, gates in failed.items() for gate in gates}:
        raise StepError(f"its figures are over {sorted(over)}, but what it said fails {failed}")
    return Compared(seconds, failed, changes)


def run_benchmark(folder: Path, *arguments: str, slow: bool) -> tuple[float, Figures, dict[str, tuple[str, ...]]]:
    """Run the suite by pytest-benchmark; return seconds, figures by test, and gates failed by test.

    What preparing took, checks and sizing the extra work, is not in the seconds.
    """
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    path = folder / "benchmark.json"
    path.unlink(missing_ok=True)
    own = ["-c", "pytest.ini", "--rootdir=.", f"--confcutdir={SUITE}", "-p", "gate_quality_plugin"]
    outputs = [f"--benchmark-storage=file://{folder}/stored", f"--benchmark-json={path}"]
    variables = {"PYTHONPATH": PLUGINS, VARIABLE: "yes" if slow else "no"}
    wall_s, code, output = run([*TESTS, *own, *outputs, *arguments], folder, **variables)
    failed: dict[str, tuple[str, ...]] = {}
    for test, name, limit in re.findall(r"^\t(\S+) \(.*\) - Field '(\w+)' has failed .* > ([0-9.]+)$", output, re.M):
        failed[test] = (*failed.get(test, ()), f"{name}:{float(limit):g}%")
    if not path.exists() or (code != 0) != bool(failed):
        raise StepError(output)
    found = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    prepared_s = sum(each["extra_info"]["prepared_s"] for each in found)
    return wall_s - prepared_s, {each["name"]: each["stats"] for each in found}, failed


def measure(log: Log, repetitions: int, unchanged: int) -> None:
    """Do what is missing of so many repetitions and gates of unchanged code, each step logged as soon as it is done."""
    steps: dict[str, Callable[[int], Gate | Slowed | Benchmarks]] = {
        "Gate": lambda repetition: run_gate(repetition, log.folder, is_without_neighbour(repetition, repetitions)),
        "Slowed": lambda repetition: run_slowed(repetition, log.folder),
        "Benchmarks": run_benchmarks,
    }
    kept: list[Gate | Slowed | Benchmarks] = [*log.all(Gate), *log.all(Slowed), *log.all(Benchmarks)]
    done = {(type(line).__name__, line.repetition) for line in kept}
    wanted = [(name, number) for number in range(1, repetitions + 1) for name in steps]
    wanted += [("Gate", number) for number in range(repetitions + 1, unchanged + 1)]
    missing = [step for step in wanted if step not in done]
    if not missing:
        return
    log.add(this_session())
    for name, repetition in missing:
        is_alone = is_without_neighbour(repetition, repetitions)
        tell(f"repetition {repetition}, {name}{', alone' if is_alone else ''}: ", end="")
        line: Line
        try:
            with contextlib.nullcontext() if is_alone else neighbour():
                line = steps[name](repetition)
        except StepError as error:
            line = Failed(repetition, name, str(error)[-4000:])
        log.add(line)
        tell(in_brief(line))


def is_without_neighbour(repetition: int, repetitions: int) -> bool:
    """Whether a step is left alone: every other gate beyond those that are compared with others."""
    return repetition > repetitions and repetition % 2 == 1


def this_session() -> Session:
    """Say what is about to be measured, and where."""
    names = ("torch", "gymnasium", "numpy", "pytest", "pytest-benchmark")
    command = ["git", "describe", "--always", "--dirty=+changes", "--abbrev=12"]
    described = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return Session(time.strftime("%Y-%m-%d %H:%M"), described or "unknown", describe(this_machine()), versions)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=15, help="8 verdicts of each kind a repetition")
    parser.add_argument("--unchanged", type=int, default=0, help="gates of unchanged code in all, if more than that")
    parser.add_argument("--out", type=Path, help="keep results in this folder, and go on with what is there")
    parser.add_argument("--report", type=Path, metavar="DIR", help="print the tables of what is in this folder")
    options = parser.parse_args()
    if options.report is not None:
        if not (options.report / RESULTS).exists():
            parser.error(f"--report={options.report}: there is no {RESULTS} in it")
        report(Log(options.report))
        return
    out: Path = options.out or Path(tempfile.mkdtemp(prefix="gate-quality-"))
    out.mkdir(parents=True, exist_ok=True)
    tell(f"results go to {out}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    log = Log(out)
    try:
        measure(log, options.repetitions, options.unchanged)
    except KeyboardInterrupt:
        sys.exit(f"\ninterrupted; to go on: python benchmarks/{Path(__file__).name} --out {out}")
    report(log)


if __name__ == "__main__":
    main()
