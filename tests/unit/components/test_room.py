"""Room on Python's stack for the calls of a component."""

from __future__ import annotations

import sys

import pytest

from pytest_rlperf.worker.room import with_room


def test_a_call_runs_above_a_frame_that_fits_into_no_ordinary_chunk() -> None:
    """Chunks have 16 KiB, or twice as much as often as it takes; half of this one is left."""
    size = with_room(lambda: sys._getframe(1).f_code.co_stacksize) * 8
    assert 1 << 16 < size < (1 << 17) - (1 << 15)


def test_what_a_call_raises_is_raised() -> None:
    """As if the component were called alone."""

    def call() -> None:
        raise ValueError("of the component")

    with pytest.raises(ValueError, match="of the component"):
        with_room(call)
