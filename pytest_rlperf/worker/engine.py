"""The engine in a worker: it measures the workload that a test has given its fixture, by the driver's orders."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from io import FileIO
from multiprocessing.connection import Connection
from os import _exit, getpid
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

import pytest
from _pytest import capture
from _pytest.outcomes import Failed
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.devices import wait_for_all
from pytest_rlperf.errors import MeasurementError, PerformanceRegression
from pytest_rlperf.model.measured import Result, Workload
from pytest_rlperf.model.reach import Footprint
from pytest_rlperf.observe.footprint import footprint
from pytest_rlperf.observe.observer import LoadedFiles, Observer
from pytest_rlperf.observe.recorder import FunctionRecorder
from pytest_rlperf.spawn.after_import import AfterImport
from pytest_rlperf.spawn.cpus import usable_cpus
from pytest_rlperf.spawn.guardian import LEAVE
from pytest_rlperf.spawn.torch_threads import HeldThreads
from pytest_rlperf.spawn.untouched import untouched
from pytest_rlperf.spawn.variables import library_variables
from pytest_rlperf.worker.counting import count
from pytest_rlperf.worker.kernels import make_kernels
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.resources import ActivityWatch, children_seen, place, stopwatch
from pytest_rlperf.worker.room import with_room
from pytest_rlperf.worker.seeds import GENERATORS, Seeds

_OUTPUT_MOST = 16 << 20  # bytes that pytest keeps of what a test prints and logs
_SETTLED_LEAST_S, _LOOK_S = 0.3, 0.01  # of observed calls, and between two looks at what they have read
# Of observed calls that use a changed function's name, or are so few by then: longer than a pair takes. A worker of a
# pair makes about 20 calls before its slices, which have a quarter of a second of calls, or more if there are few.
_LONGER_LEAST_S, _FEW_CALLS = 1.0, 100
# A test's replacements apply only to what it measures.
_loaded_now, _footprint_now = untouched(LoadedFiles.now), untouched(footprint)


class Unwound(Failed):
    """Leaves a test at its measured call; not an Exception, so that a test's ``except Exception`` does not catch it.

    It has no traceback, so pytest looks up no source, which takes long if many modules are loaded.
    """

    def __init__(self) -> None:
        super().__init__("the run has ended this measurement", pytrace=False)


@contextlib.contextmanager
def _alarm_stopped() -> Iterator[None]:
    """Stop a test's own alarm while its call is measured, which takes longer than the call."""
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left[0]:
            signal.setitimer(signal.ITIMER_REAL, *left)


