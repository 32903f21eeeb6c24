"""Compiles: calls of the head compile more programs than calls of the base; compiling takes far longer than running."""

from __future__ import annotations

from pytest_rlperf.judge.counters import more_of
from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model.facts import Compiles
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live, PairRecord
from pytest_rlperf.model.measured import Counting

_LEAST = 0.01  # programs per call: one in a hundred calls
_LEAST_IN_ALL = 3  # within one pair, or one in each of its calls: a call may be the first of its kind
_OF_BASE = 2.0  # times the base's, if calls of the base also compile


def find(live: Live, policy: Policy) -> Finding | None:
    """Return how many programs a call compiles, if that is clearly more than on the base in every pair."""
    bases, heads = ([_programs(pair, side) for pair in live.pairs] for side in ("base", "head"))
    known = [(base, head) for base, head in zip(bases, heads, strict=True) if base is not None and head is not None]
    if not known or len(known) < len(live.pairs):
        return None
    return _found(max(base for base, _ in known), min(head for _, head in known), live, policy)


def of_counts(then: Counting, now: Counting, live: Live, policy: Policy) -> Finding | None:
    """Return what every counted call compiles; pairs do not show it for a compiler that gives up after some calls."""
    if policy.findings["compiles"] == OFF:
        return None
    return _found(*more_of(["recompiles"], then, now).get("recompiles", (0, 0)), live, policy)


def hints(live: Live) -> bool:
    """Whether the head's processes have compiled more programs than the base's in every pair, in any calls."""
    ends = [pair.readings[-1] for pair in live.pairs if pair.readings]
    return bool(ends) and all(end.head.compiled > end.base.compiled for end in ends)


def _found(base: float, head: float, live: Live, policy: Policy) -> Finding | None:
    if head < max(_LEAST, _OF_BASE * base):
        return None
    return finding(policy, "compiles", Compiles(base, head, live.compiled), {"programs": head, "programs_base": base})


def _programs(pair: PairRecord, side: str) -> float | None:
    """Return how many programs a call of a side compiles, by its slices on a device or by its process's readings."""
    device = getattr(pair, side).device
    if device is not None:  # readings there also have the programs of discarded slices
        return float(device.compiled)
    if len(pair.readings) < 2:
        return None
    first, last = (getattr(reading, side) for reading in (pair.readings[0], pair.readings[-1]))
    calls, programs = max(1, last.calls - first.calls), last.compiled - first.compiled
    return programs / calls if programs >= min(_LEAST_IN_ALL, calls) else 0.0
