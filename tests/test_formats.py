"""Trees in files: real output of other tools, what comes back of what we wrote, and files nobody can read."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_rlperf import traces
from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model import Gauge, Mode, TimerTree, Timing
from pytest_rlperf.traces import mlagents
from pytest_rlperf.traces.trees import DEEPEST, levels

SAMPLES = Path(__file__).parent / "samples"
TRACE = SAMPLES / "torch_profiler_trace.json"


def parse(content: str | bytes | dict[str, Any] | list[Any]) -> list[TimerTree]:
    """Read a file of this content."""
    if isinstance(content, (dict, list)):
        content = json.dumps(content)
    return traces.parse(content.encode() if isinstance(content, str) else content, "some.file")


def again(trees: Sequence[TimerTree], name: str) -> list[TimerTree]:
    """Return what comes back of trees that were written in a format."""
    return traces.parse(traces.write(trees, name).encode(), "ours")


def chain(depth: int) -> TimerTree:
    """Return a tree of one path with ``depth`` names."""
    here: tuple[Timing, ...] = ()
    for level in range(depth, 0, -1):
        here = (Timing(f"level {level}", 1, depth - level, children=here),)
    return TimerTree(Timing("root", 1, depth, children=here))


def names_of(timing: Timing) -> list[tuple[int, str, int]]:
    """Return what every format keeps: depths, names and totals."""
    return [(depth, below.name, below.total_ns) for depth, below in levels(timing)]


# --------------------------------------------------------------------------- real output of other tools


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


def test_mlagents_sample_is_written_as_it_was() -> None:
    """A real timers.json is written with the same keys in the same order, and times equal to the nanosecond."""
    path = SAMPLES / "mlagents_timers.json"
    raw = json.loads(path.read_text(encoding="utf-8"))

    def flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key, part in value.items():
                yield from flat(part, f"{place}/{key}")
        else:
            yield place, round(value, 9) if isinstance(value, float) else value

    assert dict(flat(mlagents.document(traces.read(path)[0]))) == pytest.approx(dict(flat(raw)), abs=2e-9)
    assert list(dict(flat(json.loads(traces.write(traces.read(path), "mlagents"))))) == list(dict(flat(raw)))


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


@pytest.mark.parametrize("name", ["sample_factory_run_parallel.txt", "sample_factory_run_serial.txt"])
def test_sample_factory_log_is_written_as_it_was(name: str) -> None:
    """A real log is written back to the letter."""
    text = (SAMPLES / name).read_text(encoding="utf-8")
    assert traces.write(traces.read(SAMPLES / name), "sample-factory") == text


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


def test_torch_profiler_trace_has_the_files_numbers() -> None:
    """Counts, sums and extremes by name are those of the raw events; operators lie in the ranges around them."""
    raw = [event for event in json.loads(TRACE.read_text(encoding="utf-8"))["traceEvents"] if event["ph"] == "X"]
    main, spans = traces.read(TRACE)
    assert (main.name, spans.name) == ("python, thread 20992 (python)", "Spans, PyTorch Profiler")
    assert main.metadata == {"pid": "20992", "tid": "20992"}
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for tree in (main, spans):
        for _, timing in tree.root.walk():
            counts[timing.name] += timing.count
            totals[timing.name] += timing.total_ns
    assert counts == Counter(event["name"] for event in raw)
    for name, total_ns in totals.items():
        assert total_ns == sum(round(event["dur"] * 1000) for event in raw if event["name"] == name)
    step = main.at("EnvBase.rollout", "EnvBase.step")
    took_ns = [round(event["dur"] * 1000) for event in raw if event["name"] == "EnvBase.step"]
    assert (step.count, step.min_ns, step.max_ns, step.last_ns) == (2, min(took_ns), max(took_ns), took_ns[-1])
    assert main.at("EnvBase.rollout", "EnvBase.step", "TransformedEnv._step", "aten::argmax").count == 2
    assert all(timing.self_ns >= 0 for _, timing in main.root.walk())
    assert not any(timing.is_parallel for _, timing in main.root.walk())


def test_trace_may_be_packed() -> None:
    """A .json.gz, as torch's profiler writes it too, is known by its content."""
    assert parse(gzip.compress(TRACE.read_bytes())) == traces.read(TRACE)


# --------------------------------------------------------------------------- traces and profiles by hand


