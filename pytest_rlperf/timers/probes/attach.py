"""Probes: timers put around code that one cannot edit, while it is measured and no longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from pytest_rlperf.model import Probe

Undo = Callable[[], None]


class ProbeError(Exception):
    """There is no such thing to put a timer around, or it cannot be done; the text says what there is."""


@contextmanager
def attached(probes: Iterable[Probe]) -> Iterator[None]:
    """Have all probes in place while the body runs; whatever happens, all is afterwards as it was."""
    with ExitStack() as stack:
        for probe in probes:
            stack.callback(probe.attach())
        yield


def put(target: object, attribute: str, value: object) -> Undo:
    """Set an attribute of an object, class or module, and return what sets it back, or removes it if it was not there.

    AttributeError or TypeError where the attribute is read-only.
    """
    own = getattr(target, "__dict__", None)
    if own is not None and attribute not in own:
        setattr(target, attribute, value)
        return lambda: delattr(target, attribute)
    before = getattr(target, attribute) if own is None else own[attribute]
    setattr(target, attribute, value)
    return lambda: setattr(target, attribute, before)


def together(undoes: Iterable[Undo]) -> Undo:
    """Return what undoes everything, the last first."""
    stack = ExitStack()
    for undo in undoes:
        stack.callback(undo)
    return stack.close
