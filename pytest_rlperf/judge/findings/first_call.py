"""First calls and imports: the head takes longer to start than the base, for compilation, allocation or lazy imports.

Copies of a preload server have its imports already, so only new interpreters show their cost.
"""

from __future__ import annotations

import statistics

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model.facts import Both, SlowStart
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live, PairRecord, StartUp

START_UPS = 4  # pairs of new interpreters that have to agree
_PAIRS_LEAST = 2
_TIMES = 1.5  # the base's
_MORE_S = 0.5
_HINT = 0.5  # of both
_PARTS = ("first_call_s", "import_s")


def find(live: Live, policy: Policy) -> Finding | None:
    """Return the parts that take longer by half and by half a second, in every pair of new interpreters."""
    taken = live.start_ups or [pair for pair in live.pairs if pair.loader is None]
    if len(taken) < _PAIRS_LEAST:
        return None
    usual_s, parts = usual_calls_s(live), []
    for name in _PARTS:
        if all(_is_slow(each, name, usual_s) for each in taken):
            base_s, head_s = min((getattr(each, name) for each in taken), key=lambda both: both[1] - both[0])
            parts.append(Both(name, base_s, head_s))
    if not parts:
        return None
    figures = {name: head_s - base_s for name, base_s, head_s in parts}
    return finding(policy, "first_call", SlowStart(tuple(parts)), figures)


def usual_calls_s(live: Live) -> tuple[float, float]:
    """Return the seconds of a usual call on the base and on the head."""
    base, head = ([getattr(pair, side).wall.call_s for pair in live.pairs] for side in ("base", "head"))
    return statistics.median(base), statistics.median(head)


def hints(pair: PairRecord | StartUp, usual_s: tuple[float, float], of_limits: float = _HINT) -> bool:
    """Whether a part takes longer by at least the share ``of_limits`` of a finding's thresholds."""
    return any(_is_slow(pair, name, usual_s, of_limits) for name in _PARTS)


def _is_slow(pair: PairRecord | StartUp, name: str, usual_s: tuple[float, float], of_limits: float = 1.0) -> bool:
    """Whether a part exceeds that share of its thresholds; a first call also has to without a usual call's time."""
    (base_s, head_s), usual_s = getattr(pair, name), usual_s if name == "first_call_s" else (0.0, 0.0)
    alone_s = base_s - usual_s[0], head_s - usual_s[1]
    return all(
        head > max((1 + of_limits * (_TIMES - 1)) * base, base + of_limits * _MORE_S)
        for base, head in ((base_s, head_s), alone_s)
    )
