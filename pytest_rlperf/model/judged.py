"""The verdict of a comparison, the rules behind it, and a self-check of the machine."""

from __future__ import annotations

import enum
import glob
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from urllib.parse import quote, unquote

import msgspec

from pytest_rlperf.model.facts import Fact
from pytest_rlperf.model.findings import FINDINGS
from pytest_rlperf.model.live import Live, PairRecord
from pytest_rlperf.model.measured import CounterChange, Result, test_name
from pytest_rlperf.model.reach import Touched
from pytest_rlperf.model.reasons import Code, PairsUndecided, Reason
from pytest_rlperf.model.stored import Machine, StoredResult

CONFIDENCE = 0.99
LIVE_TOLERANCE = 0.03
STORED_FAILING = 0.20  # below this, stored numbers may show differences between days, not between versions


class Status(str, enum.Enum):
    """The outcome of a comparison."""

    SAME = "SAME"
    SLOWER = "SLOWER"
    FASTER = "FASTER"
    UNDECIDED = "UNDECIDED"
    NEW = "NEW"
    INCOMPARABLE = "INCOMPARABLE"
    INVALID = "INVALID"
    ERROR = "ERROR"  # the test failed for a reason other than its verdict: its component may be wrong


OPEN = (Status.UNDECIDED, Status.INVALID, Status.INCOMPARABLE)  # the test may have got slower, and passes


