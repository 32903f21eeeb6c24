"""What a verdict means for its test: whether it fails, and what is told of it."""

from __future__ import annotations

from pytest_rlperf.ledger import Ledger
from pytest_rlperf.measure import messages as m
from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.junit import properties
from pytest_rlperf.report.rows import failure_text


def failure_of(outcome: Outcome, ledger: Ledger) -> m.Failure | None:
    """Return why a test must fail, if it must."""
    # Storing is what NEW and INCOMPARABLE ask for; a strict run must be able to store its first baseline.
    cured = ledger.settings.save and outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE)
    if cured or not outcome.verdict.fails(ledger.settings.strict):
        return None
    text = failure_text(outcome, ledger.origin(outcome))
    if outcome.verdict.status is Status.SLOWER:
        return m.Failure(text, regression=True)
    return m.Failure(f"{text}\n--rlperf-strict fails what is neither SAME nor FASTER", regression=False)


def properties_of(outcome: Outcome | None) -> list[tuple[str, object]]:
    """Return what JUnit XML and other report writers get to know of a verdict."""
    return [] if outcome is None else list(properties(outcome))
