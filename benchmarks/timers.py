"""What a timer's scope costs beside those of ML-Agents, Sample Factory and TorchRL, and beside two readings of a clock.

All take turns in one run, checks for being switched on included and the loop around them subtracted; figures are
medians over the turns, of ratios too. The run is of several processes, half of them with timers left out, since where
things lie in memory moves a process's figures by some percent. Prints tables and judges nothing::

    python benchmarks/timers.py            # about two minutes
    python benchmarks/timers.py --quick    # a first look

Whoever is not installed is left out. All of them go into one environment, of which only what their timers import
is needed (the CPU build of PyTorch will do)::

    python -m venv timers && . timers/bin/activate
    pip install torch==2.13.0
    pip install --no-deps torchrl==0.14.1 sample-factory==2.1.1 mlagents-envs==0.28.0
    pip install tensordict==0.14.3 pyvers cloudpickle colorlog gymnasium psutil signal-slot-mp
    pip install -e .
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from operator import truediv
from pathlib import Path

from shared import Samples, paired, print_table
from timers_contenders import OTHERS

CLOCKS = "bare clock pair"
ARMED = {"RLPERF_TIMERS": "standby", "TORCHRL_PROFILING": "1"}
UNARMED = {"RLPERF_TIMERS": "", "TORCHRL_PROFILING": "0"}
PACKAGES = ("pytest-rlperf", *OTHERS)

THEIRS = ("ML-Agents", "Sample Factory", "TorchRL", "torch", "contextlib.contextmanager")


@dataclass
class Run:
    """What all processes of one kind measured: each contender's turns, one process's after another's."""

    processes: list[Samples] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    same_function: bool = False

    @property
    def samples(self) -> Samples:
        """All turns of each contender."""
        return {name: [turn for one in self.processes for turn in one[name]] for name in self.processes[0]}

    def add(self, environment: dict[str, str], turns: int, calls: int) -> None:
        """Start a process, and keep what it measures."""
        script = Path(__file__).with_name("timers_contenders.py")
        command = [sys.executable, str(script), str(turns), str(calls)]
        done = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
        measured = json.loads(done.stdout.splitlines()[-1])
        self.processes.append(measured["samples"])
        self.missing, self.same_function = measured["missing"], measured["same_function"]


def costs(run: Run) -> list[list[str]]:
    """Return a row for each contender: its time, and what that is in clock pairs, with the processes' range."""
    rows = []
    for name, turns in run.samples.items():
        is_nothing = name == "@timed" and run.same_function
        pairs = 0.0 if is_nothing else paired(run.samples, name, CLOCKS, truediv)
        each = [paired(samples, name, CLOCKS, truediv) for samples in run.processes]
        rows.append(
            [
                f"{name} (the function itself)" if is_nothing else name,
                f"{0 if is_nothing else statistics.median(turns):.0f}",
                f"{pairs:.2f}",
                "" if is_nothing else f"{min(each):.2f} to {max(each):.2f}",
            ]
        )
    return rows


def comparisons(samples: Samples) -> list[list[str]]:
    """Return a row for each of the others: how many times ours it takes, of the same kind."""
    rows = []
    for name in samples:
        if name.startswith(THEIRS):
            ours = ("@timed",) if "@" in name else ("by name", "bound")
            times = [f"{paired(samples, name, each, truediv):.2f}" for each in ours]
            rows.append([name, *times, *[""] * (2 - len(times))])
    return rows


def show_versions() -> None:
    """Say what is compared, and on what."""
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs")
    for package in PACKAGES:
        try:
            print(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package}: none")


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first look")
    quick: bool = parser.parse_args().quick
    processes, turns, calls = (2, 7, 5_000) if quick else (7, 11, 20_000)
    show_versions()
    recording, unarmed = Run(), Run()
    for _ in range(processes):
        recording.add(ARMED, turns, calls)
        unarmed.add(UNARMED, turns, calls)
    for package, why in recording.missing.items():
        print(f"\nWithout {package}: {why}")

    title = f"{processes * turns} turns in {processes} processes, {calls} scopes each"
    head = ["", "ns", "clock pairs", "by process"]
    print_table(head, costs(recording), f"Timers that record ({title})")
    print_table(head, costs(unarmed), f"Timers left out: RLPERF_TIMERS unset ({title})")
    head = ["", "by name", "bound"]
    print_table(head, comparisons(recording.samples), "Theirs over ours")


if __name__ == "__main__":
    main()
