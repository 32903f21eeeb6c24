"""Which stored counts a test's are compared with: those of any machine where the code ran on the same versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.baseline.provenance import changed_versions, providing
from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.model import Baseline, Counting, Machine, PhaseCounts, Result, VersionChange
from pytest_rlperf.report.wording import version_text
from pytest_rlperf.sides.packages import installs_from, normalized

# What runs the tests and no code that they measure; of another version it counts the same. pytest-rlperf itself is not
# among it: what it counts, and how, may change.
_HARNESS = frozenset(
    {"pytest", "pluggy", "iniconfig", "packaging", "pytest-benchmark", "py-cpuinfo", "msgspec"}
    | {"psutil", "rich", "markdown-it-py", "mdurl", "pygments", "coverage", "pytest-cov", "pytest-xdist", "execnet"}
    | {"pytest-timeout", "pip", "setuptools"}
)
# What depends on the device that is there, or on the interpreter that is told of it, and not on the code alone.
_OF_THE_DEVICE = frozenset({"kernels", "device_allocations", "device_peak_bytes"})
_OF_THE_INTERPRETER = frozenset(
    {"python_calls", "native_calls", "host_peak_bytes", "host_net_bytes", "collections", "objects_left", "garbage"}
)


@dataclass(frozen=True)
class Remembered:
    """Counts to compare with, None where there are none that can be; ``obstacle`` then says why.

    ``origin`` names another machine that they are of. ``is_outdated`` says that all there are come from other versions.
    """

    counting: Counting | None
    origin: str
    obstacle: str
    is_outdated: bool


def live_counts(base: Result, against: str | None = None) -> Remembered:
    """Return what the other side of a live comparison counted, less what is another's where that is another Python."""
    counting = base.counting
    obstacle = "" if counting is None or counting.workers else f"on the other side {'; '.join(counting.notes)}"
    if counting is not None and against is not None and against.startswith("python:"):
        counting = _without(counting, _OF_THE_INTERPRETER)
    return Remembered(counting, "", obstacle, is_outdated=False)


class Memory:
    """The counts that baselines hold, this machine class's before those of ``others``, which are read when needed.

    ``packages`` are the import packages under test: their versions may differ, as that is what is tested. So may those
    of what is installed from the tree at ``top``.
    """

    def __init__(
        self,
        machine: Machine,
        own: Baseline | None,
        others: Callable[[], Sequence[Baseline]],
        packages: Sequence[str],
        top: Path,
    ) -> None:
        self._machine = machine
        self._own = own
        self._read_others = others
        self._packages = packages
        self._top = top

    def find(self, result: Result) -> Remembered:
        """Return what a test's counts can be compared with."""
        obstacles: list[str] = []
        outdated = False
        for baseline in self._baselines(obstacles):
            stored = baseline.results.get(result.nodeid)
            if stored is None or not stored.result.is_same_work(result):
                continue
            counting = stored.result.counting
            if counting is None or not counting.workers:
                obstacles.append("the baseline has no counts: store it anew with --rlperf-save-baseline")
                continue
            if min(counting.workers, 0 if result.counting is None else result.counting.workers) < 2:
                obstacles.append("one worker alone has counted, which knows nothing exactly: raise --rlperf-max-time")
                continue
            differing = self._differing(baseline, stored.session)
            if differing:
                outdated = True
                obstacles.append(f"stored with other versions: {', '.join(map(version_text, differing))}")
                continue
            if baseline.machine.accelerators != self._machine.accelerators:
                counting = _without(counting, _OF_THE_DEVICE)
            origin = "" if baseline.machine == self._machine else describe(baseline.machine)
            return Remembered(counting, origin, "", is_outdated=False)
        return Remembered(None, "", obstacles[0] if obstacles else "", is_outdated=outdated)

    def _baselines(self, obstacles: list[str]) -> Iterator[Baseline]:
        if self._own is not None:
            yield self._own
        try:
            yield from self._others
        except BaselineError as error:
            obstacles.append(str(error))

    @cached_property
    def _others(self) -> Sequence[Baseline]:
        return self._read_others()

    def _differing(self, baseline: Baseline, session: str) -> list[VersionChange]:
        """Return what measured code runs on and is not what it was: the interpreter's minor version, and packages."""
        differing = []
        if baseline.machine.python != self._machine.python:
            differing.append(VersionChange("Python", baseline.machine.python, self._machine.python))
        then = {
            name: version
            for name, version in baseline.sessions[session].packages.items()
            if normalized(name) not in self._free
        }
        return differing + changed_versions(then)

    @cached_property
    def _free(self) -> frozenset[str]:
        """The distributions whose versions do not matter."""
        names = {*providing(self._packages), *(install.name for install in installs_from(self._top))}
        return _HARNESS | {normalized(name) for name in names}


def tree_top(directory: Path) -> Path:
    """Return the directory of the repository that ``directory`` lies in, else itself."""
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), directory)


def _without(counting: Counting, names: frozenset[str]) -> Counting:
    """Return ``counting`` less some of its counters."""
    phases = tuple(
        PhaseCounts(
            phase.path,
            {name: value for name, value in phase.exact.items() if name.partition(":")[0] not in names},
            {name: value for name, value in phase.inexact.items() if name.partition(":")[0] not in names},
        )
        for phase in counting.phases
    )
    return replace(counting, phases=phases)