def event(ph: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
    """Return a trace event of the one thread there is."""
    return {"ph": ph, "name": name, "ts": ts, "pid": 1, "tid": 2, **more}


def test_bare_list_and_pairs_read_like_complete_events() -> None:
    """B and E nest as X does, in an object or a bare list, whatever the order in the file."""
    complete = [
        event("X", "update", 10, dur=5),
        event("X", "step", 0, dur=20),
        event("X", "update", 15, dur=2),
        event("X", "step", 30, dur=1),
    ]
    pairs = [
        event("B", "step", 0),
        event("B", "update", 10),
        event("E", "update", 15),
        event("B", "update", 15),
        {"ph": "E", "ts": 17, "pid": 1, "tid": 2},
        event("i", "mark", 3),
        event("E", "step", 20),
        event("B", "step", 30),
        event("E", "step", 31),
    ]
    (tree,) = parse(complete)
    assert tree == parse({"traceEvents": pairs, "otherData": {"version": "x"}})[0]
    update = Timing("update", 2, 7000, 2000, 5000, 2000)
    step = Timing("step", 2, 21_000, 1000, 20_000, 1000, (update,))
    assert tree == TimerTree(Timing("1, 2", 1, 31_000, children=(step,)), metadata={"pid": "1", "tid": "2"})


def test_zero_length_events_nest_as_they_were_opened() -> None:
    """Where a clock is too coarse to order events, their order in the file does."""
    pairs = [event("B", "a", 5), event("B", "b", 5), event("E", "b", 5), event("E", "a", 5), event("B", "c", 5)]
    (tree,) = parse([*pairs, event("E", "c", 5)])
    assert names_of(tree.root) == [(0, "1, 2", 0), (1, "a", 0), (2, "b", 0), (1, "c", 0)]


def test_overlapping_events_ran_side_by_side() -> None:
    """An event that outlives the one it began in is parallel, below the event that contains both."""
    (tree,) = parse([event("X", "all", 0, dur=30), event("X", "a", 0, dur=10), event("X", "b", 5, dur=15)])
    assert tree.at("all", "b").is_parallel
    assert tree.at("all").self_ns == 20_000


def test_rounding_is_no_overlap() -> None:
    """Beginnings and durations rounded each for itself still make one after the other, or one within the other."""
    (tree,) = parse([event("X", "a", 0, dur=10.4), event("X", "a1", 5, dur=5.9), event("X", "b", 10, dur=10)])
    assert [(depth, name) for depth, name, _ in names_of(tree.root)] == [(0, "1, 2"), (1, "a"), (2, "a1"), (1, "b")]
    assert not any(timing.is_parallel for _, timing in tree.root.walk())


def test_timestamps_of_today_keep_their_nanoseconds() -> None:
    """Microseconds since 1970 with three decimals are more than a float can hold."""
    text = '[{"ph": "X", "name": "a", "ts": 1795212044123456.789, "dur": 0.001}, '
    text += '{"ph": "X", "name": "a", "ts": 1795212044123456.791, "dur": 0.001}]'
    (tree,) = parse(text)
    assert tree.name == "trace"
    assert tree.root == Timing("trace", 1, 3, children=(Timing("a", 2, 2, 1, 1, 1),))


def test_each_thread_is_a_tree() -> None:
    """Threads of different processes are different, and have the trace's names."""
    named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "learner"}}
    odd: list[Any] = [{"ph": "M", "name": ["thread_name"], "args": {}}, {"ph": "M", "name": "thread_name"}]
    other = {"ph": "X", "name": "a", "ts": 0, "dur": 1, "pid": 7, "tid": 2}
    assert [tree.name for tree in parse([event("X", "a", 0, dur=1), other, named, *odd])] == ["1, learner", "7, 2"]


SPEEDSCOPE = {
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "shared": {"frames": [{"name": "main"}, {"name": "step", "file": "a.py"}]},
}


def speedscope(**profile: Any) -> dict[str, Any]:
    """Return a speedscope file of one profile."""
    return {**SPEEDSCOPE, "profiles": [{"name": "run", "unit": "microseconds", **profile}]}


def evented(*events: tuple[str, float, int], end: float = 100) -> dict[str, Any]:
    """Return a speedscope file with an evented profile."""
    listed = [{"type": kind, "at": at, "frame": frame} for kind, at, frame in events]
    return speedscope(type="evented", startValue=10, endValue=end, events=listed)


