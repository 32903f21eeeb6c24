"""The program of a driver, with templates and workers that are no processes."""

from __future__ import annotations

from collections.abc import Callable
from json import loads
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import builders
import msgspec
import pytest

from pytest_rlperf import wire
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.pair import processes as module
from pytest_rlperf.pair.driver import Driver
from pytest_rlperf.pair.processes import Template, Worker
from pytest_rlperf.spawn.guardian import Guardian

CALLED = wire.Called("gae", "transition", 1.0)
CHECKED = wire.Checked(0.1, 1.0, {}, children=False)
REPORTED = wire.Reported({})
DONE = wire.Done("passed", "", [], name_missing=False)
OPEN = wire.Open("test", None, [1, 2], last_first=False, setup_s=60.0, patience_s=60.0, reports=True, number=1)


def failed(**changes: Any) -> wire.Done:
    return msgspec.structs.replace(DONE, outcome="failed", text="E  KeyError", **changes)


def value(message: wire.Message, order: wire.Order[Any] | None = None) -> Any:
    """Return the value of an answer, to the order to leave if none is given."""
    assert isinstance(message, wire.Answer)
    return wire.answer_to(order or wire.LeaveAll(), message)


class Run:
    """The run, which gives one order after the other, the last one to end; ``said`` is what it was told."""

    def __init__(self, orders: list[wire.Message]) -> None:
        self.said: list[wire.Message] = []
        self._orders = [*orders, wire.End(0.0)]
        self._here, self._there = Pipe()

    def interrupt(self) -> None:
        """Let the driver see that there is another order."""
        self._there.send_bytes(b"order")

    def fileno(self) -> int:
        return self._here.fileno()

    def recv_bytes(self) -> bytes:
        if self._here.poll():
            self._here.recv_bytes()
        return msgspec.json.encode(wire.as_json(self._orders.pop(0)))

    def send_bytes(self, data: bytes) -> None:
        self.said.append(msgspec.convert(loads(data), wire.FromDriver, str_keys=True))


class FakeTemplate(Template):
    """A template that has the ``workers`` that it made."""

    def __init__(self, name: str, scratch: Path, run: Any = None, *, forks: bool = True) -> None:
        here, self._there = Pipe()
        settings = builders.template_settings(scratch=str(scratch), name=name, is_base=name == "base", forks=forks)
        super().__init__(settings, Guardian.joined(0, str(scratch), -1), 60.0, copy=(0, here), master=run)
        self.workers: list[FakeWorker] = []

    def wait_ready(self) -> wire.Ready:
        """Return at once: the fake has its tests."""
        return wire.Ready(PROTOCOL, [self.name])

    def send(self, message: wire.Message, *ends: Connection) -> None:
        if isinstance(message, wire.Quit):
            self._there.close()


class FakeWorker(Worker):
    """A worker that answers at once, as ``reply`` has it; None is no answer yet. ``orders`` are what it was given."""

    reply: ClassVar[Callable[[FakeWorker, wire.Message], wire.Message | None]]

    def __init__(self, template: FakeTemplate, connection: Connection, scratch: Path) -> None:
        here, self._there = Pipe()
        super().__init__(template, here, scratch)
        self.orders: list[wire.Message] = []
        template.workers.append(self)

    def wait_begun(self) -> None:
        """Return at once: the fake has no process."""

    def send(self, message: wire.Message, *ends: Connection) -> None:
        self.orders.append(message)
        if isinstance(message, wire.Quit):
            self._there.close()
            return
        found = FakeWorker.reply(self, message)
        if isinstance(message, wire.Order) and found is not None and not isinstance(found, wire.Done):
            found = (
                found
                if isinstance(found, wire.Answer)
                else wire.Answer(message.number, msgspec.to_builtins(found, str_keys=True, enc_hook=str))
            )
        if found is not None:
            self.say(found)

    def say(self, message: wire.Message) -> None:
        wire.send(self._there, message)

    def die(self) -> None:
        self._there.close()


def usual(worker: FakeWorker, message: wire.Message) -> Any:
    """Answer as a worker does of which nothing is to be told."""
    match message:
        case wire.Run(reporter=reports):
            if reports:
                worker.say(REPORTED)
            return CALLED
        case wire.Check():
            return CHECKED
        case wire.Leave():
            return DONE
        case wire.Place():
            return wire.Answer(message.number)
    raise AssertionError(message)


