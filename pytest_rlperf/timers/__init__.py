"""Hierarchical timings, usable in production code and without pytest.

Nothing is timed, and nothing is paid, unless ``RLPERF_TIMERS=on`` (or ``standby``) is set before this is imported.
"""

from pytest_rlperf.timers.process import (
    ARMED,
    add_metadata,
    child_environment,
    disable,
    enable,
    hierarchical_timer,
    is_recording,
    merge_tree,
    recording,
    recording_into,
    reset,
    set_gauge,
    snapshot,
    timed,
)
from pytest_rlperf.timers.scope import Timer
from pytest_rlperf.timers.tree import FakeClock, Tree

__all__ = [
    "ARMED",
    "FakeClock",
    "Timer",
    "Tree",
    "add_metadata",
    "child_environment",
    "disable",
    "enable",
    "hierarchical_timer",
    "is_recording",
    "merge_tree",
    "recording",
    "recording_into",
    "reset",
    "set_gauge",
    "snapshot",
    "timed",
]
