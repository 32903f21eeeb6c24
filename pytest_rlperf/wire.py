"""Every message between processes: tagged records as JSON over one connection, never pickle.

The standard library's JSON holds integers of any size and lone surrogates, which occur in paths that are not UTF-8.

A *run* has *drivers*, and a driver has the *workers* of one test. An ``Order[T]`` is answered by a value of T:

| from → to | messages |
|---|---|
| run → preload server | ``Load`` → ``Imported``; ``ForkDriver``, and the driver's connection |
| run → driver | ``Open``, ``CheckAll``, ``TakePair``… each → ``Answer``, ``Stopped`` or ``Broken``; ``End`` |
| driver → run | ``Collected`` once; reports of the test between answers, ``Step``, and ``Waiting`` |
| driver → template | ``Import``; ``Fork``, and the worker's connection; ``Reap``; ``Quit`` |
| template → driver | ``Started``, ``Ready``, ``Imported`` |
| driver → worker | ``Run``, orders each → ``Answer``, ``Leave``, ``Quit`` |
| worker → driver | ``Started``, reports, ``Called``, answers, ``Done`` |

The messages of one test in a worker: ``Run`` → reports of its setup → ``Called`` (the test called an rlperf fixture) →
any number of orders, each with its ``Answer`` → ``Leave`` → the remaining reports → ``Done``. At any point ``Done`` may
come instead: the test was skipped, failed or never called its fixture.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from json import dumps, loads  # which tests may replace
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec

from pytest_rlperf.model.live import PairRecord, Reading
from pytest_rlperf.model.measured import (
    Compiled,
    OutputPart,
    Phase,
    Result,
    Rounds,
    Shape,
    Share,
    SliceKind,
    SliceRecord,
    SystemVSegment,
    Tally,
    Usage,
    Warm,
    WorkerRecord,
    out_of_range,
)
from pytest_rlperf.model.phases import Block
from pytest_rlperf.model.reach import Footprint

DESCRIPTOR_KEY = "PYTEST_RLPERF_WORKER"  # holds the number of a new interpreter's connection
FRAME_MOST = 1 << 28  # bytes
REPETITIONS = 2  # of each counted call
T = TypeVar("T")


class UnreadableError(Exception):
    """The bytes received are not a message of this protocol."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag on the wire is the class's name."""


class SharedSettings(msgspec.Struct, frozen=True):
    """The settings that all templates of a driver share.

    A worker lists the loaded files below ``watched`` and of ``packages``. Texts name a file by its place in ``top``,
    the user's own tree. If a template ``forks``, its workers are copies of it; if it ``observes``, they note what they
    run and read. ``markup`` is the terminal's.
    """

    markup: bool
    watched: list[str]
    packages: list[str]
    top: str = ""
    forks: bool = False
    observes: bool = False


class TemplateSettings(msgspec.Struct, frozen=True):
    """The settings of one template.

    ``name`` is that of its workers, and ``is_base`` is whether it belongs to the base side of a comparison. One
    template of a run ``reports``: it has the worker that the user sees, and shares the terminal if ``share_terminal``.
    Other output goes to the file ``output``. ``tree`` is the side's. ``environment`` has all variables. ``sites`` are
    the directories that hold the ``.pth`` files of the side's interpreter, and ``prefix`` is its place. With ``probe``
    the template finds out whether a copy of it can work. An observer notes whether any process opens the ``changed``
    files.
    """

    number: int
    path: list[str]
    args: list[str]
    files: list[str]
    scratch: str
    reports: bool
    output: str
    share_terminal: bool
    directory: str
    environment: dict[str, str]
    python: str
    prefix: str
    sites: list[str]
    probe: bool = False
    tree: str = ""
    name: str = "worker"
    is_base: bool = False
    changed: list[str] = []


class SessionSettings(msgspec.Struct, frozen=True):
    """The settings that a template reads before all messages, from its connection or from the preload server.

    A worker of another protocol must be able to read this, so fields are only added.
    """

    shared: SharedSettings
    own: TemplateSettings


class DriverSettings(msgspec.Struct, frozen=True):
    """The settings of a driver: those of its ``templates``, in the order in which they are forked.

    Each template has its ``own_heap`` if the workers are of one side: they are the sample. ``scratch`` is the run's
    directory and ``run`` its process. A template may take ``start_limit_s`` to import and collect. If all is ``alike``,
    no module of the preload server is a side's own.
    """

    name: str
    shared: SharedSettings
    templates: list[TemplateSettings]
    own_heap: bool
    scratch: str
    start_limit_s: float
    run: int
    alike: bool = False


# ------------------------------------------------------------------ template, worker → driver


