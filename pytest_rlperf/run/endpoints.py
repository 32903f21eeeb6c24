"""The processes that the run's loop waits for: drivers, and the preload servers that fork them."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pytest_rlperf import wire
from pytest_rlperf.run.schedule import Reply, Steps
from pytest_rlperf.spawn import preload
from pytest_rlperf.spawn.connections import connected, interpreter, sender_of
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.process import SILENCE_MOST_S, Process

QUIT_LIMIT_S = 10.0
FORCE_S = 4.0  # from a driver's limit for teardowns to its own end
PATIENCE_S = 120.0  # beyond all that a driver waits for itself
_LOAD_S = 120.0
_BOOT = "import sys; sys.path = [p for p in sys.path if p]; from pytest_rlperf.pair.driver import main; main()"

# Runs a file's text in a process that has no file as its ``__main__``.
_PROGRAM = """
import sys
with open(sys.argv.pop(), encoding='utf-8') as file:
    text = file.read()
exec(text)
"""


class StoppedError(Exception):
    """A test cannot go on in the processes that have it: one is lost, or the test has ended there too early."""

    def __init__(self, stop: wire.Stop) -> None:
        super().__init__(stop.text)
        self.stop = stop

    @property
    def is_due_to_base(self) -> bool:
        """Whether the base's code cannot run a test; a missing name is the base's fault, a port in use is not."""
        done = self.stop.done
        if done is not None and (done.is_taken or done.name_missing):
            return self.stop.is_base and not done.is_taken
        return self.stop.is_base and not self.stop.is_doubtful


class DriverLostError(StoppedError):
    """A driver itself, or a preload server, is lost: another one may do its work."""


class BrokenError(Exception):
    """A driver failed to carry out an order, through its own fault."""


class RetryFreshError(Exception):
    """Forked workers may behave differently here: measure the test again in new interpreters."""


class Endpoint(Process):
    """A process that the run's loop waits for."""

    is_awaited = False
    silence_s = math.inf

    def lost(self, text: str) -> DriverLostError:
        """Return the error of a process that is not usable any more, in the form that a job gets."""
        self.is_awaited = False
        return DriverLostError(wire.Stop(self.name, text, is_doubtful=True))

    def ended(self) -> Exception:
        """Return the error for this process, which was ended while a job waited for it."""
        return self.lost(f"{self.name} was ended")

    def overdue(self, limit_s: float) -> Exception:
        """End the process, as it has not answered within ``limit_s``, and return the error."""
        return self.lost(self.abort("did not answer", limit_s, "it waits for none of its workers"))


class PreloadServer(Endpoint):
    """A process that imports what both sides load alike, and forks drivers."""

    def __init__(self, environment: Mapping[str, str], scratch: Path, guardian: Guardian) -> None:
        variables = {**environment, preload.OUTPUT: str(scratch / "output"), preload.GUARDIAN: str(guardian.pipe)}
        process, here = interpreter(
            _PROGRAM, variables, scratch, preload.__file__, key=preload.KEY, also=guardian.pipes
        )
        super().__init__("the preload server", here, scratch, guardian, process)
        self.changes: dict[str, str | None] = {}  # that imports have made to the variables

    def start_loading(self, order: wire.Load) -> None:
        """Let the process import modules."""
        self.send(order)
        self.is_awaited = True

    def finish_loading(self) -> Steps[list[str]]:
        """Return those of the imported modules that need a module that each side has to import for itself.

        If there are any, the process is ended, as it is not usable. DriverLostError if it ends by itself or takes too
        long.
        """
        imported: wire.Imported = yield from Reply(self, _LOAD_S)
        self.changes = imported.changes
        if imported.dirty:
            self.end(0)
        return imported.dirty

    def read(self) -> Any:
        """Return the result of the imports."""
        message = self.received(wire.FromDriver | wire.Imported)
        self.is_awaited = False
        if not isinstance(message, wire.Imported):
            raise self.unexpected(message)
        return message

    def fork(self, settings: wire.DriverSettings) -> Connection:
        """Let the preload server fork a driver, and return the connection to it."""
        here, there = connected()
        self.send(wire.ForkDriver(settings), there)
        return here


