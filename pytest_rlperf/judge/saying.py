"""How verdicts are said, whatever they rest on."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_rlperf import units
from pytest_rlperf.model import Estimate, Policy, Reason, Status, Verdict

CONFIDENCE = 0.99
_ADVICE = re.compile(r"[:;] [^:;]* with --rlperf-save-baseline$")


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


def without_advice(verdict: Verdict) -> Verdict:
    """Return a verdict of a run that stores, less the advice to store: it would ask for what is being done."""
    code, message = verdict.reason.code, _ADVICE.sub("", verdict.reason.message)
    if verdict.status is Status.NEW:
        message += ": nothing to compare with"
    return replace(verdict, reason=Reason(code, message))


def bound(fraction: float) -> str:
    """Write a tolerance: ``20 %``."""
    return f"{100 * fraction:g} %"


def under_minimum(change_s: float, policy: Policy) -> str:
    """Say that a change is too small to matter, whatever it is in percent."""
    return f"{units.seconds(change_s)} more a call, under min_change={units.seconds(policy.min_change_s)}"
