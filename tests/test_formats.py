"""Trees in files: real output of other tools, what is written, and files nobody can read."""

from __future__ import annotations

import gzip
import json
import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf import traces
from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing
from pytest_rlperf.traces.reading import DEEPEST, levels

SAMPLES = Path(__file__).parent / "samples"


def parse(content: str | bytes | dict[str, Any] | list[Any]) -> list[TimerTree]:
    if isinstance(content, (dict, list)):
        content = json.dumps(content)
    return traces.parse(content.encode() if isinstance(content, str) else content, "some.file")


def chain(depth: int) -> TimerTree:
    """Return a tree of one path with ``depth`` names."""
    here: tuple[Timing, ...] = ()
    for level in range(depth, 0, -1):
        here = (Timing(f"level {level}", 1, depth - level, children=here),)
    return TimerTree(Timing("root", 1, depth, children=here))


def names_of(timing: Timing) -> list[tuple[int, str, int]]:
    """Return what every format keeps: depths, names and totals."""
    return [(depth, below.name, below.total_ns) for depth, below in levels(timing)]


def test_mlagents_sample_has_the_files_numbers() -> None:
    """Every node of a real timers.json is there, with its nanoseconds, count and parallelism."""
    raw = json.loads((SAMPLES / "mlagents_timers.json").read_text(encoding="utf-8"))
    (tree,) = traces.read(SAMPLES / "mlagents_timers.json")

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


def test_sample_factory_log_has_all_its_trees() -> None:
    """A log of a parallel run gives each component's tree, by names and figures counted by hand in the file."""
    text = (SAMPLES / "sample_factory_run_parallel.txt").read_text(encoding="utf-8")
    trees = traces.read(SAMPLES / "sample_factory_run_parallel.txt")
    assert [tree.name for tree in trees] == re.findall(r"^(.*) tree view:$", text, re.MULTILINE)
    assert len(trees) == 6
    figures = sorted(seconds for _, seconds in re.findall(r"(\w+): (\d+\.\d{4})", text))
    read = sorted(f"{timing.total_ns / 1e9:.4f}" for tree in trees for _, timing in tree.root.walk())
    assert read == figures
    inference = trees[1]
    assert inference.at("one_step", "handle_policy_step", "prepare_outputs", "to_cpu").total_ns == 10_100_000
    assert inference.at("wait_policy", "wait_policy_total").total_ns == 233_200_000
    assert [child.name for child in inference.root.children] == ["wait_policy", "update_model", "one_step"]
    assert inference.root.total_ns == 16_400_000  # .0000 + .0162 + .0002
    assert trees[-1].at("main_loop") == Timing("main_loop", 0, 7_860_100_000)


def test_sample_factory_log_is_read_through_what_a_logger_adds() -> None:
    """Prefixes, colours, carriage returns and other lines do not change what is read."""
    lines = (SAMPLES / "sample_factory_run_parallel.txt").read_text(encoding="utf-8").splitlines()
    prefix = "[2022-11-25 01:36:52,564][15762] "
    log = [f"\x1b[36m{prefix}Loop Runner_EvtLoop terminating...\x1b[0m"]
    for line in lines:
        is_heading = line.endswith("view:")
        if is_heading:
            log += [f"{prefix}Workers joined: 2", "  File 'a.py', line 3", ""]
        log.append(f"\x1b[36m{prefix}{line}" if is_heading else f"{line}\x1b[0m\r")
    log.append(f"{prefix}Collected {{0: 4014080}}, FPS: 18463.7")
    assert parse("\n".join(log)) == traces.read(SAMPLES / "sample_factory_run_parallel.txt")


def test_what_follows_a_tree_without_prefix_ends_it() -> None:
    """A line that was printed, not logged, is no timing; names with brackets are."""
    text = "A tree view:\n{x}: 0.1000\n  env[3]: 0.0500\nCollected {0: 4014080}, FPS: 18463.7\nb: 0.2000\n"
    (tree,) = parse(text)
    assert names_of(tree.root) == [(0, "A", 100_000_000), (1, "{x}", 100_000_000), (2, "env[3]", 50_000_000)]


