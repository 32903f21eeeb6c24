"""The drivers of a run: who has one, how they begin and end, and what they say, with processes that are none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import msgspec
import pytest
from fake_drivers import FakeDriver, FakeGuardian, all_of, carried_out, checked, collected, fake_processes, usual
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import PROTOCOL, Sides
from pytest_rlperf.run.drivers import KEPT_MOST, PAIR_NAMES, Drivers, Processes
from pytest_rlperf.run.endpoints import Answered, BrokenError, DriverLostError, StoppedError
from pytest_rlperf.run.schedule import Job, Spawn, Steps
from pytest_rlperf.spawn.variables import library_variables

PROJECT = builders.project(Path("/t"))
HEAD = PROJECT.side("HEAD", sys.executable, (), (Path("/head"),))
BASE = replace(HEAD, label="commit 1", homes=(Path("/base"),), environment={"SIDE": "base"})
SIDES = Sides(base=BASE, head=HEAD, packages=("mine",), changed=("a.py",), notes=(), top=Path("/t"))
DONE = wire.Done("failed", "E  KeyError", [], name_missing=False)


class Pool:
    """The drivers of a comparison, and the fake processes of its run."""

    def __init__(self, processes: Processes, known: FakeGuardian, sides: Sides = SIDES, *names: str) -> None:
        self.processes = processes
        self.known = known
        self.drivers = processes.drivers(sides, *(names or PAIR_NAMES))

    def run(self, *steps: Steps[Any]) -> list[Any]:
        return carried_out(self.processes, all_of(*steps))

    def lease(self, *avoid: FakeDriver, of: Drivers | None = None, **wanted: Any) -> FakeDriver:
        """Return a driver as a test gets it."""
        found: FakeDriver
        (found,) = self.run((of or self.drivers).lease(avoid, **wanted))
        return found


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    return Pool(*fake_processes(tmp_path, monkeypatch))


# --------------------------------------------------------------------------- who has one


def test_a_driver_is_one_tests_until_it_is_given_back(pool: Pool) -> None:
    """The next test has that of the lowest number that it does not avoid, though its own pairs have one each."""
    first, second = pool.lease(), pool.lease()
    assert (first.number, second.number) == (0, 1)
    for driver in (second, first):
        driver.give_back()
    assert pool.lease() is first
    first.give_back()
    assert pool.lease(first) is second
    assert pool.lease(first, second).number == 2
    assert len(pool.known.drivers) == 3


@pytest.mark.parametrize("is_worn", [False, True])
def test_no_test_has_a_driver_that_was_told_to_end(pool: Pool, is_worn: bool) -> None:
    """One that a test has retired, or that has lost a process, while it may yet be alive."""
    driver = pool.lease()
    if is_worn:
        driver.is_worn = True
        driver.give_back()
    else:
        driver.start_ending(0.0)
    assert driver.is_ended
    again = pool.lease()
    assert again is not driver
    assert not again.is_ended


def test_drivers_of_high_numbers_end_with_their_test(pool: Pool) -> None:
    """Few tests have so many pairs; those that a test still has go on."""
    drivers = [pool.lease() for _ in range(KEPT_MOST + 2)]
    for driver in drivers[:-1]:
        driver.give_back()
    pool.drivers.trim()
    assert [driver.number for driver in drivers if driver.is_ended] == [KEPT_MOST]
    drivers[-1].give_back()
    pool.drivers.trim()
    assert [driver.number for driver in drivers if driver.is_ended] == [KEPT_MOST, KEPT_MOST + 1]


def test_a_new_driver_is_none_that_ran_a_test(pool: Pool) -> None:
    """Though there is one that nobody has."""
    used = pool.lease()
    used.give_back()
    assert pool.lease(new=True) is not used


def test_a_wide_driver_serves_narrow_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One side alone has as many templates as a test has workers, and a test of fewer can use them."""
    pool = Pool(*fake_processes(tmp_path, monkeypatch), SIDES, "worker")
    wide = pool.lease(width=3)
    assert [each.name for each in wide.settings.templates] == ["worker 0", "worker 1", "worker 2"]
    assert [each.is_base for each in wide.settings.templates] == [False] * 3
    assert [each.reports for each in wide.settings.templates] == [True, False, False]
    assert wide.settings.own_heap
    wide.give_back()
    assert pool.lease(width=1) is wide
    wide.give_back()
    assert pool.lease(width=4).width == 4


