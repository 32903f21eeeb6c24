"""Where the time goes: the shares of Python, PyTorch, native extensions and environments in a call.

Beside plain calls there are three kinds of watched ones: those whose environments are timed, those under cProfile,
which tells of functions, and those whose instructions are timed, which tells of native work that is no function's.
"""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import CodeType, FunctionType
from typing import TypeVar

from pytest_rlperf.attribution import owners
from pytest_rlperf.attribution.calls import Own, Profiler, calibrate, calibrate_slowdown, own_times
from pytest_rlperf.attribution.duration import seconds_of
from pytest_rlperf.attribution.environments import Aside, find_environments
from pytest_rlperf.attribution.instructions import Cut, Instructions
from pytest_rlperf.attribution.operators import calibrate_extra, watcher
from pytest_rlperf.model.counting import Share

__all__ = ["ProfilerBusyError", "refuse_company", "shares"]

_BLOCK_S = 0.001  # short calls are watched many at a time
_CALLS_A_TRACED_ONE = 4
_SMALLEST = 0.01  # of a call: extensions that take less are shown together
_SPREAD_OF_CODE, _SPREAD_OF_PACE = 0.3, 0.1  # of the logarithms of slowdowns, and of the machine's pace


_Kept = TypeVar("_Kept")


class ProfilerBusyError(Exception):
    """Somebody else watches what this thread does; the text says who."""


@dataclass(frozen=True)
class _Watched:
    """What was seen, in seconds of one call: functions, native work within Python ones, environments.

    ``slowdown`` is how many times as long interpreted code took under the profiler, where that was calibrated.
    """

    plain_s: float
    functions: list[Own]
    operators_s: Mapping[tuple[CodeType, str], float]
    environment_s: float
    slowdown: float


