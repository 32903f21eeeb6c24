"""Drivers and preload servers without processes: what they are sent is answered at once, over real connections."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import builders
import msgspec
import pytest

from pytest_rlperf import wire
from pytest_rlperf.model.judged import Policy
from pytest_rlperf.model.measured import Shape, Tally, Warm
from pytest_rlperf.model.reach import Footprint
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.run import drivers as module
from pytest_rlperf.run.drivers import Beginning, Processes
from pytest_rlperf.run.endpoints import Endpoint, PairDriver, PreloadServer
from pytest_rlperf.run.schedule import AnyOf, Job, Lanes, Schedule, Spawn, Steps
from pytest_rlperf.run.test import OpenTest
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.variables import library_variables

T = TypeVar("T")
CALLED = wire.Called("gae", "transition", 1.0)
WARM = Warm(Shape(1, 1, long=False), 1e-3, 0.1, 1, single=True)
_TURNS_MOST = 200


def collected(start: wire.SessionSettings) -> wire.Ready:
    """Return that a template has collected one test."""
    return wire.Ready(PROTOCOL, ["test"], variables=library_variables())


def checked(**changes: Any) -> wire.Checked:
    """Return that a component has been checked, in a process that has loaded nothing since."""
    found = wire.Checked(0.1, 1.0, {}, children=False, variables=library_variables())
    return msgspec.structs.replace(found, **changes)


def usual(driver: FakeDriver, order: wire.Order[Any]) -> object:
    """Answer as processes do of which nothing is to be told."""
    match order:
        case wire.Open():
            return [CALLED] * driver.width
        case wire.CheckAll():
            return [checked()] * driver.width
        case wire.ObserveAll():
            return [Footprint([], children=False)] * driver.width
        case wire.CountAll():
            return [Tally((), ())] * driver.width
        case wire.WarmAll(slowed=slowed):
            steps = 7 if slowed is None or slowed.steps is None else slowed.steps
            return wire.Warmed(WARM, WARM, steps=steps)
        case wire.TakePair():
            return wire.Taken(builders.pair(0.0), [], [None, None])
        case wire.EndIdle():
            return [0.0, 0.0]
        case wire.TraceMore():
            return []
        case wire.MoveAll():
            return None
        case wire.LeaveAll():
            return None
    raise AssertionError(order)


class FakeGuardian(Guardian):
    """Knows all fake processes of a run, and what these say.

    A driver's templates have ``collected``, or one is lost, or they go on; and it gives an ``answer``: its value, a
    message, or bytes.
    A server has ``imported`` what it was to load, or goes on; where it is ``lost_at`` a message, it dies.
    """

    def __init__(self, scratch: Path) -> None:
        super().__init__()
        self.scratch = scratch
        self.drivers: list[FakeDriver] = []
        self.servers: list[FakeServer] = []
        self.collected: Callable[[wire.SessionSettings], wire.Ready | wire.Stopped | None] = collected
        self.answer: Callable[[FakeDriver, wire.Order[Any]], object] = usual
        self.imported: Callable[[wire.Load], wire.Imported | None] = lambda load: wire.Imported()
        self.lost_at: type[wire.Message] | None = None


class FakeDriver(PairDriver):
    """A driver that has the ``orders`` that it was given; it is told to end, or is lost, by ``die``."""

    def __init__(
        self,
        settings: wire.DriverSettings,
        guardian: FakeGuardian,
        number: int,
        connection: Connection | None = None,
        preloaded: int | None = None,
    ) -> None:
        here, self.there = Pipe()
        super().__init__(settings, guardian, number, here, preloaded)
        self.settings = settings
        self.orders: list[wire.Order[Any]] = []
        self._known = guardian
        guardian.drivers.append(self)
        in_order = sorted(settings.templates, key=lambda each: (not each.is_base, each.number))
        found = [guardian.collected(wire.SessionSettings(settings.shared, each)) for each in in_order]
        lost = next((each for each in found if isinstance(each, wire.Stopped)), None)
        if None not in found:
            self.say(lost or wire.Collected([each for each in found if isinstance(each, wire.Ready)]))

    @property
    def is_ended(self) -> bool:
        """Whether it was told to end."""
        return self.there.closed

    def say(self, message: wire.Message) -> None:
        """Send a message to the run."""
        wire.send(self.there, message)

    def die(self) -> None:
        """End."""
        self.there.close()

    def send(self, message: wire.Message, *ends: Connection) -> None:
        """Answer a message."""
        if self.is_ended:
            raise self.lost(self.how_it_ended())
        if isinstance(message, wire.End):
            self.die()
            return
        assert isinstance(message, wire.Order)
        self.orders.append(message)
        found = self._known.answer(self, message)
        if isinstance(found, bytes):
            self.there.send_bytes(found)
        elif not self.is_ended:
            value = msgspec.to_builtins(found, str_keys=True, enc_hook=str)
            self.say(found if isinstance(found, wire.Message) else wire.Answer(message.number, value))


class FakeServer(PreloadServer):
    """A preload server that has what it ``loaded``, and the drivers that it ``forked``."""

    def __init__(self, environment: Mapping[str, str], scratch: Path, guardian: FakeGuardian) -> None:
        here, self._there = Pipe()
        Endpoint.__init__(self, "the preload server", here, scratch, guardian)
        self.changes = {}
        self.environment = environment
        self.loaded: list[wire.Load] = []
        self.forked: list[wire.DriverSettings] = []
        self._known = guardian
        guardian.servers.append(self)

    def send(self, message: wire.Message, *ends: Connection) -> None:
        """Answer a message."""
        if isinstance(message, self._known.lost_at or ()):
            raise self.lost("the preload server exited with code 1.\nits output")
        if isinstance(message, wire.ForkDriver):
            self.forked.append(message.settings)
        elif isinstance(message, wire.Load):
            self.loaded.append(message)
            if (found := self._known.imported(message)) is not None:
                wire.send(self._there, found)


def fake_processes(scratch: Path, patch: pytest.MonkeyPatch, *, forks: bool = True) -> tuple[Processes, FakeGuardian]:
    """Replace a run's drivers and preload servers with fakes; return its processes and what knows them."""
    patch.setattr(module, "PairDriver", FakeDriver)
    patch.setattr(module, "PreloadServer", FakeServer)
    patch.setattr(module, "modules_alike", lambda *arguments: ["numpy", "dirt.a"])
    guardian = FakeGuardian(scratch)
    began = Beginning([], dict(os.environ), frozenset(), {})
    known = Processes(began, (), forks, Path("/t"), False, False, start_limit_s=1.0, guardian=guardian)
    return known, guardian


def open_test(lanes: Lanes | None = None, **settings: Any) -> OpenTest:
    """Return a test; ``settings`` are those that are not as usual."""
    usual_ones = {"pairs": (3, 10), "max_time_s": 60.0, "setup_timeout_s": 1.0, "gating_counts": (), "reach": True}
    config: Any = SimpleNamespace(**{**usual_ones, "findings": Policy().findings, **settings})
    return OpenTest("test", config, Policy(), lanes or Lanes(1, ()))


def all_of(*steps: Steps[Any]) -> Steps[list[Any]]:
    """Run several jobs at once, and return what came of them."""
    jobs: list[Job[Any]] = []
    for each in steps:
        jobs.append((yield Spawn(each)))
    while waited := [job for job in jobs if not job.is_done]:
        yield AnyOf(waited)
    return [job.outcome() for job in jobs]


def carried_out(processes: Processes, steps: Steps[T], lanes: Lanes | None = None) -> T:
    """Run a job to its end; AssertionError where it waits for what nobody says."""
    turns = itertools.count()

    def tick() -> None:
        assert next(turns) < _TURNS_MOST, "nobody says what is waited for"

    return Schedule(lanes or Lanes(1, ()), processes.awaited, tick).run(steps)
