"""Counts of calls without PyTorch, by hand-made calls with known counts."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from counts import exact
from virtual_gpu import VirtualGPU
from wording import Wording

from pytest_rlperf.counters import tally
from pytest_rlperf.counters.operations import launches
from pytest_rlperf.model.measured import Tally
from pytest_rlperf.probes.functions import probes_for
from pytest_rlperf.timers import hierarchical_timer

OUTER = hierarchical_timer("outer")
INNER = hierarchical_timer("inner")
HAS_MONITORING = sys.version_info >= (3, 12)


def count(call: Callable[[], object], **given: Any) -> Tally:
    return tally(call, **{"setup": None, "probes": (), "repetitions": 3, **given})


def state() -> list[object]:
    monitoring = getattr(sys, "monitoring", None)
    return [
        sys.getprofile(),
        threading.getprofile(),
        [] if monitoring is None else [monitoring.get_tool(tool) for tool in range(6)],
        tracemalloc.is_tracing(),
        [gc.isenabled(), gc.get_threshold(), list(gc.callbacks)],
        [list(warnings.filters), warnings.showwarning],
    ]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Find everything after each test as it was before."""
    before = state()
    yield
    assert state() == before


def leaf(value: int) -> float:
    return math.sqrt(value)


def branch() -> None:
    with OUTER:
        leaf(1)
        with INNER:
            leaf(2)
            leaf(3)
    leaf(4)


def test_calls_are_counted_by_phase() -> None:
    """A phase has its own calls and those of the phases within; zeros are the whole call's alone."""
    found = exact(count(branch))
    assert found["", "garbage"] == found["", "env_steps"] == found["", "ops"] == found["", "recompiles"] == 0
    assert not [place for place, value in found.items() if place[0] and not value]
    assert not [name for _, name in found if name.startswith(("syncs", "device_"))]  # there is no device
    assert [found[path, "python_calls"] for path in ("", "outer", "outer/inner")] == [5, 3, 2]
    assert [found[path, "native_calls:math"] for path in ("", "outer", "outer/inner")] == [4, 3, 2]
    assert found["", "native_calls"] == 4  # entering and leaving phases is nobody's


def test_only_instruments_that_are_asked_for_count() -> None:
    """By the name of any of their counts: the call is made for these alone, and no note is about the others."""
    made: list[int] = []

    def call() -> None:
        made.append(1)
        branch()

    every, some = exact(count(call)), count(call, names=["native_calls:math", "native_calls:other"])
    wanted = {"python_calls", "native_calls", "graphs", "graph_breaks", "recompiles"}
    assert exact(some) == {place: value for place, value in every.items() if place[1].partition(":")[0] in wanted}
    assert some.notes == ()
    made.clear()
    count(call, names=["python_calls", "garbage"])
    assert len(made) == 2 * (1 + 3)


def test_what_probes_do_is_not_counted() -> None:
    """A function with a timer put around it is one call as before, a native one too."""
    holder = SimpleNamespace(run=leaf, root=math.sqrt)

    def call() -> None:
        holder.run(4)
        holder.root(9)

    plain = exact(count(call))
    timed = exact(count(call, probes=probes_for({"run": "run", "root": "root"}, holder)))
    assert [timed["", name] for name in ("python_calls", "native_calls:math")] == [2, 2]
    assert [plain["", name] for name in ("python_calls", "native_calls:math")] == [2, 2]
    assert timed["run", "python_calls"] == timed["run", "native_calls:math"] == 1


@pytest.mark.skipif(HAS_MONITORING, reason="the interpreter tells several tools")
def test_a_profiler_goes_on_and_calls_are_not_counted(wording: Wording) -> None:
    """Somebody's profile function stays where it is; a note says what is missing."""
    seen: list[str] = []

    def mine(frame: object, event: str, arg: object) -> None:
        seen.append(event)

    sys.setprofile(mine)
    try:
        found = count(branch)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert seen.count("call") > 5
    assert [note for note in found.notes if "python_calls" in note] == wording
    counted = exact(found, memory=False)
    assert ("", "python_calls") not in counted
    assert counted["", "garbage"] == 0


