"""The parts of a change that a run's tests have executed together, and the tests that it cannot affect."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_rlperf.model.reach import ChangedPart, Kind
from pytest_rlperf.reach.touch import Reached


@dataclass
class Coverage:
    """Adds up what tests have reached.

    ``unknown`` are tests that may have run anything, ``untouched`` those that the change cannot affect.
    """

    unknown: list[str] = field(default_factory=list)
    untouched: set[str] = field(default_factory=set)
    _parts: dict[ChangedPart, None] = field(default_factory=dict)
    _executed: set[ChangedPart] = field(default_factory=set)

    def add(self, key: str, parts: tuple[ChangedPart, ...], reached: Reached | None) -> None:
        """Add a test, and which of the differing ``parts`` it has reached."""
        self._parts.update(dict.fromkeys(parts))
        if reached is None or not reached.known:
            self.unknown.append(key)
        if reached is not None:
            self._executed.update(reached.executes)

    @property
    def changed(self) -> list[ChangedPart]:
        """The parts that differ and that the head has, wherever they lie."""
        return [part for part in self._parts if not part.is_gone]

    @property
    def untested(self) -> list[ChangedPart]:
        """The parts that no test has executed, without their texts.

        The body of a file that a test reads may have run. A copy of what has run is what a build has left.
        """
        read = {part.file for part in self._executed if part.kind is Kind.FILE}
        ran = {(part.name, part.now) for part in self._executed if part.kind is not Kind.FILE}
        left = [part for part in self.changed if part not in self._executed and (part.name, part.now) not in ran]
        return [replace(part, was="", now="") for part in left if not (part.kind is Kind.BODY and part.file in read)]
