"""The timer tree, by a clock that stands still."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf import timers
from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.timers import FakeClock, Tree, hierarchical_timer, recording, recording_into, timed
from pytest_rlperf.timers.node import Node
from pytest_rlperf.timers.tree import EdgeStack, EdgeTree, path_of

SECOND = 10**9
Figures = dict[str, tuple[float, float, float]]


def figures(tree: Tree) -> Figures:
    """Return each path's count, total and self seconds, other threads' left out."""
    return {phase.path: (phase.count, phase.total_s, phase.self_s) for phase in tree.phases(1)}


def everything(tree: TimerTree) -> Figures:
    """Return each path's count, total and self seconds, whoever ran it."""
    return {
        "/".join(path): (timing.count, timing.total_ns / SECOND, timing.self_ns / SECOND)
        for path, timing in tree.root.walk()
    }


def test_extremes_and_the_last_entry_are_kept(clock: FakeClock) -> None:
    """A path knows its shortest, longest and last entries; one that takes no time is one."""
    for times in ((2, 5, 1, 3), (0,)):
        with recording(clock) as tree:
            for seconds in times:
                with hierarchical_timer("step"):
                    clock.advance(seconds)
        step = tree.snapshot().at("step")
        found = (step.count, step.total_ns, step.min_ns, step.max_ns, step.last_ns)
        assert found == (len(times), *(SECOND * each for each in (sum(times), min(times), max(times), times[-1])))


