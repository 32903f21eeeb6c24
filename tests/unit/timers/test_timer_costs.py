"""The cost of a scope, by the number of instructions that the interpreter executes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
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
    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it before a trace begins
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
