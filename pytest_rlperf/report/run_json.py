"""Writes a run as JSON, with everything that the reports show, and reads it back."""

from __future__ import annotations

import enum
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec

from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.model.judged import Estimate, Outcome, Part, Shard, Verdict
from pytest_rlperf.model.measured import Result, impossible_figures
from pytest_rlperf.model.reasons import FullReason, Reason
from pytest_rlperf.model.selfcheck import Fitness, Selfcheck
from pytest_rlperf.model.stored import LARGEST_LOG, Machine, Provenance
from pytest_rlperf.report.printable import shown, shown_lines
from pytest_rlperf.report.wording import blame_text, fitness_lines, message, verdict_message
from pytest_rlperf.units import counted

SCHEMA = 1


def document_of(run: RunFile) -> dict[str, Any]:
    """Return a measured run: each test's result, what it was compared with, and its verdict."""
    return {
        "schema": SCHEMA,
        "kind": "run",
        "machine": asdict(run.machine),
        "provenance": None if run.provenance is None else asdict(run.provenance),
        "failed": sorted(run.failed),
        "unmeasured": sorted(run.unmeasured),
        "strict": run.strict,
        "against": run.against,
        "shard": None if run.shard is None else asdict(run.shard),
        "parts": [asdict(part) for part in run.parts],
        "compared": list(run.compared),
        "notes": list(run.notes),
        "tests": {key: _outcome(outcome) for key, outcome in run.tests.items()},
    }