@pytest.fixture(autouse=True)
def _fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let templates make fake workers, which answer as usual."""
    monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "reply", usual, raising=False)


class Served:
    """What a driver of both sides, and perhaps more workers of head, has said to the orders of a run."""

    def __init__(self, scratch: Path, *orders: wire.Message, more: int = 0) -> None:
        run: Any = Run([*orders])
        self.run: Run = run
        names = ["base", "head", *(f"head {number}" for number in range(more))]
        self.templates = [FakeTemplate(name, scratch, run) for name in names]
        self._driver = Driver(run, self.templates)

    def serve(self) -> list[wire.Message]:
        """Return what is said after having collected."""
        self._driver.serve()
        assert not any(process.alive for template in self.templates for process in (template, *template.workers))
        collected, *said = self.run.said
        assert collected == wire.Collected([wire.Ready(PROTOCOL, [template.name]) for template in self.templates])
        return said

    @property
    def workers(self) -> list[FakeWorker]:
        return [worker for template in self.templates for worker in template.workers]


def answer_as(name: str, kind: type[wire.Message], found: Any) -> Callable[[FakeWorker, wire.Message], Any]:
    """Return the answers in which one side's worker answers something else to one kind of order."""

    def answer(worker: FakeWorker, message: wire.Message) -> Any:
        if worker.name == name and isinstance(message, kind):
            return found(worker) if callable(found) else found
        return usual(worker, message)

    return answer


@pytest.mark.parametrize(
    ("setup_s", "forks", "is_kept"), [(0.1, True, False), (5.0, True, True), (0.0, True, False), (0.1, False, True)]
)
def test_a_worker_is_kept_for_what_it_has_set_up(tmp_path: Path, setup_s: float, forks: bool, is_kept: bool) -> None:
    """Others end with their test, called or not, but for new interpreters, which run all tests."""
    template = FakeTemplate("head", tmp_path, forks=forks)
    worker = template.lease()
    worker.shared_setup_s = setup_s
    module.give_back([worker])
    assert worker.alive is is_kept
    assert (template.lease() is worker) is is_kept


@pytest.mark.parametrize("reports", [False, True])
def test_a_report_does_not_wait_for_workers_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    """The run learns how the test has ended before that; of other pairs, that measure in a lane, after it."""
    open_order = msgspec.structs.replace(OPEN, reports=reports)
    served = Served(tmp_path, open_order, wire.LeaveAll(number=2))
    has_answered: list[bool] = []
    end = FakeWorker.end

    def noted(worker: FakeWorker, limit_s: float) -> None:
        if worker.alive:
            has_answered.append(any(isinstance(said, wire.Answer) and said.order == 2 for said in served.run.said))
        end(worker, limit_s)

    monkeypatch.setattr(FakeWorker, "end", noted)
    served.serve()
    assert has_answered == [reports] * 2


def test_a_driver_that_waits_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From time to time, so that the run can tell it from one that was stopped."""
    monkeypatch.setattr("pytest_rlperf.spawn.process._TELL_S", -1.0)
    assert Served(tmp_path, OPEN).serve().count(wire.Waiting()) >= 2


def test_workers_that_hang_at_their_end_take_the_time_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are told to end before any is waited for."""
    steps: list[str] = []
    monkeypatch.setattr(FakeWorker, "start_quitting", lambda worker: steps.append("told"))
    monkeypatch.setattr(FakeWorker, "end", lambda worker, limit_s: steps.append("waited for"))
    module.give_back([FakeTemplate(name, tmp_path).lease() for name in ("base", "head", "head 1")])
    assert steps == ["told"] * 3 + ["waited for"] * 3


@pytest.mark.parametrize("last_first", [False, True])
def test_all_workers_set_up_before_any_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_first: bool
) -> None:
    """Each with its seed, head first where so ordered; head's is the one that the user sees, base's comes first."""
    begun: list[str] = []
    served = Served(tmp_path, msgspec.structs.replace(OPEN, last_first=last_first), wire.CheckAll(number=2))

    def noted(worker: FakeWorker, message: wire.Message) -> Any:
        begun.append(worker.name)
        return usual(worker, message)

    monkeypatch.setattr(FakeWorker, "reply", noted)
    said = served.serve()
    assert begun[:2] == begun[2:4] == (["head", "base"] if last_first else ["base", "head"])
    assert [(worker.name, worker.seed) for worker in served.workers] == [("base", 1), ("head", 2)]
    assert [type(message) for message in said] == [wire.Reported, wire.Answer, wire.Answer]
    assert value(said[1], OPEN) == [CALLED, CALLED]