class Ready(Message, frozen=True):
    """The template has collected tests with these keys; ``loaded`` is the code under test that it loaded for this.

    ``variables`` are those of native libraries as collecting has left them. ``fault`` is why its copies cannot work.
    ``import_s`` is the time from the start of its work to the end of collecting.
    """

    protocol: int
    keys: list[str] = []
    errors: str = ""
    loaded: dict[str, str] = {}
    variables: dict[str, str] = {}
    fault: str = ""
    import_s: float = 0.0


class Started(Message, frozen=True):
    """A copy of a process has begun its work; the kernel says which process sent this."""


class Imported(Message, frozen=True):
    """A preload server or a template has imported modules; it is of no use if it must not have some, the ``dirty``.

    ``changes`` are those that imports have made to the variables, None for a removed one.
    """

    dirty: list[str] = []
    changes: dict[str, str | None] = {}


class Answer(Message, frozen=True):
    """The answer to the order of this number."""

    order: int
    value: Any = None


class Reported(Message, frozen=True):
    """A setup, call or teardown report as pytest serialises it: each attribute by its name, pickled.

    Plugins add their own attributes, of any types.
    """

    report: dict[str, bytes]

    @classmethod
    def of(cls, data: Mapping[str, object]) -> Reported:
        """Return the message for a report's attributes."""
        return cls({str(name): _pickled(value) for name, value in data.items()})


class Warned(Message, frozen=True):
    """A warning that pytest recorded while the test ran."""

    text: str
    category: str
    filename: str
    line: int
    when: str
    nodeid: str
    location: tuple[str, int, str] | None


class Called(Message, frozen=True):
    """The test called an rlperf fixture; its component is made ready but has not run.

    ``shared_setup_s`` is the time of fixtures that other tests can share. ``anew`` if each call is a first one, in its
    own processes.
    """

    component: str
    unit: str
    items: float
    shared_setup_s: float = 0.0
    anew: bool = False


class Done(Message, frozen=True):
    """The test is over in this worker. ``modules`` are the top-level modules loaded by then.

    ``name_missing``: a name that the test needs does not exist: a module, an attribute, or the test itself.
    ``is_certain``: every process would end the test in the same way. ``is_taken``: it failed because another process,
    perhaps one that also runs it, has a port or a file.
    """

    outcome: str
    text: str
    modules: list[str]
    name_missing: bool
    is_certain: bool = False
    is_taken: bool = False


FromWorker: TypeAlias = Imported | Ready | Started | Reported | Warned | Called | Answer | Done


# ------------------------------------------------------------------ answers


class Checked(msgspec.Struct, frozen=True):
    """The component is correct: its check took ``first_call_s`` for its ``calls``, and processed ``items``.

    ``loaded`` is the code under test that is loaded by now, except files that only child processes (``children``)
    loaded. ``imported`` are the modules imported since the process was copied. ``variables`` are those of native
    libraries. ``output`` is the component's. ``second_call_s`` is the time of one more call, if the first one compiled.
    """

    first_call_s: float
    items: float
    loaded: dict[str, str]
    children: bool
    imported: list[str] = []
    variables: dict[str, str] = {}
    output: tuple[OutputPart, ...] = ()
    calls: int = 1
    second_call_s: float | None = None

    def start_s(self, usual_s: float) -> float:
        """Return the seconds of the first call alone, if each of the check's other calls took ``usual_s``."""
        return max(0.0, self.first_call_s - (self.calls - 1) * usual_s)


class Explained(msgspec.Struct, frozen=True):
    """The shares of a call's time; ``notes`` give the reason if they are unknown."""

    shares: tuple[Share, ...]
    notes: tuple[str, ...]


# ------------------------------------------------------------------ driver → worker


class Order(Message, Generic[T], frozen=True, kw_only=True):
    """Base of the orders to a worker whose test is at its call, and to a driver; each has the type of its answer."""

    number: int = 0

    @property
    def answer(self) -> Any:
        """The type of the value that answers it."""
        (base,) = type(self).__orig_bases__  # type: ignore[attr-defined]
        return get_args(base)[0]

    def numbered(self, number: int) -> Order[T]:
        """Return the same order with a number, which its answer will have."""
        return msgspec.structs.replace(self, number=number)


class Load(Message, frozen=True):
    """Import ``modules`` in a preload server; refuse any that would load ``packages``, or a file below ``top``.

    Places below ``top`` that are not part of the tree, such as the environment, are ``outside_tree``.
    """

    modules: list[str]
    packages: list[str]
    top: str
    outside_tree: list[str]


