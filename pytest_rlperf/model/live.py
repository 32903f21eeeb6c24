"""A live comparison and its pairs."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rlperf.model.facts import Fact, InWords
from pytest_rlperf.model.measured import Compiled, Result, Usage, WorkerRecord

PAIR_BLOCKS = 16  # fewer, of calls over 40 ms, say so little that starting another pair costs more than they do
# In logarithms: total times of equal code differ by less in one pair or another, and by less on the average.
UNREPEATED, _UNREPEATED_LEAST = 0.1, 0.03
_ERRORS = 2.0  # of the average, of three pairs or more
_CLOCK_PAIRS = 2  # the fewest that a verdict may rest on


@dataclass(frozen=True, slots=True)
class Reading:
    """What both processes of a pair held at one time, between slices.

    ``log_ratio`` is the logarithm of head's time over base's since the reading before, 0 for the first.
    """

    base: Usage
    head: Usage
    log_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class PhaseRatio:
    """The logarithm of head's time in a phase over base's, in one pair, and the share of base's call that it takes."""

    path: str
    log_ratio: float
    share: float


@dataclass(frozen=True, slots=True)
class OtherWork:
    """The CPU time that other processes used while a pair was measured.

    ``process`` is the name of those that used the most, empty where none did, ``cpu_share`` what they used of one CPU,
    with children that have ended, and ``pid`` the number of the busiest. Arguments may be secret, so they are left out.
    ``seen_share`` is what all processes used that can be seen from here, of the CPUs that this run may use.
    ``unseen_share`` is what others used, of all CPUs of the machine: processes in other containers, and other virtual
    machines on its CPUs.
    """

    process: str
    pid: int
    cpu_share: float
    seen_share: float
    unseen_share: float


@dataclass(frozen=True, slots=True)
class RareCalls:
    """A minority of a test's calls: one of ``one_of`` calls takes base and head so many seconds."""

    one_of: float
    base_s: float
    head_s: float


@dataclass(frozen=True)
class PairRecord:
    """One live pair, the statistical unit of a live comparison.

    ``wall_log_ratio`` is the logarithm of head's time over base's in a typical call, ``cpu_log_ratio`` the same of CPU
    times, which may stand in where both sides were ``alone``. ``total_log_ratio`` is that of all the time of all calls,
    CPU time where neither side waits: whatever the machine adds is in it. ``moved_error`` is the standard error that
    all pairs of the test share, as a logarithm, where dear calls come at other calls on head than on base. ``placed``
    is the one CPU both sides were kept on, None where the kernel placed them. ``cpus`` are the CPUs on which slices
    ended. ``setup_s`` is what starting workers and setting up took, ``seconds`` what warming up and taking slices did.
    ``loader`` is the number of the preload server that both sides were forked from, None where they were new
    interpreters. ``readings`` were taken before the first slice, after the last one and at growing distances between;
    ``phases`` are those that both sides have. ``first_call_s`` is what the checked call took on base and on head,
    ``import_s`` what importing and collecting the tests did. ``other_work`` is kept where the test is UNDECIDED, on
    Linux.
    """

    wall_log_ratio: float
    cpu_log_ratio: float
    alone: bool
    blocks: int
    base: WorkerRecord
    head: WorkerRecord
    placed: int | None
    cpus: tuple[int, ...]
    setup_s: float
    seconds: float
    loader: int | None = None
    readings: tuple[Reading, ...] = ()
    phases: tuple[PhaseRatio, ...] = ()
    first_call_s: tuple[float, float] = (0.0, 0.0)
    import_s: tuple[float, float] = (0.0, 0.0)
    other_work: OtherWork | None = None
    total_log_ratio: float = 0.0
    moved_error: float = 0.0

    @property
    def mean_log_ratio(self) -> float:
        """The logarithm of the factor by which rare calls change head's time over base's."""
        return math.log(self.head.mean_multiple / self.base.mean_multiple)


@dataclass(frozen=True, slots=True)
class StartUp:
    """What two new interpreters took to get going, base and head: the checked call, and importing the tests."""

    first_call_s: tuple[float, float]
    import_s: tuple[float, float]


