"""Hierarchical timings, usable in production code and without pytest; all scopes of a process record into one tree.

Whether a process has timers is decided once, before anything is timed: ``RLPERF_TIMERS=on`` arms them and records from
the start, ``standby`` arms them and waits for :func:`enable`. Otherwise they leave no trace: a decorated function is
the function itself, and a scope does nothing.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.timers.node import ClockNs, called, watch_tasks
from pytest_rlperf.timers.scope import NOTHING, PROCESS, Scope, Timer, decorate
from pytest_rlperf.timers.tree import FakeClock, Tree

__all__ = [
    "ARMED",
    "FakeClock",
    "Timer",
    "Tree",
    "child_environment",
    "disable",
    "enable",
    "hierarchical_timer",
    "is_recording",
    "merge_tree",
    "recording",
    "recording_into",
    "reset",
    "snapshot",
    "timed",
]

VARIABLE = "RLPERF_TIMERS"
_TORCHRL = "TORCHRL_PROFILING"  # arms TorchRL's own ranges, and those of compat.torchrl
# Whether timers are armed, and whether they record from the start.
_SETTINGS = {
    "standby": (True, False),
    **dict.fromkeys(("on", "1", "true", "yes"), (True, True)),
    **dict.fromkeys(("", "off", "0", "false", "no"), (False, False)),
}
_setting = os.environ.get(VARIABLE, "").strip().lower()
ARMED, _STARTS_ON = _SETTINGS.get(_setting, (False, False))
if _setting not in _SETTINGS:
    _text = f"{VARIABLE}={_setting} is not one of on, standby and off: timers stay off"
    warnings.warn(_text, RuntimeWarning, stacklevel=2)


def _refuse(action: str) -> None:
    """Warn that an action has no effect, because timers were left out of this process."""
    warnings.warn(
        f"{action} does nothing: timers were not armed when pytest_rlperf.timers was imported. "
        f"Set {VARIABLE}=on (or standby) in the environment before Python starts",
        RuntimeWarning,
        stacklevel=3,
    )


P = ParamSpec("P")
R = TypeVar("R")


class _Process:
    """The state of a process: its tree, and whether scopes record."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.is_on = False
        self.is_recording = False  # into another tree; this one pauses meanwhile

    def turn(self, *, on: bool) -> None:
        """Switch recording on or off."""
        if on == self.is_on:
            return
        self.is_on = on
        (self.tree.record if on else self.tree.pause)()

    def start_anew(self) -> None:
        """Start a forked child with an empty tree: the parent's locks and stacks may have been in use."""
        on, self.is_on, self.is_recording = self.is_on, False, False
        PROCESS.turn_off()  # a recording goes on in the parent
        self.tree = Tree()
        self.turn(on=on)


_process = _Process()
_MAIN = "MainProcess"
_scopes: dict[str, Scope] = {}


if ARMED:
    watch_tasks()
    os.register_at_fork(after_in_child=_process.start_anew)
    _process.turn(on=_STARTS_ON)

    def hierarchical_timer(name: str) -> Timer:
        """Return the context manager that times its body under ``name``, below the scope open around it."""
        try:
            return _scopes[name]
        except KeyError:
            return _scopes.setdefault(name, Scope(name))

else:

    def hierarchical_timer(name: str) -> Timer:
        """Return the context manager that times its body under ``name``, below the scope open around it."""
        return NOTHING


@overload
def timed(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def timed(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def timed(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Time each call of ``function`` under its qualified name, or under ``name``.

    A coroutine is timed from its first step to its last, a generator while it runs. If timers are not armed, the
    function itself is returned.
    """
    if function is None:
        return partial(timed, name=name)
    if not ARMED:
        return function
    if name is None:
        name = getattr(function, "__func__", function).__qualname__.replace("<locals>.", "")
    return decorate(function, Scope(name))


def enable() -> None:
    """Record from now on, here and in processes started from now on; warn if timers are not armed.

    A running fork server starts its processes as before: call this in each of them.
    """
    _turn("enable()", on=True)


def disable() -> None:
    """Stop recording, here and in processes started from now on; recorded timings stay."""
    _turn("disable()", on=False)


def _turn(action: str, *, on: bool) -> None:
    if not ARMED:
        _refuse(action)
        return
    _refuse_within_recording(action)
    _process.turn(on=on)
    os.environ.update(child_environment())


def is_recording() -> bool:
    """Whether scopes are recording now."""
    return PROCESS.is_on


def child_environment() -> dict[str, str]:
    """Return the variables that arm timers elsewhere as here, such as for Ray's ``runtime_env={"env_vars": …}``.

    TorchRL's ``TORCHRL_PROFILING``, which Ray's actors do not inherit either, is included if it is set.
    """
    found = {VARIABLE: ("on" if _process.is_on else "standby") if ARMED else "off"}
    if _TORCHRL in os.environ:
        found[_TORCHRL] = os.environ[_TORCHRL]
    return found


def snapshot() -> TimerTree:
    """Return this process's tree so far."""
    return _named(_process.tree.snapshot())


def reset() -> TimerTree:
    """Clear this process's tree, and return what it was; open scopes count from now."""
    return _named(_process.tree.reset())


def _named(seen: TimerTree) -> TimerTree:
    """Return a process's tree under the process's name."""
    multiprocessing = sys.modules.get("multiprocessing")
    name = _MAIN if multiprocessing is None else multiprocessing.current_process().name
    return called(seen, name)


def merge_tree(other: TimerTree, root_name: str, *, worker: str | None = None) -> None:
    """Add another process's tree below the path that is open here, unless nothing records.

    It should hold the time since that process's last :func:`reset`. In ``workers``, it has the name ``worker``, or else
    its own; trees with the same name are added up.
    """
    if PROCESS.is_on and PROCESS.tree is not None:
        PROCESS.tree.merge(other, root_name, worker=worker)


@contextmanager
def recording(clock: ClockNs = time.perf_counter_ns) -> Iterator[Tree]:
    """Record every scope of this process into the yielded tree while the body runs; recordings do not nest."""
    tree = Tree(clock=clock)
    with recording_into(tree):
        yield tree


@contextmanager
def recording_into(tree: Tree) -> Iterator[None]:
    """Record every scope of this process into ``tree`` while the body runs; a tree may be recorded into again."""
    if not ARMED:
        _refuse("recording()")
        yield
        return
    _refuse_within_recording("recording()")
    keep_from_compiling()
    _process.is_recording = True
    if _process.is_on:
        _process.tree.pause()
    tree.record()
    try:
        yield
    finally:
        tree.pause()
        if _process.is_on:
            _process.tree.record()
        _process.is_recording = False


def _refuse_within_recording(action: str) -> None:
    if _process.is_recording:
        raise RuntimeError(
            f"{action} within a recording: it collects all scopes of this process already, and recordings cannot be "
            "nested; end it first"
        )


# --------------------------------------------------------------------------- torch.compile

_UNCOMPILED = tuple(f"pytest_rlperf.{room}" for room in ("timers", "probes", "devices", "counters"))
_informed: set[int] = set()  # by the identity of the compiler's rules


def keep_from_compiling() -> None:
    """Exempt the timers' code from PyTorch's compiler, if that is loaded.

    If a scope breaks a graph, the compiler would otherwise go on with the scope's own code: compile it, watch its
    variables, and compile it again when they change, which would count as recompiling the measured code.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    add = getattr(rules, "add", None)
    if add is not None and id(rules) not in _informed:
        _informed.add(id(rules))
        for package in _UNCOMPILED:
            add(package)
