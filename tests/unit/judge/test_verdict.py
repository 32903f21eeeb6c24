"""One verdict from all the evidence: times, then counts, then what commits accept; each reason in English."""

from __future__ import annotations

import math
from typing import Any

import builders
import pytest
from msgspec.structs import replace
from wording import Wording

from pytest_rlperf.judge.live import judge_records
from pytest_rlperf.judge.verdict import Counts, Evidence, judge
from pytest_rlperf.model import facts, reasons
from pytest_rlperf.model.device import DeviceFigures, Disturbance, Pace
from pytest_rlperf.model.judged import Allowance, Policy, Remedy, RemedyKind, Status
from pytest_rlperf.model.live import Live, OtherWork
from pytest_rlperf.model.measured import CounterChange, Counting, PhaseCounts
from pytest_rlperf.model.reasons import Code, MachineDifference, Reason, VersionChange
from pytest_rlperf.report.wording import message, reason_lines, verdict_lines

POLICY = Policy()
HEAD = builders.result()
STORED = builders.stored(HEAD)
TWICE = builders.result(call_s=2 * builders.MS)
NUMPY = (VersionChange("numpy", "1.26.4", "2.0.0"),)


def live(*percents: float) -> Live:
    """Return a live comparison whose pairs differ by so many percent."""
    pairs = tuple(builders.pair(math.log1p(percent / 100)) for percent in percents)
    return Live("main", "HEAD", HEAD, pairs, ())


def paired(*percents: float) -> dict[str, Any]:
    """Return the fields of evidence by such pairs, with the verdict that these ended with."""
    found = live(*percents)
    return {"live": found, "timed": judge_records(found.pairs, POLICY, final=True)}


def counting(syncs: int) -> Counting:
    return Counting((PhaseCounts("", {"syncs": syncs}, {}),), 2, 2, ())


def gating(policy: Policy = POLICY) -> Policy:
    return replace(policy, gates=("syncs",))


def test_stored_numbers_decide_where_nothing_else_does() -> None:
    """Twice the time is SLOWER; equal figures may hide a change of 3 %, which one session cannot exclude."""
    same, slower = Evidence(HEAD, STORED), Evidence(TWICE, STORED)
    assert (judge(same, POLICY).status, judge(slower, POLICY).status) == (Status.UNDECIDED, Status.SLOWER)


@pytest.mark.parametrize("call_ms", [1.0, 1.1, 2.0, 0.5])
def test_where_stored_numbers_speak_they_name_why_nothing_ran(call_ms: float, wording: Wording) -> None:
    """No code could be run in their place, and the verdict has the reason beside its own."""
    why = reasons.NotSettledLive(reasons.NoCode.UNCOMMITTED)
    found = judge(Evidence(builders.result(call_s=call_ms * builders.MS), STORED, unsettled=why), POLICY)
    assert found.status is not Status.SAME
    assert found.also == (why,)
    assert verdict_lines(found)[-1] == wording


def test_work_that_rose_is_said_where_time_decides_nothing() -> None:
    """It is the first that a reader sees, and what helps is to let it gate, which makes the test SLOWER at once."""
    undecided = Evidence(HEAD, **paired(40, -30, 60), counts=Counts(counting(4), counting(9)))
    found = judge(undecided, POLICY)
    assert (found.status, found.more_work) == (Status.UNDECIDED, (CounterChange("", "syncs", 4, 9),))
    assert found.remedy == Remedy(RemedyKind.COUNTS)
    first, *others = message(builders.outcome(judged=found)).splitlines()
    assert first == "a call does more: syncs 4 → 9"
    assert others == verdict_lines(found)
    gated = judge(undecided, gating())
    assert (gated.status, gated.reason.code, gated.more_work) == (Status.SLOWER, Code.COUNTERS, ())
    other, uncounted = judge(undecided, replace(POLICY, gates=("ops",))), judge(replace(undecided, counts=None), POLICY)
    assert (other.more_work, other.remedy) == (found.more_work, uncounted.remedy)
    for evidence in (
        replace(undecided, counts=Counts(counting(9), counting(9))),
        replace(undecided, **paired(0, 0, 0)),
        replace(undecided, **paired(5, 6, 5, 4)),
    ):
        assert judge(evidence, POLICY).more_work == ()


def test_no_reason_is_needed_where_nothing_is_in_doubt() -> None:
    """SAME within a wide tolerance, and a test without figures, need no pairs."""
    why = reasons.NotSettledLive(reasons.NoCode.OUTSIDE_GIT)
    wide = replace(POLICY, tolerance=0.5)
    same, new = judge(Evidence(HEAD, STORED, unsettled=why), wide), judge(Evidence(HEAD, unsettled=why), POLICY)
    assert [(found.status, found.also) for found in (same, new)] == [(Status.SAME, ()), (Status.NEW, ())]


