"""The facts of findings: `report.wording` writes a line for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pytest_rlperf.model.measured import Compiled


class Fact:
    """The content of a finding's line: a frozen dataclass for each kind of fact, or words if it is read from a file."""


@dataclass(frozen=True)
class InWords(Fact):
    """A line read from a file."""

    text: str


@dataclass(frozen=True)
class Drift(Fact):
    """Calls get slower by ``ratio`` within ``calls`` calls."""

    ratio: float
    calls: int


class Both(NamedTuple):
    """A thing by its name, and its amount on each side."""

    name: str
    base: float
    head: float


@dataclass(frozen=True)
class SlowStart(Fact):
    """The parts of a start that take longer, by the names of their fields, and their seconds."""

    parts: tuple[Both, ...]


@dataclass(frozen=True)
class Growth(Fact):
    """The resources that a call leaves beyond those on the base, by name, and the ``places`` that allocate them."""

    more: dict[str, float]
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Garbage(Fact):
    """The objects that a call leaves to the garbage collector, by the names of the counts."""

    parts: tuple[Both, ...]


@dataclass(frozen=True)
class Compiles(Fact):
    """The number of programs that a call compiles on each side, and the last ones of the head."""

    base: float
    head: float
    last: tuple[Compiled, ...] = ()


@dataclass(frozen=True)
class OnOneSide(Fact):
    """A part of an output is there on one side only."""


@dataclass(frozen=True)
class OtherKind(Fact):
    """A part of an output is of a different kind on each side."""

    base: str
    head: str


@dataclass(frozen=True)
class OtherBits(Fact):
    """A part of an output differs, and no sample shows by how much."""


@dataclass(frozen=True)
class OtherNumbers(Fact):
    """Numbers of an output differ by ``most``; ``whole`` is the largest number of the base."""

    most: float
    whole: float


@dataclass(frozen=True)
class OtherOutput(Fact):
    """The part of the first call's output at ``path`` differs, and how."""

    path: str
    how: Fact


class SlowerPhase(NamedTuple):
    """A phase, the ratio of its times, and the lower bound of the ratio."""

    path: str
    ratio: float
    certain: float


@dataclass(frozen=True)
class SlowerPhases(Fact):
    """The phases whose lower bounds show a slowdown, those that add the most first."""

    phases: tuple[SlowerPhase, ...]


class Law(NamedTuple):
    """A figure at the smaller and the larger size on each side; the head's extra grows with the exponent, if known."""

    name: str
    base: tuple[float, float]
    head: tuple[float, float]
    exponent: float | None


@dataclass(frozen=True)
class Scale(Fact):
    """The figures that grow faster from one size to another."""

    small: float
    large: float
    laws: tuple[Law, ...]


@dataclass(frozen=True)
class Threads(Fact):
    """The threads and processes that the head has more of."""

    parts: tuple[Both, ...]
