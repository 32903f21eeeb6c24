"""Phases of code as it is, by a clock that stands still."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import re
import sys
import textwrap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from wording import Wording

from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes import LiveTimers, standing_probes
from pytest_rlperf.probes.attach import ProbeError, attached
from pytest_rlperf.probes.functions import Phases, probes_for
from pytest_rlperf.probes.objects import reached
from pytest_rlperf.testing import FakeClock
from pytest_rlperf.timers import Tree, hierarchical_timer, recording

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


def test_one_method_may_be_two_phases(clock: FakeClock) -> None:
    """A function with two timers has one phase within the other, whatever their names."""
    agent = Agent(clock)
    with unchanged(agent):
        found = seen(clock, {"inner": "update_critic", "outer": "update_critic"}, agent, agent.update)
        same = [*probes_for({"critic": "update_critic"}, agent)] * 2
        with attached(same), recording(clock) as tree:
            agent.update()
    assert found == {"outer": (1, 5), "outer/inner": (1, 5)}
    assert figures(tree) == {"critic": (1, 5), "critic/critic": (1, 5)}


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


def test_inherited_methods(clock: FakeClock) -> None:
    """A method that a class inherits is timed for that class alone, and is inherited again afterwards."""

    class Child(Buffer):
        """Has nothing of its own."""

    with unchanged(Buffer, Child):
        found = seen(
            clock,
            {"made": Child.made, "sample": "sample"},
            Child,
            lambda: (Child.made(clock).sample(1), Buffer(clock).sample(1)),
        )
    assert found == {"made": (1, 4), "sample": (1, 2)}


def test_what_binds_otherwise_in_a_class(clock: FakeClock) -> None:
    """Partial methods, cached methods and callables that do not bind go on as they do."""

    class Callback:
        def __call__(self, seconds: float) -> float:
            clock.advance(seconds)
            return seconds

    class Owner:
        calls = 0
        hook: ClassVar[Any] = Callback()

        def work(self, seconds: float) -> Owner:
            clock.advance(seconds)
            return self

        half = functools.partialmethod(work, 0.5)

        @functools.lru_cache  # noqa: B019 - it is what is tested
        def once(self) -> int:
            clock.advance(1)
            return 7

    owner = Owner()

    def call() -> None:
        assert owner.half() is owner
        assert (owner.once(), owner.once()) == (7, 7)
        assert owner.hook(3) == 3

    with unchanged(Owner, owner):
        found = seen(clock, {"half": "half", "once": "once", "hook": "hook"}, Owner, call)
    assert found == {"half": (1, 0.5), "once": (2, 1), "hook": (1, 3)}


def test_names_that_are_not_the_methods_own(clock: FakeClock) -> None:
    """A bound method is found where its name is a decorator's, or the class's is added to it."""

    def decorated(method: Callable[[Any], T]) -> Callable[[Any], T]:
        def wrapper(self: Any) -> T:
            clock.advance(1)
            return method(self)

        return wrapper

    class Odd:
        @decorated
        def update(self) -> str:
            return "updated"

        def __hidden(self) -> None:
            clock.advance(2)

        def both(self) -> None:
            assert self.update() == "updated"
            self.__hidden()

    odd = Odd()
    hidden = getattr(odd, "_Odd__hidden")  # noqa: B009 - within no class, so that it is not mangled
    with unchanged(odd, Odd):
        assert seen(clock, {"update": odd.update, "hidden": hidden}, None, odd.both) == {
            "update": (1, 1),
            "hidden": (1, 2),
        }


def test_an_attribute_that_was_there_is_the_same_again(clock: FakeClock) -> None:
    """A callable in an attribute of an object is put back, where one of the class is left to be found again."""
    agent: Any = Agent(clock)
    agent.hook = functools.partial(clock.advance, 3)
    hook = agent.hook
    with unchanged(agent):
        assert seen(clock, {"hook": "hook"}, agent, lambda: agent.hook()) == {"hook": (1, 3)}
    assert agent.hook is hook


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


def test_what_a_property_holds(clock: FakeClock) -> None:
    """A method of what a property returns is timed; one that a property with a setter holds is put back through it."""

    class Holder:
        """Has a buffer behind one property, and something callable behind another."""

        def __init__(self) -> None:
            self._buffer = Buffer(clock)
            self._hook: Callable[[], object] = functools.partial(clock.advance, 7)

        @property
        def buffer(self) -> Buffer:
            return self._buffer

        @property
        def hook(self) -> Callable[[], object]:
            return self._hook

        @hook.setter
        def hook(self, value: Callable[[], object]) -> None:
            self._hook = value

    holder = Holder()
    with unchanged(holder, holder._buffer, Holder):
        found = seen(
            clock, {"sample": "buffer.sample", "hook": "hook"}, holder, lambda: (holder.buffer.sample(1), holder.hook())
        )
    assert found == {"sample": (1, 2), "hook": (1, 7)}


class Slotted:
    """An object of Python's that takes no attributes but its own."""

    __slots__ = ("buffer", "clock", "later")

    def __init__(self, clock: FakeClock, buffer: object = None) -> None:
        self.clock = clock
        self.buffer = buffer

    def sample(self) -> Slotted:
        self.clock.advance(2)
        return self