def test_flat_line_counts_where_there_is_no_tree() -> None:
    """Flat figures repeat a tree's; alone they are one level of timings."""
    sample = (SAMPLES / "sample_factory_tree.txt").read_text(encoding="utf-8")
    (tree,) = parse(sample)
    assert tree.at("train", "tail", "inner").total_ns == 3_500_000
    flat = sample[sample.index("_name:") :]
    (alone,) = parse(flat)
    assert alone.name == "Learner 0 profile"
    assert alone.at("calculate_gae").total_ns == 11_500_000  # .0051 at the top and .0064 in train
    assert len(alone.root.children) == 6


def test_file_may_be_packed() -> None:
    """A .json.gz is known by its content."""
    sample = SAMPLES / "mlagents_timers.json"
    assert parse(gzip.compress(sample.read_bytes())) == traces.read(sample)


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
    assert parse(traces.write(trees, "json")) == trees


@given(tree=ANY_TREE)
@settings(max_examples=30, deadline=None)
def test_one_tree_goes_through_json(tree: TimerTree) -> None:
    """One tree is one text, and integers stay integers."""
    text = traces.tree_to_json(tree)
    assert traces.tree_from_json(text) == tree == traces.tree_from_json(text.encode())
    assert all(type(timing.total_ns) is int for _, timing in levels(traces.tree_from_json(text).root))


def test_gauges_that_are_no_numbers_come_back() -> None:
    """JSON has no word for them, a gauge of a diverged loss does."""
    tree = TimerTree(Timing("root", 1, 1), {"loss": Gauge(math.nan, -math.inf, math.inf, 3)})
    (gauge,) = traces.tree_from_json(traces.tree_to_json(tree)).gauges.values()
    assert math.isnan(gauge.value)
    assert (gauge.low, gauge.high, gauge.count) == (-math.inf, math.inf, 3)


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


def speedscope_profiles(text: str) -> list[Bars]:
    """Return the bars of each profile of a file of speedscope, by the rules of its file-format-spec.ts."""
    document = json.loads(text)
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    profiles = []
    for profile in document["profiles"]:
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        bars: Bars = [(0, profile["name"], profile["endValue"] - profile["startValue"])]
        open_: list[tuple[int, int]] = []  # the place of each bar in the list, and its start
        last = profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= last, "events are in the order of time"
            last, name = event["at"], frames[event["frame"]]
            if event["type"] == "O":
                open_.append((len(bars), last))
                bars.append((len(open_), name, 0))
            else:
                assert event["type"] == "C"
                place, start = open_.pop()
                assert bars[place] == (len(open_) + 1, name, 0), "the frame that was opened last is closed"
                bars[place] = len(open_) + 1, name, last - start
        assert not open_
        assert last <= profile["endValue"]
        profiles.append(bars)
    return profiles