def test_evented_speedscope_counts_openings() -> None:
    """Each opening of a frame is an entry; the root is the profile's span."""
    (tree,) = parse(evented(("O", 10, 0), ("O", 11, 1), ("C", 13, 1), ("O", 13, 1), ("C", 18, 1), ("C", 20.5, 0)))
    step = Timing("step", 2, 7000, 2000, 5000, 5000)
    main = Timing("main", 1, 10_500, 10_500, 10_500, 10_500, (step,))
    assert tree == TimerTree(Timing("run", 1, 90_000, children=(main,)))


def test_sampled_speedscope_weighs_stacks() -> None:
    """A sample's weight is time of every frame of its stack; how often frames were entered is not known."""
    sampled = {"startValue": 0, "endValue": 10, "samples": [[0], [0, 1], [], [0, 1, 1]], "weights": [1, 2, 3, 4.5]}
    (tree,) = parse(speedscope(type="sampled", **sampled))
    assert names_of(tree.root) == [(0, "run", 10_500), (1, "main", 7500), (2, "step", 6500), (3, "step", 4500)]
    assert {timing.count for _, timing in tree.root.walk()} == {0}


# --------------------------------------------------------------------------- what comes back of what we wrote

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


@pytest.mark.parametrize("name", ["json", "chrome"])
@given(trees=st.lists(ANY_TREE, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_everything_comes_back(name: str, trees: list[TimerTree]) -> None:
    """Our own JSON and our own Chrome traces lose nothing at all."""
    assert again(trees, name) == trees


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
    for name in ("json", "chrome"):
        (gauge,) = again([tree], name)[0].gauges.values()
        assert math.isnan(gauge.value)
        assert (gauge.low, gauge.high, gauge.count) == (-math.inf, math.inf, 3)
    assert again([tree], "mlagents")[0].gauges == {}


def plain(
    names: st.SearchStrategy[str], ns: st.SearchStrategy[int], count: st.SearchStrategy[int]
) -> st.SearchStrategy[Timing]:
    """Return trees of unlike siblings with counts and totals alone."""
    leaf = st.builds(Timing, names, count, ns)
    return st.recursive(
        leaf,
        lambda below: st.builds(
            Timing, names, count, ns, children=st.lists(below, max_size=4, unique_by=lambda t: t.name).map(tuple)
        ),
        max_leaves=10,
    )


@given(
    root=plain(st.text(max_size=5), st.integers(0, 2**23 * 10**9), NS),
    gauges=GAUGES,
    metadata=METADATA,
    parallel=st.booleans(),
)
@example(root=Timing("", 0, 0), gauges={"unset": Gauge(0.0, math.inf, -math.inf, 0)}, metadata={}, parallel=False)
@settings(max_examples=60, deadline=None)
def test_mlagents_keeps_totals_counts_and_extras(
    root: Timing, gauges: dict[str, Gauge], metadata: dict[str, str], parallel: bool
) -> None:
    """Doubles hold nanoseconds exactly up to 97 days."""
    root = replace(root, children=tuple(replace(child, is_parallel=parallel) for child in root.children))
    assert again([TimerTree(root, gauges, metadata)], "mlagents") == [TimerTree(root, gauges, metadata)]


def test_mlagents_adds_up_what_shares_a_name() -> None:
    """A dictionary by name has room for one: both children's figures are in it, and what is not kept is gone."""
    one = Timing("a", 2, 20, 5, 15, 5, (Timing("b", 1, 5),), is_parallel=True)
    other = Timing("a", 1, 7, children=(Timing("b", 2, 2), Timing("c", 1, 1)), mode=Mode.LAST)
    tree = TimerTree(Timing("root", 1, 30, children=(one, other)), workers=(TimerTree(one),))
    both = Timing("a", 3, 27, children=(Timing("b", 3, 7), Timing("c", 1, 1)), is_parallel=True)
    assert again([tree], "mlagents") == [TimerTree(Timing("root", 1, 30, children=(both,)))]
    assert mlagents.document(tree)["self"] == 3e-9  # of ML-Agents' kind: what is parallel is taken off, too
    assert list(mlagents.document(tree)["children"]["a"]) == ["total", "count", "is_parallel", "self", "children"]


def leaves_first(timing: Timing) -> Timing:
    """Return a tree in the order in which Sample Factory prints it."""
    below = [leaves_first(child) for child in timing.children]
    return replace(timing, children=tuple(sorted(below, key=lambda child: bool(child.children))))


@given(
    root=plain(
        st.text("ab_:.-[]{}/é", min_size=1, max_size=5),
        st.integers(0, 10**8).map(lambda tick: tick * 100_000),
        st.just(0),
    )
)
@settings(max_examples=60, deadline=None)
def test_sample_factory_keeps_names_and_tenths_of_milliseconds(root: Timing) -> None:
    """All that is in the text comes back; the root is the sum of its children, leaves go first."""
    total_ns = sum(child.total_ns for child in root.children)
    root = leaves_first(replace(root, name=f"Learner {root.name} profile", total_ns=total_ns))
    assert again([TimerTree(root)], "sample-factory") == [TimerTree(root)]


@given(tree=ANY_TREE)
@settings(max_examples=60, deadline=None)
def test_sample_factory_text_can_always_be_written(tree: TimerTree) -> None:
    """No name breaks a line or its indentation."""
    lines = traces.write([tree], "sample-factory").split("\n")
    for line in lines[1:-1]:
        assert re.fullmatch(r"(  )*(\S.*)?: \d+\.\d{4}", line)


def test_sample_factory_text_is_laid_out_as_theirs() -> None:
    """Leaves share a line, parents follow; a timing's value is its sum, its last or its mean entry."""
    leaf = Timing("last", 3, 9_000_000_000, last_ns=2_000_000_000, mode=Mode.LAST)
    mean = Timing("mean", 3, 9_000_000_000, mode=Mode.MEAN, recent_ns=(1_000_000_000, 2_000_000_000))
    parent = Timing("train", 1, 1_234_560_000, children=(leaf, Timing("a\n b", 1, 49_999), mean))
    tree = TimerTree(Timing("Learner 0 profile", 1, 0, children=(parent, Timing("misc", 1, 0))))
    assert traces.write([tree], "sample-factory") == (
        "Learner 0 profile tree view:\nmisc: 0.0000\ntrain: 1.2346\n  last: 2.0000, a b: 0.0000, mean: 1.5000\n"
    )


def long_enough(timing: Timing) -> Timing:
    """Return a tree in which every timing is at least as long as its children together."""
    below = tuple(long_enough(child) for child in timing.children)
    return replace(timing, children=below, total_ns=timing.total_ns + sum(child.total_ns for child in below))


@given(root=plain(st.text(max_size=5), st.integers(0, 2**40), st.just(1)))
@settings(max_examples=60, deadline=None)
def test_speedscope_keeps_names_and_totals(root: Timing) -> None:
    """A path becomes one opening as long as its total."""
    root = long_enough(root)
    (tree,) = again([TimerTree(root)], "speedscope")
    assert names_of(tree.root) == names_of(root)
    assert all(timing.count == 1 for _, timing in tree.root.walk())


@given(tree=ANY_TREE.map(lambda tree: replace(tree, root=replace(tree.root, total_ns=5))))
@settings(max_examples=60, deadline=None)
def test_speedscope_gives_what_is_parallel_a_profile(tree: TimerTree) -> None:
    """Profiles are valid whatever the tree: one for itself, one for each parallel path."""
    small = replace(tree.root, children=tuple(shrunk(child) for child in tree.root.children))
    parallel = sum(timing.is_parallel for _, timing in small.walk())
    assert len(again([TimerTree(small)], "speedscope")) == 1 + parallel


def shrunk(timing: Timing) -> Timing:
    """Return a tree with totals that stay sums of a few seconds."""
    return replace(timing, total_ns=timing.total_ns % 10**9, children=tuple(map(shrunk, timing.children)))


@given(root=plain(st.text(max_size=5), st.integers(2000, 2**40), st.just(1)))
@settings(max_examples=60, deadline=None)
def test_chrome_trace_means_the_same_to_others(root: Timing) -> None:
    """A reader that nests our events by time, as viewers do, sees our names and totals."""
    root = long_enough(root)
    document = json.loads(traces.write([TimerTree(root)], "chrome"))
    del document["otherData"]
    (tree,) = parse(document)
    (top,) = tree.root.children
    assert names_of(top) == names_of(root)


@given(tree=ANY_TREE)
@settings(max_examples=60, deadline=None)
def test_chrome_bars_nest_on_every_track(tree: TimerTree) -> None:
    """No bar of a track overlaps another in part, also where children took longer than their parent."""
    small = replace(tree, root=shrunk(tree.root), workers=())
    tracks: dict[int, list[dict[str, Any]]] = {}
    for one in json.loads(traces.write([small], "chrome"))["traceEvents"]:
        if one["ph"] == "X":
            tracks.setdefault(one["tid"], []).append(one)
    assert len(tracks) == 1 + sum(timing.is_parallel for _, timing in small.root.walk())
    for events in tracks.values():
        open_: list[tuple[int, int]] = []
        for one in events:
            start, length = round(one["ts"] * 1000), round(one["dur"] * 1000)
            while open_ and (one["args"]["depth"] <= open_[-1][0]):
                open_.pop()
            assert not open_ or start + length <= open_[-1][1]
            open_.append((one["args"]["depth"], start + length))


@pytest.mark.parametrize("name", traces.FORMATS)
def test_deep_trees_come_back(name: str) -> None:
    """300 levels are no trouble in any format."""
    assert len(list(levels(again([chain(300)], name)[0].root))) == 301


def test_tree_deeper_than_json_can_be_is_an_error() -> None:
    """ML-Agents' JSON nests as the tree does: the way out is a format that does not."""
    with pytest.raises(TimerFileError, match="too deeply for ML-Agents' JSON; write them as json"):
        traces.write([chain(5000)], "mlagents")
    assert '"depth": 5000' in traces.write([chain(5000)], "json")


def test_mlagents_holds_one_tree() -> None:
    """Several trees are not squeezed into a file for one."""
    with pytest.raises(TimerFileError, match="holds one tree, these are 2: choose one"):
        traces.write([chain(1), chain(1)], "mlagents")


# --------------------------------------------------------------------------- files nobody can read

OWN = json.loads(traces.tree_to_json(chain(2)))
NODE = {"total": 1.0, "count": 1}
DEEP_ROWS = [{"depth": depth, "name": "a", "count": 1, "total_ns": 1} for depth in range(DEEPEST + 2)]
OURS = json.loads(traces.write([TimerTree(Timing("root", 1, 1), workers=(chain(1),))], "chrome"))


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
    ("content", "message"),
    [
        # not a file of timers at all
        (b"", "cannot be read: it is empty; it was cut off"),
        (b" \n ", "it is empty"),
        (b"hello\nworld\n", "this text is in none of the formats that can be read; those are pytest-rlperf's JSON"),
        (b'{"a": 1}', "this JSON is in none of the formats that can be read; those are .*Sample Factory's text"),
        (b"[]", "this JSON is in none of the formats"),
        (b"[[1]]", "this JSON is in none of the formats"),
        (b"[2024-01-01 10:00:00,123][00123] started\n", "this text is in none of the formats"),
        (b'"text"', "this text is in none of the formats"),
        (b"{}\n\xff\xfe", r"line 2: byte 3 is not UTF-8: invalid start byte"),
        (b"\x80\x04\x95", "line 1: byte 0 is not UTF-8"),
        (b"\x1f\x8bnot really", "the gzip data are damaged"),
        (gzip.compress(TRACE.read_bytes())[:-400], "the gzip data end early; it was cut off"),
        # JSON that is cut off, or is none
        (TRACE.read_bytes()[:9000], r"line \d+, column \d+: the JSON ends early; it was cut off"),
        (b'{"total": 1.0, "count": 1, "children"', "line 1, column 38: the JSON ends early"),
        (b'{"total": 1.', "line 1, column 12: the JSON ends early"),
        (b'{"total": nul', "line 1, column 11: the JSON ends early"),
        (b'{"name": "roo', "line 1, column 10: the JSON ends early"),
        (b'{"name": "roo\\u00', "the JSON ends early"),
        (b'{"total": 1,\n "count": 1]', "line 2, column 12: this is not JSON: Expecting ',' delimiter; save it again"),
        (b'{"total": 1.0, "count": 1}{', "line 1, column 27: this is not JSON: Extra data"),
        (b'{"a":' * 100_000, "it is nested too deeply; keep fewer levels"),
        # ML-Agents
        ({**NODE, "total": "x"}, "as ML-Agents' JSON: total is 'x', expected a number; save it again"),
        ({**NODE, "children": {"run": {"count": 1}}}, "children.run has no 'total'"),
        ({**NODE, "children": {"run": {**NODE, "total": [1]}}}, "children.run.total is a list, expected a number"),
        ({**NODE, "children": {"run": {**NODE, "total": True}}}, "children.run.total is true, expected a number"),
        ({**NODE, "children": {"C.x": {**NODE, "total": None}}}, r"children\['C.x'\].total is null, expected a number"),
        ({**NODE, "children": {"run": {**NODE, "count": 1.5}}}, "children.run.count is 1.5, expected an integer"),
        ({**NODE, "children": {"run": {**NODE, "count": -1}}}, "children.run.count is -1, expected an integer from 0"),
        ({**NODE, "children": {"run": 3}}, "children.run is 3, expected an object"),
        ({**NODE, "children": [NODE]}, "children is a list, expected an object"),
        ({**NODE, "is_parallel": 1}, "is_parallel is 1, expected true or false"),
        ({**NODE, "total": -0.5}, "total is -0.5, expected a time that is not negative"),
        ({**NODE, "total": math.nan}, "total is NaN, expected a number of at most"),
        ({**NODE, "total": math.inf}, "total is Infinity, expected a number of at most"),
        ({**NODE, "total": 1e300}, r"total is 1E\+300, expected a number of at most 9.22e\+09"),
        (b'{"count": 1, "total": 1e999999999999999999999}', "total is Infinity, expected a number"),
        (b'{"total": 1, "count": ' + b"9" * 9000 + b"}", "count is 9+…, expected an integer"),
        ({**NODE, "count": 2**63}, f"count is {2**63}, expected an integer from 0 to {2**63 - 1}"),
        ({**NODE, "name": 3}, "name is 3, expected a text"),
        ({**NODE, "metadata": {"a": 1}}, "metadata.a is 1, expected a text"),
        ({**NODE, "gauges": {"r": {"value": "high"}}}, "gauges.r.value is 'high', expected a number"),
        (b'{"total": 1, "count": 1, "gauges": {"r": {"value": NaN}}}', "gauges.r.value is NaN, expected a number"),
        (b'{"total": 1, "total": 2, "count": 1}', "the document has the key 'total' twice"),
        (
            b'{"total": 1, "count": 1, "children": {"\x1b[2J": {"total": 1, "count": 1, "count": 2}}}'.replace(
                b"\x1b", b"\\u001b"
            ),
            r"children\['\\x1b\[2J'\] has the key 'count' twice",
        ),
        # Sample Factory
        ("A tree view:\na: 0.1000\n    b: 0.1000\n", "line 3: indented by 4, which no line above leads to"),
        ("A tree view:\na: 0.1000\n   b: 0.1000\n", "line 3: indented by 3"),
        ("A tree view:\n  a: 0.1000\n", "line 2: indented by 2"),
        ("A tree view:\na: 0.1000, b: 0.1000\n  c: 0.1000\n", "line 3: it is below several timings, not one"),
        ("A tree view:\na: 0.10", "line 2: 'a: 0.10' is not 'name: seconds' with four decimals; it was cut off"),
        ("A tree view:\na: 0.1000, b", "line 2: 'b' is not 'name: seconds'"),
        ("A tree view:\na: 0.1000\n  b", "line 3: 'b' is not 'name: seconds'"),
        ("A tree view:\na: 0.1000\nbatch", "line 3: the log ends within a tree; it was cut off"),
        ("x\nA tree view:", "line 2: the log ends with the heading of a timer tree; it was cut off"),
        ("A tree view:\na: nan\n", "line 2: 'a: nan' is not"),
        ("A tree view:\na: -0.1000\n", "line 2: 'a: -0.1000' is not"),
        ("A tree view:\na: 0.1\n", "line 2: 'a: 0.1' is not 'name: seconds' with four decimals; save it again"),
        ("A tree view:\na: 99999999999.0000\n", "line 2: 'a' took longer than a lifetime"),
        ("_name: A, a: 0.1000, b: x\n", "line 1: 'b: x' is not"),
        (
            "A tree view:\n" + "".join("  " * n + "a: 0.1000\n" for n in range(DEEPEST + 1)),
            f"line {DEEPEST + 2}: the tree is nested more than {DEEPEST} deep",
        ),
        # Chrome
        ({"traceEvents": 3}, "as a Chrome trace: traceEvents is 3, expected a list"),
        ({"traceEvents": []}, r"traceEvents has nothing that took time \(X, or B and E\); record with some activity"),
        ({"traceEvents": [3]}, r"traceEvents\[0\] is 3, expected an object"),
        ({"traceEvents": [{"name": "a"}]}, r"traceEvents\[0\] has no 'ph'"),
        ([event("X", "a", 0, dur=1), event("X", "a", 0)], r"\[1\] has no 'dur'"),
        ([event("X", "a", 0, dur=-1)], r"\[0\].dur is -1, expected a time that is not negative"),
        ([event("X", "a", 0, dur="1")], r"\[0\].dur is '1', expected a number"),
        ([event("X", "a", math.nan, dur=1)], r"\[0\].ts is NaN, expected a number"),
        ([event("X", "a", 1e30, dur=1)], r"\[0\].ts is 1E\+30, expected a number of at most"),
        ([{**event("X", "a", 0, dur=1), "tid": [1]}], r"\[0\].tid is a list, expected a number or a text"),
        ([{**event("X", "a", 0, dur=1), "name": None}], r"\[0\].name is null, expected a text"),
        ([event("E", "a", 0)], r"\[0\] ends \(E\) what never began \(B\)"),
        ([event("B", "a", 0), event("B", "b", 1), event("E", "b", 2)], r"\[0\] begins \(B\) what never ends \(E\)"),
        ([event("B", "a", 0), event("E", "b", 2)], r"\[1\] ends 'b', but \[0\], 'a', is open"),
        ([event("X", "a", n, dur=5000 - 2 * n) for n in range(DEEPEST + 1)], r"\[500\]: the tree is nested more than"),
        (changed(OURS, "otherData", "rlperf-timers", "version", to=2), "otherData.rlperf-timers.version is 2, this"),
        (changed(OURS, "traceEvents", 2, "args", "depth", to=1), r"traceEvents\[2\].args: a depth of 1 does not"),
        (changed(OURS, "traceEvents", 2, "args", to={}), r"traceEvents\[2\].args has no 'count'"),
        (
            changed(OURS, "otherData", "rlperf-timers", "trees", 1, "worker_of", to=2),
            r"trees\[1\].worker_of is 2, expected a process before its own",
        ),
        (
            changed(OURS, "otherData", "rlperf-timers", "trees", 1, "pid", to=1),
            r"trees\[1\].worker_of is 1, expected a process before its own",
        ),
        (
            changed(OURS, "otherData", "rlperf-timers", "trees", 0, to=None),
            "trees lacks processes that have workers or events: 1",
        ),
        # speedscope
        ({"shared": {}, "profiles": []}, "as speedscope's JSON: shared has no 'frames'"),
        ({**SPEEDSCOPE, "profiles": []}, "profiles is a list, expected at least one profile"),
        (speedscope(type="tree"), r"profiles\[0\].type is 'tree', expected 'evented' or 'sampled'"),
        (speedscope(type="evented", unit="bytes"), r"profiles\[0\].unit is 'bytes', expected a unit of time"),
        (evented(("O", 10, 2)), r"events\[0\].frame is 2, expected the number of one of 2 frames"),
        (evented(("O", 10, -1)), r"events\[0\].frame is -1, expected an integer"),
        (evented(("O", 10, 0), ("C", 9, 0)), r"events\[1\].at is 9, expected a time no earlier than the one before"),
        (evented(("O", 10, 0), ("C", 12, 1)), r"events\[1\] closes 'step', which is not the last one opened"),
        (evented(("C", 12, 1)), r"events\[0\] closes 'step', which is not the last one opened"),
        (evented(("O", 10, 0)), r"profiles\[0\].events ends with 'main' open"),
        (evented(("X", 10, 0)), r"events\[0\].type is 'X', expected 'O' or 'C'"),
        (evented(("O", 10, 0), ("C", 12, 0), end=11), r"endValue is 11, expected a time no earlier than the last"),
        (speedscope(type="sampled", samples=[[0]], weights=[]), r"profiles\[0\] has 1 samples, but 0 weights"),
        (speedscope(type="sampled", samples=[[0]], weights=[-1]), r"weights\[0\] is -1, expected a time that is not"),
        # our own
        ({**OWN, "version": 2}, "version is 2, this reads up to 1; upgrade pytest-rlperf"),
        ({**OWN, "version": 0}, "version is 0, expected a version, of which 1 is the first"),
        ({"format": "rlperf-timers"}, "as pytest-rlperf's JSON of timers: the document has no 'version'"),
        (changed(OWN, "trees", 0, "timings", to=[]), r"trees\[0\].timings is a list, expected at least the root"),
        (changed(OWN, "trees", 0, "timings", 2, "depth", to=3), r"timings\[2\]: a depth of 3 does not follow one of 1"),
        (changed(OWN, "trees", 0, "timings", 2, "depth", to=0), r"timings\[2\]: a depth of 0 does not follow one of 1"),
        (changed(OWN, "trees", 0, "timings", 0, "depth", to=1), r"timings\[0\]: a depth of 1 does not follow"),
        (changed(OWN, "trees", 0, "timings", 1, "total_ns", to=1.5), r"timings\[1\].total_ns is 1.5, expected an int"),
        (changed(OWN, "trees", 0, "timings", 1, "mode", to="max"), r"mode is 'max', expected one of sum, last, mean"),
        (changed(OWN, "trees", 0, "timings", 1, "mode", to=[1]), r"timings\[1\].mode is a list, expected one of"),
        (changed(OWN, "trees", 0, "timings", 1, "recent_ns", to=[1, -1]), r"timings\[1\].recent_ns\[1\] is -1"),
        (
            changed(OWN, "trees", 0, "gauges", "r", to={"value": [], "low": 0, "high": 1, "count": 1}),
            "gauges.r.value is a list, expected a number",
        ),
        (changed(OWN, "trees", 0, "timings", to=DEEP_ROWS), f"the tree is nested more than {DEEPEST} deep"),
    ],
)
def test_unreadable_file_names_its_place(content: str | bytes | dict[str, Any] | list[Any], message: str) -> None:
    """Whatever is wrong, the error names the file, the place in it and a way out, on one harmless line."""
    with pytest.raises(TimerFileError, match=message) as raised:
        parse(content)
    text = str(raised.value)
    assert text.startswith("some.file cannot be read")
    assert "; " in text
    assert text.isprintable()
    assert len(text) < 400


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_trees_or_an_error(data: bytes) -> None:
    """No content raises anything else."""
    with suppress(TimerFileError):
        traces.parse(data, "x")


@given(data=st.data(), name=st.sampled_from(list(traces.FORMATS)))
@settings(max_examples=200, deadline=None)
def test_damaged_files_are_trees_or_an_error(data: st.DataObject, name: str) -> None:
    """A real file with a piece cut out or put in is read or refused."""
    content = traces.write([traces.read(SAMPLES / "mlagents_timers.json")[0]], name).encode()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    piece = data.draw(st.sampled_from([b"", b"0", b'"', b"{", b"]", b"null", b"-", b"\n", b"1e999", b"\xff"]))
    with suppress(TimerFileError):
        traces.parse(content[:start] + piece + content[end:], "x")


def test_cut_off_json_is_always_an_error() -> None:
    """Wherever a file was cut off, nothing is read of it."""
    for name in ("json", "mlagents", "chrome", "speedscope"):
        content = traces.write([chain(2)], name).strip().encode()
        for end in range(len(content)):
            with pytest.raises(TimerFileError):
                traces.parse(content[:end], "x")


@pytest.mark.parametrize("path", ["missing.json", ".", "nul\0.json"])
def test_file_that_cannot_be_opened(path: str, tmp_path: Path) -> None:
    """No such file, a directory or no name at all: the same error."""
    with pytest.raises(TimerFileError, match=r"cannot read .*; give the path of a file that can be read"):
        traces.read(tmp_path / path)


def test_one_tree_is_asked_of_our_json() -> None:
    """Two processes exchange one tree in our own JSON; anything else is an error."""
    with pytest.raises(TimerFileError, match="the text holds 2 trees, expected one"):
        traces.tree_from_json(traces.write([chain(1), chain(1)], "json"))
    with pytest.raises(TimerFileError, match="worker 3 cannot be read: this JSON is in none of the formats"):
        traces.tree_from_json(traces.write([chain(1)], "mlagents"), "worker 3")
