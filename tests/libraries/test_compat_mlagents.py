from __future__ import annotations

import asyncio
import inspect
import json
import math
import pickle
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlperf.compat import mlagents

GOLDEN = json.loads((Path(__file__).parents[1] / "samples" / "mlagents_timers.json").read_text())


class Clock:
    """Both clocks of ``time``, which a module can be given in its place."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.readings = 0

    def perf_counter(self) -> float:
        """Read the clock; each reading takes a while."""
        self.readings += 1
        self.now += 2**-20
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock by one that only the test moves."""
    clock = Clock()
    monkeypatch.setattr(mlagents, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _own_timers() -> None:
    """Give each test timers that no other has seen, as ML-Agents' users do."""
    vars(threading.current_thread()).pop(mlagents._HELD, None)


def shape(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree without figures: names, counts and marks, in their order."""
    found = {key: value for key, value in tree.items() if key not in {"total", "self", "metadata", "gauges"}}
    if "children" in found:
        found["children"] = {name: shape(child) for name, child in found["children"].items()}
    return found


def below(tree: dict[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        tree = tree["children"][name]
    return tree


class BoomError(Exception):
    """The exception that programs raise."""


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([0, 1, -3, 0.25, math.nan, math.inf])
SIMPLE = st.one_of(
    st.tuples(st.just("tick"), st.integers(0, 5)),
    st.tuples(st.just("gauge"), NAMES, VALUES),
    st.tuples(st.just("text"), NAMES, NAMES),
    st.tuples(st.just("tree")),
)
PROGRAMS = st.recursive(
    st.lists(SIMPLE, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            SIMPLE,
            st.tuples(st.sampled_from(["with", "timed", "raise", "decorated"]), NAMES, inner),
            st.tuples(st.just("worker"), st.one_of(st.none(), NAMES), st.booleans(), inner),
        ),
        max_size=4,
    ),
    max_leaves=20,
)


class Machine:
    """Runs programs with one module's timers; what its trees are like at times is in ``seen``."""

    def __init__(self, timers: Any, clock: Clock, stack: Any = None) -> None:
        self.timers = timers
        self.clock = clock
        self.stack = stack
        self.seen: list[str] = []

    def run(self, program: list[Any]) -> None:
        for action, *given_ in program:
            getattr(self, f"do_{action}")(*given_)

    def do_tick(self, n: int) -> None:
        self.clock.now += n / 8

    def do_gauge(self, name: str, value: float) -> None:
        self.timers.set_gauge(name, value, self.stack)

    def do_text(self, key: str, value: str) -> None:
        self.timers.add_metadata(key, value, self.stack)

    def do_tree(self) -> None:
        tree = self.timers.get_timer_tree(self.stack)
        self.seen.append(json.dumps(tree, indent=4))

    def do_with(self, name: str, body: list[Any]) -> None:
        with self.timers.hierarchical_timer(name, self.stack) as node:
            count = node.count
            self.run(body)
        assert node.count == count + 1

    def do_timed(self, name: str, body: list[Any]) -> None:

        def function(body: list[Any]) -> str:
            self.run(body)
            return name

        function.__qualname__ = name
        assert self.timers.timed(function)(body=body) == name

    def do_decorated(self, name: str, body: list[Any]) -> None:
        self.timers.hierarchical_timer(name, self.stack)(self.run)(body)

    def do_raise(self, name: str, body: list[Any]) -> None:
        with pytest.raises(BoomError), self.timers.hierarchical_timer(name, self.stack):  # noqa: PT012 - all of it
            self.run(body)
            raise BoomError

    def do_worker(self, root_name: str | None, is_parallel: bool, program: list[Any]) -> None:
        stack = self.timers.TimerStack()
        worker = Machine(self.timers, self.clock, stack)
        worker.run(program)
        self.seen += worker.seen
        root = pickle.loads(pickle.dumps(self.timers.get_timer_root(stack)))  # noqa: S301 - as workers send it
        with self.timers.hierarchical_timer("workers", self.stack) as node:
            node.merge(root, root_name, is_parallel)
        self.timers.merge_gauges(stack.gauges, self.stack)


def outcome(timers: Any, programs: list[list[Any]]) -> list[str]:
    """Return what trees a module makes of programs, with a reset between two of them."""
    clock = Clock()
    with mock.patch.multiple(timers, time=clock):
        machine = Machine(timers, clock)
        for program in programs:
            timers.reset_timers()
            machine.run(program)
            machine.do_tree()
    return [*machine.seen, str(clock.readings)]


@settings(max_examples=300)
@given(programs=st.lists(PROGRAMS, min_size=1, max_size=3))
def test_same_json_as_the_original(programs: list[list[Any]]) -> None:
    """Where the original does not lose track, each byte of each tree is the same, by as many readings of the clock."""
    original = pytest.importorskip("mlagents_envs.timers")
    assert outcome(mlagents, programs) == outcome(original, programs)


def test_golden_json() -> None:
    """The program that the stored JSON of the original is of makes the same tree, key for key."""

    def step(depth: int) -> None:
        with mlagents.hierarchical_timer("act"):
            pass
        if depth:
            timed_step(depth - 1)

    step.__qualname__ = "C.step"
    timed_step = mlagents.timed(step)
    mlagents.reset_timers()
    with mlagents.hierarchical_timer("run"):
        for episode in range(3):
            timed_step(2)
            for reward in range(3):
                mlagents.set_gauge("Env.Reward", (reward + episode + 1) % 3)
        with pytest.raises(BoomError), mlagents.hierarchical_timer("boom"):
            raise BoomError
        worker = mlagents.TimerStack()
        with mlagents.hierarchical_timer("env.step", worker):
            pass
        with mlagents.hierarchical_timer("workers") as node:
            node.merge(worker.get_root(), root_name="worker_root")
            node.merge(worker.get_root(), root_name="worker_root")
    mlagents.set_gauge("Env.Reward", math.nan)
    mlagents.get_timer_tree()
    mlagents.add_metadata("torch", "n/a")
    tree = json.loads(json.dumps(mlagents.get_timer_tree()))
    assert json.dumps(shape(tree)) == json.dumps(shape(GOLDEN))
    assert list(tree) == list(GOLDEN)
    assert list(tree["metadata"]) == list(GOLDEN["metadata"])
    assert tree["metadata"]["timer_format_version"] == mlagents.TIMER_FORMAT_VERSION == "0.1.0"
    assert {**tree["gauges"]["Env.Reward"], "value": 0} == GOLDEN["gauges"]["Env.Reward"]


def test_every_name_of_the_original() -> None:
    """Every name of the original is here, and its functions and methods take the same arguments."""
    original = pytest.importorskip("mlagents_envs.timers")
    names = {
        name
        for name, value in vars(original).items()
        if not name.startswith("__")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", original.__name__) == original.__name__
    }
    assert {"FuncT", "_get_thread_timer", "timed"} <= names
    names -= {"_thread_timer_stacks"}  # a thread holds its own
    assert names <= set(dir(mlagents))
    for name in names:
        own, theirs = getattr(mlagents, name), getattr(original, name)
        methods = [key for key, value in vars(theirs).items() if callable(value)] if inspect.isclass(theirs) else []
        for key in methods:
            assert _parameters(getattr(own, key)) == _parameters(getattr(theirs, key)), f"{name}.{key}"
        if inspect.isfunction(theirs):
            assert _parameters(own) == _parameters(theirs), name


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [(name, parameter.default) for name, parameter in inspect.signature(function).parameters.items()]


def test_loads_nothing_but_the_standard_library() -> None:
    """Production code that imports this pays for no other library."""
    code = "import sys; from pytest_rlperf.compat import mlagents, sample_factory, torchrl; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert not loaded & {"torch", "numpy", "pytest", "msgspec", "mlagents_envs", "sample_factory", "torchrl"}


def in_thread(body: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return thread


def test_threads_share_nothing() -> None:
    """However identifiers are given again, each thread has its own timers, and they outlive it as it is kept."""

    def work() -> None:
        with mlagents.hierarchical_timer("work"):
            pass

    threads = [in_thread(work) for _ in range(20)]
    assert len({thread.ident for thread in threads}) < 20, "no identifier was given again, so this shows nothing"
    for thread in threads:
        stack = mlagents.get_timer_stack_for_thread(thread)
        assert stack is not None
        assert stack.root.children["work"].count == 1
    assert mlagents.get_timer_stack_for_thread(threading.Thread()) is None
    assert mlagents.get_timer_stack_for_thread(in_thread(lambda: None)) is None
    gone = weakref.ref(threads.pop())
    del thread
    assert gone() is None, "its stack keeps a thread that nobody else does"


def test_reset_while_open() -> None:
    """A scope that is open at a reset is in neither tree, and says so."""
    outer = mlagents.hierarchical_timer("outer")
    outer.__enter__()
    old = mlagents.get_timer_root()
    mlagents.reset_timers()
    with pytest.warns(RuntimeWarning, match="'outer' was closed by reset_timers"):
        outer.__exit__(None, None, None)
    with mlagents.hierarchical_timer("after"):
        pass
    assert old.children["outer"].count == 0
    assert shape(mlagents.get_timer_tree())["children"] == {"after": {"count": 1}}


def test_end_out_of_order(clock: Clock) -> None:
    """A scope that ends before one within it warns, and both have their own time."""
    first, second = mlagents.hierarchical_timer("first"), mlagents.hierarchical_timer("second")
    first.__enter__()
    second.__enter__()
    clock.now += 1
    with pytest.warns(RuntimeWarning, match="'first' ended before 'second'") as caught:
        first.__exit__(None, None, None)
    assert caught[0].filename == __file__
    clock.now += 2
    second.__exit__(None, None, None)
    tree = mlagents.get_timer_tree()
    assert below(tree, "first")["total"] == pytest.approx(1, abs=1e-4)
    assert below(tree, "first", "second")["total"] == pytest.approx(3, abs=1e-4)
    assert len(mlagents._get_thread_timer().stack) == 1


def test_coroutines_are_timed_to_their_end(clock: Clock) -> None:
    """A coroutine's time has what it waits for."""

    @mlagents.hierarchical_timer("wait")
    async def wait(ticks: int) -> int:
        for _ in range(ticks):
            with mlagents.hierarchical_timer("tick"):
                clock.now += 1
            await asyncio.sleep(0)
        return ticks

    async def other() -> None:
        clock.now += 8

    async def main() -> list[int]:
        task = asyncio.ensure_future(other())
        ticks = [await wait(1), await wait(3)]
        await task
        return ticks

    assert inspect.iscoroutinefunction(wait)
    assert asyncio.run(main()) == [1, 3]
    tree = mlagents.get_timer_tree()
    assert (below(tree, "wait")["count"], below(tree, "wait", "tick")["count"]) == (2, 4)
    assert below(tree, "wait")["total"] == pytest.approx(12, abs=1e-3)