def test_deep_recursion_can_be_read(clock: FakeClock) -> None:
    """A tree may be as deep as Python recurses."""
    scope = hierarchical_timer("down")

    def descend(levels: int) -> None:
        with scope:
            if levels:
                descend(levels - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(6000)
    try:
        with recording(clock) as tree:
            descend(2000)
    finally:
        sys.setrecursionlimit(limit)
    assert max(phase.depth for phase in tree.phases(1)) == 2000


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_would_break_paths_is_refused(name: str) -> None:
    """Paths join names by slashes."""
    with pytest.raises(ValueError, match="timer's name"):
        hierarchical_timer(name)


def test_leaving_out_of_order_is_told_and_adds_up(clock: FakeClock) -> None:
    """The end of a scope ends the open scopes within it, with a warning, and their own later ends change nothing."""
    outer, inner = hierarchical_timer("outer"), hierarchical_timer("inner")
    with recording(clock) as tree:
        for _ in range(2):
            outer.__enter__()
            clock.advance(1)
            inner.__enter__()
            clock.advance(2)
            with pytest.warns(RuntimeWarning, match="'inner'.*'outer'"):
                outer.__exit__(None, None, None)
            clock.advance(4)
            inner.__exit__(None, None, None)
        with hierarchical_timer("after"):
            clock.advance(1)
    assert figures(tree) == {"outer": (2, 6, 2), "outer/inner": (2, 4, 4), "after": (1, 1, 1)}


def test_timed_takes_a_name_and_methods_of_all_kinds(clock: FakeClock) -> None:
    """A name of one's own, and static and class methods, decorated before or after."""

    class Learner:
        @timed(name="plain")
        def method(self) -> int:
            clock.advance(1)
            return 1

        @timed(name="static")
        @staticmethod
        def static() -> int:
            clock.advance(1)
            return 2

        @classmethod
        @timed(name="class")
        def of_class(cls) -> str:
            clock.advance(1)
            return cls.__name__

    with recording(clock) as tree:
        assert (Learner().method(), Learner.static(), Learner.of_class()) == (1, 2, "Learner")
    assert list(figures(tree)) == ["plain", "static", "class"]


def test_a_coroutine_is_timed_over_its_body(clock: FakeClock) -> None:
    """Making a coroutine takes no time; running it does, until it returns."""

    @timed(name="inner")
    async def inner() -> int:
        clock.advance(1)
        await asyncio.sleep(0)
        clock.advance(1)
        return 7

    @timed(name="outer")
    async def outer() -> int:
        made = inner()
        clock.advance(4)
        return await made

    with recording(clock) as tree:
        assert asyncio.run(outer()) == 7
    assert figures(tree) == {"outer": (1, 6, 4), "outer/inner": (1, 2, 2)}
    assert inspect.iscoroutinefunction(outer)


def test_a_generator_is_timed_while_it_runs(clock: FakeClock) -> None:
    """From one item to the next is an entry, without the consumer's time in between."""

    @timed(name="generate")
    def generate() -> Iterator[int]:
        for number in range(3):
            clock.advance(1)
            yield number

    with recording(clock) as tree:
        items = generate()
        clock.advance(8)
        with hierarchical_timer("consume"):
            for _ in items:
                with hierarchical_timer("use"):
                    clock.advance(2)
    assert figures(tree) == {"consume": (1, 9, 0), "consume/generate": (4, 3, 3), "consume/use": (3, 6, 6)}


def test_a_generator_stays_one(clock: FakeClock) -> None:
    """Sent values and exceptions arrive in a timed generator, its return value comes back, and it is closed."""
    seen: list[object] = []

    @timed(name="talk")
    def talk() -> Generator[object, object, str]:
        try:
            seen.append((yield 1))
            try:
                yield 2
            except KeyError as error:
                seen.append(error)
            return "end"
        finally:
            seen.append("closed")

    def whole() -> Generator[object, object, None]:
        seen.append((yield from talk()))

    with recording(clock) as tree:
        body = whole()
        assert (next(body), body.send("sent")) == (1, 2)
        error = KeyError("thrown")
        with pytest.raises(StopIteration):
            body.throw(error)
        assert seen == ["sent", error, "closed", "end"]
        abandoned = talk()
        next(abandoned)
        abandoned.close()
        assert seen[4:] == ["closed"]
    assert figures(tree)["talk"][0] == 5
    assert inspect.isgeneratorfunction(talk)


def test_only_what_is_entered_within_a_recording_counts(clock: FakeClock) -> None:
    """A slice within a user's own scope records the slice only, also where both scopes share a name."""
    with hierarchical_timer("before"):
        pass
    with recording(clock) as tree:
        pass
    with hierarchical_timer("after"):
        pass
    assert figures(tree) == {}
    tree = Tree(clock=clock)
    with hierarchical_timer("step"):
        context = recording_into(tree)
        context.__enter__()
        with hierarchical_timer("step"):
            clock.advance(1)
    context.__exit__(None, None, None)
    assert figures(tree) == {"step": (1, 1, 1)}


def test_a_recording_can_be_resumed(clock: FakeClock) -> None:
    """The time between stretches is left out, and so is a scope that is open across the end of one."""
    tree = Tree(clock=clock)
    for _ in range(2):
        with recording_into(tree), hierarchical_timer("on"):
            clock.advance(1)
        with hierarchical_timer("off"):
            clock.advance(1)
    assert figures(tree) == {"on": (2, 2, 2)}
    assert tree.snapshot().root.total_ns == 2 * SECOND
    tree = Tree(clock=clock)
    scope = hierarchical_timer("open")
    with recording_into(tree):
        scope.__enter__()
    with recording_into(tree), hierarchical_timer("later"):
        clock.advance(1)
        scope.__exit__(None, None, None)
    assert figures(tree) == {"later": (1, 1, 1)}


def test_recordings_do_not_nest(clock: FakeClock, wording: Wording) -> None:
    """A second recording is an error, and the first goes on."""
    with recording(clock) as tree:
        with wording.raises(RuntimeError), recording():
            pass
        with wording.raises(RuntimeError):
            timers.enable()
        with hierarchical_timer("still"):
            clock.advance(1)
    assert figures(tree) == {"still": (1, 1, 1)}


def test_a_reset_keeps_open_scopes_open(clock: FakeClock) -> None:
    """A reset returns and clears the tree so far, and open scopes go on under their paths from now."""
    with recording(clock) as tree, hierarchical_timer("outer"):
        with hierarchical_timer("done"):
            clock.advance(1)
        clock.advance(1)
        before = tree.reset()
        clock.advance(4)
        with hierarchical_timer("inner"):
            clock.advance(8)
    assert everything(before) == {"outer": (0, 2, 1), "outer/done": (1, 1, 1)}
    assert figures(tree) == {"outer": (1, 12, 4), "outer/inner": (1, 8, 8)}
    assert tree.snapshot().root.total_ns == 12 * SECOND


def in_thread(work: Callable[[], object], name: str | None = None) -> None:
    """Run something in a thread of its own, to its end."""
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_each_thread_has_its_own_tree(clock: FakeClock) -> None:
    """Threads that run while a scope is open elsewhere do not end up below it."""

    def work() -> None:
        with hierarchical_timer("other"), hierarchical_timer("inner"):
            clock.advance(1)

    with recording(clock) as tree, hierarchical_timer("main"):
        clock.advance(1)
        for _ in range(2):
            in_thread(work, "sampler")
    assert figures(tree) == {"main": (1, 3, 3)}
    assert everything(tree.snapshot()) == {
        "main": (1, 3, 3),
        "sampler": (1, 2, 0),
        "sampler/other": (2, 2, 0),
        "sampler/other/inner": (2, 2, 2),
    }
    assert tree.snapshot().at("sampler").is_parallel


def test_trees_of_ended_threads_are_let_go(clock: FakeClock) -> None:
    """A process that starts threads without end keeps one tree of those without a name of their own."""

    def work() -> None:
        with hierarchical_timer("work"):
            clock.advance(1)

    with recording(clock) as tree:
        for _ in range(50):
            in_thread(work)
    assert len(tree._stacks) == 2  # this thread's, and the last one's until the next begins
    (thread,) = [name for name in everything(tree.snapshot()) if "/" not in name]
    assert everything(tree.snapshot())[f"{thread}/work"] == (50, 50, 50)


def test_a_reset_from_another_thread_is_seen_by_all(clock: FakeClock) -> None:
    """A thread that is within a scope meanwhile goes on there, with what comes after the reset."""
    entered, was_reset = threading.Event(), threading.Event()

    def work() -> None:
        with hierarchical_timer("loop"):
            with hierarchical_timer("step"):
                clock.advance(1)
            entered.set()
            was_reset.wait(30)
            clock.advance(2)
            with hierarchical_timer("step"):
                clock.advance(4)

    with recording(clock) as tree:
        thread = threading.Thread(target=work, name="sampler")
        thread.start()
        entered.wait(30)
        before = tree.reset()
        between = tree.snapshot()
        was_reset.set()
        thread.join()
    assert everything(before) == {"sampler": (1, 1, 0), "sampler/loop": (0, 1, 0), "sampler/loop/step": (1, 1, 1)}
    assert everything(between) == {"sampler": (1, 0, 0), "sampler/loop": (0, 0, 0)}
    assert everything(tree.snapshot()) == {
        "sampler": (1, 6, 0),
        "sampler/loop": (1, 6, 2),
        "sampler/loop/step": (1, 4, 4),
    }


def test_tasks_do_not_end_up_in_each_other(clock: FakeClock) -> None:
    """Coroutines that take turns within plain scopes each have their own path, below what was open around the loop."""

    async def work(name: str) -> None:
        with hierarchical_timer(name):
            await asyncio.sleep(0)
            with hierarchical_timer("inner"):
                clock.advance(1)
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))

    with recording(clock) as tree, hierarchical_timer("run"):
        asyncio.run(main())
    assert figures(tree) == {
        "run": (1, 2, 2),
        "run/a": (1, 2, 0),
        "run/a/inner": (1, 2, 2),
        "run/b": (1, 2, 1),
        "run/b/inner": (1, 1, 1),
    }
    assert {timing.is_parallel for timing in tree.snapshot().at("run").children} == {True}


