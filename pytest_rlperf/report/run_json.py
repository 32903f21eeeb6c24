"""A run as JSON: everything the reports read, for programs."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pytest_rlperf.model import Fitness, Machine, Outcome, Provenance, Selfcheck, Verdict
from pytest_rlperf.report.wording import blame_text, fitness_lines, message, verdict_message

SCHEMA = 1


def run_document(
    machine: Machine,
    outcomes: Mapping[str, Outcome],
    origins: Sequence[str],
    notes: Sequence[str],
    *,
    provenance: Provenance | None = None,
    failed: Iterable[str] = (),
) -> dict[str, Any]:
    """Return a measured run: each test's result, what it was compared with, and its verdict.

    ``provenance`` is of the code that was measured, ``failed`` the keys of tests that failed for whatever reason: what
    a baseline needs to know before it takes the figures over.
    """
    return {
        "schema": SCHEMA,
        "kind": "run",
        "machine": asdict(machine),
        "provenance": None if provenance is None else asdict(provenance),
        "failed": sorted(failed),
        "compared": list(origins),
        "notes": list(notes),
        "tests": {key: _outcome(outcome) for key, outcome in outcomes.items()},
    }


def selfcheck_document(machine: Machine, checks: Mapping[str, Selfcheck], fitness: Fitness) -> dict[str, Any]:
    """Return a self-check: each test's trials, and what the machine is fit for."""
    return {
        "schema": SCHEMA,
        "kind": "selfcheck",
        "machine": asdict(machine),
        "fitness": asdict(fitness) | {"reasons": fitness_lines(list(checks.values()), fitness)},
        "tests": {key: _selfcheck(check) for key, check in checks.items()},
    }


def written(document: dict[str, Any]) -> str:
    """Return a document as text that any JSON reader reads."""
    return json.dumps(_plain(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _selfcheck(check: Selfcheck) -> dict[str, Any]:
    document = asdict(check)
    for trial, written_trial in zip(check.trials, document["trials"], strict=True):
        written_trial["verdict"] = _verdict(written_trial["verdict"], trial.verdict, verdict_message(trial.verdict))
    return {**document, "smallest_found": check.smallest_found}


def _verdict(document: dict[str, Any], verdict: Verdict, message: str) -> dict[str, Any]:
    """Return a verdict's document: all reasons in one text, with the code of the one that decides."""
    return {name: value for name, value in document.items() if name != "also"} | {
        "reason": {"code": verdict.reason.code, "message": message}
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    document = asdict(outcome)
    live = outcome.live
    document["verdict"] = _verdict(document["verdict"], outcome.verdict, message(outcome))
    document["call_s"] = outcome.result.call_s if outcome.result.measured else None
    document["base_call_s"] = None if outcome.before is None else outcome.before.call_s
    if live is not None:
        document["live"]["clock"] = live.clock
        document["live"]["blame"] = blame_text(outcome)
        document["live"]["setup_s"] = sum(pair.setup_s for pair in live.pairs)
        document["live"]["measured_s"] = sum(pair.seconds for pair in live.pairs)
    return document


def _plain(value: Any) -> Any:
    """Return ``value`` with what JSON has no word for as null."""
    if isinstance(value, dict):
        return {_text(str(name)): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """Return ``text`` with half a character, as a file's name may hold, written out: UTF-8 has no way to say it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
