"""Whether a test has to be measured, by what made-up processes of both sides read in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import builders
import msgspec
import pytest
from example import Example
from fake_drivers import FakeDriver, carried_out, checked, collected, fake_processes, on_test, usual

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError
from pytest_rlperf.model import reasons
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.run.drivers import PAIR_NAMES
from pytest_rlperf.run.live import UnpairedError
from pytest_rlperf.run.observation import ROUNDS, same_code
from pytest_rlperf.run.schedule import Lanes
from pytest_rlperf.run.stopped import RetryFreshError

REPORTED = wire.Reported("{}")
LEAVING = wire.LeftAll(None, "lost as it leaves", is_doubtful=True)


class Observed:
    """A test that is observed, whose processes read ``rounds`` of files, one after another; None stands for children.

    Trees differ in ``a.py``; others are equal, and the user's own has ``.npz`` files that no side has. Base reads the
    first of a round's files, and head the others. One of the ``lost`` side is lost at an order of a round.
    """

    def __init__(self, top: Path, patch: pytest.MonkeyPatch, *, fresh: bool = True) -> None:
        self.top = top
        for side in ("base", "head"):
            equal = dict.fromkeys(("b.py", "c.py", "d.py", "own.so"), "")
            builders.write(top / side, {"a.py": side, **equal})
        builders.write(top / "own", dict.fromkeys(("data/large.npz", "z.npz", "b.npz"), ""))
        head = builders.project(top / "own").side("HEAD", sys.executable, (), (top / "head",))
        base = replace(head, label="commit 1", homes=(top / "base",))
        self.sides = Sides(base, head, (), ("a.py",), (), top=top / "own", compiled="own.c")
        self.processes, self.known = fake_processes(top, patch)
        self.known.answer = self._answer
        self.rounds: Sequence[Sequence[str] | None] = ()
        self.lost: tuple[str, type[wire.Order] | None, int] = ("", None, 0)
        self.checked: list[wire.Checked] = [checked(), checked()]
        self.lanes = Lanes(1, ())
        self.reported: list[object] = []
        self.test = on_test(self.lanes, self.reported.append)
        self.test.fresh = fresh
        self.orders: list[wire.Order] = []

    def _answer(self, driver: FakeDriver, order: wire.Order) -> object:
        assert self.lanes.free == 0, "observing takes a CPU"
        self.orders.append(order)
        if isinstance(order, wire.Open) and order.reports:
            driver.say(REPORTED)
        number = len(self.opened) - 1
        side, kind, when = self.lost
        if kind is not None and isinstance(order, kind) and number == when:
            if kind is wire.LeaveAll:
                return replace_reporter(LEAVING, is_reporter=side == "head")
            return wire.Lost(order.number, side, "lost", side == "base", True, is_reporter=side == "head")
        match order:
            case wire.CheckAll():
                return self.checked
            case wire.ObserveAll():
                return self._seen(self.rounds[number])
        return usual(driver, order)

    def _seen(self, names: Sequence[str] | None) -> list[wire.Observed]:
        if names is None:
            return [wire.Observed([], children=False), wire.Observed([], children=True)]
        base, head = ([str(self.top / side / name) for name in names] for side in ("base", "head"))
        return [wire.Observed(base[:1], children=False), wire.Observed(head[1:], children=False)]

    @property
    def opened(self) -> list[wire.Open]:
        return [order for order in self.orders if isinstance(order, wire.Open)]

    def decide(self) -> reasons.SameCode | None:
        """Return what is decided on the test."""
        drivers = self.test.of(self.processes.drivers(self.sides, *PAIR_NAMES))
        try:
            return carried_out(self.processes, same_code(self.test, drivers), self.lanes)
        finally:
            assert self.lanes.free == 1

    def decided(self) -> reasons.SameCode | None:
        """Return what is decided; all observers have left the test, and another process is to report it."""
        try:
            return self.decide()
        finally:
            assert (self.test.reporter, self.test.called, self.reported) == (None, None, [])
            assert not any(driver.is_taken for driver in self.known.drivers)
            assert not self.orders or isinstance(self.orders[-1], wire.LeaveAll)


def replace_reporter(left: wire.LeftAll, *, is_reporter: bool) -> wire.LeftAll:
    return msgspec.structs.replace(left, is_reporter=is_reporter)


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observed:
    return Observed(tmp_path, monkeypatch)


SAME = ("b.py", "c.py")


def test_a_test_that_reads_nothing_that_differs_is_spared(observed: Observed) -> None:
    """After three rounds of processes with a seed each, both of which run it and leave it."""
    observed.rounds = [SAME, ("c.py", "d.py"), ()]
    assert observed.decided() == reasons.SameCode("commit 1", 3, 3)
    assert [type(order) for order in observed.orders] == [
        wire.Open,
        wire.CheckAll,
        wire.ObserveAll,
        wire.ObserveAll,
        wire.LeaveAll,
    ] * ROUNDS
    seeds = [order.seeds for order in observed.opened]
    assert all(base == head for base, head in seeds)
    assert len({base for base, _ in seeds}) == ROUNDS == 3


def test_a_copy_that_has_observed_a_spared_test_reports_it(observed: Observed) -> None:
    """No other process runs it: the last of head's stays at its call, with its reports, until the test is over."""
    observed.rounds = [SAME] * ROUNDS
    observed.test.fresh = False
    observed.decide()
    (driver,) = observed.known.drivers
    assert (observed.test.reporter, observed.reported) == (driver, [REPORTED])
    assert isinstance(observed.orders[-1], wire.ObserveAll)
    assert driver.is_taken
    observed.lanes.want(observed.test.lane())
    observed.lanes.grant()
    observed.test.close()
    assert isinstance(observed.orders[-1], wire.LeaveAll)
    assert not driver.is_taken


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("found", [("b.py", "a.py"), ("a.py",), None], ids=["head reads", "base reads", "children"])
def test_one_round_is_enough_to_measure_a_test(observed: Observed, number: int, found: Sequence[str] | None) -> None:
    """In which a file that was read differs, or children ran, of whose files nothing is known."""
    observed.rounds = [*[SAME] * number, found, *[SAME] * ROUNDS]
    assert observed.decided() is None
    assert len(observed.opened) == number + 1


