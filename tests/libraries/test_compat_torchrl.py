"""TorchRL's ``timeit``, by a clock that stands still, and beside the real one if installed."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import Seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlperf.compat import torchrl
from pytest_rlperf.compat.torchrl import timeit

SAMPLE = Path(__file__).parents[1] / "samples" / "torchrl_timeit.txt"


@contextmanager
def fresh(module: types.ModuleType, name: str, clock: Callable[[Seconds], object]) -> Iterator[Seconds]:
    """Let a module's ``timeit`` begin with nothing and read a clock that stands still."""
    with pytest.MonkeyPatch.context() as patch:
        seconds = Seconds()
        patch.setattr(module, name, clock(seconds))
        patch.setattr(module.timeit, "_REG", {})
        patch.setattr(module.timeit, "_MARKS", {})
        patch.setattr(module.timeit, "_printevery_count", 0)
        yield seconds


def ours() -> Any:
    return fresh(torchrl, "_clock", lambda seconds: seconds)


def theirs(module: types.ModuleType) -> Any:
    return fresh(module, "time", lambda seconds: types.SimpleNamespace(time=seconds))


@pytest.fixture
def clock() -> Iterator[Seconds]:
    """Begin with nothing, by a clock that stands still."""
    with ours() as seconds:
        yield seconds


def test_what_torchrl_printed_comes_out_as_it_was(clock: Seconds) -> None:
    """The text of a real run, played back, is the same byte for byte."""
    text = SAMPLE.read_text(encoding="utf-8")
    for name, milliseconds in re.findall(r"^(\w+) took ([\d.]+) msec", text, re.MULTILINE):
        with timeit(name):
            clock.sleep(float(milliseconds) / 1000)
    assert timeit.print() == text


SLEEP = st.tuples(
    st.just("sleep"),
    st.one_of(st.sampled_from([0.0, -1.0, 5e-08, 1.5e-07, 1e-3]), st.floats(0, 100, allow_nan=False)),
)
NAMES = st.sampled_from("abc")
LEAVES = st.one_of(
    SLEEP,
    st.tuples(st.just("mark"), NAMES),
    st.tuples(st.just("print"), st.sampled_from([None, "", "train"])),
    st.tuples(st.just("printevery"), st.booleans()),
    st.tuples(st.just("todict"), st.booleans(), st.sampled_from([None, "", "time"])),
    st.tuples(st.just("erase")),
    st.tuples(st.just("reset")),
    st.tuples(st.just("started")),
)
PROGRAMS = st.recursive(
    st.lists(LEAVES, max_size=3),
    lambda inner: st.lists(
        st.one_of(LEAVES, st.tuples(st.sampled_from(["with", "call"]), NAMES, inner, st.booleans())), max_size=5
    ),
    max_leaves=15,
)


class FailedError(Exception):
    """The exception of a timed body of a random program."""


def run(program: list[Any], timer: Any, clock: Seconds, told: list[object]) -> None:
    """Run a random program; ``told`` collects everything that it read."""
    for step in program:
        if step[0] == "sleep":
            clock.sleep(step[1])
        elif step[0] == "mark":
            if step[1] in timer._MARKS:
                timer.mark_end(step[1])
            else:
                timer.mark_start(step[1])
        elif step[0] == "print":
            told.append(timer.print(prefix=step[1]))
        elif step[0] == "printevery":
            timer.printevery(2, 6, prefix="every", erase=step[1])
        elif step[0] == "todict":
            told.append(timer.todict(percall=step[1], prefix=step[2]))
        elif step[0] == "started":
            begun = timer("started").start()
            clock.sleep(1)
            told.append(begun.elapsed())
            begun.__exit__(None, None, None)
        elif step[0] in ("erase", "reset"):
            getattr(timer, step[0])()
        else:
            run_body(step, timer, clock, told)


