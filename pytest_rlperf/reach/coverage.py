"""What the tests of a run have executed of a change together, and which of them it cannot matter to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.reach.touch import Reached


@dataclass
class Coverage:
    """Adds up what tests have reached.

    ``unknown`` are tests that may have run anything, ``untouched`` those that the change cannot matter to.
    """

    unknown: list[str] = field(default_factory=list)
    untouched: set[str] = field(default_factory=set)
    _functions: dict[ChangedPart, None] = field(default_factory=dict)
    _executed: set[ChangedPart] = field(default_factory=set)
    _places: set[str] = field(default_factory=set)

    def add(self, key: str, functions: tuple[ChangedPart, ...], reached: Reached | None, files: frozenset[str]) -> None:
        """Add a test, which has read ``files``, and what it has reached of the ``functions`` that differ."""
        self._functions.update(dict.fromkeys(functions))
        self._places.update(map(_place, files))
        if reached is None or not reached.known:
            self.unknown.append(key)
        if reached is not None:
            self._executed.update(reached.executes)

    @property
    def changed(self) -> list[ChangedPart]:
        """The functions that differ and that head has, in the directories from which tests have read anything."""
        return [part for part in self._functions if not part.is_gone and _place(part.file) in self._places]

    @property
    def untested(self) -> list[ChangedPart]:
        """Those that no test has executed, without their texts."""
        return [replace(part, was="", now="") for part in self.changed if part not in self._executed]


def _place(file: str) -> str:
    """Return the first directory of a path, empty for the top itself."""
    first, slash, _ = file.partition("/")
    return first if slash else ""
