"""Chrome's trace events, which Perfetto and speedscope show and torch's profiler writes.

Reading: complete events (``X``) and pairs of ``B`` and ``E`` make one tree for each thread, nested by time; other
events are skipped. Times are microseconds, read to the nanosecond.

Writing: :func:`write` makes each tree a process, with its children one after the other within their parent and
parallel ones on threads of their own. Such bars show sums, not when something happened; a bar is as long as its
children where they took longer together. ``args`` hold the exact figures, ``otherData`` the gauges, metadata and
workers, so that our own files read back without loss. :func:`write_spans` writes one call's spans, whose bars show
when each one ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_rlperf.model import TimerTree
from pytest_rlperf.model.spans import Span, Trace
from pytest_rlperf.traces.own import (
    NAME,
    VERSION,
    check_version,
    extras,
    figures,
    read_figures,
    read_gauges,
    read_metadata,
)
from pytest_rlperf.traces.reading import Document, Item, Malformed
from pytest_rlperf.traces.trees import Draft, check_depth, laid_out, planted

_US = 1000
# Traces give whole microseconds, or round a beginning and a duration separately.
_SLACK_NS = 1000
_Thread = tuple[str, str]


def recognises(document: Document) -> bool:
    """Whether this is an object of trace events, or a bare list of them."""
    if "traceEvents" in document.top:
        return True
    value = None if document.item is None else document.item.value
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "ph" in value[0]


def read(document: Document) -> list[TimerTree]:
    """Return a tree for each thread, in the order of their first events; ours as they were written."""
    top = document.item
    assert top is not None
    if not document.top:
        return _threads(top)
    other = document.top.get("otherData")
    if isinstance(other, dict) and NAME in other:
        return _ours(top.need("traceEvents"), top.need("otherData").need(NAME))
    return _threads(top.need("traceEvents"))


# --------------------------------------------------------------------------- others' traces


def _threads(events: Item) -> list[TimerTree]:
    """Return the trees of a trace by whatever tool."""
    intervals: dict[_Thread, list[_Interval]] = {}
    halves: dict[_Thread, list[tuple[int, int, Item]]] = {}
    names: dict[tuple[str, ...], str] = {}
    for index, event in enumerate(events.each()):
        phase = event.need("ph").text()
        if phase == "X":
            intervals.setdefault(_thread(event), []).append(_complete(index, event))
        elif phase in {"B", "E"}:
            intervals.setdefault(_thread(event), [])
            halves.setdefault(_thread(event), []).append((event.need("ts").ns(_US, signed=True), index, event))
        elif phase == "M":
            _note_name(event, names)
    for thread, found in halves.items():
        intervals[thread] += _paired(found)
    if not intervals:
        raise Malformed(f"{events.place} has nothing that took time (X, or B and E)", "record with some activity on")
    return [
        TimerTree(_nested(_named(thread, names), found).frozen(), metadata={"pid": thread[0], "tid": thread[1]})
        for thread, found in intervals.items()
    ]


def _thread(event: Item) -> _Thread:
    return _label(event.get("pid")), _label(event.get("tid"))


def _label(item: Item | None) -> str:
    if item is None:
        return ""
    if isinstance(item.value, bool) or not isinstance(item.value, (int, str)):
        item.wrong("a number or a text")
    return str(item.value)


def _note_name(event: Item, names: dict[tuple[str, ...], str]) -> None:
    """Remember the name of a process or a thread."""
    kind, args = event.get("name"), event.get("args")
    if kind is None or args is None or kind.value not in ("process_name", "thread_name"):
        return
    thread = _thread(event)
    name = args.get("name")
    if name is not None:
        names[thread if kind.value == "thread_name" else thread[:1]] = name.text()


def _named(thread: _Thread, names: dict[tuple[str, ...], str]) -> str:
    parts = names.get(thread[:1], thread[0]), names.get(thread, thread[1])
    return ", ".join(part for part in parts if part) or "trace"


def _complete(index: int, event: Item) -> _Interval:
    start_ns = event.need("ts").ns(_US, signed=True)
    end_ns = start_ns + event.need("dur").ns(_US)
    return _Interval(event.need("name").text(), start_ns, end_ns, index, index, event.place)


def _paired(halves: list[tuple[int, int, Item]]) -> Iterator[_Interval]:
    """Yield one thread's pairs of B and E as intervals, in the order of time."""
    open_: list[tuple[int, int, Item]] = []
    for half in sorted(halves, key=lambda half: half[:2]):
        end_ns, closed, event = half
        if event.value["ph"] == "B":
            open_.append(half)
            continue
        if not open_:
            raise Malformed(f"{event.place} ends (E) what never began (B)")
        start_ns, opened, begin = open_.pop()
        name, end_name = begin.need("name").text(), event.get("name")
        if end_name is not None and end_name.text() != name:
            raise Malformed(f"{event.place} ends {end_name.value!a}, but {begin.place}, {name!a}, is open")
        yield _Interval(name, start_ns, end_ns, opened, closed, begin.place)
    if open_:
        raise Malformed(f"{open_[-1][2].place} begins (B) what never ends (E)", "record until it has ended")


