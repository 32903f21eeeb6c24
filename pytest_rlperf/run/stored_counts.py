"""The exact counts that a test's counts are compared with: a baseline's, or those of a live comparison's base."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pytest_rlperf.baseline.provenance import changed_versions, free_distributions
from pytest_rlperf.model import notes
from pytest_rlperf.model.measured import Counting, PhaseCounts, Result
from pytest_rlperf.model.stored import Baseline
from pytest_rlperf.sides.git import tree_top
from pytest_rlperf.sides.installs import normalized

# Counts that depend on the interpreter, not only on the code.
_OF_THE_INTERPRETER = frozenset(
    {"python_calls", "native_calls", "host_peak_bytes", "host_net_bytes", "collections", "objects_left", "garbage"}
)


class OtherCounts(msgspec.Struct, frozen=True):
    """Counts to compare with, or None; ``obstacle`` is the reason if it is worth a note."""

    counting: Counting | None
    obstacle: notes.Obstacle | None = None


def live_counts(base: Result, against: str | None = None) -> OtherCounts:
    """Return the counts of a live comparison's base; if it is an interpreter, without counts that depend on it."""
    counting = base.counting
    if counting is not None and not counting.workers:
        return OtherCounts(counting, notes.NothingCounted(counting.notes, on_base=True))
    if counting is not None and against is not None and against.startswith("python:"):
        counting = _without(counting, _OF_THE_INTERPRETER)
    return OtherCounts(counting)


@dataclass
class StoredCounts:
    """The counts that this machine class's baseline holds.

    The versions of packages in the tree around ``root`` may differ, as they are under test.
    """

    own: Baseline | None
    root: Path

    def find(self, result: Result) -> OtherCounts:
        """Return the counts that a test's counts can be compared with."""
        stored = None if self.own is None else self.own.results.get(result.nodeid)
        if self.own is None or stored is None or not stored.result.is_same_work(result):
            return OtherCounts(None)
        then, now = stored.result.counting, result.counting
        if then is None or not then.workers:
            return OtherCounts(None, notes.NoStoredCounts())
        if min(then.workers, 0 if now is None else now.workers) < 2:
            return OtherCounts(None, notes.OneWorkerCounted())
        packages = self.own.sessions[stored.session].packages
        differing = changed_versions({name: packages[name] for name in packages if normalized(name) not in self._free})
        return OtherCounts(None, notes.OtherVersions(tuple(differing))) if differing else OtherCounts(then)

    @cached_property
    def _free(self) -> frozenset[str]:
        """The distributions whose versions do not matter."""
        return free_distributions(self.root, tree_top(self.root))


def _without(counting: Counting, names: frozenset[str]) -> Counting:
    """Return ``counting`` without the counters ``names``."""
    phases = tuple(
        PhaseCounts(
            phase.path,
            {name: value for name, value in phase.exact.items() if name.partition(":")[0] not in names},
            {name: value for name, value in phase.inexact.items() if name.partition(":")[0] not in names},
        )
        for phase in counting.phases
    )
    return replace(counting, phases=phases)