@pytest.mark.parametrize("is_fresh", [False, True])
def test_observers_are_apart(pool: Pool, is_fresh: bool) -> None:
    """No pair has their driver, no two tests have one at once, and the next test has it again."""
    drivers = pool.drivers.new_interpreters() if is_fresh else pool.drivers
    observers = pool.lease(of=drivers, observes=True)
    assert observers.settings.shared.observes
    assert {each.name for each in observers.settings.templates} == {"base observer", "head observer"}
    assert pool.lease(of=drivers, observes=True) is not observers
    observers.give_back()
    assert pool.lease(of=drivers) is not observers
    assert pool.lease(of=drivers, observes=True) is observers


def break_off(job: Steps[Any]) -> Steps[None]:
    """Begin a job, and break it off where it waits first."""
    begun: Job[Any] = yield Spawn(job)
    begun.close()


def test_a_driver_whose_test_is_broken_off_is_anothers(pool: Pool) -> None:
    """Pairs that are not needed any more may have a driver that has yet to collect."""
    drivers = pool.drivers.new_interpreters()
    pool.run(break_off(drivers.lease()))
    (left,) = pool.known.drivers
    pool.lease(of=drivers)  # while which it has collected
    assert pool.lease(of=drivers) is left


def test_a_driver_ends_where_nobody_learns_what_it_imports(pool: Pool) -> None:
    """Whoever was to have it is broken off while its templates import; no test has it after that."""
    driver = pool.lease()
    driver.give_back()
    pool.drivers.learn(checked(imported=["scipy"]), checked())
    pool.known.answer = lambda driver, order: wire.Step("importing")
    pool.run(break_off(pool.drivers.lease()))
    assert not driver.is_taken
    assert [type(order) for order in driver.orders] == [wire.ImportAll]
    driver.say(wire.Answer(1, []))
    pool.known.answer = lambda driver, order: []
    assert driver not in [pool.lease(), pool.lease()]
    assert not driver.alive or driver.is_ended


def test_observers_whose_test_is_broken_off_are_anothers(pool: Pool) -> None:
    """Those that collect, and those that have collected and wait until no others do."""
    pool.known.collected = lambda start: None if start.shared.observes and not start.own.number else collected(start)

    def tests() -> Steps[None]:
        jobs: list[Job[Any]] = []
        for _ in range(2):
            jobs.append((yield Spawn(pool.drivers.lease_observers())))
        yield from pool.drivers.lease()
        yield from pool.drivers.lease()
        for job in jobs:
            job.close()

    pool.run(tests())
    collecting, waiting = (driver for driver in pool.known.drivers if driver.settings.shared.observes)
    assert (collecting.is_awaited, waiting.is_awaited) == (True, False)
    assert (collecting.is_taken, waiting.is_taken) == (False, False)
    assert pool.lease(observes=True) is waiting


# --------------------------------------------------------------------------- what they begin with


def test_neither_side_is_always_the_first_to_be_forked(pool: Pool) -> None:
    """Head is first in even pairs; what base's template has collected is returned first."""
    pool.known.collected = lambda start: msgspec.structs.replace(collected(start), keys=[start.own.name])
    drivers = pool.run(*(pool.drivers.lease() for _ in range(3)))
    assert [[key for ready in driver.collected for key in ready.keys] for driver in drivers] == [
        [f"{side} worker {number}" for side in ("base", "head")] for number in range(3)
    ]
    (server,) = pool.known.servers
    in_order = [[each.environment.get("SIDE", "head") for each in settings.templates] for settings in server.forked]
    assert in_order == [["head", "base"], ["base", "head"], ["head", "base"]]


