"""A worker's session in this process: the answers to its orders, what it drops and seeds, and its end."""

from __future__ import annotations

import gc
import io
import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from _pytest import capture
from wording import Wording

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure.placement import usable_cpus
from pytest_rlperf.measure.rounds import Clocks
from pytest_rlperf.model.measured import SliceKind, SliceRecord, Workload
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.testing import FakeClock
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers import session
from pytest_rlperf.workers.loader import library_variables
from pytest_rlperf.workers.process import connected

HERE = Path(__file__).resolve()
WARM = (m.Check(), m.WarmUp(None, 0.0, None, kernels=False))


def start(**changes: Any) -> m.Start:
    lists: dict[str, Any] = {name: [] for name in ("path", "args", "files", "watched", "packages", "foreign", "sites")}
    texts = dict.fromkeys(("scratch", "output", "directory", "python", "prefix"), "")
    others = {"number": 0, "markup": False, "reports": False, "share_terminal": False, "environment": {}}
    return m.Start(**(lists | texts | others | changes))


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    here, there = connected()
    yield here, there
    here.close()
    there.close()


@pytest.fixture
def measured(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> Callable[..., list[Any]]:
    """Return a function that has a worker measure calls of 1 ms by some orders; it returns the answers."""
    here, there = ends
    clock = FakeClock()
    monkeypatch.setattr(Clocks, "host", classmethod(lambda cls: cls(clock, clock, 76.0)))
    call = partial(clock.advance, 1e-3)
    workload = Workload("callable", call, 4.0, "thing", call)
    item: Any = SimpleNamespace(config=pytestconfig)

    def measure(*orders: m.Order) -> list[Any]:
        engine = session.RemoteEngine(start(watched=[str(HERE.parent)]), there, session.Collector())
        numbered: list[Any] = [msgspec.structs.replace(order, number=number) for number, order in enumerate(orders)]
        for order in (*numbered, m.Leave()):
            m.send(here, order)
        with pytest.raises(session.Unwound):
            engine.measure(workload, item)
        assert m.receive_from_worker(here) == m.Called("callable", "thing", 4.0)
        received = [m.receive_from_worker(here) for _ in orders]
        answers = [answer for answer in received if isinstance(answer, m.Answer)]
        assert [answer.order for answer in answers] == list(range(len(orders)))
        return [m.answer_to(order, answer) for order, answer in zip(numbered, answers, strict=True)]

    return measure


def test_a_survey_lists_files_of_functions_and_of_modules(measured: Callable[..., list[Any]]) -> None:
    """The file of this module is there by its name, and by its path as that of live functions."""
    *_, surveyed = measured(*WARM, m.Survey())
    assert isinstance(surveyed, m.Surveyed)
    assert surveyed.loaded.files[__name__] == surveyed.loaded.files[str(HERE)] == str(HERE)
    assert surveyed.loaded.importers == {}


def test_a_worker_stays_on_cpus_until_its_test_is_left(
    measured: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it the process may use all of its own again."""
    placed: list[object] = []
    monkeypatch.setattr(session, "place", placed.append)
    assert measured(m.Place([0]), m.Place([1, 2])) == [None, None]
    assert placed == [[0], [1, 2], usable_cpus()]


def test_slices_of_a_slowed_worker_do_extra_work(
    measured: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order's steps are done in each round of the slices that follow."""
    done: list[int] = []
    monkeypatch.setattr("pytest_rlperf.measure.rounds.work", done.append)
    take = m.Take(SliceKind.PLAIN)
    *_, before, slowed, after = measured(*WARM, take, m.Slow(0.5, 7), take)
    assert slowed == 7
    for record in (before, after):
        assert isinstance(record, SliceRecord)
        assert record.call_s == pytest.approx(1e-3)
        assert record.items == 4.0 * record.calls
    assert set(done) == {7}


def test_modules_that_the_first_call_loads_are_listed(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Those that were loaded before the session began are not, nor are files of the code under test."""
    here, there = ends
    engine = session.RemoteEngine(start(watched=[str(HERE.parent)]), there, session.Collector())

    def call() -> None:
        for name, file in (("rlperf_library", "/usr/lib/rlperf_library.py"), ("rlperf_own", str(HERE))):
            module = ModuleType(name)
            module.__spec__, module.__file__ = ModuleSpec(name, None), file
            monkeypatch.setitem(sys.modules, name, module)

    m.send(here, m.Check(number=5))
    m.send(here, m.Leave())
    with pytest.raises(session.Unwound):
        engine.measure(Workload("callable", call, 1.0, "call", call), SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
    m.receive_from_worker(here)
    answer = m.receive_from_worker(here)
    assert isinstance(answer, m.Answer)
    checked = m.answer_to(m.Check(), answer)
    assert "rlperf_library" in checked.others
    assert not {"rlperf_own", "pytest", __name__} & {*checked.others}
    assert checked.loaded.files["rlperf_own"] == str(HERE)
    assert checked.variables == library_variables()


def test_a_copy_that_a_test_forks_cannot_speak(ends: tuple[Connection, Connection]) -> None:
    """A copy of the worker ends where it would answer in the worker's place, or take its order."""
    here, there = ends
    engine = session.RemoteEngine(start(), there, session.Collector())
    for speak in (partial(engine.send, m.Started(1)), engine.receive):
        pid = os.fork()
        if not pid:
            try:
                speak()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not here.poll()
    engine.send(m.Started(1))
    assert m.receive_from_worker(here) == m.Started(1)


def test_a_worker_whose_run_is_gone_ends_its_session(ends: tuple[Connection, Connection]) -> None:
    """With all its teardowns, as pytest ends."""
    here, there = ends
    engine = session.RemoteEngine(start(), there, session.Collector())
    here.close()
    with pytest.raises(pytest.exit.Exception) as ended:
        engine.receive()
    assert ended.value.returncode == 1


def test_an_order_out_of_place_is_an_error(ends: tuple[Connection, Connection], wording: Wording) -> None:
    """A worker at its call that is to quit, or to run another test, has an error that names the order."""
    here, there = ends
    m.send(here, m.Quit())
    engine = session.RemoteEngine(start(), there, session.Collector())
    workload = Workload("callable", lambda: None, 1.0, "call", lambda: None)
    with wording.raises(MeasurementError):
        engine.measure(workload, SimpleNamespace())  # type: ignore[arg-type]


def test_generators_are_seeded_once_a_test(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Those that are loaded at its start at once, the others before the first call, and none again between calls."""
    seeds: list[int] = []
    drawn: list[float] = []
    here, there = ends
    engine = session.RemoteEngine(start(), there, session.Collector())
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "numpy.random")
            patch.setitem(sys.modules, "torch", SimpleNamespace(manual_seed=seeds.append))
            engine.begin(1001)
            engine._seed_loaded()
        assert seeds == [1001]
        assert random.random() == random.Random(1001).random()
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        for order in (m.Check(), m.Check(), m.Leave()):
            m.send(here, order)
        workload = Workload("callable", lambda: None, 1.0, "call", lambda: drawn.append(np.random.random()))
        with pytest.raises(session.Unwound):
            engine.measure(workload, SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
        assert drawn == list(np.random.RandomState(1001).random_sample(2))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@pytest.mark.parametrize("own", [None, (300, 4, 5)])
@pytest.mark.parametrize("generations", [2, 3])
def test_the_garbage_collector_is_rare_until_the_call(
    ends: tuple[Connection, Connection],
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
    generations: int,
    own: tuple[int, int, int] | None,
) -> None:
    """Fixtures and imports come before it; the measured call has the user's thresholds, also those set on the way."""
    here, there = ends
    before, thresholds = gc.get_threshold(), gc.get_threshold
    if generations == 2:  # as in Python 3.14, which gives 0 for the third
        monkeypatch.setattr(gc, "get_threshold", lambda: (*thresholds()[:2], 0))
    usual, seen = gc.get_threshold(), []
    workload = Workload("callable", lambda: None, 1.0, "call", lambda: seen.append(gc.get_threshold()))
    m.send(here, m.Check())
    m.send(here, m.Leave())
    engine = session.RemoteEngine(start(), there, session.Collector())
    try:
        engine.begin(1001)
        assert gc.get_threshold() > usual
        if own is not None:
            gc.set_threshold(*own)
        with pytest.raises(session.Unwound):
            engine.measure(workload, SimpleNamespace(config=pytestconfig))  # type: ignore[arg-type]
    finally:
        gc.set_threshold(*before)
    assert [each[:generations] for each in seen] == [(own or usual)[:generations]]


def answers(*orders: m.ToWorker, error: Exception | None = None) -> list[m.FromWorker]:
    """Return the answers of a session that collected nothing, because of an error in a test file where one is given."""
    sent: list[m.FromWorker] = []
    engine: Any = SimpleNamespace(
        receive=iter((*orders, m.Quit())).__next__, send=sent.append, loaded=m.Loaded, dropped=0
    )
    found = session.Session(start(), engine, terminal=-1)
    if error is not None:

        def collect() -> None:
            raise pytest.Collector.CollectError("the test module cannot be imported") from error

        call = pytest.CallInfo.from_call(collect, "collect")
        found.pytest_exception_interact(SimpleNamespace(nodeid="test_it.py"), call)  # type: ignore[arg-type]
        found.pytest_collectreport(pytest.CollectReport("test_it.py", "failed", str(error), []))
    assert found.pytest_runtestloop(SimpleNamespace(items=[]))  # type: ignore[arg-type]
    return list(map(timeless, sent))


def timeless(message: m.FromWorker) -> m.FromWorker:
    return msgspec.structs.replace(message, import_s=0.0) if isinstance(message, m.Ready) else message


def ready(errors: str = "") -> m.Ready:
    return m.Ready(PROTOCOL, errors=errors, variables=library_variables())


@pytest.fixture(autouse=True)
def _no_frozen_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sessions end without a collection of all that the tests have loaded."""
    monkeypatch.setattr(session, "_collect_before_the_end", lambda: None)


def test_an_order_to_leave_may_cross_the_end_of_its_test() -> None:
    """Between tests it has no effect, and no answer."""
    assert answers(m.Leave(), m.Leave()) == [ready()]


@pytest.mark.parametrize(
    ("error", "name_missing"), [(None, True), (ImportError("no such name"), True), (SyntaxError("invalid"), False)]
)
def test_a_test_that_is_missing_has_the_reason(error: Exception | None, name_missing: bool, wording: Wording) -> None:
    """A file that could not be imported for want of a name is older code's; one with another error is broken."""
    first, done = answers(m.Run("test_it.py::test_new", None, 1000, reporter=False), error=error)
    assert first == ready("" if error is None else str(error))
    assert isinstance(done, m.Done)
    assert (done.outcome, done.name_missing) == ("missing", name_missing)
    assert done.text == wording


@pytest.mark.parametrize("fault", ["", "a copy of it hung"])
def test_a_stem_answers_whether_its_copies_work(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """It finds that out where the run asks, once it has collected."""
    monkeypatch.setattr(session, "fault_of_forks", lambda: fault)
    sent: list[m.FromWorker] = []
    engine: Any = SimpleNamespace(receive=m.Quit, send=sent.append, loaded=m.Loaded)
    session.Session(start(probe=True), engine, -1).pytest_runtestloop(SimpleNamespace(items=[]))  # type: ignore[arg-type]
    assert list(map(timeless, sent)) == [msgspec.structs.replace(ready(), fault=fault)]


def test_a_stem_waits_for_a_copy_that_has_ended() -> None:
    """Its number is in use until then; a process that is no copy of this one is left alone."""
    pid = os.fork()
    if not pid:
        os._exit(3)
    assert answers(m.Reap(pid), m.Reap(os.getppid())) == [ready()]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_shared_fixtures_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of fixtures that more than one test can use add up, also of one that fails."""
    now = iter(range(100))
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    engine: Any = SimpleNamespace(shared_setup_s=0.0)
    found = session.Session(start(), engine, -1)
    for scope in ("function", "module", "session"):
        setup = found.pytest_fixture_setup(SimpleNamespace(scope=scope))
        next(setup)
        with pytest.raises(StopIteration if scope != "session" else ZeroDivisionError):
            setup.send("value") if scope != "session" else setup.throw(ZeroDivisionError())
    assert engine.shared_setup_s == 2.0


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
    config = session._prepare(start(args=args, files=["test_it.py"], scratch=str(tmp_path)))
    try:
        assert config.pluginmanager.has_plugin("kept")
        assert not config.pluginmanager.has_plugin("rerunfailures")
        assert [line for line in config.getini("markers") if line.startswith("flaky: ")]
        assert config.args == ["test_it.py"]
        assert (config.option.maxfail, config.getini("faulthandler_timeout")) == (0, 0.0)
    finally:
        config._ensure_unconfigure()


def test_output_is_captured_by_other_versions_of_pytest_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pytest makes its files by another function, a worker leaves it alone."""
    monkeypatch.delattr(capture, "TemporaryFile")
    session._keep_captured_output(tmp_path)
    assert not hasattr(capture, "TemporaryFile")


def test_a_process_ends_with_all_that_was_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads first, then exit functions, then what is yet to be written, also where a stream is closed."""
    did: list[object] = []
    out = io.StringIO()
    out.close()
    monkeypatch.setattr("threading._shutdown", lambda: did.append("threads"))
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: did.append("exit functions"))
    monkeypatch.setattr("os._exit", did.append)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(flush=lambda: did.append("stream")))
    session._end_process(3)
    monkeypatch.undo()
    assert did == ["threads", "exit functions", "stream", 3]