class Edges:
    """Keeps the edges that a tree reports: a sign and the path, from the host's down, for each scope."""

    def __init__(self, clock: FakeClock) -> None:
        self.seen: list[str] = []
        self.tree = EdgeTree(self._enter, self._leave, clock)

    def _enter(self, stack: EdgeStack, node: Node) -> None:
        self.seen.append("+" + "/".join((*stack.host, *path_of(node))))

    def _leave(self, stack: EdgeStack, node: Node, outer: Node) -> None:
        while node is not outer:
            self.seen.append("-" + "/".join((*stack.host, *path_of(node))))
            node = node.parent


def test_every_scope_has_its_edges(clock: FakeClock) -> None:
    """Scopes, timed functions and each turn of a generator are reported as they begin and end, beside their times."""

    @timed(name="items")
    def items() -> Iterator[int]:
        yield from range(1)

    @timed(name="work")
    def work() -> None:
        clock.advance(1)

    edges = Edges(clock)
    with recording_into(edges.tree), hierarchical_timer("all"):
        work()
        for _ in items():
            pass
    assert edges.seen == ["+all", "+all/work", "-all/work", *["+all/items", "-all/items"] * 2, "-all"]
    assert figures(edges.tree) == {"all": (1, 1, 0), "all/work": (1, 1, 1), "all/items": (2, 0, 0)}


