"""Where a call's time goes: the shares of Python, PyTorch, native extensions and environments.

Calls of two kinds alternate. Calls with only environments timed give the length of a call and its environments' part.
Calls under cProfile, without environments, give the time in native functions. Python has the rest. So an extension's
operator, which cProfile does not see because it is not a function call, counts as Python. cProfile does not see JAX's
compiled functions either, so Python is not told apart from JAX when JAX runs.
"""

from __future__ import annotations

import cProfile
import inspect
import os
import re
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

from pytest_rlperf import units
from pytest_rlperf.counters.calls import extension_with
from pytest_rlperf.counters.memory import quiet
from pytest_rlperf.model.measured import Share, Workload
from pytest_rlperf.probes import Undo, attached, put, together
from pytest_rlperf.worker.tracing import call_plainly

# --------------------------------------------------------------------------- the owners of functions

PYTHON = "python"
PYTORCH = "pytorch"
PYTORCH_PYTHON = "pytorch (Python)"
JAX = "jax"
PYTHON_OR_JAX = "python or jax"
"""Python functions of calls that run on JAX: no profiler sees a compiled function of JAX's that they call."""
ENVIRONMENT = "environment"
DEVICE_WAIT = "device wait"
WAITING = "waiting"
UNATTRIBUTED = "unattributed"
HARNESS = "(harness)"
"""Functions that run only while shares are found; they are not part of a call."""

ENV_METHODS = frozenset({"step", "reset", "step_async", "step_wait", "step_all", "reset_all", "step_and_maybe_reset"})

_PACKAGE = Path(__file__).parents[1]
_MEASURED = str(_PACKAGE / "components" / "reference") + os.sep  # users measure it, though it is in this package
_HARNESS_NATIVES = ("_lsprof.Profiler", "register_callback", "sys.setprofile")
_FUNCTION = re.compile(r"<(?:built-in method )?(.+)>")
_METHOD = re.compile(r"<(?:method|slot wrapper) '(\w+)' of '([\w.]+)' objects>")
_LIBRARIES = {"torch": PYTORCH_PYTHON, "jax": JAX}
_WAITS = frozenset(
    {
        *("time.sleep", "_thread.lock.acquire", "_thread.RLock.acquire", "_queue.SimpleQueue.get"),
        *("select.select", "select.poll.poll", "select.epoll.poll", "posix.read", "posix.waitpid"),
        *("_socket.socket.recv", "_socket.socket.recv_into", "_socket.socket.accept"),
        *("_multiprocessing.SemLock.acquire", "_multiprocessing.SemLock.__enter__"),
    }
)


def owner_of_code(code: CodeType) -> str:
    """Return the owner of a Python function: Python, PyTorch's Python, JAX including XLA's work, or this package."""
    path = code.co_filename
    if path == __file__:
        return HARNESS
    if path.startswith(str(_PACKAGE) + os.sep) and not path.startswith(_MEASURED):
        return UNATTRIBUTED  # the fixtures' own thunks and timers
    for name, owner in _LIBRARIES.items():
        home = getattr(sys.modules.get(name), "__file__", None)
        if home is not None and path.startswith(str(Path(home).parent) + os.sep):
            return owner
    return PYTHON


def owner_of_native(text: str) -> str:
    """Return the owner of the native function ``text``, as cProfile names it; native environments own their steps.

    A function without a module is Python's, unless it is a method of an extension's class.
    """
    if any(name in text for name in _HARNESS_NATIVES):
        return HARNESS
    method = _METHOD.fullmatch(text)
    if method is not None:
        name, type_name = method.groups()
        owner = _owner_of_name(f"{type_name}.{name}") if "." in type_name else PYTHON
        is_env = name in ENV_METHODS and owner not in {PYTHON, PYTORCH, UNATTRIBUTED, "numpy"}
        return ENVIRONMENT if is_env else owner
    function = _FUNCTION.fullmatch(text)
    return _owner_of_name(function[1].partition(" ")[0]) if function is not None else UNATTRIBUTED


