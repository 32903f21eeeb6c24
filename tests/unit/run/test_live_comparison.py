"""Live comparisons of one test, whose processes and figures are made up."""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import builders
import msgspec
import pytest
from fake_drivers import (
    CALLED,
    WARM,
    FakeDriver,
    all_of,
    carried_out,
    checked,
    collected,
    fake_processes,
    open_test,
    usual,
)
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError
from pytest_rlperf.judge.findings import first_call, growth
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Policy, Remedy, RemedyKind, Status, Verdict
from pytest_rlperf.model.live import Live, OtherWork
from pytest_rlperf.model.measured import Count, Phase, Result, SliceKind, SliceRecord, Tally
from pytest_rlperf.model.phases import Block
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.run.budget import Budget
from pytest_rlperf.run.compare import LiveComparison
from pytest_rlperf.run.drivers import PAIR_NAMES
from pytest_rlperf.run.endpoints import DriverLostError, RetryFreshError, StoppedError
from pytest_rlperf.run.schedule import Held, Lanes, Steps
from pytest_rlperf.run.test import OpenTest, UnpairedError
from pytest_rlperf.spawn.variables import library_variables

HEAD = builders.project(Path("/t")).side("HEAD", sys.executable, (), (Path("/head"),))
SIDES = Sides(replace(HEAD, label="commit 1", homes=(Path("/base"),)), HEAD, (), ("a.py",), ())
OTHER_WORK = OtherWork("python", 47, 0.5, 0.25, 0.0)


class Compared:
    """A test that is compared, whose pairs find log-ratios by their numbers.

    ``answer`` may answer an order to a driver before anyone else does.
    """

    def __init__(self, scratch: Path, patch: pytest.MonkeyPatch, lanes: Lanes | None = None) -> None:
        self.processes, self.known = fake_processes(scratch, patch)
        self.known.answer = self._answer
        self.lanes = lanes or Lanes(1, ())
        self.find: Callable[[int], float] = lambda number: 0.0
        self.answer: Callable[[FakeDriver, wire.Order[Any]], object] = lambda driver, order: None
        self.test: OpenTest = open_test(self.lanes)
        self.pairs = self.processes.drivers(SIDES, *PAIR_NAMES)
        self._taken = 0

    def _answer(self, driver: FakeDriver, order: wire.Order[Any]) -> object:
        found = self.answer(driver, order)
        if found is None and isinstance(order, wire.TakePair):
            self._taken += 1
            return wire.Taken(builders.pair(self.find(self._taken - 1), other_work=OTHER_WORK), [], [None, None])
        return usual(driver, order) if found is None else found

    def compare(self, *others: Steps[Any]) -> tuple[Result, Live, Verdict]:
        """Return the comparison, beside other jobs."""
        found: tuple[Result, Live, Verdict]
        found, *_ = carried_out(self.processes, all_of(self.steps(), *others), self.lanes)
        return found

    def steps(self) -> Steps[tuple[Result, Live, Verdict]]:
        found = yield from LiveComparison(self.test, self.pairs).compare()
        return found.head, found.live, found.verdict

    @property
    def drivers(self) -> list[FakeDriver]:
        return self.known.drivers

    def end(self) -> None:
        """End the test; all drivers have left it then."""
        self.test.close()
        assert not any(driver.is_taken for driver in self.drivers)
        assert all(isinstance(driver.orders[-1], wire.LeaveAll) for driver in self.drivers if driver.orders)
        assert self.lanes.free == self.lanes.count


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compared:
    return Compared(tmp_path, monkeypatch)


@pytest.mark.parametrize("fresh", [False, True])
def test_sides_begin_in_turn(compared: Compared, fresh: bool) -> None:
    """Head is first in every other pair; all have one seed, and head of the first pair reports the test."""
    compared.test.fresh = fresh
    compared.compare()
    assert [driver.forks for driver in compared.drivers] == [not fresh] * 3
    opened = [order for driver in compared.drivers for order in driver.orders if isinstance(order, wire.Open)]
    assert [order.last_first for order in opened] == [True, False, True]
    assert [order.seeds for order in opened] == [[1000, 1000]] * 3
    assert [order.reports for order in opened] == [True, False, False]
    assert compared.test.reporter is compared.drivers[0]
    assert compared.test.called == CALLED


