"""The code and files that a test's processes run and read, and the parts of a change."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pytest_rlperf.model.measured import CounterChange


class Footprint(msgspec.Struct, frozen=True):
    """The code and files that a process has run and read since it began.

    ``files`` are those that it has read, and ``data`` the modules among them that it has read in another way than by
    importing them. ``functions`` are the first lines of the functions that it has executed, by their files. ``modules``
    are those from elsewhere that it has loaded for itself. The actions of its ``children`` are not known. It is
    ``whole`` unless functions may have run unnoticed, for example in threads of native code. If its code is
    ``compiled`` from functions, these run unnoticed. Functions are ``kept`` if an object refers to them and may run
    something else in their place, and ``annotated`` if their annotations have been read. ``special`` are the files that
    no ordinary loader has loaded. ``opened`` are changed files that a library in another language, or another process,
    has opened meanwhile. ``unwatched`` says why these are not known. ``many`` if several threads, children or an
    accelerator worked while it was called; None if the calls were too short to find out. ``loaded`` are the modules of
    the code under test, in the order in which they were loaded.
    """

    files: list[str]
    children: bool
    functions: Mapping[str, list[int]] = msgspec.field(default_factory=dict)
    data: list[str] = msgspec.field(default_factory=list)
    modules: list[str] = msgspec.field(default_factory=list)
    whole: bool = True
    compiled: bool = False
    kept: Mapping[str, list[int]] = msgspec.field(default_factory=dict)
    annotated: Mapping[str, list[int]] = msgspec.field(default_factory=dict)
    special: list[str] = msgspec.field(default_factory=list)
    opened: list[str] = msgspec.field(default_factory=list)
    unwatched: str = ""
    many: bool | None = None
    loaded: list[str] = msgspec.field(default_factory=list)


MAIN = "__main__"
"""The name of the body that runs only if its module is run as a program."""


class Kind(str, enum.Enum):
    """The kinds of parts that a change has."""

    FUNCTION = "function"  # or a method
    BODY = "body"  # of a class or a module, without its functions
    FILE = "file"  # data, or a source that cannot be taken apart


@dataclass(frozen=True)
class ChangedPart:
    """A part that differs between the sides: its file and its qualified name.

    The file is relative to the top of the tree, or to the directory of an installed package. The name of a module's
    body is empty. ``line`` is where it begins on the head, or on the base if the head lacks it, and ``differs`` is its
    first line that differs in the tree; both are 0 without lines. ``was`` and ``now`` are its text on the base and on
    the head, empty if there is none.
    """

    kind: Kind
    file: str
    name: str = ""
    line: int = 0
    differs: int = 0
    was: str = field(default="", compare=False)
    now: str = field(default="", compare=False)

    @property
    def is_gone(self) -> bool:
        """Whether it is a function that only the base has."""
        return self.kind is Kind.FUNCTION and not self.now


class Touched(msgspec.Struct, frozen=True):
    """A part of a change that a test runs or reads; ``entries`` are those of a call on the base and on the head.

    ``calls`` are those that it makes more or less often. If calls were not counted, both are unknown, and ``entries``
    are None.
    """

    part: ChangedPart
    entries: tuple[int, int] | None = None
    calls: tuple[CounterChange, ...] = ()

    @property
    def more(self) -> int:
        """How many calls of all kinds the head makes more or less."""
        return sum(abs(change.now - change.was) for change in self.calls)

    @property
    def busiest(self) -> int:
        """The entries of a call on the side that has more of them."""
        return max(self.entries or (0,))
