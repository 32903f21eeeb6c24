"""A live comparison and its pairs."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence

import msgspec

from pytest_rlperf.model.facts import Fact, InWords
from pytest_rlperf.model.measured import Compiled, Result, Usage, WorkerRecord

PAIR_BLOCKS = 16  # fewer blocks, of calls over 40 ms, show too little to be worth starting another pair
# In logarithms: total times of equal code differ by less in at least one pair, and by less on average.
UNREPEATED, _UNREPEATED_LEAST = 0.1, 0.03
_ERRORS = 2.0  # of the average, of three pairs or more
_CLOCK_PAIRS = 2  # the fewest that a verdict may rest on


class Reading(msgspec.Struct, frozen=True):
    """The resources that both processes of a pair held at one time, between slices.

    ``log_ratio`` is the logarithm of the head's time over the base's since the reading before, 0 for the first.
    """

    base: Usage
    head: Usage
    log_ratio: float = 0.0


class PhaseRatio(msgspec.Struct, frozen=True):
    """The logarithm of the head's time in a phase over the base's, in one pair, and its share of the base's call."""

    path: str
    log_ratio: float
    share: float


class OtherWork(msgspec.Struct, frozen=True):
    """The CPU time that other processes used while a pair was measured.

    ``process`` is the name of the processes that used the most, empty if none did. ``cpu_share`` is their share of one
    CPU, with children that have ended, and ``pid`` is the number of the busiest. Arguments may be secret, so they are
    left out. ``seen_share`` is the share of all visible processes, of the CPUs that this run may use. ``unseen_share``
    is the share of others, of all CPUs of the machine: processes in other containers, and other virtual machines on its
    CPUs.
    """

    process: str
    pid: int
    cpu_share: float
    seen_share: float
    unseen_share: float


class RareCalls(msgspec.Struct, frozen=True):
    """A minority of a test's calls: one of ``one_of`` calls takes ``base_s`` on the base and ``head_s`` on the head."""

    one_of: float
    base_s: float
    head_s: float


class PairRecord(msgspec.Struct, frozen=True):
    """One live pair, the statistical unit of a live comparison.

    ``wall_log_ratio`` is the logarithm of the head's time over the base's in a typical call, ``cpu_log_ratio`` the same
    for CPU times, which may stand in if both sides were ``alone``. ``total_log_ratio`` is the same for the total time
    of all calls, CPU time if neither side waits; it includes all that the machine adds. ``moved_error`` is the standard
    error that all pairs of the test share, as a logarithm, if expensive calls come at other calls on the head than on
    the base. ``placed`` is the one CPU that both sides were kept on, None if the kernel placed them. ``cpus`` are the
    CPUs on which slices ended. ``setup_s`` is the time to start workers and set up, ``seconds`` the time to warm up and
    take slices. ``loader`` is the number of the preload server that both sides were forked from, None if they were new
    interpreters. ``readings`` were taken before the first slice, after the last one and at growing intervals between.
    ``phases`` are those that both sides have. ``first_call_s`` is the time of the checked call on the base and on the
    head, ``import_s`` the time to import and collect the tests. ``other_work`` is kept if the test is UNDECIDED, on
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
        """The logarithm of the factor by which rare calls change the head's time over the base's."""
        return math.log(self.head.mean_multiple / self.base.mean_multiple)


class StartUp(msgspec.Struct, frozen=True):
    """The start-up times of two new interpreters, base and head: the checked call, and importing the tests."""

    first_call_s: tuple[float, float]
    import_s: tuple[float, float]


class Outputs(str, enum.Enum):
    """How the head's output compares with the base's, under equal seeds, in the first, checked call."""

    UNKNOWN = "unknown"  # the component returned nothing comparable, or no two pairs had equal seeds
    VARIED = "varied"  # two processes of the base differ too
    EQUAL = "equal"  # in every bit
    CLOSE = "close"  # within rounding
    DIFFERENT = "different"


class OutputComparison(msgspec.Struct, frozen=True):
    """How outputs compare; ``path`` is the first array or value that differs, and ``what`` is its difference."""

    outputs: Outputs = Outputs.UNKNOWN
    path: str = ""
    what: Fact = InWords("")


class Contribution(msgspec.Struct, frozen=True):
    """The part of a change that one phase accounts for, in seconds per call; an empty path is the rest in no phase."""

    path: str
    change_s: float


class Live(msgspec.Struct, frozen=True):
    """A live comparison: both sides' names, the pairs in order, the base's figures, and the phases behind the change.

    ``base`` is the base's result, as the outcome's own result is the head's. ``contributions`` add up to the
    change; there are none if nothing changed or too little was traced. ``carriers`` are the few phases that carry
    it, the most first. ``base_commit`` is the base's full SHA, None if the base is not a commit of the repository.
    ``longer`` are the readings of a pair that went on after the verdict, to see whether memory grows or calls get
    slower; ``places`` are the lines that allocated most of the memory that the head keeps. ``start_ups`` are those
    of new interpreters, if copies hint at a slow one. ``rare_calls`` are those that take longer than usual.
    ``compiled`` are the last programs of the head, if it compiles more of them.
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
        """Whether expensive calls come at other places in each pair, so that the total time of all calls decides."""
        return are_unrepeated(self.pairs)

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Every pair's logarithm of the head's time over the base's, by the clock that decides."""
        return log_ratios(self.pairs)


def clock_of(pairs: Sequence[PairRecord]) -> str:
    """Return the clock that decides for all pairs: ``"cpu"`` if the first ones were alone, else ``"wall"``.

    Later pairs do not change it: a clock that depends on them would choose between two verdicts.
    """
    return "cpu" if all(pair.alone for pair in pairs[:_CLOCK_PAIRS]) else "wall"


def log_ratios(pairs: Sequence[PairRecord]) -> tuple[float, ...]:
    """Return every pair's logarithm of the head's mean call over the base's, by the clock that decides.

    If the pairs are unrepeated, the logarithm is that of the total time of all calls.
    """
    return tuple(pair.total_log_ratio for pair in pairs) if are_unrepeated(pairs) else _mean_log_ratios(pairs)


def _mean_log_ratios(pairs: Sequence[PairRecord]) -> tuple[float, ...]:
    cpu = clock_of(pairs) == "cpu"
    return tuple((pair.cpu_log_ratio if cpu else pair.wall_log_ratio) + pair.mean_log_ratio for pair in pairs)


def are_unrepeated(pairs: Sequence[PairRecord]) -> bool:
    """Whether pairs' total times show a slowdown that the calls common to all pairs do not.

    The expensive calls of a workload that does not repeat come at other places in each pair.
    """
    means = _mean_log_ratios(pairs)
    beyond = [pair.total_log_ratio - max(0.0, mean) for pair, mean in zip(pairs, means, strict=True)]
    if len(beyond) < 3:
        return bool(beyond) and min(beyond) > UNREPEATED
    error = statistics.stdev(beyond) / math.sqrt(len(beyond))
    return min(beyond) > UNREPEATED or statistics.fmean(beyond) - _ERRORS * error > _UNREPEATED_LEAST