def test_the_first_pair_shows_what_the_others_need(compared: Compared) -> None:
    """It sizes their slices; the others leave the test once they are measured, and it stays until the test is over."""
    compared.compare()
    steps = [[type(order) for order in driver.orders] for driver in compared.drivers]
    measured = [wire.Open, wire.CheckAll, wire.WarmAll, wire.TakePair]
    assert steps[0] == [*measured[:2], wire.CountAll, *measured[2:], wire.EndIdle]
    assert steps[1:] == [[*measured, wire.LeaveAll]] * 2
    shapes = [order.shape for driver in compared.drivers for order in driver.orders if isinstance(order, wire.WarmAll)]
    assert shapes[0] is None
    assert None not in shapes[1:]
    assert [driver.is_taken for driver in compared.drivers] == [True, False, False]
    compared.end()


@pytest.mark.parametrize(
    ("first", "later", "is_placed"),
    [(True, None, True), (False, None, False), (None, None, False), (True, False, False), (True, True, True)],
)
def test_a_pair_too_short_to_show_its_threads_has_those_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool | None, later: bool | None, is_placed: bool
) -> None:
    """As many calls take a pair no time that took the first one long on a busy machine; one thread keeps its CPU."""
    compared = Compared(tmp_path, monkeypatch, Lanes(1, (0,)))

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        single = first if driver is compared.drivers[0] else later
        return wire.Warmed(WARM, replace(WARM, single=single)) if isinstance(order, wire.WarmAll) else None

    compared.answer = answer
    compared.compare()
    cpus = [order.cpu for driver in compared.drivers for order in driver.orders if isinstance(order, wire.TakePair)]
    assert cpus[1:] == [0 if is_placed else None] * 2


def test_a_second_pair_counts_what_differs(compared: Compared) -> None:
    """Head is first in the first pair, and base in the second."""
    one, two = (Tally(((Count("", "syncs", value),),) * 2, ()) for value in (1, 2))
    compared.answer = lambda driver, order: [one, two] if isinstance(order, wire.CountAll) else None
    result, live, _ = compared.compare()
    counting = [[order for order in driver.orders if isinstance(order, wire.CountAll)] for driver in compared.drivers]
    assert [[order.instruments for order in each] for each in counting[:2]] == [[[]], [["syncs"]]]
    assert result.counting is not None
    assert live.base.counting is not None
    assert result.counting.phases == live.base.counting.phases


def test_the_last_pair_that_counts_has_another_seed(compared: Compared) -> None:
    """So a count that depends on the seed is not exact."""
    base, head = (Tally(((Count("", "syncs", value),),) * 2, ()) for value in (1, 2))

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        opened = next(each for each in driver.orders if isinstance(each, wire.Open))
        return [head, base][:: 1 if opened.last_first else -1] if isinstance(order, wire.CountAll) else None

    compared.answer = answer
    compared.compare()
    counting = [order for driver in compared.drivers for order in driver.orders if isinstance(order, wire.CountAll)]
    assert len(counting) == 3
    opened = [order for driver in compared.drivers for order in driver.orders if isinstance(order, wire.Open)]
    assert [order.seeds[0] for order in opened] == [1000, 1000, 1001]


@pytest.mark.parametrize(
    ("log_ratio", "status", "servers"),
    [
        (0.0, Status.SAME, [0, 0, 0]),
        (0.2, Status.SLOWER, [0, 0, 0, 1]),
        (0.0297, Status.SLOWER, [0, 0, 0, 1]),  # just over 3 %
        (-0.2, Status.FASTER, [0, 0, 0, 1]),
    ],
)
def test_a_change_is_confirmed_by_pairs_of_a_second_server(
    compared: Compared, log_ratio: float, status: Status, servers: list[int]
) -> None:
    """The first pair that may confirm comes from it if those before look changed: these have a server in common."""
    compared.find = lambda number: log_ratio
    _, live, verdict = compared.compare()
    assert verdict.status is status
    assert {pair.other_work for pair in live.pairs} == {None}, "only an UNDECIDED is of interest"
    assert [driver.preloaded for driver in compared.drivers] == [pair.loader for pair in live.pairs] == servers


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("number", [0, 2])
def test_a_worker_with_code_of_the_other_side_ends_the_comparison(compared: Compared, side: int, number: int) -> None:
    """Whichever pair it is of; all workers leave the test."""
    found = [checked(), checked()]
    found[side] = checked(loaded={"own": ("/head", "/base")[side] + "/own.py"})

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        return found if isinstance(order, wire.CheckAll) and compared.drivers.index(driver) == number else None

    compared.answer = answer
    with pytest.raises(SideError, match=f"{('commit 1', 'HEAD')[side]} has read a file of"):
        compared.compare()
    compared.end()