def run_body(step: tuple[Any, ...], timer: Any, clock: Seconds, told: list[object]) -> None:
    """Run a timed part of a random program, as a context or as a decorated function."""
    how, name, program, fails = step

    def body() -> None:
        run(program, timer, clock, told)
        if fails:
            raise FailedError

    try:
        if how == "call":
            timer(name)(body)()
        else:
            with timer(name) as entered:
                body()
                told.append(entered.elapsed())
    except FailedError:
        pass


@settings(max_examples=300)
@given(program=PROGRAMS)
def test_any_program_gives_what_torchrl_gives(program: list[Any]) -> None:
    """Texts, what is logged, dictionaries and the register are the real package's to the last bit."""
    real = pytest.importorskip("torchrl._utils")
    seen = []
    for module, context in ((real, theirs(real)), (torchrl, ours())):
        told: list[object] = []
        logged: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, logged=logged: logged.append(record.getMessage())  # type: ignore[method-assign,misc]
        logger = logging.getLogger("torchrl")
        with context as seconds, pytest.MonkeyPatch.context() as patch:
            patch.setattr(logger, "handlers", [handler])
            run(program, module.timeit, seconds, told)
            told.append(module.timeit.print())
            seen.append((told, logged, dict(module.timeit._REG), dict(module.timeit._MARKS)))
    assert seen[0] == seen[1]


def test_every_public_name_is_there() -> None:
    """Every name of the installed class and module is here, with the same parameters."""
    real = pytest.importorskip("torchrl._utils")
    for name, value in inspect.getmembers(real.timeit):
        if not name.startswith("__") or name in ("__init__", "__call__", "__enter__", "__exit__"):
            assert hasattr(timeit, name), name
            if callable(value) and not name.startswith("__"):
                assert list(inspect.signature(getattr(timeit, name)).parameters) == list(
                    inspect.signature(value).parameters
                )


def test_recursion_times_each_call_from_its_own_start(clock: Seconds) -> None:
    """The outer calls are not cut off where the innermost began."""
    timer = timeit("f")

    @timer
    def fall(depth: int) -> None:
        clock.sleep(1)
        if depth:
            fall(depth - 1)

    fall(2)
    assert timeit._REG["f"] == [2.0, 6.0, 3]
    with timer:
        clock.sleep(1)
        with timer:
            clock.sleep(1)
            timer.start()
            clock.sleep(4)
            assert timer.elapsed() == 4
        assert timer.elapsed() == 6
    assert timeit._REG["f"][1:] == [16.0, 5]


def test_marks_of_two_threads(clock: Seconds) -> None:
    """An event begins in one thread and ends in another."""
    thread = threading.Thread(target=timeit.mark_start, args=("event",))
    thread.start()
    thread.join()
    clock.sleep(3)
    timeit.mark_end("event")
    assert timeit._REG == {"event": [3.0, 3.0, 1]}


def test_printevery_prints_at_regular_calls(
    clock: Seconds, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls 1, 4 and 7 of nine for three prints, each with what there was since the last."""
    monkeypatch.setattr(logging.getLogger("torchrl"), "level", logging.NOTSET)  # TorchRL may be loaded
    for _ in range(9):
        with timeit("a"):
            clock.sleep(1)
        timeit.printevery(num_prints=3, total_count=9, prefix="now", erase=True)
    assert capsys.readouterr().out.splitlines() == [
        f"now -- a took 1000.0000 msec (total = {total}.0000 sec since last reset)." for total in (" 1", " 3", " 3")
    ]


def test_coroutines_are_timed_until_they_end(clock: Seconds) -> None:
    """Their waits are included, and two that take turns are two entries."""

    @timeit("a")
    async def work(seconds: float, turn: asyncio.Event, after: asyncio.Event) -> float:
        await turn.wait()
        clock.sleep(seconds)
        after.set()
        return seconds

    async def both() -> tuple[float, float]:
        first, second, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
        first.set()
        return await asyncio.gather(work(2, second, last), work(1, first, second))

    assert inspect.iscoroutinefunction(work)
    assert tuple(asyncio.run(both())) == (2, 1)
    assert timeit._REG["a"] == [2.0, 4.0, 2]
