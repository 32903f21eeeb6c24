"""The course of a test's time over commits: stored sessions, chains of live ratios, and the changes found in them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from pytest_rlperf.model.stored import Machine

PackageChange: TypeAlias = tuple[str, str, str | None]  # a name, its version then and now, None where it is gone


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
    ``relative_memory`` are multiples of a call of either kernel, ``error`` and ``error_memory`` the standard errors of
    their logarithms by the spread of the session's workers. ``work`` is the component, the unit and the items of a
    call. ``call_s`` is None where only multiples were kept, ``packages`` where the versions were not.
    """

    machine: Machine
    name: str
    created: str
    commit: str
    clock: str
    work: tuple[str, str, float]
    relative: float
    relative_memory: float
    error: float
    error_memory: float
    call_s: float | None = None
    packages: dict[str, str] | None = None


class Break(str, enum.Enum):
    """Why a segment of a line begins where it does."""

    FIRST = "first"
    PACKAGES = "packages"
    CLOCK = "clock"
    WORKLOAD = "workload"
    GAP = "gap"  # in a chain: no comparison joins it with the one before


@dataclass(frozen=True)
class Point:
    """A value at a commit, the standard error of its logarithm, and the seconds per call where they are known.

    In a line of stored sessions it is a multiple of a kernel's call, in a chain the ratio to the chain's first commit.
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
    """Points that can be compared with one another; ``packages`` are those that changed before the first."""

    points: tuple[Point, ...]
    begins: Break = Break.FIRST
    packages: tuple[PackageChange, ...] = ()


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
    """A change point: the last point before a change and the first one after it, and the ratio of the levels.

    ``machine`` is that of the line, None for a chain. ``low`` and ``high`` bound the ratio at 99 %. ``commits`` are
    those that lie between, the last one included; there are none where the history does not have both ends. A search
    for the one that made it slower needs the ``tolerance``, None for the usual one.
    """

    machine: Machine | None
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
    """A test's lines, the chain of live ratios first, and the changes in them.

    ``is_searched`` is false where the library that finds changes in stored lines is missing. ``left_off`` are sessions
    that have no place on a line: their code is in no commit, or in one that is not in the first-parent history.
    """

    test: str
    lines: tuple[Line, ...]
    steps: tuple[Step, ...]
    is_searched: bool = True
    left_off: tuple[Session, ...] = ()
