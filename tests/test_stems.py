"""Stems, groups of workers and base sides, with processes that are none."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from wording import Wording

from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.model.sides import PROTOCOL, Project, Sides
from pytest_rlperf.sides import prepare
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers import stems as module
from pytest_rlperf.workers.guardian import Guardian
from pytest_rlperf.workers.loader import library_variables
from pytest_rlperf.workers.process import WorkerLostError
from pytest_rlperf.workers.stems import (
    BaseSides,
    DoubtfulError,
    Processes,
    Stems,
    Surroundings,
    WorkerGroup,
)

GB = 10**9
PROJECT = Project(Path("/t"), Path("/t"), None, (), (), (), (), (), (), Path("/t/baselines"))
HEAD = PROJECT.side("HEAD", sys.executable, (), (Path("/t"),))
BASE = replace(HEAD, label="commit 1", homes=(Path("/base"),), environment={"SIDE": "base"})
SIDES = Sides(base=BASE, head=HEAD, packages=("mine",), changed=("a.py",), notes=())
TEN = [f"more{number}" for number in range(10)]


def noted(name: str) -> Any:
    """Return a method that leaves its name in ``did``, and in ``orders`` with the process."""

    def method(self: Fake, *arguments: object) -> None:
        self.did.append(name)
        self.orders.append((name, self))
        self.alive &= name != "end"

    return method


class Fake:
    """A process of one GB that leaves itself in ``made``, and the methods called in ``did``."""

    made: ClassVar[list[Any]]
    orders: ClassVar[list[tuple[str, Any]]]
    start_leaving, leave, start_quitting = noted("start_leaving"), noted("leave"), noted("start_quitting")
    interrupt_call, cancel, end = noted("interrupt_call"), noted("cancel"), noted("end")

    def __init__(self) -> None:
        self.alive = True
        self.did: list[str] = []
        self.made.append(self)

    def memory(self) -> int:
        return GB

    def lost(self, text: str) -> WorkerLostError:
        return WorkerLostError(self, text)  # type: ignore[arg-type]


class FakeLoader(Fake):
    """A loader that meets ``dirty`` modules; ``forked`` has the sides of each pair in their order."""

    dirty: ClassVar[Sequence[str]] = ()
    set: ClassVar[dict[str, str]] = {}

    def __init__(self, python: str, environment: dict[str, str], *arguments: object) -> None:
        super().__init__()
        self.environment = environment
        self.changes: dict[str, str | None] = dict(self.set)
        self.loaded: list[str] = []
        self.forked: list[list[str]] = []

    def load(self, modules: Sequence[str], packages: Sequence[str]) -> str | None:
        self.loaded += modules
        return next((name for name in modules if name in self.dirty), None)

    def fork(self, starts: Sequence[m.Start]) -> list[object]:
        self.forked.append([start.environment.get("SIDE", "head") for start in starts])
        return [object() for _ in starts]


class FakeStem(Fake):
    errors, fault, variables = "", "", library_variables()

    def __init__(self, name: str, start: m.Start, *arguments: object, is_base: bool) -> None:
        super().__init__()
        self.name, self.start, self.forks, self.is_base = name, start, start.forks, is_base
        self.kept: FakeWorker | None = None

    @property
    def collected(self) -> m.Ready:
        return m.Ready(PROTOCOL, ["test"], self.errors, variables=self.variables, fault=self.fault)

    def wait_ready(self) -> None:
        """Be ready."""

    def worker(self) -> FakeWorker:
        worker = self.kept or FakeWorker(self)
        self.kept = None if self.forks else worker
        return worker


class FakeWorker(Fake):
    """A worker that calls its fixture at once, unless it is ``to_be`` dead or cancelled before."""

    has_children = running = False
    to_be = ""
    shared_setup_s = 0.0

    def __init__(self, stem: FakeStem) -> None:
        super().__init__()
        self.stem, self.variables = stem, stem.variables
        self.called: m.Called | None = None
        self.others: list[str] = []
        self.loaded: dict[str, str] = {}

    @property
    def sets_variables(self) -> bool:
        return bool(self.variables != self.stem.variables)

    def start_run(self, *arguments: object, **settings: object) -> None:
        self.running = True

    def wait_called(self) -> None:
        if self.to_be:
            self.alive = self.to_be == "cancelled"
            raise self.lost("lost")
        self.called = m.Called("component", "call", 1.0)


def processes_of(*, forks: bool) -> Processes:
    """Return the processes of a run that forks, or starts new interpreters."""
    return Processes(
        Surroundings(dict(os.environ), (), (), forks, Path("/t"), markup=False, share_terminal=False, start_limit_s=1.0)
    )


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    for name in ("made", "orders"):
        monkeypatch.setattr(Fake, name, [], raising=False)
    for name, fake in (("Loader", FakeLoader), ("Stem", FakeStem), ("Worker", FakeWorker)):
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(module, "modules_alike", lambda *arguments: ["numpy", "dirt.a"])
    monkeypatch.setattr(Guardian, "new_directory", lambda self: tmp_path)
    monkeypatch.setattr(Guardian, "guarding_commands", lambda self: contextlib.nullcontext())
    return processes_of(forks=True)


@pytest.fixture
def stems(processes: Processes) -> Any:
    return processes.stems(SIDES, "base", "head")


def loaders() -> list[FakeLoader]:
    return [process for process in Fake.made if isinstance(process, FakeLoader)]


def test_tests_may_share_numbers_of_stems_that_are_forked(stems: Any) -> None:
    """Each has a copy; once a worker is kept for the tests that follow, a number is one test's."""
    assert [stems.claim(0), stems.claim(0), stems.claim(2)] == [0, 0, 2]
    worker = stems.workers(0)[0]
    worker.shared_setup_s = 5.0
    stems.let_go(worker)
    assert [stems.claim(0), stems.claim(0, avoid=[3])] == [1, 4]
    for number in (3, 0):  # the second of two tests gives the first number back
        stems.give_back(0)
        assert stems.claim(0) == number


