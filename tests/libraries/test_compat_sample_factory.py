"""Sample Factory's ``Timing``, by a clock that stands still, and beside the real one where that is installed."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders import Seconds
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import Wording

from pytest_rlperf.compat import sample_factory
from pytest_rlperf.compat.sample_factory import AvgTime, Timing

SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Let our Timing read a clock that stands still."""
    seconds = Seconds()
    monkeypatch.setattr(sample_factory, "_clock", seconds)
    return seconds


@dataclass
class Line:
    name: str
    value: float
    children: list[Line]


def read_profiles(text: str) -> dict[str, list[Line]]:
    """Parse what a Sample Factory run prints at its end."""
    profiles: dict[str, list[Line]] = {}
    levels: list[list[Line]] = []
    for line in text.splitlines():
        if line.endswith(" tree view:"):
            levels = [profiles.setdefault(line.removesuffix(" tree view:"), [])]
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        for entry in line.strip().split(", "):
            name, value = entry.split(": ")
            levels[depth].append(Line(name, float(value), []))
        levels[depth + 1 :] = [levels[depth][-1].children]
    return profiles


def replay(timing: Any, lines: list[Line], clock: Seconds) -> None:
    """Spend the time that was printed, where it was."""
    for line in lines:
        within = sum(child.value for child in line.children)
        start = clock.now
        with (timing.timeit if within > line.value else timing.add_time)(line.name):
            replay(timing, line.children, clock)
            clock.sleep(max(0.0, line.value - (clock.now - start)))
        if within > line.value:  # what was printed is the last of several entries
            with timing.timeit(line.name):
                clock.sleep(line.value)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_runs_of_sample_factory_come_out_as_they_were_printed(mode: str, clock: Seconds) -> None:
    """The text of real runs, played back, is the same byte for byte."""
    text = (SAMPLES / f"sample_factory_run_{mode}.txt").read_text(encoding="utf-8").rstrip("\n")
    profiles = read_profiles(text)
    assert len(profiles) > 4
    printed = []
    for name, lines in profiles.items():
        timing = Timing(name)
        replay(timing, lines, clock)
        printed.append(timing.tree_str())
    assert "\n".join(printed) == text


@dataclass(frozen=True)
class Scope:
    """A scope of a random program: how it counts, its name, what is in it, and whether that fails in the end."""

    method: str
    key: str
    average: int
    body: tuple[Any, ...]
    fails: bool


# Odd multiples of half of what is printed last, so that sums often have to be rounded from halfway.
SLEEPS = st.one_of(st.sampled_from([0.0, -1.0, 5e-05, 0.00015, 0.00025, 1.0, 1e-9]), st.floats(0, 100, allow_nan=False))
PROGRAMS = st.recursive(
    st.lists(SLEEPS, max_size=2).map(tuple),
    lambda inner: st.lists(
        st.one_of(
            SLEEPS,
            st.builds(
                Scope, st.sampled_from(["add_time", "timeit"]), st.sampled_from("abc"), st.just(0), inner, st.booleans()
            ),
            st.builds(Scope, st.just("time_avg"), st.sampled_from("xy"), st.integers(1, 3), inner, st.booleans()),
        ),
        max_size=4,
    ).map(tuple),
    max_leaves=12,
)


class FailedError(Exception):
    """The exception of a scope of a random program."""


def run(program: tuple[Any, ...], timing: Any, clock: Seconds) -> None:
    for step in program:
        if not isinstance(step, Scope):
            clock.sleep(step)
            continue
        method = getattr(timing, step.method)
        try:
            with method(step.key, step.average) if step.average else method(step.key):
                run(step.body, timing, clock)
                if step.fails:
                    raise FailedError
        except FailedError:
            pass


@contextmanager
def our_clock() -> Iterator[Seconds]:
    """Let our Timing read a clock of its own; Hypothesis keeps fixtures for all its examples."""
    with pytest.MonkeyPatch.context() as patch:
        seconds = Seconds()
        patch.setattr(sample_factory, "_clock", seconds)
        yield seconds


@contextmanager
def their_clock(theirs: types.ModuleType) -> Iterator[Seconds]:
    with pytest.MonkeyPatch.context() as patch:
        seconds = Seconds()
        patch.setattr(theirs, "time", types.SimpleNamespace(time=seconds))
        yield seconds


def seen(timing: Any) -> dict[str, Any]:
    hidden = ("_root_context", "_open_contexts_stack")
    return {key: getattr(value, "values", value) for key, value in timing.items() if key not in hidden}


