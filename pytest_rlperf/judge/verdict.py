"""The verdict on one test: its times, then its exact counts, then the slowdowns that commits accept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from pytest_rlperf.errors import closest
from pytest_rlperf.judge.counters import combine, more_work
from pytest_rlperf.judge.findings import compiles, find_all, garbage
from pytest_rlperf.judge.policy import overruled, verdict
from pytest_rlperf.judge.stored import judge_stored
from pytest_rlperf.judge.validity import broken_rule, other_device
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Allowance, Finding, Policy, Remedy, RemedyKind, Status, Verdict
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.measured import Counting, Result, test_name
from pytest_rlperf.model.reasons import MachineDifference, Reason, VersionChange
from pytest_rlperf.model.stored import StoredResult


class Counts(msgspec.Struct, frozen=True):
    """Exact counts then and now."""

    then: Counting
    now: Counting


class Evidence(msgspec.Struct, frozen=True):
    """The evidence for the verdict on one test.

    ``head`` has the figures of the code under test: from live pairs if there is ``live``, else by itself. ``unpaired``
    is why no pairs were taken although there was another side. Otherwise ``stored``, the baseline's figures on this
    machine, decide, or ``others``, the differences of the machines that have figures. ``unsettled`` is why no code
    could be run in their place.

    ``by_itself`` are the head's figures by itself if live pairs were to settle the comparison with the stored ones.
    ``versions`` are the packages that have changed since those were stored. ``law`` is the finding on growth with size
    for the test's series, if the test is the last one of it. ``edited`` is a file of the user's own tree that was
    changed meanwhile. ``timed`` is the verdict by time that the live pairs ended with.
    """

    head: Result
    stored: StoredResult | None = None
    others: tuple[tuple[MachineDifference, ...], ...] = ()
    unsettled: reasons.NotSettledLive | None = None
    live: Live | None = None
    timed: Verdict | None = None
    unpaired: reasons.Unpaired | None = None
    by_itself: Result | None = None
    versions: tuple[VersionChange, ...] = ()
    law: Finding | None = None
    counts: Counts | None = None
    allowances: tuple[Allowance, ...] = ()
    edited: str = ""


def judge(evidence: Evidence, policy: Policy) -> Verdict:
    """Return the verdict on a test."""
    found, counts = _by_times(evidence, policy), evidence.counts
    if counts is not None:
        found = combine(found, counts.then, counts.now, policy)
    if evidence.live is not None and found.status is not Status.INCOMPARABLE:
        findings = find_all(evidence.live, policy)
        if counts is not None:
            findings += _of_counts(counts, evidence.live, findings, policy)
        if evidence.law is not None:
            findings += (evidence.law,)
        found = with_findings(found, findings, policy)
    if counts is not None and found.status is Status.UNDECIDED:
        found = _with_work(found, counts, policy)
    return allow(found, evidence.head.nodeid, evidence.allowances)


def _of_counts(counts: Counts, live: Live, others: Sequence[Finding], policy: Policy) -> tuple[Finding, ...]:
    """Return the findings by exact counts, beside the others."""
    is_known = any(each.kind == "compiles" for each in others)
    anew = None if is_known else compiles.of_counts(counts.then, counts.now, live, policy)
    return tuple(filter(None, (anew, garbage.find(counts.then, counts.now, policy))))


def _with_work(verdict: Verdict, counts: Counts, policy: Policy) -> Verdict:
    """Return the verdict of times that do not decide, with the work that rose; it would decide if counts gated."""
    more = more_work(counts.then, counts.now, policy.tolerance)
    remedy = Remedy(RemedyKind.COUNTS) if more and not policy.gates else verdict.remedy
    return replace(verdict, more_work=more, remedy=remedy)


def with_findings(verdict: Verdict, findings: tuple[Finding, ...], policy: Policy) -> Verdict:
    """Return the verdict of times and counts together with other findings; a finding that gates makes it SLOWER."""
    gating = tuple(finding.line for finding in findings if finding.gates)
    others = tuple(finding.line for finding in findings if not finding.gates)
    verdict = replace(verdict, findings=findings)
    if gating and not (verdict.status is Status.SLOWER and verdict.gated):
        verdict = overruled(policy, verdict, Status.SLOWER, reasons.Found(gating))
        gating = ()
    lines = (*gating, *others)
    return replace(verdict, also=(*verdict.also, reasons.Found(lines, also=True))) if lines else verdict


def _by_times(evidence: Evidence, policy: Policy) -> Verdict:
    if evidence.edited:
        return verdict(policy, Status.INVALID, reasons.Edited(evidence.edited))
    if evidence.live is not None:
        return _by_pairs(evidence, evidence.live, policy)
    match evidence.unpaired:
        case (reasons.SameCode() | reasons.Unreached()) as same_code:
            return verdict(policy, Status.SAME, _environment(evidence, policy, same_code) or same_code)
        case reasons.Incomparable() | reasons.NothingLoaded() | reasons.NotCopied() | reasons.NotBuilt() as other:
            return verdict(policy, Status.INCOMPARABLE, other)
        case reasons.NotOnBase(is_new=is_new) as missing:
            return verdict(policy, Status.NEW if is_new else Status.INCOMPARABLE, missing)
        case None:  # pragma: no branch - the last of all cases
            return _by_stored(evidence, policy)


def _by_stored(evidence: Evidence, policy: Policy) -> Verdict:
    found = judge_stored(evidence.head, evidence.stored, evidence.others, policy)
    if evidence.unsettled is None or found.status in (Status.SAME, Status.NEW, Status.INVALID):
        return found
    return replace(found, also=(evidence.unsettled,))


def _by_pairs(evidence: Evidence, live: Live, policy: Policy) -> Verdict:
    """Return the verdict of live pairs, if both sides' measurements are valid and can be compared."""
    found = evidence.timed
    assert found is not None
    broken = broken_rule(evidence.head) or broken_rule(live.base)
    if broken is not None:
        return replace(found, status=Status.INVALID, reason=broken, remedy=None)
    elsewhere = other_device(live.base, evidence.head, live.base_label)
    if elsewhere is not None:
        return replace(found, status=Status.INCOMPARABLE, reason=elsewhere, remedy=None)
    environment = _environment(evidence, policy, None) if found.status is Status.SAME else None
    return found if environment is None else replace(found, reason=environment)


