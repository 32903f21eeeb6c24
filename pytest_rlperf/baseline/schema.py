"""The format of a baseline's file: JSON with one line per test, without the values that reading fills in."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, TypeVar

import msgspec

from pytest_rlperf.model.measured import Figures, Phase, PhaseCounts, Result, WorkerRecord
from pytest_rlperf.model.stored import (
    LARGEST_LOG,
    Baseline,
    Link,
    Machine,
    PairSpread,
    Provenance,
    SessionFigures,
    StoredResult,
)
from pytest_rlperf.units import round_significant

SCHEMA = 2  # the version that is written and read

_PLAIN = frozenset({bool, float, int, str, NoneType})  # most values, recognised quickly
_T = TypeVar("_T")
_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class FormatError(Exception):
    """A document is not a baseline; the text names the first fault."""


class NewerFormatError(FormatError):
    """A baseline is of a later version."""


# ----------------------------------------------------------------------- writing


def encode(baseline: Baseline) -> bytes:
    """Return a baseline as a file's content, figures to five digits. UnicodeEncodeError if a text is not UTF-8."""
    results = _lines(baseline.results)  # joined once: a large file has its text in memory twice
    beginning = b'{\n "machine": ' + _line(baseline.machine) + b',\n "results": {\n'
    end = b'\n },\n "schema": %d,\n "sessions": {\n' % SCHEMA
    return b"".join([beginning, *results, end, *_lines(baseline.sessions), b"\n }\n}\n"])


def _lines(parts: Mapping[str, object]) -> Iterator[bytes]:
    """Yield one line per part, made one at a time: as plain data all parts take ten times their text."""
    for number, key in enumerate(sorted(parts)):
        yield b"%s  %s: %s" % (b",\n" if number else b"", _line(key), _line(parts[key]))


def _line(value: object) -> bytes:
    return msgspec.json.encode(_lean(value), order="sorted")


