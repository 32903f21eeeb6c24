"""The base sides of a run, by the commit of a baseline."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_rlperf.errors import SideError
from pytest_rlperf.run.drivers import PAIR_NAMES, Drivers, Processes
from pytest_rlperf.sides.prepare import Preparation


class BaseSides:
    """The base sides of a run, all prepared before its loop begins: git, environments and builds would block it."""

    def __init__(self, preparation: Preparation, processes: Processes, commits: Iterable[str]) -> None:
        self._known: dict[str, Drivers | SideError] = {}
        for sha in dict.fromkeys(commits):
            try:
                self._known[sha] = processes.drivers(preparation.commit(sha), *PAIR_NAMES)
            except SideError as error:
                self._known[sha] = error

    def of_commit(self, sha: str) -> Drivers:
        """Return the drivers for ``sha``'s code and today's; SideError, every time, if ``sha``'s cannot be had."""
        found = self._known[sha]
        if isinstance(found, SideError):
            raise found
        return found

    def give_up(self, sha: str, error: SideError) -> None:
        """Raise ``error`` from now on when ``sha`` is wanted."""
        self._known[sha] = error