def _environment(
    evidence: Evidence, policy: Policy, same_code: reasons.SameCode | reasons.Unreached | None
) -> Reason | None:
    """Return the change outside the code as a reason, if stored numbers show one."""
    if evidence.by_itself is None:
        return None
    estimate = judge_stored(evidence.by_itself, evidence.stored, evidence.others, policy).estimate
    if estimate is None or estimate.low <= 1 <= estimate.high:
        return None
    return reasons.OtherEnvironment(estimate.ratio, evidence.versions, same_code)


# ----------------------------------------------------------------------- slowdowns that commits accept


def allow(verdict: Verdict, key: str, allowances: Sequence[Allowance]) -> Verdict:
    """Return the verdict on the test of ``key``, accepted if one of ``allowances`` covers its slowdown.

    A percentage of time also covers exact counts, which have no percentage. It does not cover what calls leave or
    compile, which needs a line of its own: an allowance without time covers all but time. An UNDECIDED test that may be
    slower can be accepted too, so that its figures are stored.
    """
    matching = [allowance for allowance in allowances if allowance.fits(key)]
    if verdict.status not in (Status.SLOWER, Status.UNDECIDED) or not matching:
        return verdict
    covers_left = not verdict.left or any(not allowance.most for allowance in matching)
    covering = next((allowance for allowance in matching if covers_left and _covers(allowance, verdict)), None)
    if covering is None and verdict.status is Status.UNDECIDED:
        return verdict
    if covering is None:
        widest = max(matching, key=lambda allowance: allowance.most)
        kinds = () if covers_left else tuple(dict.fromkeys(each.kind for each in verdict.left))
        beyond = reasons.BeyondAllowance(widest.commit, widest.most, _ratio(verdict), kinds)
        return replace(verdict, also=(*verdict.also, beyond))
    return replace(verdict, accepted=True, allowance=covering)


def unmatched(allowances: Sequence[Allowance], keys: Collection[str]) -> list[tuple[Allowance, str]]:
    """Return the ``allowances`` that match no test of ``keys``, each with a close pattern that would match, or ""."""
    patterns = list(dict.fromkeys(map(_pattern, keys)))
    found = []
    for allowance in allowances:
        if not any(map(allowance.fits, keys)):
            found.append((allowance, closest(test_name(allowance.pattern).strip("*"), patterns)))
    return found


def _covers(allowance: Allowance, verdict: Verdict) -> bool:
    """Whether an allowance is wide enough for a SLOWER verdict."""
    return verdict.by_counts if not allowance.most else _ratio(verdict) <= 1 + allowance.most


def _ratio(verdict: Verdict) -> float:
    return 1.0 if verdict.estimate is None else verdict.estimate.ratio


def _pattern(key: str) -> str:
    """Return a pattern that fits a test's name with any parameters."""
    name, bracket, _ = test_name(key).partition("[")
    return f"{name}{'*' if bracket else ''}"
