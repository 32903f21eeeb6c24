"""Untrusted bytes read as checked values, each of which knows its place in the document; and the trees made of them."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from pytest_rlperf.model.timing import Mode, Timing

LARGEST = 2**63 - 1  # of a count or a number of nanoseconds: 292 years
LARGEST_FILE = 2**29  # bytes, also once unpacked; a few bytes of gzip can hold terabytes
_SAVE_AGAIN = "save it again with the tool that wrote it"
_CUT_OFF = "it was cut off, or is still being written: save it again"
_LONGEST_SHOWN = 200
_JSON = re.compile(r"\s*(?:\{\s*(?:[\"}]|\Z)|\[\s*(?:[\[{\]\"]|\Z))")
_CUT_WORD = re.compile(r"[\w.+-]{0,9}")  # what is left of a number, a null or an escape
T = TypeVar("T")


class Malformed(Exception):  # noqa: N818 - a finding about a document, turned into TimerFileError where its file is known
    """A fault in a document, with its place; ``way_out`` is the text of what to do."""

    def __init__(self, finding: str, way_out: str = _SAVE_AGAIN) -> None:
        super().__init__(finding)
        self.way_out = way_out


Whole = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A count, or a number of nanoseconds."""


def converted(value: object, kind: type[T], place: str = "") -> T:
    """Return the JSON value found at ``place`` as one of a class; Malformed where it is none."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise Malformed(f"{place}{': ' if place else ''}{shown(str(error))}") from None


@dataclass(frozen=True)
class Document:
    """A file's content: its text, and its values where it is JSON."""

    text: str
    value: Any = None

    @property
    def top(self) -> dict[str, Any]:
        """The members of the outermost object, none where there is no such thing."""
        return self.value if isinstance(self.value, dict) else {}


def opened(data: bytes) -> Document:
    """Return the content of ``data``, unpacked, decoded, and parsed where it is JSON; Malformed where that fails."""
    text = _decoded(_unpacked(data))
    if not text.strip():
        raise Malformed("it is empty", _CUT_OFF)
    return Document(text, _parsed(text) if is_like_json(text) else None)


def is_like_json(text: str) -> bool:
    """Whether a text begins as JSON does; a log line may begin with a bracket too: [2024-01-01 10:00:00,123][00123]."""
    return _JSON.match(text) is not None


def _unpacked(data: bytes) -> bytes:
    """Return what gzip has packed, or data that it has not; Malformed where that is too much."""
    if not data.startswith(b"\x1f\x8b"):
        return _limited(data)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(LARGEST_FILE + 1)
    except EOFError:
        raise Malformed("the gzip data end early", _CUT_OFF) from None
    except (OSError, zlib.error) as error:
        raise Malformed(f"the gzip data are damaged: {error}") from None
    return _limited(unpacked)


def _limited(data: bytes) -> bytes:
    if len(data) > LARGEST_FILE:
        raise Malformed(f"it is larger than {LARGEST_FILE} bytes", "keep a shorter part of the run")
    return data


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Malformed(f"line {line}: byte {error.start} is not UTF-8: {error.reason}") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip()
        ended = error.msg.startswith("Unterminated") or (error.msg != "Extra data" and _CUT_WORD.fullmatch(rest))
        where = f"line {error.lineno}, column {error.colno}"
        finding = "the JSON ends early" if ended else f"this is not JSON: {error.msg}"
        raise Malformed(f"{where}: {finding}", _CUT_OFF if ended else _SAVE_AGAIN) from None
    except ValueError:
        raise Malformed("it holds a number of thousands of digits") from None


def shown(text: str) -> str:
    """Return text of a file as a message shows it: short, and harmless to a terminal."""
    harmless = ascii(text)[1:-1]
    return harmless if len(harmless) <= _LONGEST_SHOWN else f"{harmless[:_LONGEST_SHOWN]}…"


# --------------------------------------------------------------------------- trees under construction
# Walks through finished ones, and trees as bars.

# Python's stack holds about a thousand calls; callers may walk a tree recursively.
DEEPEST = 500


