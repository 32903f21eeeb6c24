"""Estimators and intervals, named after what they are; the only user of scipy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_rlperf.model import Estimate

_LOG_MOST = 700.0


class Variance(NamedTuple):
    """An estimate of a variance, and its degrees of freedom."""

    value: float
    freedom: float


def welch(
    base: Sequence[float],
    head: Sequence[float],
    *,
    confidence: float,
    alpha: float,
    between: Variance = Variance(0.0, 1.0),  # noqa: B008 - a frozen value
) -> Estimate:
    """Return the ratio head/base of two samples of positive figures, by Welch's t on their logarithms.

    Each sample is of one session, and ``between`` is the variance of the sessions' own means, in logarithms, so that
    the squared error is s²_base/n_base + s²_head/n_head + 2 s²_between, each term with its own degrees of freedom. The
    interval is two-sided at ``confidence``; floor and ceiling are one-sided at ``alpha``. Both samples need two
    figures at least. (B. L. Welch, "The generalization of 'Student's' problem when several different population
    variances are involved", Biometrika 34, 1947; degrees of freedom of a sum of variances: F. E. Satterthwaite, "An
    approximate distribution of estimates of variance components", Biometrics Bulletin 2, 1946.)
    """
    if min(len(base), len(head)) < 2:
        raise ValueError(f"Welch's t needs two figures a side, got {len(base)} and {len(head)}")
    log_base = [math.log(value) for value in base]
    log_head = [math.log(value) for value in head]
    difference = statistics.fmean(log_head) - statistics.fmean(log_base)
    parts = [
        *(Variance(statistics.variance(log) / len(log), len(log) - 1) for log in (log_base, log_head)),
        Variance(2 * between.value, between.freedom),
    ]
    squared = sum(part.value for part in parts)
    if squared == 0:
        freedom = float(len(base) + len(head) - 2)
    else:
        freedom = squared**2 / sum(part.value**2 / part.freedom for part in parts)
    return _student(difference, math.sqrt(squared), freedom, confidence=confidence, alpha=alpha)


def shrunken_t(
    log_ratios: Sequence[float], *, prior_sd: float, prior_freedom: float, confidence: float, alpha: float
) -> Estimate:
    """Return the ratio head/base of pairs, by Student's t with the variance shrunken towards ``prior_sd`` squared.

    The prior weighs as much as ``prior_freedom`` degrees of freedom, so that a single pair has an interval too; with
    none it is Student's own t, which needs two. (The moderated t of G. K. Smyth, "Linear models and empirical Bayes
    methods", Statistical Applications in Genetics and Molecular Biology 3, 2004; a scaled inverse chi-squared prior on
    the variance, Gelman et al., "Bayesian Data Analysis", 3rd edition, section 3.3, and a flat one on the mean.)
    """
    count = len(log_ratios)
    freedom = prior_freedom + count - 1
    if not count or freedom <= 0:
        raise ValueError(f"an estimate needs pairs, and two where nothing is known before: got {count}")
    variance = (prior_freedom * prior_sd**2 + squared_deviations(log_ratios)) / freedom
    mean = statistics.fmean(log_ratios)
    return _student(mean, math.sqrt(variance / count), freedom, confidence=confidence, alpha=alpha)


def squared_deviations(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean, without the exact fractions of statistics.variance."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _student(log_ratio: float, error: float, freedom: float, *, confidence: float, alpha: float) -> Estimate:
    """Return the ratio with its bounds by Student's t, from its logarithm and that one's standard error."""
    # Student's t quantile as scipy.stats has it, at a third of its import; a run that judges nothing imports neither.
    from scipy.special import stdtrit

    two_sided = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    one_sided = float(stdtrit(freedom, 1 - alpha)) * error
    return Estimate(
        ratio=_exp(log_ratio),
        low=_exp(log_ratio - two_sided),
        high=_exp(log_ratio + two_sided),
        confidence=confidence,
        floor=_exp(log_ratio - one_sided),
        ceiling=_exp(log_ratio + one_sided),
    )


def _exp(value: float) -> float:
    """Return a ratio that is a float: a bound from two figures may lie beyond the largest."""
    return math.exp(max(-_LOG_MOST, min(value, _LOG_MOST)))
