from __future__ import annotations

from pytest_rlperf.model.measured import Usage
from pytest_rlperf.pair.processes import Worker


class FakeWorker(Worker):
    """A worker without a process, of which a test overrides what it needs; the rest fails when it is used."""

    seed = 0
    checked_s: float | None = None

    def __init__(self) -> None:
        """Have no process."""

    def usage(self) -> Usage:
        return Usage(0, 0, 0, 0, 0, 0, 0, 1, 1)

    def cpu_s(self) -> float:
        return 0.0


class ShownSteps:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def begin(self, test: str) -> None:
        """Do nothing: there is one test."""

    def show(self, step: str) -> None:
        self.shown.append(step)

    def clear(self) -> None:
        """Do nothing: there is no line."""