def test_objects_with_slots(clock: FakeClock) -> None:
    """A slot is filled as before; of an object that has no slot for it, a stand-in is timed in what holds it."""
    inner = Slotted(clock)
    holder = Slotted(clock, inner)
    found = seen(clock, {"sample": "buffer.sample"}, holder, lambda: holder.buffer.sample())  # type: ignore[attr-defined]
    assert found == {"sample": (1, 2)}
    assert holder.buffer is inner
    assert not hasattr(holder, "later")

    class Both(Slotted):
        """Has slots and a dictionary."""

    both = Both(clock)
    both.buffer = before = functools.partial(clock.advance, 3)
    with unchanged(both):
        assert seen(clock, {"buffer": "buffer"}, both, lambda: both.buffer()) == {"buffer": (1, 3)}  # type: ignore[operator]
    assert both.buffer is before


def test_objects_that_refuse_attributes(clock: FakeClock) -> None:
    """Frozen objects, and those that pass what is set on to others, are timed and left as they were."""

    @dataclass(frozen=True)
    class Frozen:
        seconds: float

        def sample(self) -> None:
            clock.advance(self.seconds)

    class Picky:
        def __setattr__(self, name: str, value: object) -> None:
            raise ValueError(f"no field {name!r}")

        def sample(self) -> None:
            clock.advance(1)

    class Wrapper:
        def __init__(self, inner: object) -> None:
            object.__setattr__(self, "inner", inner)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(self.inner, name, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    for target in (Frozen(2), Picky(), Wrapper(Buffer(clock))):
        arguments = () if not isinstance(target, Wrapper) else (1,)
        holders = (target, type(target)) + ((target.inner,) if isinstance(target, Wrapper) else ())
        with unchanged(*holders):
            found = seen(
                clock, {"sample": "sample"}, target, functools.partial(lambda t, a: t.sample(*a), target, arguments)
            )
        assert [count for count, _ in found.values()] == [1]


def test_an_attribute_that_does_not_take(clock: FakeClock, wording: Wording) -> None:
    """An object that has its own way of finding a method is not left with another one that is never found."""

    class Own:
        def __getattribute__(self, name: str) -> Any:
            return functools.partial(clock.advance, 1) if name == "sample" else super().__getattribute__(name)

    own = Own()
    holder = Slotted(clock, own)
    with wording.raises(ProbeError), attached(probes_for({"sample": "sample"}, own)):
        pass
    found = seen(clock, {"sample": "buffer.sample"}, holder, lambda: holder.buffer.sample())  # type: ignore[attr-defined]
    assert (found, vars(own)) == ({"sample": (1, 1)}, {})


def test_a_method_of_an_object_of_c(clock: FakeClock) -> None:
    """A deque takes no attributes: what holds it has a stand-in meanwhile, and the deque itself afterwards."""
    agent = Agent(clock, deque([1, 2]))
    buffer = agent.buffer

    def call() -> None:
        agent.buffer.append(3)
        assert agent.buffer.popleft() == 1

    with unchanged(agent):
        found = seen(clock, {"append": "buffer.append", "pop": "buffer.popleft"}, agent, call)
    assert {path: count for path, (count, _) in found.items()} == {"append": 1, "pop": 1}
    assert agent.buffer is buffer
    assert type(agent.buffer) is deque
    assert list(buffer) == [2, 3]


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


def test_a_stand_in_gives_arrays(clock: FakeClock) -> None:
    """NumPy sees in it what it sees in what it stands for."""

    class Rows:
        """Takes no attributes, and makes an array of itself."""

        __slots__ = ()

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
            return np.arange(3)

        def sample(self) -> None:
            """Do nothing."""

    def check(buffer: Any) -> None:
        assert np.asarray(buffer).tolist() == [0, 1, 2]
        assert buffer.sample() is None

    standing_in(clock, Rows(), "sample", check)


def test_what_is_copied_or_pickled_is_the_object(clock: FakeClock) -> None:
    """A copy of a stand-in, and what is unpickled, are of what it stands for, and so of nobody's timers."""
    for target, method in ((deque([1]), "append"), (re.compile("a"), "match")):

        def check(buffer: Any, target: Any = target) -> None:
            for copied in (copy.copy(buffer), copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):  # noqa: S301
                assert type(copied) is type(target)
                assert copied == target
            agent = copy.deepcopy([buffer, buffer])
            assert agent[0] is agent[1]

        standing_in(clock, target, method, check)

    def refuses(buffer: Any) -> None:
        with pytest.raises(TypeError, match=r"cannot pickle .*generator"):
            pickle.dumps(buffer)

    standing_in(clock, (number for number in range(3)), "send", refuses)


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


def test_objects_within_stand_ins(clock: FakeClock) -> None:
    """A way may lead through an object that has a stand-in already, to another that needs one."""
    inner = Slotted(clock)
    middle = Slotted(clock, inner)
    agent = Agent(clock, middle)
    phases = {"outer": "buffer.sample", "inner": "buffer.buffer.sample"}
    with unchanged(agent):
        assert seen(clock, phases, agent, lambda: (agent.buffer.sample(), agent.buffer.buffer.sample())) == {
            "outer": (1, 2),
            "inner": (1, 2),
        }
    assert middle.buffer is inner


def test_an_object_that_nothing_holds(clock: FakeClock) -> None:
    """Where neither an object nor its holder takes attributes, the error shows both, and nothing is attached."""
    agent = Agent(clock)
    with unchanged(agent):
        for phases, owner, says in (
            ({"critic": "update_critic", "append": "append"}, deque(), "the deque has no 'update_critic'"),
            (
                {"append": "append"},
                deque(),
                "the deque takes no attributes .* name the path to the method from an object that holds it",
            ),
            ({"as": "start.bit_length"}, range(3), "Python sets no attribute on the int or the range"),
            ({"as": "deque.append"}, sys.modules["collections"], "deque.*; name the path to an instance instead"),
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

def recursive(levels):
    clock.advance(1)
    return 0 if levels == 0 else recursive(levels - 1)

def failing():
    clock.advance(1)
    raise KeyError("failing")

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


def test_recursion_and_errors(clock: FakeClock, library: Any) -> None:
    """A function within itself is a phase within its phase, and one that raises has ended."""

    def call() -> None:
        library.recursive(2)
        with pytest.raises(KeyError, match="failing"):
            library.failing()

    phases = {"down": "rlperf_library:recursive", "fails": library.failing}
    assert seen(clock, phases, None, call) == {
        "down": (1, 3),
        "down/down": (1, 2),
        "down/down/down": (1, 1),
        "fails": (1, 1),
    }


def test_nested_attachments(clock: FakeClock, library: Any) -> None:
    """A nested attachment ends before the outer one, whatever it times."""
    agent = Agent(clock, deque())
    with unchanged(agent), recording(clock) as tree:
        with attached(probes_for({"outer": library.polyak, "append": "buffer.append"}, agent)):
            with attached(probes_for({"inner": library.polyak, "again": "buffer.append"}, agent)):
                library.polyak(1)
                agent.buffer.append(1)
            library.polyak(2)
            agent.buffer.append(1)
        library.polyak(4)
    assert set(figures(tree)) == {"outer", "inner", "inner/outer", "append", "again", "again/append"}
    assert sum(total for path, (_, total) in figures(tree).items() if "/" not in path) == 3


def test_functions_that_nothing_holds_are_told(wording: Wording) -> None:
    """A function is found by what has it."""

    def inner() -> None:
        """Do nothing."""

    with wording.raises(ProbeError):
        probes_for({"inner": inner}, None)


class Runs:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def pieces(self, count: int) -> Generator[int, None, str]:
        """Take a second before each of ``count`` and at the end."""
        for number in range(count):
            self.clock.advance(1)
            yield number
        self.clock.advance(1)
        return "done"

    async def awaited(self) -> int:
        self.clock.advance(1)
        await asyncio.sleep(0)
        self.clock.advance(1)
        return 3


def generate(clock: FakeClock, count: int) -> Iterator[int]:
    for number in range(count):
        clock.advance(1)
        yield number


def test_generators_and_coroutines(clock: FakeClock) -> None:
    """A generator is timed while it runs, a coroutine lasts from its first step to its last."""
    runs = Runs(clock)

    def consume() -> None:
        for _ in runs.pieces(2):
            clock.advance(10)
        for _ in generate(clock, 3):
            clock.advance(10)
        assert asyncio.run(runs.awaited()) == 3

    phases: Phases = {"pieces": "pieces", "awaited": runs.awaited, "generate": generate}
    with unchanged(runs, Runs, sys.modules[__name__]), attached(probes_for(phases, runs)):
        with recording(clock) as tree:
            consume()
        assert inspect.isgeneratorfunction(runs.pieces) or inspect.isgenerator(runs.pieces(0))
    assert figures(tree)["pieces"] == (3, 3)
    assert figures(tree)["generate"] == (4, 3)
    assert tree.snapshot().at("awaited").total_ns == 2 * 10**9


def test_threads_have_their_own_phases(clock: FakeClock, library: Any) -> None:
    """Another thread's calls make no phase in the measuring thread, and open none."""
    agent = Agent(clock, deque())
    phases: Phases = {"critic": "update_critic", "polyak": library.polyak, "append": "buffer.append"}

    def work() -> None:
        agent.update_critic()
        library.polyak(1)
        agent.buffer.append(1)

    with attached(probes_for(phases, agent)), recording(clock) as tree:
        with hierarchical_timer("measured"):
            thread = threading.Thread(target=work, name="helper")
            thread.start()
            thread.join()
        agent.update_critic()
    assert figures(tree) == {"measured": (1, 6), "critic": (1, 5)}
    assert {timing.name for timing in tree.snapshot().at("helper").children} == set(phases)


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
    probes = [*probes_for({"critic": "update_critic", "polyak": library.polyak}, agent), *standing_probes()]
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
        {"critic": "update_critics"},
        {"sample": "buffer.sampel"},
        {"sample": "bufer.sample"},
        {"x": "zzz"},
        {"x": ""},
        {"x": "buffer..sample"},
        {"x": "buffer"},
        {"x": "rlperf_library:polyac"},
        {"x": "rlperf_library:Thing"},
        {"x": "rlperf_library:Thing.owm"},
        {"x": "rlperf_library:limit"},
        {"x": "rlperf_no_library:polyak"},
        {"x": ":polyak"},
        {"x": ".relative:polyak"},
        {"x": 3},
        {"x": [3]},
        {"x": deque().append},
        {"x": []},
        {"a/b": "update"},
        {"": "update"},
        {3: "update"},
    ],
)
def test_what_cannot_be_timed_is_told(clock: FakeClock, library: Any, phases: Any, wording: Wording) -> None:
    """An error says which phase, what is wrong, and what there is."""
    with wording.raises(ProbeError):
        probes_for(phases, Agent(clock))


