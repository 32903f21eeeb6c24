"""Compiles: calls of head compile more programs than those of base, which take far longer than running them."""

from __future__ import annotations

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model.facts import Compiles
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live

_LEAST = 0.01  # programs a call: one in a hundred calls
_OF_BASE = 2.0  # times base's, where calls of base compile, too


def find(live: Live, policy: Policy) -> Finding | None:
    """Return how many programs a call compiles, where that is clearly more than on base in every pair."""
    figures = [(pair.base.device, pair.head.device) for pair in live.pairs]
    known = [(base.compiled, head.compiled) for base, head in figures if base is not None and head is not None]
    if not known or len(known) < len(figures):
        return None
    base, head = max(base for base, _ in known), min(head for _, head in known)
    if head < max(_LEAST, _OF_BASE * base):
        return None
    return finding(policy, "compiles", Compiles(base, head), {"programs": head, "programs_base": base})
