"""Where a call's time goes: the shares of Python, PyTorch, native extensions and environments.

Calls of two kinds are made in turns: with environments timed and nothing else, which gives the length of a call and
its environments' part, and under cProfile with environments left out, which gives the time in native functions. Python
has the rest. So an operator of an extension, which is no function call and which cProfile does not see, counts as
Python. It does not see JAX's compiled functions either, so where JAX runs, Python is not told apart from it.
"""

from __future__ import annotations

import cProfile
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import FunctionType, MethodType
from typing import Any, TypeVar

from pytest_rlperf.attribution import owners
from pytest_rlperf.attribution.environments import Aside, Place, entered_by, places_of
from pytest_rlperf.model.counting import Share
from pytest_rlperf.probes.attach import attached

__all__ = ["ProfilerBusyError", "refuse_company", "shares"]

ClockNs = Callable[[], int]
_BLOCK_S = 0.001  # short calls are watched many at a time
_SMALLEST = 0.01  # of a call: extensions that take less are shown together
_MOST_SLOWDOWN = 10.0  # under cProfile, of functions that do next to nothing
_CALIBRATION_CALLS = 2000
_CALIBRATION_RUNS = 7
_MONITORING: Any = getattr(sys, "monitoring", None)  # cProfile uses it from Python 3.12 on
_Kept = TypeVar("_Kept")


class ProfilerBusyError(Exception):
    """A tool traces or profiles this thread already; the text names it."""


@dataclass(frozen=True)
class _Watched:
    """Seconds of one call: all of it, its environments, and as profiled each owner's native and Python functions."""

    whole_s: float
    environment_s: float
    native_s: Mapping[str, float]
    interpreted_s: Mapping[str, float]


def shares(
    call: Callable[[], object],
    *,
    setup: Callable[[], None] | None,
    calls: int,
    device_wait_s: float = 0.0,
    clock_ns: ClockNs = time.perf_counter_ns,
) -> tuple[Share, ...]:
    """Return how much of a call's time each owner takes; they add up to 1, the last is ``unattributed``.

    It makes ``2 * calls + 1`` calls, with ``setup`` before each. Without a setup, as many calls as fit in a millisecond
    are made together. ``device_wait_s`` is how long the host waits for the device in a call, which must then wait for
    all its work. ProfilerBusyError where a profiler or debugger is active, ValueError for fewer than one call.
    """
    refuse_company()
    if calls < 1:
        raise ValueError(f"calls must be at least 1: got {calls}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watched = _watch(call, setup or _nothing, calls, 1 if setup is not None else calls, clock_ns)
    spent_s = _attribute(watched)
    waited_s = min(device_wait_s, spent_s.get(owners.PYTORCH, 0.0))  # PyTorch's functions wait for the device
    _add(spent_s, owners.PYTORCH, -waited_s)
    _add(spent_s, owners.DEVICE_WAIT, waited_s)
    return _as_shares(spent_s, watched.whole_s)


def refuse_company() -> None:
    """Raise ProfilerBusyError where this thread is traced or profiled already."""
    hooks = [hook for hook in (sys.gettrace(), sys.getprofile()) if hook is not None]
    names = [getattr(hook, "__qualname__", None) or type(hook).__qualname__ for hook in hooks]
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
) -> _Watched:
    """Make calls of both kinds in turns, as the machine's pace changes; the quieter half of each kind counts."""
    if isinstance(call, MethodType) and getattr(call.__self__, call.__name__, None) == call:
        call = partial(_call_attribute, call.__self__, call.__name__)  # finds the method that replaces it
    prepare()
    methods: dict[FunctionType, Place] = {}
    first_ns = _ns_of(lambda: methods.update(entered_by(call)), clock_ns)
    places = places_of(methods, call)
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
    kept = _quieter_half([(ns, (ns, inside_ns)) for ns, inside_ns in timed])
    native_s, interpreted_s = _own_times(_quieter_half(profiled), size, _event_cost_s(clock_ns))
    return _Watched(
        whole_s=statistics.fmean(ns for ns, _ in kept) / 1e9 / size,
        environment_s=statistics.fmean(inside_ns for _, inside_ns in kept) / 1e9 / size,
        native_s=native_s,
        interpreted_s=interpreted_s,
    )


def _nothing() -> None:
    """Stand in for a setup."""


def _call_attribute(holder: object, name: str) -> object:
    return getattr(holder, name)()


def _ns_of(call: Callable[[], object], clock_ns: ClockNs) -> int:
    start_ns = clock_ns()
    call()
    return clock_ns() - start_ns


