"""Errors of a measured test, which its author can catch, and what their messages have in common."""

from __future__ import annotations

from collections.abc import Iterable

DOCS = "https://github.com/pytest-rlperf/pytest-rlperf/tree/main/docs"


def see(place: str) -> str:
    """Return the line that ends a message: the address of a place in the docs, such as ``"reference.md#options"``."""
    return f"\nsee {DOCS}/{place}"


def closest(name: str, known: Iterable[str]) -> str:
    """Return the one of ``known`` names that a misspelt one is most like; empty where it is like none."""
    from difflib import get_close_matches  # which only a mistake needs

    return next(iter(get_close_matches(name, list(known), 1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that names the closest of ``known``; empty where there is none."""
    near = closest(name, known)
    return f"; did you mean {near}?" if near else ""


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
