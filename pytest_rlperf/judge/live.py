"""What live pairs are taken to mean, and when there are enough of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.judge.saying import CONFIDENCE, Judge, bound, under_minimum
from pytest_rlperf.judge.stats import shrunken_t, squared_deviations
from pytest_rlperf.model import Estimate, Policy, Status, Verdict

PRIOR_SD = 0.010  # how much pairs of equal code differ, as measured on a shared machine
PRIOR_FREEDOM = 4.0  # how many degrees of freedom of measuring that is worth
LIVE_TOLERANCE = 0.03
_WILD = 4.0  # times the prior's spread: another kind of noise, of which the prior knows nothing
_NEAR = 4 / 3  # of the tolerance: an interval within that can hardly leave it any more


@dataclass(frozen=True)
class PairLimits:
    """How many pairs a verdict takes: ``least`` at the least, ``most`` at the most, a confirmation not counted."""

    least: int = 3
    most: int = 10


def live_policy(
    *, tolerance: float | None, alpha: float, tests: int, min_change_s: float, gated: bool, accept: bool
) -> Policy:
    """Return the rules for a live comparison; ``tolerance`` is what the user asked for, if anything."""
    chosen = LIVE_TOLERANCE if tolerance is None else tolerance
    return Policy(
        tolerance=chosen,
        conviction=chosen,
        confidence=CONFIDENCE,
        alpha=alpha,
        tests=tests,
        min_change_s=min_change_s,
        gated=gated,
        accept=accept,
    )


def judge_pairs(
    log_ratios: Sequence[float], policy: Policy, limits: PairLimits, base_call_s: float, *, final: bool
) -> Verdict | None:
    """Judge the pairs by the logarithms of their ratios head/base, in the order taken; None asks for one more pair.

    The rule is gone through from the first pair on, so that what is said depends on the sequence alone and pairs
    beyond the deciding one change nothing. ``base_call_s`` turns ratios into seconds, for ``min_change_s``; ``final``
    says that no more pairs can be had.
    """
    judge = _LiveJudge(policy, limits, base_call_s)
    for count in range(limits.least, len(log_ratios) + 1):
        seen, fresh = log_ratios[:count], log_ratios[count : count + 1]
        verdict = judge.look(seen, fresh[0] if fresh else None, final=final)
        if verdict is not None:
            return verdict
    return judge.cut_short(log_ratios) if final else None


class _LiveJudge(Judge):
    """Looks at the pairs so far, with the next one at hand or yet to be taken."""

    def __init__(self, policy: Policy, limits: PairLimits, base_call_s: float) -> None:
        super().__init__(policy)
        self._limits = limits
        self._base_call_s = base_call_s

    def look(self, seen: Sequence[float], fresh: float | None, *, final: bool) -> Verdict | None:
        """Return what the pairs ``seen`` decide; None where they do not, or want the ``fresh`` pair there is not yet.

        A fresh pair that fails to confirm joins the others at the next look.
        """
        policy, estimate = self.policy, self._estimate(seen)
        if _within(estimate, policy.tolerance):
            message = f"{_live(seen)} certify less than ±{bound(policy.tolerance)}"
            return self._say(Status.SAME, "live", message, estimate)
        status = self._leaning(estimate)
        trifling = self._trifling(estimate, status)
        if trifling is not None:
            return self._say(Status.SAME, "min_change", trifling, estimate)
        if status is not None and len(seen) <= self._limits.most:
            if fresh is not None:
                return self._confirm(status, [*seen, fresh])
            return self._unconfirmed(estimate) if final else None
        if len(seen) >= self._limits.most:
            return self._undecided("spread", "raise --rlperf-pairs", estimate)
        if self._out_of_reach(estimate, len(seen)):
            return self._undecided("near", f"too near ±{bound(policy.tolerance)} to call", estimate)
        return None

    def cut_short(self, seen: Sequence[float]) -> Verdict:
        """Return what is said of pairs that decide nothing where no more can be had."""
        least = self._limits.least
        if not seen:
            return self.say(Status.UNDECIDED, "pairs", "time for no pair: raise --rlperf-max-time")
        estimate = self._estimate(seen)
        if len(seen) < least:
            message = f"{_at_most(estimate)}; time for {len(seen)} of {least} pairs: raise --rlperf-max-time"
            # Under the least number of pairs it could have seen nothing, however large.
            return self.say(Status.UNDECIDED, "pairs", message, estimate)
        return self._undecided("spread", "raise --rlperf-max-time", estimate)

    def _estimate(self, seen: Sequence[float]) -> Estimate:
        policy = self.policy
        wild = len(seen) > 2 and squared_deviations(seen) > (len(seen) - 1) * (_WILD * PRIOR_SD) ** 2
        return shrunken_t(
            seen,
            prior_sd=PRIOR_SD,
            prior_freedom=0.0 if wild else PRIOR_FREEDOM,
            confidence=policy.confidence,
            alpha=policy.alpha / policy.tests,
        )

    def _leaning(self, estimate: Estimate) -> Status | None:
        """Return what the estimate says, if a fresh pair confirms it."""
        conviction, half = 1 + self.policy.conviction, 1 + self.policy.conviction / 2
        if estimate.ratio > conviction and estimate.floor > half:
            return Status.SLOWER
        if estimate.ratio < 1 / conviction and estimate.ceiling < 1 / half:
            return Status.FASTER
        return None

    def _trifling(self, estimate: Estimate, status: Status | None) -> str | None:
        """Return in words that the change is under the least one that matters, where it is.

        Of a change the estimate decides, as with stored numbers; where there may be none, the whole interval does.
        """
        least_s, base_s = self.policy.min_change_s, self._base_call_s
        change_s = base_s * (estimate.ratio - 1)
        if status is Status.SLOWER and change_s < least_s:
            return under_minimum(change_s, self.policy)
        if status is None and _within(estimate, least_s / base_s):
            return f"at most {under_minimum(base_s * max(0.0, estimate.high - 1), self.policy)}"
        return None

    def _confirm(self, status: Status, seen: Sequence[float]) -> Verdict | None:
        """Say SLOWER or FASTER where the last pair shows over half the tolerance, and the estimate with it the same."""
        fresh, estimate = seen[-1], self._estimate(seen)
        sign = 1 if status is Status.SLOWER else -1
        alone = sign * fresh > math.log1p(self.policy.conviction / 2)
        if not alone or self._leaning(estimate) is not status or self._trifling(estimate, status) is not None:
            return None
        over = f"over {bound(self.policy.conviction)}, surely over half of it"
        message = f"{_live(seen)}: {over}; the last one {units.change(math.exp(fresh))}"
        return self._say(status, "live", message, estimate)

    def _unconfirmed(self, estimate: Estimate) -> Verdict:
        change = units.change(estimate.ratio)
        message = f"{_at_most(estimate)}; {change} not confirmed: raise --rlperf-max-time"
        return self._say(Status.UNDECIDED, "unconfirmed", message, estimate)

    def _out_of_reach(self, estimate: Estimate, pairs: int) -> bool:
        """Whether neither SLOWER nor FASTER can be expected any more, and SAME not even with the most pairs."""
        at_the_end = _half_width(estimate) * math.sqrt(pairs / self._limits.most)
        same = abs(math.log(estimate.ratio)) + at_the_end < math.log1p(self.policy.tolerance)
        return not same and _within(estimate, _NEAR * self.policy.tolerance)

    def _undecided(self, code: str, why: str, estimate: Estimate) -> Verdict:
        smallest = units.change(1 + self._smallest(estimate))
        message = f"{_at_most(estimate)}; SLOWER from {smallest} on; {why}"
        return self._say(Status.UNDECIDED, code, message, estimate)

    def _say(self, status: Status, code: str, message: str, estimate: Estimate) -> Verdict:
        return self.say(status, code, message, estimate, self._smallest(estimate))

    def _smallest(self, estimate: Estimate) -> float:
        """Return the smallest slowdown that these pairs, with the spread they have, could have been SLOWER by."""
        conviction, half = 1 + self.policy.conviction, 1 + self.policy.conviction / 2
        least = 1 + self.policy.min_change_s / self._base_call_s
        return max(conviction, half * estimate.ratio / estimate.floor, least) - 1


def _within(estimate: Estimate, tolerance: float) -> bool:
    """Whether both bounds lie within a tolerance."""
    return 1 / (1 + tolerance) < estimate.low and estimate.high < 1 + tolerance


def _half_width(estimate: Estimate) -> float:
    """Return half an interval's width, in logarithms."""
    return math.log(estimate.high / estimate.low) / 2


def _at_most(estimate: Estimate) -> str:
    """Write an upper bound: ``change at most +3.3 %``."""
    return f"change at most {units.change(estimate.high)}"


def _live(seen: Sequence[float]) -> str:
    """Write what a verdict rests on: ``3 live pairs``."""
    return units.counted(len(seen), "live pair")
