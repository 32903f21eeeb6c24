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

import pytest
from wording import Wording

from pytest_rlperf.model.sides import PROTOCOL, Project, Sides
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers import stems as module
from pytest_rlperf.workers.guardian import Guardian
from pytest_rlperf.workers.loader import library_variables
from pytest_rlperf.workers.process import WorkerLostError
from pytest_rlperf.workers.stems import (
    DoubtfulError,
    Processes,
    Stems,
    WorkerGroup,
)

GB = 10**9
PROJECT = Project(Path("/t"), Path("/t"), None, (), (), (), (), (), (), Path("/t/baselines"))
HEAD = PROJECT.side("HEAD", sys.executable, (), (Path("/t"),))
BASE = replace(HEAD, label="commit 1", homes=(Path("/base"),), environment={"SIDE": "base"})
SIDES = Sides(base=BASE, head=HEAD, packages=("mine",), changed=("a.py",), notes=())


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
        self.loaded: dict[str, str] = {}

    def start_run(self, *arguments: object, **settings: object) -> None:
        self.running = True

    def wait_called(self) -> None:
        if self.to_be:
            self.alive = self.to_be == "cancelled"
            raise self.lost("lost")
        self.called = m.Called("component", "call", 1.0)


def processes_of(*, forks: bool) -> Processes:
    """Return the processes of a run that forks, or starts new interpreters."""
    return Processes(dict(os.environ), (), (), forks, Path("/t"), markup=False, share_terminal=False, start_limit_s=1.0)


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


def test_neither_side_is_always_the_first_to_be_forked(stems: Any) -> None:
    """Head is first in even pairs; base's stem is returned first. The first two find out whether copies work."""
    found = [[(stem.name, stem.is_base, stem.start.probe) for stem in stems.ready(number)] for number in range(2)]
    assert found == [
        [("base 0", True, True), ("head 0", False, True)],
        [("base 1", True, False), ("head 1", False, False)],
    ]
    assert [loader.forked for loader in loaders()] == [[["head", "base"], ["base", "head"]]]


def test_pairs_that_confirm_are_of_a_second_loader(stems: Any) -> None:
    """New interpreters are of none."""
    assert not set(stems.ready(0)) & set(stems.ready(0, 1))
    assert [loader.forked for loader in loaders()] == [[["head", "base"]]] * 2
    fresh = stems.new_interpreters()
    assert fresh.ready(0) == fresh.ready(0, 1)
    assert len(loaders()) == 2


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
    """It is started anew without that."""
    monkeypatch.setattr(FakeLoader, "dirty", ["dirt.a"])
    assert all(stem.forks for stem in stems.ready(0))
    assert [loader.loaded for loader in loaders()] == [["numpy", "dirt.a"], ["numpy"]]


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
