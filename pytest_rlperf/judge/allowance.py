"""Slowdowns that the change itself says it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pytest_rlperf import units
from pytest_rlperf.judge.saying import bound
from pytest_rlperf.model import Allowance, Reason, Status, Verdict


def allow(verdict: Verdict, key: str, allowances: Sequence[Allowance]) -> Verdict:
    """Return the verdict on the test of ``key``, accepted where one of ``allowances`` covers how much slower it is.

    A SLOWER by exact counts is covered where the time is: what is counted has no percentage.
    """
    matching = [allowance for allowance in allowances if _matches(allowance.pattern, key)]
    if verdict.status is not Status.SLOWER or not matching:
        return verdict
    code, message = verdict.reason.code, verdict.reason.message
    ratio = 1.0 if verdict.estimate is None else verdict.estimate.ratio
    covering = next((each for each in matching if ratio <= 1 + each.most), None)
    if covering is None:
        widest = max(matching, key=lambda allowance: allowance.most)
        over = f"{units.change(ratio)} is more than the {bound(widest.most)} that {widest.commit} accepts"
        return replace(verdict, reason=Reason(code, f"{message}; {over}"))
    said = f"{message}; accepted up to {bound(covering.most)} by {covering.commit}: {covering.reason}"
    return replace(verdict, accepted=True, allowance=covering, reason=Reason(code, said))


def _matches(pattern: str, key: str) -> bool:
    """Whether a pattern is, or fits, a test's key or its name; brackets of parameters may be meant as they stand."""
    _, _, name = key.partition("::")
    return any(pattern == text or fnmatchcase(text, pattern) for text in (key, name or key))