def test_pairs_that_decide_nothing_keep_what_else_worked(compared: Compared) -> None:
    """The verdict has its mean, and what helps."""
    compared.find = lambda number: 0.2 * (-1) ** number
    _, live, verdict = compared.compare()
    assert isinstance(verdict.reason, reasons.PairsUndecided)
    assert {pair.other_work for pair in live.pairs} == {verdict.reason.other_work} == {OTHER_WORK}
    assert verdict.remedy == Remedy(RemedyKind.QUIET)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_test_that_sets_variables_of_libraries_is_doubtful(compared: Compared, fresh: bool) -> None:
    """A forked process has read them before; a new interpreter has not."""
    changed = [checked(), checked(variables={**library_variables(), "OMP_NUM_THREADS": "none"})]
    compared.answer = lambda driver, order: changed if isinstance(order, wire.CheckAll) else None
    compared.test.fresh = fresh
    if fresh:
        assert compared.compare()[2].status is Status.SAME
    else:
        with pytest.raises(RetryFreshError, match="OMP_NUM_THREADS"):
            compared.compare()
    compared.end()


@pytest.mark.parametrize("changes", [{"component": "sac_update"}, {"unit": "step"}, {"items": 2.0}])
def test_calls_that_are_other_work_are_not_paired(compared: Compared, changes: dict[str, Any]) -> None:
    """By the component, the unit, or how many of these."""
    both = [CALLED, msgspec.structs.replace(CALLED, **changes)]
    compared.answer = lambda driver, order: both if isinstance(order, wire.Open) else None
    with pytest.raises(UnpairedError) as caught:
        compared.compare()
    assert isinstance(caught.value.reason, reasons.Incomparable)
    compared.end()


@pytest.mark.parametrize(("losses", "is_measured"), [(1, True), (2, True), (3, False)])
@pytest.mark.parametrize("kind", [wire.Open, wire.WarmAll, wire.TakePair])
def test_another_driver_takes_a_lost_ones_pair(
    compared: Compared, kind: type[wire.Order[Any]], losses: int, is_measured: bool
) -> None:
    """By no fault of the test; but not for ever."""
    lost: list[FakeDriver] = []

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> None:
        if isinstance(order, kind) and driver is not compared.drivers[0] and len(lost) < losses:
            lost.append(driver)
            driver.die()

    compared.answer = answer
    with contextlib.nullcontext() if is_measured else pytest.raises(DriverLostError):
        assert len(compared.compare()[1].pairs) == 3
    assert len(compared.drivers) == (3 + losses if is_measured else 1 + losses)
    assert {*map(id, lost)} == {id(driver) for driver in compared.drivers if not driver.alive}


@pytest.mark.parametrize("fresh", [False, True])
def test_no_other_test_has_a_driver_whose_worker_is_lost_as_it_leaves(compared: Compared, fresh: bool) -> None:
    """Where workers are new interpreters, it has no other one for the next test."""
    compared.test.fresh = fresh

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        is_leaving = isinstance(order, wire.LeaveAll) and driver is not compared.drivers[0]
        return wire.Stopped(order.number, wire.Stop("head worker 1", "it died")) if is_leaving else None

    compared.answer = answer
    with pytest.raises(StoppedError, match="it died"):
        compared.compare()
    compared.end()
    assert [driver.is_worn for driver in compared.drivers] == [False, True]


def test_a_pair_that_waits_is_broken_off(compared: Compared) -> None:
    """Where another one of its test has an error: it leaves its place to other tests."""

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.CheckAll) and len(compared.drivers) == 2:
            return [checked(), checked(loaded={"own": "/base/own.py"})]
        return None

    def other_test() -> Steps[int]:
        with contextlib.suppress(SideError):
            yield from compared.steps()
        compared.test.close()
        held: Held = yield compared.test.lane(9)
        with held:
            return len(compared.drivers)

    compared.answer = answer
    compared.test.policy = Policy(pairs=(4, 10))
    assert carried_out(compared.processes, other_test(), compared.lanes) == 2
    compared.end()


