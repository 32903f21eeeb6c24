"""What is measured, and what measuring it gives."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pytest_rlperf.errors import NotMeasuredError


def _nothing() -> None:
    """Stand in for a step a workload does not need."""


@dataclass(frozen=True)
class Workload:
    """A component made ready to be measured.

    ``call`` takes nothing and processes ``items`` things of ``unit``. ``check`` runs the component once, untimed,
    and raises ComponentError where it is wrong. ``setup`` runs untimed before each round, which then holds
    one call. ``count`` returns how many items were processed since it was last asked, for components where a call
    does not always process the same number; it runs outside the timed region. ``close`` releases what the fixture
    itself made.
    """

    component: str
    call: Callable[[], object]
    items: float
    unit: str
    check: Callable[[], None]
    setup: Callable[[], None] | None = None
    count: Callable[[], float] | None = None
    close: Callable[[], None] = _nothing


class SliceKind(str, enum.Enum):
    """What a worker runs in its turn."""

    PLAIN = "plain"
    TRACED = "traced"
    INTERPRETER = "interpreter"
    MEMORY = "memory"


@dataclass(frozen=True)
class Phase:
    """A named part of one iteration: a path in the timer tree, seconds and entries per iteration.

    ``self_s`` is the time in no child phase. ``device`` is ``"host"`` for time read from the host's clock.
    """

    path: str
    count: float
    total_s: float
    self_s: float
    device: str

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """How many phases enclose this one."""
        return self.path.count("/")


@dataclass(frozen=True)
class Shape:
    """How many calls a slice makes: ``rounds`` timed rounds of ``iterations`` back-to-back calls."""

    iterations: int
    rounds: int


@dataclass(frozen=True)
class Warm:
    """What warming up found: the slice's shape and the typical seconds of one call."""

    shape: Shape
    call_s: float
    warm_up_s: float
    threads: int


@dataclass(frozen=True)
class SliceRecord:
    """One turn of one worker.

    ``call_s`` is the slice's figure: the median round for short calls, the mean for long ones, per call.
    ``rounds_s`` is the time within rounds. ``wall_s`` and ``cpu_s`` cover the rounds of long calls; of short ones the
    whole slice, as reading the CPU's clock costs too much to do it every round.
    ``waits`` counts how often the process gave up its CPU by itself, as it does to sleep or to wait for others.
    """

    kind: SliceKind
    call_s: float
    rounds_s: float
    calls: int
    items: float
    wall_s: float
    cpu_s: float
    waits: int
    collections: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class WorkerRecord:
    """One worker's figure for one test, the statistical unit of a stored comparison.

    ``call_s`` is seconds per call; ``relative`` and ``relative_memory`` are the same as multiples of a call of the
    reference kernels, the interpreter's and the memory's, taken in turns with them. ``clock`` is ``"wall"``, or
    ``"cpu"`` for long calls of a process that never waits: what held it up then was others. ``cpu_share`` is CPU time
    over wall time of the plain slices. ``idle_cpu_share`` is the CPU time it and its children burnt while others had
    their turn.
    """

    call_s: float
    relative: float
    relative_memory: float
    clock: str
    items_per_call: float
    slices: int
    calls: int
    cpu_share: float
    idle_cpu_share: float
    collections: int
    threads: int
    seed: int


@dataclass(frozen=True)
class Result:
    """What was measured for one test; what a fixture's call returns."""

    nodeid: str
    component: str
    unit: str
    items: float
    workers: tuple[WorkerRecord, ...]
    phases: tuple[Phase, ...]
    traced_call_s: float
    notes: tuple[str, ...]

    @property
    def measured(self) -> bool:
        """Whether there are figures: false in a run without ``--rlperf``, which only checks the component."""
        return bool(self.workers)

    @property
    def call_s(self) -> float:
        """Seconds per call: the median over the workers."""
        if not self.workers:
            raise NotMeasuredError(
                f"{self.nodeid}: this run did not measure. Run with --rlperf, or guard with `if result.measured:`."
            )
        return statistics.median(worker.call_s for worker in self.workers)

    @property
    def items_per_s(self) -> float:
        """Throughput: items processed per second of measured time."""
        return self.items / self.call_s

    def phase(self, path: str) -> Phase:
        """Return the phase at ``path``; KeyError names the paths there are."""
        for phase in self.phases:
            if phase.path == path:
                return phase
        known = ", ".join(phase.path for phase in self.phases) or "none"
        raise KeyError(f"no phase {path!r} in {self.nodeid}; phases recorded: {known}")


Measure: TypeAlias = Callable[..., Result]
"""What an rlperf fixture gives a test: call it with the component, get the result."""
