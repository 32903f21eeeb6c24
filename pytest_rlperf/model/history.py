"""The course of a test's time over commits: stored sessions, chains of live ratios, and the changes found in them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytest_rlperf.model.stored import Machine


@dataclass(frozen=True)
class LoggedCommit:
    """A commit of the repository's first-parent history: its full SHA, author, ISO time and subject."""

    sha: str
    author: str
    created: str
    subject: str


@dataclass(frozen=True)
class Session:
    """One session's figures of a test on one machine class.

    ``commit`` is a full SHA or the first 12 digits of one, empty where the code was in no commit. ``relative`` and
    ``relative_memory`` are multiples of a call of either kernel. ``work`` is the component, the unit and the items of a
    call. ``call_s`` is None where only multiples were kept; the commit is by the session's name alone there.
    """

    machine: Machine
    name: str
    created: str
    commit: str
    clock: str
    work: tuple[str, str, float]
    relative: float
    relative_memory: float
    call_s: float | None = None


class Break(str, enum.Enum):
    """Why a segment of a line begins where it does."""

    FIRST = "first"
    CLOCK = "clock"
    WORKLOAD = "workload"
    GAP = "gap"  # in a chain: no comparison joins it with the one before


@dataclass(frozen=True)
class Point:
    """A value at a commit, the standard error of its logarithm, and the seconds per call where they are known.

    In a line of stored sessions it is a multiple of a kernel's call, with an error of 0 for none that is known; in a
    chain it is the ratio to the chain's first commit.
    ``place`` is the commit's number in the first-parent history, None where it is not there.
    """

    created: str
    commit: str
    value: float
    error: float
    call_s: float | None = None
    place: int | None = None


@dataclass(frozen=True)
class Segment:
    """Points that can be compared with one another."""

    points: tuple[Point, ...]
    begins: Break = Break.FIRST


@dataclass(frozen=True)
class Line:
    """Points of one machine class by one ``kernel``, or where ``machine`` is None the chain of live ratios."""

    machine: Machine | None
    kernel: str
    segments: tuple[Segment, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """All points in order."""
        return tuple(point for segment in self.segments for point in segment.points)


@dataclass(frozen=True)
class Step:
    """A change in a chain: the point before it and the one after it, and their ratio.

    ``low`` and ``high`` bound the ratio at 99 %. ``commits`` are
    those that lie between, the last one included; there are none where the history does not have both ends. A search
    for the one that made it slower needs the ``tolerance``, None for the usual one.
    """

    before: Point
    after: Point
    ratio: float
    low: float
    high: float
    commits: tuple[LoggedCommit, ...] = ()
    tolerance: float | None = None

    @property
    def is_slower(self) -> bool:
        """Whether it takes more time from there on."""
        return self.ratio > 1


@dataclass(frozen=True)
class Course:
    """A test's lines, the chain of live ratios first, and the changes in that."""

    test: str
    lines: tuple[Line, ...]
    steps: tuple[Step, ...]