@dataclass
class Draft:
    """A timing that still grows."""

    name: str
    count: int = 0
    total_ns: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    last_ns: int | None = None
    mode: Mode = Mode.SUM
    recent_ns: tuple[int, ...] = ()
    is_parallel: bool = False
    children: list[Draft] = field(default_factory=list)
    _by_name: dict[str, Draft] = field(default_factory=dict)

    def child(self, name: str) -> Draft:
        """Return the one child called ``name``, made where there is none."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = Draft(name)
            self.children.append(known)
        return known

    def frozen(self) -> Timing:
        """Return this timing and everything below it, as of now."""
        order = [self]
        for draft in order:
            order.extend(draft.children)
        done: dict[int, Timing] = {}
        for draft in reversed(order):
            done[id(draft)] = Timing(
                draft.name,
                draft.count,
                draft.total_ns,
                draft.min_ns,
                draft.max_ns,
                draft.last_ns,
                tuple(done.pop(id(child)) for child in draft.children),
                draft.mode,
                draft.recent_ns,
                draft.is_parallel,
            )
        return done[id(self)]


def check_depth(depth: int, place: str) -> None:
    """Raise Malformed where ``depth`` is more than DEEPEST."""
    if depth > DEEPEST:
        raise Malformed(f"{place}: the tree is nested more than {DEEPEST} deep", "keep fewer levels")


def planted(rows: Iterable[tuple[int, Draft]]) -> Timing:
    """Return the tree of drafts given parents first, each with its depth; Malformed where these make no one tree."""
    above: list[Draft] = []
    root: Draft | None = None
    for number, (depth, draft) in enumerate(rows):
        place = f"timing {number}"
        if (depth == 0) != (root is None) or depth > len(above):
            raise Malformed(f"{place}: a depth of {depth} does not follow one of {len(above) - 1}")
        check_depth(depth, place)
        del above[depth:]
        if above:
            above[-1].children.append(draft)
        root = root or draft
        above.append(draft)
    assert root is not None
    return root.frozen()


def levels(root: Timing) -> Iterator[tuple[int, Timing]]:
    """Yield a timing and all below it with their depths, parents first."""
    waiting = [(0, root)]
    while waiting:
        depth, timing = waiting.pop()
        yield depth, timing
        waiting.extend((depth + 1, child) for child in reversed(timing.children))


# --------------------------------------------------------------------------- a tree as bars on a time line


@dataclass
class Bar:
    """One path of a tree; it is as long as its total or as its children together, whichever is longer."""

    timing: Timing
    depth: int
    above: int | None
    length_ns: int
    start_ns: int = 0
    track: int = 0


def laid_out(root: Timing) -> list[Bar]:
    """Return a bar for every path, parents first, children one after the other from their parent's start on.

    Bars of one track nest. A parallel path begins with its parent, on a track of its own; tracks count from 0.
    """
    bars: list[Bar] = []
    open_: list[int] = []
    for depth, timing in levels(root):
        del open_[depth:]
        bars.append(Bar(timing, depth, open_[-1] if open_ else None, 0))
        open_.append(len(bars) - 1)
    _stretch(bars)
    _place(bars)
    return bars


def _stretch(bars: list[Bar]) -> None:
    """Give every bar its length, the last and deepest first."""
    for bar in reversed(bars):
        bar.length_ns = max(bar.timing.total_ns, bar.length_ns)
        if bar.above is not None and not bar.timing.is_parallel:
            bars[bar.above].length_ns += bar.length_ns


def _place(bars: list[Bar]) -> None:
    """Give every bar its start and its track, parents first."""
    ends_ns: list[int] = []  # where the next child of each bar begins
    tracks = 0
    for bar in bars:
        if bar.above is not None and bar.timing.is_parallel:
            tracks += 1
            bar.start_ns, bar.track = bars[bar.above].start_ns, tracks
        elif bar.above is not None:
            bar.start_ns, bar.track = ends_ns[bar.above], bars[bar.above].track
            ends_ns[bar.above] += bar.length_ns
        ends_ns.append(bar.start_ns)
