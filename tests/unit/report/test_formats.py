"""Trees in files: real output of other tools, what is written, and files nobody can read."""

from __future__ import annotations

import dataclasses
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import Gauge, TimerTree, Timing
from pytest_rlperf.timers import files
from pytest_rlperf.timers.files import DEEPEST

SAMPLES = Path(__file__).parents[2] / "samples"


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


def test_everything_comes_back() -> None:
    """Our own JSON loses nothing at all."""
    last = Timing("\ud800", 2**63 - 1, 2**63 - 1, last_ns=0, is_parallel=True)
    mean = Timing("x: 0.1, y", 3, 4, 1, 2, 1, children=(last, Timing("", 0, 0)))
    worker = TimerTree(Timing("\x1b[2J", 1, 9), {"reward": Gauge(math.inf, -math.inf, 2.5, 7)}, {"key": "値"})
    tree = TimerTree(
        Timing("root", 1, 5, children=(mean, last)), workers=(worker, dataclasses.replace(worker, workers=(worker,)))
    )
    assert parse(files.write([tree, worker, chain(100)], "json")) == [tree, worker, chain(100)]
    (deep,) = parse(files.write([chain(300)], "json"))
    assert sum(1 for _ in deep.root.walk()) == 300


def test_chrome_trace_shows_every_path() -> None:
    """Children stand one after the other within their parent, which they stretch, and parallel ones on other tracks.

    The exact figures are a bar's arguments.
    """
    side = Timing("side", 1, 9, children=(Timing("inner", 1, 2),), is_parallel=True)
    tree = TimerTree(Timing("root", 1, 5, children=(Timing("a", 2, 4, 1, 3, 3, (side,)), Timing("b", 1, 3), side)))
    events = json.loads(files.write([tree, chain(1)], "chrome"))["traceEvents"]
    bars = [(e["name"], e["pid"], e["tid"], e["ts"] * 1000, e["dur"] * 1000) for e in events if e["ph"] == "X"]
    assert bars == [
        ("root", 1, 0, 0, 7),
        ("a", 1, 0, 0, 4),
        ("side", 1, 1, 0, 9),
        ("inner", 1, 1, 0, 2),
        ("b", 1, 0, 4, 3),
        ("side", 1, 2, 0, 9),
        ("inner", 1, 2, 0, 2),
        ("root", 2, 0, 0, 1),
        ("level 1", 2, 0, 0, 0),
    ]
    names = [(e["name"], e["pid"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert names[:3] == [("process_name", 1, 0, "root"), ("thread_name", 1, 0, "root"), ("thread_name", 1, 1, "side")]
    assert [e["args"] for e in events if e["ph"] == "X"][:2] == [
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
        changed(OWN, "trees", 0, "root", "is_parallel", to="yes"),
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
@settings(max_examples=200)
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
