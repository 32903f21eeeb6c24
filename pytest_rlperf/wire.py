"""The messages between a run and its workers: tagged records as JSON over one connection, never pickle.

JSON of the standard library holds integers of any size and lone surrogates, which paths have that are not UTF-8.

The messages of one test: ``Run`` → reports of its setup → ``Called`` (the test called an rlperf fixture) → any number
of orders, each with its ``Answer`` → ``Leave`` → the remaining reports → ``Done``. At any point
``Done`` may come instead: the test skipped, failed or never called its fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from json import dumps, loads  # which tests may replace
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from pytest_rlperf.model.measured import (
    OutputPart,
    Result,
    Shape,
    Share,
    SliceKind,
    SliceRecord,
    Tally,
    Usage,
    Warm,
    out_of_range,
)

DESCRIPTOR_KEY = "PYTEST_RLPERF_WORKER"  # holds the number of a new interpreter's connection
FRAME_MOST = 1 << 28  # bytes


class UnreadableError(Exception):
    """The bytes received are no message of this protocol."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag on the wire is the class's name."""


class Start(msgspec.Struct, frozen=True):
    """The settings that a stem reads before all other messages, from its connection or from its loader.

    One stem of a run ``reports``: it has the worker that the user sees, and ``share_terminal`` with it. Other output
    goes to the file ``output``. A worker lists the loaded files below ``watched`` and of ``packages``. One that
    ``observes`` notes what it reads. Texts name a file in ``tree`` by its place in ``top``. ``environment`` has all
    variables, and ``sites`` are the directories that hold the ``.pth`` files of the side's interpreter,
    ``prefix`` is its place. ``probe`` has the stem find out whether a copy of it can work. A worker of another protocol
    must be able to read this, so fields are only added.
    """

    number: int
    path: list[str]
    args: list[str]
    files: list[str]
    scratch: str
    markup: bool
    reports: bool
    watched: list[str]
    packages: list[str]
    output: str
    share_terminal: bool
    directory: str
    environment: dict[str, str]
    python: str
    prefix: str
    sites: list[str]
    forks: bool = False
    probe: bool = False
    observes: bool = False
    tree: str = ""
    top: str = ""


# ------------------------------------------------------------------ worker → run


class Ready(Message, frozen=True):
    """The stem has collected tests with these keys; ``loaded`` is the code under test that this loaded.

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
    """A loader has imported modules; ``dirty`` is the first that it should not have, with which it is of no more use.

    ``changes`` are those that imports have made to the variables, None for one that is gone.
    """

    dirty: str | None
    changes: dict[str, str | None] = {}


class Answer(Message, frozen=True):
    """The answer to the order of this number."""

    order: int
    value: Any = None


class Reported(Message, frozen=True):
    """A setup, call or teardown report as pytest serialises it."""

    report: str  # JSON


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

    ``shared_setup_s`` is what fixtures took that other tests can share.
    """

    component: str
    unit: str
    items: float
    shared_setup_s: float = 0.0


Collision: TypeAlias = Literal["EADDRINUSE", "EEXIST"]
"""The name of the error number of a port or a file that is in use."""


class Done(Message, frozen=True):
    """The test is over in this worker. ``modules`` are the top-level modules loaded by then.

    ``name_missing``: the test ended because a name does not exist: a module, an attribute, or the test itself.
    ``is_certain``: every process would end it in the same way.
    ``collision`` is the name of the error number with which the test ended, where another process that runs it at the
    same time may be the cause.
    """

    outcome: str
    text: str
    modules: list[str]
    name_missing: bool
    collision: Collision | None = None
    is_certain: bool = False


FromWorker: TypeAlias = Imported | Ready | Started | Reported | Warned | Called | Answer | Done


# ------------------------------------------------------------------ answers


class Checked(msgspec.Struct, frozen=True):
    """The component ran once and is correct, in ``first_call_s`` with the check, and processed ``items``.

    ``loaded`` is the code under test that is loaded by now, except for files that only ``children`` processes loaded;
    ``others`` is of the protocol alone. ``variables`` are those of native libraries. ``output`` is what it returned.
    """

    first_call_s: float
    items: float
    loaded: dict[str, str]
    children: bool
    others: list[str] = []
    variables: dict[str, str] = {}
    output: tuple[OutputPart, ...] = ()


class Observed(msgspec.Struct, frozen=True):
    """The files that the process has read since it began, except for those that only ``children`` have read."""

    files: list[str]
    children: bool


class Explained(msgspec.Struct, frozen=True):
    """Where a call's time goes; ``notes`` give the reason where that is unknown."""

    shares: tuple[Share, ...]
    notes: tuple[str, ...]


# ------------------------------------------------------------------ run → worker


class Order(Message, frozen=True, kw_only=True):
    """Base of the orders to a worker whose test is at its call; each is answered by a value of the type ``answer``."""

    answer: ClassVar[Any] = type(None)
    number: int = 0

    def numbered(self, number: int) -> Order:
        """Return the same order with a number, which its answer will have."""
        return msgspec.structs.replace(self, number=number)