class ForkDriver(Message, frozen=True):
    """A preload server forks a driver; its connection follows this message."""

    settings: DriverSettings


class Import(Message, frozen=True):
    """A template imports the modules that its copies have imported for themselves, if they exist; → ``Imported``."""

    modules: list[str]


class Fork(Message, frozen=True):
    """A copy of the template runs a test, with files in ``scratch``; the copy's connection follows this message."""

    scratch: str


class Run(Message, frozen=True):
    """Run one test; ``next_key`` is the test after it, for which its fixtures are kept."""

    key: str
    next_key: str | None
    seed: int
    reporter: bool


class Check(Order[Checked], frozen=True):
    """Run the component once and check it."""


class Count(Order[Tally], frozen=True):
    """Count ``repetitions`` calls, if that takes no longer than about ``limit_s``.

    Only ``instruments`` of these names count; all if there are no names. The first ``looks`` calls only show how long a
    call takes. If ``looks`` is 0, the worker decides how many it makes.
    """

    repetitions: int
    limit_s: float
    instruments: list[str] = []
    looks: int = 0


class WarmUp(Order[Warm], frozen=True):
    """Warm up until calls stop getting faster, for at most ``limit_s``; size the slices unless ``shape`` is given.

    ``long`` is whether the figure of a slice is the mean round, as in a stored result to compare with; if None, the
    calls' length decides. Without any time the checked call stands for the workload's pace, and nothing more is run.
    Without ``kernels`` no slice of a reference kernel follows: another process takes turns with this one, slices are
    TURN_S long, and warming up ends after PAIR_WARM_UP_S on the host. ``calls`` is how many calls another process had
    made in the test when its slices began. This process's slices then begin at the same calls, by number: it warms up
    until it has made as many, or if not ``exactly``, a whole number of slices more or fewer.
    """

    limit_s: float
    shape: Shape | None = None
    long: bool | None = None
    kernels: bool = True
    calls: int = 0
    exactly: bool = True


class Observe(Order[Footprint], frozen=True):
    """Call the component until it has run and read nothing new for a while, in about ``limit_s`` of its own.

    If there are ``names``, this goes on for longer if executed code uses one of them, or if few calls have been made.
    Afterwards the process ``searches`` its objects, or not.
    """

    limit_s: float
    searches: bool
    names: list[str] = []


class Slow(Order[int], frozen=True):
    """Do extra work in every round from now on, and answer with its steps: a ``share`` of a round if these are None."""

    share: float
    steps: int | None


class Place(Order[None], frozen=True):
    """Stay on these CPUs until the test is left."""

    cpus: list[int]


class Take(Order[SliceRecord], frozen=True):
    """Take one slice."""

    kind: SliceKind


class ReadUsage(Order[Usage], frozen=True):
    """Read the resources that the process holds."""


class PriceCollections(Order[float], frozen=True):
    """Find the time of a call's full collections with all objects of the process, over up to ``calls`` calls."""

    calls: int


class Allocation(msgspec.Struct, frozen=True):
    """A line of a file, its code, and how many of the bytes that it allocates stay, per call."""

    file: str
    line: int
    code: str
    bytes: float


class FindAllocations(Order[list[Allocation]], frozen=True):
    """Find the lines that allocate the memory that ``calls`` calls keep, once all timed slices are taken."""

    calls: int


class FindCompiled(Order[list[Compiled]], frozen=True):
    """Name the last programs that the process has compiled."""


class Explain(Order[Explained], frozen=True):
    """Find where a call's time goes, once all timed slices are taken."""


class Trace(Order[str], frozen=True):
    """Record one call, once all timed slices are taken, and return it as Chrome's trace events."""

    title: str = ""


class Failure(msgspec.Struct, frozen=True):
    """The reason for a measured call to fail: a regression, or a measurement that broke."""

    message: str
    regression: bool


class Leave(Message, frozen=True):
    """Leave the call: raise ``failure`` at the user's line or return ``result``; without both, leave the test there."""

    result: Result | None = None
    failure: Failure | None = None


class Reap(Message, frozen=True):
    """Wait for a copy of the template, which has ended."""

    pid: int


class Quit(Message, frozen=True):
    """End the session."""


Orders: TypeAlias = (
    Check
    | Count
    | WarmUp
    | Observe
    | Slow
    | Place
    | Take
    | PriceCollections
    | ReadUsage
    | FindAllocations
    | FindCompiled
    | Explain
    | Trace
)
ToWorker: TypeAlias = Import | Fork | Run | Orders | Leave | Reap | Quit


# ------------------------------------------------------------------ run → driver


