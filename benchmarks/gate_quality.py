"""False alarms, power and seconds of live pairs and of pytest-benchmark's gates, on the shipped suite beside a load.

Each repetition runs the suite live, today's code against itself, unchanged and with 5 % of real extra work, and then
by pytest-benchmark: a stored run, a comparing run of unchanged code, and one with the same extra work. A spinning
neighbour is on for about 4 s and off for about 6 s all the while. Prints Markdown tables and judges nothing::

    python benchmarks/gate_quality.py                     # about three minutes a repetition, 15 of them
    python benchmarks/gate_quality.py --out DIR           # what is missing in DIR
    python benchmarks/gate_quality.py --report DIR        # the tables of what is in DIR

To pytest this file is a plugin that has pytest-benchmark answer the suite's fixtures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from pytest_rlperf.fixtures import ENGINE, RunOnce
from pytest_rlperf.measure.slowdown import slowed, steps_for
from pytest_rlperf.model import Result, Workload

SLOWDOWN = 0.05
STATISTICS = ("mean", "median", "min")
GATES = tuple(f"{statistic}:{percent}%" for percent in (5, 3) for statistic in STATISTICS)
ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "pytest_rlperf" / "suite"
VARIABLE = "GATE_QUALITY_SLOWDOWN"
NEIGHBOUR = """
import os, random, time
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + random.uniform(3, 5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(5, 7))
"""

# --------------------------------------------------------------------------- the plugin


class ByBenchmark:
    """Has pytest-benchmark measure a workload, where the variable says so with extra work of a share of it."""

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Check, size the extra work and benchmark; all runs prepare alike, whether they then use it or not."""
        if workload.setup is not None:
            raise NotImplementedError(f"{item.name} has a setup, which would want benchmark.pedantic")
        start_s = time.perf_counter()
        workload.check()
        steps = steps_for(SLOWDOWN, workload.call, None, time.perf_counter_ns)
        self._benchmark.extra_info["prepared_s"] = time.perf_counter() - start_s
        self._benchmark(slowed(workload.call, steps) if os.environ[VARIABLE] == "yes" else workload.call)
        return RunOnce().measure(workload, item)


@pytest.fixture(autouse=True)
def _answered_by_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> None:
    """Put pytest-benchmark behind every rlperf fixture."""
    request.config.stash[ENGINE] = ByBenchmark(benchmark)


# --------------------------------------------------------------------------- what is kept, a line of JSON each


class Session(msgspec.Struct, frozen=True, tag=True):
    """One start of this script: when, the code, the machine and the versions."""

    started: str
    code: str
    machine: str
    versions: str


class Trial(msgspec.Struct, frozen=True):
    """One live verdict."""

    test: str
    slowdown: float
    status: str
    ratio: float | None
    pairs: int
    seconds: float


class Live(msgspec.Struct, frozen=True, tag=True):
    """A live run of the suite."""

    repetition: int
    wall_s: float
    trials: tuple[Trial, ...]

    @property
    def unchanged_s(self) -> float:
        """What a run of unchanged tests alone takes: all there is but the slowed trials."""
        return self.wall_s - sum(trial.seconds for trial in self.trials if trial.slowdown)


class Compared(msgspec.Struct, frozen=True):
    """A comparing run of pytest-benchmark: seconds, gates failed by test, and changes by test and statistic."""

    seconds: float
    failed: dict[str, tuple[str, ...]]
    changes: dict[str, dict[str, float]]


class Benchmarks(msgspec.Struct, frozen=True, tag=True):
    """pytest-benchmark's runs of a repetition."""

    repetition: int
    stored_s: float
    unchanged: Compared
    slowed: Compared


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A step that gave no figures."""

    repetition: int
    step: str
    output: str


Line = Session | Live | Benchmarks | Failed
Step = TypeVar("Step", Live, Benchmarks)


class StepError(Exception):
    """A run gave no figures."""


def read(folder: Path) -> list[Line]:
    """Return what was kept in ``folder``."""
    path = folder / "results.jsonl"
    if not path.exists():
        return []
    found: list[Line] = msgspec.json.decode_lines if False else []  # type: ignore[assignment]
    return found
