"""Verdicts by live pairs: the stop rule, the phases that carry a change, and whether a machine is fit for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_rlperf.judge.policy import verdict
from pytest_rlperf.judge.stats import shrunken_t, squared_deviations
from pytest_rlperf.model import (
    Contribution,
    Estimate,
    Fitness,
    PairRecord,
    PairSpread,
    Policy,
    Reason,
    Selfcheck,
    Status,
    Verdict,
    log_ratios,
    reasons,
)

PRIOR_SD = 0.010  # how much pairs of equal code differ, as measured on a shared machine
PRIOR_FREEDOM = 4.0  # how many degrees of freedom of measuring that is worth
HISTORY_FREEDOM_MOST = 6.0  # of the test's earlier pairs, which another day and machine measured
UNPLACED_LEAST = 5  # pairs where the kernel places workers: pairs differ by more there, and three may happen to agree
_WILD = 4.0  # times the prior's spread: another kind of noise, of which the prior knows nothing
_NEAR = 4 / 3  # of the tolerance: an interval within that can hardly leave it any more


@dataclass(frozen=True)
class PairLimits:
    """How many pairs a verdict takes: ``least`` at the least, ``most`` at the most, a confirmation not counted."""

    least: int = 3
    most: int = 10


def judge_records(
    records: Sequence[PairRecord],
    policy: Policy,
    limits: PairLimits,
    *,
    final: bool,
    history: PairSpread | None = None,
) -> Verdict | None:
    """Judge the pairs so far; None means one more.

    ``final`` where no more can be had; ``history`` is how much earlier pairs of this test differed.
    """
    if any(record.placed is None for record in records):
        limits = PairLimits(max(limits.least, UNPLACED_LEAST), max(limits.most, UNPLACED_LEAST))
    base_call_s = statistics.median(record.base.wall.call_s for record in records)
    return judge_pairs(log_ratios(list(records)), policy, limits, base_call_s, final=final, history=history)


def judge_pairs(
    log_ratios: Sequence[float],
    policy: Policy,
    limits: PairLimits,
    base_call_s: float,
    *,
    final: bool,
    history: PairSpread | None = None,
) -> Verdict | None:
    """Judge the pairs by the logarithms of their ratios head/base, in the order taken; None requests one more pair.

    The rule is applied from the first pair on, so that the verdict depends on the sequence alone and pairs beyond the
    deciding one change nothing. ``base_call_s`` turns ratios into seconds, for ``min_change_s``; ``final`` where no
    more pairs can be had; ``history`` is how much earlier pairs of this test differed.
    """
    judge = _LiveJudge(policy, limits, base_call_s, history)
    for count in range(limits.least, len(log_ratios) + 1):
        seen, fresh = log_ratios[:count], log_ratios[count : count + 1]
        found = judge.look(seen, fresh[0] if fresh else None, final=final)
        if found is not None:
            return found
    return judge.cut_short(log_ratios) if final else None


class _LiveJudge:
    """Looks at the pairs so far, with the next one at hand or yet to be taken."""

    def __init__(self, policy: Policy, limits: PairLimits, base_call_s: float, history: PairSpread | None) -> None:
        self._policy = policy
        self._limits = limits
        self._base_call_s = base_call_s
        self._history = history

    def look(self, seen: Sequence[float], fresh: float | None, *, final: bool) -> Verdict | None:
        """Return the verdict by the pairs ``seen``; None where they need more, or the ``fresh`` pair there is not yet.

        A fresh pair that fails to confirm joins the others at the next look.
        """
        policy, estimate = self._policy, self._estimate(seen)
        if _within(estimate, policy.tolerance):
            return self._verdict(Status.SAME, reasons.PairsSame(len(seen), policy.tolerance), estimate)
        status = self._leaning(estimate)
        trifling = self._trifling(estimate, status)
        if trifling is not None:
            return self._verdict(Status.SAME, trifling, estimate)
        if status is not None and len(seen) <= self._limits.most:
            if fresh is not None:
                return self._confirm(status, [*seen, fresh])
            unconfirmed = reasons.PairsUnconfirmed(estimate.ratio, estimate.high)
            return self._verdict(Status.UNDECIDED, unconfirmed, estimate) if final else None
        if len(seen) >= self._limits.most:
            return self._undecided_by_spread(estimate, time_is_short=False)
        if self._out_of_reach(estimate, len(seen)):
            near = reasons.PairsNear(estimate.high, self._smallest(estimate), policy.tolerance)
            return self._verdict(Status.UNDECIDED, near, estimate)
        return None

    def cut_short(self, seen: Sequence[float]) -> Verdict:
        """Return the verdict by pairs that decide nothing where no more can be had."""
        least = self._limits.least
        if not seen:
            return verdict(self._policy, Status.UNDECIDED, reasons.TooFewPairs(0, least, None))
        estimate = self._estimate(seen)
        if len(seen) < least:
            # Under the least number of pairs it could have seen nothing, however large.
            few = reasons.TooFewPairs(len(seen), least, estimate.high)
            return verdict(self._policy, Status.UNDECIDED, few, estimate)
        return self._undecided_by_spread(estimate, time_is_short=True)

    def _estimate(self, seen: Sequence[float]) -> Estimate:
        policy = self._policy
        wild = len(seen) > 2 and squared_deviations(seen) > (len(seen) - 1) * (_WILD * PRIOR_SD) ** 2
        known, variance = (0.0 if wild else PRIOR_FREEDOM), PRIOR_SD**2
        if self._history is not None and self._history.freedom > 0:
            before = min(self._history.freedom, HISTORY_FREEDOM_MOST)
            variance = known * variance + before * self._history.squares / self._history.freedom
            known += before
            variance /= known
        return shrunken_t(
            seen,
            prior_sd=math.sqrt(variance),
            prior_freedom=known,
            confidence=policy.confidence,
            alpha=policy.alpha / policy.tests,
        )

    def _leaning(self, estimate: Estimate) -> Status | None:
        """Return the status by the estimate, if a fresh pair confirms it."""
        threshold, half = 1 + self._policy.tolerance, 1 + self._policy.tolerance / 2
        if estimate.ratio > threshold and estimate.floor > half:
            return Status.SLOWER
        if estimate.ratio < 1 / threshold and estimate.ceiling < 1 / half:
            return Status.FASTER
        return None

    def _trifling(self, estimate: Estimate, status: Status | None) -> Reason | None:
        """Return that the change is under the least one that matters, where it is.

        Of a change the estimate decides, as with stored numbers; where there may be none, the whole interval does.
        """
        least_s, base_s = self._policy.min_change_s, self._base_call_s
        change_s = base_s * (estimate.ratio - 1)
        if status is Status.SLOWER and change_s < least_s:
            return reasons.UnderMinimum(change_s, least_s, at_most=False)
        if status is None and _within(estimate, least_s / base_s):
            return reasons.UnderMinimum(base_s * max(0.0, estimate.high - 1), least_s, at_most=True)
        return None

    def _confirm(self, status: Status, seen: Sequence[float]) -> Verdict | None:
        """Return SLOWER or FASTER where a fresh pair confirms it, None where it does not.

        It confirms it where the last pair changed by over half the tolerance in that direction, and the estimate of
        all pairs, the last included, gives the same status.
        """
        fresh, estimate = seen[-1], self._estimate(seen)
        sign = 1 if status is Status.SLOWER else -1
        alone = sign * fresh > math.log1p(self._policy.tolerance / 2)
        if not alone or self._leaning(estimate) is not status or self._trifling(estimate, status) is not None:
            return None
        reason = reasons.PairsDiffer(
            pairs=len(seen),
            is_slower=status is Status.SLOWER,
            all_agree=all(sign * ratio > 0 for ratio in seen),
            certain=estimate.floor if status is Status.SLOWER else estimate.ceiling,
            fresh=math.exp(fresh),
        )
        return self._verdict(status, reason, estimate)

    def _out_of_reach(self, estimate: Estimate, pairs: int) -> bool:
        """Whether neither SLOWER nor FASTER can be expected any more, and SAME not even with the most pairs."""
        at_the_end = _half_width(estimate) * math.sqrt(pairs / self._limits.most)
        same = abs(math.log(estimate.ratio)) + at_the_end < math.log1p(self._policy.tolerance)
        return not same and _within(estimate, _NEAR * self._policy.tolerance)

    def _undecided_by_spread(self, estimate: Estimate, *, time_is_short: bool) -> Verdict:
        reason = reasons.PairsSpread(estimate.high, self._smallest(estimate), time_is_short)
        return self._verdict(Status.UNDECIDED, reason, estimate)

    def _verdict(self, status: Status, reason: Reason, estimate: Estimate) -> Verdict:
        return verdict(self._policy, status, reason, estimate, self._smallest(estimate))

    def _smallest(self, estimate: Estimate) -> float:
        """Return the smallest slowdown that these pairs, with the spread they have, could have been SLOWER by."""
        threshold, half = 1 + self._policy.tolerance, 1 + self._policy.tolerance / 2
        least = 1 + self._policy.min_change_s / self._base_call_s
        return max(threshold, half * estimate.ratio / estimate.floor, least) - 1


def _within(estimate: Estimate, tolerance: float) -> bool:
    """Whether both bounds lie within a tolerance."""
    return 1 / (1 + tolerance) < estimate.low and estimate.high < 1 + tolerance


def _half_width(estimate: Estimate) -> float:
    """Return half an interval's width, in logarithms."""
    return math.log(estimate.high / estimate.low) / 2


