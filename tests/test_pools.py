"""Pools of workers and base sides, with workers that are no processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wording import Wording

from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.model import Project, Sides
from pytest_rlperf.sides import prepare
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers import pool as pools
from pytest_rlperf.workers.guardian import Guardian
from pytest_rlperf.workers.pool import BaseSides, WorkerGroup, WorkerPool, WorkerPools
from pytest_rlperf.workers.process import StartSettings, WorkerLostError

GB = 10**9
PROJECT = Project(Path("/t"), Path("/t"), None, (), (), (), (), (), (), Path("/t/baselines"))
HEAD = PROJECT.side("HEAD", "python", (), (Path("/t"),))


class FakeWorker:
    """A worker of one GB that has collected one test."""

    def __init__(self, number: int, settings: StartSettings, scratch: Path, guardian: object) -> None:
        self.name = f"{settings.name} {number}"
        self.alive = True
        self.ready = False
        self.running = False
        self.called: m.Called | None = None
        self.keys = frozenset({"test"})
        self.errors = ""
        self.loaded: dict[str, str] = {}
        self.importers: dict[str, str] = {}
        self.has_children = False
        self.cancelled = False
        self.did: list[str] = []
        self.lost = ""

    def memory(self) -> int:
        """Return a GB."""
        return GB

    def wait_ready(self) -> None:
        """Be ready."""
        self.ready = True

    def start_run(self, key: str, next_key: str | None, **settings: Any) -> None:
        """Begin a test."""
        self.running = True

    def wait_called(self) -> m.Called:
        """Be at the call, unless the worker is to die or to be cancelled before."""
        if self.lost:
            self.alive = self.lost == "cancelled"
            raise WorkerLostError(self, "lost")  # type: ignore[arg-type]
        self.called = m.Called("component", "call", 1.0)
        return self.called

    def cancel(self) -> None:
        """Be cancelled."""
        self.cancelled = True

    def start_unwinding(self) -> None:
        """Leave the name of this method."""
        self.did.append("start_unwinding")

    def unwind(self) -> None:
        """Leave the name of this method."""
        self.did.append("unwind")

    def __getattr__(self, name: str) -> Any:
        """Return a method that only leaves its name in ``did``, and ends the worker if that is its name."""

        def method(*arguments: object) -> None:
            self.did.append(name)
            self.alive &= name != "end"

        return method


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerPools:
    """Return the pools of a run whose workers are no processes."""
    monkeypatch.setattr(pools, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(Guardian, "new_directory", lambda self: tmp_path)
    monkeypatch.setattr(Guardian, "guarding_commands", lambda self: contextlib.nullcontext())
    return WorkerPools(tmp_path, markup=False, share_terminal=False, start_limit_s=1.0)


def members(pool: WorkerPool) -> dict[int, Any]:
    """Return the workers of a pool by number."""
    return dict(pool._workers)


def test_numbers_are_of_one_test_until_they_are_given_back(many: WorkerPools) -> None:
    """The lowest that no test has, and none that is to be avoided."""
    pool = many.add("worker", HEAD)
    assert [pool.claim(), pool.claim(avoid=[1]), pool.claim()] == [0, 2, 1]
    pool.give_back(2)
    assert pool.claim() == 2


def test_lost_workers_are_replaced_and_the_others_kept(many: WorkerPools, wording: Wording) -> None:
    """A dead one's process is ended first; once the run is stopped, none is started."""
    pool = many.add("worker", HEAD)
    before: list[Any] = list(pool.ensure(3))
    before[1].alive = False
    after = pool.ensure(3)
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert before[1].did == ["end"]
    assert before[0] in pool
    assert before[1] not in pool
    many.cancel()
    assert all(worker.cancelled for worker in members(pool).values())
    with wording.raises(MeasurementError):
        pool.start([0])


