"""The notes of a run beside its verdicts, those of one kind in one line; and its progress."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from pytest_rlperf.model.judged import Allowance, Outcome, Shard
from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.model.reasons import VersionChange


class TextNote(msgspec.Struct, frozen=True):
    """A note in words, written where its cause is known."""

    text: str


class FewerLanes(msgspec.Struct, frozen=True):
    """There are fewer ``lanes`` than ``wanted``: there are no more CPUs, or the cgroup's ``quota`` is smaller."""

    lanes: int
    wanted: int
    quota: float | None


class ShortOfMemory(msgspec.Struct, frozen=True):
    """Memory has room for fewer ``lanes`` than the machine has: the processes of a pair hold ``pair_bytes``."""

    lanes: int
    wanted: int
    pair_bytes: int


class LeftoversRemoved(msgspec.Struct, frozen=True):
    """The run has removed what tests left on the machine: ``count`` of a resource, in a ``place`` if named."""

    resource: str
    count: int
    place: str = ""


class UnmatchedAllowance(msgspec.Struct, frozen=True):
    """A commit accepts slowdowns of tests that do not exist; ``near`` is a pattern that would match, or empty."""

    allowance: Allowance
    near: str


class SkippedBaseline(msgspec.Struct, frozen=True):
    """A file beside this machine's baseline cannot be read, and was left out; ``error`` names it and its fault."""

    error: str


class ShortOfTime(msgspec.Struct, frozen=True):
    """A test was not settled in its part of the run's time, which was less than the test may take."""

    key: str
    limit_s: float


class NotForked(msgspec.Struct, frozen=True):
    """The run's processes were new interpreters, for the reason ``why``."""

    why: str


class NotWatched(msgspec.Struct, frozen=True):
    """The run cannot see which changed files libraries in other languages and children read; ``why`` is the reason."""

    why: str


class MeasuredFresh(msgspec.Struct, frozen=True):
    """New interpreters have measured a test; ``why`` forked processes could not."""

    key: str
    why: str


class Unfinished(msgspec.Struct, frozen=True):
    """The run was stopped before these tests had come to their end, given by their keys."""

    keys: tuple[str, ...]


class Doubt(enum.Enum):
    """Why a test may run a part of a change that no process was seen to run."""

    CHILDREN = enum.auto()  # what they did is not known
    UNSEEN = enum.auto()  # a changed function may run unnoticed
    UNEVEN = enum.auto()  # one side has run, read or loaded something that the other has not


class MeasuredInDoubt(msgspec.Struct, frozen=True):
    """A test was measured though it was not seen to run any part of the change."""

    key: str
    doubt: Doubt


# ----------------------------------------------------------------------- counts that were not compared


class NoStoredCounts(msgspec.Struct, frozen=True):
    """The baseline has figures for a test but no counts."""


class OneWorkerCounted(msgspec.Struct, frozen=True):
    """Only one worker has counted, then or now, so no count is known to be exact."""


class OtherVersions(msgspec.Struct, frozen=True):
    """The stored counts were taken with other versions of the packages that measured code runs on."""

    changes: tuple[VersionChange, ...]


class NothingCounted(msgspec.Struct, frozen=True):
    """A side has counted nothing; ``why`` has its workers' reasons, and ``on_base`` is whether it is the base."""

    why: tuple[str, ...]
    on_base: bool


class GatesNotCounted(msgspec.Struct, frozen=True):
    """Counts that gate are not known for both sides; ``why`` has the workers' reasons."""

    gates: tuple[str, ...]
    why: tuple[str, ...]


Obstacle: TypeAlias = NoStoredCounts | OneWorkerCounted | OtherVersions | NothingCounted | GatesNotCounted


class Untested(msgspec.Struct, frozen=True):
    """No measured test runs ``parts`` of the ``changed`` parts; the tests in ``may`` perhaps do.

    ``is_selection`` if the user selected some of the tests, so that others may run the parts.
    """

    changed: int
    parts: tuple[ChangedPart, ...]
    may: tuple[str, ...]
    is_selection: bool = False


class UntouchedMoved(msgspec.Struct, frozen=True):
    """The times of most of the ``tests`` that the change cannot affect have moved alike, by a ``ratio``."""

    tests: int
    ratio: float


class UncomparedCounts(msgspec.Struct, frozen=True):
    """A test's counts are not compared; ``gates`` if some of them would have decided."""

    key: str
    obstacle: Obstacle
    gates: bool


# ----------------------------------------------------------------------- what was stored


class KeptBack(enum.Enum):
    """Why a test's figures are not stored."""

    FAILED = enum.auto()
    INVALID = enum.auto()  # the whole measurement
    INVALID_TIME = enum.auto()  # though a verdict by counts stands
    FEW_WORKERS = enum.auto()
    SLOWER = enum.auto()  # or perhaps: the old figures stay
    UNDECIDED = enum.auto()  # by stored numbers, as no code could be run
    SLOWER_AND_NEW = enum.auto()  # or perhaps: this machine has no old figures


class Saved(msgspec.Struct, frozen=True):
    """The storing of a run: the file, the keys stored in it, why others were not, and whether git has their code.

    ``workers`` are how many measured each test that was kept back for too few workers, ``needed`` how many it takes.
    """

    path: Path
    settleable: bool
    stored: tuple[str, ...]
    kept_back: dict[str, KeptBack]
    workers: dict[str, int] = msgspec.field(default_factory=dict)
    needed: int = 0


Note: TypeAlias = (
    TextNote
    | FewerLanes
    | LeftoversRemoved
    | ShortOfMemory
    | UnmatchedAllowance
    | SkippedBaseline
    | MeasuredFresh
    | MeasuredInDoubt
    | NotForked
    | NotWatched
    | ShortOfTime
    | Unfinished
    | UncomparedCounts
    | Untested
    | UntouchedMoved
    | Saved
)


# --------------------------------------------------------------------------- progress


class Plan(NamedTuple):
    """The work that a run is about to do.

    Of its ``tests``, the change touches ``touched``, None if that was not observed. ``measured`` are to be measured,
    ``paired`` of them in live pairs, whose number is between the two of ``pairs``. ``lanes`` tests are measured at
    once. ``expected_s`` is the time that earlier runs took for them, 0 without earlier runs. ``shard`` also has the
    tests of other shards.
    """

    tests: int
    touched: int | None
    measured: int
    paired: int
    pairs: tuple[int, int]
    lanes: int
    expected_s: float
    shard: Shard | None = None


class UnderWay(NamedTuple):
    """A test that is being measured: its name, its step, and the ratio that its pairs show so far, if any."""

    test: str
    step: str
    ratio: float | None = None


class RunProgress(Protocol):
    """Shows the plan of a run, its current step, and how far it has come."""

    def begin(self, test: str) -> None:
        """Name the test, or the base being prepared, that the next steps belong to."""

    def show(self, step: str) -> None:
        """Show the current step."""

    def plan(self, plan: Plan) -> None:
        """Show what the run is about to do."""

    def measuring(self, tests: Sequence[UnderWay]) -> None:
        """Show the tests that are being measured, first the one whose report is next."""

    def settle(self, outcome: Outcome, *, fails: bool) -> None:
        """Show the verdict on a test that is over."""

    def clear(self) -> None:
        """Make room for the output of pytest."""

    def count(self, done: int, total: int, verdicts: Mapping[str, int], left_s: float = 0.0) -> None:
        """Show how many tests are done, how many there are of each verdict so far, and the time left, 0 if unknown."""