class TimerStack:
    def __init__(self) -> None:
        self.stack = ["root"]

    def push(self, name: str) -> str:
        self.stack.append(name)
        return name

    def pop(self) -> None:
        self.stack.pop()


class TimingContext:
    def __init__(self, key: str) -> None:
        self._key = key
        self.entries = 0

    def __enter__(self) -> None:
        self.entries += 1

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, held in (("mlagents_envs.timers", TimerStack), ("sample_factory.utils.timing", TimingContext)):
        module = ModuleType(name)
        setattr(module, held.__name__, held)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("live")
def test_live_timers_are_phases(clock: FakeClock) -> None:
    """Scopes of ML-Agents' and Sample Factory's timers are phases while they are followed, and theirs as ever."""
    stack, context = TimerStack(), TimingContext("a/b")
    with unchanged(TimerStack, TimingContext), recording(clock) as tree:
        with attached([LiveTimers()]):
            assert stack.push(name="step") == "step"
            clock.advance(1)
            with context:
                clock.advance(2)
            stack.pop()
        with context:
            clock.advance(4)
    assert figures(tree) == {"step": (1, 3), "step/a|b": (1, 2)}
    assert (stack.stack, context.entries) == (["root"], 2)


@pytest.mark.usefixtures("live")
def test_live_timers_that_were_open_before(clock: FakeClock) -> None:
    """Calls that were open before make no phase, nor do another thread's open calls."""
    stack, other, context = TimerStack(), TimerStack(), TimingContext("before")
    with recording(clock) as tree:
        stack.push("before")
        context.__enter__()
        with attached([LiveTimers()]), hierarchical_timer("outer"):
            thread = threading.Thread(target=other.push, args=("elsewhere",))
            thread.start()
            thread.join()
            context.__exit__()
            stack.pop()
            clock.advance(1)
    assert figures(tree) == {"outer": (1, 1)}
    assert tree.faults == {}


