"""Where the time goes: who owns what, on work whose owner is known, and the table of it."""

from __future__ import annotations

import gc
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_rlperf.attribution import ProfilerBusyError, refuse_company, shares
from pytest_rlperf.attribution.environments import is_environment
from pytest_rlperf.attribution.expressions import Expressions, steps_of
from pytest_rlperf.attribution.owners import NativeOwners
from pytest_rlperf.model.counting import Share
from pytest_rlperf.report.shares import shares_lines

BIG = np.ones((200, 200))
SMALL = np.ones(8)
PARTS = [BIG] * 4
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Skip where tests are run under coverage or a debugger: there is then nothing to see."""
    try:
        refuse_company()
    except ProfilerBusyError as busy:
        pytest.skip(str(busy))


def found(call: Callable[[], object], calls: int = 300, **options: Any) -> dict[str, float]:
    """Return the shares of what could be attributed of a call, by name; they must be shares.

    On a busy machine much cannot be.
    """
    gc.disable()  # one collection of all that the tests before have left takes longer than all the calls
    try:
        table = shares(call, setup=None, calls=calls, **options)
    finally:
        gc.enable()
    assert table[-1].name == "unattributed"
    assert sum(share.share for share in table) == pytest.approx(1.0)
    assert all(0.0 <= share.share <= 1.0 for share in table)
    known = 1.0 - table[-1].share
    return {share.name: share.share / known for share in table[:-1]}


def interpret(steps: int) -> float:
    """Do work that is nobody's but the interpreter's."""
    total = 0.0
    for step in range(steps):
        total = 0.5 * total + step
    return total


# --------------------------------------------------------------------------- who owns what runs


def call_functions() -> None:
    """Call small functions of Python's."""
    for _ in range(100):
        interpret(1)


def compress() -> None:
    """Do native work of the standard library's."""
    zlib.crc32(b"01234567" * 20_000)


def reduce() -> None:
    """Call a method of NumPy's, which profilers see."""
    for _ in range(5):
        BIG.sum()


def multiply() -> None:
    """Run an operator, which is no call."""
    for _ in range(5):
        BIG * BIG


def multiply_attributes() -> None:
    """Run operators on what attributes of modules and items of lists hold."""
    for part in PARTS:
        np.pi * part


def exponentiate() -> None:
    """Call a ufunc, of which the interpreter tells no profiler."""
    for _ in range(2):
        np.exp(BIG)


def concatenate() -> None:
    """Call what asks a Python function first, and then works."""
    for _ in range(5):
        np.concatenate(PARTS)


def draw() -> None:
    """Call a method that Cython has made."""
    RANDOM.normal(size=2000)


def index() -> None:
    """Index with an array, and assign to an index."""
    rows = np.arange(100)
    for _ in range(5):
        BIG[rows] = BIG[rows]


def iterate() -> None:
    """Compare and index tiny arrays, a few hundred nanoseconds each."""
    for _ in range(50):
        _ = SMALL[1:] < SMALL[:-1]


@pytest.mark.parametrize("work", [interpret, call_functions, compress], ids=lambda work: work.__name__)
def test_python_owns(work: Callable[..., object]) -> None:
    """The interpreter, Python's functions and the standard library are Python's."""
    table = found(lambda: work(300) if work is interpret else work())
    assert set(table) == {"python"}


@pytest.mark.parametrize(
    "work",
    [reduce, multiply, multiply_attributes, exponentiate, concatenate, draw, index, iterate],
    ids=lambda work: work.__name__,
)
def test_numpy_owns(work: Callable[[], object]) -> None:
    """NumPy owns its native code, however it is reached."""
    assert found(work)["numpy"] > 0.5


