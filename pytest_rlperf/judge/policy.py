"""What follows from the rules of a run for every verdict."""

from __future__ import annotations

from pytest_rlperf.model.judged import Estimate, Policy, Status, Verdict
from pytest_rlperf.model.reasons import Reason


def verdict(
    policy: Policy,
    status: Status,
    reason: Reason,
    estimate: Estimate | None = None,
    smallest_seen: float | None = None,
) -> Verdict:
    """Return a verdict and what follows from the policy."""
    return Verdict(
        status=status,
        reason=reason,
        estimate=estimate,
        smallest_seen=smallest_seen,
        suspect=estimate is not None and estimate.ratio > 1 + policy.tolerance,
        gated=policy.gated,
        accepted=policy.accept,
    )