def test_new_interpreters_are_of_one_test_until_they_are_given_back(stems: Any) -> None:
    """A test gets the lowest number that no test has, and none that is to be avoided."""
    fresh = stems.new_interpreters()
    assert [fresh.claim(0), fresh.claim(0, avoid=[1]), fresh.claim(0)] == [0, 2, 1]
    fresh.give_back(2)
    assert fresh.claim(0) == 2


def test_neither_side_is_always_the_first_to_be_forked(stems: Any) -> None:
    """Head is first in even pairs; base's stem is returned first. The first two find out whether copies work."""
    found = [[(stem.name, stem.is_base, stem.start.probe) for stem in stems.ready(number)] for number in range(2)]
    assert found == [
        [("base 0", True, True), ("head 0", False, True)],
        [("base 1", True, False), ("head 1", False, False)],
    ]
    assert [loader.forked for loader in loaders()] == [[["head", "base"], ["base", "head"]]]


def test_stems_stay_until_one_is_lost(stems: Any) -> None:
    """Then both sides of that number are forked anew, and the other one ends."""
    first, other = stems.ready(0), stems.ready(1)
    assert stems.ready(0) == first
    first[0].alive = False
    assert not set(stems.ready(0)) & set(first)
    assert first[1].did == ["start_quitting"]
    assert stems.ready(1) == other


def test_pairs_that_confirm_are_of_a_second_loader(stems: Any) -> None:
    """New interpreters are of none."""
    assert not set(stems.ready(0)) & set(stems.ready(0, 1))
    assert [loader.forked for loader in loaders()] == [[["head", "base"]]] * 2
    fresh = stems.new_interpreters()
    assert fresh.ready(0) == fresh.ready(0, 1)
    assert len(loaders()) == 2


def test_new_interpreters_may_be_asked_for(stems: Any, processes: Processes) -> None:
    """They are the same ones each time, beside those that are forked, and there is nothing to explain."""
    fresh: Any = stems.new_interpreters()
    assert fresh is stems.new_interpreters() is fresh.new_interpreters()
    alone: Any = processes_of(forks=False).stems(SIDES, "worker")
    assert [stem.forks for each in (stems, fresh, alone) for stem in each.ready(0)] == [True, True, False, False, False]
    assert processes.not_forked() == []


