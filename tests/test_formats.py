"""Trees in files: real output of other tools, what is written, and files nobody can read."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing
from pytest_rlperf.timers import files
from pytest_rlperf.timers.files import DEEPEST

SAMPLES = Path(__file__).parent / "samples"


def parse(content: str | bytes | dict[str, Any] | list[Any]) -> list[TimerTree]:
    if isinstance(content, (dict, list)):
        content = json.dumps(content)
    return files.parse(content.encode() if isinstance(content, str) else content, "some.file")


def test_mlagents_sample_has_the_files_numbers() -> None:
    """Every node of a real timers.json is there, with its nanoseconds, count and parallelism."""
    raw = json.loads((SAMPLES / "mlagents_timers.json").read_text(encoding="utf-8"))
    (tree,) = files.read(SAMPLES / "mlagents_timers.json")

    def check(timing: Timing, node: dict[str, Any]) -> int:
        assert timing.total_ns == pytest.approx(node["total"] * 1e9, abs=0.5)
        assert timing.count == node["count"]
        assert timing.is_parallel is node.get("is_parallel", False)
        children = node.get("children", {})
        assert [child.name for child in timing.children] == list(children)
        return 1 + sum(check(child, children[child.name]) for child in timing.children)

    assert check(tree.root, raw) == 12
    assert tree.name == "root"
    assert tree.gauges == {"Env.Reward": Gauge(0.0, 0.0, 2.0, 9)}
    assert tree.metadata == raw["metadata"]
    assert tree.at("run", "C.step", "C.step", "act").total_ns == 1_911_051


def chain(depth: int) -> TimerTree:
    """Return a tree of one path with ``depth`` names."""
    here: tuple[Timing, ...] = ()
    for level in range(depth, 0, -1):
        here = (Timing(f"level {level}", 1, depth - level, children=here),)
    return TimerTree(Timing("root", 1, depth, children=here))


NS = st.integers(0, 2**63 - 1)
ANY_NAME = st.text(max_size=6) | st.sampled_from(["a", "b", "\ud800", "x: 0.1, y", "\x1b[2J"])


def timings(children: st.SearchStrategy[Timing] | None) -> st.SearchStrategy[Timing]:
    """Return timings with everything a timing can have, above ``children``."""
    return st.builds(
        Timing,
        name=ANY_NAME,
        count=NS,
        total_ns=NS,
        min_ns=st.none() | NS,
        max_ns=st.none() | NS,
        last_ns=st.none() | NS,
        children=st.just(()) if children is None else st.lists(children, max_size=4).map(tuple),
        mode=st.sampled_from(Mode),
        recent_ns=st.lists(NS, max_size=3).map(tuple),
        is_parallel=st.booleans(),
    )


GAUGES = st.dictionaries(
    st.text(max_size=4),
    st.builds(Gauge, *[st.floats(allow_nan=False)] * 3, NS),
    max_size=2,
)
METADATA = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
ANY_TREE = st.recursive(
    st.builds(TimerTree, st.recursive(timings(None), timings, max_leaves=8), GAUGES, METADATA),
    lambda workers: st.builds(replace, workers, workers=st.lists(workers, max_size=2).map(tuple)),
    max_leaves=4,
)


@given(trees=st.lists(ANY_TREE, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_everything_comes_back(trees: list[TimerTree]) -> None:
    """Our own JSON loses nothing at all."""
    assert parse(files.write(trees, "json")) == trees


def long_enough(timing: Timing) -> Timing:
    """Return a tree in which every timing takes time, and is at least as long as its children together."""
    below = tuple(long_enough(child) for child in timing.children)
    own_ns = 1 + timing.total_ns % 10**9
    return replace(timing, children=below, total_ns=own_ns + sum(child.total_ns for child in below))


Bars = list[tuple[int, str, int]]
BARS = ANY_TREE.map(lambda tree: replace(tree, root=long_enough(tree.root), workers=()))


def parts_of(root: Timing) -> list[Bars]:
    """Return depths, names and totals, as ``names_of``, of a tree and of each parallel path apart from it."""
    parts: list[Bars] = []

    def walk(timing: Timing, depth: int, part: Bars) -> None:
        part.append((depth, timing.name, timing.total_ns))
        for child in timing.children:
            if child.is_parallel:
                parts.append([])
                walk(child, 0, parts[-1])
            else:
                walk(child, depth + 1, part)

    parts.append([])
    walk(root, 0, parts[0])
    return sorted(parts)


def chrome_tracks(text: str) -> list[Bars]:
    """Return the bars of each track of a Chrome trace as a viewer nests them: by their times alone."""
    tracks: dict[tuple[int, int], tuple[Bars, list[int]]] = {}
    for event in json.loads(text)["traceEvents"]:
        assert event["ph"] in ("X", "M")
        if event["ph"] == "X":
            bars, open_ = tracks.setdefault((event["pid"], event["tid"]), ([], []))
            start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or start + length <= open_[-1], "a bar outlasts the one that it began in"
            bars.append((len(open_), event["name"], length))
            open_.append(start + length)
    return sorted(bars for bars, _ in tracks.values())


@given(trees=st.lists(BARS, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_chrome_trace_shows_every_path(trees: list[TimerTree]) -> None:
    """A viewer that nests events by time shows our names and totals, and what is parallel on tracks of its own."""
    text = files.write(trees, "chrome")
    assert chrome_tracks(text) == sorted(part for tree in trees for part in parts_of(tree.root))
    events = json.loads(text)["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [t.name for t in trees]


def test_paths_longer_than_their_parent_stretch_it() -> None:
    """A bar is as long as its children where they took longer together; the exact figures are its arguments."""
    tree = TimerTree(Timing("root", 1, 5, children=(Timing("a", 2, 4, 1, 3, 3), Timing("b", 1, 3))))
    text = files.write([tree], "chrome")
    assert chrome_tracks(text) == [[(0, "root", 7), (1, "a", 4), (1, "b", 3)]]
    arguments = [event["args"] for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert arguments[:2] == [
        {"count": 1, "total_ns": 5, "min_ns": None, "max_ns": None, "last_ns": None},
        {"count": 2, "total_ns": 4, "min_ns": 1, "max_ns": 3, "last_ns": 3},
    ]


OWN = json.loads(files.write([chain(2)], "json"))
NODE = {"total": 1.0, "count": 1}
LARGE = (SAMPLES / "mlagents_timers.json").read_bytes()


def changed(document: dict[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    """Return a document with one value changed, or taken away where that is None."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    here: Any = copy
    for step in path[:-1]:
        here = here[step]
    if to is None:
        del here[path[-1]]
    else:
        here[path[-1]] = to
    return copy


