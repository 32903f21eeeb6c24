"""What a run has written, read back: runs, self-checks and baselines, each told by its content."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from pytest_rlperf.baseline.store import SCHEMA as BASELINE_SCHEMA
from pytest_rlperf.model import (
    Baseline,
    Fitness,
    Machine,
    Outcome,
    Provenance,
    Reason,
    Result,
    Selfcheck,
    WrittenReason,
)
from pytest_rlperf.report.printable import shown, shown_lines
from pytest_rlperf.report.run_json import SCHEMA


class ReadingError(Exception):
    """A file cannot be read as a run or a baseline; the text names the file, the place in it and the way out."""


@dataclass(frozen=True)
class RunFile:
    """A measured run as ``--rlperf-json`` writes it; ``compared`` says with what.

    ``provenance`` is of the code that was measured, None where that was not kept. ``failed`` are the keys of tests that
    failed for whatever reason.
    """

    machine: Machine
    compared: tuple[str, ...]
    notes: tuple[str, ...]
    tests: dict[str, Outcome]
    provenance: Provenance | None = None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class SelfcheckFile:
    """A self-check as ``--rlperf-selfcheck --rlperf-json`` writes it."""

    machine: Machine
    fitness: Fitness
    tests: dict[str, Selfcheck]


Recorded: TypeAlias = RunFile | SelfcheckFile | Baseline

_KINDS: dict[str, tuple[str, int, Any]] = {
    "run": ("a run", SCHEMA, RunFile),
    "selfcheck": ("a self-check", SCHEMA, SelfcheckFile),
    "baseline": ("a baseline", BASELINE_SCHEMA, Baseline),
}
_WITH_LINES = ("message", "notes")  # fields whose texts may have several lines; names have one


def parse(data: bytes, source: str, *, printable: bool = False) -> Recorded:
    """Return what ``data`` holds; ReadingError, which calls it ``source``, where it is no run and no baseline.

    What is ``printable`` can do a terminal no harm: in names and texts control characters are written out.
    """
    kind, version = _kind(data, source)
    title, newest, type_ = _KINDS[kind]
    if version > newest:
        raise ReadingError(
            f"{source} is {title} of schema version {version}, this pytest-rlperf reads up to {newest}: "
            "upgrade pytest-rlperf"
        )
    if version < 1:
        raise ReadingError(f"{source} is not {title}: $.schema is {version}, the first was 1; write it anew")
    try:
        if printable:
            recorded: Recorded = msgspec.convert(_printable(msgspec.json.decode(data)), type_, dec_hook=_decoded)
        else:
            recorded = msgspec.json.decode(data, type=type_, dec_hook=_decoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReadingError(f"{source} is not {title}: {error}; write it anew") from None
    for place, result in _results(recorded):
        for finding in _senseless(result):
            raise ReadingError(f"{source} is not {title}: {place}.{finding}; write it anew")
    return recorded


def _decoded(type_: type, value: Any) -> Any:
    """Return a reason as a file has it: its code and the text to show."""
    if type_ is Reason:
        return msgspec.convert(value, WrittenReason)
    raise NotImplementedError(type_)


class _Head(msgspec.Struct):
    """What tells one kind of file from another, whatever the rest looks like."""

    schema: int | None = None
    kind: str | None = None
    results: msgspec.Raw = msgspec.Raw()
    machine: msgspec.Raw = msgspec.Raw()


def _kind(data: bytes, source: str) -> tuple[str, int]:
    """Return which kind of file this is, and its schema's version."""
    known = "--rlperf-json writes runs, --rlperf-save-baseline writes baselines; `rlperf tree` shows files of timers"
    if not data.strip():
        raise ReadingError(f"{source} is empty; {known}")
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReadingError(f"{source} is no run and no baseline: {error}; {known}") from None
    kind = head.kind
    if kind is None and bytes(head.results) and bytes(head.machine):
        kind = "baseline"
    if kind not in _KINDS or head.schema is None:
        raise ReadingError(f"{source} is JSON, but no run and no baseline; {known}")
    return kind, head.schema


def _printable(value: Any, *, has_lines: bool = False) -> Any:
    """Return ``value`` with every text's control characters written out, less the ends of lines where it has some."""
    if isinstance(value, str):
        return shown_lines(value) if has_lines or not value else shown(value)
    if isinstance(value, list):
        return [_printable(part, has_lines=has_lines) for part in value]
    if isinstance(value, dict):
        return {shown(name): _printable(part, has_lines=name in _WITH_LINES) for name, part in value.items()}
    return value


def _results(recorded: Recorded) -> Iterator[tuple[str, Result]]:
    """Yield every result, with its place in the file."""
    if isinstance(recorded, Baseline):
        for key, stored in recorded.results.items():
            yield f"$.results[{key!a}].result", stored.result
        return
    for key, test in recorded.tests.items():
        yield f"$.tests[{key!a}].result", test.result
        if isinstance(test, Outcome) and test.baseline is not None:
            yield f"$.tests[{key!a}].baseline.result", test.baseline.result
        if isinstance(test, Outcome) and test.live is not None:
            yield f"$.tests[{key!a}].live.base", test.live.base


def _senseless(result: Result) -> Iterable[str]:
    """Yield the figures that no measurement can have given, and that later arithmetic would stumble over."""
    for index, worker in enumerate(result.workers):
        for clock, figures in (("wall", worker.wall), ("cpu", worker.cpu)):
            if not 0 < figures.call_s < math.inf:
                yield f"workers[{index}].{clock}.call_s is {figures.call_s}, expected a positive number"
    if not 0 <= result.items < math.inf:
        yield f"items is {result.items}, expected no negative number"
