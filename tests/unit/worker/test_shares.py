"""Where the time goes: the owners of work, by a clock that only the work moves, and the table of shares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from wording import Wording

from pytest_rlperf.devices import wait_for_all
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.worker.shares import (
    ProfilerBusyError,
    explain,
    is_environment,
    owner_of_native,
    refuse_company,
    shares,
)


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Skip where tests are run under coverage or a debugger: nothing can be watched then."""
    try:
        refuse_company()
    except ProfilerBusyError as busy:
        pytest.skip(str(busy))


class Ticks:
    """A clock that work moves: Python's by ``python += n``, NumPy's native functions by writing ``native``."""

    def __init__(self) -> None:
        self.python = 0
        self.native = np.zeros(1, dtype=np.int64)

    def __call__(self) -> int:
        return self.python + int(self.native[0])

    def spend_native(self, ns: int) -> None:
        self.native.fill(int(self.native[0]) + ns)


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


def found(ticks: Callable[[], int], call: Callable[[], object], calls: int = 8, **options: Any) -> dict[str, Any]:
    """Return the shares of a call by name, by a clock; they must be shares."""
    table = shares(call, setup=None, calls=calls, clock_ns=ticks, **options)
    assert table[-1].name == "unattributed"
    assert sum(share.share for share in table) == pytest.approx(1.0)
    assert all(0.0 <= share.share <= 1.0 for share in table)
    return {share.name: pytest.approx(share.share) for share in table if share.share}


def python_and_numpy(ticks: Ticks) -> None:
    ticks.python += 3000
    ticks.spend_native(5000)
    more_python(ticks)


def more_python(ticks: Ticks) -> None:
    ticks.python += 2000


def operator(ticks: Ticks) -> None:
    ticks.native += 3000
    ticks.spend_native(1000)


def slower_when_profiled(ticks: Ticks) -> None:
    ticks.python += 1000
    ticks.spend_native(4000 if is_profiled() else 1000)


def is_profiled() -> bool:
    try:
        refuse_company()
    except ProfilerBusyError:
        return True
    return False


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        # Functions of Python's have one owner, however many there are.
        (python_and_numpy, {"python": 0.5, "numpy": 0.5}),
        # An operator of NumPy's is no function call, and so invisible to the profiler: the documented limit.
        (operator, {"python": 0.75, "numpy": 0.25}),
        # Where native functions alone took longer than a plain call, shares are of the sum, Python's not zero.
        (slower_when_profiled, {"numpy": 40 / 41, "python": 1 / 41}),
    ],
)
def test_python_and_extensions_share_a_call(
    work: Callable[[Ticks], None], expected: dict[str, float], ticks: Ticks
) -> None:
    """Each owner has exactly its time."""
    assert found(ticks, partial(work, ticks)) == expected


def test_native_functions_of_the_standard_library_are_pythons() -> None:
    """Neither a built-in type's method nor a module of the standard library has a row of its own."""
    numbers = [0]
    clock = lambda: sum(numbers)  # noqa: E731 - a native method moves it

    assert found(clock, lambda: numbers.append(1000)) == {"python": 1.0}


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
        ("<built-in method of_an_unknown_module>", "python"),
        ("<method 'step' of 'builtins.OfNobody' objects>", "python"),
    ],
)
def test_native_functions_by_what_cprofile_calls_them(text: str, owner: str) -> None:
    """The module in a native function's description leads to its owner."""
    assert owner_of_native(text) == owner


class _Base:
    """The reset of environments, and the clock that they move."""

    def __init__(self, ticks: Ticks) -> None:
        self.ticks = ticks

    def reset(self) -> int:
        self.ticks.python += 100
        return 0


class _Env(_Base):
    """An environment in Python, whose step calls a method of its base."""

    def step(self, action: int, *, scale: float = 1.0) -> float:
        self.ticks.spend_native(400)
        return super().reset() + scale + action


