"""Writes a run as JSON, with everything that the reports show, reads it back, and merges its shards into one run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.errors import shown, shown_lines
from pytest_rlperf.model.facts import Fact, InWords
from pytest_rlperf.model.judged import Fitness, Outcome, Selfcheck, Shard, ShardPart, Verdict
from pytest_rlperf.model.notes import Untested
from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.model.reasons import FullReason, Reason
from pytest_rlperf.model.stored import LARGEST_LOG, Machine, Provenance
from pytest_rlperf.report.wording import (
    blame_text,
    finding_line,
    fitness_lines,
    message,
    note_lines,
    shard_failures,
    verdict_message,
)
from pytest_rlperf.units import counted

SCHEMA = 1


def document_of(run: RunFile) -> dict[str, Any]:
    """Return a measured run: each test's result, the figures it was compared with, and its verdict."""
    facts = replace(run, tests={}, failed=tuple(sorted(run.failed)), unmeasured=tuple(sorted(run.unmeasured)))
    tests = {key: _outcome(outcome) for key, outcome in run.tests.items()}
    return {"schema": SCHEMA, "kind": "run", **msgspec.to_builtins(facts), "tests": tests}


def selfcheck_document(machine: Machine, checks: Mapping[str, Selfcheck], fitness: Fitness) -> dict[str, Any]:
    """Return a self-check: each test's trials, and the slowdowns that the machine finds."""
    return {
        "schema": SCHEMA,
        "kind": "selfcheck",
        "machine": msgspec.to_builtins(machine),
        "fitness": msgspec.to_builtins(fitness) | {"reasons": fitness_lines(list(checks.values()), fitness)},
        "tests": {key: _selfcheck(check) for key, check in checks.items()},
    }


def written(document: dict[str, Any]) -> str:
    """Return a document as text that any JSON reader can read."""
    text = json.dumps(_plain(document), ensure_ascii=False, allow_nan=False)
    return msgspec.json.format(text, indent=1) + "\n"  # json's own indentation takes four times as long


def _selfcheck(check: Selfcheck) -> dict[str, Any]:
    document = msgspec.to_builtins(check)
    for trial, written_trial in zip(check.trials, document["trials"], strict=True):
        written_trial["verdict"] = _verdict(written_trial["verdict"], trial.verdict, verdict_message(trial.verdict))
    return {**document, "smallest_found": check.smallest_found}