class Estimate(msgspec.Struct, frozen=True):
    """A ratio head/base with its two-sided confidence interval.

    ``floor`` is the ratio's one-sided lower bound at the run's error rate, ``ceiling`` its upper bound.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    floor: float
    ceiling: float


TRAILER = "Rlperf-Accept"  # in the last paragraph of a commit's message


class Allowance(msgspec.Struct, frozen=True):
    """A slowdown that a commit accepts: for tests that match ``pattern``, up to ``most`` (0.09 is 9 %).

    If ``most`` is 0, the commit accepts higher counts, and no more time.
    """

    pattern: str
    most: float
    reason: str
    commit: str

    def fits(self, key: str) -> bool:
        """Whether the pattern fits a test's key or its name.

        ``*`` is any text, ``?`` any character, and ``%20`` a blank as in a URL; all else, including brackets, is
        literal.
        """
        parts = re.split("([*?])", self.pattern)
        pattern = "".join(part if part in ("*", "?") else glob.escape(unquote(part)) for part in parts)
        return fnmatchcase(key, pattern) or fnmatchcase(test_name(key), pattern)


def pattern_of(key: str) -> str:
    """Return the pattern, without blanks, that fits only the test of ``key``."""
    return "".join(
        char if char.isprintable() and char not in " *?%<" else quote(char, safe="", errors="backslashreplace")
        for char in key
    )


class Finding(msgspec.Struct, frozen=True):
    """The result of one kind of look that is worse on the head: a line, its figures, and whether it fails the test.

    ``line`` has the facts of a line for people. ``figures`` are by name, each per call unless the name says otherwise.
    """

    kind: str
    line: Fact
    figures: dict[str, float]
    gates: bool


_LEFT = ("growth", "garbage", "threads", "compiles")


class RemedyKind(str, enum.Enum):
    """The kinds of changes with which a user can get a test decided."""

    TIME = "time"
    PAIRS = "pairs"
    QUIET = "quiet"  # less other work on the machine
    TOLERANCE = "tolerance"
    COUNTS = "counts"  # gate by counts, as the time cannot
    CALLS = "calls"  # longer calls, with more of the rare events in a pair


class Remedy(msgspec.Struct, frozen=True):
    """The one change that would most likely decide an UNDECIDED test.

    ``amount`` is enough: seconds of TIME, the most PAIRS, a TOLERANCE (0.05 is 5 %); None for the other kinds.
    """

    kind: RemedyKind
    amount: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    """A status, the reason that decides it, and the estimate behind it, if any.

    ``smallest_seen`` is the smallest slowdown (0.2 is 20 %) that this comparison would have found; live pairs find it
    in 95 of 100 cases. ``suspect`` marks an estimate over the tolerance, decided or not. ``allowance`` accepts a SLOWER
    test, if a commit of the change has one. ``counters`` are the exact counts that changed, and ``findings`` are the
    other properties that are worse. ``also`` has further reasons. If times decide nothing, ``remedy`` is the setting
    that helps most, and ``more_work`` has the exact counts of a whole call that rose by more than the tolerance, the
    largest rise first.
    """

    status: Status
    reason: Reason
    estimate: Estimate | None
    smallest_seen: float | None
    suspect: bool
    gated: bool
    accepted: bool
    counters: tuple[CounterChange, ...] = ()
    allowance: Allowance | None = None
    also: tuple[Reason, ...] = ()
    findings: tuple[Finding, ...] = ()
    remedy: Remedy | None = None
    more_work: tuple[CounterChange, ...] = ()

    @property
    def by_counts(self) -> bool:
        """Whether the verdict rests on exact counts or other findings, not on the time."""
        return self.reason.code in (Code.COUNTERS, Code.FINDING)

    @property
    def left(self) -> tuple[Finding, ...]:
        """The findings that fail the test because of what calls leave or compile, which their time does not show."""
        return tuple(each for each in self.findings if each.gates and each.kind in _LEFT)

    @property
    def is_open(self) -> bool:
        """Whether a gated test may have got slower, but has no verdict that says so: it passes."""
        return self.gated and self.status in OPEN

    @property
    def was_cut_short(self) -> bool:
        """Whether live pairs did not decide, and there was no time for more."""
        found = (self.reason, *self.also)
        return self.status is Status.UNDECIDED and any(
            isinstance(reason, PairsUndecided) and reason.time_is_short for reason in found
        )

    def fails(self, strict: bool) -> bool:
        """Whether the test fails with this verdict; a test with an ERROR has failed already."""
        if self.status is Status.ERROR:
            return True
        if not self.gated:
            return False
        if self.status is Status.SLOWER:
            return not self.accepted
        return strict and self.status not in (Status.SAME, Status.FASTER)


class Policy(msgspec.Struct, frozen=True):
    """The rules that judge one test; thresholds are ratios minus one: a tolerance of 0.03 is 3 %.

    Live pairs and stored numbers are SAME within ``tolerance``. Pairs are SLOWER above it if the lower bound is above
    half of it; stored numbers are SLOWER above ``stored_failing`` if the lower bound is above half of that. ``alpha``
    is the chance of any false alarm in the run, and ``tests`` is how many tests share it. ``gates`` choose the exact
    counts that decide. ``stores`` marks a run that stores its figures. ``pairs`` are the least and the most live pairs
    for a verdict. ``findings`` is what each kind of finding does: OFF, SHOW or GATE.
    """

    tolerance: float = LIVE_TOLERANCE
    alpha: float = 0.01
    tests: int = 1
    min_change_s: float = 0.0
    gated: bool = True
    stores: bool = False
    gates: tuple[str, ...] = ()
    pairs: tuple[int, int] = (3, 10)
    findings: Mapping[str, str] = msgspec.field(default_factory=lambda: FINDINGS)

    @property
    def stored_failing(self) -> float:
        """The slowdown above which stored numbers fail a test: never one that the test tolerates."""
        return max(STORED_FAILING, self.tolerance)


_ROUGHLY = 1.02  # medians of a handful of pairs may lie a little beside the interval of the change
RARE = 0.1  # of a typical call: if the mean call differs by more, it is worth showing


class Outcome(msgspec.Struct, frozen=True):
    """All facts about a test for the reports; ``live`` is None if only stored numbers were compared.

    ``stored`` marks a test whose figures this run has stored. ``touched`` are the parts of the change that it runs or
    reads, those with the most additional calls first.
    """

    result: Result
    baseline: StoredResult | None
    live: Live | None
    verdict: Verdict
    seconds: float
    stored: bool = False
    touched: tuple[Touched, ...] = ()

    @property
    def before(self) -> Result | None:
        """The figures that the change is relative to: the base's in live pairs, else the stored ones."""
        if self.live is not None:
            return self.live.base
        return None if self.baseline is None else self.baseline.result

    @property
    def before_call_s(self) -> float | None:
        """The time of a call before, to show beside the time now; None if it would contradict the change.

        A change is measured between neighbouring slices. If pairs of processes differ much, medians over all of them
        may show another change, which nobody has measured. So may a stored time: it was taken at the machine's pace of
        that day, and the change is relative to the kernels.
        """
        before, estimate = self.before, self.verdict.estimate
        if before is None or not before.measured:
            return None
        if estimate is None or not self.result.measured:
            return before.call_s
        shown = self.result.mean_call_s / before.mean_call_s
        return before.call_s if estimate.low / _ROUGHLY <= shown <= estimate.high * _ROUGHLY else None

    @property
    def has_rare_calls(self) -> bool:
        """Whether a mean call takes a different time than a typical one, today or before."""
        both = [each for each in (self.result, self.before) if each is not None and each.measured]
        return any(abs(each.mean_call_s - each.call_s) > RARE * each.call_s for each in both)