def test_only_observers_observe(pool: Pool) -> None:
    """The others measure; observers look at the same places, and are never the ones that the user sees."""
    both = [pool.lease(observes=observes).settings for observes in (True, False)]
    assert [settings.shared.observes for settings in both] == [True, False]
    assert {each.name: each.reports for settings in both for each in settings.templates} == {
        "base observer": False,
        "head observer": False,
        "base worker 0": False,
        "head worker 0": True,
    }
    assert {tuple(settings.shared.watched) for settings in both} == {("/base", "/head", "/t")}
    assert not any(each.reports for each in pool.lease().settings.templates)


@pytest.mark.parametrize(("changed", "observed"), [(("a.py",), True), ((), False), (None, False)])
def test_the_first_driver_finds_out_whether_copies_work(
    pool: Pool, changed: tuple[str, ...] | None, observed: bool
) -> None:
    """Those that observe, or the first pair where nothing is observed: equal trees, and what differs in no file."""
    pool.drivers = pool.processes.drivers(replace(SIDES, changed=changed), *PAIR_NAMES)
    found = [pool.lease(observes=observes) for observes in (True, False, False)]
    probing = [all(each.probe for each in driver.settings.templates) for driver in found]
    assert probing == ([True, False, False] if observed else [probing[0], True, False])


def test_pairs_that_confirm_are_of_a_second_server(pool: Pool) -> None:
    """New interpreters are of none."""
    first, second = pool.lease(), pool.lease(server=1)
    assert (first.preloaded, second.preloaded) == (0, 1)
    assert first.number == second.number == 0
    assert [len(server.forked) for server in pool.known.servers] == [1, 1]
    fresh = pool.drivers.new_interpreters()
    driver = pool.lease(of=fresh)
    driver.give_back()
    assert pool.lease(of=fresh, server=1) is driver
    assert (driver.preloaded, driver.forks) == (None, False)
    assert len(pool.known.servers) == 2


def test_variables_of_a_side_are_its_own(pool: Pool) -> None:
    """Collecting leaves a side's cache of compiled code as the side has it; another value is set too late."""
    own = replace(SIDES, head=replace(HEAD, environment={"NUMBA_CACHE_DIR": "/own"}))
    left = {"base": library_variables(), "head": {**library_variables(), "NUMBA_CACHE_DIR": "/own"}}
    pool.known.collected = lambda start: wire.Ready(PROTOCOL, variables=left[start.own.name.split()[0]])
    pool.drivers = pool.processes.drivers(own, *PAIR_NAMES)
    assert pool.lease().forks
    assert not pool.processes.not_forked()
    left["head"] = {**library_variables(), "NUMBA_CACHE_DIR": "/set while collecting"}
    pool.drivers = pool.processes.drivers(own, *PAIR_NAMES)
    assert not pool.lease().forks
    (reason,) = pool.processes.not_forked()
    assert "NUMBA_CACHE_DIR is set while tests are collected in head worker 0" in reason


@pytest.mark.parametrize(("keys", "is_collected"), [(["test"], True), (["test", "new"], True), (["new"], False)])
def test_a_base_that_collects_none_of_the_tests_is_an_error(pool: Pool, keys: list[str], is_collected: bool) -> None:
    """With its own message; one test of several is enough."""
    pool.known.collected = lambda settings: msgspec.structs.replace(
        collected(settings), errors="ImportError: no such name"
    )
    with contextlib.nullcontext() if is_collected else pytest.raises(SideError, match="no such name"):
        pool.run(pool.drivers.check_collected(keys))
    (driver,) = pool.known.drivers
    assert pool.lease(observes=True) is driver


# --------------------------------------------------------------------------- preload servers


def faulty(start: wire.SessionSettings) -> wire.Ready:
    return msgspec.structs.replace(collected(start), fault="a copy of it hung" if start.shared.forks else "")


def sets_a_variable(start: wire.SessionSettings) -> wire.Ready:
    return msgspec.structs.replace(collected(start), variables={**library_variables(), "OMP_WAIT": "1"})


