"""Phases: the bound shows that a part of the call got slower, whatever the whole call shows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.judge.stats import bound_above, shrunken_variance, squared_deviations
from pytest_rlperf.model import facts
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live

_PAIRS_LEAST = 3
_SURELY = 0.2  # slower, by the bound
_OF_CALL = 0.003  # of the call, added by a phase that is worth a line
_NAMED_MOST = 3
_USUAL_SD = 0.05  # of pairs' ratios of one phase; on a busy machine that of the test's phases


class _Slower(NamedTuple):
    """A phase, its change and the change's lower bound, as logarithms, and the share of a call that it adds."""

    path: str
    change: float
    certain: float
    adds: float


def find(live: Live, policy: Policy) -> Finding | None:
    """Return the phases that are slower by their bounds, those that add the most first; Holm's rule over all phases."""
    by_path: dict[str, list[tuple[float, float]]] = {}
    for pair in live.pairs:
        for phase in pair.phases:
            by_path.setdefault(phase.path, []).append((phase.log_ratio, phase.share))
    known = {path: found for path, found in by_path.items() if len(found) == len(live.pairs) >= _PAIRS_LEAST}
    slower = _surely_slower(known, policy)
    # If a phase within it is slower, the phase around it only shows the same.
    deepest = [each for each in slower if not any(other.path.startswith(f"{each.path}/") for other in slower)]
    deepest.sort(key=lambda each: -each.adds)
    if not deepest:
        return None
    slowest = [facts.SlowerPhase(each.path, math.exp(each.change), math.exp(each.certain)) for each in deepest]
    line = facts.SlowerPhases(tuple(slowest[:_NAMED_MOST]))
    return finding(policy, "phases", line, {path: ratio for path, ratio, _ in slowest})


def _surely_slower(known: dict[str, list[tuple[float, float]]], policy: Policy) -> list[_Slower]:
    """Return the phases that are slower by their bounds, the clearest first.

    A phase is trusted no more than the scatter of the test's other phases allows, even if its few pairs agree.
    """
    if not known:
        return []
    ranked = []
    usual = max(_USUAL_SD, statistics.median(statistics.stdev(ratio for ratio, _ in found) for found in known.values()))
    for path, found in known.items():
        ratios, share = [ratio for ratio, _ in found], statistics.fmean(share for _, share in found)
        mean, error, freedom = _estimate(ratios, usual)
        ranked.append(((mean - math.log1p(_SURELY)) / error, path, mean, error, freedom, share))
    ranked.sort(reverse=True)
    slower: list[_Slower] = []
    for rank, (_, path, mean, error, freedom, share) in enumerate(ranked):
        level = policy.alpha / policy.tests / (len(ranked) - rank)
        certain = bound_above(math.log1p(_SURELY), mean, error, freedom, level)
        if certain is None:
            break
        adds = share * math.expm1(mean)
        if adds >= _OF_CALL:
            slower.append(_Slower(path, mean, certain, adds))
    return slower


def _estimate(ratios: Sequence[float], usual: float) -> tuple[float, float, float]:
    """Return the mean, its standard error and degrees of freedom; the variance is shrunken towards the usual one."""
    variance = shrunken_variance(squared_deviations(ratios), len(ratios) - 1, usual)
    return statistics.fmean(ratios), math.sqrt(variance.value / len(ratios)), variance.freedom
