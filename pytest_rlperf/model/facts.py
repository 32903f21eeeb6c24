"""What findings are about, in facts: `report.wording` makes a line of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pytest_rlperf.model.measured import Compiled


class Fact:
    """What a line of a finding says; a kind of fact is a frozen dataclass, and one read from a file is in words."""


@dataclass(frozen=True)
class InWords(Fact):
    """A line as a file has it."""

    text: str


@dataclass(frozen=True)
class Drift(Fact):
    """Calls get slower by ``ratio`` within so many ``calls``."""

    ratio: float
    calls: int


class Both(NamedTuple):
    """A thing by its name, and how much of it there is on either side."""

    name: str
    base: float
    head: float


@dataclass(frozen=True)
class SlowStart(Fact):
    """The parts of a start that take longer, by the names of their fields, and their seconds."""

    parts: tuple[Both, ...]


@dataclass(frozen=True)
class Growth(Fact):
    """How much more of each resource a call leaves than on base, by its name, and the ``places`` that allocate it."""

    more: dict[str, float]
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Garbage(Fact):
    """What a call leaves to the garbage collector, by the names of the counts."""

    parts: tuple[Both, ...]


@dataclass(frozen=True)
class Compiles(Fact):
    """How many programs a call compiles on either side, and the last ones of head's."""

    base: float
    head: float
    last: tuple[Compiled, ...] = ()


@dataclass(frozen=True)
class OnOneSide(Fact):
    """A part of an output is there on one side alone."""


@dataclass(frozen=True)
class OtherKind(Fact):
    """A part of an output is of another kind on either side."""

    base: str
    head: str


@dataclass(frozen=True)
class OtherBits(Fact):
    """A part of an output differs, of which no sample says by how much."""


@dataclass(frozen=True)
class OtherNumbers(Fact):
    """Numbers of an output differ by ``most``; ``whole`` is the largest of base's."""

    most: float
    whole: float


@dataclass(frozen=True)
class OtherOutput(Fact):
    """The part of the first call's output at ``path`` differs, and how."""

    path: str
    how: Fact


class SlowerPhase(NamedTuple):
    """A phase, the ratio of its times, and the least that is certain."""

    path: str
    ratio: float
    certain: float


@dataclass(frozen=True)
class SlowerPhases(Fact):
    """The phases that got slower for certain, those first that add the most."""

    phases: tuple[SlowerPhase, ...]


class Law(NamedTuple):
    """A figure at the smaller and the larger size on either side; what head adds grows with an exponent, if known."""

    name: str
    base: tuple[float, float]
    head: tuple[float, float]
    exponent: float | None


@dataclass(frozen=True)
class Scale(Fact):
    """What grows faster from one size to another."""

    small: float
    large: float
    laws: tuple[Law, ...]


@dataclass(frozen=True)
class Threads(Fact):
    """The threads and processes of which head has more."""

    parts: tuple[Both, ...]
