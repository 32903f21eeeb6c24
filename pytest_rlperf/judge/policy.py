"""The effects of a run's rules on every verdict."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pytest_rlperf.model.facts import Fact
from pytest_rlperf.model.findings import GATE, OFF, SHOW
from pytest_rlperf.model.judged import Estimate, Finding, Policy, Status, Verdict
from pytest_rlperf.model.reasons import Reason, TimeAlone


def verdict(
    policy: Policy,
    status: Status,
    reason: Reason,
    estimate: Estimate | None = None,
    smallest_seen: float | None = None,
) -> Verdict:
    """Return a verdict with the effects of the policy."""
    return Verdict(
        status=status,
        reason=reason,
        estimate=estimate,
        smallest_seen=smallest_seen,
        suspect=estimate is not None and estimate.ratio > 1 + policy.tolerance,
        gated=policy.gated and policy.findings["time"] == GATE,
        accepted=False,
    )


def overruled(policy: Policy, verdict: Verdict, status: Status, reason: Reason) -> Verdict:
    """Return a verdict that something other than times decides, with the verdict of the times beside it."""
    alone = TimeAlone(verdict.status.value, verdict.reason)
    also = (alone, *verdict.also)
    return replace(verdict, status=status, reason=reason, also=also, remedy=None, gated=policy.gated)


def finding(policy: Policy, kind: str, line: Fact, figures: Mapping[str, float]) -> Finding:
    """Return a finding, which gates if its kind does more than show in the policy."""
    return Finding(kind, line, dict(figures), gates=policy.findings[kind] not in (OFF, SHOW))
