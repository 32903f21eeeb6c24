"""A worker's session in this process: the answers to its orders, what it drops and seeds, and its end."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import signal
import sys
from collections.abc import Collection, Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from _pytest.config import ConftestImportFailure
from builders import template_settings
from wording import Wording

from pytest_rlperf import wire, worker
from pytest_rlperf.counters import memory
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.observe.recorder import Recorded
from pytest_rlperf.spawn.connections import connected
from pytest_rlperf.spawn.variables import library_variables
from pytest_rlperf.timers import FakeClock
from pytest_rlperf.worker import session
from pytest_rlperf.worker.engine import Engine, Unwound

HERE = Path(__file__).resolve()
NO_SUCH_MODULE = ModuleNotFoundError("No module named 'no_such'", name="no_such")


@pytest.fixture(autouse=True)
def _frozen_again() -> Iterator[None]:
    """Freeze what a test's engine has thawed, or each collection of the next engines would walk all of it."""
    yield
    gc.freeze()


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    here, there = connected()
    yield here, there
    here.close()
    there.close()


def test_own_modules_that_the_first_call_loads_are_listed(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """With their files; others are not, but that they were imported since the process could be copied is known."""
    here, there = ends
    engine = Engine(template_settings(watched=[str(HERE.parent)]), there)
    engine.get_copied()

    def call() -> None:
        for name, file in (("rlperf_library", "/usr/lib/rlperf_library.py"), ("rlperf_own", str(HERE))):
            module = ModuleType(name)
            module.__spec__, module.__file__ = ModuleSpec(name, None), file
            monkeypatch.setitem(sys.modules, name, module)

    wire.send(here, wire.Check(number=5))
    wire.send(here, wire.Leave())
    with pytest.raises(Unwound):
        engine.measure(Workload("callable", call, 1.0, "call", call), SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
    wire.receive(here, wire.FromWorker)
    answer = wire.receive(here, wire.FromWorker)
    assert isinstance(answer, wire.Answer)
    checked = wire.answer_to(wire.Check(), answer)
    assert checked.loaded["rlperf_own"] == str(HERE)
    assert "rlperf_library" not in checked.loaded
    assert {"rlperf_own", "rlperf_library"} <= {*checked.imported} < {*sys.modules}
    assert checked.variables == library_variables()


def test_a_call_sees_all_objects_and_has_no_alarm(
    ends: tuple[Connection, Connection], pytestconfig: pytest.Config
) -> None:
    """Freezing hides objects, and a test's own limit is for one call; afterwards both are as before."""
    here, there = ends
    engine, kept, seen = Engine(template_settings(), there), [object(), {}], list[bool]()
    look, usual = gc.get_objects, signal.signal(signal.SIGALRM, lambda *_: None)

    def call() -> None:
        gc.freeze()
        found = {*map(id, gc.get_objects())}
        seen.append(id(kept) in found)
        referrers = gc.get_referrers(kept[1])
        seen.append(any(each is kept for each in referrers) and not any(type(each) is tuple for each in referrers))
        seen.append(signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0))

    wire.send(here, wire.Check())
    wire.send(here, wire.Leave())
    signal.setitimer(signal.ITIMER_REAL, 100.0)
    try:
        with pytest.raises(Unwound):
            engine.measure(Workload("callable", call, 1.0, "call", call), SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    assert {*seen} == {True}
    assert gc.get_objects is look
    with worker.engine._all_objects_seen():
        gc.freeze()
        memory._tracked()  # of each section that is counted
        assert gc.get_freeze_count() > 1000


def test_a_copy_that_a_test_forks_cannot_speak(ends: tuple[Connection, Connection]) -> None:
    """A copy of the worker ends where it would answer in the worker's place, or take its order."""
    here, there = ends
    engine = Engine(template_settings(), there)
    for speak in (partial(engine.send, wire.Started()), engine.receive):
        pid = os.fork()
        if not pid:
            try:
                speak()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not here.poll()
    engine.send(wire.Started())
    assert wire.receive(here, wire.FromWorker) == wire.Started()


def test_generators_are_seeded_once_a_test(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Those that are loaded at its start at once, the others before the first call, and none again between calls."""
    seeds: list[int] = []
    drawn: list[float] = []
    here, there = ends
    engine = Engine(template_settings(), there)
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "numpy.random")
            torch = SimpleNamespace(manual_seed=seeds.append, get_rng_state=lambda: None)
            patch.setitem(sys.modules, "torch", torch)
            engine.begin(1001)
            engine.seeds.seed_loaded()
        assert seeds == [1001]
        assert random.random() == random.Random(1001).random()
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        for order in (wire.Check(), wire.Check(), wire.Leave()):
            wire.send(here, order)
        workload = Workload("callable", lambda: None, 1.0, "call", lambda: drawn.append(np.random.random()))
        with pytest.raises(Unwound):
            engine.measure(workload, SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
        assert drawn == list(np.random.RandomState(1001).random_sample(2))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@pytest.mark.parametrize(
    ("news", "calls"),
    [
        pytest.param([], 5, id="nothing is read"),
        pytest.param([1], 5, id="all is read at once"),
        pytest.param([1, 4], 8, id="a file is read later"),
        pytest.param([1, 4, 8], 16, id="and another one, still later"),
        pytest.param([1, 4, 9], 8, id="one that is read too late"),
        pytest.param(range(100), 32, id="there is no end to what is read"),
    ],
)
@pytest.mark.parametrize("runs", [False, True], ids=["read", "run"])
def test_calls_are_observed_until_they_bring_nothing_new(
    ends: tuple[Connection, Connection],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
    news: Collection[int],
    calls: int,
    runs: bool,
) -> None:
    """For the last half of them, all with their setups; for 0.3 s at least, and not for longer than the limit."""
    clock, made = FakeClock(), list[str]()
    observer = SimpleNamespace(
        below=(),
        count=7,
        files=lambda: ["/t/own.py"],
        data=lambda: ["/t/read.py"],
        has_children=False,
        has_hooks=False,
        opened=lambda: ["/t/own.bin"],
        unwatched="",
    )
    recorder = SimpleNamespace(count=3, read=lambda below: Recorded({"/t/own.py": [3]}, False, False), is_whole=True)

    def call() -> None:
        made.append("call")
        clock.advance(1 / 16)
        (recorder if runs else observer).count += made.count("call") in news

    def processed() -> float:
        made.append("processed")
        return 1.0

    monkeypatch.setattr(worker.engine._call_until_settled, "__defaults__", (lambda: clock.now_ns / 1e9,))
    monkeypatch.setattr(worker.engine, "stopwatch", lambda: lambda: clock.now_ns / 1e9)
    monkeypatch.setattr(worker.engine, "monotonic", lambda: 7.0)  # as freezegun does in all modules
    here, there = ends
    engine = Engine(template_settings(observes=True), there, observer, recorder)  # type: ignore[arg-type]
    for order in (wire.Observe(2.0, searches=False, number=1), wire.Leave()):
        wire.send(here, order)
    workload = Workload("callable", call, 1.0, "call", call, setup=lambda: made.append("setup"), count=processed)
    with pytest.raises(Unwound):
        engine.measure(workload, SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
    assert made == [*["setup", "call"] * calls, "processed"]
    assert isinstance(wire.receive(here, wire.FromWorker), wire.Called)
    answer = wire.receive(here, wire.FromWorker)
    assert isinstance(answer, wire.Answer)
    found = wire.answer_to(wire.Observe(2.0, searches=False), answer)
    assert (found.files, found.functions, found.data) == (["/t/own.py"], {"/t/own.py": [3]}, ["/t/read.py"])
    assert (found.whole, found.opened) == (True, ["/t/own.bin"])


def test_a_text_for_the_user_names_files_by_their_own_places(ends: tuple[Connection, Connection]) -> None:
    """Those of a side's copy by the user's tree, others and those of a side without a copy as they are."""
    text = "/copies/1/own.py:3: in call, of /usr/lib/own.py and /copies/2/own.py"
    copied = Engine(template_settings(tree="/copies/1", top="/t"), ends[1])
    assert copied.shown(text) == "/t/own.py:3: in call, of /usr/lib/own.py and /copies/2/own.py"
    assert Engine(template_settings(top="/t"), ends[1]).shown(text) == text


@pytest.mark.parametrize(
    "top",
    [
        "/home/me/nets",
        "/home/me/größe",
        '/home/me/my "nets"',
        "/home/me/my\\nets",
    ],
)
def test_a_report_can_be_read_whatever_the_users_directory_is_called(
    ends: tuple[Connection, Connection], pytestconfig: pytest.Config, top: str
) -> None:
    """And names the files of a side's copy by their places there."""
    here, there = ends
    begun = template_settings(tree="/copies/1", top=top, reports=True)
    found = session.Session(begun, Engine(begun, there))
    found._config, found._reporting = pytestconfig, True
    found.pytest_runtest_logreport(
        pytest.TestReport(
            "test_it.py::test_it", ("test_it.py", 3, "test_it"), {}, "failed", "/copies/1/own.py:3", "call"
        )
    )
    message = wire.receive(here, wire.FromWorker)
    assert isinstance(message, wire.Reported)
    assert pickle.loads(message.report["longrepr"]) == f"{top}/own.py:3"  # noqa: S301 - of this process


def new_session(*orders: wire.ToWorker) -> tuple[session.Session, list[wire.FromWorker]]:
    """Return a session that gets these orders and then the one to quit, and the list of what it sends.

    What it sends for the user names ``/copy`` as ``/t``.
    """
    sent: list[wire.FromWorker] = []
    engine: Any = SimpleNamespace(
        own_fork=contextlib.nullcontext,
        receive=iter((*orders, wire.Quit())).__next__,
        send=sent.append,
        loaded=dict,
        dropped=0,
        shown=lambda text: text.replace("/copy/", "/t/"),
    )
    return session.Session(template_settings(tree=str(HERE.parents[3])), engine), sent


def answers(*orders: wire.ToWorker, error: Exception | None = None) -> list[wire.FromWorker]:
    """Return the answers of a session that collected nothing, because of an error in a test file where one is given."""
    found, sent = new_session(*orders)
    if error is not None:

        def collect() -> None:
            try:
                raise error
            except Exception as raised:  # with its trace
                raise pytest.Collector.CollectError("the test module cannot be imported") from raised

        call = pytest.CallInfo.from_call(collect, "collect")
        found.pytest_exception_interact(SimpleNamespace(nodeid="test_it.py"), call)  # type: ignore[arg-type]
        found.pytest_collectreport(pytest.CollectReport("test_it.py", "failed", str(error), []))
    assert found.pytest_runtestloop(SimpleNamespace(items=[]))  # type: ignore[arg-type]
    return list(map(timeless, sent))


def timeless(message: wire.FromWorker) -> wire.FromWorker:
    return msgspec.structs.replace(message, import_s=0.0) if isinstance(message, wire.Ready) else message


def ready(errors: str = "") -> wire.Ready:
    return wire.Ready(PROTOCOL, errors=errors, variables=library_variables())


@pytest.fixture(autouse=True)
def _no_frozen_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions end without a collection of all that the tests have loaded."""
    monkeypatch.setattr(session, "_collect_before_the_end", lambda: None)


@pytest.mark.parametrize(
    ("error", "name_missing"), [(None, True), (NO_SUCH_MODULE, True), (SyntaxError("invalid"), False)]
)
def test_a_test_that_is_missing_has_the_reason(error: Exception | None, name_missing: bool, wording: Wording) -> None:
    """A file that could not be imported for want of a name is older code's; one with another error is broken."""
    first, done = answers(wire.Run("test_it.py::test_new", None, 1000, reporter=False), error=error)
    assert first == ready("" if error is None else str(error))
    assert isinstance(done, wire.Done)
    assert (done.outcome, done.name_missing) == ("missing", name_missing)
    assert done.text == wording


@pytest.mark.parametrize(
    ("error", "name_missing"),
    [(NO_SUCH_MODULE, True), (AttributeError("no such member", name="no_such", obj=os), True), (SyntaxError(), False)],
)
def test_a_session_whose_conftest_fails_has_no_tests(error: Exception, name_missing: bool) -> None:
    """It answers all orders, each test being missing for the reason; a name that is missing is older code's."""
    found, sent = new_session(*(wire.Run(f"test_it.py::{name}", None, 1000, reporter=False) for name in "ab"))
    try:
        raise error
    except Exception as raised:  # with its trace
        found.serve_without_tests(ConftestImportFailure(Path("/copy/conftest.py"), cause=raised))
    first, *done = map(timeless, sent)
    assert isinstance(first, wire.Ready)
    assert first == ready(first.errors)
    headline, *trace = first.errors.splitlines()
    assert headline == f"/t/conftest.py: {type(error).__name__}: {error}"
    assert any(f"{HERE.name}" in line for line in trace)
    assert done == [wire.Done("missing", first.errors, each.modules, name_missing=name_missing) for each in done]  # type: ignore[union-attr]
    assert len(done) == 2


def test_a_template_waits_for_a_copy_that_has_ended() -> None:
    """Its number is in use until then; a process that is no copy of this one is left alone."""
    pid = os.fork()
    if not pid:
        os._exit(3)
    assert answers(wire.Reap(pid), wire.Reap(os.getppid())) == [ready()]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.filterwarnings("error")
def test_settings_of_the_run_alone_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that repeats tests, but for the marker that it declares; limits of a test's time and of failures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_PLUGINS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 5\n")
    for name in ("rerunfailures", "kept"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    args = ["-s", "--assert=plain", "--maxfail=1", "-p", "rerunfailures", "-p", "kept"]
    config = session._prepare(template_settings(args=args, files=[str(tmp_path / "test_it.py")], scratch=str(tmp_path)))
    try:
        assert config.pluginmanager.has_plugin("kept")
        assert not config.pluginmanager.has_plugin("rerunfailures")
        assert [line for line in config.getini("markers") if line.startswith("flaky: ")]
        assert config.args == [str(tmp_path / "test_it.py")]
        assert (config.option.maxfail, config.getini("faulthandler_timeout")) == (0, 0.0)
    finally:
        config._ensure_unconfigure()
