"""Writes a run as JSON, with everything that the reports show, and reads it back."""

from __future__ import annotations

import enum
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.model import (
    LARGEST_LOG,
    Estimate,
    Fitness,
    Machine,
    Outcome,
    Part,
    Provenance,
    Reason,
    Result,
    Selfcheck,
    Shard,
    Verdict,
    impossible_figures,
)
from pytest_rlperf.model.reasons import FullReason
from pytest_rlperf.report.printable import shown, shown_lines
from pytest_rlperf.report.wording import blame_text, fitness_lines, message, verdict_message
from pytest_rlperf.units import counted, round_significant

SCHEMA = 1
_LONGEST_REASON = 200  # characters of a verdict that is to be short


def run_document(
    machine: Machine,
    outcomes: Mapping[str, Outcome],
    origins: Sequence[str],
    notes: Sequence[str],
    *,
    provenance: Provenance | None = None,
    failed: Iterable[str] = (),
    unmeasured: Iterable[str] = (),
    strict: bool = False,
    against: str | None = None,
    shard: Shard | None = None,
    parts: Sequence[Part] = (),
) -> dict[str, Any]:
    """Return a measured run: each test's result, what it was compared with, and its verdict.

    ``provenance`` is of the code that was measured. The others are as in :class:`RunFile`.
    """
    return {
        "schema": SCHEMA,
        "kind": "run",
        "machine": asdict(machine),
        "provenance": None if provenance is None else asdict(provenance),
        "failed": sorted(failed),
        "unmeasured": sorted(unmeasured),
        "strict": strict,
        "against": against,
        "shard": None if shard is None else asdict(shard),
        "parts": [asdict(part) for part in parts],
        "compared": list(origins),
        "notes": list(notes),
        "tests": {key: _outcome(outcome) for key, outcome in outcomes.items()},
    }


def document_of(run: RunFile) -> dict[str, Any]:
    """Return the document of a run that was read, or merged of such."""
    return run_document(
        run.machine,
        run.tests,
        run.compared,
        run.notes,
        provenance=run.provenance,
        failed=run.failed,
        unmeasured=run.unmeasured,
        strict=run.strict,
        against=run.against,
        shard=run.shard,
        parts=run.parts,
    )


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


def short_verdicts(run: RunFile, keys: Iterable[str]) -> str:
    """Return the verdicts of tests as a JSON list of a line each, short enough to paste: under 1 kB for usual names."""
    machines = run.machines()
    found = (_short_verdict(run, key, machines[key]) for key in keys)
    lines = [json.dumps(_plain(each), ensure_ascii=False, allow_nan=False) for each in found]
    return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"


def _short_verdict(run: RunFile, key: str, machine: Machine) -> dict[str, Any]:
    """Return a verdict's figures: times in seconds a call, the change as a ratio with its interval."""
    outcome = run.tests[key]
    estimate, live, commit = outcome.verdict.estimate, outcome.live, run.provenance and run.provenance.commit
    reason, *_ = message(outcome).splitlines() or [""]
    return {
        "test": key,
        "status": outcome.verdict.status,
        "fails": outcome.verdict.fails(run.strict),
        "reason": reason[:_LONGEST_REASON],
        "ratio": None if estimate is None else _rounded(estimate.ratio),
        "interval": None if estimate is None else [_rounded(estimate.low), _rounded(estimate.high)],
        "confidence": None if estimate is None else estimate.confidence,
        "call_s": _rounded(outcome.result.call_s) if outcome.result.measured else None,
        "base_call_s": _rounded(outcome.before.call_s) if outcome.before and outcome.before.measured else None,
        "pairs": None if live is None else len(live.pairs),
        "phases": [] if live is None else [part.path for part in live.carriers],
        "commit": commit,
        "base": None if live is None else live.base_label,
        "machine": describe(machine),
    }


def _rounded(value: float) -> float:
    return round_significant(value) if math.isfinite(value) else value


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

    def machines(self) -> dict[str, Machine]:
        """Return the machine class that measured each test: of a merged run that of the test's part."""
        merged = {key: part.machine for part in self.parts for key in part.tests}
        return {key: merged.get(key, self.machine) for key in self.tests}

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


