"""Slowdowns that the change itself says it means."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pytest_rlperf import units
from pytest_rlperf.judge.saying import bound
from pytest_rlperf.model import Allowance, Reason, Status, Verdict
from pytest_rlperf.model.judged import TRAILER

_COUNTERS = "counters"  # the code of a reason that rests on exact counts alone


def allow(verdict: Verdict, key: str, allowances: Sequence[Allowance]) -> Verdict:
    """Return the verdict on the test of ``key``, accepted where one of ``allowances`` covers how much slower it is.

    A percentage of time covers exact counts too, which have none themselves; no time at all covers counts alone. What
    the run accepts anyway is left as it is.
    """
    matching = [allowance for allowance in allowances if _matches(allowance.pattern, key)]
    if verdict.status is not Status.SLOWER or verdict.accepted or not matching:
        return verdict
    code, message = verdict.reason.code, verdict.reason.message
    covering = next((allowance for allowance in matching if _covers(allowance, verdict)), None)
    if covering is None:
        return replace(verdict, reason=Reason(code, f"{message}; {_excess(verdict, matching)}"))
    what = f"accepted up to {bound(covering.most)}" if covering.most else "counts accepted"
    said = f"{message}; {what} by {covering.commit}: {covering.reason}"
    return replace(verdict, accepted=True, allowance=covering, reason=Reason(code, said))


def unmatched_notes(allowances: Sequence[Allowance], keys: Collection[str]) -> list[str]:
    """Say which of ``allowances`` fit none of the tests of ``keys``, and a pattern close to theirs that would."""
    patterns = list(dict.fromkeys(map(_pattern, keys)))
    notes = []
    for allowance in allowances:
        if any(_matches(allowance.pattern, key) for key in keys):
            continue
        near = get_close_matches(_name(allowance.pattern).strip("*"), patterns, n=1)
        close = f"; close to it is {near[0]!r}" if near else ""
        notes.append(
            f"{TRAILER} of {allowance.commit} accepts nothing: {allowance.pattern!r} fits no measured test of this "
            f"run{close}"
        )
    return notes


def _covers(allowance: Allowance, verdict: Verdict) -> bool:
    """Whether an allowance is wide enough for a SLOWER."""
    if not allowance.most:
        return verdict.reason.code == _COUNTERS
    return _ratio(verdict) <= 1 + allowance.most


def _excess(verdict: Verdict, matching: Sequence[Allowance]) -> str:
    """Say by what a SLOWER goes beyond the widest of the allowances that fit its test."""
    widest = max(matching, key=lambda allowance: allowance.most)
    if not widest.most:
        return f"it is slower by its time, and {widest.commit} accepts its counts alone"
    return f"{units.change(_ratio(verdict))} is more than the {bound(widest.most)} that {widest.commit} accepts"


def _ratio(verdict: Verdict) -> float:
    return 1.0 if verdict.estimate is None else verdict.estimate.ratio


def _matches(pattern: str, key: str) -> bool:
    """Whether a pattern is, or fits, a test's key or its name; brackets of parameters may be meant as they stand."""
    return any(pattern == text or fnmatchcase(text, pattern) for text in (key, _name(key)))


def _pattern(key: str) -> str:
    """Return a pattern of a test's name that fits it whatever its parameters are."""
    name, bracket, _ = _name(key).partition("[")
    return f"{name}{'*' if bracket else ''}"


def _name(key: str) -> str:
    return key.partition("::")[2] or key
