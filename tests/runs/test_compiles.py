"""Calls that compile programs on the host: the failure names the function, and what it was compiled for before."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TWO_PAIRS
from example import FAILED, Example

EVENTS = """
    REGISTERED = []

    class Listener:
        def notify(self, event):
            (self.on_start if event.is_start else self.on_end)(event)

    def register(kind, listener):
        REGISTERED.append((kind, listener))

    class Event:
        def __init__(self, is_start, data):
            self.is_start, self.data = is_start, data

    def compiles(dispatcher, *args):
        for is_start in (True, False):
            for kind, listener in REGISTERED:
                if kind == "numba:compile":
                    listener.notify(Event(is_start, {"dispatcher": dispatcher, "args": args}))
"""
LIBRARY = """
    import itertools
    from numba.core import event

    TURNS = itertools.count()

    class Dispatcher:
        def __init__(self, function):
            self.py_func, self.known = function, ""

        def __call__(self, values):
            kind = f"UniTuple(float64 x {len(values)})"
            if kind != self.known:
                self.known = kind
                event.compiles(self, kind)
            return self.py_func(values)

    @Dispatcher
    def total(values):
        return sum(values)

    def episode():
        length = 3
        sum(range(2_000))
        return total((1.0,) * length)

    def once():
        return sum(range(2_000)) + total((1.0,) * 2)
"""
TEST = """
    import library
    import pytest

    @pytest.mark.parametrize("name", ["episode", "once"])
    def test_it(rlperf, name):
        rlperf(getattr(library, name))
"""


@pytest.mark.slow  # test_device_judged: test_what_compiles_in_each_call_is_found
def test_a_program_for_each_length_fails_the_test(tmp_path: Path) -> None:
    """A stand-in tells of programs as Numba does; what is compiled once is no finding."""
    stand_in = {"numba/__init__.py": "", "numba/core/__init__.py": "", "numba/core/event.py": EVENTS}
    example = Example(tmp_path, {**stand_in, "library.py": LIBRARY, "test_it.py": TEST})
    example.commit()
    changed = LIBRARY.replace("length = 3", "length = next(TURNS) % 3").replace("x) * 2", "x) * 2 + 0")
    example.write({"library.py": changed.replace("2_000)) + total", "2_000)) + 0 + total")})
    run = example.pytest(
        *("--rlperf-against=HEAD", *TWO_PAIRS, "--rlperf-tolerance=900%"),
        "--rlperf-findings=growth=off,drift=off,garbage=off,first_call=off",
        code=FAILED,
    )
    found = {name: [each["line"] for each in test["verdict"]["findings"]] for name, test in run.tests.items()}
    (line,) = (each for each in found["test_it[episode]"] if "compiles" in each)
    assert line.startswith("each call compiles 1 program, none on the base; library.total: UniTuple(float64 x ")
    assert " after UniTuple(float64 x " in line
    assert not [each for each in found["test_it[once]"] if "compiles" in each]
