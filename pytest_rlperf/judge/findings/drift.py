"""Drift: the more calls were made, the slower calls of the head get, compared with the base's."""

from __future__ import annotations

import math
import statistics

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.judge.stats import student_quantile
from pytest_rlperf.model import facts
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live

_PAIRS_LEAST = 3
_READINGS_LEAST = 4  # the first is before all slices, so that these bound three stretches
_LEAST = 0.1  # slower at the end of a pair than at its start
_SURELY = 0.05
_OF_ALPHA = 0.25  # the part of the run's error rate for this kind, beside the time's


def find(live: Live, policy: Policy) -> Finding | None:
    """Return how much slower the head gets within a pair, if the bound shows it."""
    runs = [pair.readings for pair in live.pairs if len(pair.readings) >= _READINGS_LEAST]
    if len(runs) < max(_PAIRS_LEAST, len(live.pairs)):
        return None
    rises = [readings[-1].log_ratio - readings[1].log_ratio for readings in runs]
    mean, error = statistics.fmean(rises), statistics.stdev(rises) / math.sqrt(len(rises))
    bound = mean - student_quantile(1 - _OF_ALPHA * policy.alpha / policy.tests, len(rises) - 1) * error
    if mean < math.log1p(_LEAST) or bound < math.log1p(_SURELY):
        return None
    calls = round(statistics.fmean(readings[-1].head.calls - readings[0].head.calls for readings in runs))
    ratio = math.exp(mean)
    return finding(policy, "drift", facts.Drift(ratio, calls), {"ratio": ratio, "calls": calls})
