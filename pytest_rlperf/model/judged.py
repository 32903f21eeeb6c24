"""What a comparison says, by which rules, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytest_rlperf.model.counting import CounterChange
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.stored import StoredResult


class Status(str, enum.Enum):
    """What a comparison says."""

    SAME = "SAME"
    SLOWER = "SLOWER"
    FASTER = "FASTER"
    UNDECIDED = "UNDECIDED"
    NEW = "NEW"
    INCOMPARABLE = "INCOMPARABLE"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Estimate:
    """A ratio head/base with its two-sided confidence interval.

    ``floor`` is the ratio's one-sided lower bound at the run's error rate, ``ceiling`` its upper one.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    floor: float
    ceiling: float


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is: a stable code, and a sentence a person can act on."""

    code: str
    message: str


TRAILER = "Rlperf-Accept"  # in the last paragraph of a commit's message


@dataclass(frozen=True)
class Allowance:
    """A slowdown that a commit says is meant: of tests that ``pattern`` fits, up to ``most`` (0.09 is 9 %).

    Where ``most`` is 0 it is one by exact counts alone, and by no time.
    """

    pattern: str
    most: float
    reason: str
    commit: str


@dataclass(frozen=True)
class Verdict:
    """A status, why, and the estimate behind it, where there is one.

    ``smallest_seen`` is the smallest slowdown (0.2 is 20 %) this comparison could have called SLOWER. ``suspect`` says
    that the estimate is over the tolerance, surely or not. ``allowance`` is what accepts a SLOWER, where a commit
    of the change does. ``counters`` are the exact counts that changed; a SLOWER or FASTER whose reason's code is
    ``"counters"`` rests on them.
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

    def fails(self, strict: bool) -> bool:
        """Whether this verdict fails its test."""
        if not self.gated:
            return False
        if self.status is Status.SLOWER:
            return not self.accepted
        return strict and self.status not in (Status.SAME, Status.FASTER)


@dataclass(frozen=True)
class Policy:
    """The rules one test is judged by. Ratios minus one: a tolerance of 0.03 is 3 %.

    ``tolerance`` is what a comparison may move and still be SAME; ``conviction`` is the slowdown an estimate must
    pass to be SLOWER, its lower bound half of it. ``alpha`` is the chance of any false alarm in the run,
    ``tests`` how many share it.
    """

    tolerance: float
    conviction: float
    confidence: float
    alpha: float
    tests: int
    min_change_s: float
    gated: bool
    accept: bool


@dataclass(frozen=True)
class Creep:
    """How a test's time has changed since the oldest figures stored of it, a step at a time: a ratio, and their origin.

    A baseline that moves along with small slowdowns calls each of them the same.
    """

    ratio: float
    created: str
    commit: str | None


@dataclass(frozen=True)
class Outcome:
    """A test's whole story, as the reports read it; ``live`` is None where only stored numbers were compared."""

    result: Result
    baseline: StoredResult | None
    live: Live | None
    verdict: Verdict
    seconds: float
    creep: Creep | None = None

    @property
    def before(self) -> Result | None:
        """The figures that the result's change is told from: base's of live pairs, else the stored ones."""
        if self.live is not None:
            return self.live.base
        return None if self.baseline is None else self.baseline.result
