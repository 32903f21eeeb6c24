"""The storing of a run's outcomes."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from pytest_rlperf.baseline.history import session_name
from pytest_rlperf.judge.history import link_of
from pytest_rlperf.judge.stats import squared_deviations
from pytest_rlperf.judge.validity import broken_rule
from pytest_rlperf.model import notes
from pytest_rlperf.model.judged import LIVE_TOLERANCE, Outcome, Status
from pytest_rlperf.model.live import Live
from pytest_rlperf.model.reasons import Code
from pytest_rlperf.model.stored import Acceptance, PairSpread, Provenance, StoredResult, session_figures
from pytest_rlperf.run.baselines import WORKERS
from pytest_rlperf.run.state import RunState


def save(run: RunState, failed: Collection[str]) -> None:
    """Store the results that may be stored, and note which they are; ``failed`` are the keys of tests that failed.

    BaselineError if the file cannot be written.
    """
    now, outcomes, store = run.provenance(), run.outcomes.tests, run.baselines.store
    session = session_name(now)
    refusals = {key: _refusal(outcome, failed=key in failed) for key, outcome in outcomes.items()}
    kept_back = {key: why for key, why in refusals.items() if why is not None}
    results = {key: _entry(run, outcome, session, now) for key, outcome in outcomes.items() if key not in kept_back}
    if results:
        store.write(session, now, results)
    few = {
        key: len(outcomes[key].result.workers) for key, why in kept_back.items() if why is notes.KeptBack.FEW_WORKERS
    }
    run.note(notes.Saved(store.path, now.settleable, tuple(results), kept_back, few, WORKERS))
    for key in results:
        run.outcomes.add(replace(outcomes[key], stored=True))


def _entry(run: RunState, outcome: Outcome, session: str, now: Provenance) -> StoredResult:
    """Return a test's entry, with this session's additions to those of earlier sessions."""
    key = outcome.result.nodeid
    before = run.baselines.commit_of(key)
    head = now.commit if now.settleable else None
    link = link_of(before, head, outcome, run.baselines.versions_since(key))
    return StoredResult(
        replace(outcome.result, shares=()),  # they are only shown, and never compared
        session,
        _acceptance(run, outcome, now.created),
        pairs=_pair_spread(outcome.live),
        history=(session_figures(outcome.result, session, same_code=_is_same_code(run, outcome)),),
        links=() if link is None else (link,),
    )


def _pair_spread(live: Live | None) -> PairSpread | None:
    """Return how much a comparison's pairs differed, by the clock that decided; None if there were too few pairs."""
    if live is None or len(live.pairs) < 2:
        return None
    return PairSpread(squared_deviations(live.log_ratios), len(live.pairs) - 1.0)


def _is_same_code(run: RunState, outcome: Outcome) -> bool:
    """Whether code and packages are as fast as the baseline's, as shown by something other than stored numbers.

    The spread between sessions is learned from these sessions. If stored numbers chose them by SAME, they would choose
    those that lie close together.
    """
    verdict, estimate = outcome.verdict, outcome.verdict.estimate
    if run.settings.against is not None or run.baselines.versions_since(outcome.result.nodeid):
        return False
    if verdict.status is not Status.SAME or verdict.reason.code not in (Code.LIVE, Code.CODE, Code.ENVIRONMENT):
        return False
    within = 1 + LIVE_TOLERANCE  # whatever the test's own tolerance
    return estimate is None or 1 / within < estimate.low <= estimate.high < within


def _refusal(outcome: Outcome, *, failed: bool) -> notes.KeptBack | None:
    """Return why a test's figures are not stored; None if they are."""
    verdict, is_new = outcome.verdict, outcome.baseline is None
    # A test that fails because its time is slower has good figures.
    if verdict.status is Status.ERROR or (failed and not verdict.fails(strict=False)):
        return notes.KeptBack.FAILED
    if verdict.status is Status.INVALID:
        return notes.KeptBack.INVALID
    if len(outcome.result.workers) < WORKERS:
        return notes.KeptBack.FEW_WORKERS
    # A verdict by counts holds even if the time is invalid; a figure does not.
    if broken_rule(outcome.result) is not None:
        return notes.KeptBack.INVALID_TIME
    if _may_be_slower(outcome):
        return notes.KeptBack.SLOWER_AND_NEW if is_new else notes.KeptBack.SLOWER
    # Stored numbers by themselves could not decide, and nobody has accepted that.
    is_undecided = verdict.status is Status.UNDECIDED and not verdict.accepted
    if is_undecided and not is_new and any(reason.code == Code.UNSETTLED for reason in verdict.also):
        return notes.KeptBack.UNDECIDED
    return None


def _may_be_slower(outcome: Outcome) -> bool:
    """Whether figures would replace better ones, or be the first figures of something slower, without acceptance."""
    verdict = outcome.verdict
    suspect = verdict.suspect and outcome.baseline is not None
    if verdict.accepted:
        # A commit that accepts only counts does not accept a time that may be slower.
        return suspect and verdict.allowance is not None and not verdict.allowance.most
    return suspect or verdict.status is Status.SLOWER


def _acceptance(run: RunState, outcome: Outcome, created: str) -> Acceptance | None:
    verdict, allowance = outcome.verdict, outcome.verdict.allowance
    if allowance is None or outcome.baseline is None or verdict.status is not Status.SLOWER:
        return None
    reason = f"{allowance.reason} ({allowance.commit})"
    return Acceptance(reason, created, outcome.baseline.result.call_s, run.user())
