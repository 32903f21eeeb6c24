"""The messages between a run and its workers: tagged records as JSON over one connection, never pickle.

JSON of the standard library holds integers of any size and lone surrogates, which paths have that are not UTF-8.

The messages of one test: ``Run`` → reports of its setup → ``Called`` (the test called an rlperf fixture) → ``Check``
→ ``Checked`` → perhaps ``Count`` → ``Counted`` → ``WarmUp`` → ``Warmed`` → any number of ``Take`` → ``Taken``, before
them perhaps ``Place`` → ``Placed`` and ``Slow`` → ``Slowed`` → perhaps ``Explain`` → ``Explained`` and ``TraceCall`` →
``Traced`` → ``Conclude`` or ``Unwind`` → the remaining reports → ``Done``. At any point ``Done`` may come instead: the
test skipped, failed or never called its fixture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from pytest_rlperf.model import Result, Shape, Share, SliceKind, SliceRecord, Tally, Warm, out_of_range
from pytest_rlperf.model.spans import Span
from pytest_rlperf.workers.channel import Channel, UnreadableError

ENVIRONMENT_KEY = "PYTEST_RLPERF_WORKER"  # holds the path of a worker's Start


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag on the wire is the class's name."""


class Start(msgspec.Struct, frozen=True):
    """The settings that a worker reads from a file, before its connection is open.

    One worker of a run ``reports``: it is the one the user sees. A worker lists the loaded files below ``watched`` and
    of ``packages``, and the modules that imported any below ``foreign``, where none should be. A worker of another
    protocol must be able to read this, so fields are only added.
    """

    descriptor: int
    number: int
    path: list[str]
    args: list[str]
    files: list[str]
    scratch: str
    markup: bool
    reports: bool
    watched: list[str]
    packages: list[str]
    foreign: list[str]


# ------------------------------------------------------------------ worker → run


class Loaded(msgspec.Struct, frozen=True):
    """The loaded files of the code under test, and the importers of the other side's files, both by module."""

    files: dict[str, str] = {}
    importers: dict[str, str] = {}


class Ready(Message, frozen=True):
    """The worker has collected tests with these keys; ``loaded`` is the code under test that this loaded."""

    protocol: int
    keys: list[str] = []
    errors: str = ""
    loaded: Loaded = Loaded()


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
    """The test called an rlperf fixture; its component is made ready but has not run."""

    component: str
    unit: str
    items: float


class Checked(Message, frozen=True):
    """The component ran once and is correct, in ``first_call_s`` with the check, and processed ``items``.

    ``loaded`` is the code under test that is loaded by now, except for files that only ``children`` processes loaded.
    """

    first_call_s: float
    items: float
    loaded: Loaded
    children: bool


class Counted(Message, frozen=True):
    """The counts of the workload's calls."""

    tally: Tally


class Warmed(Message, frozen=True):
    """The workload is warm."""

    warm: Warm


class Surveyed(Message, frozen=True):
    """The code under test that is loaded by now, with files that are no module's but whose functions were run."""

    loaded: Loaded
    children: bool


class Slowed(Message, frozen=True):
    """Each round does ``steps`` of extra work from now on."""

    steps: int


class Placed(Message, frozen=True):
    """The worker's threads are on the CPUs of the order."""


class Taken(Message, frozen=True):
    """One slice."""

    record: SliceRecord


class Explained(Message, frozen=True):
    """Where a call's time goes; ``notes`` give the reason where that is unknown."""

    shares: tuple[Share, ...]
    notes: tuple[str, ...]


class Traced(Message, frozen=True):
    """The spans of one call; ``notes`` name what is missing among them."""

    spans: tuple[Span, ...]
    notes: tuple[str, ...]


Collision: TypeAlias = Literal["EADDRINUSE", "EEXIST"]
"""The name of the error number of a port or a file that is in use."""


class Done(Message, frozen=True):
    """The test is over in this worker. ``modules`` are the top-level modules loaded by then.

    ``dropped`` are the bytes of output that were cut off. ``daemons`` are the numbers and commands of processes that
    the test has detached from its worker, and that still run.

    ``name_missing``: the test ended because a name does not exist: a module, an attribute, or the test itself.
    ``collision`` is the name of the error number with which the test ended, where another process that runs it at the
    same time may be the cause.
    """

    outcome: str
    text: str
    modules: list[str]
    name_missing: bool
    collision: Collision | None = None
    dropped: int = 0
    daemons: tuple[tuple[int, str], ...] = ()


# ------------------------------------------------------------------ run → worker


class Run(Message, frozen=True):
    """Run one test; ``next_key`` is the test after it, for which its fixtures are kept."""

    key: str
    next_key: str | None
    seed: int
    reporter: bool


class Check(Message, frozen=True):
    """Run the component once and check it."""