def test_what_base_has_collected_is_found_out_once(pool: Pool) -> None:
    """Each test asks for it, before its turn and in it; another test may have the driver by then."""
    pool.run(pool.drivers.check_collected(["test"]))
    pool.lease(observes=True)
    pool.run(pool.drivers.check_collected(["test"]))
    with pytest.raises(SideError, match="none of the 1 measured tests"):
        pool.run(pool.drivers.check_collected(["other"]))
    assert len(pool.known.drivers) == 1


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({"collected": faulty}, id="copies do not work"),
        pytest.param({"collected": sets_a_variable}, id="a variable is set"),
        pytest.param({"lost_at": wire.Load}, id="the server is lost"),
        pytest.param({"lost_at": wire.ForkDriver}, id="the server is lost at a fork"),
        pytest.param({"imported": lambda load: wire.Imported(["all"])}, id="all modules want a package under test"),
    ],
)
def test_drivers_that_cannot_be_forked_are_new_interpreters(
    pool: Pool, wording: Wording, known: dict[str, object]
) -> None:
    """All from then on, with the reason; those that were forked end."""
    for name, value in known.items():
        setattr(pool.known, name, value)
    assert not any(pool.lease().forks for _ in range(2))
    assert pool.processes.not_forked() == wording
    assert all(driver.is_ended for driver in pool.known.drivers if driver.forks)
    assert not any(server.alive for server in pool.known.servers)


def test_forked_drivers_at_work_end_with_their_test(pool: Pool) -> None:
    """Where a later one shows that copies do not work; no test has them after that."""
    at_work, ended = pool.lease(), list[bool]()
    pool.known.collected = faulty
    assert not pool.lease().forks
    ended.append(at_work.is_ended)
    at_work.give_back()
    assert [*ended, at_work.is_ended] == [False, True]
    assert not pool.lease().forks


@pytest.mark.parametrize("known", [{"lost_at": wire.Load}, {"lost_at": wire.ForkDriver}, {"collected": faulty}])
def test_pairs_that_find_out_at_once_end_no_new_interpreters(pool: Pool, known: dict[str, object]) -> None:
    """Each pair has one of its own, and one server was started for all of them."""
    for name, value in known.items():
        setattr(pool.known, name, value)
    drivers = pool.run(*(pool.drivers.lease() for _ in range(3)))
    assert len({driver.number for driver in drivers}) == len({*map(id, drivers)}) == 3
    assert not any(driver.is_ended or driver.forks for driver in drivers)
    assert len(pool.known.servers) == 1
    for driver in drivers:
        driver.give_back()
    assert pool.lease() in drivers


def test_nobody_waits_for_a_server_that_is_of_no_use_any_more(pool: Pool) -> None:
    """Another pair has found out that copies do not work while this one's server imports."""
    pool.known.imported = lambda load: wire.Imported() if len(pool.known.servers) == 1 else None
    pool.known.collected = faulty
    drivers = pool.run(pool.drivers.lease(), pool.drivers.lease(server=1))
    assert [driver.forks for driver in drivers] == [False, False]
    assert [server.alive for server in pool.known.servers] == [False, False]


def test_a_server_leaves_out_what_each_side_has_for_itself(pool: Pool) -> None:
    """What wants a package of a side or code of the tree: it is started anew without that."""
    pool.known.imported = lambda load: wire.Imported(["dirt.a"] if "dirt.a" in load.modules else [])
    assert pool.lease().forks
    (first,), (second,) = (server.loaded for server in pool.known.servers)
    assert (first.modules, second.modules) == (["numpy", "dirt.a"], ["numpy"])
    assert [(load.packages, load.top) for load in (first, second)] == [(["mine"], "/t")] * 2