def _lean(value: Any) -> Any:
    """Return plain data without default values, and with every figure at the stored precision."""
    kind = type(value)
    if kind is float:
        return round_significant(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {name: _lean(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_lean(part) for part in value]
    if not issubclass(kind, msgspec.Struct):
        return value
    members = ((name, getattr(value, name), default) for name, default in _defaults(kind).items())
    return {name: _lean(part) for name, part, default in members if part != default}


@functools.cache
def _defaults(kind: type) -> dict[str, Any]:
    """Return a record's members, each with its value if a file leaves it out; NODEFAULT if a file must have it."""
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
    }


# ----------------------------------------------------------------------- reading


def decode(raw: bytes) -> Baseline:
    """Return the baseline in a file's content; FormatError if there is none."""
    try:
        _check_version(_part(raw, _Versioned, "$").schema)
        file = _part(raw, _File, "$")
        baseline = Baseline(
            schema=file.schema,
            machine=_part(file.machine, Machine, "$.machine"),
            sessions=_part(file.sessions, dict[str, Provenance], "$.sessions"),
            # One at a time: all of them as plain data take ten times their text.
            results={key: _part(entry, StoredResult, f"$.results[{key!r}]") for key, entry in file.results.items()},
        )
    except RecursionError:
        raise FormatError("it is nested too deep") from None
    fault = senseless(baseline)
    if fault is not None:
        raise FormatError(fault)
    return baseline


def _part(data: bytes | msgspec.Raw, type_: type[_T], place: str) -> _T:
    """Return a part of a file's JSON as ``type_``; FormatError if it is not of that type."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text, at, path = str(error).rpartition(" - at `$")
        raise FormatError(f"{text} - at `{place}{path}" if at else f"{error} - at `{place}`") from None


def _check_version(version: int) -> None:
    """Raise NewerFormatError or FormatError for an unknown version."""
    if version < SCHEMA:
        raise FormatError(f"$.schema is {version}, but {SCHEMA} is the earliest version that can be read")
    if version > SCHEMA:
        raise NewerFormatError(
            f"has schema version {version}, this pytest-rlperf reads up to {SCHEMA}: upgrade pytest-rlperf"
        )


class _Versioned(msgspec.Struct):
    """Reads only the version, whatever the rest looks like."""

    schema: int


class _File(msgspec.Struct):
    """Reads the parts of a file, which are then decoded one by one."""

    schema: int
    machine: msgspec.Raw
    sessions: msgspec.Raw
    results: dict[str, msgspec.Raw]


# ----------------------------------------------------------------------- values that nothing can have measured


def is_sha(text: str | None) -> bool:
    """Whether a text is None or a full SHA; any other text could be an option to git."""
    return text is None or _FULL_SHA.fullmatch(text) is not None


_Rule = tuple[Callable[[Any], bool], str]
_POSITIVE: _Rule = (lambda value: 0 < value < math.inf, "a positive number")
_NOT_NEGATIVE: _Rule = (lambda value: 0 <= value < math.inf, "a number of at least 0")
_SOME: _Rule = (bool, "at least one")
_NAME: _Rule = (bool, "a name")
_SHA: _Rule = (is_sha, "a full hexadecimal SHA")
_CLOCK: _Rule = (lambda value: value in ("cpu", "wall"), "cpu or wall")
_LOG: _Rule = (lambda value: abs(value) <= LARGEST_LOG, "the logarithm of a ratio")
_LOG_ERROR: _Rule = (lambda value: 0 <= value <= LARGEST_LOG, "the standard error of a ratio's logarithm")
_RANGES: _Rule = (lambda value: all(least <= most for least, most in value.values()), "ranges with the least first")
# Later arithmetic divides by figures and takes their logarithms, and git is given the SHAs.
_RULES: dict[type, dict[str, _Rule]] = {
    Provenance: {"commit": _SHA, "tree": _SHA},
    Result: {"items": _POSITIVE, "workers": _SOME, "traced_call_s": _NOT_NEGATIVE},
    WorkerRecord: {"items_per_call": _POSITIVE},
    Figures: {"call_s": _POSITIVE, "relative": _POSITIVE, "relative_memory": _POSITIVE},
    Phase: {"path": _NAME, "total_s": _NOT_NEGATIVE},  # without a path it would be a part of itself
    PhaseCounts: {"inexact": _RANGES},
    PairSpread: {"squares": _NOT_NEGATIVE, "freedom": _POSITIVE},
    Link: {"base": _SHA, "head": _SHA, "log_ratio": _LOG, "error": _LOG_ERROR},
    SessionFigures: {
        "relative": _POSITIVE,
        "relative_memory": _POSITIVE,
        "squares": _NOT_NEGATIVE,
        "squares_memory": _NOT_NEGATIVE,
        "clock": _CLOCK,
        "workers": _POSITIVE,
    },
}


def senseless(baseline: Baseline) -> str | None:
    """Return the first fault that no run can have stored, with its place."""
    for key, stored in baseline.results.items():
        if stored.session not in baseline.sessions:
            return f"$.results[{key!r}].session is {stored.session!r}, which is not in $.sessions"
    fault = _fault(baseline)
    return None if fault is None else f"${fault}"


def _fault(value: Any) -> str | None:
    """Return the first value that breaks its rule, with its place below ``value``."""
    kind = type(value)
    parts: Iterable[tuple[Any, Any]]
    if kind is dict:
        form, parts = "[{!r}]", value.items()
    elif isinstance(value, tuple):
        form, parts = "[{}]", enumerate(value)
    elif not issubclass(kind, msgspec.Struct):
        return None
    else:
        for name, (holds, expected) in _RULES.get(kind, {}).items():
            if not holds(part := getattr(value, name)):
                return f".{name} is {part!r}, expected {expected}"
        form, parts = ".{}", ((name, getattr(value, name)) for name in _defaults(kind))
    for step, part in parts:
        fault = None if type(part) in _PLAIN else _fault(part)
        if fault is not None:
            return f"{form.format(step)}{fault}"
    return None
