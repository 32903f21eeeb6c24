"""Reads a run's JSON from an artifact that anybody may have made: within limits, and nothing but what is shown."""

from __future__ import annotations

import io
import json
import math
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_rlperf.model import Code, CounterChange, Status
from pytest_rlperf.report.github_findings import Change, Finding
from pytest_rlperf.report.run_json import SCHEMA

ARTIFACT_BYTES = 5 * 1024 * 1024  # of the zip, and of the JSON in it
_MOST_ENTRIES = 20
_MOST_TESTS = 5000
_MOST_LINES = 100  # of notes and origins
_LONGEST = 2000  # characters of one text
_LARGEST_COUNT = 10**18


class ArtifactError(ValueError):
    """An artifact is not what a run writes; the text says what is wrong with it, and what to do."""


@dataclass(frozen=True)
class Document:
    """What is shown of a run's JSON."""

    findings: tuple[Finding, ...]
    compared: tuple[str, ...]
    notes: tuple[str, ...]
    machine: str
    failed: tuple[str, ...]


def unzip(data: bytes) -> bytes:
    """Return the one JSON file in a zip, which is never written to disk; ArtifactError where the zip has any trick."""
    if len(data) > ARTIFACT_BYTES:
        raise ArtifactError(f"the artifact has {len(data)} bytes; a run's is never over {ARTIFACT_BYTES}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _refuse_tricks(entries)
            found = [entry for entry in entries if entry.filename.endswith(".json")]
            if len(found) != 1:
                raise ArtifactError(
                    f"the artifact holds {len(found)} JSON files: upload the file of --rlperf-json alone"
                )
            with archive.open(found[0]) as file:
                # The directory of a zip may lie about sizes: no more is read than is allowed.
                text = file.read(ARTIFACT_BYTES + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ArtifactError(f"the artifact is no zip that can be read: {error}") from None
    if len(text) > ARTIFACT_BYTES:
        raise ArtifactError(f"{found[0].filename!r} has over {ARTIFACT_BYTES} bytes")
    return text


def _refuse_tricks(entries: list[zipfile.ZipInfo]) -> None:
    """Raise ArtifactError for names that lead elsewhere, links, and more or larger entries than a run makes."""
    if len(entries) > _MOST_ENTRIES:
        raise ArtifactError(f"the artifact has {len(entries)} entries; a run's has one")
    for entry in entries:
        parts = entry.filename.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in entry.filename:
            raise ArtifactError(f"the artifact's entry {entry.filename!r} leads out of it")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArtifactError(f"the artifact's entry {entry.filename!r} is a link or a device, not a file")
        if entry.file_size > ARTIFACT_BYTES:
            raise ArtifactError(f"the artifact's entry {entry.filename!r} has {entry.file_size} bytes when unpacked")


def parse(text: bytes) -> Document:
    """Return what is shown of a run's JSON; ArtifactError names the first thing in it that a run does not write."""
    if len(text) > ARTIFACT_BYTES:
        raise ArtifactError(f"the JSON has {len(text)} bytes; a run's is never over {ARTIFACT_BYTES}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the artifact's file is not JSON: {error}") from None
    return read_document(document)


def read_document(document: object) -> Document:
    """Return what is shown of a run's JSON, parsed; ArtifactError names the first thing that a run does not write."""
    run = _mapping(document, "the document")
    schema = run.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ArtifactError(f"schema is {_shown(schema)}, and no number: this is not a file of --rlperf-json")
    if schema > SCHEMA:
        raise ArtifactError(
            f"the run's JSON is of schema {schema}, this pytest-rlperf reads {SCHEMA}: "
            "use the version that measured, or a later one, in the comment workflow too"
        )
    if run.get("kind") != "run":
        raise ArtifactError(f"kind is {_shown(run.get('kind'))}: only a measured run can be shown")
    tests = _mapping(run.get("tests"), "tests")
    if len(tests) > _MOST_TESTS:
        raise ArtifactError(f"the run has {len(tests)} tests; over {_MOST_TESTS} are not shown")
    machine = _mapping(run.get("machine"), "machine")
    names = ("cpu", "system", "arch", "python")
    return Document(
        findings=tuple(_finding(_text(key, "a test's key"), value) for key, value in tests.items()),
        compared=_texts(run.get("compared"), "compared"),
        notes=_texts(run.get("notes"), "notes"),
        failed=_texts(run.get("failed", []), "failed"),
        machine=", ".join(_text(machine.get(name), f"machine.{name}") for name in names),
    )


def _finding(key: str, value: object) -> Finding:
    test = _mapping(value, key)
    verdict = _mapping(test.get("verdict"), f"{key}: verdict")
    reason = _mapping(verdict.get("reason"), f"{key}: reason")
    live = test.get("live")
    try:
        status = Status(verdict.get("status"))
    except ValueError:
        raise ArtifactError(f"{key}: status is {_shown(verdict.get('status'))}, which is no verdict") from None
    gated = _flag(verdict.get("gated"), f"{key}: gated")
    accepted = _flag(verdict.get("accepted"), f"{key}: accepted")
    blame = "" if live is None else _text(_mapping(live, f"{key}: live").get("blame"), f"{key}: blame")
    return Finding(
        key=key,
        status=status,
        gated=gated,
        accepted=accepted,
        fails=status is Status.SLOWER and gated and not accepted,
        by_counts=reason.get("code") == Code.COUNTERS,
        message=_text(reason.get("message"), f"{key}: message"),
        blame=blame,
        change=_change(verdict.get("estimate"), key),
        now_s=_number(test.get("call_s"), f"{key}: call_s"),
        was_s=_number(test.get("base_call_s"), f"{key}: base_call_s"),
        notes=(),
        phases=(),
        phases_note="",
        counters=_counters(verdict.get("counters", []), key),
        since_first=_since_first(test.get("creep"), key),
        has_baseline=test.get("baseline") is not None,
        more={},
    )


def _change(value: object, key: str) -> Change | None:
    if value is None:
        return None
    estimate = _mapping(value, f"{key}: estimate")
    figures = [_number(estimate.get(name), f"{key}: {name}") for name in ("ratio", "low", "high", "confidence")]
    known = [figure for figure in figures if figure is not None]
    return Change(*known) if len(known) == len(figures) else None


def _counters(value: object, key: str) -> tuple[CounterChange, ...]:
    if not isinstance(value, list):
        raise ArtifactError(f"{_cut(key)}: counters is {_shown(value)}, and not a list")
    changes = [_mapping(change, f"{key}: counters") for change in value[:_MOST_LINES]]
    return tuple(
        CounterChange(
            _text(change.get("path"), f"{key}: counters.path"),
            _text(change.get("name"), f"{key}: counters.name"),
            _count(change.get("was"), f"{key}: counters.was"),
            _count(change.get("now"), f"{key}: counters.now"),
        )
        for change in changes
    )


def _since_first(value: object, key: str) -> float | None:
    return None if value is None else _number(_mapping(value, f"{key}: creep").get("ratio"), f"{key}: creep.ratio")


# --------------------------------------------------------------------------- values


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ArtifactError(f"{_cut(where)} is {_shown(value)}, and not an object")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ArtifactError(f"{_cut(where)} is {_shown(value)}, and not a text")
    # A lone surrogate is JSON, and no UTF-8.
    return value[:_LONGEST].encode("utf-8", "replace").decode("utf-8")


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ArtifactError(f"{where} is {_shown(value)}, and not a list")
    return tuple(_text(text, where) for text in value[:_MOST_LINES])


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ArtifactError(f"{_cut(where)} is {_shown(value)}, and neither true nor false")
    return value


def _number(value: object, where: str) -> float | None:
    """Return a positive number, None for null, which also stands for one that JSON has no word for."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1e12 or math.isnan(value):
        raise ArtifactError(f"{_cut(where)} is {_shown(value)}, and not a positive number")
    return float(value)


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_COUNT:
        raise ArtifactError(f"{_cut(where)} is {_shown(value)}, and not a count")
    return value


def _shown(value: object) -> str:
    """Return a value for a message: cut, and with nothing in it but ASCII in one line."""
    return _cut(ascii(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__)


def _cut(text: str) -> str:
    text = ascii(text)[1:-1]
    return text if len(text) <= 100 else f"{text[:100]}..."