class Open(Order[list[Called]], frozen=True):
    """Open the test in every worker, in parallel; ``last_first`` reverses the order in which workers are forked.

    Each worker may take ``setup_s`` to get there and to leave, and ``patience_s`` for any answer in between. If
    ``reports``, the head's first worker reports the test.
    """

    key: str
    next_key: str | None
    seeds: list[int]
    last_first: bool
    setup_s: float
    patience_s: float
    reports: bool


class ImportAll(Order[list[str]], frozen=True):
    """Each template imports the modules at its place in the list; the answer is those that they should not have."""

    modules: list[list[str]]


class CheckAll(Order[list[Checked]], frozen=True):
    """Every worker runs its component once and checks it."""


class CountAll(Order[list[Tally | None]], frozen=True):
    """Workers count, for about ``limit_s`` each; of one side's workers by themselves, the first ``wanted``.

    No worker counts if the first call took over ``longest_first_s``. Only ``instruments`` of these names count; all if
    there are no names.
    """

    limit_s: float
    longest_first_s: float
    instruments: list[str] = []
    wanted: int = 2


class Slowdown(msgspec.Struct, frozen=True):
    """Extra work in the head's calls: a ``share`` of them, or a number of ``steps``."""

    share: float
    steps: int | None


class Warmed(msgspec.Struct, frozen=True):
    """The base and the head are warm; the head does extra ``steps``."""

    base: Warm
    head: Warm
    steps: int = 0


class WarmAll(Order[Warmed], frozen=True):
    """Warm up both workers in a part of ``share_s``; the head's worker sizes the slices unless ``shape`` is given.

    ``call_s`` is about the time of a call, if known. The head is ``slowed``. ``calls`` is how many calls the workers of
    the first pair had made when their slices began: the slices of other pairs begin at the same calls, by number.
    """

    share_s: float
    shape: Shape | None = None
    call_s: float = 0.0
    slowed: Slowdown | None = None
    calls: int = 0


class Taken(msgspec.Struct, frozen=True):
    """A pair's figures, its traced slices, and the rounds of the base and of the head, None on a device.

    ``leaves`` are the beginnings of the names of shared memory that calls leave on the machine, and ``segments`` are
    those that the workers have.
    """

    pair: PairRecord
    traced: list[Block]
    rounds: list[Rounds | None]
    leaves: list[str] = []
    segments: list[SystemVSegment] = []


class TakePair(Order[Taken], frozen=True):
    """Take slices in turns, on one CPU if ``cpu`` is given, until the pair's error is below ``enough_error``.

    The pair has the rest of ``share_s``, in which it has warmed up. If it ``reads``, it reads from time to time the
    resources that processes hold.
    """

    cpu: int | None
    share_s: float
    enough_error: float
    reads: bool


class GoOn(Order[list[Reading]], frozen=True):
    """Take further slices for ``seconds``, and read processes' resources."""

    seconds: float


class TraceMore(Order[list[Block]], frozen=True):
    """Take ``blocks`` further traced slices of both workers."""

    blocks: int


class MoveAll(Order[None], frozen=True):
    """From now on keep the workers that were kept on one CPU on another one."""

    cpu: int


class EndIdle(Order[list[float]], frozen=True):
    """Return the CPU time of the base and the head since their pair was measured, over the time since then."""


class Alone(msgspec.Struct, frozen=True):
    """The figures of one side, its workers' resources over time, their counts, and their rounds."""

    workers: list[WorkerRecord]
    phases: list[Phase]
    traced_call_s: float
    notes: list[str]
    usages: list[list[Usage]] = []
    tallies: list[Tally] = []
    rounds: list[Rounds | None] = []


class MeasureAlone(Order[Alone], frozen=True):
    """Measure one side by itself, in about ``max_time_s``; ``long`` is the baseline's."""

    max_time_s: float
    long: bool | None
    count: CountAll | None


class ObserveAll(Order[list[Footprint]], frozen=True):
    """Every worker calls its component until it has run and read nothing new."""

    limit_s: float
    searches: bool = False
    names: list[str] = []


class Relay(Order[Any], frozen=True):
    """Give an order to the head's first worker, or to the base's, and return its answer."""

    order: FindAllocations | FindCompiled | Explain | Trace
    to_base: bool = False

    @property
    def answer(self) -> Any:
        """The type of the worker's answer."""
        return self.order.answer


class LeaveAll(Order[Done | None], frozen=True):
    """Let every worker leave the test, the one that reports it last, with its result or failure; return how it ended.

    If another worker is lost, the one that reports the test stays at its call.
    """

    leave: Leave = Leave()


class End(Message, frozen=True):
    """End every worker and template, with their teardowns within ``limit_s``."""

    limit_s: float


