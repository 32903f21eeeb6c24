"""Other libraries' timers under their own names, one module per library, and what they share: scopes that end late."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def take_out(open_: list[T], is_it: Callable[[T], bool], name_of: Callable[[T], object]) -> T | None:
    """Remove a scope from the open ones and return its entry, None if it is not open; the first entry is the root.

    Warn of scopes that were entered within it and have not ended: they stay open.
    """
    for place in range(len(open_) - 1, 0, -1):
        if is_it(open_[place]):
            inner = ", ".join(repr(name_of(left)) for left in open_[place + 1 :])
            if inner:
                text = f"timer {name_of(open_[place])!r} ended before {inner}, entered within it"
                warnings.warn(text, RuntimeWarning, stacklevel=4)  # where the scope's with statement is
            return open_.pop(place)
    return None