def test_shares_follow_a_mix() -> None:
    """More Python beside the same native work is more of the time."""

    def mixed(steps: int) -> None:
        reduce()
        interpret(steps)

    part = [found(partial(mixed, steps))["python"] for steps in (50, 500, 5000)]
    assert part[0] < part[1] < part[2]
    assert part[0] < 0.3
    assert part[2] > 0.6


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("<built-in method torch._C._nn.linear>", "pytorch"),
        ("<method 'mul' of 'torch._C.TensorBase' objects>", "pytorch"),
        ("<built-in method numpy.array>", "numpy"),
        ("<built-in method rlox._rlox_core.compute_gae>", "rlox"),
        ("<method 'sample' of 'rlox.ReplayBuffer' objects>", "rlox"),
        ("<method 'step_all' of 'rlox.VecEnv' objects>", "environment"),
        ("<method 'append' of 'list' objects>", "python"),
        ("<built-in method builtins.len>", "python"),
        ("<built-in method __new__ of type object at 0x7fc4b845ea00>", "python"),
        ("<built-in method fromkeys>", "python"),
        ("<built-in method math.sqrt>", "python"),
        ("<built-in method time.sleep>", "waiting"),
        ("<method 'acquire' of '_thread.lock' objects>", "waiting"),
        ("<built-in method of_an_unknown_module>", "unattributed"),
        ("<method 'step' of 'builtins.OfNobody' objects>", "unattributed"),
    ],
)
def test_native_functions_by_what_cprofile_calls_them(text: str, owner: str) -> None:
    """The module in a native function's description tells whose it is."""
    assert NativeOwners().of_text(text) == owner


@pytest.fixture
def namesakes(monkeypatch: pytest.MonkeyPatch) -> tuple[type, type]:
    """Load an extension whose types have names of the interpreter's, and one whose type says that it is built in.

    PyTorch is one of the first kind, rlox one of the second.
    """
    first, second = types.ModuleType("first_native"), types.ModuleType("second_native")
    for module in (first, second):
        module.__file__ = f"{module.__name__}{EXTENSION_SUFFIXES[0]}"
        monkeypatch.setitem(sys.modules, module.__name__, module)
    namesake = type("NoneType", (), {"__module__": "first_native"})
    native = type("Buffer", (), {"__module__": "builtins"})
    vars(first).update(
        NoneType=namesake, function=types.FunctionType, Buffer=type("Buffer", (), {"__module__": "first_native"})
    )
    vars(second).update(Buffer=native)
    return namesake, native


@pytest.mark.parametrize("value", [None, type(None), len, test_python_owns, (_ for _ in ()), Ellipsis, {}.keys(), 1.0])
def test_values_of_the_interpreters(value: object, namesakes: tuple[type, type]) -> None:
    """What Python brings is no extension's, though an extension has a type of that name."""
    assert namesakes
    assert NativeOwners().of_object(value) is None


def test_a_type_that_says_it_is_built_in(namesakes: tuple[type, type]) -> None:
    """It is the extension's that has it, not that of one which has another of its name."""
    namesake, native = namesakes
    natives = NativeOwners()
    assert natives.of_object(namesake()) == "first_native"
    assert natives.of_object(native()) == "second_native"
    assert natives.of_text("<method 'sample' of 'builtins.Buffer' objects>") == "second_native"
    assert natives.of_text("<method 'sample' of 'builtins.NoneType' objects>") == "unattributed"


# --------------------------------------------------------------------------- whose an instruction is


class _Tensor:
    """Stand in for PyTorch's: what counts is whose its type is."""

    __module__ = "torch"


class _Cast(_Tensor):
    """What a type of PyTorch's makes when it is called."""

    __module__ = "torch"


def _operands(array: Any, tensor: Any, rows: Any, items: Any, made: Any) -> FrameType:
    """Return a frame in which there are variables; the holder has the same as attributes."""
    holder = SimpleNamespace(array=array, tensor=tensor, rows=rows)
    assert holder, (array, tensor, rows, items, made)
    return sys._getframe()