def lose(loader: FakeLoader, *arguments: object) -> None:
    raise loader.lost("the loader exited with code 1.\nits output")


@pytest.mark.parametrize(
    ("fake", "name", "value"),
    [
        pytest.param(FakeStem, "fault", "a copy of it hung", id="copies do not work"),
        pytest.param(FakeStem, "variables", {**FakeStem.variables, "OMP_WAIT": "1"}, id="a variable is set"),
        pytest.param(FakeLoader, "load", lose, id="the loader is lost"),
        pytest.param(FakeLoader, "load", lambda *arguments: "all", id="all modules want a package under test"),
    ],
)
def test_stems_that_cannot_be_forked_are_new_interpreters(
    stems: Any, monkeypatch: pytest.MonkeyPatch, wording: Wording, fake: type[Fake], name: str, value: object
) -> None:
    """All from then on, with the reason; those that were forked end."""
    monkeypatch.setattr(fake, name, value)
    assert not any(stem.forks for number in range(2) for stem in stems.ready(number))
    assert stems._processes.not_forked() == wording
    assert not any(process.alive for process in Fake.made if isinstance(process, FakeStem) and process.forks)


def test_pairs_that_lose_loaders_at_once_end_no_new_interpreters(stems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second to find out leaves alone what the first has started since, and starts no loader of its own."""
    lost, both = threading.Event(), threading.Barrier(2, timeout=60)

    def lose_at_fork(loader: FakeLoader, *arguments: object) -> None:
        if both.wait():
            lost.wait(60)
        lose(loader)

    monkeypatch.setattr(FakeLoader, "fork", lose_at_fork)
    with ThreadPoolExecutor(2) as threads:
        pairs = [threads.submit(stems.ready, number) for number in range(2)]
        first = next(as_completed(pairs)).result()
        lost.set()
        second = [pair.result() for pair in pairs]
    assert [stem.alive and not stem.did and not stem.forks for pair in second for stem in pair] == [True] * 4
    assert first in second
    assert stems.ready(0) == second[0]
    assert stems._loader(1) is None
    assert len(loaders()) == 1


def test_a_loader_leaves_out_what_wants_a_package_under_test(stems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started anew without that; also where a module that it learns is the one."""
    monkeypatch.setattr(FakeLoader, "dirty", ["dirt.a", "more3"])
    monkeypatch.setattr(module, "_LONG_LOAD_S", -1.0)
    pair = stems.workers(0)
    pair[0].others = pair[1].others = TEN
    stems.learn(pair)
    assert all(stem.forks for stem in stems.ready(0))
    first, last = ["numpy", *TEN], ["numpy", *TEN[:3], *TEN[4:]]
    assert [loader.loaded for loader in loaders()] == [["numpy", "dirt.a"], first, last]


@pytest.mark.parametrize("load_s", [0.1, 0.4])
def test_stems_are_forked_anew_once_loaders_know_more(
    stems: Any, load_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten modules of a first call on both sides are enough where they take long; a probe follows in any case.

    Those of a call that sets variables of libraries are not learned.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=itertools.count(step=load_s).__next__))
    first, pair = stems.ready(0), stems.workers(0)
    pair[0].others, pair[1].others = ["base_only", *TEN], [*TEN[1:], "head_only"]
    stems.learn(pair)
    pair[1].others, pair[1].variables = TEN, {"OMP_WAIT": "1"}
    stems.learn(pair)
    assert stems.ready(0) == first
    pair[1].variables = first[1].variables
    stems.learn(pair)
    second = stems.ready(0)
    assert (second == first) is (load_s < 0.3)
    assert stems.ready(1)[0].start.probe is (second == first)
    assert loaders()[0].loaded == ["numpy", "dirt.a", *TEN]
    stems.learn(pair)
    assert stems.ready(0) == second


