"""A pytest plugin for gate_quality.py: pytest-benchmark answers the fixtures of the shipped suite.

Without the variable it leaves them alone, and has a self-check try one slowdown.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from pytest_rlperf.fixtures import ENGINE, run_once
from pytest_rlperf.model.measured import Result, Workload
from pytest_rlperf.worker.slowdowns import slowed, steps_for

SLOWDOWN = 0.05
VARIABLE = "GATE_QUALITY_SLOW"
_ROUNDS = 40  # of a workload with a setup, for which pytest-benchmark chooses none


class ByBenchmark:
    """Has pytest-benchmark measure a workload, where the variable says so with extra work of a share of it."""

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Check, size the extra work and benchmark; all runs prepare alike, whether they then use it or not."""
        start_s = time.perf_counter()
        workload.check()
        steps = steps_for(SLOWDOWN, workload.call, workload.setup, time.perf_counter_ns)
        self._benchmark.extra_info["prepared_s"] = time.perf_counter() - start_s
        call = slowed(workload.call, steps) if os.environ[VARIABLE] == "yes" else workload.call
        if workload.setup is None:
            self._benchmark(call)
        else:  # calls of tens of milliseconds
            self._benchmark.pedantic(call, setup=workload.setup, rounds=_ROUNDS)
        return run_once(workload, item)


if VARIABLE in os.environ:

    @pytest.fixture(autouse=True)
    def _answered_by_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> None:
        """Put pytest-benchmark behind every rlperf fixture."""
        request.config.stash[ENGINE] = ByBenchmark(benchmark).measure

else:

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config: pytest.Config) -> None:
        """Let a self-check try one slowdown; its workers load no more than those of a gate."""
        if config.pluginmanager.has_plugin("rlperf-run"):
            from pytest_rlperf.run import selfcheck

            selfcheck.SLOWDOWNS = (SLOWDOWN,)
