"""Workloads, the results of measuring them, and exact counts, which do not depend on the machine's speed."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeAlias

import msgspec

from pytest_rlperf.errors import NotMeasuredError
from pytest_rlperf.model.device import DeviceFigures, DeviceSlice, DeviceTimes, Pace


class Count(msgspec.Struct, frozen=True):
    """One count of one call, in the phase at ``path`` and all below it; an empty path is the whole call."""

    path: str
    name: str
    value: int


class FunctionCounts(msgspec.Struct, frozen=True):
    """How often one call enters a function of the code under test, and the calls that the function makes, by name."""

    file: str
    line: int
    entries: int
    calls: dict[str, int] = msgspec.field(default_factory=dict)


class Tally(msgspec.Struct, frozen=True):
    """One worker's counts, by repetition; ``notes`` name the counters that could not count, with the reason.

    ``has_failed`` if a call failed while it was counted, and the next call did not fail uncounted. ``functions`` are
    those of the code under test that the last of its calls entered. ``calls`` is how many calls counting made, of which
    the first ``looks`` only showed how long a call takes. If there was no time for more, only ``instruments`` have
    counted, by names of counts.
    """

    repetitions: tuple[tuple[Count, ...], ...]
    notes: tuple[str, ...]
    has_failed: bool = False
    functions: tuple[FunctionCounts, ...] = ()
    calls: int = 0
    instruments: tuple[str, ...] = ()
    looks: int = 0


class PhaseCounts(msgspec.Struct, frozen=True):
    """The counts of one call in a phase and all below it; ``path`` is empty for the whole call.

    ``exact`` are counts that were equal in every worker and repetition, ``inexact`` the least and the most of others.
    """

    path: str
    exact: dict[str, int] = msgspec.field(default_factory=dict)
    inexact: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)


class Counting(msgspec.Struct, frozen=True):
    """The counts of one test. ``workers`` workers counted ``repetitions`` calls each, once for every instrument.

    ``notes`` name the counters that could not count, with the reason.
    """

    phases: tuple[PhaseCounts, ...]
    workers: int
    repetitions: int
    notes: tuple[str, ...] = ()


class CounterChange(msgspec.Struct, frozen=True):
    """A count that has changed, in the deepest phase that it changed in.

    If both are exact, ``was`` and ``now`` are the counts; a count below its former range is less, one above it more.
    """

    path: str
    name: str
    was: int
    now: int

    @property
    def is_more(self) -> bool:
        """Whether the count is higher than the one that it is compared with; a lower count is always better."""
        return self.now > self.was


class Share(msgspec.Struct, frozen=True):
    """How much of a call's time something took, 0 to 1: Python, a native extension, the environment, the device."""

    name: str
    share: float


_SAME_SIZE = 0.05  # calls whose number of items differs by more belong to another workload


def test_name(key: str) -> str:
    """Return the name of the test with an id: the id without its file, or the whole id if it is only a file."""
    path, separator, name = key.partition("::")
    return name if separator else path


def work_text(component: str, unit: str, items: float) -> str:
    """Write the work of one call: ``gae of 1024 step``."""
    return f"{component} of {items:.12g} {unit}"


def _nothing() -> None:
    """Stand in for a step that a workload does not need."""


def _once() -> int:
    """Return the calls of a check that makes one."""
    return 1


class Probe(Protocol):
    """A source of phases for code that is not instrumented."""

    def attach(self) -> Callable[[], None]:
        """Put timers in place, and return a function that removes all of them."""


class Harvest(msgspec.Struct, frozen=True):
    """A way to see phases in code without timers: another ``call`` of the same work, with ``probes`` in place."""

    call: Callable[[], object]
    probes: tuple[Probe, ...]


