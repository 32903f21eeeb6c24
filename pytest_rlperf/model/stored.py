"""Baselines: stored results with their machine and code; and how a test's time has changed over commits."""

from __future__ import annotations

import enum
import math
import statistics

import msgspec

from pytest_rlperf.model.measured import Result

# Raise it with any change to the reference kernels' work: times relative to different kernels are not comparable.
KERNEL_VERSION = 1
LARGEST_LOG = 100.0  # of a ratio, and of its error: the exponential must be a number


class Machine(msgspec.Struct, frozen=True):
    """A machine class: everything that must be equal for stored times to be comparable.

    ``kernel`` is the reference kernels' version. ``accelerators`` describe the machine's devices: model, driver, power
    limit and partition.
    """

    system: str
    arch: str
    cpu: str
    cores: int
    python: str
    kernel: int
    accelerators: tuple[str, ...] = ()


class Provenance(msgspec.Struct, frozen=True):
    """The origin of figures: ``commit`` and ``tree`` are full SHAs, None outside git."""

    commit: str | None
    tree: str | None
    dirty: bool
    created: str
    packages: dict[str, str]

    @property
    def clean_commit(self) -> str:
        """The commit with the code behind the figures; empty if no commit has it."""
        return "" if self.commit is None or self.dirty else self.commit

    @property
    def settleable(self) -> bool:
        """Whether the code behind the figures can be checked out again, so that a suspicion can be settled live."""
        return bool(self.clean_commit)


class Acceptance(msgspec.Struct, frozen=True):
    """Why figures were replaced although something was slower; ``by`` is the user, empty if git knows none."""

    reason: str
    created: str
    previous_call_s: float
    by: str = ""


class SessionFigures(msgspec.Struct, frozen=True):
    """One session's figures of a test, kept after later ones have replaced them.

    ``relative`` and ``relative_memory`` are geometric means over ``workers``, as multiples of a call of each kernel, by
    ``clock``; ``squares`` and ``squares_memory`` are the sums of squared deviations of the workers' logarithms.
    ``same_code`` marks a session whose code is as fast as the one before it, as live pairs or equal files have shown.
    """

    session: str
    relative: float
    relative_memory: float
    squares: float
    squares_memory: float
    same_code: bool = True
    clock: str = "wall"
    workers: int = 5


def session_figures(result: Result, session: str, *, same_code: bool) -> SessionFigures:
    """Return a session's figures of a test, from its result by itself."""
    clock = result.clock
    figures = [worker.cpu if clock == "cpu" else worker.wall for worker in result.workers]
    relative, squares = _log_mean([each.relative for each in figures])
    relative_memory, squares_memory = _log_mean([each.relative_memory for each in figures])
    return SessionFigures(session, relative, relative_memory, squares, squares_memory, same_code, clock, len(figures))


def _log_mean(values: list[float]) -> tuple[float, float]:
    """Return the geometric mean, and the logarithms' sum of squared deviations."""
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    return math.exp(mean), math.fsum((log - mean) ** 2 for log in logs)


class PairSpread(msgspec.Struct, frozen=True):
    """The spread of a test's live pairs, pooled over comparisons.

    ``squares`` is the sum of squared deviations of the pairs' log ratios from their own comparison's mean, ``freedom``
    the degrees of freedom of that sum: one less than its pairs for each comparison.
    """

    squares: float
    freedom: float


class Link(msgspec.Struct, frozen=True):
    """A live comparison of two commits, a link of a chain of ratios; it is kept after both have been replaced.

    ``base`` and ``head`` are full SHAs. ``log_ratio`` is the logarithm of the head's time over the base's, ``error``
    its standard error; both are 0 if the code was equal. ``packages`` are those that changed since the base's figures
    were stored, each with its version then and now, None if it is gone. The ratio does not contain their effect: live
    pairs run both commits with the present packages.
    """

    base: str
    head: str
    log_ratio: float
    error: float
    packages: tuple[tuple[str, str, str | None], ...] = ()


class StoredResult(msgspec.Struct, frozen=True):
    """One test's entry in a baseline: its figures, the session they come from, and why they were accepted.

    ``pairs`` is the spread of the live pairs that the test had so far, None without any. ``history`` has the figures of
    the last sessions, the latest last, these among them. ``links`` are the last live comparisons with the commit
    before, the latest last.
    """

    result: Result
    session: str
    accepted: Acceptance | None = None
    pairs: PairSpread | None = None
    history: tuple[SessionFigures, ...] = ()
    links: tuple[Link, ...] = ()


class Baseline(msgspec.Struct, frozen=True):
    """A named set of stored results for one machine class; ``sessions`` holds the provenance of each entry."""

    schema: int
    machine: Machine
    sessions: dict[str, Provenance]
    results: dict[str, StoredResult]


# --------------------------------------------------------------------------- courses over commits


class LoggedCommit(msgspec.Struct, frozen=True):
    """A commit of the repository's first-parent history: its full SHA, author, ISO time and subject."""

    sha: str
    author: str
    created: str
    subject: str


class StoredSession(msgspec.Struct, frozen=True):
    """One session's figures of a test on one machine class.

    ``commit`` is a full SHA or the first 12 digits of one, empty if the code was in no commit. ``relative`` and
    ``relative_memory`` are multiples of a call of each kernel. ``work`` is the component, the unit and the items of a
    call. ``call_s`` is None if only multiples were kept; the commit is then known only from the session's name.
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
    """The reason for the beginning of a line's segment."""

    FIRST = "first"
    CLOCK = "clock"
    WORKLOAD = "workload"
    GAP = "gap"  # in a chain: no comparison joins the segment to the one before


class ChainPoint(msgspec.Struct, frozen=True):
    """A value at a commit, the standard error of its logarithm, and the seconds per call if known.

    In a line of stored sessions the value is a multiple of a kernel's call, with an error of 0 if none is known. In a
    chain it is the ratio to the chain's first commit. ``place`` is the commit's number in the first-parent history,
    None if it is not there.
    """

    created: str
    commit: str
    value: float
    error: float
    call_s: float | None = None
    place: int | None = None


class Segment(msgspec.Struct, frozen=True):
    """Points that can be compared with one another."""

    points: tuple[ChainPoint, ...]
    begins: Break = Break.FIRST


class Line(msgspec.Struct, frozen=True):
    """Points of one machine class by one ``kernel``, or the chain of live ratios if ``machine`` is None."""

    machine: Machine | None
    kernel: str
    segments: tuple[Segment, ...]

    @property
    def points(self) -> tuple[ChainPoint, ...]:
        """All points in order."""
        return tuple(point for segment in self.segments for point in segment.points)


class ChainStep(msgspec.Struct, frozen=True):
    """A change in a chain: the point before it and the one after it, and their ratio.

    ``low`` and ``high`` bound the ratio at 99 %. ``commits`` are those between, with the last one; there are none if
    the history does not have both ends. A search for the commit that made it slower needs the ``tolerance``, None for
    the usual one.
    """

    before: ChainPoint
    after: ChainPoint
    ratio: float
    low: float
    high: float
    commits: tuple[LoggedCommit, ...] = ()
    tolerance: float | None = None

    @property
    def is_slower(self) -> bool:
        """Whether the test takes more time from there on."""
        return self.ratio > 1


class Course(msgspec.Struct, frozen=True):
    """A test's lines, the chain of live ratios first, and the changes in the chain."""

    test: str
    lines: tuple[Line, ...]
    steps: tuple[ChainStep, ...]
