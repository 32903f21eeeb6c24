"""Time by function, Python's and native ones: cProfile's figures, less what profiling costs."""

from __future__ import annotations

import cProfile
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from types import CodeType
from typing import Any

from pytest_rlperf.attribution.duration import seconds_of
from pytest_rlperf.attribution.owners import HARNESS, NativeOwners, owner_of_code

_CALIBRATION_CALLS = 2000
_CALIBRATION_RUNS = 7


@dataclass(frozen=True)
class Cost:
    """Seconds that profiling adds to a function's own time for each of its calls, and to its caller's."""

    inside_s: float
    outside_s: float


@dataclass
class Own:
    """Seconds in a function itself as profiled, and what of them is the profiler's; native ones have no ``code``."""

    owner: str
    code: CodeType | None
    profiled_s: float = 0.0
    overhead_s: float = 0.0


class Profiler:
    """cProfile, which can be paused without that the functions that are running count as returned."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile(subcalls=True, builtins=True)

    def run(self, call: Callable[[], object]) -> None:
        """Make a call under the profiler."""
        self._profile.enable()
        try:
            call()
        finally:
            self._profile.disable()

    def pause(self) -> Callable[[], object]:
        """Stop watching, and return what goes on with it.

        The profiler keeps a stack, which must be right afterwards: it sees this function begin and the other end.
        """
        if _MONITORING is not None:
            return _pause_monitoring()
        sys.setprofile(None)  # disable() would end all functions that are running

        def resume() -> None:
            self._profile.enable()

        return resume

    def stats(self) -> list[Any]:
        """Return cProfile's entries."""
        return list(self._profile.getstats())


_MONITORING: Any = getattr(sys, "monitoring", None)  # what cProfile uses from Python 3.12 on


def _pause_monitoring() -> Callable[[], object]:
    """Take cProfile's callbacks away, and return what puts them back.

    Calls come first, both times: the calls of ``register_callback`` itself are then seen whole or not at all.
    """
    tool, events, register = _MONITORING.PROFILER_ID, _MONITORING.events, _MONITORING.register_callback
    kinds = (
        *(events.CALL, events.C_RETURN, events.C_RAISE, events.PY_START, events.PY_RESUME, events.PY_THROW),
        *(events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND),
    )
    callbacks = [(kind, register(tool, kind, None)) for kind in kinds]

    def resume() -> None:
        for kind, callback in callbacks:
            register(tool, kind, callback)

    return resume


def own_times(
    profilers: Iterable[Profiler], calls: int, costs: Mapping[bool, Cost], natives: NativeOwners
) -> list[Own]:
    """Return every function's own time in one of ``calls`` calls that were made under some profilers.

    ``costs`` are those of calls of native functions (True) and of Python's.
    """
    found: dict[object, Own] = {}

    def own_of(code: Any) -> Own:
        is_native = isinstance(code, str)
        key = code if is_native else id(code)  # equal code may be another's
        if key not in found:
            owner = natives.of_text(code) if is_native else owner_of_code(code)
            found[key] = Own(owner, None if is_native else code)
        return found[key]

    for entry in (entry for profiler in profilers for entry in profiler.stats()):
        own = own_of(entry.code)
        own.profiled_s += entry.inlinetime / calls
        own.overhead_s += entry.callcount * costs[own.code is None].inside_s / calls
        for called in entry.calls or ():
            callee = own_of(called.code)
            own.overhead_s += called.callcount * costs[callee.code is None].outside_s / calls
            if own.owner == HARNESS and callee.code is None:  # what pausing calls
                callee.profiled_s -= called.inlinetime / calls
                callee.overhead_s -= called.callcount * costs[True].inside_s / calls
    return [own for own in found.values() if own.owner != HARNESS]


def calibrate() -> dict[bool, Cost]:
    """Measure what the profiler costs here: by calls of next to nothing, native (True) and Python's."""
    return {True: _cost(_call_natives), False: _cost(_call_python)}


def calibrate_slowdown() -> float:
    """Measure how many times as long the interpreter's own work takes under the profiler.

    That is 2 on Python 3.11, which leaves its specialised instructions where somebody profiles, and near 1 on others.
    """
    pairs = []
    for _ in repeat(None, _CALIBRATION_RUNS):
        plain_s = seconds_of(_interpret)
        pairs.append(seconds_of(lambda: Profiler().run(_interpret)) / plain_s)
    return max(1.0, statistics.median(pairs))


def _interpret() -> None:
    """Do what interpreted code does: names and numbers, and now and then a tuple or an item.

    Attributes are slowed down most, arithmetic least. This mix is slowed down as updates and rollouts are.
    """
    items, number, last = [1.0, 2.0, 3.0], 0.0, 0.0
    for index in range(_CALIBRATION_CALLS):
        number = 0.5 * number + index
        last = number - last
        pair = number, items[1]
        last = 0.5 * last - 0.25 * index
    del pair


def _nothing(_: object) -> None:
    """Take no time."""


def _call_python() -> None:
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        _nothing(None)
        _nothing(None)


def _call_natives() -> None:
    nothing: dict[object, object] = {}
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        id(None)
        nothing.get(None)  # methods may cost more


def _call_none() -> None:
    for _ in repeat(None, _CALIBRATION_CALLS // 2):
        pass


def _cost(loop: Callable[[], object]) -> Cost:
    """Compare a loop of calls with the same under a profiler; half of a plain call's time is taken to be within it."""
    plain_s = min(seconds_of(loop) for _ in repeat(None, _CALIBRATION_RUNS))
    empty_s = min(seconds_of(_call_none) for _ in repeat(None, _CALIBRATION_RUNS))
    caller = min((_profiled(loop) for _ in repeat(None, _CALIBRATION_RUNS)), key=lambda entry: entry.totaltime)
    both_s: float = max(0.0, caller.totaltime - plain_s)
    inside_s: float = caller.totaltime - caller.inlinetime - (plain_s - empty_s) / 2
    inside_s = min(max(0.0, inside_s), both_s)
    return Cost(inside_s / _CALIBRATION_CALLS, (both_s - inside_s) / _CALIBRATION_CALLS)


def _profiled(loop: Callable[[], object]) -> Any:
    """Return cProfile's entry of a function that was run under it."""
    profiler = Profiler()
    profiler.run(loop)
    return next(entry for entry in profiler.stats() if entry.code is getattr(loop, "__code__", None))
