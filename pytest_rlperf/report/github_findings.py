"""What GitHub is told of one test, whether it comes from a run or is read from a run's JSON; standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.model import CounterChange, Outcome, Status, test_name
from pytest_rlperf.report.rows import (
    PhaseRow,
    phase_rows,
)
from pytest_rlperf.report.shares import shares_lines
from pytest_rlperf.report.statuses import GRAVEST_FIRST
from pytest_rlperf.report.wording import SAVING, blame_text, count_text, improved, message, phases_note, trailer


@dataclass(frozen=True)
class Change:
    """A ratio head/base with its confidence interval."""

    ratio: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Finding:
    """One test: its verdict and why, seconds a call now and before, and which phases carry the change.

    ``fails`` says that the verdict fails the test, ``by_counts`` that it rests on exact counts, whatever the time says;
    ``counters`` are those that changed. ``since_first`` is the time now over that of the oldest stored figures.
    ``phases_note`` says what phases add up to where that is not about ``now_s``.
    ``has_baseline`` says that figures are stored that this test's may replace. ``more`` is what else there is, in lines
    of fixed width below their titles.
    """

    key: str
    status: Status
    gated: bool
    accepted: bool
    fails: bool
    by_counts: bool
    message: str
    blame: str
    change: Change | None
    now_s: float | None
    was_s: float | None
    notes: tuple[str, ...]
    phases: tuple[PhaseRow, ...]
    phases_note: str
    counters: tuple[CounterChange, ...]
    since_first: float | None
    has_baseline: bool
    more: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        """The test's name without its file."""
        return test_name(self.key)

    @property
    def is_accepted(self) -> bool:
        """Whether it is slower, and that is meant to be."""
        return self.status is Status.SLOWER and self.accepted

    @property
    def change_text(self) -> str:
        """The change: ``+7.4 %``, empty where none is known."""
        return "" if self.change is None else units.change(self.change.ratio)


def finding(outcome: Outcome, *, strict: bool) -> Finding:
    """Return what GitHub is told of an outcome."""
    from pytest_rlperf.report.device import device_lines

    verdict, result, before = outcome.verdict, outcome.result, outcome.before
    estimate = verdict.estimate
    return Finding(
        key=result.nodeid,
        status=verdict.status,
        gated=verdict.gated,
        accepted=verdict.accepted,
        fails=verdict.fails(strict),
        by_counts=verdict.by_counts,
        message=message(outcome),
        blame=blame_text(outcome),
        change=None if estimate is None else Change(estimate.ratio, estimate.low, estimate.high, estimate.confidence),
        now_s=result.call_s if result.measured else None,
        was_s=None if before is None or not before.measured else before.call_s,
        notes=result.notes,
        phases=tuple(phase_rows(outcome)),
        phases_note=phases_note(result),
        counters=verdict.counters,
        since_first=None if outcome.creep is None else outcome.creep.ratio,
        has_baseline=outcome.baseline is not None,
        more={"Where the time goes": shares_lines(result.shares), "On the device": device_lines(outcome)},
    )


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with those first that fail, the gated before others, by verdict, then the largest change."""

    def place(found: Finding) -> tuple[bool, bool, int, float]:
        ratio = 0.0 if found.change is None else found.change.ratio
        return not found.fails, not found.gated, GRAVEST_FIRST.index(found.status), -ratio

    return sorted(findings, key=place)


def overall(findings: Sequence[Finding]) -> str:
    """Return the gravest verdict of the gated tests in a word; accepted slowdowns are ``ACCEPTED``, none is ``""``."""
    words = {"ACCEPTED" if found.is_accepted else found.status.value for found in findings if found.gated}
    order = [status.value for status in GRAVEST_FIRST]
    order.insert(order.index(Status.FASTER.value), "ACCEPTED")
    return next((word for word in order if word in words), "")


def untold(findings: Sequence[Finding], unmeasured: Mapping[str, str]) -> dict[str, str]:
    """Return what else happened to tests, by their keys: "failed", or "skipped: " and the reason.

    A test that fails by its verdict is told of elsewhere; one that has figures may have failed otherwise.
    """
    by_verdict = {found.key for found in findings if found.fails}
    return {key: why for key, why in unmeasured.items() if key not in by_verdict}


def broken(findings: Sequence[Finding], unmeasured: Mapping[str, str]) -> int:
    """Return how many tests failed otherwise than by their verdict."""
    return sum(why == "failed" for why in untold(findings, unmeasured).values())


def headline(findings: Sequence[Finding], unmeasured: Mapping[str, str]) -> str:
    """Return what the run says, in one sentence without markup."""
    gated = [found for found in findings if found.gated]
    failing = [found for found in ordered(gated) if found.fails]
    slower = [found for found in failing if found.status is Status.SLOWER]
    others = broken(findings, unmeasured)
    if slower:
        which = ":" if len(slower) == 1 else ", most of all"
        return f"{len(slower)} of {len(gated)} gated tests got slower{which} {slower[0].name} {_slowdown(slower[0])}"
    if others:
        return f"{units.counted(others, 'test')} failed, but no gated test got slower"
    if failing:
        return f"{len(failing)} of {len(gated)} gated tests cannot be called as fast as before, and this run is strict"
    if not gated:
        return "No gated test was measured"
    told = Counter("accepted" if found.is_accepted else found.status.value for found in gated)
    what = "Nothing got slower but on purpose" if told["accepted"] else "No gated test got slower"
    return f"{what}: {', '.join(f'{count} {word}' for word, count in told.most_common())}"


def advice(findings: Sequence[Finding], unmeasured: Mapping[str, str]) -> str:
    """Return what to do about it, in one sentence without markup; empty where there is nothing to do."""
    failing = ordered([found for found in findings if found.fails])
    if any(found.status is Status.SLOWER for found in failing):
        where = "counts that changed" if all(found.by_counts for found in failing) else "phases that carry it"
        return (
            f"Look at the {where} below, and make it as fast as it was; "
            "if it is meant to be slower, say so in a commit message, with the line below."
        )
    if broken(findings, unmeasured):
        return "Read the failures in the job's log."
    if failing:
        return "Read why below: --rlperf-strict lets only SAME and FASTER pass."
    if any(found.status is Status.UNDECIDED for found in findings if found.gated):
        return "Nothing has to be done; UNDECIDED tests say below which slowdown they could have seen."
    return ""


def acceptance_lines(findings: Sequence[Finding]) -> list[str]:
    """Return the lines of a commit message that accept what got slower."""
    slower = [found for found in ordered(findings) if found.fails and found.status is Status.SLOWER]
    return [f"{_trailer(found)} the reason" for found in slower]


def _trailer(found: Finding) -> str:
    change = None if found.by_counts else found.change
    return trailer(found.key, *((None, None) if change is None else (change.ratio, change.high)))


def improvements(findings: Sequence[Finding]) -> str:
    """Ask that what got faster than its baseline be made the new one; empty where nothing did."""
    count = sum(found.status is Status.FASTER and found.has_baseline for found in findings)
    return f"{improved(count)}, with {SAVING}." if count else ""


def _slowdown(found: Finding) -> str:
    """Say how much slower a test is."""
    if found.by_counts:
        first = f": {count_text(found.counters[0])}" if found.counters else ""
        return f"does more in a call than it did{first}"
    if found.now_s is None or found.was_s is None:
        return found.change_text
    return f"{found.change_text} ({units.seconds(found.now_s)} a call, was {units.seconds(found.was_s)})"
