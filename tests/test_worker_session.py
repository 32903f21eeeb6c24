"""A worker's session in this process: the answers to its orders, what it drops and seeds, and its end."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from wording import Wording

from pytest_rlperf.model.measured import Workload
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers import session
from pytest_rlperf.workers.loader import library_variables
from pytest_rlperf.workers.process import connected

HERE = Path(__file__).resolve()


def start(**changes: Any) -> m.Start:
    lists: dict[str, Any] = {name: [] for name in ("path", "args", "files", "watched", "packages", "sites")}
    texts = dict.fromkeys(("scratch", "output", "directory", "python", "prefix"), "")
    others = {"number": 0, "markup": False, "reports": False, "share_terminal": False, "environment": {}}
    return m.Start(**(lists | texts | others | changes))


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    here, there = connected()
    yield here, there
    here.close()
    there.close()


def test_own_modules_that_the_first_call_loads_are_listed(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """With their files; others are not."""
    here, there = ends
    engine = session.RemoteEngine(start(watched=[str(HERE.parent)]), there)

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
    assert checked.loaded["rlperf_own"] == str(HERE)
    assert "rlperf_library" not in checked.loaded
    assert checked.variables == library_variables()


def test_a_copy_that_a_test_forks_cannot_speak(ends: tuple[Connection, Connection]) -> None:
    """A copy of the worker ends where it would answer in the worker's place, or take its order."""
    here, there = ends
    engine = session.RemoteEngine(start(), there)
    for speak in (partial(engine.send, m.Started()), engine.receive):
        pid = os.fork()
        if not pid:
            try:
                speak()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not here.poll()
    engine.send(m.Started())
    assert m.receive_from_worker(here) == m.Started()


def test_generators_are_seeded_once_a_test(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Those that are loaded at its start at once, the others before the first call, and none again between calls."""
    seeds: list[int] = []
    drawn: list[float] = []
    here, there = ends
    engine = session.RemoteEngine(start(), there)
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


def answers(*orders: m.ToWorker, error: Exception | None = None) -> list[m.FromWorker]:
    """Return the answers of a session that collected nothing, because of an error in a test file where one is given."""
    sent: list[m.FromWorker] = []
    engine: Any = SimpleNamespace(receive=iter((*orders, m.Quit())).__next__, send=sent.append, loaded=dict, dropped=0)
    found = session.Session(start(), engine)
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


def test_a_stem_waits_for_a_copy_that_has_ended() -> None:
    """Its number is in use until then; a process that is no copy of this one is left alone."""
    pid = os.fork()
    if not pid:
        os._exit(3)
    assert answers(m.Reap(pid), m.Reap(os.getppid())) == [ready()]
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
    config = session._prepare(start(args=args, files=["test_it.py"], scratch=str(tmp_path)))
    try:
        assert config.pluginmanager.has_plugin("kept")
        assert not config.pluginmanager.has_plugin("rerunfailures")
        assert [line for line in config.getini("markers") if line.startswith("flaky: ")]
        assert config.args == ["test_it.py"]
        assert (config.option.maxfail, config.getini("faulthandler_timeout")) == (0, 0.0)
    finally:
        config._ensure_unconfigure()
