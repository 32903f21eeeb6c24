"""The reasons of verdicts: a code that programs may rely on, and typed facts.

`report.wording` writes them in English.

Ratios are head over base: 1.05 is 5 % slower. Slowdowns and tolerances are ratios minus one.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

import msgspec

from pytest_rlperf.model.device import Disturbance
from pytest_rlperf.model.facts import Fact
from pytest_rlperf.model.live import OtherWork
from pytest_rlperf.model.measured import CounterChange


class Code(str, enum.Enum):
    """The kinds of reasons, by their names in JSON and JUnit XML."""

    __str__ = str.__str__

    # Nothing was compared.
    NEW = "new"
    MACHINE = "machine"
    WORKLOAD = "workload"
    WORK = "work"
    DEVICE = "device"
    BASE = "base"
    FILES = "files"
    # The test failed.
    ERROR = "error"
    # The measurement broke its own rules.
    BACKGROUND = "background"
    PHASES = "phases"
    # Times decided, or could not.
    STORED = "stored"
    LIVE = "live"
    MIN_CHANGE = "min_change"
    WORKERS = "workers"
    PAIRS = "pairs"
    SPREAD = "spread"
    NEAR = "near"
    MOVED = "moved"
    UNCONFIRMED = "unconfirmed"
    # Something other than times decided, or explains them.
    CODE = "code"
    REACH = "reach"
    ENVIRONMENT = "environment"
    COUNTERS = "counters"
    FINDING = "finding"
    # Beside the reason that decides.
    TIME = "time"
    ORIGIN = "origin"
    ALLOWANCE = "allowance"
    UNSETTLED = "unsettled"


class Reason:
    """The reason of a verdict; each kind of reason is a frozen Struct of facts with its ``code``.

    A :class:`WrittenReason` is read from a file.
    """

    code: str


class WrittenReason(Reason, msgspec.Struct, frozen=True):
    """A reason that a file has in words; ``code`` may be one of a later version."""

    code: str
    message: str


class FullReason(WrittenReason, frozen=True):
    """All reasons of a verdict in one text, with the code of the deciding one, as in a run's JSON."""


class MachineDifference(NamedTuple):
    """A field of the machine class, and its values on two machines."""

    field: str
    one: object
    other: object


class VersionChange(NamedTuple):
    """A distribution, or the interpreter, and its version then and now; ``now`` is None if it is gone."""

    name: str
    then: str
    now: str | None


# ----------------------------------------------------------------------- nothing to compare with


class NoBaseline(Reason, msgspec.Struct, frozen=True):
    """No figures of this test are stored; here and below, ``stores`` marks a run that stores its own."""

    stores: bool
    code = Code.NEW


class OtherMachines(Reason, msgspec.Struct, frozen=True):
    """Figures are stored only for other machine classes; ``differences`` are those of each from this machine."""

    differences: tuple[tuple[MachineDifference, ...], ...]
    stores: bool
    code = Code.MACHINE


class Incomparable(Reason, msgspec.Struct, frozen=True):
    """Times are not compared, as ``what`` was different on the base, or in the baseline: each value is in words.

    ``code`` is WORKLOAD, WORK or DEVICE. ``base_label`` names the base of a live comparison; None means the baseline.
    """

    code: Code
    what: str
    was: str
    now: str
    base_label: str | None
    stores: bool


class NotOnBase(Reason, msgspec.Struct, frozen=True):
    """The base cannot run the test; ``error`` is the line of the failure that names the cause, or empty.

    ``ended`` is the outcome that the base's worker reported: "missing", "passed" without calling the fixture, or
    pytest's. ``is_new`` if a name is missing on the base; ``lacks`` are modules that the base needs and that are not
    installed.
    """

    base_label: str
    ended: str
    error: str
    is_new: bool
    lacks: tuple[str, ...] = ()
    code = Code.BASE


class NothingLoaded(Reason, msgspec.Struct, frozen=True):
    """The test loads nothing of the packages under test; ``error`` names them, and the remedy."""

    error: str
    code = Code.BASE