def selfcheck_document(machine: Machine, checks: Mapping[str, Selfcheck], fitness: Fitness) -> dict[str, Any]:
    """Return a self-check: each test's trials, and the slowdowns that the machine can find."""
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
    """Return ``value`` as JSON can hold it; numbers that are not finite become null."""
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
    """Return ``text`` with half characters, as a file's name may hold, written out: UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# --------------------------------------------------------------------------- reading


class ReadingError(ValueError):
    """A file is not as it was written; the text names the first fault and its place."""


class NewerError(ReadingError):
    """A file is of a later version."""


@dataclass(frozen=True)
class RunFile:
    """A measured run as ``--rlperf-json`` writes it; ``compared`` names what it was compared with.

    ``provenance`` is of the code that was measured, None where that was not kept. ``failed`` are the keys of tests that
    failed for whatever reason, and the ids of files that could not be collected; ``unmeasured`` are the keys of others
    that ran and have no figures, such as skipped ones. A test that is nowhere did not run, as the run ended early.
    ``strict`` is true where only SAME and FASTER pass. ``against`` is the code that the user had all tests compared
    with, None where the baseline decides about that. ``shard`` is None where all tests were measured. ``parts`` are
    those of a merged run: each has a machine, and ``machine`` is that of the first.
    """

    machine: Machine
    compared: tuple[str, ...]
    notes: tuple[str, ...]
    tests: dict[str, Outcome]
    provenance: Provenance | None = None
    failed: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    strict: bool = False
    against: str | None = None
    shard: Shard | None = None
    parts: tuple[Part, ...] = ()

    def machine_lines(self) -> list[str]:
        """Return a line a machine class, of a merged run with the number of tests that were measured there."""
        counts = Counter(part.machine for part in self.parts for _ in part.tests)
        lines = [f"{describe(machine)}: {counted(count, 'test')}" for machine, count in counts.items()]
        return lines or [describe(self.machine)]


@dataclass(frozen=True)
class SelfcheckFile:
    """A self-check as ``--rlperf-selfcheck --rlperf-json`` writes it."""

    machine: Machine
    fitness: Fitness
    tests: dict[str, Selfcheck]


_WITH_LINES = frozenset({"message", "notes"})  # texts that may have several lines; names have one
_UNBOUNDED = frozenset({"ceiling", "high"})  # may be infinite, which JSON has as null
_CONFIDENCES = (0.5, 0.999999)  # of an interval whose standard error can be found
_LARGEST = 1e18  # of a count or a figure; a later sum or conversion cannot fail
_T = TypeVar("_T")


def decoded(data: bytes) -> Any:
    """Return what JSON holds; ReadingError where it is none, is nested too deep, or has numbers that are too large."""
    try:
        return json.loads(data, parse_constant=_refuse, parse_int=_whole_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise ReadingError(f"not JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _number(text: str) -> float:
    number = float(text)
    if not abs(number) <= _LARGEST:
        raise ValueError(f"a number is over {_LARGEST:g}")
    return number


def _whole_number(text: str) -> int:
    _number(text)
    return int(text)


def read_document(document: object) -> RunFile | SelfcheckFile:
    """Return a run or a self-check from its JSON, which may be anybody's; ReadingError names the first fault.

    Control characters in names and texts are written out, so that they can do a terminal no harm.
    """
    if not isinstance(document, dict):
        raise ReadingError("$ is no object")
    check_version(document, SCHEMA)
    kind = document.get("kind")
    if kind not in ("run", "selfcheck"):
        raise ReadingError(f"$.kind is {_shown(kind)}, expected 'run' or 'selfcheck'")
    recorded = convert(document, RunFile, "$") if kind == "run" else convert(document, SelfcheckFile, "$")
    for fault in _faults(recorded):
        raise ReadingError(fault)
    return recorded


def check_version(document: dict[str, Any], newest: int) -> None:
    """Refuse a document without a schema version, or of one that this code does not read."""
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ReadingError(f"$.schema is {_shown(schema)}, expected a whole number from 1 on")
    if schema > newest:
        raise NewerError(
            f"has schema version {_shown(schema)}, this pytest-rlperf reads up to {newest}: upgrade pytest-rlperf"
        )


def convert(value: object, type_: type[_T], place: str) -> _T:
    """Return a JSON value as ``type_``: a dataclass, an enum, a container of these, or a plain value.

    ReadingError, which begins with the ``place``, where it is none.
    """
    try:
        return msgspec.convert(fit_to_show(value), type_, dec_hook=_reason)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        raise ReadingError(f"{place}{path.removesuffix('`')}: {text}") from None
    except RecursionError:
        raise ReadingError(f"{place} is nested too deep") from None


def _reason(type_: type, value: object) -> Reason:
    assert type_ is Reason, type_
    return msgspec.convert(value, FullReason)


def fit_to_show(value: Any, name: str = "") -> Any:
    """Return a JSON value whose texts can do a terminal no harm; ``name`` is its member's, or that of its list."""
    if isinstance(value, dict):
        return {shown(key): fit_to_show(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [fit_to_show(part, name) for part in value]
    if isinstance(value, str) and value:
        return shown_lines(value) if name in _WITH_LINES else shown(value)
    return math.inf if value is None and name in _UNBOUNDED else value


def _faults(recorded: RunFile | SelfcheckFile) -> Iterator[str]:
    """Yield what no run can have measured, each with its place: later arithmetic takes logarithms and divides."""
    for key, test in recorded.tests.items():
        faults = _selfcheck_faults(test) if isinstance(test, Selfcheck) else _outcome_faults(test)
        yield from (f"$.tests[{_shown(key)}].{fault}" for fault in faults)


def _selfcheck_faults(check: Selfcheck) -> Iterator[str]:
    yield from _result_faults("result", check.result)
    for index, trial in enumerate(check.trials):
        yield from _estimate_faults(f"trials[{index}].verdict.estimate", trial.verdict.estimate)


def _outcome_faults(outcome: Outcome) -> Iterator[str]:
    yield from _result_faults("result", outcome.result)
    yield from _estimate_faults("verdict.estimate", outcome.verdict.estimate)
    if outcome.baseline is not None:
        yield from _result_faults("baseline.result", outcome.baseline.result)
    if outcome.live is not None:
        yield from _result_faults("live.base", outcome.live.base)
        for index, pair in enumerate(outcome.live.pairs):
            for clock, ratio in (("wall", pair.wall_log_ratio), ("cpu", pair.cpu_log_ratio)):
                if not abs(ratio) <= LARGEST_LOG:
                    yield f"live.pairs[{index}].{clock}_log_ratio is {ratio}, expected the logarithm of a ratio"


def _result_faults(place: str, result: Result) -> Iterator[str]:
    return (f"{place}.{fault}" for fault in impossible_figures(result))


def _estimate_faults(place: str, estimate: Estimate | None) -> Iterator[str]:
    if estimate is None:
        return
    low, ratio, high = estimate.low, estimate.ratio, estimate.high
    if not 0 < low <= ratio <= high:  # which may be infinite
        yield f"{place} is {ratio} from {low} to {high}, expected a positive ratio within its bounds"
    least, most = _CONFIDENCES
    if not least <= estimate.confidence <= most:
        yield f"{place}.confidence is {estimate.confidence}, expected a number from {least} to {most}"


def _shown(value: object) -> str:
    """Return a value for a message: cut, in ASCII and in one line."""
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
