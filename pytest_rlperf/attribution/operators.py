"""Native time that no profiler sees: operators, indexing, iteration, and calls of what is no plain native function.

``a * b`` of two arrays is an instruction of the interpreter's and no call; ``np.concatenate(…)``, ufuncs and methods
that Cython has made are calls of which the interpreter tells no profiler. All of it counts as the time of the Python
function that it is in. So instructions are timed one by one, which makes every one of them slower by the same: what
takes longer than a bare load or jump in the same function is native.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import repeat
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any

from pytest_rlperf.attribution.duration import seconds_of
from pytest_rlperf.attribution.instructions import Instructions
from pytest_rlperf.attribution.owners import NativeOwners

_SEEN_BY_PROFILERS = (BuiltinFunctionType, MethodDescriptorType)
_CALIBRATION_CALLS = 400
_CALIBRATION_RUNS = 9


class Tracer:
    """Watches instructions by tracing, for Python up to 3.11."""

    def __init__(self, instructions: Instructions) -> None:
        self._instructions = instructions

    def run(self, call: Callable[[], object]) -> None:
        """Make a call with its instructions timed."""
        self._start()
        try:
            call()
        finally:
            self._stop()

    def pause(self) -> Callable[[], object]:
        """Stop watching, and return what goes on with it."""
        self._stop()
        return self._start

    def _start(self) -> None:
        sys.setprofile(self._profile)
        sys.settrace(self._enter)

    def _stop(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        self._instructions.forget()

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "return":
            self._instructions.resume(frame.f_back)
        else:
            self._instructions.forget()

    def _enter(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not self._instructions.watches(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        self._instructions.end(time.perf_counter_ns())
        if event == "opcode":
            self._instructions.begin(frame, frame.f_lasti)
        return self._step


class Monitor:
    """Watches instructions by ``sys.monitoring``, for Python 3.12 and later, where tracing misses some."""

    def __init__(self, instructions: Instructions) -> None:
        self._instructions = instructions
        self._monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - not there for type checkers of older Pythons
        events = self._monitoring.events
        self._callbacks: dict[int, Callable[..., object]] = {
            events.INSTRUCTION: self._step,
            events.CALL: self._call,
            events.PY_START: self._enter,
            events.PY_RETURN: self._leave,
        }
        self._tool = self._monitoring.PROFILER_ID

    def run(self, call: Callable[[], object]) -> None:
        """Make a call with its instructions timed."""
        self._monitoring.use_tool_id(self._tool, "pytest-rlperf")
        try:
            self._register(self._callbacks)
            self._monitoring.set_events(self._tool, sum(self._callbacks))
            call()
        finally:
            self._monitoring.set_events(self._tool, 0)
            self._register(dict.fromkeys(self._callbacks))
            self._monitoring.free_tool_id(self._tool)
            self._instructions.forget()

    def pause(self) -> Callable[[], object]:
        """Stop watching, and return what goes on with it."""
        self._register(dict.fromkeys(self._callbacks))
        self._instructions.forget()
        return lambda: self._register(self._callbacks)

    def _register(self, callbacks: Any) -> None:
        for event, callback in callbacks.items():
            self._monitoring.register_callback(self._tool, event, callback)

    def _step(self, code: CodeType, offset: int) -> object:
        self._instructions.end(time.perf_counter_ns())
        if not self._instructions.watches(code):
            return self._monitoring.DISABLE
        self._instructions.begin(sys._getframe(1), offset)
        return None

    def _call(self, code: CodeType, offset: int, called: object, _: object) -> None:
        if isinstance(called, _SEEN_BY_PROFILERS):
            self._instructions.forget()
        else:
            self._instructions.go_on()

    def _enter(self, *_: object) -> None:
        self._instructions.forget()

    def _leave(self, *_: object) -> None:
        self._instructions.resume(sys._getframe(1).f_back)


def watcher(instructions: Instructions) -> Tracer | Monitor:
    """Return what watches instructions in this interpreter."""
    return Tracer(instructions) if sys.version_info < (3, 12) else Monitor(instructions)


def calibrate_extra(natives: NativeOwners) -> dict[str, float]:
    """Measure how many seconds longer NumPy's and PyTorch's operators take where they are watched, on tiny arrays.

    What watches takes their place in the CPU's caches.
    """
    found = {}
    for name in ("numpy", "torch"):
        ones = getattr(sys.modules.get(name), "ones", None)
        array = None if ones is None else ones(4)
        owner = natives.of_object(array)
        if owner is not None:
            found[owner] = _extra_s(array, owner, natives)
    return found


def _extra_s(array: Any, owner: str, natives: NativeOwners) -> float:
    def multiply() -> None:
        for _ in repeat(None, _CALIBRATION_CALLS):
            array * array

    def load() -> None:
        for _ in repeat(None, _CALIBRATION_CALLS):
            array  # noqa: B018 - what multiply() does but multiplying

    def once_s() -> float:
        plain_s = seconds_of(multiply) - seconds_of(load)
        instructions = Instructions(natives, watched=multiply.__code__)
        watcher(instructions).run(multiply)
        return instructions.native_s({}).get((multiply.__code__, owner), 0.0) - plain_s

    # Each difference is of one moment's pace; the first is of cold code.
    return max(0.0, statistics.median([once_s() for _ in repeat(None, _CALIBRATION_RUNS)][1:])) / _CALIBRATION_CALLS