@pytest.mark.parametrize(
    ("text", "opcode", "owner"),
    [
        ("tensor[rows]", "BINARY_SUBSCR", "pytorch"),
        ("array[tensor]", "BINARY_SUBSCR", "numpy"),
        ("holder.tensor[rows + 1]", "BINARY_SUBSCR", "pytorch"),
        ("holder.array[rows[tensor]]", "BINARY_SUBSCR", "numpy"),
        ("(array, items[0])", "BINARY_SUBSCR", None),
        ("tensor * array", "BINARY_", "pytorch"),
        ("array * tensor", "BINARY_", "pytorch"),
        ("tensor[rows] * array[rows]", "BINARY_OP BINARY_MULTIPLY", "pytorch"),
        ("array[tensor] * 2.0", "BINARY_OP BINARY_MULTIPLY", "numpy"),
        ("(array, items[0] * 2.0)", "BINARY_OP BINARY_MULTIPLY", None),
        ("array < tensor", "COMPARE_OP", "pytorch"),
        ("np.exp(array, made, None)", "CALL", "numpy"),
        ("np.concatenate(tensor)", "CALL", "numpy"),
        ("made(array)", "CALL", "pytorch"),
        ("made(array) + rows", "BINARY_OP BINARY_ADD", "pytorch"),
        ("np.abs(tensor) + rows", "BINARY_OP BINARY_ADD", "numpy"),
        ("float(array)", "CALL", "numpy"),
        ("array.mean(axis=None)", "CALL", "numpy"),
        ("-tensor[rows]", "UNARY_", "pytorch"),
    ],
)
def test_whose_an_instruction_is(text: str, opcode: str, owner: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index is the container's, a call the function's, an operator PyTorch's where a tensor is among its operands.

    What is of neither is the interpreter's, whatever else the expression has loaded.
    """
    native = types.ModuleType("torch._native")
    native.__file__ = f"_native{EXTENSION_SUFFIXES[0]}"
    monkeypatch.setitem(sys.modules, native.__name__, native)
    frame = _operands(np.ones(3), _Tensor(), np.arange(3), [1, 2], _Cast)
    code = compile(f"_ = {text}", "<expression>", "exec")
    steps = steps_of(code)
    last = max(index for index, step in enumerate(steps) if step.name.startswith(tuple(opcode.split())))
    assert Expressions(steps, frame, NativeOwners()).owner(last) == owner


# --------------------------------------------------------------------------- environments


class _Base:
    """What gives environments a reset."""

    def reset(self) -> int:
        """Begin again."""
        return 0


class _Env(_Base):
    """An environment in Python, whose step calls a method of its base."""

    def step(self, action: int, *, scale: float = 1.0) -> float:
        """Take a step."""
        return super().reset() + scale * interpret(200) + action


class _Envs(_Base):
    """Environments that are stepped one after another."""

    def __init__(self) -> None:
        self.envs = [_Env() for _ in range(4)]

    def step(self, actions: list[int]) -> list[float]:
        """Take a step in each."""
        return [env.step(action) for env, action in zip(self.envs, actions, strict=True)]


class _Optimizer(_Base):
    """Something else that has steps and can be reset."""

    def step(self, loss: float) -> None:
        """Take a step."""
        interpret(int(loss))


@pytest.fixture
def envs() -> Iterator[_Envs]:
    """Return environments; their class must be afterwards what it was before."""
    codes = _Envs.step.__code__, _Env.step.__code__, _Base.reset.__code__
    yield _Envs()
    assert codes == (_Envs.step.__code__, _Env.step.__code__, _Base.reset.__code__)


def test_a_step_is_all_the_environments(envs: _Envs) -> None:
    """A step is the environment's with all that it calls, also by a bound method that was taken before."""
    step = envs.step
    table = found(lambda: step([1, 2, 3, 4]))
    assert table["environment"] > 0.8


def test_environments_among_other_work(envs: _Envs) -> None:
    """What a call does beside its environment's step is not the environment's; nested ones count once."""
    table = found(lambda: (envs.step([1, 2, 3, 4]), interpret(800), envs.step([1, 2, 3, 4]), interpret(800)))
    assert 0.25 < table["environment"] < 0.75
    assert 0.25 < table["python"] < 0.75


def test_an_environment_that_fails(envs: _Envs) -> None:
    """What a step raises is raised, and everything is as it was."""
    calls = iter(range(3))

    def fail() -> None:
        envs.step([1, 2, 3, 4] if next(calls) < 2 else [1])

    with pytest.raises(ValueError, match="zip"):
        shares(fail, setup=None, calls=1)
    assert sys.getprofile() is None
    assert sys.gettrace() is None


def test_what_is_an_environment() -> None:
    """What steps by actions and can be reset is one; an optimizer is not."""
    assert is_environment(_Env)
    assert is_environment(_Envs)
    assert not is_environment(_Optimizer)
    assert not is_environment(_Base)
    assert not is_environment(int)


# --------------------------------------------------------------------------- how calls are made


def test_calls_and_setups() -> None:
    """There is a setup before every call, and as many calls as is said."""
    made: list[str] = []
    shares(lambda: made.append("call"), setup=lambda: made.append("setup"), calls=8)
    assert made == ["setup", "call"] * (1 + 3 * 8 + 2)


def test_another_profiler_is_not_disturbed() -> None:
    """Where somebody watches already, it is said who, and nothing is run."""

    def somebody(*_: object) -> None:
        """Watch."""

    sys.setprofile(somebody)
    try:
        with pytest.raises(ProfilerBusyError, match="somebody watches this process already; run without"):
            shares(lambda: 1 / 0, setup=None, calls=1)
        assert sys.getprofile() is somebody
    finally:
        sys.setprofile(None)


def test_no_calls_are_an_error() -> None:
    """There is nothing to be said about no calls."""
    with pytest.raises(ValueError, match="calls must be at least 1: got 0"):
        shares(compress, setup=None, calls=0)


# --------------------------------------------------------------------------- PyTorch and the reference components


@pytest.mark.torch
class TestPyTorch:
    """With PyTorch and gymnasium."""

    def test_operators_and_functions(self) -> None:
        """Operators, functions and modules of PyTorch's are its own; its modules' Python is told apart."""
        torch = pytest.importorskip("torch")
        tensor, layer = torch.ones(50_000), torch.nn.Linear(4, 4)
        row = torch.ones(1, 4)
        assert found(lambda: tensor * tensor + tensor)["pytorch"] > 0.5
        table = found(lambda: [layer(row) for _ in range(10)])
        assert table["pytorch"] + table["pytorch (Python)"] > 0.5
        assert table["pytorch (Python)"] > 0.02

    @pytest.mark.parametrize(
        "work",
        [
            partial(BIG.clip, -1, 1),
            partial(np.clip, BIG, -1, 1),
            partial(np.mean, BIG),
            partial(np.std, BIG, axis=0),
            partial(np.stack, PARTS),
            partial(np.full_like, BIG, 2.0),
            partial(np.outer, SMALL, SMALL),
            partial(np.fft.rfft, SMALL),
            partial(np.quantile, SMALL, 0.5),
            lambda out=None: np.exp(BIG, out),
        ],
        ids=["clip", "np.clip", "mean", "std", "stack", "full_like", "outer", "rfft", "quantile", "own"],
    )
    def test_nothing_is_not_pytorchs(self, work: Callable[[], object]) -> None:
        """NumPy's functions are its own where they hand on arguments that are None; PyTorch has a type NoneType."""
        pytest.importorskip("torch")
        table = found(work, calls=20)
        assert "numpy" in table
        assert not {"pytorch", "pytorch (Python)"} & set(table)

    def test_beside_numpys(self) -> None:
        """Tensors are PyTorch's among NumPy's arrays and numbers, and arrays are NumPy's among tensors."""
        torch = pytest.importorskip("torch")
        tensor, rows, two = torch.ones(20_000), np.arange(5000), np.float32(2)
        # Beside each other: what a busy machine adds in between is Python's.
        for work in (lambda: tensor[rows], lambda: tensor * two):
            table = found(work, calls=60)
            assert table["pytorch"] > 9 * table.get("numpy", 0.0)
        table = found(lambda: np.exp(tensor.numpy(), None), calls=60)
        assert table["numpy"] > table["pytorch"]

    def test_waiting_for_a_device_is_none_of_pytorchs_work(self) -> None:
        """What the host waits for its device is spent in PyTorch's functions, and is taken off them."""
        torch = pytest.importorskip("torch")
        matrix = torch.ones(300, 300)
        table = found(lambda: matrix @ matrix, calls=40, device_wait_s=1e9)
        assert table["device wait"] > 0.5
        assert table.get("pytorch", 0.0) == pytest.approx(0.0, abs=1e-9)

    def test_vecenv_step_is_the_environments(self) -> None:
        """A step of a vector env is an environment's from end to end."""
        pytest.importorskip("torch")
        pytest.importorskip("gymnasium")
        from pytest_rlperf.components.reference import make_vec_env
        from pytest_rlperf.components.vecenv import vecenv_workload

        workload = vecenv_workload(lambda: make_vec_env("CartPole-v1", 8))
        workload.check()
        assert found(workload.call)["environment"] > 0.7
        workload.close()

    def test_collecting_steps_an_environment(self) -> None:
        """A rollout is environments, PyTorch and some Python."""
        pytest.importorskip("torch")
        pytest.importorskip("gymnasium")
        from pytest_rlperf.components.reference import PPO, make_vec_env

        agent = PPO(make_vec_env("CartPole-v1", 8))
        agent.collect(16)
        table = found(lambda: agent.collect(16), calls=8)
        # Each is a fifth or more on a quiet machine; one pause of the process in eight short calls outweighs them.
        assert table["environment"] > 0.02
        assert table["pytorch"] + table["pytorch (Python)"] > 0.02

    def test_a_gradient_step_is_pytorchs(self) -> None:
        """An update of SAC is PyTorch's for the most part, a sample NumPy's and PyTorch's, and GAE NumPy's."""
        pytest.importorskip("torch")
        from pytest_rlperf.components.reference import SAC, ReplayBuffer, compute_gae

        buffer = ReplayBuffer(1000, 17, 6)
        rows = np.zeros((1000, 17), dtype=np.float32)
        buffer.add(rows, rows[:, :6], rows[:, 0], rows, rows[:, 0])
        agent = SAC(17, 6, buffer)
        agent.update(64)
        assert found(lambda: agent.update(64), calls=6)["pytorch"] > 0.5
        sampled = found(lambda: buffer.sample(256))
        assert sampled["numpy"] > 0.2
        assert sampled["pytorch"] > 0.05
        rewards, ends = np.ones((64, 8), dtype=np.float32), np.zeros((64, 8), dtype=np.float32)
        assert found(lambda: compute_gae(rewards, rewards, ends, rewards[0]))["numpy"] > 0.5


# --------------------------------------------------------------------------- the table


def test_the_table_to_the_letter() -> None:
    """Names, percents and bars are aligned."""
    table = [Share("pytorch", 0.875), Share("pytorch (Python)", 0.1), Share("python", 0.025), Share("unattributed", 0)]
    assert shares_lines(table) == [
        "pytorch            87.5 %  ###################################",
        "pytorch (Python)   10.0 %  ####",
        "python              2.5 %  #",
        "unattributed        0.0 %",
    ]
    assert shares_lines([Share("unattributed", 1.0)]) == ["unattributed    100 %  " + 40 * "#"]
    assert max(map(len, shares_lines([Share("an extension of a very long name", 1.0)]))) <= 80
    assert shares_lines([]) == []
