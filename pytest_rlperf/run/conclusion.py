"""From a test's evidence to its outcome: it is judged, and passes or fails."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.judge.counters import uncounted
from pytest_rlperf.judge.verdict import Counts, Evidence, judge
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Outcome, Status, Verdict
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.notes import GatesNotCounted, Note, NothingCounted, Obstacle, UncomparedCounts
from pytest_rlperf.model.reach import Touched
from pytest_rlperf.options import Config
from pytest_rlperf.report.summary import failure_text
from pytest_rlperf.run.state import RunState
from pytest_rlperf.run.stored_counts import live_counts


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a test: ``result`` for its outcome, ``evidence`` for its verdict, without stored figures.

    Commits after ``base_commit``, a full SHA, may accept a slowdown. ``touched`` are the parts of the change that the
    test runs or reads.
    """

    result: Result
    evidence: Evidence
    base_commit: str | None = None
    touched: tuple[Touched, ...] = ()


def conclude(run: RunState, settings: Config, measured: Measured, seconds: float) -> tuple[Outcome, tuple[Note, ...]]:
    """Judge a test, and note the counts that could not be compared."""
    result, found, baselines = measured.result, measured.evidence, run.baselines
    base = measured.base_commit or (None if run.settings.against else baselines.commit_before(found.head.nodeid))
    notes: list[Note] = []
    live, policy, key = found.live, run.policy(settings), found.head.nodeid
    evidence = replace(
        found,
        stored=baselines.stored(key),
        others=baselines.differences,
        versions=() if found.by_itself is None else baselines.versions_since(key),
        unsettled=found.unsettled or baselines.unsettled(key),
        counts=_counts(run, settings, measured, notes),
        law=run.series.add(result, live, policy),
        allowances=run.accepted.since(base),
    )
    verdict = judge(evidence, policy)
    # If nothing is slower, only messages that can still be amended are of use: those of the change at hand.
    if base is not None and (verdict.status is Status.SLOWER or run.settings.against is not None):
        notes += run.accepted.heed(base)
    # If the user named a base side, tests are compared with nothing else, even if nothing was measured.
    stored = evidence.stored if live is not None or run.settings.against is None else None
    return Outcome(result, stored, live, verdict, seconds, touched=measured.touched), tuple(notes)


def _counts(run: RunState, settings: Config, measured: Measured, notes: list[Note]) -> Counts | None:
    """Return the exact counts to compare: the base's in live pairs, else stored ones; add ``notes`` on others."""
    result, live, now = measured.result, measured.evidence.live, measured.result.counting
    if now is None or measured.evidence.unpaired is not None:
        return None
    other = run.baselines.counts.find(result) if live is None else live_counts(live.base, run.settings.against)
    obstacle: Obstacle | None = other.obstacle if now.workers else NothingCounted(now.notes, on_base=False)
    gates = settings.gating_counts
    if obstacle is not None:
        notes.append(UncomparedCounts(result.nodeid, obstacle, bool(gates)))
        return None
    if other.counting is None:
        return None
    missing = uncounted(other.counting, now, gates, settings.counts)
    if missing:
        why = tuple(dict.fromkeys((*now.notes, *other.counting.notes)))
        notes.append(UncomparedCounts(result.nodeid, GatesNotCounted(missing, why), gates=True))
    return Counts(other.counting, now)


def failure_of(outcome: Outcome, run: RunState) -> wire.Failure | None:
    """Return why a test must fail, if it must."""
    # Storing cures NEW and INCOMPARABLE; a strict run must be able to store its first baseline.
    cured = run.settings.save and outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE)
    if cured or not outcome.verdict.fails(run.settings.strict):
        return None
    text = failure_text(outcome, run.baselines.origin(outcome), against=run.settings.against is not None)
    if outcome.verdict.status is Status.SLOWER:
        return wire.Failure(text, regression=True)
    return wire.Failure(f"{text}\n--rlperf-strict fails tests that are neither SAME nor FASTER", regression=False)


def error_of(key: str, failure: reasons.TestFailed, seconds: float, known: Outcome | None) -> Outcome:
    """Return the outcome of a test that failed, with the figures that are ``known`` from before it did."""
    estimate = None if known is None else known.verdict.estimate
    verdict = Verdict(Status.ERROR, failure, estimate, smallest_seen=None, suspect=False, gated=True, accepted=False)
    if known is not None:
        return replace(known, verdict=verdict)
    return Outcome(Result(key, "", "", 0.0, (), (), 0.0, ()), None, None, verdict, seconds)


def error_line(text: str) -> str:
    """Return the line that names a failure: the error of a traceback, else the first line."""
    lines = [line.strip() for line in text.strip().splitlines()] or ["without a message"]
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return errors[0] if errors else lines[0]