def _quieter_half(blocks: Sequence[tuple[int, _Kept]]) -> list[_Kept]:
    """Return the shorter half of blocks: other work on the machine only ever makes them longer."""
    ordered = sorted(blocks, key=lambda block: block[0])
    return [kept for _, kept in ordered[: (len(ordered) + 1) // 2]]


class Profiler:
    """cProfile, which can be paused while the functions that are running go on."""

    def __init__(self, clock_ns: ClockNs) -> None:
        own = clock_ns is time.perf_counter_ns  # cProfile's own timer, which costs no call of Python's
        self._profile = cProfile.Profile() if own else cProfile.Profile(clock_ns, 1e-9)
        self._callbacks: list[tuple[int, object]] = []
        # Not disable(), which ends all functions that are running. cProfile keeps a stack, which must be right
        # afterwards: it sees neither of these two called, or the beginning of one and the end of the other.
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
        # Calls come first both times, so that the calls of register_callback() are seen whole or not at all.
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
    """Measure the seconds that profiling adds to a native function's own time for each call.

    That is by calls of native functions that do next to nothing; half of a plain call's time is taken to be within it.
    """
    runs = range(_CALIBRATION_RUNS)
    plain_ns = min(_ns_of(_call_natives, clock_ns) for _ in runs) - min(_ns_of(_call_none, clock_ns) for _ in runs)
    profiled_s = min(_native_s_of(_call_natives, clock_ns) for _ in runs)
    return max(0.0, profiled_s - plain_ns / 2e9) / _CALIBRATION_CALLS


def _native_s_of(call: Callable[[], object], clock_ns: ClockNs) -> float:
    """Return the seconds in native functions that a function calls, as profiled."""
    profiler = Profiler(clock_ns)
    profiler.run(call)
    entry = next(entry for entry in profiler.stats() if entry.code is getattr(call, "__code__", None))
    return float(entry.totaltime - entry.inlinetime)


def _call_natives() -> None:
    nothing: dict[object, object] = {}
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        id(None)
        nothing.get(None)  # methods may cost more


def _call_none() -> None:
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        pass


# --------------------------------------------------------------------------- from watched calls to shares


def _own_times(
    profilers: Iterable[Profiler], size: int, event_cost_s: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of each owner's native functions in a call, less what profiling adds, and of Python's."""
    natives = owners.NativeOwners()
    native_s: dict[str, float] = {}
    interpreted_s: dict[str, float] = {}
    runs = [profiler.stats() for profiler in profilers]
    for entry in (entry for stats in runs for entry in stats):
        is_native = isinstance(entry.code, str)
        owner = natives.of_text(entry.code) if is_native else owners.owner_of_code(entry.code)
        own_s = entry.inlinetime / size / len(runs)
        if owner == owners.HARNESS:
            continue
        if not is_native or owner == owners.PYTHON:
            _add(interpreted_s, owner, own_s)
        else:
            _add(native_s, owner, max(0.0, own_s - entry.callcount * event_cost_s / size / len(runs)))
    if owners.JAX in interpreted_s and owners.PYTHON in interpreted_s:
        interpreted_s[owners.PYTHON_OR_JAX] = interpreted_s.pop(owners.PYTHON)
    return native_s, interpreted_s


def _attribute(watched: _Watched) -> dict[str, float]:
    """Return the seconds of each owner.

    Interpreted code runs slower under the profiler by an unknown factor, so its functions share what native ones and
    environments leave of a call, and no less than the most that a profiler slows code down.
    """
    spent_s = {owners.ENVIRONMENT: watched.environment_s}
    for owner, seconds in watched.native_s.items():
        _add(spent_s, owner, seconds)  # an environment may be native, too
    rest_s = max(0.0, watched.whole_s - sum(spent_s.values()))
    interpreted_s = sum(watched.interpreted_s.values())
    scale = min(1.0, max(rest_s / interpreted_s, 1.0 / _MOST_SLOWDOWN)) if interpreted_s > 0 else 0.0
    for owner, seconds in watched.interpreted_s.items():
        _add(spent_s, owner, scale * seconds)
    return spent_s


def _add(spent_s: dict[str, float], owner: str, seconds: float) -> None:
    spent_s[owner] = spent_s.get(owner, 0.0) + seconds


def _as_shares(spent_s: Mapping[str, float], call_s: float) -> tuple[Share, ...]:
    """Return shares, the largest first; small extensions as one, and the rest of a call at the end."""
    known_s = {owner: seconds for owner, seconds in spent_s.items() if owner != owners.UNATTRIBUTED and seconds > 0}
    whole_s = max(call_s, sum(known_s.values()))
    found: dict[str, float] = {}
    for owner, seconds in known_s.items():
        is_small = owner not in owners.ALWAYS and seconds < _SMALLEST * whole_s
        _add(found, owners.OTHER_NATIVE if is_small else owner, seconds / whole_s)
    ordered = sorted((Share(name, share) for name, share in found.items()), key=lambda one: -one.share)
    return (*ordered, Share(owners.UNATTRIBUTED, max(0.0, 1.0 - sum(found.values()))))
