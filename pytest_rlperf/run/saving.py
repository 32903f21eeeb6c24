"""Store a run's figures: each test by itself, except failed, incomplete and perhaps slower ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_rlperf.judge.validity import broken_rule
from pytest_rlperf.measure.one_side import WORKERS
from pytest_rlperf.model import Acceptance, Outcome, Status, StoredResult
from pytest_rlperf.model.notes import KeptBack, Saved
from pytest_rlperf.run.outcomes import RunState


def save(run: RunState, failed: Collection[str]) -> Saved:
    """Store what may be stored, and note which that was; ``failed`` are the keys of tests that failed.

    BaselineError where the file cannot be written.
    """
    now, outcomes, store = run.provenance(), run.outcomes.tests, run.baselines.store
    session = now.created if now.commit is None else f"{now.created} {now.commit[:12]}"
    refusals = {key: _refusal(outcome, failed=key in failed) for key, outcome in outcomes.items()}
    kept_back = {key: why for key, why in refusals.items() if why is not None}
    results = {
        # Shares are shown for their own sake, and compared with nothing.
        key: StoredResult(replace(outcome.result, shares=()), session, _acceptance(run, outcome, now.created))
        for key, outcome in outcomes.items()
        if key not in kept_back
    }
    if results:
        store.write(session, now, results)
    few = {key: len(outcomes[key].result.workers) for key, why in kept_back.items() if why is KeptBack.FEW_WORKERS}
    saved = Saved(store.path, now.settleable, tuple(results), kept_back, few, WORKERS)
    run.note(saved)
    for key in results:
        run.outcomes.add(replace(outcomes[key], stored=True))
    return saved


def _refusal(outcome: Outcome, *, failed: bool) -> KeptBack | None:
    """Return why a test's figures are not stored, None where they are."""
    if failed and not outcome.verdict.fails(strict=False):  # one that failed for its time alone has good figures
        return KeptBack.FAILED
    if outcome.verdict.status is Status.INVALID:
        return KeptBack.INVALID
    if len(outcome.result.workers) < WORKERS:
        return KeptBack.FEW_WORKERS
    # A verdict by counts holds whatever became of the time; a figure does not.
    if broken_rule(outcome.result) is not None:
        return KeptBack.INVALID_TIME
    if _may_be_slower(outcome):
        return KeptBack.SLOWER_AND_NEW if outcome.baseline is None else KeptBack.SLOWER
    return None


def _may_be_slower(outcome: Outcome) -> bool:
    """Whether figures would take the place of better ones, or be the first of something slower, unaccepted."""
    verdict = outcome.verdict
    suspect = verdict.suspect and outcome.baseline is not None
    if verdict.accepted:
        # A commit that accepts counts alone accepts no time that may be slower.
        return suspect and verdict.allowance is not None and not verdict.allowance.most
    return suspect or verdict.status is Status.SLOWER


def _acceptance(run: RunState, outcome: Outcome, created: str) -> Acceptance | None:
    verdict, allowance = outcome.verdict, outcome.verdict.allowance
    if not verdict.accepted or outcome.baseline is None or verdict.status is not Status.SLOWER:
        return None
    reason = run.settings.accept or ("" if allowance is None else f"{allowance.reason} ({allowance.commit})")
    return Acceptance(reason, created, outcome.baseline.result.call_s, run.user())
