"""Every message between processes: tagged records as JSON over one connection, never pickle.

JSON of the standard library holds integers of any size and lone surrogates, which paths have that are not UTF-8.

A *run* has *drivers*, and a driver has the *workers* of one test. An ``Order[T]`` is answered by a value of T:

| from → to | messages |
|---|---|
| run → preload server | ``Load`` → ``Imported``; ``ForkDriver``, and the driver's connection |
| run → driver | ``Open``, ``CheckAll``, ``TakePair``… each → ``Answer``, ``Stopped`` or ``Broken``; ``End`` |
| driver → run | ``Collected`` once; reports of the test between answers, ``Step``, and ``Waiting`` |
| driver → template | ``Import``; ``Fork``, and the worker's connection; ``Reap``; ``Quit`` |
| driver → worker | ``Run``, orders each → ``Answer``, ``Leave``, ``Quit`` |
| worker → driver | ``Started``, ``Ready``, reports, ``Called``, answers, ``Done`` |

The messages of one test in a worker: ``Run`` → reports of its setup → ``Called`` (the test called an rlperf fixture) →
any number of orders, each with its ``Answer`` → ``Leave`` → the remaining reports → ``Done``. At any point ``Done`` may
come instead: the test skipped, failed or never called its fixture.
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
    Segment,
    Shape,
    Share,
    SliceKind,
    SliceRecord,
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
    """The bytes received are no message of this protocol."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag on the wire is the class's name."""


class SharedSettings(msgspec.Struct, frozen=True):
    """The settings that all templates of a driver have in common.

    A worker lists the loaded files below ``watched`` and of ``packages``. Texts name a file by its place in ``top``,
    the user's own tree. Workers are copies of a template that ``forks``, and those of one that ``observes`` note what
    they run and read. ``markup`` is the terminal's.
    """

    markup: bool
    watched: list[str]
    packages: list[str]
    top: str = ""
    forks: bool = False
    observes: bool = False


class TemplateSettings(msgspec.Struct, frozen=True):
    """The settings of one template.

    ``name`` is that of its workers, and ``is_base`` whether it is of the base side of a comparison. One template of a
    run ``reports``: it has the worker that the user sees, and ``share_terminal`` with it. Other output goes to the file
    ``output``. ``tree`` is the side's. ``environment`` has all variables, and ``sites`` are the directories that hold
    the ``.pth`` files of the side's interpreter, ``prefix`` is its place. ``probe`` has the template find out whether a
    copy of it can work. Of the ``changed`` files an observer notes whether anybody opens them.
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


class Start(msgspec.Struct, frozen=True):
    """What a template reads before all messages, from its connection or from the preload server.

    A worker of another protocol must be able to read this, so fields are only added.
    """

    shared: SharedSettings
    own: TemplateSettings


class DriverSettings(msgspec.Struct, frozen=True):
    """The settings of a driver: those of its ``templates``, in the order in which they are forked.

    Each has its ``own_heap`` where they are workers of one side, which are the sample. ``scratch`` is the run's
    directory and ``run`` its process; a template may take ``start_limit_s`` to import and collect. Where all is
    ``alike``, no module of the preload server is a side's own.
    """

    name: str
    shared: SharedSettings
    templates: list[TemplateSettings]
    own_heap: bool
    scratch: str
    start_limit_s: float
    run: int
    alike: bool = False


# ------------------------------------------------------------------ worker → run


class Ready(Message, frozen=True):
    """The template has collected tests with these keys; ``loaded`` is the code under test that this loaded.

    ``variables`` are those of native libraries as collecting has left them. ``fault`` is why its copies cannot work.
    ``import_s`` went by from the start of its work to the end of collecting.
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
    """A preload server has imported modules; it is of no more use where ``dirty`` has those that it should not have.

    ``changes`` are those that imports have made to the variables, None for one that is gone.
    """

    dirty: list[str] = []
    changes: dict[str, str | None] = {}


class Answer(Message, frozen=True):
    """The answer to the order of this number."""

    order: int
    value: Any = None


class Reported(Message, frozen=True):
    """A setup, call or teardown report as pytest serialises it: each of its attributes by its name, pickled.

    Plugins put their own there, of any types.
    """

    report: dict[str, bytes]

    @classmethod
    def of(cls, data: Mapping[str, object]) -> Reported:
        """Return the message of a report's attributes."""
        return cls({str(name): _pickled(value) for name, value in data.items()})