# ----------------------------------------------------------------------- the phases that carry a change

_BLOCKS_LEAST = 3  # fewer have no spread worth the name
_SURELY = 2.0  # standard errors
_MAD_TO_SD = 1.4826  # of a normal distribution
_MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)  # standard errors of the two, likewise
_CARRIES = 0.8  # of the change: enough phases named
_NAMED_MOST = 3
_MINOR = 0.1  # of the change: not worth a name
_MOSTLY = 0.5  # of the change: under it, the phases named do not explain it


def contributions(
    blocks: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], base_call_s: float, change_s: float
) -> tuple[Contribution, ...]:
    """Return what every phase adds to a change of ``change_s`` a call, in seconds, those that carry it first.

    ``blocks`` are traced ones: each side's seconds in a phase and none of its children, by path, as multiples of that
    block's call of base, so that the machine's pace cancels; a phase that one side does not have takes it none. The
    last entry, with an empty path, is what no phase accounts for: what was not timed, and differences too small to be
    distinguished from noise. So all of them add up to the change. Where there are too few blocks, there are no parts.
    """
    if len(blocks) < _BLOCKS_LEAST:
        return ()
    paths = dict.fromkeys(path for block in blocks for side in block for path in side)
    found = []
    for path in paths:
        differences = [head.get(path, 0.0) - base.get(path, 0.0) for base, head in blocks]
        median = statistics.median(differences)
        if abs(median) > _SURELY * _standard_error(differences):
            found.append(Contribution(path, base_call_s * median))
    found.sort(key=lambda part: part.change_s, reverse=change_s >= 0)
    return (*found, Contribution("", change_s - math.fsum(part.change_s for part in found)))


