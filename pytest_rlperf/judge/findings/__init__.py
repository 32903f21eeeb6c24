"""The kinds of findings beside time and counts: each is a module with a pure function, its thresholds and its line.

A kind looks at the pairs of a live comparison and returns a finding, or None if it finds nothing. ``scale`` looks at
all tests that differ only in a number. ``garbage`` looks at exact counts, and so does ``compiles`` in part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_rlperf.judge.findings import compiles, drift, first_call, growth, outputs, phases, threads
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live

KINDS: Mapping[str, Callable[[Live, Policy], Finding | None]] = {
    "growth": growth.find,
    "threads": threads.find,
    "drift": drift.find,
    "compiles": compiles.find,
    "first_call": first_call.find,
    "phases": phases.find,
    "outputs": outputs.find,
}
OF_READINGS = ("growth", "threads", "drift", "compiles")  # the kinds that need readings between slices


def find_all(live: Live, policy: Policy) -> tuple[Finding, ...]:
    """Return the findings of every kind that is not off, those that gate first."""
    found = [find(live, policy) for kind, find in KINDS.items() if policy.findings[kind] != OFF]
    return tuple(sorted(filter(None, found), key=lambda finding: not finding.gates))
