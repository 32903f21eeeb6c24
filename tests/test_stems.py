"""Stems, groups of workers and base sides, with processes that are none."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import builders
import pytest
from builders import write
from wording import Wording

from pytest_rlperf import wire as m
from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import PROTOCOL, Sides
from pytest_rlperf.sides.observed import Reads
from pytest_rlperf.spawn import stems as module
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.preload import library_variables
from pytest_rlperf.spawn.process import WorkerLostError
from pytest_rlperf.spawn.stems import (
    OBSERVERS,
    PAIR_NAMES,
    DoubtfulError,
    Processes,
    Stems,
    WorkerGroup,
)

GB = 10**9
PROJECT = builders.project(Path("/t"))
HEAD = PROJECT.side("HEAD", sys.executable, (), (Path("/head"),))
BASE = replace(HEAD, label="commit 1", homes=(Path("/base"),), environment={"SIDE": "base"})
SIDES = Sides(base=BASE, head=HEAD, packages=("mine",), changed=("a.py",), notes=(), top=Path("/t"))


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
    is_blocked = False
    interrupt_call, cancel, end = noted("interrupt_call"), noted("cancel"), noted("end")
    remove_files = noted("remove_files")

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

    def load(self, modules: Sequence[str], packages: Sequence[str], top: str, apart: Sequence[str]) -> str | None:
        self.refused = packages, top, apart
        self.loaded += modules
        return next((name for name in modules if name in self.dirty), None)

    def fork(self, starts: Sequence[m.Start]) -> list[object]:
        self.forked.append([start.environment.get("SIDE", "head") for start in starts])
        return [object() for _ in starts]


class FakeStem(Fake):
    errors, fault, variables, keys = "", "", library_variables(), ("test",)

    def __init__(self, name: str, start: m.Start, *arguments: object, is_base: bool) -> None:
        super().__init__()
        self.name, self.start, self.forks, self.is_base = name, start, start.forks, is_base
        self.kept: FakeWorker | None = None

    @property
    def collected(self) -> m.Ready:
        return m.Ready(PROTOCOL, list(self.keys), self.errors, variables=self.variables, fault=self.fault)

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
        self.loaded: dict[str, str] = {}
        self.seed = 0
        self.read: list[str] = []

    def start_run(self, *arguments: object, **settings: object) -> None:
        self.running = True

    def start_observe(self, limit_s: float) -> None:
        """Read nothing more."""

    def wait_observed(self) -> list[str]:
        return self.read

    def wait_called(self) -> None:
        if self.to_be:
            self.alive = self.to_be == "cancelled"
            raise self.lost("lost")
        self.called = m.Called("component", "call", 1.0)


def processes_of(*, forks: bool) -> Processes:
    """Return the processes of a run that forks, or starts new interpreters."""
    return Processes(
        dict(os.environ), (), (), (), forks, Path("/t"), markup=False, share_terminal=False, start_limit_s=1.0
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
    return processes.stems(SIDES, *PAIR_NAMES)


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


def test_neither_side_is_always_the_first_to_be_forked(stems: Any) -> None:
    """Head is first in even pairs; base's stem is returned first."""
    found = [[(stem.name, stem.is_base) for stem in stems.ready(number)] for number in (OBSERVERS, 0, 1)]
    assert found == [
        [("base observer", True), ("head observer", False)],
        [("base worker 0", True), ("head worker 0", False)],
        [("base worker 1", True), ("head worker 1", False)],
    ]
    assert [loader.forked for loader in loaders()] == [[["base", "head"], ["head", "base"], ["base", "head"]]]


def test_only_observers_observe(stems: Any) -> None:
    """The others measure; observers look at the same places, and are never the ones that the user sees."""
    observers, measuring = stems.ready(OBSERVERS), stems.ready(0)
    assert [stem.start.observes for stem in (*observers, *measuring)] == [True, True, False, False]
    assert [stem.start.reports for stem in (*observers, *measuring)] == [False, False, False, True]
    assert {tuple(stem.start.watched) for stem in (*observers, *measuring)} == {("/base", "/head", "/t")}


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        (("a.py",), OBSERVERS),
        ((), 0),
        (None, 0),
    ],
)
def test_the_first_stems_find_out_whether_copies_work(
    processes: Processes, changed: tuple[str, ...] | None, first: int
) -> None:
    """Those that observe, or the first pair where nothing is observed: equal trees, and what differs in no file."""
    stems: Any = processes.stems(replace(SIDES, changed=changed), *PAIR_NAMES)
    assert [number for number in (OBSERVERS, 0, 1) if all(stem.start.probe for stem in stems.ready(number))] == [first]


@pytest.mark.parametrize("is_fresh", [False, True])
def test_observers_are_of_one_test(stems: Any, is_fresh: bool) -> None:
    """They have its seed and end after it; new interpreters, which run all tests, are one test's at a time."""
    used = stems.new_interpreters() if is_fresh else stems
    with used.observers(1001) as (base, head):
        assert [worker.stem.name for worker in (base, head)] == ["base observer", "head observer"]
        assert base.seed == head.seed == 1001
        assert used._observing.locked() is is_fresh
        assert base.did == head.did == []
    assert base.did == head.did == ([] if is_fresh else ["start_quitting", "end", "remove_files"])
    assert not used._observing.locked()


def trees(top: Path) -> tuple[Sides, dict[str, str]]:
    """Return sides whose trees differ in ``own.py`` and agree in ``same.py``, and base's paths by name."""
    for side in ("base", "head"):
        write(top / side, {"own.py": side, "same.py": ""})
    base, head = (
        replace(each, homes=(top / side,), tree=top / side) for each, side in ((BASE, "base"), (HEAD, "head"))
    )
    names = {name: str(top / "base" / name) for name in ("own.py", "same.py")}
    return replace(SIDES, base=base, head=head, packages=()), names