class Load(Message, frozen=True):
    """Have a loader import ``modules``, of which none may want one of ``packages``, or a file below ``top``.

    Places below ``top`` that are no part of the tree, such as the environment, are ``apart``.
    """

    modules: list[str]
    packages: list[str]
    top: str
    apart: list[str]


class ForkPair(Message, frozen=True):
    """Have a loader fork a pair's stems; the connections of these follow this message."""

    starts: list[Start]


class Fork(Message, frozen=True):
    """Have a copy of the stem run a test, with files in ``scratch``; the copy's connection follows this message."""

    scratch: str


class Run(Message, frozen=True):
    """Run one test; ``next_key`` is the test after it, for which its fixtures are kept."""

    key: str
    next_key: str | None
    seed: int
    reporter: bool


class Check(Order, frozen=True):
    """Run the component once and check it."""

    answer: ClassVar[Any] = Checked


class Count(Order, frozen=True):
    """Count ``repetitions`` calls, if that takes no longer than about ``limit_s``."""

    answer: ClassVar[Any] = Tally
    repetitions: int
    limit_s: float


class WarmUp(Order, frozen=True):
    """Warm up for at most ``limit_s``; size the slices, or take the given shape; ``long`` as the baseline has it.

    Without ``kernels`` no slice of a reference kernel follows.
    """

    answer: ClassVar[Any] = Warm
    shape: Shape | None
    limit_s: float
    long: bool | None
    kernels: bool


class Observe(Order, frozen=True):
    """Call the component until that has read nothing new for a while, in about ``limit_s``; list what was read."""

    answer: ClassVar[Any] = Observed
    limit_s: float


class Slow(Order, frozen=True):
    """Do extra work in every round from now on, and answer with its steps: ``share`` of a round without ``steps``."""

    answer: ClassVar[Any] = int
    share: float
    steps: int | None


class Place(Order, frozen=True):
    """Stay on these CPUs until the test is left."""

    cpus: list[int]


class Take(Order, frozen=True):
    """Take one slice."""

    answer: ClassVar[Any] = SliceRecord
    kind: SliceKind


class ReadUsage(Order, frozen=True):
    """Read the resources that the process holds."""

    answer: ClassVar[Any] = Usage


class FindAllocations(Order, frozen=True):
    """Find the lines that allocate ``least_bytes`` or more a call that stay, once all timed slices are taken."""

    answer: ClassVar[Any] = list[str]
    least_bytes: float


class Explain(Order, frozen=True):
    """Find where a call's time goes, once all timed slices are taken."""

    answer: ClassVar[Any] = Explained


class Trace(Order, frozen=True):
    """Record one call, once all timed slices are taken, and return it as Chrome's trace events."""

    answer: ClassVar[Any] = str
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
    """Wait for a copy of the stem, which has ended."""

    pid: int


class Quit(Message, frozen=True):
    """End the session."""


ToLoader: TypeAlias = Load | ForkPair
Orders: TypeAlias = (
    Check | Count | WarmUp | Observe | Slow | Place | Take | ReadUsage | FindAllocations | Explain | Trace
)
ToWorker: TypeAlias = Fork | Run | Orders | Leave | Reap | Quit


def send(connection: Connection, message: FromWorker | ToWorker | ToLoader) -> None:
    """Send one message; OSError where the other side is gone or does not read it."""
    connection.send_bytes(dumps(as_json(message)).encode())


def as_json(message: Message | Start) -> dict[str, Any]:
    """Return a message or settings as JSON has them."""
    fields: dict[str, Any] = msgspec.to_builtins(message, str_keys=True, enc_hook=str)
    return fields


def start_of(settings: dict[str, Any]) -> Start:
    """Return settings from what :func:`as_json` made of them."""
    return msgspec.convert(settings, Start)


def receive_from_worker(connection: Connection) -> FromWorker:
    """Return a worker's next message; EOFError or OSError where it is gone, UnreadableError where it cannot be one."""
    try:
        data = connection.recv_bytes(FRAME_MOST)
    except OSError as error:
        if error.errno is None:  # what it gives for a message that is too long
            raise UnreadableError(f"it has over {FRAME_MOST >> 20} MiB, or is none") from None
        raise
    try:
        read = loads(data, parse_constant=_refuse_constant)
        message: FromWorker = msgspec.convert(read, FromWorker, str_keys=True)
    except Exception as error:  # a worker runs any code, so these are any bytes
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    return message


def answer_to(order: Order, answer: Answer) -> Any:
    """Return the value of an answer, of the type that the order has; UnreadableError where it is of another."""
    try:
        value = msgspec.convert(answer.value, order.answer, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableError(f"{type(order).__name__}: {error}") from None
    for finding in _impossible_figures(value):
        raise UnreadableError(f"{finding}. Does the test change the clock?")
    return value


def receive_order(connection: Connection) -> ToWorker:
    """Wait for the run's next message; EOFError or OSError when the run is gone."""
    message: ToWorker = msgspec.convert(loads(connection.recv_bytes()), ToWorker, str_keys=True)
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
