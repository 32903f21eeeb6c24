"""Phases of code as it is, by a clock that stands still."""

from __future__ import annotations

import re
import sys
import textwrap
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sized
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

import pytest
from wording import Wording

from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes import ProbeError, attached
from pytest_rlperf.probes.functions import Phases, probes_for
from pytest_rlperf.probes.torch import Ranges
from pytest_rlperf.timers import FakeClock, Tree, recording

T = TypeVar("T")
Figures = dict[str, tuple[float, float]]


def figures(tree: Tree) -> Figures:
    return {phase.path: (phase.count, phase.total_s) for phase in tree.phases(1)}


def state(*holders: Any) -> list[list[tuple[str, int]]]:
    """Return what objects hold, each thing by its identity, in order."""
    return [[(name, id(value)) for name, value in vars(holder).items()] for holder in holders]


@contextmanager
def unchanged(*holders: Any) -> Iterator[None]:
    """Hold that all attributes are the very same afterwards."""
    before = state(*holders)
    try:
        yield
    finally:
        assert state(*holders) == before


def seen(clock: FakeClock, phases: Phases, owner: object, call: Callable[[], object]) -> Figures:
    with attached(probes_for(phases, owner)), recording(clock) as tree:
        call()
    return figures(tree)


class Buffer:
    """A buffer of Python's, with methods of every kind."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def sample(self, size: int) -> list[int]:
        self.clock.advance(2)
        return [0] * size

    @staticmethod
    def static(clock: FakeClock, seconds: float = 3) -> float:
        clock.advance(seconds)
        return seconds

    @classmethod
    def made(cls, clock: FakeClock) -> Buffer:
        clock.advance(4)
        return cls(clock)


class Agent:
    """An agent of Python's, with a buffer in an attribute."""

    def __init__(self, clock: FakeClock, buffer: Any = None) -> None:
        self.clock = clock
        self.buffer: Any = Buffer(clock) if buffer is None else buffer

    def update_critic(self) -> None:
        self.clock.advance(5)

    def update(self) -> Agent:
        self.clock.advance(1)
        self.buffer.sample(2)
        self.update_critic()
        return self


def test_methods_by_their_way_from_the_object(clock: FakeClock) -> None:
    """A name, or several with dots, lead to a method; phases lie in what runs them, and add up."""
    agent = Agent(clock)
    with unchanged(agent, agent.buffer, Agent, Buffer):
        found = seen(
            clock,
            {"update": "update", "critic": "update_critic", "sample": "buffer.sample"},
            agent,
            lambda: agent.update(),
        )
    assert found == {"update": (1, 8), "update/sample": (1, 2), "update/critic": (1, 5)}


def test_one_or_several_bound_methods(clock: FakeClock) -> None:
    """A bound method is timed on its object alone; a phase may be made of several, and two probes may have one name."""
    agent, other = Agent(clock), Agent(clock)
    with unchanged(agent, other, Agent):
        found = seen(clock, {"critic": agent.update_critic}, None, lambda: (agent.update(), other.update()))
    assert found == {"critic": (1, 5)}
    agent = Agent(clock)
    assert seen(clock, {"both": ["update_critic", agent.buffer.sample]}, agent, agent.update) == {"both": (2, 7)}
    probes = [*probes_for({"both": "update_critic"}, agent), *probes_for({"both": "buffer.sample"}, agent)]
    with attached(probes), recording(clock) as tree:
        agent.update()
    assert figures(tree) == {"both": (2, 7)}


def test_methods_of_classes(clock: FakeClock) -> None:
    """A method, static method and class method of a class are timed for all objects, and stay what they are."""
    phases = {
        "sample": f"{__name__}:Buffer.sample",
        "static": f"{__name__}:Buffer.static",
        "made": f"{__name__}:Buffer.made",
    }
    kinds = {name: type(vars(Buffer)[name]) for name in ("sample", "static", "made")}

    def call() -> None:
        assert {name: type(vars(Buffer)[name]) for name in kinds} == kinds
        made = Buffer.made(clock)
        assert type(made) is Buffer
        assert made.sample(2) == [0, 0]
        assert Buffer.static(clock) == made.static(clock) == 3

    with unchanged(Buffer):
        found = seen(clock, phases, None, call)
    assert found == {"made": (1, 4), "sample": (1, 2), "static": (2, 6)}


def test_callables_stay_what_they_are(clock: FakeClock) -> None:
    """An object that can be called can still do all else while its calls are timed."""

    class Policy:
        weights = 3

        def __call__(self) -> int:
            clock.advance(2)
            return self.weights

    agent: Any = Agent(clock)
    agent.policy = Policy()

    def call() -> None:
        assert isinstance(agent.policy, Policy)
        agent.policy.weights = 4
        assert agent.policy() == agent.policy.weights == 4

    with unchanged(agent):
        assert seen(clock, {"policy": "policy"}, agent, call) == {"policy": (1, 2)}
    assert agent.policy.weights == 4