class Workload(msgspec.Struct, frozen=True):
    """A component made ready to be measured.

    ``call`` takes no arguments and processes ``items`` things of ``unit``. ``check`` runs the component once, untimed,
    returns its output, and raises ComponentError if it is wrong. ``setup`` runs untimed before each round, which then
    holds one call. ``count`` returns how many items were processed since it was last called, for components whose calls
    do not always process the same number; it runs outside the timed region. ``checked`` returns how many calls the last
    check made. ``close`` releases what the fixture itself made. ``probes`` are in place while phases are recorded;
    ``harvest`` is for code without its own timers. ``holds`` are the objects by which its device is found; ``pace`` is
    how it is timed on a device. A workload of the ``whole_machine`` is measured by itself, without a fixed CPU.
    ``children_ns`` is the clock of a component that does all its work in child processes, new ones in every call: it
    has no other CPU time.
    """

    component: str
    call: Callable[[], object]
    items: float
    unit: str
    check: Callable[[], object]
    setup: Callable[[], None] | None = None
    count: Callable[[], float] | None = None
    checked: Callable[[], int] = _once
    close: Callable[[], None] = _nothing
    probes: tuple[Probe, ...] = ()
    harvest: Harvest | None = None
    holds: tuple[object, ...] = ()
    pace: Pace = Pace.LATENCY
    whole_machine: bool = False
    children_ns: Callable[[], int] | None = None

    def processed(self, calls: int) -> float:
        """Return the items of the ``calls`` made since this was last called; a check is one call."""
        return self.items * calls if self.count is None else self.count()


class Start(str, enum.Enum):
    """How measuring processes began: as new interpreters, or as copies of a process that had loaded what they share."""

    FRESH = "fresh"
    FORKED = "forked"


class SliceKind(str, enum.Enum):
    """A slice that a worker takes in its turn; OTHER_PACE is the workload at the pace that is not gated, on a GPU."""

    PLAIN = "plain"
    OTHER_PACE = "other pace"
    TRACED = "traced"
    INTERPRETER = "interpreter"
    MEMORY = "memory"


class Phase(msgspec.Struct, frozen=True):
    """A named part of one iteration: a path in the timer tree, seconds and entries per iteration.

    ``self_s`` is the time in no child phase. Both times are the host's. ``device`` names the device that was watched
    beside the host, ``"host"`` if there is none, and ``on_device`` are the times by that device's clock.
    """

    path: str
    count: float
    total_s: float
    self_s: float
    device: str = "host"
    on_device: DeviceTimes | None = None

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """How many phases enclose this one."""
        return self.path.count("/")


class Shape(msgspec.Struct, frozen=True):
    """The calls of a slice, ``rounds`` timed rounds of ``iterations`` back-to-back calls, and its figure.

    The figure is the mean round if calls are ``long``, else the median one. It is chosen once per test: figures that
    choose by themselves jump if calls have different lengths.
    """

    iterations: int
    rounds: int
    long: bool


class Warm(msgspec.Struct, frozen=True):
    """The result of warming up: the slice's shape and the typical seconds of one call.

    ``threads`` is how many threads the process has. ``single`` is whether one of them did the work, without child
    processes, None if it took too little time to find out. ``accelerated`` is whether a device other than the host did
    work. ``calls`` is how many calls the process has made by then.
    """

    shape: Shape
    call_s: float
    warm_up_s: float
    threads: int
    single: bool | None
    accelerated: bool = False
    calls: int = 0


