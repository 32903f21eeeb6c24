"""``timeit`` and the profiling ranges under the names of ``torchrl._utils``; torch is loaded only when needed.

Names, figures, text and the variable ``TORCHRL_PROFILING`` are TorchRL's. The differences are deliberate; in each case,
the original loses track:

- The clock is never set back, so ``t0`` is not a time of day.
- A timer may be entered again before it has ended, by recursion or in another thread or task, without losing a start
  or an entry.
- A decorated coroutine function is timed until it has ended, not until it is called. A generator function is timed
  while it runs, without its consumer's work in between, with one entry from each item to the next. Ranges do the same.
- If nothing has set up the logger ``torchrl``, ``timeit.print`` writes to standard output, like TorchRL's own set-up.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from time import perf_counter as _clock
from typing import Any, ClassVar, TypeVar, cast

from pytest_rlperf.timers.scope import pauses, within

F = TypeVar("F", bound=Callable[..., Any])

_logger = logging.getLogger("torchrl")
_lock = threading.RLock()
_acquire, _release = _lock.acquire, _lock.release


class timeit:  # noqa: N801 - TorchRL's name
    """Times its body, or each call of a decorated function, in one register for the whole process.

    ``sync`` waits for CUDA's work at both ends, if CUDA is available.
    """

    _REG: ClassVar[dict[str, list[Any]]] = {}  # the mean and the total in seconds, the count
    _MARKS: ClassVar[dict[str, float]] = {}
    _printevery_count = 0

    def __init__(self, name: str, *, sync: bool = False) -> None:
        self.name = name
        self._sync = sync
        self._starts: list[float] = []  # of entries that have not ended

    # ------------------------------------------------------------------ timing

    def __call__(self, fn: F) -> F:
        """Return ``fn`` with each of its calls timed."""
        return within(fn, lambda: self)

    def __enter__(self) -> timeit:
        if self._sync:
            _synchronize()
        self.t0 = start = _clock()
        self._starts.append(start)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._sync:
            _synchronize()
        now = _clock()
        # Overlapping entries in several threads may swap their starts. The register holds sums, which are the same for
        # any pairing.
        self._record(self.name, now - (self._starts.pop() if self._starts else self.t0))

    def start(self) -> timeit:
        """Start without a context, for :meth:`elapsed`, or restart within one."""
        if self._sync:
            _synchronize()
        self.t0 = start = _clock()
        if self._starts:
            self._starts[-1] = start
        return self

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        if self._sync:
            _synchronize()
        now = _clock()
        return now - (self._starts[-1] if self._starts else self.t0)

    @classmethod
    def _record(cls, name: str, elapsed: float) -> None:
        _acquire()  # half the cost of a with statement
        try:
            if name in cls._REG:
                entry = cls._REG[name]
            else:
                entry = cls._REG[name] = [0.0, 0.0, 0]
            before = entry[2]
            entry[2] = count = before + 1
            entry[1] += elapsed
            # A running mean, in the order that gives the original's last digit.
            entry[0] = entry[0] * (before / count) + elapsed / count
        finally:
            _release()

    @classmethod
    def mark_start(cls, name: str) -> None:
        """Begin an event that may end elsewhere, in another function or thread."""
        cls._MARKS[name] = _clock()

    @classmethod
    def mark_end(cls, name: str) -> None:
        """End an event and record it; KeyError if it did not begin."""
        now = _clock()
        cls._record(name, now - cls._MARKS.pop(name))

    # ------------------------------------------------------------------ reading

    @staticmethod
    def print(prefix: str | None = None) -> str:
        """Log a line for each name, and return them; means are in milliseconds, totals in seconds."""
        with _lock:
            entries = sorted(timeit._REG.items(), key=lambda item: item[0])
            lines = [
                f"{f'{prefix} -- ' if prefix else ''}{name} took {mean * 1000:4.4f} msec "
                f"(total = {total: 4.4f} sec since last reset)."
                for name, (mean, total, _) in entries
            ]
        for line in lines:
            _show(line)
        return "\n".join(lines)

    @classmethod
    def printevery(cls, num_prints: int, total_count: int, *, prefix: str | None = None, erase: bool = False) -> None:
        """Print at the first of ``total_count`` calls and then regularly, ``num_prints`` times in all."""
        if cls._printevery_count % max(1, total_count // num_prints) == 0:
            cls.print(prefix=prefix)
            if erase:
                cls.erase()
        cls._printevery_count += 1

    @classmethod
    def todict(cls, percall: bool = True, prefix: str | None = None) -> dict[str, float]:
        """Return seconds by name, the mean per call or, without ``percall``, the total."""
        with _lock:
            return {
                f"{prefix}/{name}" if prefix else name: entry[0 if percall else 1] for name, entry in cls._REG.items()
            }

    @staticmethod
    def erase() -> None:
        """Set every name back to zero; the names stay."""
        with _lock:
            for name in timeit._REG:
                timeit._REG[name] = [0.0, 0.0, 0]

    @classmethod
    def reset(cls) -> None:
        """Do the same as :meth:`erase`."""
        cls.erase()


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _show(line: str) -> None:
    if _logger.level:
        _logger.info(line)
    else:
        sys.stdout.write(f"{line}\n")


# --------------------------------------------------------------------------- ranges of torch's profiler

# Decided here once: what was decorated while this was False is the function itself.
_PROFILING_ALLOWED = os.environ.get("TORCHRL_PROFILING", "0") == "1"
_PROFILING_ENABLED = _PROFILING_ALLOWED
_NULL_CONTEXT: AbstractContextManager[Any] = nullcontext()


def set_profiling_enabled(enabled: bool) -> None:
    """Switch ranges on or off; if ``TORCHRL_PROFILING=1`` was not set at import, warn and leave them off."""
    global _PROFILING_ENABLED  # other code reads the original's switch by this name
    if enabled and not _PROFILING_ALLOWED:
        warnings.warn(
            "set_profiling_enabled(True) does nothing: TORCHRL_PROFILING=1 was not in the environment when this module "
            "was imported, and functions that were decorated since have no ranges. Set it before Python starts",
            stacklevel=2,
        )
    else:
        _PROFILING_ENABLED = enabled


def _is_compiling() -> bool:
    torch = sys.modules.get("torch")  # without it, nothing compiles
    return torch is not None and torch.compiler.is_compiling()


def _maybe_timeit(name: str) -> AbstractContextManager[Any]:
    """Return a timer, or the null context while ``torch.compile``, which cannot follow a clock, traces the code."""
    return _NULL_CONTEXT if _is_compiling() else timeit(name)


def _maybe_record_function(name: str) -> AbstractContextManager[Any]:
    """Return a range of torch's profiler, or the null context if ranges are off."""
    if not _PROFILING_ENABLED or _is_compiling():
        return _NULL_CONTEXT
    from torch.autograd.profiler import record_function

    return cast("AbstractContextManager[Any]", record_function(name))


def _maybe_record_function_decorator(name: str) -> Callable[[F], F]:
    """Return a decorator that runs each call within a range; if ranges are not allowed, it returns its argument."""
    if not _PROFILING_ALLOWED:
        return _unchanged

    def decorator(fn: F) -> F:
        if pauses(fn):
            return within(fn, lambda: _maybe_record_function(name))

        @wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # here, as torch.compile leaves the code of timers alone
            with _maybe_record_function(name):
                return fn(*args, **kwargs)

        return cast("F", wrapper)

    return decorator


def _unchanged(fn: F) -> F:
    return fn
