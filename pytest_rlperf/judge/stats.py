"""Estimators and intervals, named after what they are; the only user of scipy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t as student_t

from pytest_rlperf.model import Estimate


def welch(base: Sequence[float], head: Sequence[float], *, confidence: float, alpha: float) -> Estimate:
    """Return the ratio head/base of two samples of positive figures, by Welch's t on their logarithms.

    The interval is two-sided at ``confidence``; floor and ceiling are one-sided at ``alpha``. Both samples need two
    figures at least. (B. L. Welch, "The generalization of 'Student's' problem when several different population
    variances are involved", Biometrika 34, 1947; degrees of freedom after Satterthwaite, 1946.)
    """
    if min(len(base), len(head)) < 2:
        raise ValueError(f"Welch's t needs two figures a side, got {len(base)} and {len(head)}")
    log_base = [math.log(value) for value in base]
    log_head = [math.log(value) for value in head]
    difference = statistics.fmean(log_head) - statistics.fmean(log_base)
    parts = [statistics.variance(sample) / len(sample) for sample in (log_base, log_head)]
    error = math.sqrt(sum(parts))
    if error == 0:
        freedom = float(len(base) + len(head) - 2)
    else:
        weights = [part**2 / (len(sample) - 1) for part, sample in zip(parts, (log_base, log_head), strict=True)]
        freedom = sum(parts) ** 2 / sum(weights)
    two_sided = float(student_t.ppf(0.5 + confidence / 2, freedom)) * error
    one_sided = float(student_t.ppf(1 - alpha, freedom)) * error
    return Estimate(
        ratio=math.exp(difference),
        low=math.exp(difference - two_sided),
        high=math.exp(difference + two_sided),
        confidence=confidence,
        floor=math.exp(difference - one_sided),
        ceiling=math.exp(difference + one_sided),
    )
