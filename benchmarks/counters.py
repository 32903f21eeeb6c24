"""Which counts of the five reference components are exact: fresh processes, other seeds, other hash seeds.

Every process runs the shipped suite's tests and counts what a call does, as a worker does it. Prints a table, the
counts that wavered, and what would be called a change between any two groups of five processes, which ran one code::

    python benchmarks/counters.py                  # 20 processes, about three minutes
    python benchmarks/counters.py --processes 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from shared import print_table

from pytest_rlperf.fixtures import ENGINE, result_key
from pytest_rlperf.judge.counters import EVERY, compare
from pytest_rlperf.model.measured import Counting, Result, Tally, Workload
from pytest_rlperf.report.wording import changes_text
from pytest_rlperf.run.counting import learn
from pytest_rlperf.wire import REPETITIONS, Count
from pytest_rlperf.worker.counting import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_S = 60.0
WORKERS = 5  # as many as a stored comparison has
MODULES = [f"pytest_rlperf.suite.test_{name}" for name in ("vecenv", "replay", "gae", "sac", "ppo")]
TESTS = "128-8 or collect or sample or update or step[8]"


class Counter:
    """An engine that checks a workload, counts what its call does, and measures nothing."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Return a result without figures."""
        workload.check()
        workload.processed(1)
        key = result_key(item)
        self.tallies[key] = count(workload, Count(REPETITIONS, LIMIT_S))
        workload.close()
        return Result(key, workload.component, workload.unit, workload.items, (), (), 0.0, ())

    def pytest_configure(self, config: pytest.Config) -> None:
        """Take the engine's place."""
        config.stash[ENGINE] = self.measure

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Let each process have random numbers of its own."""
        seed = random.SystemRandom().getrandbits(32)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)


def count_here(path: Path) -> int:
    """Count in this process, and write the tallies to ``path``; return pytest's exit code."""
    counter = Counter()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--pyargs", *MODULES, "-k", TESTS], [counter])
    path.write_text(
        json.dumps({key: msgspec.to_builtins(tally) for key, tally in counter.tallies.items()}), encoding="utf-8"
    )
    return int(code)


def count_in_processes(processes: int) -> dict[str, list[Tally]]:
    """Return the tallies of fresh processes, by test."""
    found: dict[str, list[Tally]] = {}
    environment = {**os.environ, "RLPERF_TIMERS": "standby", "PYTHONHASHSEED": "random"}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(processes):
            path = Path(folder) / f"{index}.json"
            command = [sys.executable, __file__, "--count-to", str(path)]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            print(f"\r{index + 1} of {processes} processes", end="", file=sys.stderr, flush=True)
            for key, tally in msgspec.json.decode(path.read_bytes(), type=dict[str, Tally]).items():
                found.setdefault(key, []).append(tally)
    print(file=sys.stderr)
    return found


def row(name: str, counting: Counting) -> list[str]:
    """Return a test's line of the table."""
    exact = sum(len(phase.exact) for phase in counting.phases)
    inexact = sum(len(phase.inexact) for phase in counting.phases)
    whole = next(phase for phase in counting.phases if not phase.path)
    shown = ("ops", "python_calls", "native_calls", "tensor_peak_bytes")
    return [name, str(exact), str(inexact), *(told(whole.exact, whole.inexact, counter) for counter in shown)]


def told(exact: dict[str, int], inexact: dict[str, tuple[int, int]], name: str) -> str:
    """Return a count of a whole call, as a range where it wavers."""
    if name in exact:
        return f"{exact[name]:,}"
    return "–" if name not in inexact else "{:,}..{:,}".format(*inexact[name])


def wavering(name: str, counting: Counting) -> Sequence[str]:
    """Return what wavers in a test, each count in the deepest phases that it does so in."""
    places = [(phase.path, counter, span) for phase in counting.phases for counter, span in phase.inexact.items()]
    deepest = [
        (path, counter, span)
        for path, counter, span in places
        if not any(other == counter and below.startswith(f"{path}/" if path else "") and below != path
                   for below, other, _ in places)
    ]  # fmt: skip
    return [f"   {name}  {path or 'whole call'}: {counter} {low:,}..{high:,}" for path, counter, (low, high) in deepest]


def false_changes(name: str, tallies: Sequence[Tally]) -> Iterator[tuple[str, str]]:
    """Yield a test's name and what has changed, empty if nothing, for each two groups of processes."""
    groups = [learn(tallies[start : start + WORKERS]) for start in range(0, len(tallies) - WORKERS + 1, WORKERS)]
    for one, other in combinations([group for group in groups if group is not None], 2):
        yield name, changes_text(compare(one, other, EVERY))


def main() -> None:
    """Count, and show what is exact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=20, help="fresh processes (default: 20)")
    parser.add_argument("--count-to", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count_to is not None:
        sys.exit(count_here(arguments.count_to))
    found: dict[str, Any] = count_in_processes(arguments.processes)
    learned = {key.rpartition("::")[2]: known for key, tallies in found.items() if (known := learn(tallies))}
    head = ["", "exact", "not", "ops", "python_calls", "native_calls", "tensor_peak_bytes"]
    title = f"Counts of one call over {arguments.processes} fresh processes, {REPETITIONS} repetitions each"
    print_table(head, [row(name, counting) for name, counting in learned.items()], title)
    print("\nNot exact:")
    lines = [line for name, counting in learned.items() for line in wavering(name, counting)]
    print("\n".join(lines) or "   nothing")
    compared = [each for key, tallies in found.items() for each in false_changes(key.rpartition("::")[2], tallies)]
    changed = [f"   {name}  {said}" for name, said in compared if said]
    if compared:
        print(f"\nGroups of {WORKERS} processes that differ: {len(changed)} of {len(compared)} comparisons")
        print(*changed, sep="\n")
    notes = {note for counting in learned.values() for note in counting.notes}
    print(*(f"   note: {note}" for note in sorted(notes)), sep="\n")


if __name__ == "__main__":
    main()
