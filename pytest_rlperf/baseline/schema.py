"""The format of a baseline's file: JSON with a line a worker and a phase, without the values that reading fills in.

Every version is read, the last one is written.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, TypeVar

import msgspec

from pytest_rlperf.model.measured import impossible_figures, out_of_range
from pytest_rlperf.model.stored import LARGEST_LOG, Baseline, Machine, Provenance, SessionFigures, StoredResult
from pytest_rlperf.units import round_significant

# 1: the first. 2: one line a worker and a phase, defaults left out; earlier sessions' figures and pairs' spread kept.
SCHEMA = 2

# The values that a reader fills in where they are not written.
_ENTRY: dict[str, Any] = {"accepted": None, "first": None, "history": [], "links": [], "pairs": None}
_RESULT: dict[str, Any] = {"counting": None, "notes": [], "phases": [], "shares": [], "start": "fresh"}
_WORKER: dict[str, Any] = {
    "alone": False,
    "collections": 0,
    "device": None,
    "idle_cpu_share": 0.0,
    "long": False,
    "seed": 0,
    "threads": 1,
}
_PHASE: dict[str, Any] = {"count": 1.0, "device": "host", "on_device": None}
_COUNTING: dict[str, Any] = {"notes": []}
_COUNTS: dict[str, Any] = {"exact": {}, "inexact": {}}
_SESSION: dict[str, Any] = {"clock": "wall", "same_code": True, "workers": 5}
_LINK: dict[str, Any] = {"packages": []}
_MACHINE: dict[str, Any] = {"accelerators": []}

_EXACT = {str, int, bool, NoneType}  # values that are stored as they are
_OPEN_DEPTH = 2  # objects down to here have a line a member, and below it those of these names
_OPEN_NAMES = {"counting", "packages", "result"}
_T = TypeVar("_T")
_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class FormatError(Exception):
    """A document is no baseline; the text names the first fault."""


class NewerFormatError(FormatError):
    """A baseline is of a later version."""


# ----------------------------------------------------------------------- writing


def encode(baseline: Baseline) -> bytes:
    """Return a baseline as a file holds it, figures to five digits. UnicodeEncodeError where a text is no UTF-8."""
    machine = _without(_rounded(msgspec.to_builtins(baseline.machine)), _MACHINE)
    sessions = _rounded(msgspec.to_builtins(baseline.sessions))
    with uncollected():
        results = list(_results(baseline.results))  # as it is joined once: a large file has its text in memory twice
        beginning = f'{{\n "machine": {_lines(machine, "machine", 1)},\n "results": '
        end = f',\n "schema": {SCHEMA},\n "sessions": {_lines(sessions, "sessions", 1)}\n}}\n'
        return b"".join([beginning.encode(), *results, end.encode()])


def _results(results: Mapping[str, StoredResult]) -> Iterator[bytes]:
    """Yield the JSON of all entries, made one at a time: as plain data all of them take ten times their text."""
    yield b"{"
    for number, key in enumerate(sorted(results)):
        opening = ",\n" if number else "\n"
        yield f"{opening}  {_line(key)}: {_lines(_lean_entry(key, results[key]), key, 2)}".encode()
    yield b"\n }" if results else b"}"


def _rounded(value: Any) -> Any:
    """Return plain data with every figure in it at the precision that is stored."""
    kind = type(value)
    if kind is float:
        return round_significant(value)
    if kind is dict:
        return {name: part if type(part) in _EXACT else _rounded(part) for name, part in value.items()}
    return [part if type(part) in _EXACT else _rounded(part) for part in value]


def _lean_entry(key: str, stored: StoredResult) -> dict[str, Any]:
    entry = msgspec.to_builtins(stored)
    result, past, links = (entry.pop(name) for name in ("result", "history", "links"))
    workers, counting = result.pop("workers"), result.pop("counting")
    lean = _without(_rounded(result), _RESULT)
    if result["nodeid"] == key:
        del lean["nodeid"]
    if result["phases"]:
        lean["phases"] = [_without(phase, _PHASE) for phase in lean["phases"]]
    lean["workers"] = [_lean_worker(worker, lean["items"]) for worker in workers]
    if counting is not None:  # whole numbers
        counting |= {"notes": list(counting["notes"]), "phases": [_lean_counts(phase) for phase in counting["phases"]]}
        lean["counting"] = _without(counting, _COUNTING)
    # All but the last ones come from a file, which has them rounded.
    history = [_without(session, _SESSION) for session in (*past[:-2], *map(_rounded, past[-2:]))]
    links = [*links[:-1], *map(_rounded, links[-1:])]
    links = [_without(link | {"packages": list(link["packages"])}, _LINK) for link in links]
    return _without(_rounded(entry) | {"history": history, "links": links}, _ENTRY) | {"result": lean}


def _lean_worker(worker: dict[str, Any], items: float) -> dict[str, Any]:
    if worker["cpu"] == worker["wall"]:
        del worker["cpu"]
    lean: dict[str, Any] = _rounded(_without(worker, _WORKER))
    if lean.get("cpu") == lean["wall"]:
        del lean["cpu"]
    if lean["items_per_call"] == items:
        del lean["items_per_call"]
    return lean


def _lean_counts(phase: dict[str, Any]) -> dict[str, Any]:
    """Return a phase's counts with the names alone of those that are zero: what was counted must stay known."""
    exact = {name: count for name, count in phase["exact"].items() if count}
    zero = sorted(phase["exact"].keys() - exact)
    return _without(phase | {"exact": exact}, _COUNTS) | ({"zero": zero} if zero else {})