@pytest.mark.parametrize(
    ("ratios", "status", "pairs"),
    [
        ([0.5] * 4, Status.SLOWER, 4),
        ([0.5, 0.5, 0.5, 0.0, 0.5], Status.UNDECIDED, 4),
        ([0.5, -0.1, 0.9], Status.UNDECIDED, 2),
    ],
)
def test_pairs_that_agree_beyond_doubt_are_not_cut_short(
    compared: Compared, ratios: list[float], status: Status, pairs: int
) -> None:
    """Where the time is up after two of them, there are as many more as any verdict takes."""

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if not isinstance(order, wire.TakePair):
            return None
        return wire.Taken(builders.pair(next(found), seconds=30.0, other_work=OTHER_WORK), [], [None, None])

    found, compared.answer = iter(ratios), answer
    _, live, verdict = compared.compare()
    assert (verdict.status, len(live.pairs)) == (status, pairs)
    assert verdict.was_cut_short is (status is Status.UNDECIDED)
    compared.end()


@pytest.mark.parametrize(("spare_s", "pairs"), [(0.0, 2), (29.0, 2), (31.0, 10)])
def test_what_is_undecided_goes_on_while_the_run_has_time_to_spare(
    compared: Compared, spare_s: float, pairs: int
) -> None:
    """It has as many pairs as without any limit of its own."""

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if not isinstance(order, wire.TakePair):
            return None
        return wire.Taken(builders.pair(next(found), seconds=30.0, other_work=OTHER_WORK), [], [None, None])

    found, compared.answer = iter([0.06, 0.0] * 5), answer
    compared.test.budget = cast("Budget", SimpleNamespace(spare_s=lambda: spare_s))
    _, live, verdict = compared.compare()
    assert (verdict.status, len(live.pairs)) == (Status.UNDECIDED, pairs)
    assert verdict.was_cut_short is (spare_s < 30.0)
    compared.end()


@pytest.mark.parametrize(
    ("spare_s", "most", "spread", "status", "is_more"),
    [
        (0.0, 10, 0.028, Status.UNDECIDED, False),
        (1e4, 10, 0.028, Status.SAME, True),
        (1e4, 9, 0.028, Status.UNDECIDED, False),
        (1e4, 10, 0.1, Status.UNDECIDED, False),
    ],
    ids=["no time", "time", "other limits", "hopeless"],
)
def test_more_than_the_most_pairs_are_taken_if_they_may_well_decide(
    compared: Compared, spare_s: float, most: int, spread: float, status: Status, is_more: bool
) -> None:
    """But only in time that the run has to spare, and not if the user has set how many pairs there are."""

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if not isinstance(order, wire.TakePair):
            return None
        return wire.Taken(builders.pair(generator.gauss(0.0, spread), seconds=1.0), [], [None, None])

    generator = random.Random(1)
    compared.answer = answer
    compared.test.policy = Policy(pairs=(3, most))
    compared.test.budget = cast("Budget", SimpleNamespace(spare_s=lambda: spare_s))
    _, live, verdict = compared.compare()
    assert verdict.status is status
    assert (10 < len(live.pairs) <= 40) is is_more
    compared.end()


@pytest.mark.parametrize("lanes", [2, 4])
def test_a_verdict_needs_no_more_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    """Those that are on their way leave the test, whatever they are at, and give their lanes back."""
    compared = Compared(tmp_path, monkeypatch, Lanes(lanes, tuple(range(lanes))))
    compared.find = lambda number: 0.2
    _, live, verdict = compared.compare()
    assert verdict.status is Status.SLOWER
    assert len(live.pairs) >= 3
    compared.end()


