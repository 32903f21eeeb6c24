"""Performance regression tests for reinforcement-learning components, as ordinary pytest tests."""

from pytest_rlperf.model import (
    ComponentError,
    Measure,
    MeasurementError,
    PerformanceRegression,
    Result,
    Status,
    Verdict,
)
from pytest_rlperf.timers import hierarchical_timer, timed

__version__ = "0.1.0"

__all__ = [
    "ComponentError",
    "Measure",
    "MeasurementError",
    "PerformanceRegression",
    "Result",
    "Status",
    "Verdict",
    "hierarchical_timer",
    "timed",
]
