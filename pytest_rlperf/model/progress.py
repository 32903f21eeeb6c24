"""The steps of a run as the user follows them while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """Shows the step that a run is at."""

    def begin(self, test: str) -> None:
        """Name the test, or what else is being prepared, that the next steps belong to."""

    def show(self, step: str) -> None:
        """Show the current step."""


class RunProgress(Progress, Protocol):
    """Shows how far a run has come, beside its step."""

    def clear(self) -> None:
        """Make room for the output of pytest."""

    def count(self, done: int, total: int, verdicts: Mapping[str, int], left_s: float = 0.0) -> None:
        """Show how many tests are done, how many there are of each verdict so far, and the time left, 0 if unknown."""