@pytest.mark.parametrize(
    "content",
    [
        # not a file of timers at all
        b"",
        b"hello\nworld\n",
        b'{"a": 1}',
        b"[2024-01-01 10:00:00,123][00123] started\n",
        b'"text"',
        b"{}\n\xff\xfe",
        b"\x80\x04\x95",
        # JSON that is cut off, or is none
        LARGE[:1000],
        b'{"total": 1.0, "count": 1, "children"',
        b'{"total": 1,\n "count": 1]',
        b'{"total": 1.0, "count": 1}{',
        b'{"a":' * 100_000,
        # ML-Agents
        {**NODE, "total": "x"},
        {**NODE, "children": {"run": {"count": 1}}},
        {**NODE, "children": {"run": {**NODE, "count": -1}}},
        {**NODE, "children": [NODE]},
        {**NODE, "total": -0.5},
        {**NODE, "total": math.inf},
        b'{"count": 1, "total": 1e999999999999999999999}',
        {**NODE, "count": 2**70},
        {**NODE, "gauges": {"r": {"value": "high"}}},
        b'{"total": 1, "count": 1, "gauges": {"r": {"value": NaN}}}',
        # for viewers alone
        {"traceEvents": []},
        # our own
        {**OWN, "version": 1},
        {"format": "rlperf-timers", "version": 2},
        changed(OWN, "trees", 0, "root", to=None),
        changed(OWN, "trees", 0, "root", "children", 0, "total_ns", to=1.5),
        changed(OWN, "trees", 0, "root", "mode", to="max"),
        changed(OWN, "trees", 0, "gauges", "r", to={"value": [], "low": 0, "high": 1, "count": 1}),
        changed(OWN, "trees", 0, "root", to=msgspec.to_builtins(chain(DEEPEST + 1).root)),
    ],
)
def test_unreadable_file_names_its_place(content: str | bytes | dict[str, Any] | list[Any], wording: Wording) -> None:
    """Whatever is wrong, the error names the file, the place in it and a way out, on one harmless line."""
    with wording.raises(TimerFileError) as raised:
        parse(content)
    text = str(raised.value)
    assert text.startswith("some.file ")
    assert "; " in text
    assert text.isprintable()
    assert len(text) < 400


@given(data=st.data(), content=st.sampled_from([LARGE, json.dumps(OWN).encode()]))
@settings(max_examples=200, deadline=None)
def test_damaged_files_are_trees_or_an_error(data: st.DataObject, content: bytes) -> None:
    """A real file with a piece cut out or put in is read or refused."""
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    piece = data.draw(st.sampled_from([b"", b"0", b'"', b"{", b"]", b"null", b"-", b"\n", b"1e999", b"\xff"]))
    with suppress(TimerFileError):
        files.parse(content[:start] + piece + content[end:], "x")


@pytest.mark.parametrize("path", ["missing.json", ".", "nul\0.json"])
def test_file_that_cannot_be_opened(path: str, tmp_path: Path, wording: Wording) -> None:
    """No such file, a directory or no name at all: the same error."""
    with wording.raises(TimerFileError):
        files.read(tmp_path / path)