# --------------------------------------------------------------------------- intervals to a tree


@dataclass(frozen=True)
class _Interval:
    """Something that ran between two moments; ``opened`` and ``closed`` are its places in the file's order.

    They decide the order of events at equal moments.
    """

    name: str
    start_ns: int
    end_ns: int
    opened: int
    closed: int
    place: str


def _nested(name: str, intervals: Iterable[_Interval]) -> Draft:
    """Return the tree of one thread's intervals, each below the last one begun that it lies within.

    An interval that begins within another and ends after it cannot have run within it on one stack. It is parallel,
    below whatever contains both. The root lasts from the first beginning to the last end.
    """
    root = Draft(name, count=1)
    ordered = sorted(intervals, key=lambda one: (one.start_ns, -one.end_ns, one.opened))
    root.total_ns = max(one.end_ns for one in ordered) - ordered[0].start_ns
    open_: list[tuple[_Interval, Draft]] = []
    for one in ordered:
        while open_ and _is_over(open_[-1][0], one):
            open_.pop()
        beside = False
        while open_ and open_[-1][0].end_ns + _SLACK_NS < one.end_ns:
            open_.pop()
            beside = True
        draft = (open_[-1][1] if open_ else root).child(one.name)
        draft.enter(one.end_ns - one.start_ns)
        draft.is_parallel |= beside
        open_.append((one, draft))
        check_depth(len(open_), one.place)
    return root


def _is_over(one: _Interval, other: _Interval) -> bool:
    """Whether ``one`` had ended when ``other``, which did not begin before it, began."""
    if one.end_ns == other.start_ns:
        return one.closed < other.opened  # clocks are coarse: the order in the file decides
    if one.end_ns < other.start_ns:
        return True
    within_ns, beyond_ns = one.end_ns - other.start_ns, other.end_ns - one.end_ns
    return within_ns <= _SLACK_NS and beyond_ns > within_ns


# --------------------------------------------------------------------------- ours


def _ours(events: Item, head: Item) -> list[TimerTree]:
    """Return the trees that :func:`write` wrote, exactly."""
    check_version(head.need("version"))
    rows = _rows(events)
    workers: dict[int | None, list[TimerTree]] = {}
    # Workers come after the tree they belong to: from the last on, each tree finds its own.
    for item in reversed(list(head.need("trees").each())):
        pid, above = item.need("pid"), item.get("worker_of")
        root = planted(rows.pop(pid.whole(), []))
        if root is None:
            pid.wrong("a process that has events, and that no other tree is")
        if above is not None and above.whole() >= pid.whole():
            above.wrong("a process before its own")
        gauges, metadata = read_gauges(item.get("gauges")), read_metadata(item.get("metadata"))
        tree = TimerTree(root, gauges, metadata, tuple(reversed(workers.pop(pid.whole(), []))))
        workers.setdefault(None if above is None else above.whole(), []).append(tree)
    found = workers.pop(None, [])
    if workers or rows:
        missing = ", ".join(sorted({str(pid) for pid in (*workers, *rows)}))
        raise Malformed(f"{head.place}.trees lacks processes that have workers or events: {missing}")
    return found[::-1]


def _rows(events: Item) -> dict[int, list[tuple[int, Draft, str]]]:
    """Return each process's paths, parents first, with their depths and places."""
    rows: dict[int, list[tuple[int, Draft, str]]] = {}
    for event in events.each():
        if event.need("ph").text() == "X":
            args = event.need("args")
            draft = read_figures(args, event.need("name").text())
            rows.setdefault(event.need("pid").whole(), []).append((args.need("depth").whole(), draft, args.place))
    return rows