@pytest.mark.parametrize("package", ["mlagents_envs.timers", "pytest_rlperf.compat.mlagents"])
def test_timers_of_ml_agents(clock: FakeClock, package: str) -> None:
    """The real ones, and ours in their place."""
    theirs: Any = pytest.importorskip(package)

    @theirs.timed  # type: ignore[untyped-decorator]
    def decide() -> None:
        clock.advance(2)

    theirs.reset_timers()
    with unchanged(theirs.TimerStack), attached([LiveTimers()]), recording(clock) as tree:
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
    with attached([LiveTimers()]), recording(clock) as tree:
        for scope in (timing.add_time("train"), timing.timeit("losses"), timing.time_avg("tail")):
            with scope:
                clock.advance(1)
    assert figures(tree) == {"train": (1, 1), "losses": (1, 1), "tail": (1, 1)}
    assert timing.train > 0


class Gone:
    """Anything."""


def test_what_cannot_be_looked_into_is_passed_by() -> None:
    """A dead weak reference's proxy and an attribute that raises do not end the walk."""

    class Raises:
        __slots__ = ("closed",)

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    dead = weakref.proxy(Gone())
    owner = SimpleNamespace(dead=dead, raises=Raises(), after=[1.5])
    assert dict(reached("owner", owner))["owner.after[0]"] == 1.5


def test_keys_that_are_objects_are_named_by_their_class_and_place() -> None:
    """Their own text may take long, as a tensor's, or fail."""

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    state = {Silent(): 1.5, "step": 2.5, 3: 3.5, Silent(): 4.5}
    paths = [path for path, value in reached("state", state) if isinstance(value, float)]
    assert paths == ["state[<Silent 0>]", "state['step']", "state[3]", "state[<Silent 3>]"]