class Warned(Message, frozen=True):
    """A warning pytest recorded while the test ran."""

    text: str
    category: str
    filename: str
    line: int
    when: str
    nodeid: str
    location: tuple[str, int, str] | None


class Called(Message, frozen=True):
    """The test called an rlperf fixture; its component is made ready but has not run.

    ``shared_setup_s`` is what fixtures took that other tests can share. ``anew`` where each call is a first one, of
    processes of its own.
    """

    component: str
    unit: str
    items: float
    shared_setup_s: float = 0.0
    anew: bool = False


class Done(Message, frozen=True):
    """The test is over in this worker. ``modules`` are the top-level modules loaded by then.

    ``name_missing``: a name that tests ask for does not exist: a module, an attribute, or the test itself.
    ``is_certain``: every process would end it in the same way.
    ``is_taken``: it failed for a port or a file that another process has, which may be one that runs it, too.
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
    """The component ran once and is correct, in ``first_call_s`` with the check, and processed ``items``.

    ``loaded`` is the code under test that is loaded by now, except for files that only ``children`` processes loaded.
    ``imported`` are the modules that were imported since the process was copied. ``variables`` are those of native
    libraries. ``output`` is what it returned.
    """

    first_call_s: float
    items: float
    loaded: dict[str, str]
    children: bool
    imported: list[str] = []
    variables: dict[str, str] = {}
    output: tuple[OutputPart, ...] = ()


class Explained(msgspec.Struct, frozen=True):
    """Where a call's time goes; ``notes`` give the reason where that is unknown."""

    shares: tuple[Share, ...]
    notes: tuple[str, ...]


# ------------------------------------------------------------------ run → worker


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

    Places below ``top`` that are no part of the tree, such as the environment, are ``outside_tree``.
    """

    modules: list[str]
    packages: list[str]
    top: str
    outside_tree: list[str]


class ForkDriver(Message, frozen=True):
    """A preload server forks a driver; its connection follows this message."""

    settings: DriverSettings


class Import(Message, frozen=True):
    """A template imports what copies of it have imported for themselves, where that is there; → ``Imported``."""

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

    Only instruments count that have one of these names, all where there are none.
    """

    repetitions: int
    limit_s: float
    instruments: list[str] = []


class WarmUp(Order[Warm], frozen=True):
    """Warm up until calls stop getting faster, for ``limit_s`` at most; size the slices unless ``shape`` is given.

    ``long`` is whether the figure of a slice is the mean round, as in a stored result to compare with; None leaves it
    to the calls' length. Without any time the checked call stands for the workload's pace, and nothing more is run.
    Without ``kernels`` no slice of a reference kernel follows: another process takes turns with this one, slices are
    TURN_S long, and warming up ends after PAIR_WARM_UP_S on the host. With ``calls``, which another process had made
    since the test began when its slices began, this one's have the same ones, by number: it goes on until it has made
    as many, or not ``exactly``, but a whole number of slices more or fewer.
    """

    limit_s: float
    shape: Shape | None = None
    long: bool | None = None
    kernels: bool = True
    calls: int = 0
    exactly: bool = True


class Observe(Order[Footprint], frozen=True):
    """Call the component until that has run and read nothing new for a while, in about ``limit_s``.

    It does so for longer where what has run calls something by one of ``names``. The process ``searches`` its objects
    after that, or does not.
    """

    limit_s: float
    searches: bool
    names: list[str] = []


class Slow(Order[int], frozen=True):
    """Do extra work in every round from now on, and answer with its steps: ``share`` of a round without ``steps``."""

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
    """Find what the full collections of a call take with all objects of the process, over up to ``calls`` calls."""

    calls: int


class Allocation(msgspec.Struct, frozen=True):
    """A line of a file, its code, and how many bytes of what it allocates stay, by call."""

    file: str
    line: int
    code: str
    bytes: float


class FindAllocations(Order[list[Allocation]], frozen=True):
    """Find the lines that allocate what so many calls keep, once all timed slices are taken."""

    calls: int


