"""Whether a test has to be measured, by what made-up processes of both sides read in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import builders
import msgspec
import pytest
from example import Example
from fake_drivers import FakeDriver, carried_out, checked, collected, fake_processes, open_test, usual
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError
from pytest_rlperf.model import reasons
from pytest_rlperf.model.notes import Doubt
from pytest_rlperf.model.reach import Footprint
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.run.drivers import PAIR_NAMES
from pytest_rlperf.run.endpoints import RetryFreshError
from pytest_rlperf.run.observation import ROUNDS, observe
from pytest_rlperf.run.schedule import Lanes
from pytest_rlperf.run.test import Observation, UnpairedError

REPORTED = wire.Reported({})


CODE = """
def used():
    return {used}

def unused():
    return {unused}
"""


class Observed:
    """A test that is observed, whose processes do as ``rounds`` have it, one after another; None stands for children.

    Trees differ in ``a.py``, in the function ``unused``, and in data; others are equal, and the user's own tree has
    ``.npz`` files that no side has. A round has the files that base and head read, ``ROUND`` on both sides where one is
    given, and the lines of ``a.py`` that they run. One of the ``lost`` side is lost at an order of a round.
    """

    def __init__(self, top: Path, patch: pytest.MonkeyPatch, *, fresh: bool = True) -> None:
        self.top = top
        for side in ("base", "head"):
            equal = dict.fromkeys(("b.py", "c.py", "d.py", "own.so"), "")
            code = CODE.format(used=1, unused=1 + (side == "head"))
            builders.write(top / side, {"a.py": code, "data.txt": side, **equal})
        builders.write(top / "own", dict.fromkeys(("data/large.npz", "z.npz", "b.npz"), ""))
        head = replace(
            builders.project(top / "own").side("HEAD", sys.executable, (), (top / "head",)), tree=top / "head"
        )
        base = replace(head, label="commit 1", homes=(top / "base",), tree=top / "base")
        self.sides = Sides(base, head, (), ("a.py", "data.txt"), (), top=top / "own")
        self.sides = replace(self.sides, compiled=frozenset({"own.so"}), sources=("data.txt", "own.c"))
        self.processes, self.known = fake_processes(top, patch)
        self.known.answer = self._answer
        self.rounds: Sequence[Round | None] = ()
        self.lost: tuple[str, type[wire.Order[Any]] | None, int] = ("", None, 0)
        self.checked: list[wire.Checked] = [checked(), checked()]
        self.lanes = Lanes(1, ())
        self.test = open_test(self.lanes)
        self.test.fresh = fresh
        self.orders: list[wire.Order[Any]] = []

    def _answer(self, driver: FakeDriver, order: wire.Order[Any]) -> object:
        assert self.lanes.free < self.lanes.count, "observing takes a CPU"
        self.orders.append(order)
        if isinstance(order, wire.Open) and order.reports:
            driver.say(REPORTED)
        number = len(self.opened) - 1
        side, kind, when = self.lost
        if kind is not None and isinstance(order, kind) and number == when:
            stop = wire.Stop(side, "lost", side == "base", is_doubtful=True, is_reporter=side == "head")
            return wire.Stopped(order.number, stop)
        match order:
            case wire.CheckAll():
                return self.checked
            case wire.ObserveAll():
                found = self.rounds[number]
                is_first = len(self.limits_s) % 2 == 1
                if found is not None and is_first:
                    found = found._replace(modules=[name for name in found.modules if name not in LATER])
                return (
                    [Footprint([], children=False), Footprint([], children=True)]
                    if found is None
                    else self._seen(found)
                )
        return usual(driver, order)

    def _seen(self, found: Round) -> list[Footprint]:
        both = zip(("base", "head"), (found.base, found.base if found.head is None else found.head), strict=True)
        return [
            Footprint(
                [str(self.top / side / name) for name in names],
                children=False,
                functions={str(self.top / side / "a.py"): list(found.lines)},
                data=[str(self.top / side / name) for name in found.data],
                modules=list(found.modules if side == "head" else ()),
                whole=found.whole,
                compiled=found.compiled,
                opened=[str(self.top / side / name) for name in found.opened],
                unwatched=found.unwatched,
                many=found.many,
            )
            for side, names in both
        ]

    @property
    def opened(self) -> list[wire.Open]:
        return [order for order in self.orders if isinstance(order, wire.Open)]

    @property
    def limits_s(self) -> list[float]:
        return [order.limit_s for order in self.orders if isinstance(order, wire.ObserveAll)]

    def decide(self) -> Observation:
        """Return what is known of the test."""
        drivers = self.processes.drivers(self.sides, *PAIR_NAMES).of(fresh=self.test.fresh)
        try:
            return carried_out(self.processes, observe(self.test, drivers), self.lanes)
        finally:
            assert self.lanes.free == self.lanes.count

    def decided(self) -> reasons.Reason | None:
        """Return why the test is spared; all observers have left it, and another process is to report it."""
        try:
            return self.decide().reason
        finally:
            assert (self.test.reporter, self.test.called, self.test.reports) == (None, None, [])
            assert not any(driver.is_taken for driver in self.known.drivers)
            assert not self.orders or isinstance(self.orders[-1], wire.LeaveAll)


class Round(NamedTuple):
    """What both sides read, head something else where it is given, and which lines of ``a.py`` they run."""

    base: Sequence[str] = ("b.py", "c.py")
    head: Sequence[str] | None = None
    lines: Sequence[int] = ()
    data: Sequence[str] = ()
    modules: Sequence[str] = ()
    whole: bool = True
    compiled: bool = False
    opened: Sequence[str] = ()
    unwatched: str = ""
    many: bool | None = False


LATER = ("tables",)  # modules that are loaded after the first call


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observed:
    return Observed(tmp_path, monkeypatch)


SAME = Round()
USED, UNUSED = 2, 5  # lines of a.py
WITH_CODE = ("a.py", "b.py")
UNREACHED = reasons.Unreached("commit 1", 1)


@pytest.mark.parametrize("many", [False, True, None])
def test_what_works_in_an_observer_shows_whether_the_test_needs_the_machine(
    observed: Observed, many: bool | None
) -> None:
    """Several threads, children or an accelerator, on either side; nothing is known after a brief look."""
    assert Observation().is_many is None
    observed.rounds = [Round(WITH_CODE, lines=[USED], many=many)] * 2
    assert observed.decide().is_many is many


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(SAME, reasons.SameCode("commit 1", 2, 2), id="no file that differs"),
        pytest.param(Round(WITH_CODE, lines=[USED]), UNREACHED, id="another function"),
        pytest.param(Round(("data.txt",)), None, id="data"),
        pytest.param(Round(WITH_CODE, lines=[UNUSED]), None, id="the function"),
        pytest.param(Round(WITH_CODE, data=["a.py"]), None, id="a source as data"),
        pytest.param(Round(WITH_CODE, whole=False), None, id="functions unseen"),
        pytest.param(Round(WITH_CODE, compiled=True), None, id="functions compiled"),
        pytest.param(None, None, id="children"),
        pytest.param(Round(opened=["data.txt"]), None, id="data by others"),
        pytest.param(Round(WITH_CODE, opened=["a.py"]), None, id="a source by others"),
    ],
)
def test_a_test_is_spared_where_nothing_that_differs_is_run_or_read(
    observed: Observed, found: Round | None, reason: reasons.Reason | None
) -> None:
    """One round of processes shows it: each side has a seed of its own, and calls go on after the first."""
    observed.rounds = [found]
    assert observed.decided() == reason
    assert [type(order) for order in observed.orders] == [
        *(wire.Open, wire.CheckAll, wire.ObserveAll, wire.ObserveAll, wire.LeaveAll)
    ]
    base, head = observed.opened[0].seeds
    assert base != head


@pytest.mark.parametrize("again", [SAME, Round(opened=["data.txt"])])
def test_what_another_test_may_have_opened_is_looked_at_alone(observed: Observed, again: Round) -> None:
    """Of tests that are observed side by side any may have been it. One that runs the change needs no other look."""
    observed.lanes = Lanes(2, ())
    observed.test = open_test(observed.lanes)
    observed.test.fresh = True
    observed.rounds = [Round(opened=["data.txt"]), again]
    known = observed.decide()
    assert (known.reason is None, len(observed.opened)) == (again is not SAME, 2)
    observed.rounds, observed.orders = [Round(WITH_CODE, lines=[UNUSED], opened=["data.txt"])], []
    assert (observed.decide().reason, len(observed.opened)) == (None, 1)


def test_why_nothing_is_watched_is_known(observed: Observed) -> None:
    """The run notes it."""
    observed.rounds = [Round(unwatched="no inotify")]
    assert observed.decide().unwatched == "no inotify"


def test_calls_go_on_for_long_only_where_that_may_spare_the_test(observed: Observed) -> None:
    """Where it has to be measured, they only show what else it runs."""
    for found, limit_s in ((Round(WITH_CODE), 2.0), (Round(WITH_CODE, lines=[UNUSED]), 0.1)):
        observed.rounds, observed.orders = [found], []
        observed.decided()
        assert observed.limits_s == [0.0, limit_s]


UNEVEN = {
    "files": (Round(WITH_CODE, (*WITH_CODE, "d.py")), Round((*WITH_CODE, "d.py"), WITH_CODE)),
    "modules": (Round(WITH_CODE, modules=["pandas"]), Round(WITH_CODE, modules=["pandas"])),
}


@pytest.mark.parametrize(("kind", "spared"), [("files", True), ("modules", False)])
def test_sides_that_do_different_things_have_a_second_round(observed: Observed, kind: str, spared: bool) -> None:
    """There each side has the other's seed: a difference of seeds evens out, and another one is measured."""
    observed.rounds = UNEVEN[kind]
    assert observed.decided() == (UNREACHED if spared else None)
    first, second = (order.seeds for order in observed.opened)
    assert first == second[::-1]
    assert len(observed.opened) == ROUNDS == 2