DriverOrders: TypeAlias = (
    ImportAll
    | Open
    | CheckAll
    | CountAll
    | WarmAll
    | TakePair
    | GoOn
    | TraceMore
    | MoveAll
    | EndIdle
    | MeasureAlone
    | ObserveAll
    | Relay
    | LeaveAll
)
ToDriver: TypeAlias = DriverOrders | End


# ------------------------------------------------------------------ driver → run


class Collected(Message, frozen=True):
    """All templates have collected, the base's before the head's."""

    templates: list[Ready]


class Step(Message, frozen=True):
    """The current step."""

    text: str


class Waiting(Message, frozen=True):
    """The driver goes on: it waits for one of its workers, and says so from time to time."""


class Stop(msgspec.Struct, frozen=True):
    """Why a process cannot go on with a test: it is lost, or the test has ended there, as ``done`` says.

    If it ``is_doubtful``, new interpreters may do better. ``is_base`` if the base's process stopped; ``is_reporter`` if
    the stopped process reports the test.
    """

    name: str
    text: str
    is_base: bool = False
    is_doubtful: bool = False
    is_reporter: bool = False
    done: Done | None = None


class Stopped(Message, frozen=True):
    """A worker or template has stopped, so that the order of this number cannot be carried out."""

    order: int
    stop: Stop


class Broken(Message, frozen=True):
    """The driver itself failed to carry out an order, and why."""

    order: int
    text: str


FromDriver: TypeAlias = Collected | Reported | Warned | Step | Waiting | Answer | Stopped | Broken


def send(connection: Connection, message: Message) -> None:
    """Send one message; OSError if the other side is gone or does not read it."""
    connection.send_bytes(dumps(as_json(message)).encode())


def as_json(message: Message | SessionSettings | DriverSettings) -> dict[str, Any]:
    """Return a message or settings in a form for JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(message, str_keys=True, enc_hook=str)
    return fields


def _pickled(value: object) -> bytes:
    """Return a value as another process can read it: pickled, or as its text if it cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:  # of any plugin's object
        return pickle.dumps(str(value))


def from_json(fields: object, kind: type[T]) -> T:
    """Return the message or the settings from the output of :func:`as_json`; ValueError for anything else."""
    return msgspec.convert(fields, kind)


def receive(connection: Connection, kinds: Any) -> Any:
    """Return a process's next message of these kinds.

    EOFError or OSError if the process is gone, UnreadableError if what it sends cannot be such a message.
    """
    try:
        data = connection.recv_bytes(FRAME_MOST)
    except OSError as error:
        if error.errno is None:  # the message is too long
            raise UnreadableError(f"it has over {FRAME_MOST >> 20} MiB, or is none") from None
        raise
    try:
        return msgspec.convert(loads(data, parse_constant=_refuse_constant), kinds, str_keys=True)
    except Exception as error:  # a worker runs any code, so these are any bytes
        raise UnreadableError(f"{type(error).__name__}: {error}") from None


def answer_to(order: Order[T], answer: Answer) -> T:
    """Return the value of an answer in the order's type; UnreadableError if it has another type."""
    try:
        value: T = msgspec.convert(answer.value, order.answer, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableError(f"{type(order).__name__}: {error}") from None
    for finding in _impossible_figures(value):
        raise UnreadableError(f"{finding}. Does the test change the clock?")
    return value


def receive_order(connection: Connection, kinds: Any) -> Any:
    """Wait for a message of these kinds from the process that gives orders; EOFError or OSError when it is gone."""
    return msgspec.convert(loads(connection.recv_bytes()), kinds, str_keys=True)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"a figure is {name}")


def _impossible_figures(value: object) -> Iterator[str]:
    """Yield figures that no measurement can give: later arithmetic divides by them and takes logarithms."""
    above: dict[str, float] = {}
    least: dict[str, float] = {}
    match value:
        case Checked(first_call_s, items) as checked:
            least = {"first_call_s": first_call_s, "items": items, "second_call_s": checked.second_call_s or 0.0}
        case Warm() as warm:
            above = {"call_s": warm.call_s, "iterations": warm.shape.iterations, "rounds": warm.shape.rounds}
            least = {"warm_up_s": warm.warm_up_s, "threads": warm.threads}
        case SliceRecord() as record:
            above = {name: getattr(record, name) for name in ("call_s", "rounds_s", "calls", "wall_s")}
            least = {name: getattr(record, name) for name in ("items", "cpu_s", "waits", "collections")}
            for phase in record.phases:
                least |= {f"{phase.path}: count": phase.count, f"{phase.path}: total_s": phase.total_s}
    yield from out_of_range(above, least)