class _Envs(_Base):
    """Environments that are stepped one after another."""

    def __init__(self, ticks: Ticks) -> None:
        super().__init__(ticks)
        self.envs = [_Env(ticks) for _ in range(4)]

    def step(self, actions: list[int]) -> list[float]:
        return [env.step(action) for env, action in zip(self.envs, actions, strict=True)]


class _Optimizer(_Base):
    """Something else that has steps and can be reset."""

    def step(self, loss: float) -> None:
        self.ticks.python += int(loss)


@pytest.fixture
def envs(ticks: Ticks) -> Iterator[_Envs]:
    """Return environments; their classes must be afterwards as they were before."""
    before = [dict(vars(kind)) for kind in (_Envs, _Env, _Base)]
    yield _Envs(ticks)
    assert [dict(vars(kind)) for kind in (_Envs, _Env, _Base)] == before


def test_steps_and_resets_are_the_environments(ticks: Ticks, envs: _Envs) -> None:
    """With everything that they call, nested ones once; work beside the steps is none of theirs."""
    assert found(ticks, lambda: envs.step([1, 2, 3, 4])) == {"environment": 1.0}
    assert found(ticks, lambda: envs.reset()) == {"environment": 1.0}

    def work() -> None:
        for _ in range(2):
            envs.step([1, 2, 3, 4])  # 2000 ns
            ticks.python += 1000
            ticks.spend_native(1000)

    assert found(ticks, work) == {"environment": 0.5, "python": 0.25, "numpy": 0.25}


def test_an_environment_that_fails(envs: _Envs) -> None:
    """An exception of a step comes through, and everything is as it was."""
    calls = iter(range(3))

    def fail() -> None:
        envs.step([1, 2, 3, 4] if next(calls) < 2 else [1])

    with pytest.raises(ValueError, match="zip"):
        shares(fail, setup=None, calls=1)
    assert sys.getprofile() is None
    assert sys.gettrace() is None


def test_what_is_an_environment() -> None:
    """A class that steps by actions and can be reset is one; an optimizer is not."""
    assert [is_environment(kind) for kind in (_Env, _Envs, _Optimizer, _Base, int)] == [True] * 2 + [False] * 3
    assert not is_environment(type("Staircase", (), {"step": np.arange(2), "reset": np.arange(2)}))


def test_an_audit_hook_takes_nothing_off_native_functions(ticks: Ticks) -> None:
    """A process may have slow ones; what they cost is no part of what the profiler adds to a call."""
    slowed = [ticks]

    def audit(*_: object) -> None:
        for clock in slowed:
            clock.python += 1000

    def work() -> None:
        ticks.spend_native(1000)
        ticks.python += 1000

    sys.addaudithook(audit)
    try:
        assert found(ticks, work) == {"numpy": 0.5, "python": 0.5}
    finally:
        slowed.clear()  # a hook stays for good


def test_calls_and_setups() -> None:
    """There is a setup before every call, and exactly the calls that are documented."""
    made: list[str] = []
    shares(lambda: made.append("call"), setup=lambda: made.append("setup"), calls=8)
    assert made == ["setup", "call"] * (1 + 2 * 8)


def test_another_profiler_is_not_disturbed(wording: Wording) -> None:
    """Where a profiler is at work already, the error names it, and nothing runs."""

    def somebody(*_: object) -> None:
        """Watch."""

    sys.setprofile(somebody)
    try:
        with wording.raises(ProfilerBusyError):
            shares(lambda: 1 / 0, setup=None, calls=1)
        assert sys.getprofile() is somebody
    finally:
        sys.setprofile(None)


