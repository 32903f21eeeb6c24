"""Exact counts of one iteration, which do not depend on the machine's speed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Count:
    """One count of one call, in the phase at ``path`` and all below it; the whole call where that is empty."""

    path: str
    name: str
    value: int


@dataclass(frozen=True)
class Tally:
    """One worker's counts, by repetition; ``notes`` name the counters that could not count, with the reason."""

    repetitions: tuple[tuple[Count, ...], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseCounts:
    """The counts of one call in a phase and all below it; ``path`` is empty for the whole call.

    ``exact`` are counts that were equal in every worker and repetition, ``inexact`` the least and the most of others.
    """

    path: str
    exact: dict[str, int] = field(default_factory=dict)
    inexact: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counting:
    """The counts of one test. ``workers`` workers counted ``repetitions`` calls each, once for every instrument.

    ``notes`` name the counters that could not count, with the reason.
    """

    phases: tuple[PhaseCounts, ...]
    workers: int
    repetitions: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CounterChange:
    """A count that is not what it was, in the deepest phase that it changed in.

    Where both are exact, ``was`` and ``now`` are the counts; a count below its former range is less, one above it more.
    """

    path: str
    name: str
    was: int
    now: int

    @property
    def is_more(self) -> bool:
        """Whether the count is higher than the one it is compared with; a lower count is always better."""
        return self.now > self.was


@dataclass(frozen=True)
class Share:
    """How much of a call's time something took, 0 to 1: Python, a native extension, the environment, the device."""

    name: str
    share: float
