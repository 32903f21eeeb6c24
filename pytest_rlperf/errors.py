"""Errors of a measured test, which its author can catch."""

from __future__ import annotations


class ComponentError(Exception):
    """A component does not compute what its fixture promises; it must not be timed."""

    __module__ = "pytest_rlperf"


class PerformanceRegression(AssertionError):  # noqa: N818 - reads as the finding it is in a report
    """A measured test is slower than its baseline by more than it may be."""

    __module__ = "pytest_rlperf"


class MeasurementError(RuntimeError):
    """A test could not be measured, through no finding about its speed."""

    __module__ = "pytest_rlperf"


class NotMeasuredError(RuntimeError):
    """A figure was asked of a result that holds none."""

    __module__ = "pytest_rlperf"


class SideError(Exception):
    """A side to compare with is not available; the text gives the reason and the remedy."""


class TimerFileError(ValueError):
    """A file of timers cannot be read or written; the text names the file, the place in it and the way out."""