def test_live_pairs_decide_whatever_is_stored() -> None:
    """The pairs are the verdict; the stored figures explain a SAME that looks like a mistake beside them."""
    evidence = Evidence(HEAD, STORED, **paired(0, 0, 0), by_itself=TWICE, versions=NUMPY)
    found = judge(evidence, POLICY)
    assert (found.status, found.reason) == (Status.SAME, reasons.OtherEnvironment(2.0, NUMPY, None))
    assert judge(replace(evidence, by_itself=HEAD), POLICY).reason == reasons.PairsSame(3, 0.03)
    slower = judge(replace(evidence, **paired(5, 6, 5, 4)), POLICY)
    assert (slower.status, slower.reason.code) == (Status.SLOWER, Code.LIVE)


def test_pairs_on_different_devices_are_incomparable() -> None:
    """However clear the pairs are, times of a device and of none are not compared; the base is named."""
    figures = DeviceFigures("cuda:0 Made Up", Pace.LATENCY, 1e-3, 1e-3, None, 0, 0.0, {}, None, 0, ())
    head = builders.result(workers=(builders.worker(device=figures),) * 5)
    found = judge(Evidence(head, **paired(5, 6, 5, 4)), POLICY)
    device = reasons.Incomparable(Code.DEVICE, "the device", "the host", "cuda:0 Made Up", "main", stores=False)
    assert (found.status, found.reason) == (Status.INCOMPARABLE, device)


def test_pairs_that_were_cut_short_are_undecided() -> None:
    """A comparison that ended before its least number of pairs has a verdict, with what would help."""
    for pairs in ((1.0,), (1.0, -1.0)):
        found = judge(Evidence(HEAD, **paired(*pairs)), POLICY)
        assert found.status is Status.UNDECIDED
        assert isinstance(found.reason, reasons.PairsUndecided)
        assert (found.reason.code, found.reason.time_is_short) == (Code.PAIRS, True)


def test_a_side_that_broke_the_rules_is_no_side() -> None:
    """Either side's background work makes pairs INVALID, however clear they are."""
    busy = builders.result(workers=(builders.worker(idle_cpu_share=0.2),) * 5)
    for evidence in (
        Evidence(busy, **paired(5, 6, 5, 4)),
        replace(Evidence(HEAD, **paired(5, 6, 5, 4)), live=replace(live(5, 6, 5, 4), base=busy)),
    ):
        found = judge(evidence, POLICY)
        assert (found.status, found.reason) == (Status.INVALID, reasons.BackgroundWork(0.2))


@pytest.mark.parametrize(
    ("unpaired", "status"),
    [
        (reasons.SameCode("main", files=None), Status.SAME),
        (reasons.SameCode("main", files=3, code_files=2), Status.SAME),
        (reasons.Unreached("main", 14), Status.SAME),
        (reasons.Incomparable(Code.WORK, "a call's work", "1 step", "2 steps", "main", False), Status.INCOMPARABLE),
        (reasons.NotOnBase("main", "failed", "NameError", is_new=True), Status.NEW),
        (reasons.NotOnBase("main", "skipped", "", is_new=False), Status.INCOMPARABLE),
        (reasons.NotOnBase("main", "missing", "", is_new=False, lacks=("old",)), Status.INCOMPARABLE),
        (reasons.NothingLoaded("nothing of mylib"), Status.INCOMPARABLE),
        (reasons.NotCopied("data/episodes.npz"), Status.INCOMPARABLE),
        (reasons.NotBuilt("mylib/_core.so", "Makefile"), Status.INCOMPARABLE),
    ],
)
def test_why_no_pairs_were_taken_is_the_reason(unpaired: reasons.Unpaired, status: Status) -> None:
    """There is another side, and nothing to measure on it: stored figures do not come in."""
    found = judge(Evidence(TWICE, STORED, unpaired=unpaired), POLICY)
    assert (found.status, found.reason, found.estimate) == (status, unpaired, None)


def test_the_same_code_at_another_time_is_explained(wording: Wording) -> None:
    """By the packages that have changed, or else the machine."""
    same_code = reasons.SameCode("main", files=3, code_files=2)
    found = judge(Evidence(TWICE, STORED, unpaired=same_code, by_itself=TWICE, versions=NUMPY), POLICY)
    assert (found.status, found.reason) == (Status.SAME, reasons.OtherEnvironment(2.0, NUMPY, same_code))
    assert verdict_lines(found) == wording


def test_counts_and_commits_come_after_times(wording: Wording) -> None:
    """More that is counted is SLOWER beside a SAME time, and a commit accepts it: the lines show all of it."""
    accepts = Allowance("test_it", 0.0, "logged", "1a2b3c4d5e6f")
    counts = Counts(counting(1), counting(2))
    evidence = Evidence(HEAD, STORED, counts=counts, allowances=(accepts,))
    rules = gating(replace(POLICY, tolerance=0.25))
    found = judge(evidence, rules)
    assert (found.status, found.accepted, found.by_counts) == (Status.SLOWER, True, True)
    assert verdict_lines(found) == wording
    unchanged = judge(replace(evidence, counts=replace(counts, now=counting(1))), rules)
    assert (unchanged.status, unchanged.also) == (Status.SAME, ())


