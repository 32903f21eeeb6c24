"""The rules of a run, made in one place, and what follows from them for every verdict."""

from __future__ import annotations

from pytest_rlperf.model.judged import Estimate, Policy, Status, Verdict
from pytest_rlperf.model.reasons import Reason

CONFIDENCE = 0.99
LIVE_TOLERANCE = 0.03
STORED_FAILING = 0.20  # below this, stored numbers may show differences of days, not of versions


def make_policy(
    *,
    tolerance: float | None,
    alpha: float,
    tests: int,
    min_change_s: float,
    gated: bool,
    accept: bool,
    stores: bool = False,
    gates: tuple[str, ...] = (),
    named: tuple[str, ...] = (),
    pairs: tuple[int, int] = (3, 10),
) -> Policy:
    """Return the rules of a test; ``tolerance`` is the user's, None for 3 %."""
    tolerance = LIVE_TOLERANCE if tolerance is None else tolerance
    return Policy(
        tolerance=tolerance,
        stored_failing=max(STORED_FAILING, tolerance),
        confidence=CONFIDENCE,
        alpha=alpha,
        tests=tests,
        min_change_s=min_change_s,
        gated=gated,
        accept=accept,
        stores=stores,
        gates=gates,
        named=named,
        pairs=pairs,
    )


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
