"""Scale: the time or the counts of a test that is parametrised by a number grow faster with it on head than on base.

Small sizes are often flat, so the law is that of the two largest sizes: time in proportion to size to the power of an
exponent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.judge.stats import shrunken_variance, squared_deviations, student_quantile
from pytest_rlperf.model.judged import Finding, Policy

POINTS_LEAST = 3
_MORE = 0.25  # of an exponent
_APART = 2.0  # times the next smaller size: nearer sizes show no law
_COUNTED = ("python_calls", "ops", "tensor_peak_bytes", "host_peak_bytes")
_COUNT_LEAST = 100  # of one call: fewer are none
_USUAL_SD = 0.02  # of pairs' ratios


class Point(NamedTuple):
    """A test at one size: its pairs' log-ratios, base's seconds a call, and exact counts of a call of either side."""

    size: float
    log_ratios: Sequence[float]
    base_s: float
    base_counts: Mapping[str, int]
    head_counts: Mapping[str, int]


def find(points: Sequence[Point], policy: Policy) -> Finding | None:
    """Return the laws whose exponent is surely larger on head, by a quarter or more, by the two largest sizes."""
    *_, small, large = sorted(points)
    if len(points) < POINTS_LEAST or large.size < _APART * small.size or small.size <= 0:
        return None
    decades = math.log(large.size / small.size)
    parts, figures = [], {}
    more = statistics.fmean(large.log_ratios) - statistics.fmean(small.log_ratios)
    ratios = (small.log_ratios, large.log_ratios)
    variance = shrunken_variance(sum(map(squared_deviations, ratios)), sum(map(len, ratios)) - 2, _USUAL_SD)
    error = math.sqrt(variance.value * sum(1 / len(each) for each in ratios))
    certain = more - student_quantile(1 - policy.alpha / policy.tests, variance.freedom) * error
    if more >= _MORE * decades and certain >= _MORE / 2 * decades:
        was = math.log(large.base_s / small.base_s) / decades
        parts.append(f"time ∝ size^{was + more / decades:.2f} (base ^{was:.2f})")
        figures["time"] = more / decades
    for name in _COUNTED:
        base, head = (_exponent(small, large, side, name) for side in ("base_counts", "head_counts"))
        if base is not None and head is not None and head - base >= _MORE:
            parts.append(f"{name} ∝ size^{head:.2f} (base ^{base:.2f})")
            figures[name] = head - base
    if not parts:
        return None
    line = f"from {small.size:g} to {large.size:g}: {', '.join(parts)}"
    return finding(policy, "scale", line, figures)


def _exponent(small: Point, large: Point, side: str, name: str) -> float | None:
    """Return the exponent of a count, 0 of one that stays small; None where it was not counted exactly."""
    least, most = getattr(small, side).get(name), getattr(large, side).get(name)
    if least is None or most is None:
        return None
    if most < _COUNT_LEAST:
        return 0.0
    return math.log(most / max(1, least)) / math.log(large.size / small.size)