@pytest.mark.parametrize(
    ("known", "single", "free"),
    [
        pytest.param(None, True, [0, 0, 0, 0, 1], id="what one thread does gives back what it does not need"),
        pytest.param(None, False, [0] * 5, id="threads that nobody has seen before"),
        pytest.param(True, False, [0] * 5, id="threads"),
        pytest.param(False, True, [1] * 5, id="one thread"),
        pytest.param(False, False, [1] * 4 + [0], id="one thread while it was observed"),
    ],
)
def test_what_needs_the_machine_has_it_from_its_set_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool | None, single: bool, free: list[int]
) -> None:
    """Also where that is not known yet: its processes would begin, count and warm up beside another test's pair."""
    compared = Compared(tmp_path, monkeypatch, Lanes(2, (0, 1)))
    compared.test.needs_machine = known
    warm, found = replace(WARM, single=single), list[int]()

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if driver is compared.drivers[0] and not isinstance(order, wire.EndIdle):
            found.append(compared.lanes.free)
        return wire.Warmed(warm, warm) if isinstance(order, wire.WarmAll) else None

    compared.answer = answer
    compared.compare()
    assert found == free
    assert compared.test.needs_machine is not single
    assert compared.lanes.free == 2


@pytest.mark.parametrize("known", [None, False])
def test_pairs_too_brief_to_see_one_thread_trust_observers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool | None
) -> None:
    """One CPU runs both sides of each; where nobody has seen one thread, the kernel places the work."""
    compared = Compared(tmp_path, monkeypatch, Lanes(2, (4, 7)))
    compared.test.needs_machine = known
    warm = replace(WARM, single=None)
    compared.answer = lambda driver, order: wire.Warmed(warm, warm) if isinstance(order, wire.WarmAll) else None
    compared.compare()
    taken = [order for driver in compared.drivers for order in driver.orders if isinstance(order, wire.TakePair)]
    assert {order.cpu is not None for order in taken} == {known is False}


@pytest.mark.parametrize("needs_machine", [False, True])
def test_what_follows_the_pairs_runs_in_its_own_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_machine: bool
) -> None:
    """Its workers go to that lane's CPU: on the one that they were measured on, another pair measures by now."""
    compared = Compared(tmp_path, monkeypatch, Lanes(2, (4, 7)))
    monkeypatch.setattr(growth, "hints", lambda live: True)
    monkeypatch.setattr(growth, "find", lambda live, policy: SimpleNamespace(figures={"private_bytes": 1.0}))
    warm = replace(WARM, single=not needs_machine)
    free: list[int] = []

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.GoOn | wire.Relay):
            free.append(compared.lanes.free)
            return []
        return wire.Warmed(warm, warm) if isinstance(order, wire.WarmAll) else None

    compared.answer = answer
    compared.compare()
    orders = compared.drivers[0].orders
    kinds = [type(order) for order in orders]
    after = kinds[kinds.index(wire.EndIdle) + 1 :]
    assert after == [wire.MoveAll, wire.GoOn, wire.MoveAll, wire.Relay, wire.Relay]
    assert {order.cpu for order in orders if isinstance(order, wire.MoveAll)} <= {4, 7}
    assert free == [not needs_machine] * 3
    assert compared.lanes.free == 2


@pytest.mark.parametrize(
    ("sizes", "places"),
    [([900.0, 50.0], ("env.py:1 (850B a call)",)), ([50.0] * 20, ("env.py (950B a call)",)), ([], ())],
)
def test_memory_that_many_lines_keep_has_their_file(
    compared: Compared, monkeypatch: pytest.MonkeyPatch, sizes: list[float], places: tuple[str, ...]
) -> None:
    """A line that keeps a tenth of it is named by itself; the base keeps 50 bytes by the first line."""
    monkeypatch.setattr(growth, "hints", lambda live: False)
    monkeypatch.setattr(growth, "find", lambda live, policy: SimpleNamespace(figures={"private_bytes": 1_000.0}))
    head = [wire.Allocation("env.py", line, f"line {line}", size) for line, size in enumerate(sizes, 1)]
    kept = {True: [wire.Allocation("env.py", 1, "line 1", 50.0)], False: head}

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        return kept[order.to_base] if isinstance(order, wire.Relay) else None

    compared.answer = answer
    assert compared.compare()[1].places == places
    compared.end()


@pytest.mark.parametrize("pairs", [(3, 10), (20, 30)])
@pytest.mark.parametrize(("lanes", "pairs_most"), [(2, 4), (64, 4), (64, 16)])
def test_few_pairs_of_a_test_begin_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int, pairs_most: int, pairs: tuple[int, int]
) -> None:
    """However many lanes there are; in all no more than there may be, and one that confirms."""
    compared = Compared(tmp_path, monkeypatch, Lanes(lanes, tuple(range(lanes)), pairs_most))
    compared.find, compared.test.policy = lambda number: 0.2 * (-1) ** number, Policy(pairs=pairs)
    at_once: list[int] = []

    def note(driver: FakeDriver, order: wire.Order[Any]) -> None:
        last = [each.orders[-1] for each in compared.drivers[1:] if each.orders]  # the first pair stays until the end
        at_once.append(sum(isinstance(each, wire.WarmAll | wire.TakePair) for each in last))

    compared.answer = note
    _, live, _ = compared.compare()
    assert max(at_once) <= min(lanes, pairs_most)
    assert pairs[0] <= len(live.pairs) <= pairs[1] + 1


