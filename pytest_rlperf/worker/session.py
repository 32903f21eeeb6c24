"""A template or a worker: a pytest session that has collected, then runs the tests of its orders and measures in them.

It is an ordinary session with the user's options, conftests and plugins, except that it writes no reports, and that its
run loop waits for orders. A template that can fork makes a copy of itself for each test, as a worker. A template that
cannot fork is the worker of all its tests. A measured test runs with all its own fixtures; its call to an rlperf
fixture stays open and takes slices until the run has a verdict.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Generator
from json import loads
from multiprocessing.connection import Connection
from os import _exit
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from _pytest._code.code import ExceptionRepr
from _pytest.config import ConftestImportFailure, _prepareconfig

from pytest_rlperf import wire
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.fixtures import ENGINE, result_key
from pytest_rlperf.model.sides import PROTOCOL
from pytest_rlperf.observe.observer import Observer
from pytest_rlperf.observe.recorder import FunctionRecorder
from pytest_rlperf.pytest_benchmark import TakenOver, without_version_control
from pytest_rlperf.spawn.copies import fault_of_forks, import_more
from pytest_rlperf.spawn.guardian import LEAVE
from pytest_rlperf.spawn.preload import fork, receive_descriptor, vary_heap
from pytest_rlperf.spawn.temporary import has_named_files, mark_temporary_files
from pytest_rlperf.spawn.torch_threads import release_threads
from pytest_rlperf.spawn.untouched import untouched
from pytest_rlperf.spawn.variables import library_variables
from pytest_rlperf.worker.engine import Engine
from pytest_rlperf.worker.missing import lacks_name

# Plugins that would run a test again or in another process, reseed it, or talk to a controller that is not there. They
# are dropped before they configure themselves; the markers that they would declare are declared here, for
# --strict-markers. A user's time limit is for the test, not for measuring it. The keys are modules, as -p names them.
_DROPPED = {
    "pytest_timeout": "timeout(timeout): limit the time of a test; ignored while measuring",
    "pytest_rerunfailures": "flaky: rerun on failure; ignored while measuring",
    "pytest_retry.retry_plugin": "flaky: rerun on failure; ignored while measuring",
    "flaky.flaky_pytest_plugin": "flaky: rerun on failure; ignored while measuring",
    "pytest_randomly": None,
    "pytest_forked": None,
}
_OPERATORS = "torch.library"  # its finalizers end PyTorch's operators
# A test's replacements apply only to what it measures.
_fault_of_forks, _fork = untouched(fault_of_forks), untouched(fork)


class Session:
    """The hooks of a worker: it collects, then runs the tests of its orders and sends back their reports."""

    def __init__(self, start: wire.SessionSettings, engine: Engine, began_s: float = 0.0) -> None:
        self._start = start
        self._began_s = began_s
        self._engine = engine
        self._patterns: tuple[str, ...] = ()
        self._errors: dict[str, str] = {}
        self._items: dict[str, pytest.Item] = {}
        self._reporting = False
        self._last: pytest.TestReport | None = None
        self._nameless: set[str] = set()
        self._is_certain = self._is_taken = False
        self._is_copy = False

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the terminal's formatting, which assertion messages use, but write nowhere."""
        self._config = config
        self._patterns = tuple(config.getini("python_files"))
        if config.pluginmanager.get_plugin("terminalreporter") is not None:
            writer = config.get_terminal_writer()
            writer._file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process
            writer.hasmarkup = self._start.shared.markup

    def pytest_internalerror(self, excrepr: Any) -> None:
        """Write down the error that ends this process."""
        self._write_down(str(excrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Write down the error that ends this process."""
        self._write_down(excinfo.exconly())

    def _write_down(self, text: str) -> None:
        with (Path(self._start.own.scratch) / "output").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{text}\n")

    def pytest_collectstart(self) -> None:
        """Seed the random generators anew for each module: another module may be on one side alone."""
        self._engine.seeds.begin_imports()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep collection errors: they explain a missing test."""
        if report.failed:
            self._errors[report.nodeid] = report.longreprtext

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Add up the time of the fixtures that more than one test can use."""
        started_s = monotonic()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._engine.shared_setup_s += monotonic() - started_s

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep plugins from writing a terminal summary: nobody sees it, and some import a lot for it."""
        plugins = session.config.pluginmanager
        none = plugins.subset_hook_caller("pytest_terminal_summary", plugins.get_plugins())
        session.config.hook.pytest_terminal_summary = none  # type: ignore[attr-defined]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of the orders, until the order to quit."""
        self._items = {result_key(item): item for item in session.items}
        self._serve(session)
        return True

    def serve_without_tests(self, failure: ConftestImportFailure) -> None:
        """Answer the run's orders in place of a session that cannot begin because of its conftest.py."""
        cause = failure.cause
        trace = "".join(traceback.format_exception(cause))
        self._errors = {"conftest.py": f"{failure.path}: {type(cause).__name__}: {cause}\n{trace}"}
        self._nameless = set(self._errors) if lacks_name(cause, self._is_of_tests) else set()
        self._serve(None)

    def _serve(self, session: pytest.Session | None) -> None:
        """Carry out the run's orders, until the order to quit."""
        import_s = monotonic() - self._began_s
        errors = "\n\n".join(self._errors.values())
        variables = library_variables()
        with self._engine.own_fork():
            fault = _fault_of_forks() if self._start.own.probe else ""
        loaded = self._engine.loaded()
        keys, text = list(self._items), self._text(errors)
        self._engine.send(wire.Ready(PROTOCOL, keys, text, loaded, variables, fault, import_s))
        if self._start.shared.forks:
            self._engine.get_copied()
            gc.collect()
            gc.freeze()  # collections in copies do not walk, and so copy, what all of them share
        while True:
            match self._engine.receive():  # an order to leave may have crossed the end of its test
                case wire.Fork(scratch):
                    self._fork(session, Path(scratch))
                case wire.Import(modules):
                    dirty = import_more(modules)
                    self._engine.send(wire.Imported([] if dirty is None else [dirty]))
                    self._engine.get_copied()
                case wire.Run() as order:
                    self._run(session, order)
                case wire.Reap(pid):
                    with contextlib.suppress(ChildProcessError):  # a test's plugin has waited for it
                        os.waitpid(pid, 0)
                case wire.Quit():
                    if self._is_copy:
                        self._leave(session)
                    _collect_before_the_end()
                    return

    def _fork(self, session: pytest.Session | None, scratch: Path) -> None:
        """Fork a copy of this process, which takes its own orders."""
        descriptor = receive_descriptor(self._engine.connection)
        os.set_inheritable(descriptor, False)
        with self._engine.own_fork():
            is_parent = bool(_fork())
        if is_parent:
            os.close(descriptor)
            return
        self._is_copy = True
        os.setsid()  # its children end with it
        _leave_by_signal()
        self._engine.move(Connection(descriptor), scratch)
        _be_a_process_of_its_own(None if session is None else session.config, scratch)
        self._engine.send(wire.Started())

    def _leave(self, session: pytest.Session | None) -> None:
        """End a copy with its own fixtures and exit handlers, not the session's."""
        try:
            if session is not None:
                session._setupstate.teardown_exact(None)
        finally:
            _end_process(0)

    def _run(self, session: pytest.Session | None, order: wire.Run) -> None:
        self._last = None
        item = self._items.get(order.key)
        if item is None or session is None:
            text = "\n\n".join(self._errors.values()) or f"{order.key} was not collected"
            self._done("missing", text, name_missing=self._nameless.issuperset(self._errors))
            return
        self._nameless.discard(item.nodeid)
        self._is_certain = self._is_taken = False
        # The next test here may differ from the next one in the run.
        session._setupstate.teardown_exact(item)
        self._reporting = order.reporter
        release_threads()
        self._engine.begin(order.seed)
        following = None if order.next_key is None else self._items.get(order.next_key)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        outcome = "passed" if self._last is None else self._last.outcome
        self._done(outcome, _text(self._last), name_missing=item.nodeid in self._nameless)

    def _done(self, outcome: str, text: str, *, name_missing: bool) -> None:
        modules = sorted({name.partition(".")[0] for name in list(sys.modules)})
        self._engine.send(wire.Done(outcome, self._text(text), modules, name_missing, self._is_certain, self._is_taken))

    def _text(self, text: str) -> str:
        return self._engine.shown(text.encode("utf-8", "backslashreplace").decode())

    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[Any]) -> None:
        """Remember tests that failed because a name they ask for is missing: they cannot be compared with older code.

        Also note whether a test failed by its own file: by what it gave its fixture, or by a fixture that it lacks.
        """
        error = None if call.excinfo is None else call.excinfo.value
        is_of_arguments = isinstance(error, ComponentError) and error.is_certain
        self._is_certain |= is_of_arguments or isinstance(error, pytest.FixtureLookupError)
        # Collecting a module wraps the error of the import.
        if error is not None and any(lacks_name(each, self._is_of_tests) for each in (error, error.__cause__)):
            self._nameless.add(node.nodeid)

    def _is_of_tests(self, file: str) -> bool:
        """Whether a file belongs to the tests, and so is today's on every side."""
        from pytest_rlperf.sides.trees import TestFiles  # only for a test that fails

        own, tree = self._start.own, self._start.own.tree
        tests = TestFiles(frozenset(os.path.relpath(each, tree) for each in own.files), self._patterns, None)
        return Path(file).is_relative_to(tree) and tests.cover(os.path.relpath(file, tree))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add advice for a test that may have failed because another process runs it at the same time."""
        report = yield
        if call.excinfo is not None and _is_of_taken(call.excinfo.value):
            self._is_taken = True
            if isinstance(report.longrepr, ExceptionRepr):
                from pytest_rlperf.report.wording import collision_text  # only for a test that fails

                report.longrepr.addsection("rlperf", collision_text())
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the reporter's reports; remember the first report that is not a pass."""
        if self._last is None and not report.passed:
            self._last = report
        if self._reporting:
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            self._engine.send(wire.Reported.of(_in_texts(data, self._engine.shown)))

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Send the warnings of the reporter's tests; the run's own collection recorded the others."""
        if not (self._reporting and when == "runtest"):
            return
        category = warning_message.category
        self._engine.send(
            wire.Warned(
                text=self._text(str(warning_message.message)),
                category=f"{category.__module__}.{category.__qualname__}",
                filename=self._engine.shown(warning_message.filename),
                line=warning_message.lineno,
                when=when,
                nodeid=nodeid,
                location=location,
            ),
        )


def _leave_by_signal() -> None:
    """Let the signal of the run, or of its guardian once the run is gone, end this process with all teardowns."""
    signal.signal(LEAVE, lambda *_: sys.exit(1))


def _collect_before_the_end() -> None:
    """Collect garbage once, so that the ten collections at pytest's end only look at new objects."""
    gc.collect()
    gc.freeze()


@untouched
def _be_a_process_of_its_own(config: pytest.Config | None, scratch: Path) -> None:
    """Give a copy of a session its own files, and drop what belongs to the process that it was copied from."""
    scratch.mkdir(parents=True, exist_ok=True)
    capturing = None if config is None else config.pluginmanager.get_plugin("capturemanager")
    if capturing is not None and capturing.is_globally_capturing():
        capturing.stop_global_capturing()
        capturing.start_global_capturing()
    paths = getattr(config, "_tmp_path_factory", None)
    if paths is not None:
        paths._given_basetemp, paths._basetemp = scratch / "tmp", None
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit._clear()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        util._run_after_forkers()
        atexit.register(util._exit_function)
        sys.modules["multiprocessing.process"]._children = set()  # type: ignore[attr-defined]


def _remove_temporary_files() -> None:
    """Remove the named temporary files that modules hold, as an interpreter's end does, which this process skips.

    A copy keeps these files: they are its template's.
    """
    if not has_named_files():  # usually: a look at all objects would copy the memory that the process shares
        return
    gc.unfreeze()  # frozen objects are in no list
    for held in [each for each in gc.get_objects() if type(each) is tempfile._TemporaryFileWrapper]:
        with contextlib.suppress(OSError, ValueError):
            held.close()
            if hasattr(held._closer, "cleanup"):  # from Python 3.12 on, closing may leave the file
                held._closer.cleanup()


def _end_process(code: int) -> None:
    """End this process with all that is registered for its end, as multiprocessing ends its children.

    The interpreter would also take every module apart, which takes most of a second with PyTorch. What PyTorch itself
    registers takes its operators apart, and is left out.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    registry = weakref.finalize._registry  # type: ignore[attr-defined]
    for finalizer in [each for each, info in registry.items() if getattr(info.func, "__module__", "") == _OPERATORS]:
        finalizer.detach()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    _exit(code)


def _is_of_taken(error: BaseException) -> bool:
    """Whether an error, or its cause, is about a port or a file that is taken."""
    causes = (error, error.__cause__, error.__context__)
    return any(isinstance(each, OSError) and each.errno in (errno.EADDRINUSE, errno.EEXIST) for each in causes)


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of a report with all of its texts changed, those within containers too."""
    kind = type(value)
    if kind is str:
        return change(value)
    if kind in (list, tuple, set, frozenset):
        return kind(_in_texts(member, change) for member in value)
    if kind is dict:
        return {_in_texts(key, change): _in_texts(member, change) for key, member in value.items()}
    return value


def _text(report: pytest.TestReport | None) -> str:
    if report is None:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return report.longreprtext


class _Input(dict[str, Any]):
    """The input of a worker, with None for what a plugin in pytest-xdist's controller would add."""

    def __missing__(self, key: str) -> None:
        return None


def _prepare(start: wire.SessionSettings) -> pytest.Config:
    """Return the user's own configuration, without the settings that are only for the run."""
    config = _prepareconfig(list(start.own.args))
    for settings in ("_inicfg", "inicfg"):  # the second is for pytest before 9, which deprecates it
        # A measured test stays open for longer than its own code runs.
        vars(config).get(settings, {}).pop("faulthandler_timeout", None)
    for plugin in list(config.pluginmanager.get_plugins()):
        name = getattr(plugin, "__name__", "")
        if name in _DROPPED:
            config.pluginmanager.unregister(plugin)
            if (marker := _DROPPED[name]) is not None:
                config.addinivalue_line("markers", marker)
    # By this attribute plugins, pytest's own too, find out that their process reports to another one.
    config.workerinput = _Input(  # type: ignore[attr-defined]
        workerid=f"rlperf{start.own.number}", workercount=1, testrunuid="rlperf", mainargv=sys.argv
    )
    config.workeroutput = {}  # type: ignore[attr-defined]
    # Beyond the rootdir, pytest names tests by the arguments.
    if all(Path(file).is_relative_to(config.rootpath) for file in start.own.files):
        config.args = list(start.own.files)
    for name, value in _overrides(start).items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    return config


def _overrides(start: wire.SessionSettings) -> dict[str, Any]:
    """Return the options that are only for the run, with their values for a worker."""
    return {
        # The run writes pytest-benchmark's reports and judges its gates.
        **dict.fromkeys([f"benchmark_{name}" for name in ("autosave", "compare", "csv", "histogram", "json", "save")]),
        "benchmark_compare_fail": [],
        "benchmark_quiet": True,
        "basetemp": str(Path(start.own.scratch) / "tmp"),
        "continue_on_collection_errors": True,
        "dist": "no",
        "lf": False,
        "log_file": os.devnull,
        "maxfail": 0,
        "no_header": True,  # nobody sees it, and pytest reads every plugin's metadata for it
        "numprocesses": None,
        "stepwise": False,
        "stepwise_skip": False,
        "tx": [],
    }


def main(
    settings: dict[str, Any] | None = None, descriptor: int | None = None, alike: frozenset[str] = frozenset()
) -> None:
    """Run a session until the run no longer needs it.

    A preload server gives its copy the settings, a connection, and the modules that are ``alike`` on all sides. A new
    interpreter has the number of its connection in a variable, and reads the settings from the connection.
    """
    forked = descriptor is not None
    connection = Connection(int(os.environ.pop(wire.DESCRIPTOR_KEY)) if descriptor is None else descriptor)
    if settings is None:
        settings = loads(connection.recv_bytes())
    os.set_inheritable(connection.fileno(), False)
    start = wire.from_json(settings, wire.SessionSettings)
    observer = Observer(start.shared.watched, start.own.changed) if start.shared.observes else None
    recorder = FunctionRecorder() if start.shared.observes else None
    if forked:
        wire.send(connection, wire.Started())
    _kept = None if forked else vary_heap()
    _leave_by_signal()
    mark_temporary_files()
    began_s = monotonic()
    sys.path[:] = start.own.path
    engine = Engine(start, connection, observer, recorder, alike)
    engine.keep_captured_output(Path(start.own.scratch))
    session = Session(start, engine, began_s)
    engine.watch_imports()
    try:
        with without_version_control():
            config = _prepare(start)
    except ConftestImportFailure as failure:
        session.serve_without_tests(failure)
        _end_process(0)
    config.stash[ENGINE] = engine.measure
    config.pluginmanager.register(TakenOver(), "rlperf-benchmark")
    config.pluginmanager.register(session, "rlperf-worker")
    code = int(config.hook.pytest_cmdline_main(config=config))
    _remove_temporary_files()
    _end_process(code)
