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

    def clear(self) -> None:
        """Make room for the output of pytest."""


class RunProgress(Progress, Protocol):
    """Shows how far a run has come, beside its step."""

    def count(self, done: int, total: int, verdicts: Mapping[str, int]) -> None:
        """Show how many of the tests are done, and how many there are of each verdict so far."""
