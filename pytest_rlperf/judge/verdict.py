"""The verdict on one test: times, then exact counts, then the slowdowns that commits accept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pytest_rlperf.model import Allowance, Status, Verdict, reasons, test_name


def allow(verdict: Verdict, key: str, allowances: Sequence[Allowance]) -> Verdict:
    """Return the verdict on the test of ``key``, accepted where one of ``allowances`` covers how much slower it is.

    A percentage of time covers exact counts too, which have none themselves; no time at all covers counts alone. What
    the run accepts anyway is left as it is.
    """
    matching = [allowance for allowance in allowances if _matches(allowance.pattern, key)]
    if verdict.status is not Status.SLOWER or verdict.accepted or not matching:
        return verdict
    covering = next((allowance for allowance in matching if _covers(allowance, verdict)), None)
    if covering is None:
        widest = max(matching, key=lambda allowance: allowance.most)
        beyond = reasons.BeyondAllowance(widest.commit, widest.most, _ratio(verdict))
        return replace(verdict, also=(*verdict.also, beyond))
    return replace(verdict, accepted=True, allowance=covering)


def unmatched(allowances: Sequence[Allowance], keys: Collection[str]) -> list[tuple[Allowance, str]]:
    """Return those of ``allowances`` that match no test of ``keys``, each with a close pattern that would, or ""."""
    patterns = list(dict.fromkeys(map(_pattern, keys)))
    found = []
    for allowance in allowances:
        if not any(_matches(allowance.pattern, key) for key in keys):
            near = get_close_matches(test_name(allowance.pattern).strip("*"), patterns, n=1)
            found.append((allowance, near[0] if near else ""))
    return found


def _covers(allowance: Allowance, verdict: Verdict) -> bool:
    """Whether an allowance is wide enough for a SLOWER."""
    return verdict.by_counts if not allowance.most else _ratio(verdict) <= 1 + allowance.most


def _ratio(verdict: Verdict) -> float:
    return 1.0 if verdict.estimate is None else verdict.estimate.ratio


def _matches(pattern: str, key: str) -> bool:
    """Whether a pattern is, or fits, a test's key or its name; brackets of parameters may be meant as they stand."""
    return any(pattern == text or fnmatchcase(text, pattern) for text in (key, test_name(key)))


def _pattern(key: str) -> str:
    """Return a pattern of a test's name that fits it whatever its parameters are."""
    name, bracket, _ = test_name(key).partition("[")
    return f"{name}{'*' if bracket else ''}"
