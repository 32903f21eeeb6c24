"""The cost of a scope, by the number of instructions that the interpreter executes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_rlperf.timers import hierarchical_timer, recording

Timers = Callable[[str], Any]


def instructions(act: Callable[[], object]) -> int:
    """Return how many instructions of Python's ``act`` takes, in all functions together."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def entry(timer: Timers) -> int:
    """Return the instructions of one more entry of a path that is known."""

    def enter() -> None:
        with timer("this one"):
            pass

    for _ in range(30):
        enter()  # what is entered first makes its path, and is an extreme
    return min(instructions(enter) for _ in range(5))


def test_an_entry_costs_the_same_among_many_siblings_and_below_many_scopes() -> None:
    """As many instructions among 10,000 siblings as among 10, and below 200 open scopes as below 2."""

    def cost(siblings: int, depth: int) -> int:
        with recording(), ExitStack() as stack:
            timer: Timers = hierarchical_timer
            for level in range(depth):
                stack.enter_context(timer(f"level {level}"))
            for number in range(siblings):
                with timer(f"sibling {number}"):
                    pass
            return entry(timer)

    few = cost(10, 2)
    assert few > 10
    assert cost(10_000, 2) == few
    assert cost(10, 200) == few


def test_counting_finds_a_cost_that_grows() -> None:
    """A timer that looks at every open scope takes more instructions below more of them."""

    def cost(depth: int) -> int:
        with recording() as tree, ExitStack() as stack:

            def slow(name: str) -> Any:
                for _ in tree.join().open_nodes():
                    pass
                return hierarchical_timer(name)

            for level in range(depth):
                stack.enter_context(hierarchical_timer(f"level {level}"))
            return entry(slow)

    assert cost(200) > cost(2)


UNARMED = """
from pytest_rlperf.timers import hierarchical_timer, timed

def function(): pass

assert timed(function) is function
assert timed(name="other")(function) is function
assert hierarchical_timer("one") is hierarchical_timer("two")
"""


def test_timers_left_out_leave_the_function_itself() -> None:
    """Where timers are not armed a decorated function costs nothing, being what it was."""
    environment = {name: value for name, value in os.environ.items() if name != "RLPERF_TIMERS"}
    subprocess.run([sys.executable, "-c", UNARMED], env=environment, cwd=Path(__file__).parents[1], check=True)