class NotCopied(Reason, msgspec.Struct, frozen=True):
    """The test needs a ``file`` of the tree that git ignores and that is too large to copy without being asked."""

    file: str
    code = Code.FILES


class NotBuilt(Reason, msgspec.Struct, frozen=True):
    """The test has loaded a compiled ``file`` that both sides share, though its ``source`` may differ."""

    file: str
    source: str
    code = Code.FILES


class Edited(Reason, msgspec.Struct, frozen=True):
    """A ``file`` that the test had loaded from the user's own tree was changed while it was measured."""

    file: str
    code = Code.FILES


# ----------------------------------------------------------------------- the test failed


class TestFailed(Reason, msgspec.Struct, frozen=True):
    """The test failed for a reason other than its verdict: in its ``"setup"``, ``"call"`` or ``"teardown"``.

    ``error`` is the line of the failure that names the cause.
    """

    when: str
    error: str
    code = Code.ERROR


# ----------------------------------------------------------------------- the measurement broke its own rules


class BackgroundWork(Reason, msgspec.Struct, frozen=True):
    """A worker used ``idle_cpu_share`` of a CPU while others had their turn."""

    idle_cpu_share: float
    code = Code.BACKGROUND


class PhasesOverCall(Reason, msgspec.Struct, frozen=True):
    """The phases of a call add up to more than the call."""

    phases_s: float
    call_s: float
    code = Code.PHASES


class DeviceDisturbed(Reason, msgspec.Struct, frozen=True):
    """A worker's slices on a device were disturbed, and so was every retake."""

    device: str
    disturbances: tuple[Disturbance, ...]
    code = Code.DEVICE


# ----------------------------------------------------------------------- stored numbers


class TooFewWorkers(Reason, msgspec.Struct, frozen=True):
    """One of the sides has figures from only one worker, which have no spread."""

    now: int
    stored: int
    code = Code.WORKERS


class StoredSame(Reason, msgspec.Struct, frozen=True):
    """Stored numbers bound the change within ``tolerance`` either way."""

    tolerance: float
    code = Code.STORED


class StoredSlower(Reason, msgspec.Struct, frozen=True):
    """The comparison with stored numbers shows a slowdown over ``threshold``, its lower bound over half of that."""

    threshold: float
    code = Code.STORED


class StoredFaster(Reason, msgspec.Struct, frozen=True):
    """Stored numbers show a gain."""

    stores: bool
    code = Code.STORED


class StoredSpread(Reason, msgspec.Struct, frozen=True):
    """Figures of workers and sessions differ too much to confirm ``tolerance``.

    A slowdown of ``smallest_seen`` would have been SLOWER.
    """

    tolerance: float
    smallest_seen: float
    code = Code.SPREAD


class StoredPaces(Reason, msgspec.Struct, frozen=True):
    """The ratios relative to the two kernels certainly differ, or one alone would decide where both do not.

    A slowdown of ``smallest_seen`` would have been SLOWER.
    """

    interpreter: float
    memory: float
    smallest_seen: float
    code = Code.SPREAD


class UnderMinimum(Reason, msgspec.Struct, frozen=True):
    """A change of ``change_s`` per call, or at most of that, is less than ``least_s``, the least that matters."""

    change_s: float
    least_s: float
    at_most: bool
    code = Code.MIN_CHANGE


# ----------------------------------------------------------------------- live pairs


class PairsSame(Reason, msgspec.Struct, frozen=True):
    """Live pairs bound the change within ``tolerance`` either way."""

    pairs: int
    tolerance: float
    code = Code.LIVE


class PairsDiffer(Reason, msgspec.Struct, frozen=True):
    """Live pairs show a change, and a fresh pair, the last one, confirmed it with ``fresh`` by itself.

    ``is_slower`` is the direction, and ``all_agree`` is whether every single pair has it too.
    """

    pairs: int
    is_slower: bool
    all_agree: bool
    fresh: float
    code = Code.LIVE