@pytest.mark.parametrize(("lacks", "spared"), [("base", False), ("", True)])
def test_sides_that_do_different_things_later_differ_by_a_file_that_one_lacks(
    observed: Observed, lacks: str, spared: bool
) -> None:
    """A later call may ask for it. Otherwise one side has only made more calls."""
    (observed.top / "head" / "new.bin").touch()
    observed.sides = replace(observed.sides, changed=("a.py", *(["new.bin"] if lacks else [])))
    observed.rounds = [Round(WITH_CODE, modules=LATER)] * 2
    assert observed.decided() == (UNREACHED if spared else None)
    assert len(observed.opened) == (1 if spared else ROUNDS)


def test_sides_that_do_different_things_by_chance_need_no_second_round(observed: Observed) -> None:
    """Where nothing differs but comments, that is no work of the change."""
    builders.write(observed.top / "head", {"a.py": f"# a comment\n{CODE.format(used=1, unused=1)}"})
    observed.sides = replace(observed.sides, changed=("a.py",))
    observed.rounds = UNEVEN["modules"]
    assert observed.decided() == reasons.Unreached("commit 1", 0)
    assert len(observed.opened) == 1


@pytest.mark.parametrize(
    ("found", "doubt"),
    [
        (Round(WITH_CODE, lines=[USED]), None),
        (Round(WITH_CODE, lines=[UNUSED]), None),
        (Round(WITH_CODE, whole=False), Doubt.UNSEEN),
        (Round(WITH_CODE, modules=["pandas"]), Doubt.UNEVEN),
        (None, Doubt.CHILDREN),
    ],
)
def test_a_test_that_was_not_seen_to_run_what_differs_is_measured_for_a_reason(
    observed: Observed, found: Round | None, doubt: Doubt | None
) -> None:
    """Its children, what runs unseen, or that its sides do different things."""
    observed.rounds = [found] * ROUNDS
    assert observed.decide().doubt == doubt