class FindCompiled(Order[list[Compiled]], frozen=True):
    """Name the programs that the process has compiled last."""


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

    Each may take ``setup_s`` to get there and to leave, and ``patience_s`` for any answer in between. Head's first
    worker ``reports`` the test.
    """

    key: str
    next_key: str | None
    seeds: list[int]
    last_first: bool
    setup_s: float
    patience_s: float
    reports: bool


class ImportAll(Order[list[str]], frozen=True):
    """Templates import modules, each those of its place in the list; the answer is those that they should not have."""

    modules: list[list[str]]


class CheckAll(Order[list[Checked]], frozen=True):
    """Every worker runs its component once and checks it."""


class CountAll(Order[list[Tally | None]], frozen=True):
    """Workers count, for about ``limit_s`` each; of workers of one side the first ``wanted``.

    None does where the first call took over ``longest_first_s``. Only ``instruments`` count that have one of these
    names, all where there are none.
    """

    limit_s: float
    longest_first_s: float
    instruments: list[str] = []
    wanted: int = 2


class Slowdown(msgspec.Struct, frozen=True):
    """Extra work of head's calls: a ``share`` of them, or so many ``steps``."""

    share: float
    steps: int | None


class Warmed(msgspec.Struct, frozen=True):
    """Base and head are warm. Head does extra ``steps``."""

    base: Warm
    head: Warm
    steps: int = 0


class WarmAll(Order[Warmed], frozen=True):
    """Warm up both workers in a part of ``share_s``; the last one sizes the slices unless ``shape`` is given.

    ``call_s`` is about what a call takes, where that is known. Head is ``slowed``. ``calls`` are those that workers of
    the first pair had made when their slices began: the slices of others have the same ones, by number.
    """

    share_s: float
    shape: Shape | None = None
    call_s: float = 0.0
    slowed: Slowdown | None = None
    calls: int = 0


class Taken(msgspec.Struct, frozen=True):
    """A pair's figures, its traced slices, and the rounds of base and of head, None on a device.

    With ``leaves``, how the names of the shared memory begin that calls leave to the machine, and the ``segments`` that
    the workers have.
    """

    pair: PairRecord
    traced: list[Block]
    rounds: list[Rounds | None]
    leaves: list[str] = []
    segments: list[Segment] = []


class TakePair(Order[Taken], frozen=True):
    """Take slices in turns, on one CPU where ``cpu`` is given, until the pair's error is under ``enough_error``.

    It has what is left of ``share_s``, in which it has warmed up. It ``reads`` from time to time what processes hold.
    """

    cpu: int | None
    share_s: float
    enough_error: float
    reads: bool


class GoOn(Order[list[Reading]], frozen=True):
    """Take further slices for so long, and read what processes hold; watch whether they work while they wait."""

    seconds: float


class TraceMore(Order[list[Block]], frozen=True):
    """Take so many further traced slices of both workers."""

    blocks: int


class MoveAll(Order[None], frozen=True):
    """Keep on another CPU from now on those workers that have been kept on one."""

    cpu: int


class EndIdle(Order[list[float]], frozen=True):
    """Return the CPU time that base and head have used since their pair was measured, over the time since then."""


class Alone(msgspec.Struct, frozen=True):
    """The figures of one side by itself, what its workers held from time to time, their counts, and their rounds."""

    workers: list[WorkerRecord]
    phases: list[Phase]
    traced_call_s: float
    notes: list[str]
    usages: list[list[Usage]]
    tallies: list[Tally]
    rounds: list[Rounds | None] = []


class MeasureAlone(Order[Alone], frozen=True):
    """Measure one side by itself, in about ``max_time_s``; ``long`` as the baseline has it."""

    max_time_s: float
    long: bool | None
    count: CountAll | None


class ObserveAll(Order[list[Footprint]], frozen=True):
    """Every worker calls its component until that has run and read nothing new."""

    limit_s: float
    searches: bool = False
    names: list[str] = []


class Relay(Order[Any], frozen=True):
    """Give an order to head's first worker, or to base's, and return its answer."""

    order: FindAllocations | FindCompiled | Explain | Trace
    to_base: bool = False

    @property
    def answer(self) -> Any:
        """The type of the worker's answer."""
        return self.order.answer


class LeaveAll(Order[Done | None], frozen=True):
    """Let every worker leave the test, the one that reports it last, with its result or failure; return how it ended.

    Where another worker is lost, the one that reports the test stays at its call.
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
    """All templates have collected, base's before head's."""

    templates: list[Ready]


class Step(Message, frozen=True):
    """What is done just now."""

    text: str


class Waiting(Message, frozen=True):
    """The driver goes on: it waits for one of its workers, and says so from time to time."""


class Stop(msgspec.Struct, frozen=True):
    """Why a process cannot go on with a test: it is lost, or the test has ended there, as ``done`` says.

    New interpreters may do better where this is ``is_doubtful``. ``is_base`` where base's process stopped;
    ``is_reporter`` where it was the one that reports the test.
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
ToServer: TypeAlias = Load | ForkDriver


