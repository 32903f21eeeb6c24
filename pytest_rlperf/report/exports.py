"""Writes verdicts for other tools: as pytest-benchmark's JSON, and as properties in JUnit's XML.

In pytest-benchmark's JSON a *round* is one worker's figure: the typical wall time of a call in that process, the
statistical unit of a stored comparison. So ``rounds`` is the number of workers, and ``stddev`` is the spread between
processes. ``iterations`` is how many calls a slice makes on average.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from msgspec.structs import asdict

from pytest_rlperf.errors import shown
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.stored import Machine, Provenance
from pytest_rlperf.report.wording import finding_line, message


def rounds_s(result: Result) -> list[float]:
    """Return the seconds per call that count as a result's rounds: each worker's, by the wall's clock."""
    return [worker.wall.call_s for worker in result.workers]


def iterations(result: Result) -> int:
    """Return how many calls a slice of the result's made, on average."""
    return max(1, round(statistics.fmean(worker.calls / max(1, worker.slices) for worker in result.workers)))


def benchmark_document(outcomes: Iterable[Outcome], machine: Machine, provenance: Provenance | None) -> dict[str, Any]:
    """Return the document that pytest-benchmark would have written; tests without figures have no row."""
    import pytest_benchmark

    commit = "unversioned" if provenance is None else provenance.commit or "unversioned"
    return {
        "machine_info": {
            "machine": machine.arch,
            "python_version": machine.python,
            "rlperf": asdict(machine),
        },
        "commit_info": {"id": commit, "dirty": provenance is None or provenance.dirty},
        "benchmarks": [_row(outcome) for outcome in outcomes if outcome.result.measured],
        "datetime": "" if provenance is None else provenance.created,
        "version": pytest_benchmark.__version__,
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    from pytest_benchmark.stats import Metadata

    result, rounds = outcome.result, rounds_s(outcome.result)
    name, param = _split(result.nodeid)
    fixture = SimpleNamespace(
        group=shown(result.component),
        name=shown(name if param is None else f"{name}[{param}]"),
        fullname=shown(result.nodeid),
        params=None,
        param=None if param is None else shown(param),
        extra_info={"rlperf": dict(_facts(outcome))},
        cprofile_stats=None,
    )
    options = {
        "disable_gc": False,
        "timer": "perf_counter",
        "min_rounds": len(rounds),
        "max_time": outcome.seconds,
        "min_time": 0.0,
        "warmup": True,
    }
    row = Metadata(fixture, iterations(result), options)  # type: ignore[no-untyped-call]
    for round_s in rounds:
        row.stats.update(round_s)  # type: ignore[no-untyped-call]
    found: dict[str, Any] = row.as_dict()  # type: ignore[no-untyped-call]
    return found


def _split(key: str) -> tuple[str, str | None]:
    """Return a test's name without its file, class and brackets, and the text in the brackets, if any."""
    path, separator, within = key.partition("::")
    names, bracket, param = (within if separator else path).partition("[")
    return names.rpartition("::")[2], param.removesuffix("]") if bracket else None


# --------------------------------------------------------------------------- JUnit's XML


def properties(outcome: Outcome) -> list[tuple[str, str]]:
    """Return a test's verdict as names and values for ``report.user_properties``, which CI systems show and keep.

    JUnit takes them from the report of the teardown.
    """
    verdict, found = outcome.verdict, _facts(outcome)
    for change in verdict.counters:
        name = f"{change.path}: {change.name}" if change.path else change.name
        found += [("counter", f"{shown(name)} {change.was} → {change.now}")]
    found += [("finding", f"{finding.kind}: {shown(finding_line(finding.line))}") for finding in verdict.findings]
    return [(f"rlperf_{name}", _text(value)) for name, value in found]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(outcome: Outcome) -> list[tuple[str, object]]:
    """Return the facts of a verdict: times in seconds per call, and plain ratios."""
    verdict, result, before, estimate = outcome.verdict, outcome.result, outcome.before, outcome.verdict.estimate
    found: list[tuple[str, object]] = [
        ("verdict", verdict.status.value),
        ("reason_code", str(verdict.reason.code)),
        ("reason", shown("; ".join(message(outcome).split("\n")))),
        ("gated", verdict.gated),
        *([("component", shown(result.component))] if result.component else []),
    ]
    if verdict.accepted and verdict.status is Status.SLOWER:
        found += [("accepted", True)]
    if result.measured:
        found += [("call_s", result.call_s), ("items_per_s", result.items_per_s), ("clock", result.clock)]
        found += [("workers", len(result.workers))]
    if before is not None and before.measured:
        found += [("base_call_s", before.call_s)]
    if estimate is not None:
        found += [("ratio", estimate.ratio), ("ratio_low", estimate.low), ("ratio_high", estimate.high)]
    if outcome.live is not None:
        found += [("against", shown(outcome.live.base_label)), ("pairs", len(outcome.live.pairs))]
    return found