@settings(max_examples=300)
@given(program=PROGRAMS)
def test_any_program_gives_what_sample_factory_gives(program: tuple[Any, ...]) -> None:
    """Both texts and every value are the real package's to the last bit."""
    theirs = pytest.importorskip("sample_factory.utils.timing")
    real, ours = theirs.Timing("Learner 0 profile"), Timing("Learner 0 profile")
    with their_clock(theirs) as seconds:
        run(program, real, seconds)
    with our_clock() as seconds:
        run(program, ours, seconds)
    assert ours.tree_str() == str(ours) == real.tree_str() == str(real)
    assert ours.flat_str() == real.flat_str()
    assert seen(ours) == seen(real)


@pytest.mark.parametrize(
    "use",
    [
        lambda timing: timing.update(b=2.0),
        lambda timing: setattr(timing, "b", 2),
        lambda timing: timing.add_time("b"),
        lambda timing: timing.time_avg("b", average=3),
        lambda timing: timing.pop("a"),
        lambda timing: setattr(timing, "_name", "Other"),
    ],
)
def test_a_mapping_is_used_as_sample_factorys_is(use: Callable[[Any], object]) -> None:
    """Items that come with a Timing, are set, or begin with a requested scope show alike in both."""
    theirs = pytest.importorskip("sample_factory.utils.timing")
    real, ours = theirs.Timing("p", {"a": 1.0}, c=3), Timing("p", {"a": 1.0}, c=3)
    for timing in (real, ours):
        use(timing)
    assert ours.flat_str() == real.flat_str()
    assert ours.tree_str() == real.tree_str()
    assert seen(ours) == seen(real)


def test_each_way_of_counting(clock: Seconds, wording: Wording) -> None:
    """A sum, the last entry, and the mean of the last few, as items, as attributes and as text."""
    timing = Timing()
    for seconds in (1.0, 2.0, 6.0):
        with timing.add_time("sum"), timing.timeit("last"), timing.time_avg("mean", average=2):
            clock.sleep(seconds)
    assert (timing["sum"], timing.sum, timing.get("last")) == (9.0, 9.0, 6.0)
    assert isinstance(timing.mean, AvgTime)
    assert str(timing.mean) == "4.0000"
    assert timing.flat_str() == wording
    assert timing.tree_str() == wording


def test_a_scope_that_ends_early_warns_and_takes_nothing_else_along(clock: Seconds, wording: Wording) -> None:
    """The one within it goes on, is counted in full, and later scopes are nested where they belong."""
    timing = Timing()
    outer = timing.add_time("outer")
    outer.__enter__()
    clock.sleep(1)
    inner = timing.add_time("inner")
    inner.__enter__()
    clock.sleep(1)
    with pytest.warns(RuntimeWarning, match="'outer' ended before 'inner', entered within it"):
        outer.__exit__(None, None, None)
    clock.sleep(1)
    inner.__exit__(None, None, None)
    with timing.add_time("next"):
        clock.sleep(4)
    assert timing.tree_str() == wording


@pytest.mark.parametrize(("first", "then"), [("timeit", "time_avg"), ("time_avg", "add_time")])
def test_one_name_is_summed_up_or_averaged(first: str, then: str, clock: Seconds) -> None:
    """The other way is an error, and leaves no scope open."""
    timing = Timing()
    with getattr(timing, first)("a"):
        clock.sleep(1)
    with pytest.raises((AttributeError, TypeError)), getattr(timing, then)("a"):
        clock.sleep(1)
    with timing.add_time("b"):
        clock.sleep(1)
    assert timing.tree_str().endswith("a: 1.0000, b: 1.0000")


def test_values_and_names_are_the_users(clock: Seconds, wording: Wording) -> None:
    """Times are added to what is there; times of a method's name are items."""
    timing = Timing(a=5)
    with timing.add_time("a"):
        clock.sleep(1)
    assert timing.a == 6.0
    assert timing.tree_str() == wording
    timing = Timing()
    for name in ("items", "add_time", "tree_str"):
        with timing.add_time(name):
            clock.sleep(1)
    assert timing["items"] == 1.0
    assert dict(timing.items())["add_time"] == 1.0
    assert timing.tree_str().endswith("items: 1.0000, add_time: 1.0000, tree_str: 1.0000")
    with wording.raises(AttributeError):
        _ = timing.missing


def test_threads_lose_no_entry() -> None:
    """Entries of several threads that share a scope are all counted."""
    timing = Timing()
    scope = timing.time_avg("a", 10_000)
    ready = threading.Barrier(4)

    def work() -> None:
        ready.wait()
        for _ in range(2000):
            with scope:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(timing.a.values) == 8000
