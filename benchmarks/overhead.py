"""What the plugin costs where nothing is measured, and what a timer's scope costs where something is.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path

from pytest_rlperf.timers import hierarchical_timer, recording, timed

PLUGINS = ("pytest_rlperf.plugin", "pytest_benchmark.plugin")
HEAVY = ("torch", "scipy", "numpy", "gymnasium", "plotly", "msgspec", "psutil", "rich")

Samples = dict[str, list[float]]


def take_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> Samples:
    """Call every measure once a round, each round beginning with another one; return the samples of each."""
    names = list(measures)
    samples: Samples = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            samples[name].append(measures[name]())
    return samples


def paired(samples: Samples, name: str, other: str, relation: Callable[[float, float], float]) -> float:
    """Return the median over the rounds of a relation between two measures."""
    return statistics.median(map(relation, samples[name], samples[other]))


def difference(one: float, other: float) -> float:
    """Return how much more ``one`` is."""
    return one - other


def ratio(one: float, other: float) -> float:
    """Return how many times as much ``one`` is."""
    return one / other


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their heads, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(f"\n{title}\n")
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ", "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())


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


# --------------------------------------------------------------------------- timers

clock_ns = time.perf_counter_ns


def _empty(calls: int) -> None:
    for _ in repeat(None, calls):
        pass


def _clock_pair(calls: int) -> None:
    clock = clock_ns
    for _ in repeat(None, calls):
        clock()
        clock()


def _bound(calls: int) -> None:
    scope = hierarchical_timer("bound")
    for _ in repeat(None, calls):
        with scope:
            pass


def _by_name(calls: int) -> None:
    for _ in repeat(None, calls):
        with hierarchical_timer("by name"):
            pass


def _function() -> None:
    pass


_timed_function = timed(_function)


def _plain_calls(calls: int) -> None:
    for _ in repeat(None, calls):
        _function()


def _timed_calls(calls: int) -> None:
    for _ in repeat(None, calls):
        _timed_function()


# What is shown: the loop, whether a recording runs, the loop to subtract, the target as a ratio to a clock pair.
SCOPES: dict[str, tuple[Callable[[int], None], bool, str, str]] = {
    "empty loop": (_empty, False, "", ""),
    "plain calls": (_plain_calls, False, "empty loop", ""),
    "bare clock pair": (_clock_pair, False, "empty loop", ""),
    "scope, bound beforehand": (_bound, True, "empty loop", "≤ 4"),
    "scope, by name": (_by_name, True, "empty loop", "≤ 5"),
    "@timed, over a plain call": (_timed_calls, True, "plain calls", ""),
    "unarmed: bound": (_bound, False, "empty loop", ""),
    "unarmed: by name": (_by_name, False, "empty loop", ""),
    "unarmed: @timed, over a plain call": (_timed_calls, False, "plain calls", ""),
}


def show_timers(rounds: int, calls: int) -> None:
    """Time scopes against a bare pair of clock readings, the loop around them subtracted."""

    def loop_ns(name: str) -> float:
        loop, armed, _, _ = SCOPES[name]
        with recording() if armed else nullcontext():
            loop(100)  # the first entry makes the node
            start_ns = clock_ns()
            loop(calls)
            return (clock_ns() - start_ns) / calls

    raw = take_turns(rounds, {name: partial(loop_ns, name) for name in SCOPES})
    net = {
        name: list(map(difference, raw[name], raw[subtracted])) if subtracted else raw[name]
        for name, (_, _, subtracted, _) in SCOPES.items()
    }
    rows = [
        [
            name,
            f"{statistics.median(net[name]):.0f} ns",
            f"{paired(net, name, 'bare clock pair', ratio):.2f}",
            target,
        ]
        for name, (_, _, subtracted, target) in SCOPES.items()
        if subtracted
    ]
    title = f"A timer's scope (median of {rounds} turns of {calls} scopes, the loop subtracted)"
    print_table(title, ["", "each", "in clock pairs", "target"], rows)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    quick: bool = parser.parse_args().quick
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as folder:
        show_imports(15 if quick else 41, Path(folder))
        show_inactive(3 if quick else 11, 1000, Path(folder))
    show_timers(15 if quick else 61, 20_000 if quick else 50_000)


if __name__ == "__main__":
    main()
