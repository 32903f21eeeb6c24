"""Traces of one call: phases, threads, child processes and devices as ranges of Chrome's format."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from builders import TWO_PAIRS
from example import USAGE, Example
from slice_bench import KERNEL_S, Bench

from pytest_rlperf.devices import driving
from pytest_rlperf.model.measured import Harvest
from pytest_rlperf.probes.functions import probes_for
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.worker import trace
from pytest_rlperf.worker.trace import HOST, RUNNING, CallTrace, Span, chrome_trace, trace_call


def traced(call: Any, *probes: Any) -> CallTrace:
    return trace_call(Harvest(call, probes), None, None, time.perf_counter_ns)


def rows(text: str) -> dict[tuple[str, str], list[tuple[str, float, float]]]:
    """Return the name, start and length of each range of a Chrome trace, by its process and track."""
    events = json.loads(text)["traceEvents"]
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    tracks = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    found: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    for each in events:
        if each["ph"] == "X":
            place = processes[each["pid"]], tracks[each["pid"], each["tid"]]
            found.setdefault(place, []).append((each["name"], each["ts"], each["dur"]))
    return found


def test_every_entry_of_a_phase_is_a_range() -> None:
    """Ranges lie within the call and within each other, in their order; probes' are among them."""

    class Agent:
        def act(self) -> None: ...

        def step(self) -> None:
            for _ in range(2):
                with hierarchical_timer("outer"):
                    self.act()

    agent = Agent()
    found = traced(agent.step, *probes_for({"act": "act"}, agent))
    ((place, ranges),) = rows(chrome_trace(found, "it")).items()
    assert place == ("it", HOST)
    assert [name for name, *_ in ranges] == ["call", "outer", "act", "outer", "act"]
    starts, ends = [start for _, start, _ in ranges], [start + length for _, start, length in ranges]
    assert starts == sorted(starts)
    assert ends[0] >= ends[3] >= ends[4]
    assert ends[1] >= ends[2]
    assert [span.name for span in found.spans] == ["call", "outer", "outer/act", "outer", "outer/act"]


def test_other_threads_have_tracks_of_their_own() -> None:
    """A phase of another thread is on the track with its name."""

    def work() -> None:
        with hierarchical_timer("work"):
            pass

    def call() -> None:
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()

    assert {(span.name, span.track) for span in traced(call).spans} == {("call", HOST), ("work", "loader")}


def test_a_long_call_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entries are kept whole, and a note has the number of the others."""
    monkeypatch.setattr(trace, "MOST_ENTRIES", 3)

    def call() -> None:
        for _ in range(4):
            with hierarchical_timer("outer"), hierarchical_timer("inner"):
                pass

    found = traced(call)
    assert [span.name for span in found.spans] == ["call", "outer", "outer/inner", "outer"]
    assert found.notes == ("the trace has the first 3 entries; 5 more were left out",)


def _spin(connection: Any) -> None:
    while connection.recv():
        end_s = time.process_time() + 0.01
        while time.process_time() < end_s:
            pass
        connection.send(None)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc/PID/schedstat")
def test_child_processes_are_seen_from_outside() -> None:
    """What ran on a CPU within the call has ranges, those of no other time; one that waits has none."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_spin, args=(there,), name=name) for name in ("worker", "idle")]
    other_end = multiprocessing.Pipe()
    children[1] = context.Process(target=_spin, args=(other_end[1],), name="idle")
    for child in children:
        child.start()

    def call() -> None:
        here.send(True)
        here.recv()

    try:
        call()
        found = traced(call)
    finally:
        for connection in (here, other_end[0]):
            connection.send(False)
        for child in children:
            child.join()
    length_ns = found.spans[0].end_ns
    ran = [span for span in found.spans if span.name == RUNNING]
    assert {span.process for span in ran} == {f"worker ({children[0].pid})"}
    assert all(0 <= span.start_ns < span.end_ns <= length_ns for span in ran)
    # It worked for 10 ms; what it did right before the call ended may not have been added up in time.
    assert sum(span.end_ns - span.start_ns for span in ran) > 5e6


def test_child_processes_that_wait_have_no_ranges() -> None:
    """A child that does nothing during the call leaves the trace as it is."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_spin, args=(there,))
    child.start()
    try:
        here.send(True)
        here.recv()
        found = traced(lambda: None)
    finally:
        here.send(False)
        child.join()
    assert ([span.name for span in found.spans], found.notes) == (["call"], ())


def test_a_device_has_tracks_of_its_streams() -> None:
    """The device's part of a phase lies where the device did it, which may be after the host has gone on."""
    bench = Bench()
    with driving(bench.gpu):
        bench.warm()
        found = rows(bench.meter.trace("it"))
    assert {place for place, _ in found} == {"it"}
    (device,) = (track for _, track in found if track != HOST)
    assert device.startswith("virtual")
    host = {name: length for name, _, length in found["it", HOST]}
    ((name, _, length),) = found["it", device]
    assert name == "kernels"
    assert length == pytest.approx(3 * KERNEL_S * 1e6, rel=0.5)
    assert host["call"] >= host["kernels"]


def test_ranges_that_overlap_are_on_two_tracks() -> None:
    """Viewers draw the ranges of a track only if they nest."""
    spans = (Span("a", 0, 10, "stream"), Span("b", 5, 15, "stream"), Span("b/c", 6, 9, "stream"))
    found = rows(chrome_trace(CallTrace(spans), "it"))
    assert {track: [name for name, *_ in ranges] for (_, track), ranges in found.items()} == {
        "stream": ["a", "c"],
        "stream (2)": ["b"],
    }


@pytest.mark.slow  # seeds/test_torchrl: test_the_timeline_of_one_measured_call
def test_both_sides_of_a_live_comparison_have_a_trace(tmp_path: Path) -> None:
    """Each test and side is a file; one that cannot be written is a usage error before anything is measured."""
    example = Example(tmp_path, "live")
    example.commit()
    library = example.root / "mylib/__init__.py"
    library.write_text(library.read_text(encoding="utf-8").replace("TIMES = 1", "TIMES = 2"), encoding="utf-8")
    given = ("--rlperf-against=HEAD", *TWO_PAIRS, "-k", "work")
    example.pytest(*given, "--rlperf-trace=out/traces")
    files = {path.name.rpartition("-")[2].partition(".")[2]: path for path in (example.root / "out/traces").iterdir()}
    assert set(files) == {"base.json", "head.json"}
    for file in files.values():
        ((_, ranges),) = rows(file.read_text(encoding="utf-8")).items()
        assert [name for name, *_ in ranges] == ["call", "actor", "critic"]
    example.write({"file": ""})
    assert "cannot write --rlperf-trace=file" in example.pytest(*given, "--rlperf-trace=file", code=USAGE).words
