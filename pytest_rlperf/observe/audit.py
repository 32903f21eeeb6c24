"""The audit events of this process, for all that watch it in turn: Python never removes a hook, so one serves them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

_LISTENERS: dict[str, tuple[Callable[[tuple[object, ...]], None], ...]] = {}  # by event


def listen(events: Sequence[str], note: Callable[[tuple[object, ...]], None]) -> Callable[[], None]:
    """Call ``note`` with the arguments of each of the events from now on; return a function that ends that.

    The frame of the code that raises an event is two levels above that of ``note``. Its errors are dropped: an audit
    hook that raises would break what it watches.
    """
    if not _LISTENERS:
        sys.addaudithook(_tell)
    for event in events:
        _LISTENERS[event] = (*_LISTENERS.get(event, ()), note)

    def end() -> None:
        for event in events:
            _LISTENERS[event] = tuple(each for each in _LISTENERS[event] if each != note)

    return end


def _tell(event: str, arguments: tuple[object, ...]) -> None:
    for note in _LISTENERS.get(event, ()):
        with suppress(Exception):
            note(arguments)