def standing_in(clock: FakeClock, target: Any, method: str, check: Callable[[Any], None]) -> None:
    """Check what stands in for ``target``, in an agent."""
    agent = Agent(clock, target)
    with attached(probes_for({"phase": f"buffer.{method}"}, agent)):
        assert type(agent.buffer) is not type(target)
        check(agent.buffer)
    assert agent.buffer is target


def test_a_stand_in_is_like_what_it_stands_for(clock: FakeClock) -> None:
    """It is of the same class, equal, as long, iterable, subscriptable, and can be changed in place."""
    target = deque([3, 1, 2], maxlen=9)

    def check(buffer: Any) -> None:
        assert [isinstance(buffer, kind) for kind in (deque, Sized, Hashable)] == [True, True, False]
        assert buffer.__class__ is deque
        assert (len(buffer), list(buffer), list(reversed(buffer))) == (3, [3, 1, 2], [2, 1, 3])
        assert (buffer[0], 2 in buffer, bool(buffer), buffer.maxlen) == (3, True, True, 9)
        assert buffer == target
        assert target == buffer
        assert buffer == buffer
        assert buffer != deque()
        assert buffer < deque([4])
        assert buffer + buffer == deque([3, 1, 2, 3, 1, 2])
        assert repr(buffer) == str(buffer) == f"{buffer}" == repr(target)
        assert dir(buffer) == dir(target)
        buffer[0] = 7
        del buffer[1]
        assert target == deque([7, 2])
        with pytest.raises(TypeError, match="unhashable"):
            hash(buffer)
        with pytest.raises(AttributeError):
            setattr(buffer, "new", 1)  # noqa: B010
        assert not hasattr(buffer, "nothing")
        assert weakref.ref(buffer)() is buffer
        before = buffer
        buffer += [5]
        assert buffer is before
        assert target == deque([7, 2, 5])

    standing_in(clock, target, "append", check)


def test_special_methods_of_objects(clock: FakeClock) -> None:
    """A phase may be what Python calls by itself, such as a loader's next batch."""

    class Loader:
        def __init__(self) -> None:
            self.left = 2

        def __iter__(self) -> Loader:
            return self

        def __next__(self) -> int:
            if not self.left:
                raise StopIteration
            self.left -= 1
            clock.advance(1)
            return self.left

        def __getitem__(self, index: int) -> int:
            clock.advance(3)
            return index

    agent = Agent(clock, Loader())
    with unchanged(agent, Loader):
        phases = {"next": "buffer.__next__", "item": "buffer.__getitem__"}
        found = seen(clock, phases, agent, lambda: (list(agent.buffer), agent.buffer[5]))
    assert found == {"next": (3, 2), "item": (1, 3)}


def test_an_object_that_nothing_holds(clock: FakeClock) -> None:
    """Where neither an object nor its holder takes attributes, the error shows both, and nothing is attached."""
    agent = Agent(clock)
    with unchanged(agent):
        for phases, owner, says in (
            ({"critic": "update_critic", "append": "append"}, deque(), "the deque has no 'update_critic'"),
            ({"append": "append"}, deque(), "the deque takes no attributes, and no attribute of the NoneType holds it"),
            (
                {"as": "start.bit_length"},
                range(3),
                "the int takes no attributes, and no attribute of the range holds it",
            ),
            ({"nothing": []}, agent, "phase 'nothing': an empty list names nothing to time"),
            ({"as": "deque.append"}, sys.modules["collections"], "cannot be timed: .*deque.*; put a timer around"),
        ):
            with pytest.raises(ProbeError, match=says), attached(probes_for(phases, owner)):
                pass


LIBRARY = """
import functools

def polyak(seconds):
    clock.advance(seconds)
    return seconds

@functools.lru_cache
def cached(seconds):
    return polyak(seconds)

def decorator(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@decorator
def first(seconds):
    clock.advance(seconds)

@decorator
def second(seconds):
    clock.advance(seconds)

class Thing:
    method = polyak
    def own(self, seconds):
        clock.advance(seconds)

limit = 3
"""

USER = """
from {library} import polyak, polyak as soft_update, cached, first, second

class Agent:
    move = staticmethod(polyak)

def update(seconds):
    return polyak(seconds) + soft_update(seconds) + Agent.move(seconds)
"""


