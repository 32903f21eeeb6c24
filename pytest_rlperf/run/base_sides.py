"""The base sides of a run, by the commit of a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_rlperf.errors import SideError
from pytest_rlperf.run.drivers import PAIR_NAMES, Drivers, Processes
from pytest_rlperf.sides.prepare import Preparation


@dataclass
class BaseSides:
    """The base sides of a run, each prepared once."""

    preparation: Preparation
    processes: Processes
    _known: dict[str, Drivers | SideError] = field(default_factory=dict)

    def of_commit(self, sha: str, show: Callable[[str], None]) -> Drivers:
        """Return the drivers of ``sha`` and today's code; SideError, every time, where that code cannot be had."""
        if sha not in self._known:
            try:
                with self.processes.guardian.guarding_commands():
                    show("preparing the baseline's commit")
                    sides = self.preparation.commit(sha)
                self._known[sha] = self.processes.drivers(sides, *PAIR_NAMES)
            except SideError as error:
                self._known[sha] = error
        found = self._known[sha]
        if isinstance(found, SideError):
            raise found
        return found

    def give_up(self, sha: str, error: SideError) -> None:
        """Answer with ``error`` from now on where ``sha`` is wanted."""
        self._known[sha] = error