def test_a_server_begins_with_what_own_code_sets(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library variable that no imported module sets is there before a server imports any."""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    for number in range(2):
        pool.run(pool.drivers.lease(server=number))
    begun = [server.environment.get("OMP_NUM_THREADS") == "77" for server in pool.known.servers]
    assert begun == [True, False, True], "the second server knows it"
    assert [server.alive for server in pool.known.servers] == [True, False, True]


@pytest.mark.parametrize(
    ("setters", "begun"),
    [
        ({"/t/tests/conftest.py"}, [True]),
        ({"/lib/torch.py"}, [True, False]),
        ({"/lib/torch.py", "/t/tests/conftest.py"}, [True, False]),
    ],
)
def test_one_server_will_do_where_only_the_trees_code_has_set_a_variable(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, setters: set[str], begun: list[bool]
) -> None:
    """No imported module sets it then, which a second server without the variable would have to show."""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    pool.processes.began = pool.processes.began._replace(setters={"OMP_NUM_THREADS": setters})
    assert pool.lease().forks
    assert [server.environment.get("OMP_NUM_THREADS") == "77" for server in pool.known.servers] == begun
    assert [server.alive for server in pool.known.servers] == begun


def test_a_server_has_what_modules_set_from_their_import_on(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a module sets is not there before, also where the tests' own code sets another one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pool.known.imported = lambda load: wire.Imported([], {"MPLBACKEND": "Agg"})
    driver = pool.lease()
    (found,) = [server for server in pool.known.servers if server.alive]
    assert [found.environment.get(name) for name in ("OMP_NUM_THREADS", "MPLBACKEND")] == ["77", None]
    assert [each.environment["MPLBACKEND"] for each in driver.settings.templates] == ["Agg", "Agg"]


def test_a_server_begins_before_the_sides_are_known(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drivers take it over, with what it has imported by then: nothing that needs packages of the tree."""
    monkeypatch.setattr("pytest_rlperf.run.drivers.packages_of", lambda top: {"mine", "others"})
    pool.processes.load_early()
    assert pool.lease().forks
    (server,) = pool.known.servers
    assert [(load.modules, load.packages) for load in server.loaded] == [(["numpy", "dirt.a"], ["mine", "others"])]


@pytest.mark.parametrize("fault", ["a module differs", "a package differs", "lost", "never needed"])
def test_a_server_that_began_too_early_ends(pool: Pool, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """It has imported what turns out to differ or may need that, has ended, or no process of the run is forked."""
    differing = {"another"} if fault == "a package differs" else {"mine"}
    monkeypatch.setattr("pytest_rlperf.run.drivers.packages_of", lambda top: differing)
    pool.known.lost_at = wire.Load if fault == "lost" else None
    pool.processes.load_early()
    pool.known.lost_at = None
    if fault == "a module differs":
        monkeypatch.setattr("pytest_rlperf.run.drivers.modules_alike", lambda *arguments: ["numpy"])
    if fault == "never needed":
        pool.known.collected = faulty
    driver = pool.lease()
    assert not pool.known.servers[0].alive
    assert driver.forks == (fault != "never needed")
    if driver.forks:
        modules = ["numpy"] if fault == "a module differs" else ["numpy", "dirt.a"]
        assert [load.modules for load in pool.known.servers[1].loaded] == [modules]


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_what_python_runs_at_its_start_takes_new_interpreters(pool: Pool, tmp_path: Path, name: str) -> None:
    """A copy of a server has not run it: a module of the tree on PYTHONPATH."""
    file = tmp_path / f"{name}.py"
    file.touch()
    began = pool.processes.began
    pool.processes.began = began._replace(variables={**began.variables, "PYTHONPATH": str(tmp_path)})
    assert pool.lease().forks
    pool.drivers = pool.processes.drivers(replace(SIDES, top=tmp_path), *PAIR_NAMES)
    assert not pool.lease().forks
    assert pool.processes.not_forked() == [f"{file} is run when Python starts"]


# --------------------------------------------------------------------------- what they say


def stopped(order: int, *, is_doubtful: bool, done: wire.Done | None = None) -> wire.Stopped:
    return wire.Stopped(order, wire.Stop("base worker 0", "it died", True, is_doubtful, done=done))


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_driver_that_cannot_collect_ends(pool: Pool, is_fresh: bool) -> None:
    """Its test has the error, and nothing of it is left that would never be used."""
    pool.known.collected = lambda settings: stopped(0, is_doubtful=False)
    with pytest.raises(StoppedError, match="it died") as caught:
        pool.lease(of=pool.drivers.new_interpreters() if is_fresh else pool.drivers)
    assert caught.value.is_due_to_base
    (driver,) = pool.known.drivers
    assert driver.is_ended or not driver.alive


def answering(*messages: Callable[[int], wire.Message]) -> Callable[[FakeDriver, wire.Order[Any]], object]:
    """Return what says these messages for an order, the last one as the answer."""

    def answer(driver: FakeDriver, order: wire.Order[Any]) -> object:
        *before, last = [make(order.number) for make in messages]
        for message in before:
            driver.say(message)
        return last

    return answer


def test_what_comes_before_an_answer_is_passed_on(pool: Pool) -> None:
    """Steps are shown, reports forwarded, and answers to earlier orders of no interest."""
    driver, reported = pool.lease(), wire.Reported({})
    seen: list[Any] = []
    driver.show, driver.reports = seen.append, seen
    before = [lambda _: wire.Step("checking"), lambda _: reported, lambda number: wire.Answer(number - 1, [5.0])]
    pool.known.answer = answering(*before, lambda number: wire.Answer(number, [1.0, 2.0]))
    assert pool.run(iter(driver.give(wire.EndIdle()))) == [Answered([1.0, 2.0])]
    assert seen == ["checking", reported]
    driver.give_back()
    pool.known.answer = answering(*before, lambda number: wire.Answer(number, [1.0, 2.0]))
    pool.run(iter(driver.give(wire.EndIdle())))
    assert seen == ["checking", reported]


@pytest.mark.parametrize(
    ("answer", "error", "is_worn"),
    [
        (lambda number: stopped(number, is_doubtful=True), StoppedError, True),
        (lambda number: stopped(number, is_doubtful=True, done=DONE), StoppedError, False),
        (lambda number: wire.Broken(number, "ValueError: why"), BrokenError, False),
        (lambda number: b"no message", DriverLostError, True),
    ],
)
def test_an_order_that_is_not_carried_out_is_an_error(
    pool: Pool, answer: Callable[[int], wire.Message | bytes], error: type[Exception], is_worn: bool
) -> None:
    """A driver that has lost a process ends with the test; one whose test has left goes on."""
    driver = pool.lease()
    pool.known.answer = lambda driver, order: answer(order.number)
    with pytest.raises(error) as caught:
        pool.run(iter(driver.give(wire.EndIdle())))
    assert type(caught.value) is error
    pool.known.answer = usual
    driver.give_back()
    assert (driver.is_ended or not driver.alive) is is_worn
    assert (pool.lease() is driver) is not is_worn


def test_a_driver_that_is_gone_is_lost(pool: Pool) -> None:
    """Whether it dies while it is waited for or before, another one may do better."""
    for die_before in (False, True):
        driver = pool.lease()

        def die(driver: FakeDriver, order: wire.Order[Any]) -> None:
            driver.die()

        pool.known.answer = die
        if die_before:
            driver.die()
        with pytest.raises(DriverLostError) as caught:
            pool.run(iter(driver.give(wire.EndIdle())))
        assert caught.value.stop == wire.Stop(driver.name, str(caught.value), is_doubtful=True)
        driver.give_back()
        assert pool.lease() is not driver


def test_all_processes_end_with_the_run(pool: Pool) -> None:
    """Those that a test has, and the servers that they were forked from."""
    pool.lease()
    pool.lease().give_back()
    pool.lease(of=pool.drivers.new_interpreters())
    assert [*pool.processes.awaited()] == []
    pool.processes.start_closing(0.0)
    assert all(driver.is_ended and driver.alive for driver in pool.known.drivers), "nobody waits for them yet"
    assert pool.processes.close()
    assert all(driver.is_ended for driver in pool.known.drivers)
    assert not any(process.alive for process in (*pool.known.drivers, *pool.known.servers))


def test_a_driver_that_has_ended_is_forgotten(pool: Pool) -> None:
    """While the run goes on: else a long one has too many files open."""
    driver = pool.lease()
    driver.start_ending(0.0)
    pool.lease()
    assert driver.connection.closed
