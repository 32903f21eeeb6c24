"""How verdicts are said, whatever they rest on."""

from __future__ import annotations

from pytest_rlperf import units
from pytest_rlperf.model import Estimate, Policy, Reason, Status, Verdict

CONFIDENCE = 0.99


class Judge:
    """Says verdicts under one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def say(
        self,
        status: Status,
        code: str,
        message: str,
        estimate: Estimate | None = None,
        smallest_seen: float | None = None,
    ) -> Verdict:
        """Return the verdict with what follows from the policy."""
        return Verdict(
            status=status,
            reason=Reason(code, message),
            estimate=estimate,
            smallest_seen=smallest_seen,
            suspect=estimate is not None and estimate.ratio > 1 + self.policy.tolerance,
            gated=self.policy.gated,
            accepted=self.policy.accept,
        )


def bound(fraction: float) -> str:
    """Write a tolerance: ``20 %``."""
    return f"{100 * fraction:g} %"


def under_minimum(change_s: float, policy: Policy) -> str:
    """Say that a change is too small to matter, whatever it is in percent."""
    return f"{units.seconds(change_s)} more a call, under min_change={units.seconds(policy.min_change_s)}"