def _verdict(document: dict[str, Any], verdict: Verdict, message: str) -> dict[str, Any]:
    """Return a verdict's document: all reasons in one text, with the code of the deciding one."""
    return {name: value for name, value in document.items() if name != "also"} | {
        "reason": {"code": verdict.reason.code, "message": message},
        "findings": [{**msgspec.to_builtins(each), "line": finding_line(each.line)} for each in verdict.findings],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(outcome)
    live = outcome.live
    document["verdict"] = _verdict(document["verdict"], outcome.verdict, message(outcome))
    measured, before = outcome.result.measured, outcome.before
    document["call_s"] = outcome.result.call_s if measured else None
    document["mean_call_s"] = outcome.result.mean_call_s if measured else None
    document["base_call_s"] = None if before is None else before.call_s
    document["base_mean_call_s"] = None if before is None else before.mean_call_s
    if live is not None:
        document["live"]["clock"] = live.clock
        document["live"]["output"]["what"] = finding_line(live.output.what)
        document["live"]["blame"] = blame_text(outcome)
        document["live"]["setup_s"] = sum(pair.setup_s for pair in live.pairs)
        document["live"]["measured_s"] = sum(pair.seconds for pair in live.pairs)
    return document


def _plain(value: Any) -> Any:
    """Return ``value`` in a form for JSON; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {_text(str(name)): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """Return ``text`` with lone surrogates, as a file's name may hold, written out: UTF-8 cannot encode them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# --------------------------------------------------------------------------- reading


class ReadingError(ValueError):
    """A file is not as it was written; the text names the first fault and its place."""


class NewerError(ReadingError):
    """A file is of a later version."""


class RunFile(msgspec.Struct, frozen=True):
    """A measured run as ``--rlperf-json`` writes it; ``compared`` names the code or the baselines it was compared with.

    ``provenance`` describes the code that was measured; None if it was not kept. ``failed`` are the keys of tests that
    failed for any reason, and the ids of files that could not be collected. ``unmeasured`` are the keys of other tests
    that ran and have no figures, for example skipped tests. A test that is in none of these did not run, as the run
    ended early. ``strict`` is true if only SAME and FASTER pass. ``against`` is the code that the user compared all
    tests with; None if the baseline names it. ``shard`` is None if all tests were measured. ``parts`` are those of a
    merged run: each has a machine, and ``machine`` is that of the first. ``untested`` are those of the ``changed``
    functions that no test runs. ``tolerances`` are the tests' tolerances by key; 0.03 is 3 %.
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
    parts: tuple[ShardPart, ...] = ()
    changed: int = 0
    untested: tuple[ChangedPart, ...] = ()
    tolerances: dict[str, float] = msgspec.field(default_factory=dict)

    def machine_lines(self) -> list[str]:
        """Return one line per machine class; for a merged run with the number of tests that were measured there."""
        counts = Counter(part.machine for part in self.parts for _ in part.tests)
        lines = [f"{describe(machine)}: {counted(count, 'test')}" for machine, count in counts.items()]
        return lines or [describe(self.machine)]


class SelfcheckFile(msgspec.Struct, frozen=True):
    """A self-check as ``rlperf check-machine --rlperf-json`` writes it."""

    machine: Machine
    fitness: Fitness
    tests: dict[str, Selfcheck]


_WITH_LINES = frozenset({"message", "notes", "was", "now"})  # texts that may have several lines; names have one
_UNBOUNDED = frozenset({"ceiling", "high"})  # may be infinite, which is null in JSON
_LARGEST = 1e18  # of a count or a figure; a later sum or conversion cannot fail
_CONFIDENCES = (0.5, 0.999999)  # of intervals whose standard error can be computed


def decoded(data: bytes) -> Any:
    """Return the value of a JSON text; ReadingError if the text is not JSON, or is nested too deep."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ReadingError(f"not JSON: {error}") from None


def read_document(document: object) -> RunFile | SelfcheckFile:
    """Return a run or a self-check from its JSON, which may be anyone's; ReadingError names the first fault.

    Control characters in names and texts are written out, so that they cannot harm a terminal.
    """
    if not isinstance(document, dict):
        raise ReadingError("$ is no object")
    schema, kind = document.get("schema"), document.get("kind")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ReadingError(f"$.schema is {_shown(schema)}, expected a whole number of at least 1")
    if schema > SCHEMA:
        newer = f"has schema version {_shown(schema)}, this pytest-rlperf reads up to {SCHEMA}: upgrade pytest-rlperf"
        raise NewerError(newer)
    if kind not in ("run", "selfcheck"):
        raise ReadingError(f"$.kind is {_shown(kind)}, expected 'run' or 'selfcheck'")
    try:
        type_: Any = RunFile if kind == "run" else SelfcheckFile
        recorded: RunFile | SelfcheckFile = msgspec.convert(fit_to_show(document), type_, dec_hook=_in_words)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        raise ReadingError(f"${path.removesuffix('`')}: {text}") from None
    except RecursionError:
        raise ReadingError("$ is nested too deep") from None
    for key, tolerance in recorded.tolerances.items() if isinstance(recorded, RunFile) else ():
        if tolerance < 0:
            raise ReadingError(f"$.tolerances[{_shown(key)}] is {tolerance}, expected a number of at least 0")
    for key, test in recorded.tests.items():
        if fault := _fault(test):
            raise ReadingError(f"$.tests[{_shown(key)}]{fault}")
    return recorded


def _in_words(type_: type, value: object) -> Reason | Fact:
    if type_ is Fact:
        return InWords(msgspec.convert(value, str))
    assert type_ is Reason, type_
    return msgspec.convert(value, FullReason)


def fit_to_show(value: Any, name: str = "") -> Any:
    """Return a JSON value whose texts cannot harm a terminal; ``name`` is the name of its member, or of its list's.

    ReadingError if a number is too large.
    """
    if isinstance(value, dict):
        return {shown(key): fit_to_show(part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [fit_to_show(part, name) for part in value]
    if isinstance(value, (int, float)) and not abs(value) <= _LARGEST:
        raise ReadingError(f"$ has a number over {_LARGEST:g}")
    if isinstance(value, str) and value:
        return shown_lines(value) if name in _WITH_LINES else shown(value)
    return math.inf if value is None and name in _UNBOUNDED else value


def _fault(test: Outcome | Selfcheck) -> str:
    """Return an impossible figure, if any: later arithmetic divides by times and raises to log ratios."""
    judged = [test] if isinstance(test, Outcome) else test.trials
    estimates = filter(None, (each.verdict.estimate for each in judged))
    least, most = _CONFIDENCES
    if not all(0 < each.low <= each.ratio <= each.high and least <= each.confidence <= most for each in estimates):
        return ".verdict.estimate is not a positive ratio within its bounds"
    results, pairs = [test.result], test.live.pairs if isinstance(test, Outcome) and test.live is not None else ()
    if isinstance(test, Outcome) and test.before is not None:
        results.append(test.before)
    if isinstance(test, Outcome) and test.baseline is not None:
        results.append(test.baseline.result)
    workers = [worker for result in results for worker in result.workers]
    if any(worker.wall.call_s <= 0 or worker.cpu.call_s <= 0 for worker in workers):
        return " has a call that takes no time"
    ratios = (ratio for pair in pairs for ratio in (pair.wall_log_ratio, pair.cpu_log_ratio))
    return "" if all(abs(ratio) <= LARGEST_LOG for ratio in ratios) else " has a ratio that no pair can have"


def _shown(value: object) -> str:
    """Return a value for a message: cut, in ASCII and in one line."""
    return ascii(value)[:100]


# --------------------------------------------------------------------------- one run of its shards


class MergeError(ValueError):
    """Runs are not the shards of one run; the text names them and the difference."""


def merge_shards(files: Mapping[str, object]) -> RunFile:
    """Return the run whose shards these are, by the names of their files; MergeError if they are not all of one run.

    Nothing is judged again. The tests are in the order of the collection. A test that its shard did not reach has
    failed.
    """
    runs: dict[int, RunFile] = {}
    shard: Shard | None = None
    for name, file in files.items():
        run, shard = check_shard(name, file, shard)
        if runs.setdefault(shard.number, run) is not run:
            raise MergeError(f"{name} is {shard.name}, and so is another file: give each shard once")
    assert shard is not None
    missing = next(number for number in range(1, len(runs) + 2) if number not in runs)
    if missing <= shard.count:
        raise MergeError(f"shard {missing} of {shard.count} is missing: give the files of all shards")
    ordered = [runs[number] for number in sorted(runs)]
    tests = {key: outcome for run in ordered for key, outcome in run.tests.items()}
    unmeasured = {key for run in ordered for key in run.unmeasured}
    failed = {key for run in ordered for key in run.failed} | ({*shard.collected} - {*tests, *unmeasured})
    others = sorted(key for key in failed if key not in tests or not tests[key].verdict.fails(run.strict))
    notes = [note for run in ordered for note in run.notes] + ([shard_failures(others)] if others else [])
    changed = max(run.changed for run in ordered)
    untested = tuple(part for part in ordered[0].untested if all(part in run.untested for run in ordered))
    notes += note_lines([Untested(changed, untested, ())] if untested else [], verbose=False)
    return RunFile(
        ordered[0].machine,
        compared=tuple(dict.fromkeys(text for run in ordered for text in run.compared)),
        notes=tuple(dict.fromkeys(notes)),
        tests={key: tests[key] for key in shard.collected if key in tests},
        provenance=max(filter(None, (run.provenance for run in ordered)), key=lambda each: each.dirty, default=None),
        failed=tuple(sorted(failed)),
        unmeasured=tuple(sorted(unmeasured)),
        strict=run.strict,
        against=run.against,
        parts=tuple(ShardPart(run.machine, tuple(run.tests)) for run in ordered),
        changed=changed,
        untested=untested,
        tolerances={key: tolerance for run in ordered for key, tolerance in run.tolerances.items()},
    )


def check_shard(name: str, file: object, other: Shard | None) -> tuple[RunFile, Shard]:
    """Return the run and the shard of a file; MergeError if it has none, or if ``other`` is a shard of another run."""
    if not isinstance(file, RunFile) or file.shard is None or not {*file.tests} <= {*file.shard.tests}:
        raise MergeError(f"{name} is not a shard: merge the files that --rlperf-shard=K/N --rlperf-json=FILE writes")
    for fact, value in ({} if other is None else other.common).items():
        if (own := file.shard.common.get(fact)) != value:
            same = "start all with the same code, tests and options"
            raise MergeError(f"{name} differs from other shards in {fact} ({own}, not {value}): {same}")
    return file, file.shard
