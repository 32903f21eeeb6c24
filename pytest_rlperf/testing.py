"""A clock for tests of code that measures: its time passes only when a test advances it."""

from __future__ import annotations


class FakeClock:
    """A clock of integer nanoseconds that stands still between readings.

    Each reading costs ``reading_ns``, as a real clock's does; :meth:`advance` lets work take its time.
    """

    def __init__(self, reading_ns: int = 0) -> None:
        self.now_ns = 0
        self.reading_ns = reading_ns

    def __call__(self) -> int:
        """Read the clock."""
        self.now_ns += self.reading_ns
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now_ns += round(seconds * 1e9)