def test_an_uneven_test_that_runs_what_differs_needs_no_second_round(observed: Observed) -> None:
    """It is measured whatever else it does."""
    observed.rounds = [Round(WITH_CODE, (*WITH_CODE, "d.py"), lines=[UNUSED])]
    assert observed.decided() is None
    assert len(observed.opened) == 1


@pytest.mark.parametrize("found", [SAME, Round(WITH_CODE)])
def test_what_spares_a_test_is_known_where_reach_is_off(observed: Observed, found: Round) -> None:
    """All of it is measured then but for what reads nothing that differs; it shows what the machine does."""
    observed.test = open_test(observed.lanes, reach=False)
    observed.test.fresh = True
    observed.rounds = [found]
    known = observed.decide()
    assert (known.reason is None, known.untouched) == (found is not SAME, True)


def test_a_copy_that_has_observed_a_spared_test_reports_it(observed: Observed) -> None:
    """No other process runs it: the last of head's stays at its call, with its reports, until the test is over."""
    observed.rounds = [SAME] * ROUNDS
    observed.test.fresh = False
    observed.decide()
    (driver,) = observed.known.drivers
    assert (observed.test.reporter, observed.test.reports) == (driver, [REPORTED])
    assert isinstance(observed.orders[-1], wire.ObserveAll)
    assert driver.is_taken
    observed.lanes.want(observed.test.lane())
    observed.lanes.grant()
    observed.test.close()
    assert isinstance(observed.orders[-1], wire.LeaveAll)
    assert not driver.is_taken


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("kind", [wire.Open, wire.CheckAll, wire.ObserveAll, wire.LeaveAll])
@pytest.mark.parametrize("number", [0, 1])
def test_a_test_whose_observer_is_lost_is_measured(
    observed: Observed, side: str, kind: type[wire.Order[Any]], number: int
) -> None:
    """It fails again there, and is reported; an observer that is lost on its way out has shown all it could."""
    observed.rounds = UNEVEN["files"]
    observed.lost = side, kind, number
    if kind is wire.LeaveAll:
        assert observed.decided() == UNREACHED
    else:
        assert observed.decided() is None
        assert len(observed.opened) == number + 1


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (("b.py", "data/large.npz"), reasons.NotCopied("data/large.npz")),
        (("own.so",), reasons.NotBuilt("own.so", "data.txt")),
        (("own.so", "data.txt"), reasons.NotBuilt("own.so", "own.c")),
        (("own.so", "data/large.npz"), reasons.NotCopied("data/large.npz")),
        (("a.py", "data/large.npz"), reasons.NotCopied("data/large.npz")),
        (("z.npz", "data/large.npz", "b.npz"), reasons.NotCopied("b.npz")),
    ],
)
def test_a_test_that_lacks_a_file_of_its_own_is_not_compared(
    observed: Observed, found: Sequence[str], reason: reasons.NotCopied | reasons.NotBuilt
) -> None:
    """Pairs would measure something else. The first by the alphabet is named."""
    observed.rounds = [Round(found)]
    with pytest.raises(UnpairedError) as caught:
        observed.decided()
    assert caught.value.reason == reason