@pytest.mark.parametrize(("head_s", "pairs"), [(0.1, 0), (5.0, first_call.START_UPS), (0.5, 1)])
def test_slow_first_calls_are_looked_at_in_new_interpreters(compared: Compared, head_s: float, pairs: int) -> None:
    """As many as have to agree, each of new processes; the first that is not slow is enough."""
    slow, fast = checked(first_call_s=head_s), checked()

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.TakePair):
            return wire.Taken(builders.pair(0.0, first_call_s=(0.1, head_s)), [], [None, None])
        return [fast, slow] if isinstance(order, wire.CheckAll) else None

    compared.answer = answer
    _, live, _ = compared.compare()
    assert [start.first_call_s for start in live.start_ups] == [(0.1, head_s)] * pairs
    fresh = [driver for driver in compared.drivers if not driver.forks]
    assert len(fresh) == pairs
    assert all(driver.is_ended for driver in fresh)
    compared.end()


def test_the_other_calls_of_a_check_do_not_make_a_start_slow(compared: Compared) -> None:
    """A check takes up to a hundred steps of an env, each of which may take longer."""
    pair = builders.pair(0.0, first_call_s=(0.1, 5.0))
    steps = checked(first_call_s=0.2 + 99 * pair.head.wall.call_s, calls=100)

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.TakePair):
            return wire.Taken(pair, [], [None, None])
        return [checked(), steps] if isinstance(order, wire.CheckAll) else None

    compared.answer = answer
    (start,) = compared.compare()[1].start_ups
    assert start.first_call_s == pytest.approx((0.1, 0.2))
    compared.end()


def test_no_first_call_is_looked_at_where_each_call_is_one(compared: Compared) -> None:
    """An import in a new interpreter is measured as a first call already."""
    slow = checked(first_call_s=5.0)

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.Open):
            return [msgspec.structs.replace(CALLED, anew=True)] * 2
        if isinstance(order, wire.TakePair):
            return wire.Taken(builders.pair(0.0, first_call_s=(0.1, 5.0)), [], [None, None])
        return [checked(), slow] if isinstance(order, wire.CheckAll) else None

    compared.answer = answer
    assert compared.compare()[1].start_ups == ()
    compared.end()


def test_a_slowdown_has_phases_where_calls_are_so_long_that_pairs_have_few(compared: Compared) -> None:
    """The first pair is traced again, for as many blocks as it takes to name a phase."""
    base = SliceRecord(SliceKind.TRACED, 1.0, 1.0, 1, 1.0, 1.0, 1.0, 0, 0, 0, (Phase("import", 1.0, 1.0, 1.0),))
    new = (Phase("import", 1.0, 1.5, 1.0), Phase("import/new", 1.0, 0.5, 0.5))
    block = Block(base, replace(base, call_s=1.5, rounds_s=1.5, phases=new))
    asked: list[int] = []

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        if isinstance(order, wire.TakePair):
            return wire.Taken(builders.pair(math.log(1.5)), [], [None, None])
        if isinstance(order, wire.TraceMore):
            asked.append(order.blocks)
            return [block] * order.blocks
        return None

    compared.answer = answer
    _, live, _ = compared.compare()
    assert asked == [3]
    assert [part.path for part in live.carriers] == ["import/new"]
    compared.end()


def test_what_importing_the_tests_took_is_the_first_tests(compared: Compared) -> None:
    """It is the same for all tests of a run."""
    compared.known.collected = lambda start: msgspec.structs.replace(collected(start), import_s=1.0 + start.own.is_base)
    assert [pair.import_s for pair in compared.compare()[1].pairs] == [(2.0, 1.0)] * 3
    compared.end()
    compared.test.order = 1
    assert {pair.import_s for pair in compared.compare()[1].pairs} == {(0.0, 0.0)}