@pytest.mark.torch
class TestPyTorch:
    @pytest.mark.parametrize(
        ("device_wait_s", "expected"),
        [
            (0.0, {"pytorch": 0.5, "numpy": 0.25, "python": 0.25}),
            (1e-6, {"pytorch": 0.25, "device wait": 0.25, "numpy": 0.25, "python": 0.25}),
            (1e9, {"device wait": 0.5, "numpy": 0.25, "python": 0.25}),
        ],
    )
    def test_functions_are_its_own_but_for_waiting(
        self, device_wait_s: float, expected: dict[str, float], ticks: Ticks
    ) -> None:
        """The host waits for its device in PyTorch's functions, so that the wait is taken off them."""
        torch = pytest.importorskip("torch")
        passed = torch.zeros(1, dtype=torch.int64)

        def work() -> None:
            passed.add_(2000)
            ticks.spend_native(1000)
            ticks.python += 1000

        clock = lambda: ticks() + int(passed)  # noqa: E731 - a tensor's and ours together
        assert found(clock, work, device_wait_s=device_wait_s) == expected

    def test_its_modules_are_python_of_its_own(self) -> None:
        torch = pytest.importorskip("torch")
        layer, row = torch.nn.Linear(4, 4), torch.ones(1, 4)
        table = shares(lambda: [layer(row) for _ in range(10)], setup=None, calls=20)
        assert {"pytorch", "pytorch (Python)", "python"} <= {share.name for share in table}

    @pytest.mark.parametrize("work", [np.clip, np.maximum, np.full_like], ids=lambda work: str(work.__name__))
    def test_numpys_functions_are_not_pytorchs(self, work: Callable[..., object]) -> None:
        """PyTorch, which is loaded, has types of the same names as the interpreter's."""
        pytest.importorskip("torch")
        arguments = (np.ones(1000), -1.0, None)[: 3 if work is np.clip else 2]
        table = shares(partial(work, *arguments), setup=None, calls=20)
        assert not {"pytorch", "pytorch (Python)"} & {share.name for share in table}

    def test_vecenv_step_is_the_environments(self, ticks: Ticks) -> None:
        """A step of a vector env belongs to the environment, though the workload holds its bound method."""
        pytest.importorskip("torch")
        gymnasium = pytest.importorskip("gymnasium")
        from pytest_rlperf.components.vecenv import vecenv_workload

        class Ticking(gymnasium.Wrapper):  # type: ignore[misc, name-defined]
            def step(self, action: Any) -> Any:
                ticks.python += 1000
                return super().step(action)

        def make() -> Any:
            return Ticking(gymnasium.make("CartPole-v1"))

        workload = vecenv_workload(lambda: gymnasium.vector.SyncVectorEnv([make] * 4))
        workload.check()
        assert found(ticks, workload.call) == {"environment": 1.0}
        workload.close()

    def test_collecting_steps_an_environment(self) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("gymnasium")
        from pytest_rlperf.components.reference.ppo import PPO, make_vec_env

        agent = PPO(make_vec_env("CartPole-v1", 8))
        agent.collect(16)
        table = shares(lambda: agent.collect(16), setup=None, calls=4)
        assert {"environment", "pytorch", "pytorch (Python)"} <= {share.name for share in table if share.share}


@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
@pytest.mark.parametrize("waits", [True, False], ids=["the call waits", "the run waits"])
def test_what_xla_takes_is_not_called_pythons(waits: bool) -> None:
    """No profiler sees a compiled function of JAX's: the functions that may have called it are named so."""
    jax: Any = pytest.importorskip("jax")
    step, rows = jax.jit(lambda rows: (rows @ rows).sum()), jax.numpy.ones((300, 300))

    def update() -> Any:
        return step(rows).block_until_ready() if waits else step(rows)

    update()
    workload = Workload("callable", update, 1.0, "call", check=update)
    table, notes = explain(workload, 1e-3, wait_for_all())
    assert notes == ()
    found = {share.name: share.share for share in table}
    assert "python" not in found
    assert found["jax"] > 0
    assert found["python or jax"] > 0
    assert sum(found.values()) == pytest.approx(1.0)