@pytest.mark.parametrize("is_loaded", [False, True])
def test_code_of_the_other_side_is_an_error(observed: Observed, is_loaded: bool) -> None:
    """It is not taken for a reason to measure: a module that was loaded from there, and any file that was read."""
    stray = str(observed.top / "base" / "b.py")
    observed.rounds = [Round(("c.py",), ("c.py" if is_loaded else stray,))]
    if is_loaded:
        observed.checked[1] = checked(loaded={"b": stray})
    with pytest.raises(SideError, match="HEAD has read a file of commit 1: b"):
        observed.decided()


def test_observers_that_cannot_be_forked_begin_the_test_anew(observed: Observed) -> None:
    """All of its processes are to be new interpreters then, which observe by themselves where it has begun anew."""
    observed.known.collected = lambda settings: msgspec.structs.replace(collected(settings), fault="it hung")
    observed.rounds = [SAME]
    observed.test.fresh = False
    with pytest.raises(RetryFreshError, match="it hung"):
        observed.decided()
    observed.test.fresh = True
    assert observed.decided() == reasons.SameCode("commit 1", 2, 2)


# Of a test that is measured, nothing but that it is.
QUICK = (
    *("--rlperf-against=HEAD", *builders.TWO_PAIRS, "--rlperf-tolerance=900%"),
    "--rlperf-findings=counts=off,garbage=off,first_call=off,growth=off",
)


@pytest.mark.slow  # test_reach_cases: subprocess_answers and subprocess_generates
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
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_children_read_before_the_call_counts(tmp_path: Path, test: str) -> None:
    """A child of a fixture or a module may have read what differs, though the test's own processes have not."""
    example = Example(tmp_path, {"test_it.py": test, "size.py": "print(1000)"})
    example.commit()
    example.write({"size.py": "print(2000)"})
    run = example.pytest(*QUICK)
    assert run.tests["test_it"]["live"]["pairs"], run.reasons


