"""The timer tree, by a clock that stands still."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlperf.model import Phase
from pytest_rlperf.testing import FakeClock
from pytest_rlperf.timers import Scope, hierarchical_timer, timed
from pytest_rlperf.timers.tree import Recording, recording


def figures(record: Recording) -> dict[str, tuple[float, float, float]]:
    """Return each path's count, total and self seconds."""
    return {phase.path: (phase.count, phase.total_s, phase.self_s) for phase in record.phases(1)}


def test_a_scope_counts_and_times_its_body() -> None:
    """Count, total and self are the entries, the time within, and the time within no child."""
    clock = FakeClock()
    with recording(clock) as record:
        for _ in range(3):
            with hierarchical_timer("outer"):
                clock.advance(1)
                with hierarchical_timer("inner"):
                    clock.advance(2)
    assert figures(record) == {"outer": (3, 9, 3), "outer/inner": (3, 6, 6)}


def test_phases_are_per_iteration() -> None:
    """A slice's figures are divided by its calls."""
    clock = FakeClock()
    with recording(clock) as record:
        for _ in range(4):
            with hierarchical_timer("step"):
                clock.advance(2)
    assert record.phases(2) == (Phase("step", 2.0, 4.0, 4.0, "host"),)


def test_one_name_under_two_parents_is_two_paths() -> None:
    """The scope open around a scope when it is entered is its parent."""
    clock = FakeClock()
    scope = Scope("work")
    with recording(clock) as record:
        for parent in ("a", "b"):
            with hierarchical_timer(parent), scope:
                clock.advance(1)
    assert list(figures(record)) == ["a", "a/work", "b", "b/work"]


def test_recursion_opens_a_deeper_node() -> None:
    """A function that calls itself is timed at each depth, its own time once."""
    clock = FakeClock()

    @timed
    def descend(levels: int) -> None:
        clock.advance(1)
        if levels:
            descend(levels - 1)

    with recording(clock) as record:
        descend(2)
    name = "test_recursion_opens_a_deeper_node.descend"
    assert figures(record) == {
        name: (1, 3, 1),
        f"{name}/{name}": (1, 2, 1),
        f"{name}/{name}/{name}": (1, 1, 1),
    }


def test_an_exception_closes_its_scopes() -> None:
    """What a failing body took is counted, and the next scope opens where it should."""
    clock = FakeClock()

    @timed
    def fail() -> None:
        clock.advance(1)
        raise ZeroDivisionError

    with recording(clock) as record:
        with pytest.raises(ZeroDivisionError), hierarchical_timer("outer"):
            fail()
        with hierarchical_timer("after"):
            clock.advance(1)
    assert figures(record) == {
        "outer": (1, 1, 0),
        "outer/test_an_exception_closes_its_scopes.fail": (1, 1, 1),
        "after": (1, 1, 1),
    }


def test_timed_keeps_the_function() -> None:
    """The decorated function returns what it returned and bears the same name."""

    @timed
    def add(left: int, right: int) -> int:
        """Add."""
        return left + right

    assert (add(1, right=2), add.__name__, add.__doc__) == (3, "add", "Add.")


def test_nothing_is_recorded_while_nothing_records() -> None:
    """Scopes entered outside a recording leave no trace in the next."""
    clock = FakeClock()
    with hierarchical_timer("before"):
        pass
    with recording(clock) as record:
        pass
    with hierarchical_timer("after"):
        pass
    assert figures(record) == {}


def test_a_scope_entered_before_the_recording_is_left_out() -> None:
    """A slice within a user's own scope records the slice only, also where both scopes share a name."""
    clock = FakeClock()
    outside = hierarchical_timer("step")
    record = Recording(clock)
    with outside:
        context = record.armed()
        context.__enter__()
        with hierarchical_timer("step"):
            clock.advance(1)
    context.__exit__(None, None, None)
    assert figures(record) == {"step": (1, 1, 1)}


def test_a_recording_can_be_resumed() -> None:
    """What runs between two stretches of a recording is not in it."""
    clock = FakeClock()
    record = Recording(clock)
    for _ in range(2):
        with record.armed(), hierarchical_timer("on"):
            clock.advance(1)
        with hierarchical_timer("off"):
            clock.advance(1)
    assert figures(record) == {"on": (2, 2, 2)}


def test_recordings_do_not_nest() -> None:
    """A second recording is an error, and the first goes on."""
    clock = FakeClock()
    with recording(clock) as record:
        with pytest.raises(RuntimeError, match="do not nest"), recording():
            pass
        with hierarchical_timer("still"):
            clock.advance(1)
    assert figures(record) == {"still": (1, 1, 1)}


def test_each_thread_has_its_own_tree() -> None:
    """Threads that run while a scope is open elsewhere do not end up below it."""
    clock = FakeClock()

    def work() -> None:
        with hierarchical_timer("other"), hierarchical_timer("inner"):
            pass

    with recording(clock) as record, hierarchical_timer("main"):
        clock.advance(1)
        for _ in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert figures(record) == {"main": (1, 1, 1)}
    assert [list(dict(root.walk())) for root in record.roots[1:]] == [["other", "other/inner"]] * 2


def test_threads_that_inherit_a_context_have_their_own_tree() -> None:
    """asyncio.to_thread copies the caller's context, not its open scopes."""
    clock = FakeClock()

    def work() -> None:
        with hierarchical_timer("other"):
            pass

    async def main() -> None:
        with hierarchical_timer("main"):
            clock.advance(1)
            await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)))

    with recording(clock) as record:
        asyncio.run(main())
    assert figures(record) == {"main": (1, 1, 1)}


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_would_break_paths_is_refused(name: str) -> None:
    """Paths join names by slashes."""
    with pytest.raises(ValueError, match="timer's name"):
        hierarchical_timer(name)


Program = list[tuple[str, int, "Program"]]
programs: st.SearchStrategy[Program] = st.recursive(
    st.just([]),
    lambda children: st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1000), children), max_size=4),
    max_leaves=20,
)


@given(program=programs)
def test_children_and_self_add_up(program: Program) -> None:
    """In any program of nested scopes, a node's total is its children's and its own time, and the whole is all."""
    clock = FakeClock()

    def run(body: Program) -> int:
        spent = 0
        for name, nanoseconds, children in body:
            with hierarchical_timer(name):
                clock.advance(nanoseconds / 1e9)
                spent += nanoseconds + run(children)
        return spent

    with recording(clock) as record:
        spent_ns = run(program)
    nodes = dict(record.roots[0].walk())
    assert sum(node.total_ns for path, node in nodes.items() if "/" not in path) == spent_ns
    for node in nodes.values():
        assert node.total_ns == node.self_ns + sum(child.total_ns for child in node.children.values())
        assert node.self_ns >= 0