def test_unclaimed_workers_end_where_memory_is_scarce(many: WorkerPools, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones first, with those of the other side; the first five, and claimed ones, stay."""
    head, base = many.add("head", HEAD), many.add("base", HEAD)
    head.ensure(9)
    base.ensure(7)
    for _ in range(7):
        head.claim()
    head.give_back(5)
    known = [*members(head).values(), *members(base).values()]
    monkeypatch.setattr(pools, "usable_memory", lambda: 32 * GB)  # workers may have half of it
    head.trim(base)
    assert (len(members(head)), len(members(base))) == (9, 7)
    monkeypatch.setattr(pools, "usable_memory", lambda: 30 * GB)
    head.trim(base)
    assert sorted(members(head)) == [*range(8)]
    monkeypatch.setattr(pools, "usable_memory", lambda: GB)
    head.trim(base)
    assert sorted(members(head)) == [0, 1, 2, 3, 4, 6]
    assert sorted(members(base)) == [0, 1, 2, 3, 4, 6]
    ended = [worker.name for worker in known if not worker.alive]
    assert ended == ["head 5", "head 7", "head 8", "base 5"]
    head.trim()
    assert sorted(members(head)) == [0, 1, 2, 3, 4, 6]


def test_a_pool_ends_its_workers_together(many: WorkerPools) -> None:
    """Each gets the order to quit before the first is waited for, but for those that are dead."""
    pool = many.add("worker", HEAD)
    workers: list[Any] = list(pool.ensure(2))
    workers[1].alive = False
    many.close()
    assert workers[0].did == ["start_quitting", "start_quitting", "interrupt_call", "end"]
    assert workers[1].did == ["interrupt_call", "end"]
    assert not members(pool)


# --------------------------------------------------------------------------- groups


def test_a_group_opens_once_and_keeps_its_reporter(many: WorkerPools) -> None:
    """Workers leave one by one or all but the reporter; a dead one gets no order."""
    pool = many.add("worker", HEAD)
    group = WorkerGroup("test", None, lambda message: None, setup_s=1.0, patience_s=1.0)
    ((first, second, third),) = group.engage((pool, 3))
    ((again,),) = group.engage((pool, 1))
    assert again is group.reporter is first
    assert group.called.component == "component"
    group.leave(third)
    assert group.workers == [first, second]
    ((*_, fourth),) = group.engage((pool, 4))
    fourth.alive = False  # type: ignore[misc]
    group.release()
    assert group.workers == [first]
    left = ["start_unwinding", "unwind"]
    assert [worker.did for worker in members(pool).values()] == [[], left, ["unwind", *left], []]


def test_what_a_test_holds_is_given_back_at_its_end() -> None:
    """The last first, and once: its numbers, and the machine where it has that."""
    did: list[str] = []

    @contextlib.contextmanager
    def machine() -> Iterator[None]:
        did.append("taken")
        yield
        did.append("left")

    group = WorkerGroup("test", None, lambda message: None, setup_s=1.0, patience_s=1.0)
    group.at_end(lambda: did.append("given back"))
    before = group.has_machine
    group.enter(machine())
    assert (before, group.has_machine, did) == (False, True, ["taken"])
    group.close()
    group.close()
    assert did == ["taken", "left", "given back"]


@pytest.mark.parametrize(("lost", "did"), [("dead", ["end"]), ("cancelled", [])])
def test_a_lost_worker_ends_those_on_their_way(many: WorkerPools, lost: str, did: list[str]) -> None:
    """One that is at its call stays, and so do all where the run has cancelled one."""
    pool = many.add("worker", HEAD)
    workers: list[Any] = list(pool.ensure(3))
    workers[1].lost = lost
    group = WorkerGroup("test", None, lambda message: None, setup_s=1.0, patience_s=1.0)
    with pytest.raises(WorkerLostError):
        group.open(workers)
    assert [worker.did for worker in workers] == [[], did, did]


# --------------------------------------------------------------------------- base sides


def sides(**changes: Any) -> Sides:
    """Return the sides of a comparison of this tree with a commit."""
    base = replace(HEAD, label="commit 1", homes=(Path("/base"),))
    return replace(Sides(base=base, head=HEAD, packages=(), changed=("a.py",), notes=()), **changes)


def test_sides_share_todays_workers_where_they_start_alike(many: WorkerPools) -> None:
    """A head that starts otherwise has a pool of its own; each side knows the homes of the other."""
    heads = many.add("worker", HEAD)
    bases = BaseSides(PROJECT, many, heads, HEAD)
    one = bases.add(sides())
    assert one.head is heads
    assert one.base._settings.foreign == ("/t",)
    assert not one.is_same_code
    assert bases.add(sides(changed=())).is_same_code
    assert not bases.add(sides(changed=None)).is_same_code
    assert bases.add(sides(head=replace(HEAD, environment={"A": "1"}))).head is not heads
    (worker,) = one.base.ensure(1)
    assert one.owns(worker)
    assert bases.is_base(worker)
    assert not bases.is_base(heads.ensure(1)[0])
    one.trim()


def test_a_base_that_cannot_be_had_is_an_error_every_time(
    many: WorkerPools, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """It is prepared once; a base that is given up later answers with that error."""
    asked = []

    def commit_sides(sha: str, project: Project, show: object) -> Sides:
        asked.append(sha)
        if sha == "gone":
            raise SideError("no such commit")
        return sides()

    monkeypatch.setattr(prepare, "commit_sides", commit_sides)
    bases = BaseSides(PROJECT, many, many.add("worker", HEAD), HEAD)
    for _ in range(2):
        with wording.raises(SideError):
            bases.of_commit("gone", print)
    found = bases.of_commit("here", print)
    assert bases.of_commit("here", print) is found
    assert asked == ["gone", "here"]
    bases.give_up(found, SideError("it loads other code"))
    with wording.raises(SideError):
        bases.of_commit("here", print)
    with wording.raises(SideError):
        bases.of_commit("gone", print)


@pytest.mark.parametrize(
    "errors",
    [
        "",
        "E   ModuleNotFoundError: No module named 'no_such.x'",
    ],
)
def test_a_base_without_any_of_the_tests_is_an_error(many: WorkerPools, errors: str, wording: Wording) -> None:
    """The message has base's own, and names what is not installed."""
    one = BaseSides(PROJECT, many, many.add("worker", HEAD), HEAD).add(sides())
    one.check_collected(["test"])
    one.check_collected(["other", "test"])
    members(one.base)[0].errors = errors
    with wording.raises(SideError):
        one.check_collected(["other"])


def test_files_of_children_may_always_differ(many: WorkerPools, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are unknown; without children the files that both sides have loaded decide."""
    one = BaseSides(PROJECT, many, many.add("worker", HEAD), HEAD).add(sides())
    (base,), (head,) = one.base.ensure(1), one.head.ensure(1)
    monkeypatch.setattr(pools, "check_loaded", lambda *arguments: False)
    assert not one.may_differ(base, head)
    for worker in (base, head):
        worker.has_children = True
        assert one.may_differ(base, head)
        worker.has_children = False
    monkeypatch.setattr(pools, "check_loaded", lambda *arguments: True)
    assert one.may_differ(base, head)


def test_homes_that_both_sides_have_are_foreign_to_none(many: WorkerPools) -> None:
    """Sides that differ by their packages have one tree."""
    one = BaseSides(PROJECT, many, many.add("worker", HEAD), HEAD).add(sides(base=HEAD))
    assert one.base._settings.foreign == ()
    assert one.base._settings.watched == ("/t", str(one.base._scratch))