class PairsUndecided(Reason, msgspec.Struct, frozen=True):
    """Live pairs do not decide: they are too few, too different, too near the tolerance, not confirmed, or too short.

    ``code`` says which: PAIRS, SPREAD, NEAR, UNCONFIRMED or MOVED. MOVED means that expensive calls come at other calls
    than on the base, and are too few to tell whether they come more often. ``at_most`` is the upper bound of the
    change, None without pairs. The pairs would have found the slowdown ``smallest_seen`` 95 times of 100; None if they
    would find none. ``time_is_short`` if more pairs were allowed and there was no time. ``pair_sd`` is the standard
    deviation of pairs that differ too much. ``placed`` if one CPU ran both sides of each pair. ``other_work`` is the
    work beside the usual pair, if it was enough to disturb it; it has no process if most of it cannot be seen.
    """

    code: Code
    at_most: float | None
    smallest_seen: float | None = None
    time_is_short: bool = False
    pair_sd: float | None = None
    placed: bool = True
    other_work: OtherWork | None = None


# ----------------------------------------------------------------------- something other than times


class SameCode(Reason, msgspec.Struct, frozen=True):
    """Both sides are the same code.

    The test has read ``files`` files of them, and none differs; None if no file of the trees differs. ``code_files`` of
    them are not test files, which are today's on both sides.
    """

    base_label: str
    files: int | None = None
    code_files: int = 0
    code = Code.CODE


class Unreached(Reason, msgspec.Struct, frozen=True):
    """The sides differ, and the test does not run or read any part of the difference on either side.

    The change has ``functions`` functions that differ, are new or are gone.
    """

    base_label: str
    functions: int
    code = Code.REACH


Unpaired: TypeAlias = SameCode | Unreached | Incomparable | NothingLoaded | NotCopied | NotBuilt | NotOnBase
"""Why a test was not compared in pairs, though there is a side to compare with."""


class OtherEnvironment(Reason, msgspec.Struct, frozen=True):
    """The code is as fast as it was, but stored numbers show the change ``ratio``.

    ``versions`` are the packages that have changed since; if none has, the machine has changed. ``same_code`` is set if
    nothing was measured live, as nothing differs.
    """

    ratio: float | None
    versions: tuple[VersionChange, ...]
    same_code: SameCode | Unreached | None
    code = Code.ENVIRONMENT


class CountsChanged(Reason, msgspec.Struct, frozen=True):
    """Exact counts that gate have changed; they decide whatever the time does, or stand ``also`` beside the time."""

    changes: tuple[CounterChange, ...]
    also: bool = False
    code = Code.COUNTERS


class Found(Reason, msgspec.Struct, frozen=True):
    """Findings of other kinds than time and counts, one line each; they gate, or are ``also`` beside another reason."""

    lines: tuple[Fact, ...]
    also: bool = False
    code = Code.FINDING


# ----------------------------------------------------------------------- beside the reason that decides


class TimeAlone(Reason, msgspec.Struct, frozen=True):
    """The verdict of the time by itself, if counts decide."""

    status: str
    reason: Reason
    code = Code.TIME


class BeyondAllowance(Reason, msgspec.Struct, frozen=True):
    """The slowdown is more than the ``most`` that a commit accepts, which is 0 if the commit accepts only counts.

    ``kinds`` are those of findings that need a line of their own.
    """

    commit: str
    most: float
    ratio: float
    kinds: tuple[str, ...] = ()
    code = Code.ALLOWANCE


class NoCode(enum.Enum):
    """Why there is no code to run in place of stored numbers."""

    OUTSIDE_GIT = enum.auto()  # the stored figures belong to no commit
    UNCOMMITTED = enum.auto()  # the stored figures belong to uncommitted changes
    NOT_RUNNING = enum.auto()  # git does not have the commit, or it does not run


class NotSettledLive(Reason, msgspec.Struct, frozen=True):
    """There are only stored numbers; ``error`` is the report of git or of the commit's code, or empty."""

    why: NoCode
    error: str = ""
    code = Code.UNSETTLED