_KINDS: dict[object, type[RunFile | SelfcheckFile]] = {"run": RunFile, "selfcheck": SelfcheckFile}
_WITH_LINES = (".message", ".notes")  # places of texts that may have several lines; names have one
_CONFIDENCES = (0.5, 0.999999)  # of an interval whose standard error can be found
_LARGEST = 1e18  # of a count or a figure; a later sum or conversion cannot fail
_EXPECTED: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def decoded(data: bytes) -> Any:
    """Return what JSON holds; ReadingError where it is none, is nested too deep, or has numbers that are not finite."""
    try:
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ReadingError(f"not JSON: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def read_document(document: object) -> RunFile | SelfcheckFile:
    """Return a run or a self-check from its JSON, which may be anybody's; ReadingError names the first fault.

    Control characters in names and texts are written out, so that they can do a terminal no harm.
    """
    whole = _mapping(document, "$")
    check_version(whole, SCHEMA)
    kind = whole.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ReadingError(f"$.kind is {_shown(kind)}, expected {' or '.join(map(repr, _KINDS))}")
    recorded: RunFile | SelfcheckFile = convert(whole, _KINDS[kind], "$")
    for place, result in _results(recorded):
        for fault in impossible_figures(result):
            raise ReadingError(f"{place}.{fault}")
    for place, ratio in _log_ratios(recorded):
        if not abs(ratio) <= LARGEST_LOG:
            raise ReadingError(f"{place} is {ratio}, expected the logarithm of a ratio")
    for place, estimate in _estimates(recorded):
        for fault in _impossible_bounds(estimate):
            raise ReadingError(f"{place}.{fault}")
    return recorded


def check_version(document: dict[str, Any], newest: int) -> None:
    """Refuse a document without a schema version, or of one that this code does not read."""
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ReadingError(f"$.schema is {_shown(schema)}, expected a whole number")
    if schema > newest:
        raise NewerError(
            f"has schema version {_shown(schema)}, this pytest-rlperf reads up to {newest}: upgrade pytest-rlperf"
        )
    if schema < 1:
        raise ReadingError(f"$.schema is {_shown(schema)}, the first was 1")


def convert(value: Any, type_: Any, place: str) -> Any:
    """Return a JSON value as ``type_``: a dataclass, an enum, a container of these, or a plain value.

    ReadingError, which begins with the ``place``, where it is none.
    """
    origin, parts = get_origin(type_), get_args(type_)
    if type_ is Reason:
        return convert(value, FullReason, place)
    if origin in (Union, UnionType):
        (whole,) = (part for part in parts if part is not NoneType)
        return None if value is None else convert(value, whole, place)
    if origin is dict:
        return {
            shown(key): convert(part, parts[1], f"{place}[{_shown(key)}]")
            for key, part in _mapping(value, place).items()
        }
    if origin is tuple:
        return _convert_tuple(value, parts, place)
    if is_dataclass(type_):
        return _convert_record(value, type_, place)
    if issubclass(type_, enum.Enum):
        try:
            return type_(value)
        except ValueError:
            known = ", ".join(str(one.value) for one in type_)
            raise ReadingError(f"{place} is {_shown(value)}, expected one of {known}") from None
    return _convert_plain(value, type_, place)


def _convert_tuple(value: Any, parts: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ReadingError(f"{place} is {_shown(value)}, expected a list")
    types = [parts[0]] * len(value) if parts[1:] == (...,) else list(parts)
    if len(types) != len(value):
        raise ReadingError(f"{place} has {len(value)} entries, expected {len(types)}")
    return tuple(
        convert(part, type_, f"{place}[{index}]") for index, (part, type_) in enumerate(zip(value, types, strict=True))
    )


def _convert_record(value: Any, type_: Any, place: str) -> Any:
    known, hints = _mapping(value, place), _hints(type_)
    values = {}
    for field in fields(type_):
        if field.name in known:
            values[field.name] = convert(known[field.name], hints[field.name], f"{place}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ReadingError(f"{place}.{field.name} is missing")
    return type_(**values)


@cache
def _hints(type_: type) -> dict[str, Any]:
    return get_type_hints(type_)


def _convert_plain(value: Any, type_: type, place: str) -> Any:
    """Return a text, a truth value or a number; null is a figure that was not finite."""
    if type_ is str and isinstance(value, str):
        # A lone surrogate is JSON, and no UTF-8.
        text = value.encode("utf-8", "replace").decode("utf-8")
        has_lines = any(where in place[-40:] for where in _WITH_LINES)
        return (shown_lines(text) if has_lines else shown(text)) if text else text
    if type_ is bool and isinstance(value, bool):
        return value
    if type_ is float and value is None:
        return math.inf
    is_number = isinstance(value, (int, float) if type_ is float else int) and not isinstance(value, bool)
    if type_ in (int, float) and is_number:
        if not abs(value) <= _LARGEST:
            raise ReadingError(f"{place} is {_shown(value)}, expected a number up to {_LARGEST:g}")
        return type_(value)
    raise ReadingError(f"{place} is {_shown(value)}, expected {_EXPECTED[type_]}")


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ReadingError(f"{place} is {_shown(value)}, expected an object")
    return value


def _results(recorded: RunFile | SelfcheckFile) -> Iterator[tuple[str, Result]]:
    """Yield every result, with its place in the file."""
    for key, test in recorded.tests.items():
        place = f"$.tests[{_shown(key)}]"
        yield f"{place}.result", test.result
        if isinstance(test, Outcome) and test.baseline is not None:
            yield f"{place}.baseline.result", test.baseline.result
        if isinstance(test, Outcome) and test.live is not None:
            yield f"{place}.live.base", test.live.base


def _log_ratios(recorded: RunFile | SelfcheckFile) -> Iterator[tuple[str, float]]:
    """Yield the log-ratios of every pair, with their places in the file."""
    for key, test in recorded.tests.items():
        if isinstance(test, Outcome) and test.live is not None:
            for index, pair in enumerate(test.live.pairs):
                place = f"$.tests[{_shown(key)}].live.pairs[{index}]"
                yield f"{place}.wall_log_ratio", pair.wall_log_ratio
                yield f"{place}.cpu_log_ratio", pair.cpu_log_ratio


def _estimates(recorded: RunFile | SelfcheckFile) -> Iterator[tuple[str, Estimate]]:
    """Yield the estimates of every verdict, with their places in the file."""
    for key, test in recorded.tests.items():
        verdicts = {"verdict": test.verdict} if isinstance(test, Outcome) else {}
        if isinstance(test, Selfcheck):
            verdicts = {f"trials[{index}].verdict": trial.verdict for index, trial in enumerate(test.trials)}
        for name, verdict in verdicts.items():
            if verdict.estimate is not None:
                yield f"$.tests[{_shown(key)}].{name}.estimate", verdict.estimate


def _impossible_bounds(estimate: Estimate) -> Iterator[str]:
    """Yield what no estimate can have, by its field: later arithmetic takes logarithms and divides."""
    low, ratio, high = estimate.low, estimate.ratio, estimate.high
    if not 0 < ratio < math.inf:
        yield f"ratio is {ratio}, expected a positive number"
    if not 0 < low <= ratio:
        yield f"low is {low}, expected a positive number up to the ratio"
    if not ratio <= high:  # which may be infinite
        yield f"high is {high}, expected a number from the ratio on"
    least, most = _CONFIDENCES
    if not least <= estimate.confidence <= most:
        yield f"confidence is {estimate.confidence}, expected a number from {least} to {most}"


def _shown(value: object) -> str:
    """Return a value for a message: cut, in ASCII and in one line."""
    if isinstance(value, (str, int, float, type(None))):
        text = ascii(value) if not isinstance(value, int) or abs(value) < _LARGEST else "a very large number"
        return text if len(text) <= 100 else f"{text[:100]}..."
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else type(value).__name__