@contextlib.contextmanager
def _all_objects_seen() -> Iterator[None]:
    """Let code that looks at all objects see the frozen ones, too: they are frozen only for the collector's sake."""
    known = {name: getattr(gc, name) for name in ("get_objects", "get_referrers")}

    def seeing(look: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(look)
        def see(*arguments: Any, **keywords: Any) -> Any:
            gc.unfreeze()
            found = look(*arguments, **keywords)
            return [each for each in found if each is not arguments] if arguments else found

        return see

    for name, look in known.items():
        setattr(gc, name, seeing(look))
    try:
        yield
    finally:
        for name, look in known.items():
            setattr(gc, name, look)


def _refuse_much_output(config: pytest.Config, captured: Iterable[FileIO], source: str) -> None:
    """Drop what ``source`` prints and logs, and raise MeasurementError, if it would fill the memory or the disk."""
    capturing, logs = (config.pluginmanager.get_plugin(name) for name in ("capturemanager", "logging-plugin"))
    logged = 0 if logs is None else logs.report_handler.stream.tell()
    if logged + sum(file.tell() for file in captured if not file.closed) <= _OUTPUT_MOST:
        return
    if capturing is not None and capturing.is_globally_capturing():
        capturing.read_global_capture()
    if logs is not None:
        logs.report_handler.reset()
    most = f"over {_OUTPUT_MOST >> 20} MiB"
    raise MeasurementError(f"{source} printed or logged {most}, which measuring would keep: write less")


class Engine:
    """Measures a workload, by the run's orders."""

    def __init__(
        self,
        start: wire.SessionSettings,
        connection: Connection,
        observer: Observer | None = None,
        recorder: FunctionRecorder | None = None,
        alike: frozenset[str] = frozenset(),
    ) -> None:
        self.connection = connection
        self._observer, self._recorder = observer, recorder
        self._alike = alike
        self.shared_setup_s = 0.0
        self._start = start
        self._kernels = functools.cache(make_kernels)
        self._cpus = usable_cpus()
        self.seeds = Seeds(start.own.number)
        self._ended = 0
        self._modules: frozenset[str] = frozenset()
        self._captured: list[FileIO] = []
        self._loaded_files = LoadedFiles(start.shared.watched, start.shared.packages, alike)
        self._owner = getpid()
        os.register_at_fork(after_in_child=self._leave_copies)

    def move(self, connection: Connection, scratch: Path) -> None:
        """Set this engine up in a forked copy of its process, which gets its own connection and files."""
        self.connection.close()
        self.connection = connection
        self._owner = getpid()
        self.keep_captured_output(scratch)
        if self._observer is not None:
            self._observer.go_on()

    def keep_captured_output(self, scratch: Path) -> None:
        """Make pytest capture into named files, so that the run can read them when this process is dead."""
        captured: list[FileIO] = []
        self._captured = captured

        def named_file(buffering: int) -> FileIO:  # which no test has replaced; pytest asks for no buffer
            captured.append(FileIO(f"{scratch}/captured{len(captured)}", "w+"))
            return captured[-1]

        if hasattr(capture, "TemporaryFile"):
            capture.TemporaryFile = named_file

    def _leave_copies(self) -> None:
        """Close the connection in a copy that a test has forked: the copy ends when it uses the connection.

        The run's signal is not for the copy.
        """
        if getpid() != self._owner:
            signal.signal(LEAVE, signal.SIG_DFL)
            if not self.connection.closed:
                self.connection.close()

    def watch_imports(self) -> None:
        """Seed generators when they are loaded, and hold PyTorch's threads if copies of this process have the tests."""
        self.seeds.begin_imports()
        AfterImport(GENERATORS, self._after_import).begin()

    def _after_import(self, module: ModuleType) -> None:
        self.seeds.seed_once(module.__name__)
        if module.__name__ == "torch" and self._start.shared.forks:
            HeldThreads(module)

    def begin(self, seed: int) -> None:
        """Get ready for a test's fixtures: seed every loaded random generator."""
        self._ended = children_seen()[1]
        self.seeds.begin(seed)

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Take slices until the run concludes: return the result, raise the failure, or leave the test."""
        __tracebackhide__ = True
        _refuse_much_output(item.config, self._captured, "before its measured call, the test or a fixture has")
        anew = workload.children_ns is not None
        self.send(wire.Called(workload.component, workload.unit, workload.items, self.shared_setup_s, anew))
        meter = Meter(workload, self._kernels)
        try:
            with _alarm_stopped(), _all_objects_seen():
                return self._carry_out_orders(item, meter)
        finally:
            meter.thaw()
            place(self._cpus)

    def _carry_out_orders(self, item: pytest.Item, meter: Meter) -> Result:
        __tracebackhide__ = True
        while True:
            order = self.receive()
            if isinstance(order, wire.Leave):
                return _leave(order)
            if not isinstance(order, wire.Order):
                raise MeasurementError(f"unexpected order to a worker that measures: {order!r}")
            answer = with_room(functools.partial(self._answer, order, meter))
            _refuse_much_output(item.config, self._captured, "measured calls have")
            self.send(wire.Answer(order.number, answer))

    def _answer(self, order: wire.Orders, meter: Meter) -> Any:
        """Carry out an order, and return its answer."""
        __tracebackhide__ = True
        match order:
            case wire.Check():
                self.seeds.seed_loaded()  # modules that the test's fixtures were the first to import
                first_call_s, second_call_s = meter.check()
                items, calls = meter.workload.processed(1), meter.workload.checked()
                loaded, children = self.loaded(), _had_children(self._ended)
                variables, made = library_variables(), (meter.output, calls, second_call_s)
                return wire.Checked(first_call_s, items, loaded, children, self._imported(), variables, *made)
            case wire.Count():
                tally = count(meter.workload, order, watched=self._start.shared.watched)
                meter.made(tally.calls)
                return tally
            case wire.WarmUp():
                return meter.warm_up(order)
            case wire.Observe():
                return self._observed(order, meter.workload, is_accelerated=meter.device is not None)
            case wire.Slow():
                return meter.slow_down(order.share, order.steps)
            case wire.Place():
                return place(order.cpus)
            case wire.Take():
                return meter.take(order.kind)
            case wire.PriceCollections(calls):
                return meter.collecting_s(calls)
            case wire.ReadUsage():
                return meter.usage()
            case wire.FindAllocations():
                return meter.allocations(order.calls, self._start.own.tree, self._start.shared.packages)
            case wire.FindCompiled():
                return meter.programs.last()
            case wire.Explain():
                return wire.Explained(*meter.explain())
            case wire.Trace():
                return meter.trace(order.title)

    def _observed(self, order: wire.Observe, workload: Workload, *, is_accelerated: bool) -> Footprint:
        """Return what the process has run and read after calls of the component."""
        __tracebackhide__ = True
        assert self._observer is not None
        assert self._recorder is not None
        watch, names = ActivityWatch(), frozenset(order.names)
        _call_until_settled(workload, order.limit_s, names, self._observer, self._recorder)
        is_single = watch.seen().is_single
        many = True if workload.whole_machine or is_accelerated else None if is_single is None else not is_single
        known = self._observer, self._recorder, self._loaded_files, self._alike
        found = _footprint_now(*known, searches=order.searches)
        return replace(found, children=found.children or _had_children(self._ended), many=many)

    def get_copied(self) -> None:
        """Note the modules loaded before this process is copied: what copies import later could be loaded here, too."""
        self._modules = frozenset(sys.modules)
        if self._observer is not None:
            self._observer.rest()

    def _imported(self) -> list[str]:
        return [name for name in list(sys.modules) if name not in self._modules] if self._modules else []

    def loaded(self) -> dict[str, str]:
        """Return the loaded files of the code under test, by module."""
        return _loaded_now(self._loaded_files)

    def own_fork(self) -> AbstractContextManager[None]:
        """Return the context in which this process forks for the run, not for a test."""
        return contextlib.nullcontext() if self._observer is None else self._observer.own_fork()

    def shown(self, text: str) -> str:
        """Return a text for the user, which names the user's files by their own places."""
        tree, top = self._start.own.tree, self._start.shared.top
        return text.replace(tree, top) if tree and top else text

    def send(self, message: wire.FromWorker) -> None:
        """Send a message to the run."""
        if self.connection.closed:  # a test has forked: this process is a copy of the connection's owner
            _exit(1)
        wire.send(self.connection, message)

    def receive(self) -> wire.ToWorker:
        """Wait for the next order; if the run's process is gone, end the session with all its teardowns."""
        if self.connection.closed:
            _exit(1)
        try:
            order: wire.ToWorker = wire.receive_order(self.connection, wire.ToWorker)
        except (EOFError, OSError):
            pytest.exit("the run that started this worker is gone", returncode=1)
        return order


def _call_until_settled(
    workload: Workload,
    limit_s: float,
    names: frozenset[str],
    observer: Observer,
    recorder: FunctionRecorder,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Call a component until the last half of its calls has run and read nothing new: an episode ends late.

    If there are ``names``, it goes on for longer if the code that has run may call something by one of them, or if
    calls are so long that few have been made. Times are the calling thread's, without its waits for a CPU: the work of
    others does not shorten the look, be they other processes or its own threads.
    """
    __tracebackhide__ = True
    own_s, looked_s = stopwatch(), clock()
    spent_s, news_s, known = 0.0, 0.0, (observer.count, recorder.count)
    least_s, calls, is_looked_through = _SETTLED_LEAST_S, 0, False
    while spent_s < min(limit_s, max(least_s, 2 * news_s)):
        if workload.setup is not None:
            workload.setup()
        workload.call()
        calls += 1
        if (now_s := clock()) - looked_s > _LOOK_S:
            looked_s, spent_s = now_s, own_s()
            if (found := (observer.count, recorder.count)) != known:
                known, news_s, is_looked_through = found, spent_s, False
            if names and spent_s >= least_s and not is_looked_through:
                is_looked_through = True  # by what has run so far
                if calls < _FEW_CALLS or recorder.has_met(names):
                    least_s = _LONGER_LEAST_S
    wait_for_all()()
    if limit_s:
        gc.collect()  # objects that wait for it call functions, too
    workload.processed(0)


def _had_children(ended_before: int) -> bool:
    """Whether this process has children, or had some that ended since there were ``ended_before``."""
    running, ended = children_seen()
    return running > 0 or ended > ended_before


def _leave(order: wire.Leave) -> Result:
    __tracebackhide__ = True
    if order.failure is not None:
        raise (PerformanceRegression if order.failure.regression else MeasurementError)(order.failure.message)
    if order.result is None:
        raise Unwound
    return order.result
