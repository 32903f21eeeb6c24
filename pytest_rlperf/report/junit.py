"""Writes a test's verdict into JUnit's XML: as properties of its test case, which CI systems show and keep."""

from __future__ import annotations

from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.wording import message


def properties(outcome: Outcome) -> list[tuple[str, str]]:
    """Return names and values for ``report.user_properties``; seconds per call, ratios as they are, no units.

    What is not known has no property. JUnit takes them from the report of the teardown.
    """
    verdict, result, before, estimate = outcome.verdict, outcome.result, outcome.before, outcome.verdict.estimate
    found: list[tuple[str, object]] = [
        ("verdict", verdict.status.value),
        ("reason_code", str(verdict.reason.code)),
        ("reason", shown("; ".join(message(outcome).split("\n")))),
        ("gated", str(verdict.gated).lower()),
        *([("component", shown(result.component))] if result.component else []),
    ]
    if verdict.accepted and verdict.status is Status.SLOWER:
        found += [("accepted", "true")]
    if result.measured:
        found += [("call_s", result.call_s), ("items_per_s", result.items_per_s), ("clock", result.clock)]
        found += [("workers", len(result.workers))]
    if before is not None and before.measured:
        found += [("base_call_s", before.call_s)]
    if estimate is not None:
        found += [("ratio", estimate.ratio), ("ratio_low", estimate.low), ("ratio_high", estimate.high)]
    if outcome.creep is not None:
        creep = outcome.creep
        found += [("ratio_since_first", creep.ratio), ("ratio_since_first_low", creep.low)]
        found += [("ratio_since_first_high", creep.high)]
    if outcome.live is not None:
        found += [("against", shown(outcome.live.base_label)), ("pairs", len(outcome.live.pairs))]
    for change in verdict.counters:
        name = f"{change.path}: {change.name}" if change.path else change.name
        found += [("counter", f"{shown(name)} {change.was} → {change.now}")]
    found += [("finding", f"{finding.kind}: {shown(finding.line)}") for finding in verdict.findings]
    return [(f"rlperf_{name}", f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in found]
