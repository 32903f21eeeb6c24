"""Threads: the head works with more threads or processes than the base, which takes CPUs from other work."""

from __future__ import annotations

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model.facts import Both, Threads
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live

_PAIRS_LEAST = 2


def find(live: Live, policy: Policy) -> Finding | None:
    """Return how many more threads and processes the head has, if every pair agrees exactly."""
    ends = [pair.readings[-1] for pair in live.pairs if pair.readings]
    if len(ends) < _PAIRS_LEAST:
        return None
    parts, figures = [], {}
    for name, unit in (("threads", "thread"), ("processes", "process")):
        was, now = ({getattr(getattr(end, side), name) for end in ends} for side in ("base", "head"))
        if len(was) == len(now) == 1 and min(now) > max(was):
            parts.append(Both(unit, max(was), min(now)))
            figures[name] = float(min(now) - max(was))
    if not parts:
        return None
    return finding(policy, "threads", Threads(tuple(parts)), figures)
