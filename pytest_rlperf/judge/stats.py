"""Estimators and intervals under their usual names; the only user of scipy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from pytest_rlperf.model.judged import CONFIDENCE, Estimate

_LOG_MOST = 40.0  # of a ratio: its exponential is below 1e18, the largest figure that is read from a file
_KNOWN = 6.0  # degrees of freedom of the prior
_EXACT = 1e-12  # of a bound: a step of the search that ends it
_ERFC_SLOPE = 2 / math.sqrt(math.pi)  # of the complementary error function at 0


class Variance(NamedTuple):
    """An estimate of a variance, and its degrees of freedom."""

    value: float
    freedom: float


def welch(
    base: Sequence[float],
    head: Sequence[float],
    *,
    alpha: float,
    between: Variance = Variance(0.0, 1.0),  # noqa: B008 - a frozen value
) -> Estimate:
    """Return the ratio head/base of two samples of positive figures, by Welch's t on their logarithms.

    Each sample is of one session, and ``between`` is the variance of the sessions' own means, in logarithms, so that
    the squared error is s²_base/n_base + s²_head/n_head + 2 s²_between, each term with its own degrees of freedom. The
    interval is two-sided at CONFIDENCE; floor and ceiling are one-sided at ``alpha``. Both samples need at least two
    figures. (B. L. Welch, "The generalization of 'Student's' problem when several different population variances are
    involved", Biometrika 34, 1947; degrees of freedom of a sum of variances: F. E. Satterthwaite, "An approximate
    distribution of estimates of variance components", Biometrics Bulletin 2, 1946.)
    """
    if min(len(base), len(head)) < 2:
        raise ValueError(f"Welch's t needs two figures a side, got {len(base)} and {len(head)}")
    log_base = [math.log(value) for value in base]
    log_head = [math.log(value) for value in head]
    difference = statistics.fmean(log_head) - statistics.fmean(log_base)
    parts = [
        *(
            Variance(squared_deviations(log) / (len(log) * (len(log) - 1)), len(log) - 1)
            for log in (log_base, log_head)
        ),
        Variance(2 * between.value, between.freedom),
    ]
    squared = sum(part.value for part in parts)
    if squared == 0:
        freedom = float(len(base) + len(head) - 2)
    else:
        freedom = squared**2 / sum(part.value**2 / part.freedom for part in parts)
    error = math.sqrt(squared)
    two_sided, one_sided = (student_quantile(chance, freedom) * error for chance in (0.5 + CONFIDENCE / 2, 1 - alpha))
    return _ratio(difference, two_sided, one_sided)


class LogNormal(NamedTuple):
    """One part of a prior: a standard deviation's median, the deviation of its logarithm, and the part's share."""

    share: float
    median: float
    log_sd: float


_LOG_STEP = 0.2
SDS = tuple(math.exp(step * _LOG_STEP) for step in range(-46, 20))  # 0.0001 to 45, each a fifth above the one before
_NEGLIGIBLE = 1e-12


class Spread(msgspec.Struct, frozen=True):
    """The knowledge about a normal sample's standard deviation: the chance of each of ``sds``.

    Given this, a normal mean with a flat prior is a mixture of normal distributions, so its bounds are smooth functions
    of the sample. (A discrete prior on the scale: Gelman et al., "Bayesian Data Analysis", 3rd edition, sections 3.2
    and 10.3.)
    """

    sds: tuple[float, ...]
    chances: tuple[float, ...]

    @classmethod
    def expected(cls, *parts: LogNormal) -> Spread:
        """Return the spread that a mixture of log-normal distributions expects."""
        chances = [
            sum(
                part.share / part.log_sd * math.exp(-0.5 * (math.log(sd / part.median) / part.log_sd) ** 2)
                for part in parts
            )
            for sd in SDS
        ]
        return cls(SDS, tuple(chance / sum(chances) for chance in chances))

    def after(self, squares: float, freedom: float) -> Spread:
        """Return the knowledge after a sample with ``squares``, its squared deviations in all, by Bayes' theorem."""
        logs = [
            math.log(chance) - freedom * math.log(sd) - squares / (2 * sd * sd) if chance else -math.inf
            for sd, chance in zip(self.sds, self.chances, strict=True)
        ]
        largest = max(logs)
        likely = [(sd, math.exp(log - largest)) for sd, log in zip(self.sds, logs, strict=True)]
        likely = [(sd, chance) for sd, chance in likely if chance > _NEGLIGIBLE]
        total = sum(chance for _, chance in likely)
        return Spread(tuple(sd for sd, _ in likely), tuple(chance / total for _, chance in likely))

    def average(self, of: Callable[[float], float]) -> float:
        """Return the mean of a function of the standard deviation."""
        return sum(chance * of(sd) for sd, chance in zip(self.sds, self.chances, strict=True))

    def half_width(self, count: int, tail: float) -> float:
        """Return how far above the mean of ``count`` values the true mean lies with a chance of ``tail``, below 1/2."""
        # Newton's method does not pass the root of a convex, falling function that it begins below. No part of the
        # mixture alone has as large a chance beyond the width.
        mixture = [*zip(self.sds, self.chances, strict=True)]
        width = max(-sd * normal_quantile(min(0.5, tail / chance)) for sd, chance in mixture) / math.sqrt(count)
        parts = [(math.sqrt(count / 2) / sd, chance / 2) for sd, chance in mixture]
        step = math.inf
        while step > _EXACT * width:
            beyond = math.fsum(chance * math.erfc(factor * width) for factor, chance in parts)
            density = math.fsum(chance * factor * math.exp(-((factor * width) ** 2)) for factor, chance in parts)
            step = (beyond - tail) / (density * _ERFC_SLOPE)
            width += step
        return width

    def estimate(self, values: Sequence[float], alpha: float, error: float = 0.0) -> Estimate:
        """Return the ratio whose logarithm is the mean of ``values``; the spread already includes them.

        The interval is two-sided at CONFIDENCE; floor and ceiling are one-sided at ``alpha``. All of the values share
        an error with the standard deviation ``error``.
        """
        two_sided, one_sided = (
            math.hypot(self.half_width(len(values), tail), normal_quantile(1 - tail) * error)
            for tail in ((1 - CONFIDENCE) / 2, alpha)
        )
        return _ratio(statistics.fmean(values), two_sided, one_sided)


def normal_chance(value: float) -> float:
    """Return the chance that a standard normal variable is below ``value``."""
    return math.erfc(-value / math.sqrt(2)) / 2


def normal_quantile(chance: float) -> float:
    """Return the value that a standard normal variable stays below with the chance ``chance``."""
    return statistics.NormalDist().inv_cdf(chance)


def student_quantile(chance: float, freedom: float) -> float:
    """Return the value that Student's t with ``freedom`` degrees of freedom stays below with the chance ``chance``."""
    # This is scipy.stats' function at a third of the import time; a run that judges nothing imports neither.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, chance))


def least_student_quantile(chance: float, freedom: float) -> float:
    """Return a value below Student's quantile, by the first terms of its expansion.

    The ``chance`` is above 1/2, and there is at least one degree of freedom.
    (M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 1964, formula 26.7.5.)
    """
    normal = normal_quantile(chance)
    return normal + (normal**3 + normal) / (4 * freedom)


def bound_above(least: float, mean: float, error: float, freedom: float, alpha: float) -> float | None:
    """Return the lower bound of a mean at ``alpha`` by Student's t, or None if it is not above ``least``.

    ``error`` is the mean's standard error.
    """
    # Where a bound that is always above settles the question, scipy need not be loaded.
    if mean - least_student_quantile(1 - alpha, freedom) * error <= least:
        return None
    bound = mean - student_quantile(1 - alpha, freedom) * error
    return bound if bound > least else None


def rising_chance(values: Sequence[float]) -> float:
    """Return the chance that values which differ only by chance rise as steadily as these.

    (The exact test of M. G. Kendall, "A new measure of rank correlation", Biometrika 30, 1938.)
    """
    from scipy.stats import kendalltau

    # "auto" is exact unless values are equal.
    return float(kendalltau(range(len(values)), values, alternative="greater", method="auto").pvalue)


def binomial_tail(count: int, trials: int, chance: float) -> float:
    """Return the chance of ``count`` successes or more."""
    each = (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(count, trials + 1))
    return math.fsum(each)


def squared_deviations(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean, without the exact fractions of statistics.variance."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def shrunken_variance(squares: float, freedom: float, usual_sd: float) -> Variance:
    """Return a variance by ``squares`` with ``freedom`` degrees of freedom and by a prior.

    The values' usual standard deviation counts as _KNOWN degrees of freedom: a conjugate prior.
    """
    known = _KNOWN + freedom
    return Variance((_KNOWN * usual_sd**2 + squares) / known, known)


def _ratio(log_ratio: float, two_sided: float, one_sided: float) -> Estimate:
    """Return a ratio from its logarithm, with bounds at these distances from the logarithm."""
    return Estimate(
        ratio=_exp(log_ratio),
        low=_exp(log_ratio - two_sided),
        high=_exp(log_ratio + two_sided),
        confidence=CONFIDENCE,
        floor=_exp(log_ratio - one_sided),
        ceiling=_exp(log_ratio + one_sided),
    )


def _exp(value: float) -> float:
    """Return a ratio that a run's file can hold: a bound from two figures may be too large."""
    return math.exp(max(-_LOG_MOST, min(value, _LOG_MOST)))
