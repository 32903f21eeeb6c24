"""Measures the plugin's cost in runs that measure nothing; ``timers.py`` measures the cost of timers.

Everything compared is measured in this one run, taking turns, so that what slows the machine down slows all sides
down. Prints tables and judges nothing::

    python benchmarks/overhead.py            # about a minute
    python benchmarks/overhead.py --quick    # a first look
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from turns import Samples, difference, paired, print_table, ratio, take_turns

PLUGINS = ("pytest_rlperf.plugin", "pytest_benchmark.plugin")
HEAVY = ("torch", "scipy", "numpy", "gymnasium", "jinja2", "msgspec", "psutil", "rich")


def python(*arguments: str, folder: Path) -> str:
    """Run a fresh interpreter in ``folder`` and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


# --------------------------------------------------------------------------- importing

IMPORT = """
import sys, time
import pytest
before = set(sys.modules)
start = time.perf_counter()
__import__(sys.argv[1])
seconds = time.perf_counter() - start
print(seconds, *sorted(set(sys.modules) - before))
"""


def show_imports(rounds: int, folder: Path) -> None:
    """Time the plugins' imports in fresh interpreters, and list what they pull in."""

    def import_s(plugin: str) -> float:
        return float(python("-c", IMPORT, plugin, folder=folder).split()[0])

    for plugin in PLUGINS:
        import_s(plugin)  # writes the .pyc files
    samples = take_turns(rounds, {plugin: partial(import_s, plugin) for plugin in PLUGINS})
    rows = [
        [
            plugin,
            f"{1e3 * statistics.median(samples[plugin]):.2f} ms",
            f"{1e3 * min(samples[plugin]):.2f} ms",
            f"{paired(samples, plugin, PLUGINS[1], ratio):.2f}",
        ]
        for plugin in PLUGINS
    ]
    title = f"Importing the plugin, with pytest imported already ({rounds} fresh interpreters each)"
    print_table(title, ["", "median", "least", "ratio"], rows)

    rows, notes = [], []
    for plugin in PLUGINS:
        loaded = python("-c", IMPORT, plugin, folder=folder).split()[1:]
        heavy = sorted({name.partition(".")[0] for name in loaded} & set(HEAVY))
        others = [name for name in loaded if not name.startswith(plugin.partition(".")[0])]
        rows.append([plugin, str(len(loaded)), str(len(others)), ", ".join(heavy) or "none"])
        notes.append(f"   {plugin} brings along {', '.join(others) or 'nothing'}")
    print_table("What comes with it", ["", "modules", "others'", "heavy ones"], rows)
    print("", *notes, f"   heavy ones are {', '.join(HEAVY)}", sep="\n")


# --------------------------------------------------------------------------- an ordinary run

CONFTEST = """
import time

def pytest_sessionstart(session):
    session.config.start_s = time.process_time()

def pytest_unconfigure(config):
    with open("seconds", "w") as file:
        print(time.process_time() - config.start_s, time.process_time(), file=file)
"""

RUNS = {
    "neither": ("-p", "no:rlperf", "-p", "no:benchmark"),
    "pytest-rlperf": ("-p", "no:benchmark"),
    "pytest-benchmark": ("-p", "no:rlperf"),
    "both": (),
}


def show_inactive(rounds: int, tests: int, folder: Path) -> None:
    """Time runs of trivial tests with and without the plugins.

    CPU seconds, which neighbours on the machine disturb least; the work has one thread and waits for nothing.
    """
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    source = "\n".join(f"def test_{number}():\n    pass\n" for number in range(tests))
    (folder / "test_trivial.py").write_text(source, encoding="utf-8")
    session: Samples = {name: [] for name in RUNS}
    process: Samples = {name: [] for name in RUNS}

    def wall_s(name: str) -> float:
        start_s = time.perf_counter()
        python("-m", "pytest", "-q", "-p", "no:cacheprovider", *RUNS[name], folder=folder)
        seconds = time.perf_counter() - start_s
        session_s, process_s = (folder / "seconds").read_text(encoding="utf-8").split()
        session[name].append(float(session_s))
        process[name].append(float(process_s))
        return seconds

    wall = take_turns(rounds, {name: partial(wall_s, name) for name in RUNS})
    rows = [
        [
            name,
            f"{statistics.median(wall[name]):.3f} s",
            f"{statistics.median(process[name]):.3f} s",
            f"{1e3 * paired(process, name, 'neither', difference):+.0f} ms",
            f"{1e6 * statistics.median(session[name]) / tests:.0f} µs",
            f"{1e6 * paired(session, name, 'neither', difference) / tests:+.1f} µs",
        ]
        for name in RUNS
    ]
    title = f"{tests} trivial tests, nothing measured (median of {rounds} runs each, CPU time but for the first figure)"
    print_table(title, ["plugins", "wall", "process", "more", "a test", "more, a test"], rows)


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