def test_what_observers_read_is_compared(processes: Processes, tmp_path: Path) -> None:
    """By content, whichever side has read it; where there were children, nobody knows what these have read."""
    sides, base_paths = trees(tmp_path)
    stems: Any = processes.stems(sides, *PAIR_NAMES)
    with stems.observers(1) as (base, head):
        base.read = [base_paths["same.py"], "/usr/lib/python3/os.py"]
        assert stems.reads(base, head, 1.0) == Reads(frozenset({"same.py"}))
        head.read = [str(tmp_path / "head/own.py")]
        assert stems.reads(base, head, 1.0) == Reads(frozenset({"same.py", "own.py"}), frozenset({"own.py"}))
        for worker in (base, head):
            worker.has_children = True
            assert stems.reads(base, head, 1.0) is None
            worker.has_children = False


def test_a_file_of_the_other_side_is_refused(processes: Processes, tmp_path: Path) -> None:
    """One that a module was loaded from, in any worker, and any that an observer has read."""
    sides, base_paths = trees(tmp_path)
    stems: Any = processes.stems(sides, *PAIR_NAMES)
    with stems.observers(1) as (base, head):
        base.loaded = base_paths
        stems.check_places(base, head)
        head.loaded = {"own": base_paths["own.py"]}
        for look in (stems.check_places, lambda *pair: stems.reads(*pair, 1.0)):
            with pytest.raises(SideError, match="HEAD has read a file of commit 1: own"):
                look(base, head)
        head.loaded, head.read = {}, [base_paths["own.py"]]
        with pytest.raises(SideError, match="HEAD has read a file of commit 1"):
            stems.reads(base, head, 1.0)


@pytest.mark.parametrize(("keys", "is_collected"), [(["test"], True), (["test", "new"], True), (["new"], False)])
def test_a_base_that_collects_none_of_the_tests_is_an_error(
    stems: Any, monkeypatch: pytest.MonkeyPatch, keys: list[str], is_collected: bool
) -> None:
    """With its own message; one test of several is enough."""
    monkeypatch.setattr(FakeStem, "errors", "ImportError: no such name")
    with contextlib.nullcontext() if is_collected else pytest.raises(SideError, match="no such name"):
        stems.check_collected(keys)


def test_pairs_that_confirm_are_of_a_second_loader(stems: Any) -> None:
    """New interpreters are of none."""
    assert not set(stems.ready(0)) & set(stems.ready(0, 1))
    assert [loader.forked for loader in loaders()] == [[["head", "base"]]] * 2
    fresh = stems.new_interpreters()
    assert fresh.ready(0) == fresh.ready(0, 1)
    assert len(loaders()) == 2


def lose(loader: FakeLoader, *arguments: object) -> None:
    raise loader.lost("the loader exited with code 1.\nits output")


def test_variables_of_a_side_are_its_own(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collecting leaves a side's cache of compiled code as the side has it; another value is set too late."""
    own = replace(SIDES, head=replace(HEAD, environment={"NUMBA_CACHE_DIR": "/own"}))
    collected = {"base": library_variables(), "head": {**library_variables(), "NUMBA_CACHE_DIR": "/own"}}
    monkeypatch.setattr(FakeStem, "variables", property(lambda stem: collected[stem.name.split()[0]]))
    assert all(stem.forks for stem in processes.stems(own, *PAIR_NAMES).ready(0))
    assert not processes.not_forked()
    collected["head"] = {**library_variables(), "NUMBA_CACHE_DIR": "/set while collecting"}
    assert not any(stem.forks for stem in processes.stems(own, *PAIR_NAMES).ready(0))
    (reason,) = processes.not_forked()
    assert "NUMBA_CACHE_DIR is set while tests are collected in head worker 0" in reason


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


def test_a_loader_leaves_out_what_each_side_has_for_itself(stems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What wants a package of a side or code of the tree: it is started anew without that."""
    monkeypatch.setattr(FakeLoader, "dirty", ["dirt.a"])
    assert all(stem.forks for stem in stems.ready(0))
    assert [loader.loaded for loader in loaders()] == [["numpy", "dirt.a"], ["numpy"]]
    assert [loader.refused for loader in loaders()] == [(["mine"], "/t", [])] * 2


@pytest.mark.parametrize(
    ("setup_s", "fresh", "did"),
    [
        (0.1, False, ["start_quitting", "end", "remove_files"]),
        (5.0, False, []),
        (0.0, False, ["start_quitting", "end", "remove_files"]),
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


def new_group() -> WorkerGroup:
    return WorkerGroup("test", None, lambda message: None, setup_s=1.0, patience_s=1.0)


@pytest.mark.parametrize(("lost", "did"), [("dead", ["end"]), ("cancelled", [])])
def test_a_lost_worker_ends_those_on_their_way(stems: Any, lost: str, did: list[str]) -> None:
    """One that is at its call stays, and so do all where the run has cancelled one."""
    group, (first, second), (third, _) = new_group(), stems.workers(0), stems.workers(1)
    second.to_be = lost
    with pytest.raises(WorkerLostError):
        group.open([first, second, third])
    assert [worker.did for worker in (first, second, third)] == [[], did, did]


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


def test_a_loader_begins_with_what_own_code_sets(stems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library variable that no imported module sets is there before a loader imports any."""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(FakeLoader, "set", {"MPLBACKEND": "Agg"})
    stems.ready(0)
    begun = [loader.environment.get("OMP_NUM_THREADS") for loader in loaders()]
    assert [number == "77" for number in begun] == [False, True]
    assert "MPLBACKEND" not in loaders()[-1].environment
