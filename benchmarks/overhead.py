"""Measures the plugin's cost in runs that measure nothing, and the cost of findings in runs of the shipped suite.

``timers.py`` measures the cost of timers.

Everything compared is measured in this one run, taking turns, so that what slows the machine down slows all sides
down. Prints tables and judges nothing::

    python benchmarks/overhead.py            # about a minute
    python benchmarks/overhead.py --quick    # a first look
    python benchmarks/overhead.py --findings 5    # all kinds off and on, five runs each: ten minutes

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
from functools import partial
from operator import sub, truediv
from pathlib import Path

from shared import ROOT, SUITE, Samples, commit_comment, git, paired, print_table, python, take_turns, write

from pytest_rlperf.model.findings import FINDINGS

PLUGINS = ("pytest_rlperf.plugin", "pytest_benchmark.plugin")
IMPORT = """
import sys, time
import pytest
before = set(sys.modules)
start = time.perf_counter()
__import__(sys.argv[1])
seconds = time.perf_counter() - start
print(seconds, *set(sys.modules) - before)
"""
RUNS = {
    "neither": ("-p", "no:rlperf", "-p", "no:benchmark"),
    "pytest-rlperf": ("-p", "no:benchmark"),
    "pytest-benchmark": ("-p", "no:rlperf"),
    "both": (),
}


def show_imports(rounds: int, folder: Path) -> None:
    """Time the plugins' imports in fresh interpreters, and count the modules that they load."""

    def loaded(plugin: str) -> list[str]:
        return python(["-c", IMPORT, plugin], folder).output.split()

    def import_s(plugin: str) -> float:
        return float(loaded(plugin)[0])

    modules = {plugin: len(loaded(plugin)) - 1 for plugin in PLUGINS}  # and writes the .pyc files
    samples = take_turns(rounds, {plugin: partial(import_s, plugin) for plugin in PLUGINS})
    rows = [
        [
            plugin,
            f"{1e3 * statistics.median(samples[plugin]):.2f} ms",
            f"{1e3 * min(samples[plugin]):.2f} ms",
            f"{paired(samples, plugin, PLUGINS[1], truediv):.2f}",
            str(modules[plugin]),
        ]
        for plugin in PLUGINS
    ]
    title = f"Importing the plugin, with pytest imported already ({rounds} fresh interpreters each)"
    print_table(["", "median", "least", "ratio", "modules"], rows, title)


def show_inactive(rounds: int, tests: int, folder: Path) -> None:
    """Time runs of trivial tests with and without the plugins.

    CPU seconds, which neighbours on the machine disturb least; the work has one thread and waits for nothing.
    """
    source = "\n".join(f"def test_{number}():\n    pass\n" for number in range(tests))
    write(folder, {"pytest.ini": "[pytest]\n", "test_trivial.py": source})
    cpu: Samples = {name: [] for name in RUNS}

    def wall_s(name: str) -> float:
        before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        ended = python(["-m", "pytest", "-q", "-p", "no:cacheprovider", *RUNS[name]], folder)
        if ended.code != 0:
            raise SystemExit(ended.output)
        cpu[name].append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s)
        return ended.seconds

    wall = take_turns(rounds, {name: partial(wall_s, name) for name in RUNS})
    rows = [
        [
            name,
            f"{statistics.median(wall[name]):.3f} s",
            f"{statistics.median(cpu[name]):.3f} s",
            f"{1e3 * paired(cpu, name, 'neither', sub):+.0f} ms",
        ]
        for name in RUNS
    ]
    title = f"{tests} trivial tests, nothing measured (median of {rounds} runs each)"
    print_table(["plugins", "wall", "CPU of the process", "more"], rows, title)


def show_findings(rounds: int, folder: Path) -> None:
    """Time the shipped suite as a gate of unchanged code, with all kinds of findings off and on."""
    project, found = folder / "clone", folder / "run.json"
    git(ROOT, "clone", "--quiet", str(ROOT), str(project))
    commit_comment(project)
    options = {"off": [f"--rlperf-findings={','.join(f'{kind}=off' for kind in FINDINGS)}"], "on": []}
    seconds: dict[str, Samples] = {}

    def wall_s(name: str) -> float:
        tests = sorted(map(str, (project / SUITE.relative_to(ROOT)).glob("test_*.py")))
        arguments = [
            "-p",
            "no:cacheprovider",
            "--rlperf-against=HEAD~1",
            "-o",
            "rlperf_reach=off",
            f"--rlperf-json={found}",
            *options[name],
        ]
        ended = python(["-m", "pytest", *tests, *arguments], project, PYTHONPATH=str(project))
        if ended.code != 0:
            raise SystemExit(ended.output)
        for test, outcome in json.loads(found.read_text(encoding="utf-8"))["tests"].items():
            of_test = seconds.setdefault(test.rpartition("::")[2], {kind: [] for kind in options})
            of_test[name].append(outcome["seconds"])
        return ended.seconds

    seconds["the whole run"] = take_turns(rounds, {name: partial(wall_s, name) for name in options})
    rows = [
        [
            what,
            *(f"{statistics.median(samples[name]):.2f} s" for name in options),
            f"{paired(samples, 'on', 'off', truediv):.2f}",
        ]
        for what, samples in seconds.items()
    ]
    title = f"The shipped suite, unchanged, with all kinds of findings off and on (median of {rounds} runs each)"
    print_table(["", *options, "on / off"], rows, title)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    parser.add_argument("--findings", type=int, metavar="RUNS", help="the cost of findings alone, by so many runs")
    given = parser.parse_args()
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as folder:
        if given.findings:
            show_findings(given.findings, Path(folder))
            return
        show_imports(15 if given.quick else 41, Path(folder))
        show_inactive(3 if given.quick else 11, 1000, Path(folder))


if __name__ == "__main__":
    main()