class SliceRecord(msgspec.Struct, frozen=True):
    """One turn of one worker.

    ``call_s`` is the slice's figure, per call. ``rounds_s`` is the time within rounds. ``wall_s`` and ``cpu_s`` cover
    the rounds of long calls; for short calls they cover the whole slice, as reading the CPU's clock in every round
    costs too much. ``waits`` counts how often the process gave up its CPU by itself, to sleep or to wait for others.
    ``cpu`` is the number of the CPU it ended on, -1 if the system does not report it. ``note`` is why a traced slice
    has no phases. ``first_call`` is how many calls the process had made before, and ``rounds_ns`` each round's time,
    ``rounds_cpu_ns`` its CPU time if calls are long; only plain slices have them. ``full_collections`` are those of all
    generations. ``off_turn_s`` is the CPU time that threads of Python and child processes have used since the slice
    before.
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
    cpu: int
    phases: tuple[Phase, ...]
    device: DeviceSlice | None = None
    note: str = ""
    first_call: int = 0
    rounds_ns: tuple[int, ...] = ()
    rounds_cpu_ns: tuple[int, ...] = ()
    full_collections: int = 0
    off_turn_s: float = 0.0


class Rounds(msgspec.Struct, frozen=True):
    """The nanoseconds of every round of one process's plain slices, in order, each of ``iterations`` calls.

    ``starts`` is how many calls the process had made when each slice began; all slices have equally many rounds.
    ``is_mean`` is whether a slice's figure is its mean round, else it is the median one. ``by_cpu`` is whether the
    times are the CPU's, which what else happens on the machine hardly changes.
    """

    iterations: int
    starts: tuple[int, ...]
    rounds_ns: tuple[int, ...]
    is_mean: bool
    by_cpu: bool = False


class Usage(msgspec.Struct, frozen=True):
    """The resources that a process and its children hold after ``calls`` calls of its component.

    ``objects`` are the blocks that Python's allocator has handed out, and ``private_bytes`` the resident memory that no
    file backs, both after a garbage collection. ``waiting_objects`` and ``waiting_bytes`` are how much more there was
    before it: only the collector frees them. ``shared_blocks`` of shared memory, ``temporary_files`` with directories
    and sockets, and their bytes, are those that its slices have left on the machine. ``segments`` are System V's, with
    semaphores. ``compiled`` are the programs that libraries have compiled in the process itself.
    """

    calls: int
    objects: int
    private_bytes: int
    waiting_objects: int
    waiting_bytes: int
    device_bytes: int
    open_files: int
    threads: int
    processes: int
    shared_blocks: int = 0
    shared_bytes: int = 0
    temporary_files: int = 0
    temporary_bytes: int = 0
    segments: int = 0
    segment_bytes: int = 0
    compiled: int = 0


class Compiled(msgspec.Struct, frozen=True):
    """A program that a library has compiled: its function, the types of its inputs if known, and ``why``.

    ``before`` are the types that the function was last compiled for before this; None if there was no earlier time.
    """

    function: str
    inputs: tuple[str, ...] = ()
    before: tuple[str, ...] | None = None
    why: str = ""


class SystemVSegment(msgspec.Struct, frozen=True):
    """A segment of System V's shared memory, or a set of semaphores, by its number, and its process."""

    kind: str
    number: int
    bytes: int
    pid: int


class OutputPart(msgspec.Struct, frozen=True):
    """An array or a plain value within a component's output, and its place there.

    ``kind`` is its type and shape in words, ``bits`` a digest of all its bytes. ``sample`` are some of its values if
    they are numbers.
    """

    path: str
    kind: str
    bits: str
    sample: tuple[float, ...] = ()


class Figures(msgspec.Struct, frozen=True):
    """A worker's figures by one clock: seconds per call, and the same relative to each kernel's."""

    call_s: float
    relative: float
    relative_memory: float


class WorkerRecord(msgspec.Struct, frozen=True):
    """One worker's figure for one test, the statistical unit of a stored comparison.

    Each figure is there twice, by the wall's clock and by the CPU's: ``call_s`` is seconds per call; ``relative`` and
    ``relative_memory`` are the same as multiples of a call of the reference kernels, the interpreter's and the
    memory's, taken in turns with them. ``alone`` means that calls are ``long`` and the process neither waited nor had a
    second busy thread: only others can have held it up, and CPU time may stand in. ``cpu_share`` is CPU time over wall
    time of the plain slices. ``idle_cpu_share`` is the CPU time that it and its children used while others had their
    turn. ``seed`` is 0 if none was set. The relative figures are 0 if no kernel ran, as in live pairs. ``rare`` is the
    mean call over the typical one, None if not known. ``collecting_s`` is the time that the full collections of a call
    would take with all of the process's objects, if one side makes more of them.
    """

    wall: Figures
    cpu: Figures
    items_per_call: float
    slices: int
    calls: int
    cpu_share: float
    long: bool = False
    alone: bool = False
    idle_cpu_share: float = 0.0
    collections: int = 0
    threads: int = 1
    seed: int = 0
    device: DeviceFigures | None = None
    rare: float | None = None
    collecting_s: float = 0.0

    @property
    def mean_multiple(self) -> float:
        """The mean call as a multiple of the typical one; 1 if not known."""
        return 1.0 if self.rare is None else self.rare


