"""Room on Python's stack for the calls of a component.

Python 3.11 and later keep frames in chunks of 16 KiB. A call whose frame does not fit into the last chunk maps another,
and unmaps it at its end. That takes microseconds each time, and one more variable in a function can cause it. All
processes of a test call at the same depth, so all pairs would agree on the cost. A frame that is too large for such a
chunk gets a larger one, with room for the frames above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FRAME_WORDS = 9_000  # in a chunk of 128 KiB, of which 56 KiB are left


def with_room(call: Callable[[], T]) -> T:
    """Return what ``call`` returns, called where frames of 56 KiB fit into one chunk."""
    __tracebackhide__ = True
    return call()


with_room.__code__ = with_room.__code__.replace(co_stacksize=_FRAME_WORDS)
