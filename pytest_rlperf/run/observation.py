"""The check whether a test's two sides can differ at all: unmeasured processes run it, and say what they did."""

from __future__ import annotations

from pytest_rlperf import wire
from pytest_rlperf.model import reasons
from pytest_rlperf.model.reach import Footprint, Kind
from pytest_rlperf.reach.reads import Reads, check_loaded, compare_reads
from pytest_rlperf.reach.touch import Reached
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.endpoints import PairDriver, RetryFreshError, StoppedError
from pytest_rlperf.run.schedule import Lane, Steps, if_broken_off
from pytest_rlperf.run.test import OTHER_SEED, SEED, Observation, OpenTest, UnpairedError

ROUNDS = 2  # of processes at most
_LONGEST_S, _BRIEF_S = 2.0, 0.1  # of one side's calls; the second if the test has to be measured anyway


def observe(test: OpenTest, drivers: Drivers) -> Steps[Observation]:
    """Return what is known of a test without measuring it.

    It need not be measured if both trees are equal, or if no process of either side has run or read anything that
    differs. The last of the head's processes then reports the test, if it can. A test that fails here fails again when
    it is reported. UnpairedError if measuring it would compare nothing. SideError if a side has read the other side's
    file.
    """
    if drivers.is_same_code:
        return Observation(reasons.SameCode(drivers.sides.base.label))
    if drivers.sides.changed is None:
        return Observation()
    test.show("observing what it runs")
    found = yield from _observed(test, drivers, test.lane())
    if found.is_doubtful and test.lanes.count > 1:
        found = yield from _observed(test, drivers, test.lane(whole=True))
    return found


def _observed(test: OpenTest, drivers: Drivers, lane: Lane) -> Steps[Observation]:
    """Return what the rounds of a test's observers show; they run in a lane."""
    held = yield from lane
    with held:
        was_forked = not drivers.fresh
        driver = yield from drivers.lease_observers()
        if was_forked and drivers.fresh and not test.fresh:  # its processes can no longer be forked
            driver.give_back()
            raise RetryFreshError(drivers.fresh)
        looks, found = _Looks(test, drivers, driver), None
        with if_broken_off(_let_go, test, driver):
            for number in range(ROUNDS):
                if number:
                    yield from _leave(test, driver)
                found = yield from looks.round(number)
                if found is None or looks.is_settled:
                    break
            if found is not None and found.reason is not None and driver.forks:
                test.reports += looks.reports  # no other process needs to run the test: this one reports it
                driver.reports = test.reports
            else:
                yield from _leave(test, driver)
            return found or Observation()


