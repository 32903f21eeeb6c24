"""Measures the plugin's cost in runs that measure nothing; ``timers.py`` measures the cost of timers.

Everything compared is measured in this one run, taking turns, so that what slows the machine down slows all sides
down. Prints tables and judges nothing::

    python benchmarks/overhead.py            # about a minute
    python benchmarks/overhead.py --quick    # a first look

Its figures are in docs/evidence.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import tempfile
from functools import partial
from operator import sub, truediv
from pathlib import Path

from shared import Samples, paired, print_table, python, take_turns, write

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


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    quick: bool = parser.parse_args().quick
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as folder:
        show_imports(15 if quick else 41, Path(folder))
        show_inactive(3 if quick else 11, 1000, Path(folder))


if __name__ == "__main__":
    main()
