"""What of a run becomes its baseline: every test by itself, but for what failed, told too little, or may be slower."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from pytest_rlperf.judge.validity import broken_rule
from pytest_rlperf.measure.one_side import WORKERS
from pytest_rlperf.model import Acceptance, Outcome, Status, StoredResult
from pytest_rlperf.report.summary import Saved
from pytest_rlperf.run.outcomes import Ledger

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
    for stored in (True, False):
        alike = {key: outcome for key, outcome in held.items() if (outcome.baseline is not None) is stored}
        kept_back |= dict.fromkeys(alike, _slower(alike.values(), stored=stored))
    if results:
        ledger.store.write(session, now, results)
    ledger.saved = Saved(ledger.store.path, now.settleable, list(results), kept_back)
    for key in results:
        ledger.amend(replace(ledger.outcomes[key], stored=True))


def _may_be_slower(outcome: Outcome) -> bool:
    """Whether figures would take the place of better ones, or be the first of something slower, unaccepted."""
    verdict = outcome.verdict
    suspect = verdict.suspect and outcome.baseline is not None
    if verdict.accepted:
        # Who accepts counts alone says nothing of a time that may be slower.
        return suspect and verdict.allowance is not None and not verdict.allowance.most
    return suspect or verdict.status is Status.SLOWER


def _slower(held: Iterable[Outcome], *, stored: bool) -> str:
    """Say which tests keep their old figures, or are ``stored`` nowhere yet, and what stores these."""
    names = [outcome.result.name for outcome in held]
    more = [f"{len(names) - _NAMED_MOST} more"] if len(names) > _NAMED_MOST else []
    end = (
        'old figures stay, --rlperf-accept="why" replaces them'
        if stored
        else 'there are none of this machine, --rlperf-accept="why" stores them'
    )
    return f"{', '.join([*names[:_NAMED_MOST], *more])}: slower than before, or maybe; {end}"


def _useless(outcome: Outcome, *, failed: bool) -> str | None:
    """Return why a test's figures are good for no comparison, None where they are."""
    workers = len(outcome.result.workers)
    if failed and not outcome.verdict.fails(strict=False):  # one that failed for its time alone has good figures
        return "it failed"
    if outcome.verdict.status is Status.INVALID:
        return "its measurement was INVALID"
    if workers < WORKERS:
        return f"{workers} of {WORKERS} workers measured it; raise --rlperf-max-time"
    # A verdict by counts holds whatever became of the time; a figure does not.
    return None if broken_rule(outcome.result) is None else "its time was INVALID"


def _acceptance(ledger: Ledger, outcome: Outcome, created: str) -> Acceptance | None:
    verdict, allowance = outcome.verdict, outcome.verdict.allowance
    if not verdict.accepted or outcome.baseline is None or verdict.status is not Status.SLOWER:
        return None
    reason = ledger.settings.accept or ("" if allowance is None else f"{allowance.reason} ({allowance.commit})")
    return Acceptance(reason, created, outcome.baseline.result.call_s, ledger.user())
