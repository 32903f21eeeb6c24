"""Phases of code that cannot be edited: timers are put around it only while it is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType

from pytest_rlperf.model.measured import Probe

Undo = Callable[[], None]
_MISSING = object()


class ProbeError(Exception):
    """A timer cannot be put around something, or it does not exist; the text lists similar names."""


@contextmanager
def attached(probes: Iterable[Probe]) -> Iterator[None]:
    """Attach all probes while the body runs, and undo all of them afterwards, whatever happens."""
    with ExitStack() as stack:
        for probe in probes:
            stack.callback(probe.attach())
        yield


def put(target: object, attribute: str, value: object) -> Undo:
    """Set an attribute of an object, class or module, and return a function that restores or removes it.

    A ``__setattr__`` written in Python is bypassed. AttributeError or TypeError if the attribute is read-only.
    """
    set_, delete = (
        (type.__setattr__, type.__delattr__) if isinstance(target, type) else (object.__setattr__, object.__delattr__)
    )
    stored = next((vars(base)[attribute] for base in type(target).__mro__ if attribute in vars(base)), None)
    if hasattr(type(stored), "__set__"):  # a property or a slot, which keeps it elsewhere
        before = getattr(target, attribute, _MISSING)
    else:
        before = getattr(target, "__dict__", {}).get(attribute, _MISSING)
    set_(target, attribute, value)

    def undo() -> None:
        if before is _MISSING:
            delete(target, attribute)
        else:
            set_(target, attribute, before)

    if not isinstance(target, type) and getattr(target, attribute, _MISSING) is not value:
        undo()
        raise AttributeError(f"{attribute!r} of {type(target).__qualname__} is not what it was set to")
    return undo


def put_variable(function: FunctionType, name: str, value: object) -> Undo:
    """Set a variable in a function's closure or module, and return a function that restores it."""
    free = function.__code__.co_freevars
    if name not in free:
        return put(sys.modules[function.__module__], name, value)
    cell = (function.__closure__ or ())[free.index(name)]
    before = cell.cell_contents
    cell.cell_contents = value
    return partial(setattr, cell, "cell_contents", before)


def together(undoes: Iterable[Undo]) -> Undo:
    """Return one function that calls all ``undoes``, the last first.

    If making one of them fails, those before it are called at once.
    """
    with ExitStack() as stack:
        for undo in undoes:
            stack.callback(undo)
        return stack.pop_all().close