@pytest.mark.parametrize(
    ("setup_s", "fresh", "did"),
    [
        (0.1, False, ["start_quitting", "end"]),
        (5.0, False, []),
        (0.0, False, ["start_quitting", "end"]),
        (0.1, True, []),
    ],
)
def test_a_worker_is_kept_for_what_it_has_set_up(stems: Any, setup_s: float, fresh: bool, did: list[str]) -> None:
    """Others end with their test, called or not, but for new interpreters, which run all tests."""
    used = stems.new_interpreters() if fresh else stems
    worker = used.workers(0)[0]
    worker.shared_setup_s = setup_s
    used.let_go(worker)
    used.let_go(worker)
    assert worker.did == did
    assert (used.workers(0)[0] is worker) is (did == [])


def test_stems_that_no_test_has_end_where_memory_is_scarce(stems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones first, with those of the other side; the first three numbers, and claimed ones, stay."""
    known = {number: stems.ready(number) for number in range(7)}
    stems.claim(4)
    for usable, ended in ((28, []), (26, [6]), (1, [3, 5, 6]), (1, [3, 5, 6])):
        monkeypatch.setattr(module, "usable_memory", lambda usable=usable: usable * GB)  # stems may have half of it
        stems.trim()
        assert [number for number, pair in known.items() if all(stem.did for stem in pair)] == ended


def test_processes_end_together(stems: Any, processes: Processes, wording: Wording) -> None:
    """All that live get the order to quit before the first is waited for, workers first; none starts any more."""
    (worker, dead), (base, head) = stems.workers(0), stems.ready(0)
    dead.alive = False
    processes.close()
    living, all_of_them = [worker, base, head], [worker, dead, base, head, *loaders()]
    steps = {"cancel": all_of_them, "start_quitting": living, "interrupt_call": living, "end": all_of_them}
    assert Fake.orders == [(step, process) for step, concerned in steps.items() for process in concerned]
    with wording.raises(MeasurementError):
        stems.ready(0, 1)


def new_group() -> WorkerGroup:
    return WorkerGroup("test", None, lambda message: None, setup_s=1.0, patience_s=1.0)


def test_a_group_keeps_its_reporter(stems: Any) -> None:
    """Workers leave one by one or all but the reporter; a dead one gets no order."""
    group: Any = new_group()
    (first, second), (third, fourth) = stems.workers(0), stems.workers(1)
    group.open([first, second, third])
    assert group.reporter is first
    assert group.called.component == "component"
    group.leave(third)
    assert group.workers == [first, second]
    group.open([third, fourth])
    fourth.alive = False
    group.release()
    assert group.workers == [first]
    left = ["start_leaving", "leave"]
    assert [worker.did for worker in (first, second, third, fourth)] == [[], left, ["leave", *left], []]


def test_what_a_test_holds_is_given_back_at_its_end() -> None:
    """The last first, and once: its numbers, and the machine where it has that."""
    did: list[str] = []

    @contextlib.contextmanager
    def machine() -> Iterator[None]:
        did.append("taken")
        yield
        did.append("left")

    group = new_group()
    group.at_end(lambda: did.append("given back"))
    before = group.has_machine
    group.enter(machine())
    assert (before, group.has_machine, did) == (False, True, ["taken"])
    group.close()
    group.close()
    assert did == ["taken", "left", "given back"]


@pytest.mark.parametrize(("lost", "did"), [("dead", ["end"]), ("cancelled", [])])
def test_a_lost_worker_ends_those_on_their_way(stems: Any, lost: str, did: list[str]) -> None:
    """One that is at its call stays, and so do all where the run has cancelled one."""
    group, (first, second), (third, _) = new_group(), stems.workers(0), stems.workers(1)
    second.to_be = lost
    with pytest.raises(WorkerLostError):
        group.open([first, second, third])
    assert [worker.did for worker in (first, second, third)] == [[], did, did]


@pytest.fixture
def side(processes: Processes) -> Stems:
    return processes.stems(SIDES, *module.PAIR_NAMES)


def test_each_side_watches_the_homes_of_both(side: Stems, processes: Processes) -> None:
    """A side that has loaded the other's code shows it; homes that both have are other code all the same."""
    same = processes.stems(replace(SIDES, base=replace(BASE, homes=HEAD.homes), changed=None), "base", "head")
    starts: list[m.Start] = [stem.start for each in (side, same) for stem in each.ready(0)]  # type: ignore[attr-defined]
    assert starts[0].watched == starts[1].watched == ["/base", "/t"]
    assert not side.is_same_code
    assert not same.is_same_code
    assert processes.stems(replace(SIDES, changed=()), "head").is_same_code


def test_a_base_that_cannot_be_had_is_an_error_every_time(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """It is prepared once; a base that is given up later answers with that error."""
    asked = []

    def commit_sides(sha: str, project: Project, show: object) -> Sides:
        asked.append(sha)
        if sha == "gone":
            raise SideError("no such commit")
        return SIDES

    monkeypatch.setattr(prepare, "commit_sides", commit_sides)
    bases = BaseSides(PROJECT, processes)
    for _ in range(2):
        with wording.raises(SideError):
            bases.of_commit("gone", print)
    found = bases.of_commit("here", print)
    assert bases.of_commit("here", print) is found
    assert asked == ["gone", "here"]
    bases.give_up(found, SideError("it loads other code"))
    for sha in ("here", "gone"):
        with wording.raises(SideError):
            bases.of_commit(sha, print)


@pytest.mark.parametrize("errors", ["", "E   ModuleNotFoundError: No module named 'no_such.x'"])
def test_a_base_without_any_of_the_tests_is_an_error(side: Stems, errors: str, wording: Wording) -> None:
    """The message has base's own, and names what is not installed."""
    side.check_collected(["test"])
    side.check_collected(["other", "test"])
    first: Any = side.ready(0)[0]
    first.errors = errors
    with wording.raises(SideError):
        side.check_collected(["other"])


def test_files_of_children_may_always_differ(side: Stems, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are unknown; without children the files that both sides have loaded decide."""
    base, head = side.workers(0)
    monkeypatch.setattr(module, "check_loaded", lambda *arguments: False)
    assert not side.may_differ(base, head)
    for worker in (base, head):
        worker.has_children = True
        assert side.may_differ(base, head)
        worker.has_children = False
    monkeypatch.setattr(module, "check_loaded", lambda *arguments: True)
    assert side.may_differ(base, head)


def test_tests_that_expected_copies_share_no_new_interpreter(stems: Stems, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two have claimed a number and its stems cannot be copied, both are to begin anew, each with its own."""
    monkeypatch.setattr(FakeStem, "fault", "x")
    numbers = stems.claim(0), stems.claim(0)
    for number in numbers:
        with pytest.raises(DoubtfulError):
            stems.workers(number)
    for number in numbers:
        stems.give_back(number)
    numbers = stems.claim(0), stems.claim(0)
    assert len({id(worker) for number in numbers for worker in stems.workers(number)}) == 2 * len(numbers)


def test_one_test_at_a_time_has_a_kept_worker(stems: Stems) -> None:
    """One of those that have set up at length is kept, for one test; the others end."""
    workers = [stems.workers(stems.claim(0))[0] for _ in range(2)]
    for worker in workers:
        worker.shared_setup_s = 5.0
        stems.let_go(worker)
    assert [worker.alive for worker in workers] == [True, False]
    assert [stems.workers(0)[0] is workers[0] for _ in range(2)] == [True, False]


def test_a_run_that_was_stopped_starts_nothing(stems: Stems, processes: Processes) -> None:
    """No stems, no copies of those that live, and no new interpreters."""
    stems.ready(0)
    processes.cancel()
    for ask in (lambda: stems.ready(1), lambda: stems.workers(0), lambda: stems.new_interpreters().ready(0)):
        with pytest.raises(MeasurementError):
            ask()


def test_a_loader_begins_with_what_own_code_sets(stems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library variable that no imported module sets is there before a loader imports any."""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(FakeLoader, "set", {"MPLBACKEND": "Agg"})
    stems.ready(0)
    begun = [loader.environment.get("OMP_NUM_THREADS") for loader in loaders()]
    assert [number == "77" for number in begun] == [False, True]
    assert "MPLBACKEND" not in loaders()[-1].environment
