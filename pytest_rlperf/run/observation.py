"""Whether a test's two sides can differ at all: processes that are not measured run it, and say what they have read."""

from __future__ import annotations

from pytest_rlperf import wire
from pytest_rlperf.model import reasons
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.endpoints import Driver
from pytest_rlperf.run.live import UnpairedError
from pytest_rlperf.run.on_test import OnTest, seed_of
from pytest_rlperf.run.schedule import Held, Steps
from pytest_rlperf.run.stopped import RetryFreshError, StoppedError
from pytest_rlperf.sides.reads import Reads, check_loaded, compare_reads

ROUNDS = 3  # of processes with seeds of their own: what a test reads may differ from one to the next
_LONGEST_S = 2.0  # of one side's calls


def same_code(test: OnTest, drivers: Drivers) -> Steps[reasons.SameCode | None]:
    """Return the reason why a test need not be measured, None where it must be.

    It need not where no file differs, or none that any process of either side has read; the last of head's processes
    then reports the test, where it can. A test that fails here fails again where it is reported. UnpairedError where
    measuring it would compare nothing, SideError where a side has read another one's file.
    """
    base = drivers.sides.base.label
    if drivers.is_same_code:
        return reasons.SameCode(base)
    if drivers.sides.changed is None:
        return None
    test.show("looking what it reads")
    held: Held = yield test.lane()
    with held:
        was_forked = not drivers.fresh
        driver = yield from drivers.lease(observes=True)
        if was_forked and drivers.fresh and not test.fresh:  # what was to be forked no longer is
            drivers.give_back(driver)
            raise RetryFreshError(drivers.fresh)
        return (yield from _observed(test, drivers, driver))


def _observed(test: OnTest, drivers: Drivers, driver: Driver) -> Steps[reasons.SameCode | None]:
    read, reports = Reads(), list[wire.Reported | wire.Warned]()
    try:
        for number in range(ROUNDS):
            if number:
                yield from _leave(test, driver)
            reports.clear()
            found = yield from _round(test, drivers, driver, seed_of(2 * number), reports)
            if found is None:
                break
            read |= found
            _refuse(read)
            if read.differing:
                break
        else:
            if driver.forks:  # no other process needs to run the test: this one reports it
                driver.forward = test.forward
                for message in reports:
                    test.forward(message)
            else:
                yield from _leave(test, driver)
            return reasons.SameCode(drivers.sides.base.label, len(read.files), len(read.files - drivers.sides.tests))
    except BaseException:
        test.let_go(driver)
        test.forget_reporter()
        raise
    yield from _leave(test, driver)
    return None


def _round(
    test: OnTest, drivers: Drivers, driver: Driver, seed: int, reports: list[wire.Reported | wire.Warned]
) -> Steps[Reads | None]:
    """Return what processes of both sides read in the test; None where that is not known."""
    sides = drivers.sides
    try:
        yield from test.open(driver, drivers, [seed] * 2, forward=reports.append)
        checked: list[wire.Checked] = yield from test.ask(driver, wire.CheckAll())
        base, head = driver.loaded(checked)
        check_loaded(sides, base, head)
        drivers.learn(*checked)
        test.first_calls_s = checked[0].first_call_s, checked[1].first_call_s
        found = Reads()
        # What the first call has read mostly settles it; else calls go on until they read nothing new.
        for limit_s in (0.0, _LONGEST_S):
            seen: list[wire.Observed] = yield from test.ask(driver, wire.ObserveAll(limit_s))
            found = compare_reads(sides, *(each.files for each in seen))
            has_children = any(each.children for each in checked) or any(each.children for each in seen)
            if has_children or found.differing:
                break
    except StoppedError:
        return None
    return None if has_children else found


def _leave(test: OnTest, driver: Driver) -> Steps[None]:
    """Let the observers leave the test, which another process is to report."""
    try:
        yield from test.leave(driver)
    except StoppedError:
        test.let_go(driver)
    test.forget_reporter()


def _refuse(read: Reads) -> None:
    """Raise UnpairedError where a file that a side needs is in no copy, or is no build of its own."""
    if read.missing:
        raise UnpairedError(reasons.NotCopied(min(read.missing)))
    if read.compiled:
        raise UnpairedError(reasons.NotBuilt(min(read.compiled)))