class PairDriver(Endpoint):
    """A process that lets the workers of one test take turns; the server of number ``preloaded`` forked it."""

    def __init__(
        self,
        settings: wire.DriverSettings,
        guardian: Guardian,
        number: int,
        connection: Connection | None = None,
        preloaded: int | None = None,
    ) -> None:
        started = None
        if connection is None:
            started, connection = _new_driver(settings, guardian)
        super().__init__(settings.name, connection, Path(settings.templates[0].scratch), guardian, started)
        self.number = number
        self.preloaded = preloaded
        self.width = len(settings.templates)
        self.has_base = any(each.is_base for each in settings.templates)
        self.observes = settings.shared.observes
        self.head_name = min(
            (each for each in settings.templates if not each.is_base), key=lambda each: each.number
        ).name
        self.collected: list[wire.Ready] = []
        self.imported: list[set[str]] = [set() for _ in settings.templates]  # by each template, on orders
        self.is_taken = True
        self.is_worn = False  # not usable for another test, for example if it lost a process
        self.is_awaited = True  # until it has collected
        self.reports: list[wire.Reported | wire.Warned] | None = None  # to which those of its test are added
        self.show: Callable[[str], None] | None = None
        self._orders = 0

    @property
    def forks(self) -> bool:
        """Whether its workers are forked copies, not new interpreters."""
        return self.preloaded is not None

    @property
    def is_free(self) -> bool:
        """Whether another test can have it."""
        return self.alive and not (self.is_taken or self.is_awaited or self.is_worn)

    def loaded(self, checked: Sequence[wire.Checked]) -> list[dict[str, str]]:
        """Return the file of each module that its templates, or their checked workers, have loaded."""
        return [{**ready.loaded, **each.loaded} for ready, each in zip(self.collected, checked, strict=True)]

    def give(self, order: wire.Order[Any], limit_s: float = 0.0) -> Reply:
        """Send an order that may take about ``limit_s``, and cancel the one in progress.

        The request that is returned waits for the answer, or for the error that prevents one.
        """
        self._orders += 1
        self.send(order.numbered(self._orders))
        self._pending = order
        self.is_awaited = True
        return Reply(self, limit_s + PATIENCE_S)

    def read(self) -> Any:
        """Return the value that answers the last order, or raise the error that prevented an answer."""
        self.silence_s = SILENCE_MOST_S  # it has begun
        if not self.pid and (pid := sender_of(self.connection)) and self.guardian.owns(pid):
            self.is_known_as(pid)
        if self.quit_s is not None:
            return self._read_end()
        match message := self.received(wire.FromDriver):
            case wire.Collected(templates):
                self.is_awaited = self._orders > 0
                self.collected = templates
                self.end_if_useless()
                return templates
            case wire.Step(text) if self.show is not None:
                self.show(text)
            case wire.Reported() | wire.Warned() if self.reports is not None:
                self.reports.append(message)
            case wire.Answer(order) | wire.Stopped(order) | wire.Broken(order) if order == self._orders:
                self.is_awaited = False
                self.is_worn |= isinstance(message, wire.Stopped) and message.stop.done is None
                self.end_if_useless()
                if isinstance(message, wire.Stopped):
                    raise StoppedError(message.stop)
                if isinstance(message, wire.Broken):
                    raise BrokenError(message.text)
                try:
                    return Answered(wire.answer_to(self._pending, message))
                except wire.UnreadableError as error:
                    raise self.unreadable(error) from None
        return None

    def _read_end(self) -> None:
        """Drop the messages of a process that was told to end; forget the process once it has closed the connection."""
        try:
            self.connection.recv_bytes()
        except (EOFError, OSError):
            self.is_awaited = False
            self.end(FORCE_S)

    def give_back(self) -> None:
        """Let other tests use the driver, as its test is over or leaves it."""
        self.is_taken = False
        self.reports = self.show = None
        self.end_if_useless()

    def end_if_useless(self) -> None:
        """End the driver if no test has it and none may have it; one at work goes on."""
        if self.is_worn and not (self.is_taken or self.is_awaited):
            self.start_ending(QUIT_LIMIT_S)

    def start_ending(self, limit_s: float) -> None:
        """Begin to end the process with all of its workers, which have ``limit_s`` for their teardowns."""
        self.is_worn = True
        if self.quit_s is None:
            with contextlib.suppress(DriverLostError):
                self.send(wire.End(limit_s))
            self.quit_s = time.monotonic()
            self.is_awaited = True  # its end is noted


class Answered(NamedTuple):
    """The value that answers an order, which may be None."""

    value: Any


def _new_driver(settings: wire.DriverSettings, guardian: Guardian) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a driver that is a new interpreter, and give it its settings; return it and the connection to it."""
    shares = any(each.share_terminal or each.reports for each in settings.templates)  # its templates inherit that
    output = None if shares else Path(settings.templates[0].output)
    variables = {**settings.templates[0].environment, preload.GUARDIAN: str(guardian.pipe)}
    scratch = Path(settings.templates[0].scratch)
    return interpreter(_BOOT, variables, scratch, settings=settings, stdout=output, stderr=output, also=guardian.pipes)