def _without(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def _lines(value: Any, name: str = "", depth: int = 0) -> str:
    """Return JSON with sorted keys: a line a member of the outer objects, a line an object in a list."""
    indent = " " * (depth + 1)
    if isinstance(value, dict) and value and (depth <= _OPEN_DEPTH or name in _OPEN_NAMES):
        parts = [f"{indent}{_name(key)}: {_lines(value[key], key, depth + 1)}" for key in sorted(value)]
        opening, closing = "{}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        parts = [f"{indent}{part}" for part in _objects(value)]
        opening, closing = "[]"
    else:
        return _line(value)
    return "\n".join([opening, ",\n".join(parts), f"{' ' * depth}{closing}"])


def _objects(values: list[dict[str, Any]]) -> list[str]:
    """Return the JSON of each of a list of objects."""
    parts = _line(values)[2:-2].split("}, {")
    if len(parts) == len(values):  # no text or inner list has these characters
        return [f"{{{part}}}" for part in parts]
    return [_line(value) for value in values]


def _line(value: Any) -> str:
    encoded = msgspec.json.encode(value, order="sorted")
    return (msgspec.json.format(encoded, indent=0) if isinstance(value, (dict, list)) else encoded).decode()


_name = functools.lru_cache(maxsize=1000)(_line)  # of a member


# ----------------------------------------------------------------------- reading


def decode(raw: bytes) -> Baseline:
    """Return the baseline that a file holds, of any version; FormatError where it holds none."""
    try:
        with uncollected():
            _check_version(_part(raw, _Versioned, "$").schema)
            file = _part(raw, _File, "$")
            baseline = Baseline(
                schema=file.schema,
                machine=_part(file.machine, Machine, "$.machine"),
                sessions=_part(file.sessions, dict[str, Provenance], "$.sessions"),
                # One at a time: all of them as plain data take ten times their text.
                results={key: _entry(key, entry) for key, entry in file.results.items()},
            )
    except RecursionError:
        raise FormatError("it is nested too deep") from None
    fault = senseless(baseline)
    if fault is not None:
        raise FormatError(fault)
    return baseline


def _entry(key: str, raw: msgspec.Raw) -> StoredResult:
    place = f"$.results[{key!r}]"
    return _part(_full_entry(key, _part(raw, Any, place)), StoredResult, place)


def _part(data: Any, type_: type[_T], place: str) -> _T:
    """Return a part of a file, from its JSON or as plain data, as ``type_``; FormatError where it is none."""
    try:
        if isinstance(data, (bytes, msgspec.Raw)):
            return msgspec.json.decode(data, type=type_)
        return msgspec.convert(data, type_)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text, at, path = str(error).rpartition(" - at `$")
        raise FormatError(f"{text} - at `{place}{path}" if at else f"{error} - at `{place}`") from None


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Put off the search for cycles: JSON has none, and it takes more than half of the time of a large file."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _check_version(version: int) -> None:
    """Raise NewerFormatError or FormatError for a version that is not known here."""
    if version < 1:
        raise FormatError(f"$.schema is {version}, the first was 1")
    if version > SCHEMA:
        raise NewerFormatError(f"has schema version {version}, this pytest-rlperf reads up to {SCHEMA}")


class _Versioned(msgspec.Struct):
    """Reads the version alone, whatever the rest looks like."""

    schema: int


class _File(msgspec.Struct):
    """Reads the parts of a file, each of which is read by itself."""

    schema: int
    machine: msgspec.Raw
    sessions: msgspec.Raw
    results: dict[str, msgspec.Raw]


def expanded(document: Any) -> Any:
    """Return a baseline's document with all that its file leaves out; parts of another shape stay as they are."""
    if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
        return document
    return {
        **document,
        "results": {key: _full_entry(key, entry) for key, entry in document["results"].items()},
    }


def _full_entry(key: str, entry: Any) -> Any:
    result = entry.get("result") if isinstance(entry, dict) else None
    if not isinstance(result, dict):
        return entry
    full = {**_RESULT, "nodeid": key, **result}
    items = full.get("items")
    full["workers"] = _each(full.get("workers"), lambda worker: _full_worker(worker, items))
    full["phases"] = _each(full["phases"], lambda phase: {**_PHASE, **phase})
    counting = full["counting"]
    if isinstance(counting, dict):
        full["counting"] = {**_COUNTING, **counting, "phases": _each(counting.get("phases"), _full_counts)}
    whole = {**_ENTRY, **entry, "result": full}
    return whole | {
        "history": _each(whole["history"], lambda session: {**_SESSION, **session}),
        "links": _each(whole["links"], lambda link: {**_LINK, **link}),
    }


def _each(parts: Any, fill: Any) -> Any:
    """Return the list of parts, filled in where they are objects."""
    return [fill(part) if isinstance(part, dict) else part for part in parts] if isinstance(parts, list) else parts


def _full_worker(worker: dict[str, Any], items: Any) -> dict[str, Any]:
    full = {**_WORKER, "items_per_call": items, **worker}
    if "wall" in full:
        full.setdefault("cpu", full["wall"])
    return full


def _full_counts(phase: dict[str, Any]) -> dict[str, Any]:
    full = {**_COUNTS, **phase}
    zero = full.pop("zero", [])
    if not (isinstance(zero, list) and all(isinstance(name, str) for name in zero)):
        return full | {"exact": zero}  # which is refused by its place
    if zero and isinstance(full["exact"], dict):
        full["exact"] = {**dict.fromkeys(zero, 0), **full["exact"]}
    return full


def senseless(baseline: Baseline) -> str | None:
    """Return the first thing that no run can have stored, by its place."""
    for name, session in baseline.sessions.items():
        for field, sha in (("commit", session.commit), ("tree", session.tree)):
            if not is_sha(sha):
                return f"$.sessions[{name!r}].{field} is {sha!r}, expected a full hexadecimal SHA"
    for key, stored in baseline.results.items():
        place = f"$.results[{key!r}]"
        if stored.session not in baseline.sessions:
            return f"{place}.session is {stored.session!r}, which is not in $.sessions"
        if not stored.result.workers:
            return f"{place}.result.workers is empty"
        for fault in impossible_figures(stored.result, stored=True):
            return f"{place}.result.{fault}"
        for fault in _impossible_past(stored):
            return f"{place}.{fault}"
    return None


def is_sha(text: str | None) -> bool:
    """Whether a text is None or a full SHA; anything else could be an option to git."""
    return text is None or _FULL_SHA.fullmatch(text) is not None


def _impossible_past(stored: StoredResult) -> Iterator[str]:
    """Yield what no run can have stored of earlier sessions and of pairs, by its place below the entry."""
    first, pairs = stored.first, stored.pairs
    clocks: dict[str, str] = {}
    positive: dict[str, float] = {}
    least_zero: dict[str, float] = {}
    if first is not None:
        if not is_sha(first.commit):
            yield f"first.commit is {first.commit!r}, expected a full hexadecimal SHA"
        if not first.relative:
            yield "first.relative is empty"
        clocks["first.clock"] = first.clock
        positive |= {f"first.relative[{index}]": value for index, value in enumerate(first.relative)}
    for index, session in enumerate(stored.history):
        if _is_possible(session):
            continue
        place = f"history[{index}]"
        clocks[f"{place}.clock"] = session.clock
        positive |= {
            f"{place}.workers": session.workers,
            f"{place}.relative": session.relative,
            f"{place}.relative_memory": session.relative_memory,
        }
        least_zero |= {f"{place}.squares": session.squares, f"{place}.squares_memory": session.squares_memory}
    for index, link in enumerate(stored.links):
        for name, sha in (("base", link.base), ("head", link.head)):
            if not is_sha(sha):
                yield f"links[{index}].{name} is {sha!r}, expected a full hexadecimal SHA"
        if not abs(link.log_ratio) <= LARGEST_LOG:
            yield f"links[{index}].log_ratio is {link.log_ratio}, expected the logarithm of a ratio"
        if not 0 <= link.error <= LARGEST_LOG:
            yield f"links[{index}].error is {link.error}, expected the standard error of a ratio's logarithm"
    if pairs is not None:
        positive["pairs.freedom"] = pairs.freedom
        least_zero["pairs.squares"] = pairs.squares
    for place, clock in clocks.items():
        if clock not in ("cpu", "wall"):
            yield f"{place} is {clock!r}, expected cpu or wall"
    yield from out_of_range(positive, least_zero)


def _is_possible(session: SessionFigures) -> bool:
    """Whether a session's figures can have been stored; those of thousands are read at once."""
    return (
        session.clock in ("cpu", "wall")
        and session.workers > 0
        and 0 < session.relative < math.inf
        and 0 < session.relative_memory < math.inf
        and 0 <= session.squares < math.inf
        and 0 <= session.squares_memory < math.inf
    )