def test_memory_and_setups_are_counted_by_phase() -> None:
    """A phase's peak is over what was there when it began; what it leaves behind is its net.

    A setup runs before every call, and is not counted: the n-th call finds what the n-th setup made.
    """
    kept: list[object] = [None] * 64
    places: list[int] = []
    numbers = iter(range(64))

    def setup() -> None:
        places.append(math.floor(next(numbers)))

    def call() -> None:
        with OUTER:
            kept[places.pop()] = bytes(100_000)
            with INNER:
                bytes(300_000)

    found = exact(count(call, setup=setup))
    assert not places
    assert ("", "native_calls:math") not in found
    assert 100_000 <= found["", "host_net_bytes"] < 101_000
    assert 400_000 <= found["", "host_peak_bytes"] + 1024 < 404_000
    assert 100_000 <= found["outer", "host_net_bytes"] < 101_000
    assert 300_000 <= found["outer/inner", "host_peak_bytes"] + 1024 < 303_000
    assert ("outer/inner", "host_net_bytes") not in found


class Holder:
    """Holds something that only the collector releases: it knows itself."""

    def __init__(self, held: object) -> None:
        self.held, self.itself = held, self


def test_what_garbage_holds_is_counted() -> None:
    """Memory, files and child processes that the collector frees, in whichever phase they were left."""

    def call() -> None:
        with OUTER:
            Holder(bytes(50_000))
        Holder(open(os.devnull))  # noqa: SIM115, PTH123
        bytes(300_000)

    found = exact(count(call))
    assert 50_000 <= found["", "garbage_bytes"] + 1024 < 60_000
    assert found["", "garbage_files"] == 1
    assert (found["", "garbage_threads"], found["", "garbage_processes"]) == (0, 0)
    assert ("outer", "garbage_bytes") not in found


class Child:
    """A process that ends with the object."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    def __del__(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_of_garbage_are_counted() -> None:
    """A child process that ends once the collector comes, and the pipe to it."""
    found = exact(count(lambda: Holder(Child())))
    assert (found["", "garbage_processes"], found["", "garbage_files"]) == (1, 1)


def test_garbage_and_what_is_left_are_counted() -> None:
    """A cycle of two lists is two objects only the collector frees; three dicts in a list are left behind."""
    kept: list[object] = []

    def call() -> None:
        one: list[object] = []
        one.append([one])
        kept.extend({"row": [i]} for i in range(3))

    found = exact(count(call), memory=False)
    assert [found["", name] for name in ("garbage", "objects_left", "collections")] == [2, 6, 0]


def test_collections_are_counted_by_phase() -> None:
    """Many objects set the collector off, in the phase that makes them."""
    before = gc.get_threshold()

    def call() -> None:
        with OUTER:
            rows = [[i] for i in range(1000)]
            with INNER:
                rows += [[i] for i in range(1000)]

    gc.set_threshold(100, 1000, 1000)
    try:
        found = exact(count(call))
    finally:
        gc.set_threshold(*before)
    assert 15 <= found["", "collections"] <= 25
    assert 5 <= found["outer/inner", "collections"] <= 12


def test_a_call_that_fails_while_it_is_counted_leaves_notes_and_no_count() -> None:
    """Each counter that a working call has is named in a note with the call's error; the next, uncounted call works."""
    made: list[None] = []

    def call() -> None:
        made.append(None)
        with OUTER:
            if len(made) % 2:
                raise ValueError("it broke")

    counted = {each.name for each in count(branch).repetitions[0] if ":" not in each.name}
    found = count(call)
    assert found.repetitions == ((), (), ())
    assert found.has_failed
    # Where this process has compiled something before, operations are left out because the call may run compiled code.
    reasons = {
        name: note
        for note in found.notes
        for name in note.removeprefix("not counted: ").partition(":")[0].split(", ")
        if "ValueError: it broke" in note or "torch.compile" in note
    }
    assert {"python_calls", "host_peak_bytes", "objects_left"} <= counted <= reasons.keys()
    assert "it broke" in reasons["python_calls"]


@pytest.mark.parametrize("fails_from", [1, 2, 5])
def test_a_call_that_fails_again_uncounted_raises(fails_from: int) -> None:
    """It comes after a setup of its own, and everything is as it was before."""
    made: list[str] = []

    def call() -> None:
        made.append("call")
        with OUTER:
            if made.count("call") >= fails_from:
                raise ValueError(f"it broke at {made.count('call')}")

    with pytest.raises(ValueError, match=f"^it broke at {fails_from + 1}$"):
        count(call, setup=lambda: made.append("setup"))
    assert made == ["setup", "call"] * (fails_from + 1)


