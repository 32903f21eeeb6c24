"""Performance regression tests for reinforcement-learning components, as ordinary pytest tests."""

from pytest_rlperf.model import ComponentError, PerformanceRegression, Result, Status, Verdict
from pytest_rlperf.timers import hierarchical_timer, timed

__version__ = "0.1.0"

__all__ = [
    "ComponentError",
    "PerformanceRegression",
    "Result",
    "Status",
    "Verdict",
    "hierarchical_timer",
    "timed",
]