def _owner_of_name(name: str) -> str:
    """Return the owner of a dotted name."""
    top, dot, rest = name.partition(".")
    if name in _WAITS:
        return WAITING
    if top == "builtins":
        top = extension_with(rest.partition(".")[0]).partition(".")[0]
    if not dot or top in sys.stdlib_module_names:
        return PYTHON
    return {"torch": PYTORCH, "functorch": PYTORCH, "jaxlib": JAX}.get(top, top)


# --------------------------------------------------------------------------- environments

Place = tuple[type, str]


def is_environment(kind: type) -> bool:
    """Whether a class is an environment's: it steps by actions and can be reset, or is an EnvBase."""
    if any(base.__name__ == "EnvBase" for base in kind.__mro__):
        return True
    for step, reset in (("step", "reset"), ("step_all", "reset_all")):
        function = inspect.unwrap(getattr(kind, step, _nothing))
        if callable(getattr(kind, reset, None)) and isinstance(function, FunctionType):
            code = function.__code__
            if any(name.startswith("action") for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
                return True
    return False


def _nothing() -> None:
    """Stand in for a method or setup that is missing."""


def entered_by(call: Callable[[], object]) -> set[Place]:
    """Run a call, and return the steps and resets of environments that it enters, each by its class and name.

    An environment within another's step is part of that step, and is not returned.
    """
    entered: dict[type, set[Place]] = {}
    inside: FrameType | None = None

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal inside
        if inside is not None:
            if event == "return" and frame is inside:
                inside = None
            return
        if event != "call" or frame.f_code.co_name not in ENV_METHODS or not frame.f_code.co_argcount:
            return
        kind = type(frame.f_locals.get(frame.f_code.co_varnames[0]))
        if kind not in entered:
            entered[kind] = _methods(kind) if is_environment(kind) else set()
        functions = (inspect.unwrap(vars(base)[name]) for base, name in entered[kind])
        if any(getattr(function, "__code__", None) is frame.f_code for function in functions):
            inside = frame

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return set().union(*entered.values())


def _methods(kind: type) -> set[Place]:
    """Return the steps and resets of an environment class and its bases."""
    places = ((base, name) for base in kind.__mro__ for name in ENV_METHODS)
    return {(base, name) for base, name in places if isinstance(vars(base).get(name), FunctionType)}


class Aside:
    """A probe that adds up the nanoseconds in the functions at ``places``, with a profiler paused while they run.

    ``pause`` and ``resume`` are the profiler's.
    """

    def __init__(
        self,
        places: Iterable[Place],
        clock_ns: Callable[[], int],
        pause: Callable[[], object] = _nothing,
        resume: Callable[[], object] = _nothing,
    ) -> None:
        self.spent_ns = 0
        self._places = places
        self._clock_ns = clock_ns
        self._pause, self._resume = pause, resume
        self._thread = threading.get_ident()
        self._is_inside = False

    def attach(self) -> Undo:
        """Time the functions from now on, and return what puts everything back."""
        return together(put(holder, name, self._around(vars(holder)[name])) for holder, name in self._places)

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that times ``function``, unless it runs within another environment or thread."""
        clock_ns, pause, resume = self._clock_ns, self._pause, self._resume

        def aside(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._is_inside = True
            pause()
            start_ns = clock_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_ns += clock_ns() - start_ns
                self._is_inside = False
                resume()

        return aside


# --------------------------------------------------------------------------- shares

ClockNs = Callable[[], int]
Seconds = defaultdict[str, float]  # by owners
_BLOCK_S = 0.001  # many short calls are watched at a time
_MOST_SLOWDOWN = 10.0  # under cProfile, of functions that do next to nothing
_CALIBRATION_CALLS = 2000
_CALIBRATION_RUNS = 7
_MONITORING: Any = getattr(sys, "monitoring", None)  # cProfile uses it from Python 3.12 on
_Kept = TypeVar("_Kept")


class ProfilerBusyError(Exception):
    """A tool already traces or profiles this thread; the text names it."""


def shares(
    call: Callable[[], object],
    *,
    setup: Callable[[], None] | None,
    calls: int,
    device_wait_s: float = 0.0,
    clock_ns: ClockNs = time.perf_counter_ns,
) -> tuple[Share, ...]:
    """Return the share of a call's time that each owner takes; they add up to 1, the last is ``unattributed``.

    It makes ``2 * calls + 1`` calls, with ``setup`` before each. Without a setup, as many calls as fit in a millisecond
    are made together. ``device_wait_s`` is how long the host waits for the device in a call, which must then wait for
    all its work. ProfilerBusyError if a profiler or debugger is active.
    """
    refuse_company()
    with quiet():
        whole_s, spent_s = _watch(call, setup or _nothing, calls, 1 if setup is not None else calls, clock_ns)
    waited_s = min(device_wait_s, spent_s[PYTORCH])  # PyTorch's functions wait for the device
    spent_s[PYTORCH] -= waited_s
    spent_s[DEVICE_WAIT] += waited_s
    return _as_shares(spent_s, whole_s)


def refuse_company() -> None:
    """Raise ProfilerBusyError if this thread is already traced or profiled."""
    hooks = [hook for hook in (sys.gettrace(), sys.getprofile()) if hook is not None]
    names = [getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks]
    if sys.version_info >= (3, 12):
        tool = sys.monitoring.get_tool(sys.monitoring.PROFILER_ID)
        names += [tool] if tool is not None else []
    if names:
        raise ProfilerBusyError(
            f"where the time goes was not measured: {' and '.join(names)} already profiles or traces this process; "
            "run without coverage, profiler or debugger to see it"
        )


# --------------------------------------------------------------------------- watching calls


def _watch(
    call: Callable[[], object], prepare: Callable[[], None], calls: int, most_at_once: int, clock_ns: ClockNs
) -> tuple[float, Seconds]:
    """Alternate calls of both kinds, as the machine's pace changes; the quieter half of each kind counts.

    Return the seconds of a call, and each owner's seconds in it.
    """
    prepare()
    places: set[Place] = set()
    first_ns = _ns_of(lambda: places.update(entered_by(call)), clock_ns)
    size = max(1, min(most_at_once, round(_BLOCK_S * 1e9 / max(first_ns, 100))))

    def block() -> None:
        for _ in repeat(None, size):
            call()

    timed: list[tuple[int, int]] = []  # with nanoseconds in environments
    profiled: list[tuple[int, Profiler]] = []
    for _ in repeat(None, max(1, round(calls / size))):
        prepare()
        aside = Aside(places, clock_ns)
        with attached([aside]):
            timed.append((_ns_of(block, clock_ns), aside.spent_ns))
        prepare()
        profiler = Profiler(clock_ns)
        with attached([Aside(places, clock_ns, profiler.pause, profiler.resume)]):
            profiled.append((_ns_of(partial(profiler.run, block), clock_ns), profiler))
    kept = _quieter_half(timed)
    whole_s, environment_s = (statistics.fmean(spent_ns) / 1e9 / size for spent_ns in zip(*kept, strict=True))
    profilers = [profiler for _, profiler in _quieter_half(profiled)]
    native_s, interpreted_s = _own_times(profilers, size, _event_cost_s(clock_ns))
    return whole_s, _attribute(whole_s, environment_s, native_s, interpreted_s)


def _ns_of(call: Callable[[], object], clock_ns: ClockNs) -> int:
    start_ns = clock_ns()
    call()
    return clock_ns() - start_ns


def _quieter_half(blocks: Sequence[tuple[int, _Kept]]) -> list[tuple[int, _Kept]]:
    """Return the shorter half of the blocks: other work on the machine only makes them longer."""
    return sorted(blocks, key=lambda block: block[0])[: (len(blocks) + 1) // 2]


class Profiler:
    """cProfile, which can be paused while the functions that are running go on."""

    def __init__(self, clock_ns: ClockNs) -> None:
        own = clock_ns is time.perf_counter_ns  # cProfile's own timer, which costs no Python call
        self._profile = cProfile.Profile() if own else cProfile.Profile(clock_ns, 1e-9)
        self._callbacks: list[tuple[int, object]] = []
        # disable() would end all functions that are running. cProfile keeps a stack, which must be right afterwards:
        # it sees neither of these two called, or the beginning of one and the end of the other.
        self.pause: Callable[[], object] = partial(sys.setprofile, None)
        self.resume: Callable[[], object] = self._profile.enable
        if _MONITORING is not None:
            self.pause, self.resume = self._take_callbacks_away, self._put_callbacks_back

    def run(self, call: Callable[[], object]) -> None:
        """Make a call under the profiler."""
        self._profile.enable()
        try:
            call()
        finally:
            self._profile.disable()

    def _take_callbacks_away(self) -> None:
        tool, events = _MONITORING.PROFILER_ID, _MONITORING.events
        # Calls come first both times, so that cProfile sees calls of register_callback() whole or not at all.
        kinds = (
            *(events.CALL, events.C_RETURN, events.C_RAISE, events.PY_START, events.PY_RESUME, events.PY_THROW),
            *(events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND),
        )
        self._callbacks = [(kind, _MONITORING.register_callback(tool, kind, None)) for kind in kinds]

    def _put_callbacks_back(self) -> None:
        for kind, callback in self._callbacks:
            _MONITORING.register_callback(_MONITORING.PROFILER_ID, kind, callback)

    def stats(self) -> list[Any]:
        """Return cProfile's entries."""
        return list(self._profile.getstats())


def _event_cost_s(clock_ns: ClockNs) -> float:
    """Measure the seconds per call that profiling adds to a native function's own time.

    It calls native functions that do next to nothing; half of a plain call's time counts as the function's own. They
    raise no audit event, as ``id`` does: a hook of the test's process would be taken off every native function.
    """
    runs = range(_CALIBRATION_RUNS)
    plain_ns = min(_ns_of(_call_natives, clock_ns) for _ in runs) - min(_ns_of(_call_none, clock_ns) for _ in runs)
    profiled_s = min(_native_s_of(_call_natives, clock_ns) for _ in runs)
    return max(0.0, profiled_s - plain_ns / 2e9) / _CALIBRATION_CALLS


def _native_s_of(call: Callable[[], object], clock_ns: ClockNs) -> float:
    """Return the profiled seconds in the native functions that a function calls."""
    profiler = Profiler(clock_ns)
    profiler.run(call)
    entry = next(entry for entry in profiler.stats() if entry.code is getattr(call, "__code__", None))
    return float(entry.totaltime - entry.inlinetime)


def _call_natives() -> None:
    nothing: dict[object, object] = {}
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        callable(None)
        nothing.get(None)  # methods may cost more


def _call_none() -> None:
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        pass


# --------------------------------------------------------------------------- from watched calls to shares


def _own_times(profilers: Sequence[Profiler], size: int, event_cost_s: float) -> tuple[Seconds, Seconds]:
    """Return the seconds per call of each owner's native functions, less what profiling adds, and of Python's."""
    native_s, interpreted_s = Seconds(float), Seconds(float)
    for entry in (entry for profiler in profilers for entry in profiler.stats()):
        is_native = isinstance(entry.code, str)
        owner = owner_of_native(entry.code) if is_native else owner_of_code(entry.code)
        own_s = entry.inlinetime / size / len(profilers)
        if owner == HARNESS:
            continue
        if not is_native or owner == PYTHON:
            interpreted_s[owner] += own_s
        else:
            native_s[owner] += max(0.0, own_s - entry.callcount * event_cost_s / size / len(profilers))
    if JAX in interpreted_s and PYTHON in interpreted_s:
        interpreted_s[PYTHON_OR_JAX] = interpreted_s.pop(PYTHON)
    return native_s, interpreted_s


def _attribute(whole_s: float, environment_s: float, native_s: Seconds, interpreted_s: Seconds) -> Seconds:
    """Return the seconds of each owner in a call that takes ``whole_s``.

    The profiler slows interpreted code by an unknown factor, so its functions share the time that native ones and
    environments leave. The factor is at most ``_MOST_SLOWDOWN``.
    """
    spent_s = Seconds(float, native_s)
    spent_s[ENVIRONMENT] += environment_s  # an environment may be native, too
    rest_s = max(0.0, whole_s - sum(spent_s.values()))
    profiled_s = sum(interpreted_s.values())
    scale = min(1.0, max(rest_s / profiled_s, 1.0 / _MOST_SLOWDOWN)) if profiled_s > 0 else 0.0
    for owner, seconds in interpreted_s.items():
        spent_s[owner] += scale * seconds
    return spent_s


def _as_shares(spent_s: Seconds, call_s: float) -> tuple[Share, ...]:
    """Return shares, the largest first, and the rest of a call last."""
    known_s = {owner: seconds for owner, seconds in spent_s.items() if owner != UNATTRIBUTED and seconds > 0}
    whole_s = max(call_s, sum(known_s.values()))
    found = sorted((Share(owner, seconds / whole_s) for owner, seconds in known_s.items()), key=lambda one: -one.share)
    return (*found, Share(UNATTRIBUTED, max(0.0, 1.0 - sum(one.share for one in found))))


# --------------------------------------------------------------------------- a workload's shares

_PLAIN_S = 0.1  # of plain calls; profiled ones take several times as long
_LEAST_CALLS, _MOST_CALLS = 8, 600
_LONGEST_CALL_S = 0.5  # profiling longer calls would take longer than the whole measurement
_WAIT_CALLS = 5


def explain(
    workload: Workload, call_s: float, wait: Callable[[], None] | None
) -> tuple[tuple[Share, ...], tuple[str, ...]]:
    """Return the shares of a call that takes about ``call_s``, or none and notes with the reason.

    ``wait`` waits until the call's device is done; it is None for a call on the host.
    """
    if call_s > _LONGEST_CALL_S:
        return (), (f"where the time goes is unknown: a call is too long to profile, it takes {units.seconds(call_s)}",)
    calls = max(_LEAST_CALLS, min(_MOST_CALLS, round(_PLAIN_S / max(call_s, 1e-9))))
    call, device_wait_s = workload.call, 0.0
    if wait is not None:
        call = _waiting(workload.call, wait)
        device_wait_s = _waited_s(workload, wait)
    try:
        found = shares(call, setup=workload.setup, calls=calls, device_wait_s=device_wait_s)
    except ProfilerBusyError as busy:
        return (), (str(busy),)
    except Exception as error:  # from code that cannot be profiled; its measurement is complete
        call_plainly(workload)
        return (), (
            f"where the time goes is unknown: under the profiler, the call raised {type(error).__name__}: {error}",
        )
    finally:
        workload.processed(0)  # these calls belong to no slice
    return found, ()


def _waiting(call: Callable[[], object], wait: Callable[[], None]) -> Callable[[], object]:
    def call_and_wait() -> None:
        call()
        wait()

    return call_and_wait


def _waited_s(workload: Workload, wait: Callable[[], None]) -> float:
    """Return how long the host waits for the device after a call, averaged over a few calls."""
    waited_s = 0.0
    for _ in range(_WAIT_CALLS):
        if workload.setup is not None:
            workload.setup()
        workload.call()
        start_s = time.perf_counter()
        wait()
        waited_s += time.perf_counter() - start_s
    return waited_s / _WAIT_CALLS