def test_children_of_the_checked_call_count(observed: Observed) -> None:
    """Nobody knows what these have read, either."""
    observed.rounds = [SAME] * ROUNDS
    observed.checked[0] = checked(children=True)
    assert observed.decided() is None
    assert len(observed.opened) == 1


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("kind", [wire.Open, wire.CheckAll, wire.ObserveAll, wire.LeaveAll])
@pytest.mark.parametrize("number", [0, 2])
def test_a_test_whose_observer_is_lost_is_measured(
    observed: Observed, side: str, kind: type[wire.Order], number: int
) -> None:
    """It fails again there, and is reported; an observer that is lost on its way out has read all it could."""
    observed.rounds = [SAME] * ROUNDS
    observed.lost = side, kind, number
    if kind is wire.LeaveAll:
        assert observed.decided() == reasons.SameCode("commit 1", 2, 2)
    else:
        assert observed.decided() is None
        assert len(observed.opened) == number + 1


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (("b.py", "data/large.npz"), reasons.NotCopied("data/large.npz")),
        (("own.so",), reasons.NotBuilt("own.so")),
        (("own.so", "data/large.npz"), reasons.NotCopied("data/large.npz")),
        (("a.py", "data/large.npz"), reasons.NotCopied("data/large.npz")),
        (("z.npz", "data/large.npz", "b.npz"), reasons.NotCopied("b.npz")),
    ],
)
def test_a_test_that_lacks_a_file_of_its_own_is_not_compared(
    observed: Observed, number: int, found: Sequence[str], reason: reasons.NotCopied | reasons.NotBuilt
) -> None:
    """In whichever round that is seen: pairs would measure something else. The first by the alphabet is named."""
    observed.rounds = [*[SAME] * number, found]
    with pytest.raises(UnpairedError) as caught:
        observed.decided()
    assert caught.value.reason == reason


@pytest.mark.parametrize("is_loaded", [False, True])
def test_code_of_the_other_side_is_an_error(observed: Observed, is_loaded: bool) -> None:
    """It is not taken for a reason to measure: a module that was loaded from there, and any file that was read."""
    stray = str(observed.top / "base" / "b.py")
    observed.rounds = [SAME, ("c.py", "c.py" if is_loaded else stray)]
    if is_loaded:
        observed.checked[1] = checked(loaded={"b": stray})
    with pytest.raises(SideError, match="HEAD has read a file of commit 1: b"):
        observed.decided()


def test_observers_that_cannot_be_forked_begin_the_test_anew(observed: Observed) -> None:
    """All of its processes are to be new interpreters then, which observe by themselves where it has begun anew."""
    observed.known.collected = lambda settings: msgspec.structs.replace(collected(settings), fault="it hung")
    observed.rounds = [SAME] * ROUNDS
    observed.test.fresh = False
    with pytest.raises(RetryFreshError, match="it hung"):
        observed.decided()
    observed.test.fresh = True
    assert observed.decided() == reasons.SameCode("commit 1", 2, 2)


@pytest.mark.parametrize(
    "test",
    [
        pytest.param(
            """
            import pytest, subprocess, sys

            @pytest.fixture
            def size():
                return int(subprocess.check_output([sys.executable, "size.py"]))

            def test_it(rlperf, size):
                rlperf(lambda: sum(range(size)))
            """,
            id="fixture",
        ),
        pytest.param(
            """
            import subprocess, sys

            SIZE = int(subprocess.check_output([sys.executable, "size.py"]))

            def test_it(rlperf):
                rlperf(lambda: sum(range(SIZE)))
            """,
            id="module",
        ),
    ],
)
def test_what_children_read_before_the_call_counts(tmp_path: Path, test: str) -> None:
    """A child of a fixture or a module may have read what differs, though the test's own processes have not."""
    example = Example(tmp_path, {"test_it.py": test, "size.py": "print(1000)"})
    example.commit()
    example.write({"size.py": "print(2000)"})
    run = example.pytest("--rlperf-against=HEAD", "--rlperf-pairs=2..2", "--rlperf-max-time=1")
    assert run.statuses
    assert run.codes["test_it"] != "code", run.reasons


@pytest.mark.parametrize(("changed", "expected"), [((), reasons.SameCode("commit 1", None)), (None, None)])
def test_what_is_known_beforehand_is_not_observed(
    observed: Observed, changed: tuple[str, ...] | None, expected: reasons.SameCode | None
) -> None:
    """Equal trees are the same code; sides that differ by something else than files are measured."""
    observed.sides = replace(observed.sides, changed=changed)
    assert observed.decided() == expected
    assert observed.known.drivers == []