def test_merging_keeps_the_sum_and_each_worker(clock: FakeClock) -> None:
    """Workers' trees add up below one name that is no part of the time around it; each stays as it came."""
    parts = []
    for number, seconds in enumerate((1, 2)):
        worker = Tree(f"worker {number}", clock)
        with recording_into(worker), hierarchical_timer("step"):
            clock.advance(seconds)
        parts.append(worker.snapshot())
    with recording(clock) as tree, hierarchical_timer("collect"):
        clock.advance(1)
        for part in parts:
            timers.merge_tree(part, "workers")
    seen = tree.snapshot()
    assert everything(seen) == {
        "collect": (1, 1, 1),
        "collect/workers": (2, 3, 0),
        "collect/workers/step": (2, 3, 3),
    }
    assert seen.at("collect", "workers").is_parallel
    assert (seen.at("collect", "workers", "step").min_ns, seen.at("collect", "workers", "step").max_ns) == (
        SECOND,
        2 * SECOND,
    )
    assert {worker.name: everything(worker)["step"] for worker in seen.workers} == {
        "worker 0": (1, 1, 1),
        "worker 1": (1, 2, 2),
    }


STATES = """
import json, os, sys, threading, warnings
warnings.simplefilter("error", RuntimeWarning)
{setup}
from pytest_rlperf import timers

def work():
    return 1

decorated = timers.timed(work)
assert decorated() == 1
with timers.hierarchical_timer("step") as nothing:
    assert nothing is None
{body}
"""


def run_python(body: str, armed: str | None, setup: str = "") -> str:
    """Run a program in a process of its own, with timers armed or not; return what it wrote."""
    environment = {name: value for name, value in os.environ.items() if name != "RLPERF_TIMERS"}
    if armed is not None:
        environment["RLPERF_TIMERS"] = armed
    done = subprocess.run(
        [sys.executable, "-c", STATES.format(body=body, setup=setup)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("armed", [None, "off"])
def test_unarmed_timers_are_gone(armed: str | None) -> None:
    """The decorated function is the function, all scopes are one, and nothing of asyncio or pytest is loaded."""
    body = """
assert decorated is work
assert timers.hierarchical_timer("a") is timers.hierarchical_timer("b")
assert not {"asyncio", "pytest", "torch", "numpy"} & set(sys.modules), sorted(sys.modules)
assert timers.child_environment() == {"RLPERF_TIMERS": "off"}
for switch in (timers.enable, timers.disable):
    try:
        switch()
    except RuntimeWarning as warning:
        print(warning)
print(timers.snapshot().root.children)
"""
    said = run_python(body, armed).splitlines()
    assert [line.split()[0] for line in said[:2]] == ["enable()", "disable()"]
    assert said[2] == "()"


def test_armed_timers_record_and_can_be_switched(wording: Wording) -> None:
    """Armed and on, what ran is there; switched off and on again, what ran between is not. Children follow."""
    body = """
def seen():
    return {name.name: name.count for name in timers.snapshot().root.children}
print(json.dumps(seen()))
timers.disable()
decorated()
print(os.environ["RLPERF_TIMERS"], timers.is_recording(), timers.child_environment()["RLPERF_TIMERS"])
timers.enable()
decorated()
print(json.dumps(seen()), os.environ["RLPERF_TIMERS"])
print("asyncio" in sys.modules, "pytest" in sys.modules)
"""
    said = run_python(body, "on").splitlines()
    assert json.loads(said[0]) == {"work": 1, "step": 1}
    assert said[1] == wording
    assert said[2] == '{"work": 2, "step": 1} on'
    assert said[3] == "True False"


def test_a_setting_that_means_nothing_is_told() -> None:
    """Whoever writes RLPERF_TIMERS=yes please is told what there is to write."""
    with pytest.raises(AssertionError, match=r"RLPERF_TIMERS=yes please.*standby"):
        run_python("", "yes please")


def test_a_forked_child_starts_with_nothing() -> None:
    """A forked child starts with no counts and no open scopes of its parent, and with free locks."""
    body = """
scope = timers.hierarchical_timer("outer")
with scope:
    child = os.fork()
    if child == 0:
        with timers.hierarchical_timer("child"):
            pass
        print({timing.name: timing.count for timing in timers.snapshot().root.children}, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print([timing.name for timing in timers.snapshot().root.children])
"""
    assert run_python(body, "on").splitlines() == ["{'child': 1}", "['work', 'step', 'outer']"]


Program = list[tuple[str, int, "Program"]]
programs: st.SearchStrategy[Program] = st.recursive(
    st.just([]),
    lambda children: st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "fail", "task", "thread", "generator", "reset"]),
            st.integers(0, 1000),
            children,
        ),
        max_size=4,
    ),
    max_leaves=20,
)


