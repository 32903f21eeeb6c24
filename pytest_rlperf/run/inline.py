"""Measuring in pytest's own process, for a debugger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from pytest_rlperf.errors import MeasurementError, PerformanceRegression
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.measure.counting_pass import CountingPass, count, counted_by
from pytest_rlperf.measure.kernels import make_kernels
from pytest_rlperf.measure.one_side import measure_one_side
from pytest_rlperf.measure.slices import Meter
from pytest_rlperf.model import Progress, Result, Shape, SliceKind, SliceRecord, Tally, Warm, Workload
from pytest_rlperf.model.spans import Trace
from pytest_rlperf.run.live_comparison import make_result
from pytest_rlperf.run.one_test import Measured, conclude, failure_of
from pytest_rlperf.run.outcomes import RunState
from pytest_rlperf.workers import messages as m

Kernels = dict[SliceKind, Callable[[], object]]


@dataclass
class InlineEngine:
    """Measures in this process, as one worker: too few for a test to fail for its time."""

    run: RunState
    progress: Progress
    limit_s: float
    kernels: Callable[[], Kernels] = field(default_factory=lambda: cache(make_kernels))

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Measure, judge, and fail the test where a strict run must."""
        __tracebackhide__ = True
        key, settings = result_key(item), self.run.settings.for_test(item)
        started_s = time.monotonic()
        worker = _InlineWorker(Meter(workload, self.kernels, sync_edges=settings.device_edges == "sync"))
        self.progress.begin(item.name)
        max_time_s = min(settings.max_time_s, self.limit_s)
        counting_pass = CountingPass(max_time_s, 1, is_wanted=settings.counters.are_counted, gates=False)
        try:
            measured = measure_one_side(
                [worker],
                max_time_s,
                self.progress,
                long=self.run.baselines.uses_mean(key),
                counting=counting_pass,
            )
            if settings.trace is not None:
                self.run.outcomes.traces.append(Trace(key, "head", "working tree", *worker.meter.trace()))
        finally:
            worker.meter.thaw()
            self.progress.clear()
        result = make_result(key, m.Called(workload.component, workload.unit, workload.items), measured)
        result = replace(result, counting=counted_by([worker]))
        measured_here = Measured(result, result, is_counted=False)
        outcome, notes = conclude(self.run, settings, measured_here, time.monotonic() - started_s)
        self.run.outcomes.add(outcome)
        self.run.note(*notes)
        failure = failure_of(outcome, self.run)
        if failure is not None:
            raise (PerformanceRegression if failure.regression else MeasurementError)(failure.message)
        return result


class _InlineWorker:
    """A meter of this process, that measures by itself."""

    number = 0
    seed = 0

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._checked = (0.0, 0.0)
        self._counted = Tally((), ())
        self.tally: Tally | None = None

    @property
    def checked_s(self) -> float | None:
        return self._checked[0]

    def start_check(self) -> None:
        __tracebackhide__ = True
        self._checked = self.meter.check(), self.meter.workload.processed(1)

    def wait_checked(self) -> tuple[float, float]:
        return self._checked

    def start_count(self, repetitions: int, limit_s: float) -> None:
        __tracebackhide__ = True
        self._counted = count(self.meter.workload, repetitions, limit_s)

    def wait_counted(self) -> Tally:
        return self._counted

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        __tracebackhide__ = True
        return self.meter.warm_up(shape, limit_s, long, kernels=kernels)

    def take(self, kind: SliceKind) -> SliceRecord:
        __tracebackhide__ = True
        return self.meter.take(kind)

    def place(self, cpus: Collection[int]) -> None:
        raise NotImplementedError("a worker in this process is not moved")

    def cpu_s(self) -> float:
        return 0.0  # there is no other worker to disturb