class Count(Message, frozen=True):
    """Count ``repetitions`` calls, if that takes no longer than about ``limit_s``."""

    repetitions: int
    limit_s: float


class WarmUp(Message, frozen=True):
    """Warm up for at most ``limit_s``; size the slices, or take the given shape; ``long`` as the baseline has it.

    Without ``kernels`` no slice of a reference kernel follows.
    """

    shape: Shape | None
    limit_s: float
    long: bool | None
    kernels: bool


class Survey(Message, frozen=True):
    """List the code under test that is loaded by now."""


class Slow(Message, frozen=True):
    """Do extra work in every round from now on: ``steps`` of it or, where that is None, ``share`` of a round."""

    share: float
    steps: int | None


class Place(Message, frozen=True):
    """Stay on these CPUs until the test is left."""

    cpus: list[int]


class Take(Message, frozen=True):
    """Take one slice."""

    kind: SliceKind


class Explain(Message, frozen=True):
    """Find where a call's time goes, once all timed slices are taken."""


class TraceCall(Message, frozen=True):
    """Trace one call, once all timed slices are taken."""


class Failure(msgspec.Struct, frozen=True):
    """The reason for a measured call to fail: a regression, or a measurement that broke."""

    message: str
    regression: bool


class Conclude(Message, frozen=True):
    """The verdict is in: return ``result``, or raise ``failure`` at the user's line."""

    result: Result | None
    failure: Failure | None


class Unwind(Message, frozen=True):
    """Leave the test at the call."""


class Quit(Message, frozen=True):
    """End the session."""


FromWorker: TypeAlias = (
    Ready
    | Reported
    | Warned
    | Called
    | Checked
    | Counted
    | Warmed
    | Surveyed
    | Slowed
    | Placed
    | Taken
    | Explained
    | Traced
    | Done
)
ToWorker: TypeAlias = (
    Run | Check | Count | WarmUp | Survey | Slow | Place | Take | Explain | TraceCall | Conclude | Unwind | Quit
)


def send(channel: Channel, message: FromWorker | ToWorker, limit_s: float | None = None) -> None:
    """Send one message, as :meth:`Channel.send` does."""
    channel.send(json.dumps(msgspec.to_builtins(message, str_keys=True, enc_hook=str)).encode(), limit_s)


def receive_from_worker(channel: Channel, limit_s: float | None = None) -> FromWorker | None:
    """Return a worker's next message, as :meth:`Channel.receive` does; UnreadableError where it cannot be one."""
    data = channel.receive(limit_s)
    if data is None:
        return None
    try:
        fields = json.loads(data, parse_constant=_refuse_constant)
        message: FromWorker = msgspec.convert(fields, FromWorker, str_keys=True)
    except Exception as error:  # a worker runs any code, so these are any bytes
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    for finding in _impossible_figures(message):
        raise UnreadableError(f"{finding}. Does the test change the clock?")
    return message


def receive_order(channel: Channel) -> ToWorker:
    """Wait for the run's next message; EOFError or OSError when the run is gone."""
    data = channel.receive()
    assert data is not None
    message: ToWorker = msgspec.convert(json.loads(data), ToWorker, str_keys=True)
    return message


def _refuse_constant(name: str) -> None:
    raise ValueError(f"a figure is {name}")


def _impossible_figures(message: FromWorker) -> Iterator[str]:
    """Yield the figures that no measurement can have given: later arithmetic divides by them and takes logarithms."""
    above: dict[str, float] = {}
    least: dict[str, float] = {}
    match message:
        case Called(items=items):
            least = {"items": items}
        case Checked(first_call_s, items):
            least = {"first_call_s": first_call_s, "items": items}
        case Warmed(warm):
            above = {"call_s": warm.call_s, "iterations": warm.shape.iterations, "rounds": warm.shape.rounds}
            least = {"warm_up_s": warm.warm_up_s, "threads": warm.threads}
        case Slowed(steps):
            least = {"steps": steps}
        case Taken(record):
            above = {name: getattr(record, name) for name in ("call_s", "rounds_s", "calls", "wall_s")}
            least = {name: getattr(record, name) for name in ("items", "cpu_s", "waits", "collections")}
            for phase in record.phases:
                least |= {f"{phase.path}: count": phase.count, f"{phase.path}: total_s": phase.total_s}
    yield from out_of_range(above, least)


def write_start(start: Start, path: Path) -> None:
    """Write a worker's settings to a file: a variable of the environment holds 128 KiB at the most."""
    path.write_text(json.dumps(msgspec.to_builtins(start)), encoding="ascii")


def read_start(path: Path) -> Start:
    """Read the file of :func:`write_start`."""
    return msgspec.convert(json.loads(path.read_text(encoding="ascii")), Start)