def write(trees: Sequence[TimerTree]) -> str:
    """Return trees as a Chrome trace; our own reader loses nothing, other readers see sums laid end to end."""
    events: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    for tree in trees:
        _add(tree, None, events, heads)
    return _document(events, "ms", {NAME: {"version": VERSION, "trees": heads}})


def _add(tree: TimerTree, above: int | None, events: list[dict[str, Any]], heads: list[dict[str, Any]]) -> None:
    """Add a tree as a process, and its workers as processes after it."""
    pid = len(heads) + 1
    heads.append({"pid": pid, **({} if above is None else {"worker_of": above}), **extras(tree)})
    events.append(_meta("process_name", pid, 0, name=tree.name))
    tracks: set[int] = set()
    for bar in laid_out(tree.root):
        if bar.track not in tracks:
            tracks.add(bar.track)
            events.append(_meta("thread_name", pid, bar.track, name=bar.timing.name))
        exact = {"depth": bar.depth, **figures(bar.timing)}
        events.append(_event(bar.timing.name, pid, bar.track, (bar.start_ns, bar.length_ns), exact))
    for worker in tree.workers:
        _add(worker, pid, events, heads)


def write_spans(trace: Trace) -> str:
    """Return one call's spans as a Chrome trace: one process, and a thread for each track in the order of the spans."""
    process = f"{trace.nodeid} ({trace.side}: {trace.label})"
    events = [_meta("process_name", 1, 0, name=process)]
    for tid, (track, spans) in enumerate(_by_track(trace.spans).items(), 1):
        # Viewers sort threads by name by default; here the host comes first and its devices below it.
        events += [_meta("thread_name", 1, tid, name=track), _meta("thread_sort_index", 1, tid, sort_index=tid)]
        events += [
            {**_event(one.name, 1, tid, (one.start_ns, one.end_ns - one.start_ns), {"path": one.path}), "cat": "phase"}
            for one in spans
        ]
    facts = {"test": trace.nodeid, "side": trace.side, "label": trace.label, "notes": list(trace.notes)}
    return _document(events, "ns", facts)


def _meta(kind: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    """Return an event that describes a process or a thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _event(name: str, pid: int, tid: int, extent_ns: tuple[int, int], args: dict[str, Any]) -> dict[str, Any]:
    """Return a complete event of that start and length."""
    start_ns, length_ns = extent_ns
    times = {"ts": start_ns / _US, "dur": length_ns / _US}
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, **times, "args": args}


def _document(events: list[dict[str, Any]], unit: str, other: dict[str, Any]) -> str:
    document = {"traceEvents": events, "displayTimeUnit": unit, "otherData": other}
    return json.dumps(document, allow_nan=False) + "\n"


# --------------------------------------------------------------------------- spans on tracks


class _Placed(NamedTuple):
    """A span in whole nanoseconds, so that the spans of one track nest exactly."""

    name: str
    path: str
    start_ns: int
    end_ns: int


def _by_track(spans: Sequence[Span]) -> dict[str, list[_Placed]]:
    """Return each track's spans by their start, outer ones first; tracks are in the order of their first spans.

    Viewers draw the spans of one track only where they nest. Spans that overlap, as a device's do whose edges lie on
    several streams, go on further tracks of the same name with a number.
    """
    found: dict[str, list[_Placed]] = {span.track: [] for span in spans}
    open_: dict[str, list[_Placed]] = {}
    for span in sorted(spans, key=_by_start):
        start_ns, end_ns = round(1e9 * span.start_s), round(1e9 * span.end_s)
        placed = _Placed(span.name, span.path, start_ns, max(start_ns, end_ns))
        found.setdefault(_track_with_room(span.track, placed, open_), []).append(placed)
    return found


def _by_start(span: Span) -> tuple[int, int, int]:
    return round(1e9 * span.start_s), -round(1e9 * span.end_s), span.path.count("/")


def _track_with_room(track: str, placed: _Placed, open_: dict[str, list[_Placed]]) -> str:
    """Return the first track of that name on which a span lies within the open ones, and open it there."""
    name, number = track, 1
    while True:
        stack = open_.setdefault(name, [])
        while stack and stack[-1].end_ns <= placed.start_ns:
            stack.pop()
        if not stack or placed.end_ns <= stack[-1].end_ns:
            stack.append(placed)
            return name
        number += 1
        name = f"{track} ({number})"
