"""Performance regression tests for reinforcement-learning components, as ordinary pytest tests.

PYTEST_DONT_REWRITE: a worker loads it before pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_rlperf.errors import ComponentError, MeasurementError, NotMeasuredError, PerformanceRegression
    from pytest_rlperf.model.judged import Status, Verdict
    from pytest_rlperf.model.measured import Measure, Result
    from pytest_rlperf.timers import hierarchical_timer, timed

# Every pytest run imports this package; modules only for measuring or timing are loaded on request.
_HOMES = {
    "ComponentError": "errors",
    "Measure": "model.measured",
    "MeasurementError": "errors",
    "NotMeasuredError": "errors",
    "PerformanceRegression": "errors",
    "Result": "model.measured",
    "Status": "model.judged",
    "Verdict": "model.judged",
    "hierarchical_timer": "timers",
    "timed": "timers",
}

__all__ = [
    "ComponentError",
    "Measure",
    "MeasurementError",
    "NotMeasuredError",
    "PerformanceRegression",
    "Result",
    "Status",
    "Verdict",
    "hierarchical_timer",
    "timed",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module; the version is the installed distribution's."""
    if name == "__version__":
        return import_module("importlib.metadata").version("pytest-rlperf")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
