"""Verdicts by stored numbers, and how a test has changed since its first commit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_rlperf.judge.policy import verdict
from pytest_rlperf.judge.stats import Variance, squared_deviations, welch
from pytest_rlperf.judge.validity import broken_rule, incomparable
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Estimate, Policy, Status, Verdict
from pytest_rlperf.model.measured import Figures, Result
from pytest_rlperf.model.reasons import MachineDifference, Reason
from pytest_rlperf.model.stored import SessionFigures, StoredResult

# The difference between the means of two sessions of equal code, beyond the part from their workers' spread. A standard
# deviation of 5.0 % was measured on a shared machine; at 4 degrees of freedom a prior of 3 % covers it 99 times of 100.
SESSION_SD = 0.03
SESSION_FREEDOM = 4.0


def judge_stored(
    result: Result, stored: StoredResult | None, others: Sequence[Sequence[MachineDifference]], policy: Policy
) -> Verdict:
    """Judge a result against the stored one; ``others`` are the differences of the stored machine classes."""
    invalid = broken_rule(result)
    if invalid is not None:
        return verdict(policy, Status.INVALID, invalid)
    if stored is None and others:
        return verdict(policy, Status.INCOMPARABLE, reasons.OtherMachines(tuple(map(tuple, others)), policy.stores))
    if stored is None:
        return verdict(policy, Status.NEW, reasons.NoBaseline(policy.stores))
    other = incomparable(stored, result, stores=policy.stores)
    if other is not None:
        return verdict(policy, Status.INCOMPARABLE, other)
    base = stored.result
    if min(len(base.workers), len(result.workers)) < 2:
        return verdict(policy, Status.UNDECIDED, reasons.TooFewWorkers(len(result.workers), len(base.workers)))
    # CPU time stands in if it may on both sides; both use the same clock.
    clock = "cpu" if base.clock == result.clock == "cpu" else "wall"
    by_mean = all(worker.rare is not None for each in (base, result) for worker in each.workers)
    then, now = (_figures(each, clock, by_mean=by_mean) for each in (base, result))
    paces = _Paces(
        *(
            welch(
                [getattr(figures, pace) for figures in then],
                [getattr(figures, pace) for figures in now],
                alpha=policy.alpha / policy.tests,
                between=session_variance(stored.history, clock, pace),
            )
            for pace in ("relative", "relative_memory")
        )
    )
    return verdict(policy, *_weigh(paces, then, policy))


def session_variance(history: Sequence[SessionFigures], clock: str, pace: str) -> Variance:
    """Return the variance of a session's mean beyond its workers' spread, in logarithms.

    Successive sessions of equally fast code, by the same ``clock``, make a group. The sum of squares is that of their
    means' deviations from their group's mean, without the part from their workers' own spread. The prior is
    ``SESSION_SD`` at ``SESSION_FREEDOM`` degrees of freedom. (One-way random effects by the method of moments: Searle,
    Casella and McCulloch, "Variance Components", 1992, section 3.6; the prior is as in :func:`shrunken_variance`.)
    """
    squares, freedom = 0.0, 0
    for group in _groups(history, clock):
        means = [math.log(getattr(session, pace)) for session in group]
        within = statistics.fmean(_error(session, pace) for session in group)
        squares += squared_deviations(means) - (len(group) - 1) * within
        freedom += len(group) - 1
    known = SESSION_FREEDOM + freedom
    return Variance((SESSION_FREEDOM * SESSION_SD**2 + max(0.0, squares)) / known, known)


def _groups(history: Sequence[SessionFigures], clock: str) -> list[list[SessionFigures]]:
    """Return the sessions that used a clock, grouped as long as their code is as fast as the one before."""
    groups: list[list[SessionFigures]] = [[]]
    for session in history:
        if not session.same_code:
            groups.append([])
        if session.clock == clock:
            groups[-1].append(session)
    return [group for group in groups if group]


def _error(session: SessionFigures, pace: str) -> float:
    """Return the variance of a session's mean that comes from its workers' spread."""
    squares: float = session.squares if pace == "relative" else session.squares_memory
    return squares / ((session.workers - 1) * session.workers) if session.workers > 1 else 0.0


def _figures(result: Result, clock: str, *, by_mean: bool) -> list[Figures]:
    """Return the workers' figures by one clock, for a mean call if ``by_mean``, else for a typical one."""
    found = []
    for worker in result.workers:
        figures: Figures = getattr(worker, clock)
        times = worker.mean_multiple if by_mean else 1.0
        found.append(Figures(times * figures.call_s, times * figures.relative, times * figures.relative_memory))
    return found


class _Paces(NamedTuple):
    """The same comparison at the interpreter's pace and at the memory's.

    The paces differ if the machine has changed in one and not in the other, and it is not known which one the workload
    follows. So a test is SLOWER only by both.
    """

    interpreter: Estimate
    memory: Estimate

    @property
    def sharper(self) -> Estimate:
        """The estimate with the narrower interval: its pace fits the workload better."""
        return min(self, key=_width)


def _width(estimate: Estimate) -> float:
    """Return the width of an interval, in logarithms."""
    return math.log(estimate.high / estimate.low)


_Found = tuple[Status, Reason, Estimate, float]


def _weigh(paces: _Paces, then: Sequence[Figures], policy: Policy) -> _Found:
    """Return status, reason, estimate and smallest slowdown seen: both paces must show it, the sharper by its bound."""
    sharper, tolerance = paces.sharper, policy.tolerance
    threshold, half = 1 + policy.stored_failing, 1 + policy.stored_failing / 2
    least = min(estimate.ratio for estimate in paces)
    most = max(estimate.ratio for estimate in paces)
    smallest = max(threshold * sharper.ratio / least, half * sharper.ratio / sharper.floor) - 1
    is_slower, is_faster = sharper.floor > half, sharper.ceiling < 1 / half
    if least > threshold and is_slower:
        change_s = statistics.median(figures.call_s for figures in then) * (sharper.ratio - 1)
        if change_s < policy.min_change_s:
            return Status.SAME, reasons.UnderMinimum(change_s, policy.min_change_s, at_most=False), sharper, smallest
        return Status.SLOWER, reasons.StoredSlower(policy.stored_failing), sharper, smallest
    if most < 1 / threshold and is_faster:
        return Status.FASTER, reasons.StoredFaster(policy.stores), sharper, smallest
    # Faster by one pace and the same by the other is not a slowdown; slower by one of them may be one.
    certain = [each for each in paces if 1 / (1 + tolerance) < each.low and each.high < 1 + tolerance]
    if certain and most < 1 + tolerance:
        return Status.SAME, reasons.StoredSame(tolerance), min(certain, key=_width), smallest
    one_decides = certain or (is_slower and most > threshold) or (is_faster and least < 1 / threshold)
    if one_decides or max(each.low for each in paces) > min(each.high for each in paces):
        why: Reason = reasons.StoredPaces(paces.interpreter.ratio, paces.memory.ratio, smallest)
    else:
        why = reasons.StoredSpread(tolerance, smallest)
    return Status.UNDECIDED, why, sharper, smallest
