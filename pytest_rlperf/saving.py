"""What of a run becomes its baseline: every test by itself, but for what failed, told too little, or may be slower."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from pytest_rlperf.ledger import Ledger
from pytest_rlperf.measure.solo import WORKERS
from pytest_rlperf.model import Acceptance, Outcome, Reason, Status, StoredResult
from pytest_rlperf.report.rows import test_name
from pytest_rlperf.report.summary import Saved

_NAMED_MOST = 5


def save(ledger: Ledger, failed: Collection[str]) -> None:
    """Store what may be stored, and note in the ledger what that was; ``failed`` are the keys of tests that did.

    BaselineError where the file cannot be written.
    """
    now = ledger.provenance()
    session = now.created if now.commit is None else f"{now.created} {now.commit[:12]}"
    kept_back, held, results = {}, {}, {}
    for key, outcome in ledger.outcomes.items():
        reason = _useless(outcome, failed=key in failed)
        if reason is not None:
            kept_back[key] = reason
        elif _may_be_slower(outcome):
            held[key] = outcome
        else:
            result = replace(outcome.result, shares=())  # told for their own sake, and compared with nothing
            results[key] = StoredResult(result, session, _acceptance(ledger, outcome, now.created))
    kept_back |= dict.fromkeys(held, _slower(held.values()))
    ledger.saved = Saved(ledger.store.path, now.settleable, list(results), kept_back)
    if results:
        ledger.store.write(session, now, results)
    for key in results:
        _tell_stored(ledger, ledger.outcomes[key])


def _may_be_slower(outcome: Outcome) -> bool:
    """Whether figures would take the place of better ones, or be the first of something slower, unaccepted."""
    verdict = outcome.verdict
    suspect = verdict.suspect and outcome.baseline is not None
    if verdict.accepted:
        # Who accepts counts alone says nothing of a time that may be slower.
        return suspect and verdict.allowance is not None and not verdict.allowance.most
    return suspect or verdict.status is Status.SLOWER


def _slower(held: Iterable[Outcome]) -> str:
    """Say which tests keep their old figures, and what replaces them."""
    names = [test_name(outcome) for outcome in held]
    more = [f"{len(names) - _NAMED_MOST} more"] if len(names) > _NAMED_MOST else []
    return (
        f"{', '.join([*names[:_NAMED_MOST], *more])}: slower than before, or maybe; old figures stay, "
        '--rlperf-accept="why" replaces them'
    )


def _useless(outcome: Outcome, *, failed: bool) -> str | None:
    """Return why a test's figures are good for no comparison, None where they are."""
    workers = len(outcome.result.workers)
    if failed and not outcome.verdict.fails(strict=False):  # one that failed for its time alone has good figures
        return "it failed"
    if outcome.verdict.status is Status.INVALID:
        return "its measurement was INVALID"
    if workers < WORKERS:
        return f"{workers} of {WORKERS} workers measured it; raise --rlperf-max-time"
    return None


def _acceptance(ledger: Ledger, outcome: Outcome, created: str) -> Acceptance | None:
    verdict, allowance = outcome.verdict, outcome.verdict.allowance
    if not verdict.accepted or outcome.baseline is None or verdict.status is not Status.SLOWER:
        return None
    reason = ledger.settings.accept or ("" if allowance is None else f"{allowance.reason} ({allowance.commit})")
    return Acceptance(reason, created, outcome.baseline.result.call_s)


def _tell_stored(ledger: Ledger, outcome: Outcome) -> None:
    """Add to what there was nothing to compare with that from now on there is."""
    verdict = outcome.verdict
    if verdict.status in (Status.NEW, Status.INCOMPARABLE):
        first, end, others = verdict.reason.message.partition("\n")
        reason = Reason(verdict.reason.code, f"{first}; stored now{end}{others}")
        ledger.amend(replace(outcome, verdict=replace(verdict, reason=reason)))
