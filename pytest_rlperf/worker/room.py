"""Room on Python's stack for the calls of a component.

Python 3.11 and later keep frames in chunks of 16 KiB. A call whose frame does not fit into the last one maps another
chunk, and unmaps it at its end: microseconds, each time, for a function that has merely one variable more. All
processes of a test call at the same depth, so that all pairs would agree on that. A frame that fits into no such chunk
has a larger one, with room for those above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FRAME_WORDS = 9_000  # in a chunk of 128 KiB, of which 56 are left


def with_room(call: Callable[[], T]) -> T:
    """Return what ``call`` returns, called where frames of 56 KiB fit into one chunk."""
    __tracebackhide__ = True
    return call()


with_room.__code__ = with_room.__code__.replace(co_stacksize=_FRAME_WORDS)