class Machine:
    """Runs random programs of scopes; ``spent_ns`` is what the main thread's outermost scopes took since a reset."""

    def __init__(self, clock: FakeClock, tree: Tree) -> None:
        self.clock = clock
        self.tree = tree

    def run(self, program: Program) -> None:
        for name, nanoseconds, children in program:
            if name == "reset":
                self.tree.reset()
            elif name == "thread":
                in_thread(lambda children=children: self.run(children), "thread")  # type: ignore[misc]
            elif name == "task":
                self.take_turns(nanoseconds, children)
            elif name == "generator":
                for _ in self.generate(nanoseconds, children):
                    self.clock.advance(nanoseconds / 1e9)
            elif name == "fail":
                try:
                    with hierarchical_timer(name):
                        self.run(children)
                        raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
            else:
                with hierarchical_timer(name):
                    self.clock.advance(nanoseconds / 1e9)
                    self.run(children)

    @timed(name="generate")
    def generate(self, nanoseconds: int, children: Program) -> Iterator[int]:
        for child in children:
            self.clock.advance(nanoseconds / 1e9)
            self.run([child])
            yield 1

    def take_turns(self, nanoseconds: int, children: Program) -> None:

        async def work(child: tuple[str, int, Program]) -> None:
            with hierarchical_timer("turn"):
                await asyncio.sleep(0)
                self.clock.advance(nanoseconds / 1e9)
                with hierarchical_timer(f"part {child[0]}"):
                    await asyncio.sleep(0)
                    self.clock.advance(child[1] / 1e9)

        async def main() -> None:
            await asyncio.gather(*map(work, children))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_children_and_self_add_up(program: Program) -> None:
    """In any program, a path's total is its sequential children's and its own time, and its own is never negative."""
    clock = FakeClock()
    with recording(clock) as tree:
        with hierarchical_timer("whole"):
            Machine(clock, tree).run(program)
            check(tree.snapshot().root)
        check(tree.snapshot().root)


def check(timing: Timing) -> None:
    below_ns = sum(child.total_ns for child in timing.children if not child.is_parallel)
    assert timing.total_ns == timing.self_ns + below_ns
    assert timing.self_ns >= 0
    if timing.min_ns is not None and timing.max_ns is not None:
        assert timing.min_ns * timing.count <= timing.total_ns
        assert timing.min_ns <= timing.max_ns
    for child in timing.children:
        check(child)


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_a_plain_program_is_timed_exactly(program: Program) -> None:
    """Of nested scopes alone, failing ones too, every entry and nanosecond is somewhere, and in one place."""
    clock = FakeClock()
    entries, spent = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()

    def run(body: Program, above: tuple[str, ...]) -> None:
        for name, nanoseconds, children in body:
            path = (*above, name)
            with suppress(ZeroDivisionError), hierarchical_timer(name):
                clock.advance(nanoseconds / 1e9)
                entries[path] += 1
                spent[path] += nanoseconds
                run(children, path)
                if name == "fail":
                    raise ZeroDivisionError

    with recording(clock) as tree:
        run(program, ())
    found = {path: (timing.count, timing.self_ns) for path, timing in tree.snapshot().root.walk()}
    assert found == {path: (entries[path], spent[path]) for path in entries}