def shares(
    call: Callable[[], object], *, setup: Callable[[], None] | None, calls: int, device_wait_s: float = 0.0
) -> tuple[Share, ...]:
    """Return how much of a call's time each owner takes; they add up to 1, the last is ``unattributed``.

    It makes ``3.25 * calls + 1`` calls, ``setup`` before each, or before as many as fit in a millisecond where there is
    none. A traced one, of which there are a quarter of ``calls``, may take twenty times as long as a plain one.
    ``device_wait_s`` is how much of a call the host waits for the device: a call that it is given for must wait for all
    its work. ProfilerBusyError where a profiler or debugger is active, ValueError for fewer than one call.
    """
    refuse_company()
    if calls < 1:
        raise ValueError(f"calls must be at least 1: got {calls}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watched = _watch(call, setup, calls)
    spent_s = _attribute(watched)
    waited_s = min(device_wait_s, spent_s.get(owners.PYTORCH, 0.0))  # PyTorch's functions are what waits
    _add(spent_s, owners.PYTORCH, -waited_s)
    _add(spent_s, owners.DEVICE_WAIT, waited_s)
    return _as_shares(spent_s, watched.plain_s)


def refuse_company() -> None:
    """Raise ProfilerBusyError where this thread is traced or profiled already."""
    hooks = [hook for hook in (sys.gettrace(), sys.getprofile()) if hook is not None]
    names = [getattr(hook, "__qualname__", None) or type(hook).__qualname__ for hook in hooks]
    if sys.version_info >= (3, 12):
        tool = sys.monitoring.get_tool(sys.monitoring.PROFILER_ID)
        names += [tool] if tool is not None else []
    if names:
        raise ProfilerBusyError(
            f"where the time goes was not looked at: {' and '.join(names)} watches this process already; "
            "run without coverage, profiler or debugger to have it"
        )


def _watch(call: Callable[[], object], setup: Callable[[], None] | None, calls: int) -> _Watched:
    """Make plain and watched calls in turns, as the machine's pace changes, and the traced ones last."""
    prepare = setup or _nothing
    prepare()
    steps: list[FunctionType] = []
    first_s = seconds_of(lambda: steps.extend(find_environments(call)))
    size = 1 if setup is not None else max(1, min(calls, round(_BLOCK_S / max(first_s, 1e-7))))
    blocks = max(1, round(calls / size))
    natives = owners.NativeOwners()
    costs, slowdown = calibrate(), calibrate_slowdown()

    def block() -> None:
        for _ in repeat(None, size):
            call()

    plain: list[tuple[float, float]] = []
    timed: list[tuple[float, float]] = []  # with seconds in environments
    profiled: list[tuple[float, Profiler]] = []
    for _ in repeat(None, blocks):
        prepare()
        seconds = seconds_of(block)
        plain.append((seconds, seconds))
        prepare()
        aside = Aside(None)
        with aside.watching(steps):
            timed.append((seconds_of(block), aside.spent_s))
        prepare()
        profiler = Profiler()
        with Aside(profiler.pause).watching(steps):
            profiled.append((seconds_of(partial(profiler.run, block)), profiler))
    quiet = _quiet(profiled)
    return _Watched(
        plain_s=_mean(_quiet(plain)) / size,
        functions=own_times(quiet, len(quiet) * size, costs, natives),
        operators_s=_trace(prepare, block, max(1, blocks // _CALLS_A_TRACED_ONE), size, steps, natives),
        environment_s=_mean(_quiet(timed)) / size,
        slowdown=slowdown,
    )


def _trace(
    prepare: Callable[[], None],
    block: Callable[[], None],
    blocks: int,
    size: int,
    steps: list[FunctionType],
    natives: owners.NativeOwners,
) -> dict[tuple[CodeType, str], float]:
    """Return the seconds of a call in native code that is no function's, in blocks of ``size`` calls."""
    extra_s = calibrate_extra(natives)
    instructions = Instructions(natives)
    timer = watcher(instructions)
    traced: list[tuple[float, Cut]] = []
    with Aside(timer.pause).watching(steps):
        for _ in repeat(None, blocks):
            prepare()
            seconds = seconds_of(partial(timer.run, block))
            traced.append((seconds, instructions.cut()))
    quiet = _quiet(traced)
    for cut in quiet:
        instructions.paste(cut)
    return {key: seconds / (len(quiet) * size) for key, seconds in instructions.native_s(extra_s).items()}


def _quiet(blocks: Sequence[tuple[float, _Kept]]) -> list[_Kept]:
    """Return what was kept of the shorter half of blocks: what others do on the machine only ever makes them longer."""
    ordered = sorted(blocks, key=lambda block: block[0])
    return [kept for _, kept in ordered[: (len(ordered) + 1) // 2]]


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


def _nothing() -> None:
    """Stand in for a setup."""


def _attribute(watched: _Watched) -> dict[str, float]:
    """Return the seconds of each owner: times as profiled, less what profiling added to them."""
    spent_s = {owners.ENVIRONMENT: watched.environment_s}
    interpreted_s: dict[str, float] = {}
    for own in watched.functions:
        own_s = max(0.0, own.profiled_s - own.overhead_s)
        if own.code is None:
            _add(spent_s, own.owner, own_s)
            continue
        within = {owner: s for (code, owner), s in watched.operators_s.items() if code is own.code}
        # What tracing says is of other calls: a function's native work never takes longer than it.
        fits = min(1.0, own_s / max(own_s, sum(within.values()), 1e-12))
        for owner, seconds in within.items():
            _add(spent_s, owner, fits * seconds)
            own_s -= fits * seconds
        _add(interpreted_s, own.owner, max(0.0, own_s))
    slowdown = _slowdown(watched, sum(spent_s.values()), sum(interpreted_s.values()))
    for owner, seconds in interpreted_s.items():
        _add(spent_s, owner, seconds / slowdown)
    return spent_s


def _slowdown(watched: _Watched, native_s: float, interpreted_s: float) -> float:
    """Return how many times as long interpreted code took under the profiler, by calibration and by a plain call.

    The sum of all times should be a plain call's. Where it is not, either this code is slowed down by more or less than
    what calibrates it, or the machine's pace has changed: the likeliest of both, by their usual spreads (a linear
    Gaussian estimate of the logarithm).
    """
    whole_s = native_s + interpreted_s / watched.slowdown
    if whole_s <= 0 or watched.plain_s <= 0:
        return watched.slowdown
    surplus = math.log(whole_s / watched.plain_s)
    part = interpreted_s / watched.slowdown / whole_s
    gain = part * _SPREAD_OF_CODE**2 / ((part * _SPREAD_OF_CODE) ** 2 + _SPREAD_OF_PACE**2)
    return max(1.0, watched.slowdown * math.exp(gain * surplus))


def _add(spent_s: dict[str, float], owner: str, seconds: float) -> None:
    spent_s[owner] = spent_s.get(owner, 0.0) + seconds


def _as_shares(spent_s: Mapping[str, float], call_s: float) -> tuple[Share, ...]:
    """Return shares, the largest first; small extensions as one, and what is left of a call at the end."""
    known_s = {owner: seconds for owner, seconds in spent_s.items() if owner != owners.UNATTRIBUTED and seconds > 0}
    whole_s = max(call_s, sum(spent_s.values()))
    found: dict[str, float] = {}
    for owner, seconds in known_s.items():
        is_small = owner not in owners.ALWAYS and seconds < _SMALLEST * whole_s
        _add(found, owners.OTHER_NATIVE if is_small else owner, seconds / whole_s)
    ordered = sorted((Share(name, share) for name, share in found.items()), key=lambda one: -one.share)
    return (*ordered, Share(owners.UNATTRIBUTED, max(0.0, 1.0 - sum(found.values()))))