class Shard(msgspec.Struct, frozen=True):
    """The tests that run ``number`` of ``count`` runs measures, counted from 1.

    ``collected`` are the keys of the tests of all shards, in order. ``common`` has the facts that all shards of one run
    share, as texts by name: tests, commit, and the options that verdicts depend on.
    """

    number: int
    count: int
    collected: tuple[str, ...]
    common: dict[str, str]

    @property
    def name(self) -> str:
        """The shard's name in reports."""
        return f"shard {self.number} of {self.count}"

    @property
    def tests(self) -> tuple[str, ...]:
        """The shard's tests, which are neighbours by name: most tests of a module share its fixtures."""
        keys = sorted(self.collected)
        start, end = (len(keys) * number // max(1, self.count) for number in (self.number - 1, self.number))
        return tuple(keys[start:end])


class ShardPart(msgspec.Struct, frozen=True):
    """The tests of a merged run that one shard measured, and its machine."""

    machine: Machine
    tests: tuple[str, ...]


# --------------------------------------------------------------------------- a self-check


class SlowdownTrial(msgspec.Struct, frozen=True):
    """One known slowdown of today's code against itself, with its verdict: 0.05 is 5 %, and 0.0 is none."""

    slowdown: float
    verdict: Verdict
    pairs: tuple[PairRecord, ...]
    seconds: float

    @property
    def is_false_alarm(self) -> bool:
        """Whether unchanged code was called slower or faster."""
        return not self.slowdown and self.verdict.status in (Status.SLOWER, Status.FASTER)

    @property
    def is_found(self) -> bool:
        """Whether the verdict is right: SAME if nothing changed, else SLOWER."""
        return self.verdict.status is (Status.SLOWER if self.slowdown else Status.SAME)


class Selfcheck(msgspec.Struct, frozen=True):
    """One test's trials, by rising slowdown."""

    result: Result
    trials: tuple[SlowdownTrial, ...]

    @property
    def smallest_found(self) -> float | None:
        """The smallest slowdown from which on all were found; None if not even the largest was."""
        smallest = None
        for trial in reversed([trial for trial in self.trials if trial.slowdown]):
            if not trial.is_found:
                break
            smallest = trial.slowdown
        return smallest


# A slowdown of exactly the tolerance is found half of the time; from here on, almost always.
_SURELY = 5 / 3


class Fitness(msgspec.Struct, frozen=True):
    """Whether a machine finds slowdowns of ``tolerance``; ``false_alarms`` are unchanged tests called changed."""

    tolerance: float
    is_fit: bool
    false_alarms: int

    @property
    def found_from(self) -> float:
        """The slowdown from which on a fit machine finds all; 0.05 is 5 %."""
        return _SURELY * self.tolerance

    def is_large(self, trial: SlowdownTrial) -> bool:
        """Whether a trial is one of those that a fit machine finds."""
        return trial.slowdown >= self.found_from - 1e-9