def send(connection: Connection, message: Message) -> None:
    """Send one message; OSError where the other side is gone or does not read it."""
    connection.send_bytes(dumps(as_json(message)).encode())


def as_json(message: Message | Start | DriverSettings) -> dict[str, Any]:
    """Return a message or settings as JSON has them."""
    fields: dict[str, Any] = msgspec.to_builtins(message, str_keys=True, enc_hook=str)
    return fields


def _pickled(value: object) -> bytes:
    """Return a value as another process can read it: as it is, or as its text where it cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:  # of any plugin's object
        return pickle.dumps(str(value))


def reported_of(fields: object) -> Reported:
    """Return a report from what :func:`as_json` made of it; ValueError for anything else."""
    return msgspec.convert(fields, Reported)


def start_of(settings: dict[str, Any]) -> Start:
    """Return a template's settings from what :func:`as_json` made of them."""
    return msgspec.convert(settings, Start)


def driver_settings_of(settings: dict[str, Any]) -> DriverSettings:
    """Return a driver's settings from what :func:`as_json` made of them."""
    return msgspec.convert(settings, DriverSettings)


def answer(order: int, value: object) -> Answer:
    """Return the answer to the order of this number."""
    return Answer(order, msgspec.to_builtins(value, str_keys=True, enc_hook=str))


def receive_from_worker(connection: Connection) -> FromWorker:
    """Return a worker's next message; EOFError or OSError where it is gone, UnreadableError where it cannot be one."""
    message: FromWorker = _received(connection, FromWorker)
    return message


def receive_from_driver(connection: Connection) -> FromDriver | Imported:
    """Return the next message of a driver or a preload server; the errors are as with a worker's."""
    message: FromDriver | Imported = _received(connection, FromDriver | Imported)
    return message


def _received(connection: Connection, kinds: Any) -> Any:
    try:
        data = connection.recv_bytes(FRAME_MOST)
    except OSError as error:
        if error.errno is None:  # what it gives for a message that is too long
            raise UnreadableError(f"it has over {FRAME_MOST >> 20} MiB, or is none") from None
        raise
    try:
        return msgspec.convert(loads(data, parse_constant=_refuse_constant), kinds, str_keys=True)
    except Exception as error:  # a worker runs any code, so these are any bytes
        raise UnreadableError(f"{type(error).__name__}: {error}") from None


def answer_to(order: Order[T], answer: Answer) -> T:
    """Return the value of an answer, of the type that the order has; UnreadableError where it is of another."""
    try:
        value: T = msgspec.convert(answer.value, order.answer, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableError(f"{type(order).__name__}: {error}") from None
    for finding in _impossible_figures(value):
        raise UnreadableError(f"{finding}. Does the test change the clock?")
    return value


def receive_order(connection: Connection) -> ToWorker:
    """Wait for a worker's or a template's next message; EOFError or OSError when their driver is gone."""
    message: ToWorker = msgspec.convert(loads(connection.recv_bytes()), ToWorker, str_keys=True)
    return message


def receive_driver_order(connection: Connection) -> ToDriver:
    """Wait for a driver's next message; EOFError or OSError when the run is gone."""
    message: ToDriver = msgspec.convert(loads(connection.recv_bytes()), ToDriver, str_keys=True)
    return message


def _refuse_constant(name: str) -> None:
    raise ValueError(f"a figure is {name}")


def _impossible_figures(value: object) -> Iterator[str]:
    """Yield the figures that no measurement can have given: later arithmetic divides by them and takes logarithms."""
    above: dict[str, float] = {}
    least: dict[str, float] = {}
    match value:
        case Checked(first_call_s, items):
            least = {"first_call_s": first_call_s, "items": items}
        case Warm() as warm:
            above = {"call_s": warm.call_s, "iterations": warm.shape.iterations, "rounds": warm.shape.rounds}
            least = {"warm_up_s": warm.warm_up_s, "threads": warm.threads}
        case SliceRecord() as record:
            above = {name: getattr(record, name) for name in ("call_s", "rounds_s", "calls", "wall_s")}
            least = {name: getattr(record, name) for name in ("items", "cpu_s", "waits", "collections")}
            for phase in record.phases:
                least |= {f"{phase.path}: count": phase.count, f"{phase.path}: total_s": phase.total_s}
    yield from out_of_range(above, least)