CHANGES = (CounterChange("critic", "syncs", 1, 2),)
ONE_OF_EACH: tuple[Reason, ...] = (
    reasons.WrittenReason("live", "why"),
    reasons.FullReason("live", "why"),
    reasons.NoBaseline(stores=False),
    reasons.OtherMachines(((MachineDifference("cpu", "A", "B"),),), stores=False),
    *(
        reasons.Incomparable(code, "a call's work", "gae of 1 step", "gae of 2 steps", base_label, stores)
        for code, base_label, stores in (
            (Code.WORKLOAD, None, False),
            (Code.DEVICE, None, True),
            (Code.WORK, "main", False),
        )
    ),
    *(reasons.NotOnBase("main", ended, "why", is_new=False) for ended in ("missing", "passed", "failed")),
    reasons.NotOnBase("main", "missing", "why", is_new=False, lacks=("old", "older")),
    reasons.NothingLoaded("the test loads no module of mylib on main"),
    reasons.NotCopied("data/episodes.npz"),
    reasons.NotBuilt("mylib/_core.so", "Makefile"),
    reasons.Edited("mylib/core.py"),
    reasons.TestFailed("setup", "RuntimeError: no simulator"),
    reasons.BackgroundWork(0.05),
    reasons.PhasesOverCall(2e-3, 1e-3),
    reasons.DeviceDisturbed("cuda:0", (Disturbance(recompiled=True),)),
    reasons.TooFewWorkers(1, 5),
    reasons.StoredSame(0.2),
    reasons.StoredSlower(0.2),
    reasons.StoredFaster(stores=False),
    reasons.StoredSpread(0.2, 0.3),
    reasons.StoredPaces(3.3, 1.16, 2.4),
    reasons.UnderMinimum(1e-6, 2e-6, at_most=True),
    reasons.PairsSame(3, 0.03),
    reasons.PairsDiffer(4, is_slower=False, all_agree=True, fresh=0.9),
    reasons.PairsUndecided(Code.PAIRS, None, time_is_short=True),
    reasons.PairsUndecided(Code.PAIRS, 1.1, 0.05),
    reasons.PairsUndecided(Code.UNCONFIRMED, 1.08, time_is_short=True),
    reasons.PairsUndecided(Code.SPREAD, 1.1, 0.05, time_is_short=True),
    reasons.PairsUndecided(Code.SPREAD, 1.1, 0.2, pair_sd=0.12, placed=False),
    *(
        reasons.PairsUndecided(Code.SPREAD, 1.1, 0.2, pair_sd=0.12, other_work=OtherWork(name, 47, 0.87, seen, 0.3))
        for name, seen in (("python", 0.5), ("", 0.1))
    ),
    reasons.PairsUndecided(Code.NEAR, 1.04, 0.03),
    reasons.SameCode("main", files=None),
    reasons.SameCode("main", files=3, code_files=2),
    reasons.Unreached("main", 14),
    reasons.Unreached("main", 1),
    reasons.Unreached("main", 0),
    reasons.OtherEnvironment(1.4, (), None),
    reasons.CountsChanged(CHANGES),
    reasons.TimeAlone("SAME", reasons.PairsSame(3, 0.03)),
    reasons.CountsChanged(CHANGES, also=True),
    reasons.Found((facts.Growth({"objects": 1.0}),)),
    reasons.Found((facts.Threads((facts.Both("thread", 1, 3),)), facts.InWords("returns other numbers")), also=True),
    reasons.BeyondAllowance("1a2b3c4d5e6f", 0.05, 1.08),
    reasons.BeyondAllowance("1a2b3c4d5e6f", 0.5, 1.08, ("growth", "threads")),
    *(reasons.NotSettledLive(why, "git has no such commit") for why in reasons.NoCode),
)


def kinds(of: type[Reason]) -> set[type[Reason]]:
    return {kind for each in of.__subclasses__() for kind in ({each} | kinds(each))}


def test_there_is_one_of_each_reason_here() -> None:
    """A new kind of reason is added to the list above."""
    assert {type(reason) for reason in ONE_OF_EACH} == kinds(Reason)


@pytest.mark.parametrize("reason", ONE_OF_EACH, ids=lambda reason: type(reason).__name__)
def test_every_reason_has_its_english(reason: Reason) -> None:
    """One line or more, none empty, no fact written as Python has it, and a code that JSON can hold."""
    lines = reason_lines(reason)
    assert all(lines)
    assert not any(mark in line for line in lines for mark in ("None", "{", "(reasons", "Status."))
    assert str(reason.code) == reason.code