@given(trees=st.lists(BARS, min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_chrome_trace_shows_every_path(trees: list[TimerTree]) -> None:
    """A viewer that nests events by time shows our names and totals, and what is parallel on tracks of its own."""
    text = traces.write(trees, "chrome")
    assert chrome_tracks(text) == sorted(part for tree in trees for part in parts_of(tree.root))
    events = json.loads(text)["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [t.name for t in trees]


@given(tree=BARS)
@settings(max_examples=30, deadline=None)
def test_speedscope_shows_every_path(tree: TimerTree) -> None:
    """A path is one opening as long as its total; what is parallel has a profile of its own."""
    first, *others = speedscope_profiles(traces.write([tree], "speedscope"))
    # A parallel path's profile has the tree's name before its own, and the path itself as its outermost frame.
    shown = [[(depth - 1, name, total_ns) for depth, name, total_ns in bars[1:]] for bars in others]
    assert sorted([first, *shown]) == parts_of(tree.root)
    assert [bars[0][1] for bars in others] == [f"{tree.name}: {bars[1][1]}" for bars in others]


def test_paths_longer_than_their_parent_stretch_it() -> None:
    """A bar is as long as its children where they took longer together; the exact figures are its arguments."""
    tree = TimerTree(Timing("root", 1, 5, children=(Timing("a", 2, 4, 1, 3, 3), Timing("b", 1, 3))))
    text = traces.write([tree], "chrome")
    assert chrome_tracks(text) == [[(0, "root", 7), (1, "a", 4), (1, "b", 3)]]
    arguments = [event["args"] for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert arguments[:2] == [
        {"count": 1, "total_ns": 5},
        {"count": 2, "total_ns": 4, "min_ns": 1, "max_ns": 3, "last_ns": 3},
    ]
    assert speedscope_profiles(traces.write([tree], "speedscope")) == [[(0, "root", 7), (1, "a", 4), (1, "b", 3)]]


def test_deep_trees_are_written() -> None:
    """5000 levels are no trouble in any format, and 300 are read."""
    assert '"depth": 5000' in traces.write([chain(5000)], "json")
    assert len(chrome_tracks(traces.write([chain(5000)], "chrome"))[0]) == 5001
    assert len(speedscope_profiles(traces.write([chain(5000)], "speedscope"))[0]) == 5001
    assert names_of(traces.tree_from_json(traces.tree_to_json(chain(300))).root) == names_of(chain(300).root)


OWN = json.loads(traces.tree_to_json(chain(2)))
NODE = {"total": 1.0, "count": 1}
LARGE = (SAMPLES / "mlagents_timers.json").read_bytes()
LOG = (SAMPLES / "sample_factory_tree.txt").read_bytes()
DEEP_ROWS = [{"depth": depth, "name": "a", "count": 1, "total_ns": 1} for depth in range(DEEPEST + 2)]


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
        b" \n ",
        b"hello\nworld\n",
        b'{"a": 1}',
        b"[]",
        b"[[1]]",
        b"[2024-01-01 10:00:00,123][00123] started\n",
        b'"text"',
        b"{}\n\xff\xfe",
        b"\x80\x04\x95",
        b"\x1f\x8bnot really",
        gzip.compress(LARGE)[:-400],
        # JSON that is cut off, or is none
        LARGE[:1000],
        b'{"total": 1.0, "count": 1, "children"',
        b'{"total": 1.',
        b'{"total": nul',
        b'{"name": "roo',
        b'{"name": "roo\\u00',
        b'{"total": 1,\n "count": 1]',
        b'{"total": 1.0, "count": 1}{',
        b'{"a":' * 100_000,
        # ML-Agents
        {**NODE, "total": "x"},
        {**NODE, "children": {"run": {"count": 1}}},
        {**NODE, "children": {"run": {**NODE, "total": [1]}}},
        {**NODE, "children": {"run": {**NODE, "total": True}}},
        {**NODE, "children": {"C.x": {**NODE, "total": None}}},
        {**NODE, "children": {"run": {**NODE, "count": 1.5}}},
        {**NODE, "children": {"run": {**NODE, "count": -1}}},
        {**NODE, "children": {"run": 3}},
        {**NODE, "children": [NODE]},
        {**NODE, "is_parallel": 1},
        {**NODE, "total": -0.5},
        {**NODE, "total": math.nan},
        {**NODE, "total": math.inf},
        {**NODE, "total": 1e300},
        b'{"count": 1, "total": 1e999999999999999999999}',
        b'{"total": 1, "count": ' + b"9" * 9000 + b"}",
        {**NODE, "count": 2**63},
        {**NODE, "name": 3},
        {**NODE, "metadata": {"a": 1}},
        {**NODE, "gauges": {"r": {"value": "high"}}},
        b'{"total": 1, "count": 1, "gauges": {"r": {"value": NaN}}}',
        # Sample Factory
        "A tree view:\na: 0.1000\n    b: 0.1000\n",
        "A tree view:\na: 0.1000\n   b: 0.1000\n",
        "A tree view:\n  a: 0.1000\n",
        "A tree view:\na: 0.1000, b: 0.1000\n  c: 0.1000\n",
        "A tree view:\na: 0.10",
        "A tree view:\na: 0.1000, b",
        "A tree view:\na: 0.1000\n  b",
        "A tree view:\na: 0.1000\nbatch",
        "x\nA tree view:",
        "A tree view:\na: nan\n",
        "A tree view:\na: -0.1000\n",
        "A tree view:\na: 0.1\n",
        "A tree view:\na: 99999999999.0000\n",
        "_name: A, a: 0.1000, b: x\n",
        "A tree view:\n" + "".join("  " * n + "a: 0.1000\n" for n in range(DEEPEST + 1)),
        # for viewers alone
        {"traceEvents": []},
        [{"ph": "X", "name": "a", "ts": 0, "dur": 1, "pid": 1, "tid": 2}],
        {"shared": {"frames": []}, "profiles": []},
        # our own
        {**OWN, "version": 2},
        {**OWN, "version": 0},
        {"format": "rlperf-timers"},
        changed(OWN, "trees", 0, "timings", to=[]),
        changed(OWN, "trees", 0, "timings", 2, "depth", to=3),
        changed(OWN, "trees", 0, "timings", 2, "depth", to=0),
        changed(OWN, "trees", 0, "timings", 0, "depth", to=1),
        changed(OWN, "trees", 0, "timings", 1, "total_ns", to=1.5),
        changed(OWN, "trees", 0, "timings", 1, "mode", to="max"),
        changed(OWN, "trees", 0, "timings", 1, "mode", to=[1]),
        changed(OWN, "trees", 0, "timings", 1, "recent_ns", to=[1, -1]),
        changed(OWN, "trees", 0, "gauges", "r", to={"value": [], "low": 0, "high": 1, "count": 1}),
        changed(OWN, "trees", 0, "timings", to=DEEP_ROWS),
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


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_trees_or_an_error(data: bytes) -> None:
    """No content raises anything else."""
    with suppress(TimerFileError):
        traces.parse(data, "x")


@given(data=st.data(), content=st.sampled_from([LARGE, LOG, json.dumps(OWN).encode()]))
@settings(max_examples=200, deadline=None)
def test_damaged_files_are_trees_or_an_error(data: st.DataObject, content: bytes) -> None:
    """A real file with a piece cut out or put in is read or refused."""
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    piece = data.draw(st.sampled_from([b"", b"0", b'"', b"{", b"]", b"null", b"-", b"\n", b"1e999", b"\xff"]))
    with suppress(TimerFileError):
        traces.parse(content[:start] + piece + content[end:], "x")


def test_cut_off_json_is_always_an_error() -> None:
    """Wherever a file was cut off, nothing is read of it."""
    for document in (OWN, {**NODE, "children": {"run": NODE}, "metadata": {"a": "b"}}):
        content = json.dumps(document).encode()
        for end in range(len(content)):
            with pytest.raises(TimerFileError):
                traces.parse(content[:end], "x")


@pytest.mark.parametrize("path", ["missing.json", ".", "nul\0.json"])
def test_file_that_cannot_be_opened(path: str, tmp_path: Path, wording: Wording) -> None:
    """No such file, a directory or no name at all: the same error."""
    with wording.raises(TimerFileError):
        traces.read(tmp_path / path)


def test_one_tree_is_asked_of_our_json(wording: Wording) -> None:
    """Two processes exchange one tree in our own JSON; anything else is an error."""
    with wording.raises(TimerFileError):
        traces.tree_from_json(traces.write([chain(1), chain(1)], "json"))
    with wording.raises(TimerFileError):
        traces.tree_from_json(json.dumps(NODE), "worker 3")