@pytest.fixture
def library(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return a library and, in ``user``, a module that has taken functions from it."""
    made = {}
    for name, source in (("rlperf_library", LIBRARY), ("rlperf_user", USER.format(library="rlperf_library"))):
        module = made[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        vars(module)["clock"] = clock
        exec(textwrap.dedent(source), vars(module))  # noqa: S102 - a module of this test's
    vars(made["rlperf_library"])["user"] = made["rlperf_user"]
    with unchanged(*made.values(), made["rlperf_library"].Thing, made["rlperf_user"].Agent):
        yield made["rlperf_library"]


@pytest.mark.parametrize("by_name", [True, False])
def test_functions_wherever_they_are_held(clock: FakeClock, library: Any, by_name: bool) -> None:
    """A function of a module is timed also in the modules and classes that have taken it, by whichever name."""
    target = "rlperf_library:polyak" if by_name else library.polyak

    def call() -> None:
        assert library.user.update(2) == 6
        assert library.polyak(1) == 1

    assert seen(clock, {"polyak": target}, None, call) == {"polyak": (4, 7)}


def test_functions_of_all_kinds(clock: FakeClock, library: Any) -> None:
    """A class's method is timed for all objects, of a decorator's functions only the named, a cached one as it is."""
    found = seen(clock, {"own": library.Thing.own}, None, lambda: library.Thing().own(3))
    assert found == {"own": (1, 3)}
    for target in ("rlperf_library:first", library.first):
        found = seen(clock, {"first": target}, None, lambda: (library.user.first(2), library.user.second(5)))
        assert found == {"first": (1, 2)}

    def call() -> None:
        library.user.cached.cache_clear()
        assert library.user.cached(4) == library.cached(4) == 4
        assert library.cached.cache_info().hits == 1

    assert seen(clock, {"cached": "rlperf_library:cached"}, None, call) == {"cached": (2, 4)}


def test_functions_that_nothing_holds_are_told(wording: Wording) -> None:
    """A function is found by what has it."""

    def inner() -> None:
        """Do nothing."""

    with wording.raises(ProbeError):
        probes_for({"inner": inner}, None)


class Fails:
    def attach(self) -> Callable[[], None]:
        raise ProbeError("no such luck")


def test_everything_is_restored_whatever_happens(clock: FakeClock, library: Any, wording: Wording) -> None:
    """A body that raises, one that is interrupted, and a probe that fails amid others leave nothing behind."""
    agent = Agent(clock, deque())
    phases: Phases = {
        "critic": "update_critic",
        "append": "buffer.append",
        "pop": "buffer.pop",
        "polyak": library.polyak,
        "cached": "rlperf_library:cached",
        "class": f"{__name__}:Buffer.static",
    }
    with unchanged(agent, Agent, Buffer, library, library.user, library.user.Agent):
        for error in (ZeroDivisionError, KeyboardInterrupt, GeneratorExit):
            with pytest.raises(error), attached(probes_for(phases, agent)):
                raise error
        probes: list[Probe] = [*probes_for(phases, agent), Fails()]
        with wording.raises(ProbeError), attached(probes):
            raise AssertionError("the body does not run")
        with attached(probes_for(phases, agent)), suppress(ProbeError), attached(probes):
            pass


def test_probes_are_attached_again_and_alone_time_nothing(clock: FakeClock, library: Any) -> None:
    """Probes are made once and attached for every slice; while nothing records they count nothing that is seen."""
    agent = Agent(clock)
    probes = [*probes_for({"critic": "update_critic", "polyak": library.polyak}, agent), Ranges()]
    for _ in range(3):
        with unchanged(agent), attached(probes), recording(clock) as tree:
            agent.update()
            library.polyak(1)
        assert figures(tree) == {"critic": (1, 5), "polyak": (1, 1)}
    agent = Agent(clock)
    with attached(probes_for({"critic": "update_critic"}, agent)):
        assert agent.update() is agent


@pytest.mark.parametrize(
    "phases",
    [
        {"sample": "buffer.sampel"},
        {"x": "buffer..sample"},
        {"x": "buffer"},
        {"x": "rlperf_library:Thing"},
        {"x": "rlperf_library:limit"},
        {"x": ":polyak"},
        {"x": [3]},
        {"x": deque().append},
        {"a/b": "update"},
    ],
)
def test_what_cannot_be_timed_is_told(clock: FakeClock, library: Any, phases: Any, wording: Wording) -> None:
    """An error says which phase, what is wrong, and what there is."""
    with wording.raises(ProbeError):
        probes_for(phases, Agent(clock))


@pytest.mark.parametrize("package", ["mlagents_envs.timers", "pytest_rlperf.compat.mlagents"])
def test_timers_of_ml_agents(clock: FakeClock, package: str) -> None:
    """The real ones, and ours in their place."""
    theirs: Any = pytest.importorskip(package)

    @theirs.timed  # type: ignore[untyped-decorator]
    def decide() -> None:
        clock.advance(2)

    theirs.reset_timers()
    with unchanged(theirs.TimerStack), attached([Ranges()]), recording(clock) as tree:
        with theirs.hierarchical_timer("env_step"):
            decide()
        with pytest.raises(KeyError), theirs.hierarchical_timer("fails"):
            raise KeyError
    assert [re.sub(r"test_.*\.", "", path) for path in figures(tree)] == ["env_step", "env_step/decide", "fails"]
    assert figures(tree)["env_step"] == (1, 2)
    assert list(theirs.get_timer_tree()["children"]) == ["env_step", "fails"]


@pytest.mark.parametrize("package", ["sample_factory.utils.timing", "pytest_rlperf.compat.sample_factory"])
def test_timers_of_sample_factory(clock: FakeClock, package: str) -> None:
    """The real ones, and ours in their place."""
    timing = pytest.importorskip(package).Timing("Learner")
    with attached([Ranges()]), recording(clock) as tree:
        for scope in (timing.add_time("train"), timing.timeit("losses"), timing.time_avg("tail")):
            with scope:
                clock.advance(1)
    assert figures(tree) == {"train": (1, 1), "losses": (1, 1), "tail": (1, 1)}
    assert timing.train > 0