class _Looks:
    """The rounds of one test's observers, and everything that they have shown."""

    def __init__(self, test: OpenTest, drivers: Drivers, driver: PairDriver) -> None:
        self.reports: list[wire.Reported | wire.Warned] = []
        self.is_uneven = False
        self._test, self._drivers, self._driver = test, drivers, driver
        self._read, self._reached = Reads(), Reached()
        self._is_opened, self._unwatched = False, ""
        self._is_many: bool | None = None
        # Both sides' footprints of each round, after the first call and after all calls.
        self._after_first: list[tuple[Footprint, Footprint]] = []
        self._after_all: list[tuple[Footprint, Footprint]] = []

    def round(self, number: int) -> Steps[Observation | None]:
        """Observe the test in new processes of both sides; return what is known then, or None if a process was lost.

        Each side has both seeds in turn. So one round shows whether the code that a test runs depends on its seed. If
        it does, in the second round each side has the seed that the other side had.
        """
        test, driver, sides = self._test, self._driver, self._drivers.sides
        self.reports.clear()
        seeds = [SEED, OTHER_SEED]
        try:
            yield from test.open(driver, seeds[:: -1 if number else 1], reports=self.reports)
            checked = yield from test.ask(driver, wire.CheckAll())
            base, head = driver.loaded(checked)
            check_loaded(sides, base, head, driver.collected[-1].loaded)
            self._drivers.learn(*checked)
            for is_first in (True, False):
                order = wire.ObserveAll(0.0) if is_first else self._order()
                footprints = yield from test.ask(driver, order)
                self._add(*footprints, is_first=is_first)
        except StoppedError:
            return None
        self._refuse_unbuilt()
        untouched = self._reached.nothing and not self.is_uneven
        return Observation(
            self._reason(), self._reached, tuple(checked), untouched, self._is_doubtful, self._unwatched, self._is_many
        )

    def _order(self) -> wire.ObserveAll:
        """Return the order for the calls after the first one, which mostly settles what a test does.

        If no part of the change is known to run, objects or a later call may show that one does. This look takes
        longer, and matters if the test would be spared, or has read nothing that differs.
        """
        spares = self._test.settings.reach or not self._read.differing
        if not self._reached.nothing or not spares:
            return wire.ObserveAll(_BRIEF_S)
        change = self._drivers.change
        is_loaded = bool(self._read.differing) and not change.is_empty
        return wire.ObserveAll(_LONGEST_S, is_loaded, change.called_as if is_loaded else [])

    def _add(self, base: Footprint, head: Footprint, *, is_first: bool) -> None:
        """Add what both sides have run and read by now; ``is_first`` if both have made one call."""
        sides, change = self._drivers.sides, self._drivers.change
        read = compare_reads(sides, (*base.files, *base.opened), (*head.files, *head.opened))
        self._is_opened |= bool(base.opened or head.opened)
        many = base.many, head.many
        self._is_many = True if self._is_many or True in many else None if None in many else False
        self._unwatched = self._unwatched or base.unwatched or head.unwatched
        self._read |= read
        if self._read.missing:
            raise UnpairedError(reasons.NotCopied(min(self._read.missing)))
        self._reached |= change.reached(read, base, head)
        # Later on, sides have made different numbers of calls. But a later call may be what misses a file of one side.
        if is_first or change.moves_files:
            (self._after_first if is_first else self._after_all).append((base, head))
            # It decides only what reaches nothing. If nothing that could run differs, a difference is chance.
            decides = self._reached.nothing and not change.is_empty
            first, later = ([*zip(*looks, strict=True)] for looks in (self._after_first, self._after_all))
            self.is_uneven = decides and (change.is_uneven(*first) or (bool(later) and change.is_always_uneven(*later)))

    def _refuse_unbuilt(self) -> None:
        """Raise UnpairedError if a file that both sides load may be compiled from unread files that differ."""
        read = self._read
        unread = [source for source in self._drivers.sides.sources if source not in read.files]
        if read.compiled and unread:
            raise UnpairedError(reasons.NotBuilt(min(read.compiled), unread[0]))

    @property
    def is_settled(self) -> bool:
        """Whether another round would show nothing useful."""
        return not self._reached.nothing or not self.is_uneven

    @property
    def _is_doubtful(self) -> bool:
        """Whether the test may be touched only by files that another test's processes have opened."""
        reached = self._reached
        has_read = reached.known and not reached.may and {part.kind for part in reached.executes} == {Kind.FILE}
        return self._is_opened and has_read

    def _reason(self) -> reasons.SameCode | reasons.Unreached | None:
        sides, read = self._drivers.sides, self._read
        if not self._reached.nothing:
            return None
        if not read.differing and not (self.is_uneven and self._drivers.change.moves_files):
            return reasons.SameCode(sides.base.label, len(read.files), len(read.files - sides.tests))
        spares = self._test.settings.reach and not self.is_uneven
        return reasons.Unreached(sides.base.label, len(self._drivers.change.functions)) if spares else None


def _leave(test: OpenTest, driver: PairDriver) -> Steps[None]:
    """Let the observers leave the test; another process reports it."""
    try:
        yield from test.leave(driver)
    except StoppedError:
        test.let_go(driver)
    test.forget_reporter()


def _let_go(test: OpenTest, driver: PairDriver) -> None:
    test.let_go(driver)
    test.forget_reporter()