class Result(msgspec.Struct, frozen=True):
    """The figures of one test; a fixture's call returns them.

    ``items`` is the mean number of items per call, and ``unit`` their name. ``phases`` are means over traced calls,
    which take ``traced_call_s`` seconds each; 0.0 if nothing was traced. ``notes`` say what the measurement lacked.
    ``counting`` is the work of one call, None if nothing was counted. ``shares`` are the parts of its time, empty if
    they were not requested. ``start`` is how the workers began, on which a call's time depends. Baselines' files leave
    out default values, here and in the records below, so a default never changes.
    """

    nodeid: str
    component: str
    unit: str
    items: float
    workers: tuple[WorkerRecord, ...]
    phases: tuple[Phase, ...] = ()
    traced_call_s: float = 0.0
    notes: tuple[str, ...] = ()
    counting: Counting | None = None
    shares: tuple[Share, ...] = ()
    start: Start = Start.FRESH

    @property
    def measured(self) -> bool:
        """Whether there are figures: false in a run without ``--rlperf``, which only checks the component."""
        return bool(self.workers)

    @property
    def name(self) -> str:
        """The test's name without its file."""
        return test_name(self.nodeid)

    def is_same_work(self, other: Result) -> bool:
        """Whether two results are for the same workload, with calls of one size.

        The env steps of a call vary a little with the ends of episodes.
        """
        same = (self.component, self.unit) == (other.component, other.unit)
        return same and math.isclose(self.items, other.items, rel_tol=_SAME_SIZE)

    @property
    def clock(self) -> str:
        """The clock that decides: ``"cpu"`` if calls are long, never wait and use one thread, else ``"wall"``."""
        return "cpu" if all(worker.alone for worker in self.workers) else "wall"

    @property
    def call_s(self) -> float:
        """The seconds per call: the median over the workers. Raises NotMeasuredError without workers."""
        if not self.workers:
            raise NotMeasuredError(
                f"{self.nodeid}: this run did not measure. Run with --rlperf, or guard with `if result.measured:`."
            )
        figures = [worker.cpu if self.clock == "cpu" else worker.wall for worker in self.workers]
        return statistics.median(figure.call_s for figure in figures)

    @property
    def mean_call_s(self) -> float:
        """The mean seconds per call, rare calls included. Raises NotMeasuredError without workers."""
        return self.call_s * statistics.median(worker.mean_multiple for worker in self.workers)

    @property
    def cpu_share(self) -> float:
        """The CPU seconds of a worker's own process per wall second, on average over the workers; there must be one."""
        return statistics.fmean(worker.cpu_share for worker in self.workers)

    @property
    def items_per_s(self) -> float:
        """The throughput: items processed per second of measured time. Raises NotMeasuredError without workers."""
        return self.items / self.mean_call_s

    def phase(self, path: str) -> Phase:
        """Return the phase at ``path``; raise KeyError, with the known paths, if there is none."""
        for phase in self.phases:
            if phase.path == path:
                return phase
        known = ", ".join(phase.path for phase in self.phases) or "none"
        raise KeyError(f"no phase {path!r} in {self.nodeid}; phases recorded: {known}")


Measure: TypeAlias = Callable[..., Result]
"""The value of an rlperf fixture in a test: a call with the component returns the result."""


def out_of_range(positive: Mapping[str, float], not_negative: Mapping[str, float]) -> Iterator[str]:
    """Yield the faults of figures, by place: not positive, negative, infinite or NaN."""
    for place, value in positive.items():
        if not 0 < value < math.inf:
            yield f"{place} is {value}, expected a positive number"
    for place, value in not_negative.items():
        if not 0 <= value < math.inf:
            yield f"{place} is {value}, expected a number of at least 0"