@pytest.mark.parametrize("names", [["call", "link", "top"], pytest.param(["import"], marks=pytest.mark.slow)])
def test_what_others_than_python_read_counts(tmp_path: Path, names: list[str]) -> None:
    """A library in C reads data as a module is imported, or in a call: the tests that it does so for are measured.

    It may follow a link that leads elsewhere now. Listing the tree's own directory tells of new files, too.
    """
    c = """
    import ctypes, pathlib

    C = ctypes.CDLL(None)
    C.fopen.restype = ctypes.c_void_p
    C.fclose.argtypes = [ctypes.c_void_p]

    def read(name):
        C.fclose(C.fopen(bytes(pathlib.Path(__file__).parent / name), b"r"))
    """
    tests = """
    import pathlib
    import c

    def test_call(rlperf):
        rlperf(lambda: c.read("call.bin"))

    def test_link(rlperf):
        rlperf(lambda: c.read("linked/it.bin"))

    def test_top(rlperf):
        rlperf(lambda: len(list(pathlib.Path(__file__).parent.glob("*.bin"))))

    def test_nothing(rlperf):
        rlperf(lambda: sum(range(1000)))

    def test_import(rlperf):
        import lazy
        rlperf(lambda: sum(range(1000)))
    """
    lazy = "import c\n\nc.read('import.bin')\n"
    example = Example(tmp_path, {"c.py": c, "lazy.py": lazy, "test_it.py": tests, "call.bin": "1", "import.bin": "1"})
    example.write({"one/it.bin": "1", "two/it.bin": "2"})
    (example.root / "linked").symlink_to("one")
    example.commit()
    if "link" in names:
        (example.root / "linked").unlink()
        (example.root / "linked").symlink_to("two")
    example.write({f"{name}.bin": "2" for name in names if name != "link"})
    run = example.pytest(*QUICK, "-k", " or ".join([*names, "nothing"]))
    measured = {test for test, entry in run.tests.items() if entry["live"] and entry["live"]["pairs"]}
    assert measured == {f"test_{name}" for name in names}, run.reasons
    assert run.codes["test_nothing"] == "code"


BESIDE_A_THREAD = """
    import numpy

    matrix = numpy.ones((300, 300))

    def work():
        ends_s = time.thread_time() + 0.03
        while time.thread_time() < ends_s:
            matrix @ matrix  # OpenBLAS's other thread takes as much CPU time, and spins where it has nothing to do
"""


@pytest.mark.slow  # test_worker_session: test_calls_are_observed_until_they_bring_nothing_new
@pytest.mark.parametrize(
    ("work", "late"),
    [
        pytest.param("\n    def work():\n        time.sleep(0.03)\n", 14, id="waits"),
        pytest.param(BESIDE_A_THREAD, 20, id="beside a thread", marks=pytest.mark.slow),
    ],
)
def test_a_few_long_calls_are_observed_for_longer(tmp_path: Path, work: str, late: int) -> None:
    """A pair makes as many calls, in which something may run that no code that has run before names."""
    course = f"""
    import itertools, time
    import evaluation
    {work}
    numbers = itertools.count()

    def step():
        work()
        if next(numbers) > {late}:
            evaluation.evaluate()
    """
    evaluation = "import metrics\n\ndef evaluate():\n    return metrics.mean()\n"
    metrics = "def mean():\n    return sum(range(1000))\n"
    test = "import course\n\ndef test_it(rlperf):\n    rlperf(course.step)\n"
    files = {"course.py": course, "evaluation.py": evaluation, "metrics.py": metrics, "test_it.py": test}
    example = Example(tmp_path, files, OPENBLAS_NUM_THREADS="2")
    example.commit()
    example.write({"metrics.py": metrics.replace("1000", "2000")})
    run = example.pytest(*QUICK)
    assert run.tests["test_it"]["live"]["pairs"], run.reasons
    assert [touched["part"]["name"] for touched in run.tests["test_it"]["touched"]] == ["mean"]


@pytest.mark.parametrize(("changed", "expected"), [((), reasons.SameCode("commit 1", None)), (None, None)])
def test_what_is_known_beforehand_is_not_observed(
    observed: Observed, changed: tuple[str, ...] | None, expected: reasons.SameCode | None
) -> None:
    """Equal trees are the same code; sides that differ by something else than files are measured."""
    observed.sides = replace(observed.sides, changed=changed)
    assert observed.decided() == expected
    assert observed.known.drivers == []
