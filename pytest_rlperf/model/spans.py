"""Spans of one iteration, which trace viewers show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """One entry of a phase: from when to when it was open, in seconds since the iteration began.

    ``track`` names what it ran on: ``"host"`` for the thread that makes the calls, else another thread, a task, or a
    device's stream. Spans of one track that overlap lie within each other.
    """

    path: str
    start_s: float
    end_s: float
    track: str

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Trace:
    """The spans of one iteration of one test on one side, ``"base"`` or ``"head"``; ``label`` names that side's code.

    ``notes`` name what the spans leave out.
    """

    nodeid: str
    side: str
    label: str
    spans: tuple[Span, ...]
    notes: tuple[str, ...]
