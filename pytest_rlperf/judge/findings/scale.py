"""Scale: the time or the counts of a test with one numeric parameter grow faster with it on the head than on the base.

Small sizes are often flat, so the two largest sizes are compared. A law, size to the power of an exponent, is given for
the time that the head adds to the base: beside work that does not grow, a scan of all stored items would seem to grow
more slowly than it does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.judge.stats import bound_above, shrunken_variance, squared_deviations
from pytest_rlperf.model import facts
from pytest_rlperf.model.judged import Finding, Policy

POINTS_LEAST = 3
_MORE = 0.25  # of an exponent
_APART = 2.0  # times the next smaller size: closer sizes do not show a law
_COUNTED = ("python_calls", "ops", "tensor_peak_bytes", "host_peak_bytes")
_COUNT_LEAST = 100  # of one call: fewer are treated as none
_USUAL_SD = 0.02  # of pairs' ratios


class ScalePoint(NamedTuple):
    """A test at one size: its pairs' log ratios, the base's seconds per call, and each side's exact counts per call."""

    size: float
    log_ratios: Sequence[float]
    base_s: float
    base_counts: Mapping[str, int]
    head_counts: Mapping[str, int]


def find(points: Sequence[ScalePoint], policy: Policy) -> Finding | None:
    """Return the laws whose exponent is larger on the head, by a quarter or more, by the two largest sizes."""
    *_, small, large = sorted(points)
    if len(points) < POINTS_LEAST or large.size < _APART * small.size or small.size <= 0:
        return None
    log_sizes = math.log(large.size / small.size)
    laws, figures = [], {}
    more = statistics.fmean(large.log_ratios) - statistics.fmean(small.log_ratios)
    ratios = (small.log_ratios, large.log_ratios)
    variance = shrunken_variance(sum(map(squared_deviations, ratios)), sum(map(len, ratios)) - 2, _USUAL_SD)
    error = math.sqrt(variance.value * sum(1 / len(each) for each in ratios))
    certain = bound_above(_MORE / 2 * log_sizes, more, error, variance.freedom, policy.alpha / policy.tests)
    if more >= _MORE * log_sizes and certain is not None:
        base, ratio = (small.base_s, large.base_s), [math.exp(statistics.fmean(each)) for each in ratios]
        head = base[0] * ratio[0], base[1] * ratio[1]
        is_seen = ratio[0] - 1 >= _USUAL_SD  # the extra time at the smaller size is above noise
        laws.append(_law("time", base, head, log_sizes if is_seen else 0.0))
        figures["time"] = more / log_sizes
    for name in _COUNTED:
        was, now = (_exponent(small, large, side, name) for side in ("base_counts", "head_counts"))
        if was is not None and now is not None and now - was >= _MORE:
            base = small.base_counts[name], large.base_counts[name]
            head = small.head_counts[name], large.head_counts[name]
            laws.append(_law(name, base, head, log_sizes))
            figures[name] = now - was
    if not laws:
        return None
    return finding(policy, "scale", facts.Scale(small.size, large.size, tuple(laws)), figures)


def _law(name: str, base: tuple[float, float], head: tuple[float, float], log_sizes: float) -> facts.Law:
    """Return a figure at both sizes, and the exponent of the head's extra if known."""
    added = head[0] - base[0], head[1] - base[1]
    is_known = log_sizes and min(added) > 0
    return facts.Law(name, base, head, math.log(added[1] / added[0]) / log_sizes if is_known else None)


def _exponent(small: ScalePoint, large: ScalePoint, side: str, name: str) -> float | None:
    """Return the exponent of a count, 0 for one that stays small; None if it was not counted exactly."""
    least, most = getattr(small, side).get(name), getattr(large, side).get(name)
    if least is None or most is None:
        return None
    if most < _COUNT_LEAST:
        return 0.0
    return math.log(most / max(1, least)) / math.log(large.size / small.size)