@pytest.mark.parametrize(("cpu", "moved"), [(4, [7]), (None, [])])
def test_workers_that_have_a_cpu_go_to_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: int | None, moved: list[int]
) -> None:
    """Others stay where the kernel places them."""
    orders: list[wire.Message] = [wire.WarmAll(1.0, number=2), wire.TakePair(cpu, 1.0, 0.0, reads=False, number=3)]
    served = Served(tmp_path, OPEN, *orders, wire.MoveAll(7, number=4))
    pair = SimpleNamespace(warm_up=lambda order: None, take=lambda order: None)
    monkeypatch.setattr("pytest_rlperf.pair.driver.Pair", lambda *workers, **settings: pair)
    served.serve()
    placed = [[order.cpus for order in worker.orders if isinstance(order, wire.Place)] for worker in served.workers]
    assert placed == [[moved] * len(moved)] * 2


@pytest.mark.parametrize("name", ["base", "head"])
def test_a_lost_worker_ends_those_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One that is at its call stays; the run learns which is lost."""
    served = Served(tmp_path, OPEN)
    monkeypatch.setattr(FakeWorker, "reply", answer_as(name, wire.Run, FakeWorker.die))
    ended: dict[str, bool] = {}
    end = Worker.end

    def noted(worker: FakeWorker, limit_s: float) -> None:
        ended.setdefault(worker.name, worker.called is None)
        end(worker, limit_s)

    monkeypatch.setattr(FakeWorker, "end", noted)
    *_, lost = served.serve()
    assert isinstance(lost, wire.Stopped)
    assert (lost.order, lost.stop.name, lost.stop.is_base) == (1, name, name == "base")
    assert (lost.stop.is_doubtful, lost.stop.is_reporter, lost.stop.done) == (True, name == "head", None)
    assert ended == {"base": name == "base", "head": True}


@pytest.mark.parametrize(
    ("name", "done", "is_doubtful"),
    [
        ("base", failed(), True),
        ("head", failed(), True),
        ("base", failed(is_certain=True), False),
        ("head", DONE, False),
    ],
)
def test_a_test_that_ends_early_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, done: wire.Done, is_doubtful: bool
) -> None:
    """A copy that has failed may be to blame, unless every process would fail so."""
    served = Served(tmp_path, OPEN, wire.CheckAll(number=2))
    monkeypatch.setattr(FakeWorker, "reply", answer_as(name, wire.Check, done))
    *_, left = served.serve()
    stop = wire.Stop(name, done.text, name == "base", is_doubtful, is_reporter=name == "head", done=done)
    assert left == wire.Stopped(2, stop)


def test_a_fault_of_the_driver_is_no_end_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has the error, and may give the next order."""
    served = Served(tmp_path, OPEN, wire.WarmAll(1.0, number=2), wire.CheckAll(number=3))
    monkeypatch.setattr("pytest_rlperf.pair.driver.Pair", lambda *workers, **settings: 1 / 0)
    *_, broken, checked = served.serve()
    assert isinstance(broken, wire.Broken)
    assert (broken.order, broken.text.partition("\n")[0]) == (2, "ZeroDivisionError: division by zero")
    assert value(checked, wire.CheckAll()) == [CHECKED, CHECKED]


def test_the_next_order_breaks_off_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair that is not needed any more leaves the test, whatever its workers are at."""
    served = Served(tmp_path, OPEN, wire.CheckAll(number=2), wire.LeaveAll(number=3))
    monkeypatch.setattr(FakeWorker, "reply", answer_as("base", wire.Check, lambda worker: served.run.interrupt()))
    *_, opened, left = served.serve()
    assert isinstance(opened, wire.Answer)
    assert opened.order == 1
    assert value(left) == DONE


def test_the_reporter_leaves_last_and_with_the_result(tmp_path: Path) -> None:
    """The others leave without one."""
    failure = wire.Failure("slower", regression=True)
    served = Served(tmp_path, OPEN, wire.LeaveAll(wire.Leave(failure=failure), number=2), more=1)
    served.run._orders[0] = msgspec.structs.replace(OPEN, seeds=[1, 2, 3])
    *_, left = served.serve()
    assert value(left) == DONE
    leaving = {
        worker.name: [each for each in worker.orders if isinstance(each, wire.Leave)] for worker in served.workers
    }
    assert leaving == {"base": [wire.Leave()], "head": [wire.Leave(failure=failure)], "head 0": [wire.Leave()]}


@pytest.mark.parametrize("name", ["base", "head"])
def test_a_worker_that_is_lost_as_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The one that reports the test is still at its call, unless it is the one that is lost."""
    served = Served(tmp_path, OPEN, wire.LeaveAll(number=2), wire.LeaveAll(number=3))
    monkeypatch.setattr(FakeWorker, "reply", answer_as(name, wire.Leave, FakeWorker.die))
    *_, left, again = served.serve()
    assert isinstance(left, wire.Stopped)
    assert name in left.stop.text
    assert (left.stop.is_doubtful, left.stop.is_reporter) == (True, name == "head")
    assert value(again) == (DONE if name == "base" else None)
