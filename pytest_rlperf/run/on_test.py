"""One test on its way through a run: what measures it, the processes that have it open, and how it leaves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_rlperf import wire
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Policy
from pytest_rlperf.model.notes import Doubt
from pytest_rlperf.options import Config
from pytest_rlperf.reach.touch import Reached
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.endpoints import Driver, DriverLostError, StoppedError, ask
from pytest_rlperf.run.schedule import Held, Lane, Lanes, Steps
from pytest_rlperf.spawn.memory import free_bytes

T = TypeVar("T")
_PATIENCE = 4.0  # times --rlperf-max-time: how long a worker may take for one answer before it counts as hung
_PATIENCE_LEAST_S = 10.0
SEED, OTHER_SEED = 1000, 1001  # of all pairs, so that their calls repeat; of what is not to depend on it


@dataclass(frozen=True)
class Observation:
    """What processes of both sides have shown of a test: why it need not be measured, None where it must be.

    ``is_many`` where threads, children or an accelerator did its work, None where that was not observed.
    ``reached`` is None where nothing was observed to its end; ``untouched`` where nothing of the change can matter,
    whether that spares the test or not. ``first_calls_s`` are base's and head's, imports included. It ``is_doubtful``
    where another test's processes may have opened all that differs of the files that it has read. ``unwatched`` says
    why it is not known what libraries in other languages and children have opened.
    """

    reason: reasons.SameCode | reasons.Unreached | None = None
    reached: Reached | None = None
    first_calls_s: tuple[float, float] = (0.0, 0.0)
    untouched: bool = False
    is_doubtful: bool = False
    unwatched: str = ""
    is_many: bool | None = None

    @property
    def doubt(self) -> Doubt | None:
        """Why the test may run something of the change that it was not seen to run; None where there is no doubt."""
        if self.reason is not None or self.reached is None or self.reached.executes or self.untouched:
            return None
        if not self.reached.known:
            return Doubt.CHILDREN
        return Doubt.UNSEEN if self.reached.may else Doubt.UNEVEN

    @property
    def weight(self) -> tuple[bool, int]:
        """How soon the test is to be measured: the lowest first."""
        parts = 0 if self.reached is None else len(self.reached.executes)
        return self.reason is not None, -parts


@dataclass
class OnTest:
    """One test that is measured: its settings, the rules that judge it, its place in the run, and its processes.

    The first driver that opens it has the worker that reports it, to ``forward``; ``measures`` has the first of head's
    workers that has been checked. ``observed`` is what observers have shown, None before that.
    ``fresh`` where all of its workers are to be new interpreters, ``is_short`` where the run has less time for it than
    the test may take. It ``needs_machine`` where its work is not that of one thread alone, and None until that is
    known. ``show`` and ``begin`` are for who shows progress, and so is ``ratio``, which its pairs show so
    far.
    """

    key: str
    next_key: str | None
    settings: Config
    policy: Policy
    lanes: Lanes
    forward: Callable[[wire.Reported | wire.Warned], None]
    show: Callable[[str], None]
    begin: Callable[[str], None]
    order: int = 0
    fresh: bool = False
    is_short: bool = False
    reporter: Driver | None = None
    called: wire.Called | None = None
    is_reporter_lost: bool = False
    measures: Driver | None = None
    observed: Observation | None = None
    needs_machine: bool | None = None
    ratio: float | None = None
    _open: dict[int, tuple[Driver, Drivers]] = field(default_factory=dict)
    _held: list[Held] = field(default_factory=list)

    @property
    def patience_s(self) -> float:
        """How long a worker may take for one answer."""
        return max(_PATIENCE_LEAST_S, _PATIENCE * self.settings.max_time_s)

    def of(self, drivers: Drivers) -> Drivers:
        """Return the drivers that its workers are to come from."""
        return drivers.new_interpreters() if self.fresh else drivers

    # ------------------------------------------------------------------ the machine

    def lane(self, pair: int = 0, *, whole: bool = False) -> Lane:
        """Return the request for a lane, or for the machine where the test needs it."""
        return Lane(self.order, pair, whole or self.needs_machine is True)

    def move(self, driver: Driver) -> Steps[Held]:
        """Wait for a lane, and have a driver's workers run there, where they have been measured on one."""
        held: Held = yield self.lane()
        try:
            if held.cpu is not None:
                yield from self.ask(driver, wire.MoveAll(held.cpu))
        except BaseException:
            held.release()
            raise
        return held

    @property
    def has_machine(self) -> bool:
        """Whether the test has the machine to itself until it ends."""
        return bool(self._held)

    def keep(self, held: Held) -> None:
        """Keep the machine until the test ends."""
        self._held.append(held)

    # ------------------------------------------------------------------ its processes

    def open(
        self,
        driver: Driver,
        drivers: Drivers,
        seeds: Sequence[int],
        *,
        last_first: bool = False,
        forward: Callable[[wire.Reported | wire.Warned], None] | None = None,
    ) -> Steps[list[wire.Called]]:
        """Have the test at its call in a driver's workers, and return what each was given."""
        reports = self.reporter is None
        self._open[id(driver)] = driver, drivers
        driver.is_taken, driver.show = True, self.show
        if reports:
            self.reporter, driver.forward = driver, forward or self.forward
        order = wire.Open(
            key=self.key,
            next_key=self.next_key,
            seeds=list(seeds),
            last_first=last_first,
            setup_s=self.settings.setup_time_s,
            patience_s=self.patience_s,
            reports=reports,
        )
        called = yield from self.ask(driver, order, self.settings.setup_time_s)
        if self.lanes.pair_bytes is None:
            self.lanes.fit(driver.memory_bytes(), free_bytes())
        if reports:
            self.called = called[-1]
        return called

    def ask(self, driver: Driver, order: wire.Order[T], limit_s: float | None = None) -> Steps[T]:
        """Give an order to a driver that has the test open, and return the answer; StoppedError without any."""
        try:
            answer = yield from ask(driver, order, 2 * (self.patience_s if limit_s is None else limit_s))
        except StoppedError as stopped:
            is_lost = isinstance(stopped, DriverLostError) or (stopped.stop.is_reporter and stopped.stop.done is None)
            self.is_reporter_lost |= is_lost and driver is self.reporter
            raise
        if isinstance(order, wire.CheckAll | wire.MeasureAlone):
            self.measures = self.measures or driver
        return answer

    def leave(self, driver: Driver) -> Steps[None]:
        """Let a driver's workers leave the test, in which they have done their part."""
        yield from self.ask(driver, wire.LeaveAll(), self.settings.setup_time_s)
        self._give_back(driver)

    def forget_reporter(self) -> None:
        """Have the next driver that opens the test report it."""
        self.reporter = self.called = None
        self.is_reporter_lost = False

    def conclude(self, leave: wire.Leave) -> Steps[wire.Done | None]:
        """Let every worker leave the test, the reporter last and with its result."""
        self.abandon(but_reporter=True)
        assert self.reporter is not None
        done = yield from self.ask(self.reporter, wire.LeaveAll(leave), self.settings.setup_time_s)
        self._give_back(self.reporter)
        return done

    def abandon(self, *, but_reporter: bool = False) -> None:
        """Have drivers leave the test without waiting for them."""
        for driver, _ in [*self._open.values()]:
            if not (but_reporter and driver is self.reporter):
                self.let_go(driver)

    def let_go(self, driver: Driver) -> None:
        """Have a driver leave the test without waiting for it."""
        if id(driver) in self._open:
            if driver.alive:
                try:
                    driver.give(wire.LeaveAll())
                except DriverLostError:
                    driver.is_worn = True
            self._give_back(driver)

    def close(self) -> None:
        """Give back all that the test has."""
        self.abandon()
        for held in self._held:
            held.release()
        self._held.clear()

    def _give_back(self, driver: Driver) -> None:
        self.measures = None if self.measures is driver else self.measures
        _, drivers = self._open.pop(id(driver), (None, None))
        if drivers is not None:
            drivers.give_back(driver)
