"""What coordinator and worker say to each other: tagged msgpack records over one connection, never pickle.

One test goes: ``Run`` → reports of its setup → ``Called`` (a fixture was called with a component) → ``Check`` →
``Checked`` → perhaps ``Count`` → ``Counted`` → ``WarmUp`` → ``Warmed`` → any number of ``Take`` → ``Taken``, before
them perhaps ``Place`` → ``Placed`` and ``Slow`` → ``Slowed`` → perhaps ``Explain`` → ``Explained`` and ``Trace`` →
``Traced`` → ``Conclude`` or ``Unwind`` → the remaining reports → ``Done``. At any point ``Done`` may come instead: the
test skipped, failed or never called.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import msgspec

from pytest_rlperf.model import Result, Shape, Share, SliceKind, SliceRecord, Tally, Warm
from pytest_rlperf.model.spans import Span

ENVIRONMENT_KEY = "PYTEST_RLPERF_WORKER"


class UnreadableError(Exception):
    """What was sent is no message of this protocol."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag on the wire is the class's name."""


class Start(msgspec.Struct, frozen=True):
    """What a worker is told through its environment, before it can be told anything else.

    One worker of a run ``reports``: it is the one the user sees. Files below ``watched`` and of ``packages`` are told
    about once they are loaded, and who imported those below ``foreign``, which should not be. A worker of another
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


# ------------------------------------------------------------------ worker → coordinator


class Loaded(msgspec.Struct, frozen=True):
    """The files of the code under test by module, and by module who imported those that are another side's."""

    files: dict[str, str] = {}
    importers: dict[str, str] = {}


class Ready(Message, frozen=True):
    """The worker has collected tests by these keys, and loaded this of the code under test."""

    protocol: int
    keys: list[str] = []
    errors: str = ""
    loaded: Loaded = Loaded()


class Reported(Message, frozen=True):
    """A setup, call or teardown report as pytest serialises it."""

    report: str  # JSON, which unlike msgpack holds integers of any size and lone surrogates


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
    """The component ran once and is right: how long that took, check included, and how many items it processed.

    ``loaded`` is what there is of the code under test, now that it has run; what ``children`` processes have loaded is
    not part of it.
    """

    first_call_s: float
    items: float
    loaded: Loaded
    children: bool


class Counted(Message, frozen=True):
    """What calls of the workload did."""

    tally: Tally


class Warmed(Message, frozen=True):
    """The workload is warm."""

    warm: Warm


class Surveyed(Message, frozen=True):
    """What there is of the code under test by now, functions of files that no module is of included."""

    loaded: Loaded
    children: bool


class Slowed(Message, frozen=True):
    """The workload does ``steps`` of extra work a round from now on."""

    steps: int


class Placed(Message, frozen=True):
    """The worker's threads are where they were told to be."""


class Taken(Message, frozen=True):
    """One slice."""

    record: SliceRecord


class Explained(Message, frozen=True):
    """Where a call's time goes; where that is not known, ``notes`` say why."""

    shares: tuple[Share, ...]
    notes: tuple[str, ...]


class Traced(Message, frozen=True):
    """When what was open in one call; ``notes`` say what the spans lack."""

    spans: tuple[Span, ...]
    notes: tuple[str, ...]


class Done(Message, frozen=True):
    """The test is over in this worker. ``modules`` are the top-level modules loaded by then.

    ``name_missing`` says that it was for want of a name: a module, an attribute, or the test itself.
    """

    outcome: str
    text: str
    modules: list[str]
    name_missing: bool


# ------------------------------------------------------------------ coordinator → worker


class Run(Message, frozen=True):
    """Run one test; ``next_key`` is the test after it, for which its fixtures are kept."""

    key: str
    next_key: str | None
    seed: int
    reporter: bool


class Check(Message, frozen=True):
    """Run the component once and check it."""


class Count(Message, frozen=True):
    """Count what ``repetitions`` calls do, if that takes no longer than about ``limit_s``."""

    repetitions: int
    limit_s: float


class WarmUp(Message, frozen=True):
    """Warm up for at most ``limit_s``; size the slices, or take the given shape; ``long`` as the baseline has it.

    Without ``kernels`` no slice of a reference kernel will be asked for.
    """

    shape: Shape | None
    limit_s: float
    long: bool | None
    kernels: bool


class Survey(Message, frozen=True):
    """Say what has been loaded by now."""


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
    """Look where a call's time goes, after all that is timed."""


class Trace(Message, frozen=True):
    """Record one call, after all that is timed."""


class Failure(msgspec.Struct, frozen=True):
    """Why a measured call must fail: a regression, or a measurement that broke."""

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
FromCoordinator: TypeAlias = (
    Run | Check | Count | WarmUp | Survey | Slow | Place | Take | Explain | Trace | Conclude | Unwind | Quit
)

_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator)


def send(connection: Connection[Any, Any], message: FromWorker | FromCoordinator) -> None:
    """Send one message; what a report holds beside plain data crosses as its text."""
    connection.send_bytes(_encoder.encode(message))


def receive_from_worker(connection: Connection[Any, Any]) -> FromWorker:
    """Wait for a worker's next message; EOFError when it is gone, UnreadableError when it sent something else."""
    try:
        message: FromWorker = _from_worker.decode(connection.recv_bytes())
    except msgspec.ValidationError as error:
        raise UnreadableError(str(error)) from None
    return message


def receive_from_coordinator(connection: Connection[Any, Any]) -> FromCoordinator:
    """Wait for the coordinator's next message; EOFError when it is gone."""
    message: FromCoordinator = _from_coordinator.decode(connection.recv_bytes())
    return message


def encode_start(start: Start) -> str:
    """Write a worker's start-up record as text for an environment variable."""
    return msgspec.json.encode(start).decode()


def decode_start(text: str) -> Start:
    """Read what :func:`encode_start` wrote."""
    return msgspec.json.decode(text.encode(), type=Start)