class Outputs(str, enum.Enum):
    """How what head's component returned compares with base's, under equal seeds, in the first, checked call."""

    UNKNOWN = "unknown"  # nothing that can be compared was returned, or no two pairs had equal seeds
    VARIED = "varied"  # two processes of base differ, too
    EQUAL = "equal"  # in every bit
    CLOSE = "close"  # within rounding
    DIFFERENT = "different"


@dataclass(frozen=True)
class OutputComparison:
    """How outputs compare; ``path`` is the first array or value that differs, and ``what`` differs about it."""

    outputs: Outputs = Outputs.UNKNOWN
    path: str = ""
    what: Fact = InWords("")  # noqa: RUF009 - a frozen value


@dataclass(frozen=True)
class Contribution:
    """The part of a change that one phase accounts for, in seconds per call; an empty path is the part of no phase."""

    path: str
    change_s: float


@dataclass(frozen=True)
class Live:
    """A live comparison: both sides' names, the pairs in order, base's figures, and the phases that carry the change.

    ``base`` is base's result, as the outcome's own result is head's. ``contributions`` add up to the change; there are
    none where nothing changed or too little was traced. ``carriers`` are the few phases that carry it, the most first.
    ``base_commit`` is base's full SHA, None where base is no commit of the repository. ``longer`` are the readings of a
    pair that went on after the verdict, to see whether memory grows; ``places`` are the lines that allocated the most
    of what head keeps. ``start_ups`` are those of new interpreters, where copies hint at a slow one. ``rare_calls`` are
    those that are dearer than usual. ``compiled`` are the last programs of head's, where it compiles more of them.
    """

    base_label: str
    head_label: str
    base: Result
    pairs: tuple[PairRecord, ...]
    contributions: tuple[Contribution, ...]
    carriers: tuple[Contribution, ...] = ()
    base_commit: str | None = None
    output: OutputComparison = OutputComparison()
    longer: tuple[Reading, ...] = ()
    places: tuple[str, ...] = ()
    start_ups: tuple[StartUp, ...] = ()
    rare_calls: RareCalls | None = None
    compiled: tuple[Compiled, ...] = ()

    @property
    def clock(self) -> str:
        """The clock that decides, ``"cpu"`` or ``"wall"``."""
        return clock_of(self.pairs)

    @property
    def are_unrepeated(self) -> bool:
        """Whether dear calls come at other places in each pair, so that the total time of all calls decides."""
        return are_unrepeated(self.pairs)

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Every pair's logarithm of head's time over base's, by the clock that decides."""
        return log_ratios(self.pairs)


def clock_of(pairs: Sequence[PairRecord]) -> str:
    """Return the clock that decides for all pairs: ``"cpu"`` where the first ones were alone, else ``"wall"``.

    Later pairs do not change it: a clock that depends on them would choose among two verdicts.
    """
    return "cpu" if all(pair.alone for pair in pairs[:_CLOCK_PAIRS]) else "wall"


def log_ratios(pairs: Sequence[PairRecord]) -> tuple[float, ...]:
    """Return every pair's logarithm of head's mean call over base's, by the clock that decides.

    Where the pairs are unrepeated, it is that of the total time of all calls.
    """
    return tuple(pair.total_log_ratio for pair in pairs) if are_unrepeated(pairs) else _mean_log_ratios(pairs)


def _mean_log_ratios(pairs: Sequence[PairRecord]) -> tuple[float, ...]:
    cpu = clock_of(pairs) == "cpu"
    return tuple((pair.cpu_log_ratio if cpu else pair.wall_log_ratio) + pair.mean_log_ratio for pair in pairs)


def are_unrepeated(pairs: Sequence[PairRecord]) -> bool:
    """Whether pairs' total times show a slowdown that the calls which all pairs have in common do not.

    The dear calls of a workload that does not repeat come at other places in each pair.
    """
    means = _mean_log_ratios(pairs)
    beyond = [pair.total_log_ratio - max(0.0, mean) for pair, mean in zip(pairs, means, strict=True)]
    if len(beyond) < 3:
        return bool(beyond) and min(beyond) > UNREPEATED
    error = statistics.stdev(beyond) / math.sqrt(len(beyond))
    return min(beyond) > UNREPEATED or statistics.fmean(beyond) - _ERRORS * error > _UNREPEATED_LEAST