def carriers(contributions: Sequence[Contribution]) -> tuple[Contribution, ...]:
    """Return the few phases that carry a change; none where no phase by itself does."""
    change_s = math.fsum(part.change_s for part in contributions)
    named: list[Contribution] = []
    for part in contributions:
        if not part.path or part.change_s * change_s <= _MINOR * change_s**2 or len(named) == _NAMED_MOST:
            break
        named.append(part)
        if _share(named, change_s) >= _CARRIES:
            break
    return tuple(named) if named and _share(named, change_s) >= _MOSTLY else ()


def _share(named: Sequence[Contribution], change_s: float) -> float:
    """Return how much of the change the phases named add up to."""
    return math.fsum(part.change_s for part in named) / change_s


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a median, by the median absolute deviation, which a stall does not move."""
    center = statistics.median(values)
    deviation = statistics.median(abs(value - center) for value in values)
    return _MEDIAN_TO_MEAN * _MAD_TO_SD * deviation / math.sqrt(len(values))


# ----------------------------------------------------------------------- a machine's fitness


def judge_fitness(checks: Sequence[Selfcheck], tolerance: float) -> Fitness:
    """Return whether every unchanged test was SAME, and every slowdown well over ``tolerance`` was SLOWER."""
    trials = [trial for check in checks for trial in check.trials]
    alarms = sum(trial.is_false_alarm for trial in trials)
    fitness = Fitness(tolerance, is_fit=False, false_alarms=alarms)
    large = [trial for trial in trials if fitness.is_large(trial)]
    needed = [*large, *(trial for trial in trials if not trial.slowdown)]
    is_fit = not alarms and bool(large) and all(trial.is_found for trial in needed)
    return Fitness(tolerance, is_fit, alarms)