def test_a_call_of_a_certain_number_that_fails_leaves_out_one_counter() -> None:
    """The next call works, and so does what else is counted; the tally shows that there is a doubt."""
    made: list[None] = []

    def call() -> None:
        made.append(None)
        if len(made) == 2:
            raise ValueError("it broke")
        math.sqrt(4)

    found = count(call)
    assert found.has_failed
    (note,) = (note for note in found.notes if "it broke" in note)
    left_out = note.removeprefix("not counted: ").partition(":")[0].split(", ")
    counted = {each.name for each in found.repetitions[0]}
    assert counted
    assert counted.isdisjoint(left_out)
    # Where this process has compiled something before, other counters are left out for that.
    all_left_out = {
        name for each in found.notes for name in each.removeprefix("not counted: ").partition(":")[0].split(", ")
    }
    assert {*all_left_out, *counted} >= {each.name for each in count(branch).repetitions[0] if ":" not in each.name}


@pytest.mark.skipif(not HAS_MONITORING, reason="Python 3.12 has sys.monitoring")
def test_calls_are_not_counted_if_other_tools_have_all_numbers() -> None:
    """The other counts are, and counting has not failed."""
    monitoring: Any = sys.modules["sys"].monitoring
    taken = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "another")
    try:
        found = count(lambda: None)
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)
    assert not found.has_failed
    assert any("sys.monitoring" in note for note in found.notes)
    assert any(each.name == "host_peak_bytes" for each in found.repetitions[0])


@pytest.mark.parametrize("is_disturbed", [tracemalloc.is_tracing, lambda: not gc.isenabled()])
def test_a_call_that_fails_for_what_counting_needs_leaves_notes(is_disturbed: Callable[[], bool]) -> None:
    """One that does not stand a trace of memory, or the collector being off, works without them."""

    def call() -> None:
        if is_disturbed():
            raise RuntimeError("it broke")

    assert count(call).has_failed


@pytest.mark.parametrize("call", [branch, lambda: None])
def test_what_cannot_be_counted_is_no_failure(call: Callable[[], None]) -> None:
    """A call that works leaves no doubt, whichever counters there are not on this machine."""
    assert not count(call).has_failed


def test_a_device_is_counted_by_phase() -> None:
    """Launches, copies and implicit waits are those of the phase they were made in, as is memory."""
    gpu = VirtualGPU()
    gpu.allocate(10_000)

    def call() -> None:
        with OUTER:
            gpu.launch(1e-3)
            gpu.copy_to_device(1000, pinned=True)
            with INNER:
                batch = gpu.allocate(4_000_000)
                gpu.launch(1e-3)
                gpu.item()
                batch.free()
        gpu.copy_to_host(1000, pinned=False)

    found = exact(count(call, devices=(gpu,)))
    assert [found[path, "kernels"] for path in ("", "outer", "outer/inner")] == [2, 2, 1]
    assert [found[path, "syncs"] for path in ("", "outer", "outer/inner")] == [2, 1, 1]
    assert found["outer", "copies_to_device"] == found["", "copies_to_host"] == found["", "pageable_copies"] == 1
    assert ("outer", "pageable_copies") not in found
    assert found["", "device_allocations"] == 0  # from the second call on there is a block to use again
    assert found["outer/inner", "device_peak_bytes"] == found["", "device_peak_bytes"] >= 4_000_000


def event(name: str, start: float, *, kernels: tuple[str, ...] = (), device: str = "CPU") -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start),
        kernels=[SimpleNamespace(name=kernel) for kernel in kernels],
        device_type=SimpleNamespace(name=device),
    )


def test_kernels_are_those_of_the_stretch_that_launched_them() -> None:
    """Marks among operations tell; copies are no kernels, and one that no operation launched is the whole call's."""
    edge = "rlperf edge"
    events = [
        event(edge, 10.0),
        event("aten::mm", 11.0, kernels=("gemm",)),
        event(edge, 20.0),
        event("aten::copy_", 21.0, kernels=("Memcpy HtoD",)),
        event("aten::add", 22.0, kernels=("add", "add")),
        event(edge, 30.0),
        *(
            event(name, 40.0, device="CUDA")
            for name in ("gemm", "add", "add", "triton", "Memcpy HtoD", "Memset (Device)")
        ),
    ]
    assert launches(events) == (4, [0, 1, 2, 0])
