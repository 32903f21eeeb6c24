"""Hierarchical timings, usable in production code and without pytest."""

from pytest_rlperf.timers.tree import Scope, hierarchical_timer, recording, timed

__all__ = ["Scope", "hierarchical_timer", "recording", "timed"]
