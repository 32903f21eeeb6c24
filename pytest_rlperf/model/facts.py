"""The facts of findings: `report.wording` writes a line for each."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pytest_rlperf.model.measured import Compiled


class Fact:
    """The content of a finding's line: a frozen Struct for each kind of fact, or words if it is read from a file."""


class InWords(Fact, msgspec.Struct, frozen=True):
    """A line read from a file."""

    text: str


class Drift(Fact, msgspec.Struct, frozen=True):
    """Calls get slower by ``ratio`` within ``calls`` calls."""

    ratio: float
    calls: int


class Both(NamedTuple):
    """A thing by its name, and its amount on each side."""

    name: str
    base: float
    head: float


class SlowStart(Fact, msgspec.Struct, frozen=True):
    """The parts of a start that take longer, by the names of their fields, and their seconds."""

    parts: tuple[Both, ...]


class Growth(Fact, msgspec.Struct, frozen=True):
    """The resources that a call leaves beyond those on the base, by name, and the ``places`` that allocate them."""

    more: dict[str, float]
    places: tuple[str, ...] = ()


class Garbage(Fact, msgspec.Struct, frozen=True):
    """The objects that a call leaves to the garbage collector, by the names of the counts."""

    parts: tuple[Both, ...]


class Compiles(Fact, msgspec.Struct, frozen=True):
    """The number of programs that a call compiles on each side, and the last ones of the head."""

    base: float
    head: float
    last: tuple[Compiled, ...] = ()


class OnOneSide(Fact, msgspec.Struct, frozen=True):
    """A part of an output is there on one side only."""


class OtherKind(Fact, msgspec.Struct, frozen=True):
    """A part of an output is of a different kind on each side."""

    base: str
    head: str


class OtherBits(Fact, msgspec.Struct, frozen=True):
    """A part of an output differs, and no sample shows by how much."""


class OtherNumbers(Fact, msgspec.Struct, frozen=True):
    """Numbers of an output differ by ``most``; ``whole`` is the largest number of the base."""

    most: float
    whole: float


class OtherOutput(Fact, msgspec.Struct, frozen=True):
    """The part of the first call's output at ``path`` differs, and how."""

    path: str
    how: Fact


class SlowerPhase(NamedTuple):
    """A phase, the ratio of its times, and the lower bound of the ratio."""

    path: str
    ratio: float
    certain: float


class SlowerPhases(Fact, msgspec.Struct, frozen=True):
    """The phases whose lower bounds show a slowdown, those that add the most first."""

    phases: tuple[SlowerPhase, ...]


class Law(NamedTuple):
    """A figure at the smaller and the larger size on each side; the head's extra grows with the exponent, if known."""

    name: str
    base: tuple[float, float]
    head: tuple[float, float]
    exponent: float | None


class Scale(Fact, msgspec.Struct, frozen=True):
    """The figures that grow faster from one size to another."""

    small: float
    large: float
    laws: tuple[Law, ...]


class Threads(Fact, msgspec.Struct, frozen=True):
    """The threads and processes that the head has more of."""

    parts: tuple[Both, ...]
