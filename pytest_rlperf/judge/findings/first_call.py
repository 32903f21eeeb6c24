"""First calls and imports: head takes longer to get going than base, for compilation, allocation or lazy imports."""

from __future__ import annotations

from pytest_rlperf import units
from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live

_PAIRS_LEAST = 2
_TIMES = 1.5  # base's
_MORE_S = 0.5


def find(live: Live, policy: Policy) -> Finding | None:
    """Return what takes longer by half and by half a second, in every pair."""
    parts, figures = [], {}
    for name, what in (("first_call_s", "the first call"), ("import_s", "importing the tests")):
        taken = [getattr(pair, name) for pair in live.pairs]
        if len(taken) >= _PAIRS_LEAST and all(head > max(_TIMES * base, base + _MORE_S) for base, head in taken):
            base_s, head_s = min(taken, key=lambda each: each[1] - each[0])
            parts.append(f"{what} takes {units.seconds(head_s)}, {units.seconds(base_s)} on base")
            figures[name] = head_s - base_s
    if not parts:
        return None
    return finding(policy, "first_call", "; ".join(parts), figures)
