from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from library_checks import harvested
from numpy.typing import NDArray
from wording import Wording

from pytest_rlperf.components.calls import imports_workload, thunk_workload
from pytest_rlperf.components.gae import GAMMA, LAMBDA, gae_workload
from pytest_rlperf.components.ppo import ppo_update_workload, ppo_workload, train_workload
from pytest_rlperf.components.reference.gae import compute_gae, gae_float64
from pytest_rlperf.components.updates import replay_workload, sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.counters import tally
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.timers import recording

pytestmark = pytest.mark.usefixtures("alone")

Array = NDArray[Any]


def phase_paths(workload: Workload, calls: int = 1) -> list[str]:
    """Return the paths of the phases that ``calls`` of a checked workload record."""
    with recording() as recorded:
        for _ in range(calls):
            workload.call()
    return [phase.path for phase in recorded.phases(calls)]


def test_a_thunk_is_called_as_it_is() -> None:
    """The callable is the call itself, counted as it was told; the check sets up first and looks at the output."""
    happened: list[str] = []

    def fn() -> str:
        happened.append("call")
        return "output"

    workload = thunk_workload(
        fn, items=3, unit="row", setup=lambda: happened.append("setup"), check=lambda output: happened.append(output)
    )
    assert (workload.call, workload.items, workload.unit, workload.component) == (fn, 3.0, "row", "callable")
    workload.check()
    assert happened == ["setup", "call", "output"]
    workload.close()


@pytest.mark.torch
def test_an_env_is_closed_by_who_made_it() -> None:
    """The env of a thunk is the fixture's to close, one that was given is not."""
    gymnasium = pytest.importorskip("gymnasium")
    from brief_env import BriefEnv

    env = gymnasium.vector.SyncVectorEnv([BriefEnv])
    given, made = vecenv_workload(env), vecenv_workload(lambda: env)
    given.check()
    given.close()
    assert not env.closed
    made.close()
    assert env.closed


@pytest.mark.parametrize("env", [None, 3, "CartPole-v1", object()])
def test_an_env_of_an_unknown_type(env: Any) -> None:
    """An object, or a thunk of one, that is no vector env is an error with its type and another way to measure it."""
    for given in (env, lambda: env):
        with pytest.raises(
            ComponentError, match=rf"not support {type(env).__name__}\. .*rlperf_vecenv_step\(step, num_envs"
        ):
            vecenv_workload(given)


class Pair(NamedTuple):
    obs: Array
    rewards: Array


@dataclasses.dataclass
class Record:
    """A batch as a dataclass, one field of which holds no array."""

    obs: Any
    rewards: Array
    weights: None = None


class Fields(Pair):
    """A namedtuple's class with data of its own where a namedtuple has its fields' names."""

    _fields = np.arange(2)  # type: ignore[assignment]


class KeysOnly:
    """A batch that is no Mapping but has keys, as TensorDict."""

    def __init__(self, **arrays: Array) -> None:
        self._arrays = arrays

    def keys(self) -> Any:
        return self._arrays.keys()

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]


class Buffer:
    def __init__(self, make: Callable[[Array], Any]) -> None:
        self.make = make

    def sample(self, batch_size: int) -> Any:
        return self.make(np.zeros((batch_size, 3)))


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: rows,
        lambda rows: (rows, rows[:, 0]),
        lambda rows: [rows, (rows,)],
        lambda rows: {"obs": rows, "info": {"done": rows[:, 0], "text": "none"}},
        lambda rows: Pair(rows, rows[:, 0]),
        lambda rows: Fields(rows, rows[:, 0]),
        lambda rows: Record({"image": rows}, rows[:, 0]),
        lambda rows: KeysOnly(obs=rows, rewards=rows[:, 0]),
    ],
    ids=["array", "tuple", "nested", "dict", "namedtuple", "fields", "dataclass", "keys"],
)
def test_batches_of_any_shape(make: Callable[[Array], Any]) -> None:
    """Arrays are found within the usual containers, and all must have as many rows as were asked for."""
    workload = replay_workload(Buffer(make), 16)
    workload.check()
    assert (workload.items, workload.unit, workload.component) == (16.0, "transition", "replay_sample")
    assert phase_paths(workload) == ["sample"]
    with pytest.raises(ComponentError, match=r"sample\(16\).*wrong size.*\(15.*expected 16 rows"):
        replay_workload(Buffer(lambda rows: make(rows[1:])), 16).check()


@pytest.mark.parametrize("batch", [None, (), {}, "rows", [1.0, 2.0]])
def test_a_batch_without_arrays(batch: Any, wording: Wording) -> None:
    """A batch in which no array is found cannot be checked, so it is refused."""
    with wording.raises(ComponentError):
        replay_workload(Buffer(lambda rows: batch), 8).check()


def advantages_of(rewards: Any, values: Any, dones: Any, last_values: Any) -> Array:
    """Return advantages by the reference; ``dones[t]`` says that the episode ended with step t."""
    return compute_gae(rewards, values, dones, last_values, GAMMA, LAMBDA)[0]


def of_cleanrl(
    rewards: Array, values: Array, dones: Array, next_value: Array, next_done: Array, gamma: float, gae_lambda: float
) -> tuple[Array, Array]:
    """Compute as CleanRL does, where ``dones[t]`` says that step t is an episode's first."""
    advantages = np.zeros_like(rewards)
    following = np.zeros_like(next_value)
    for t in reversed(range(len(rewards))):
        last = t == len(rewards) - 1
        going_on = 1.0 - (next_done if last else dones[t + 1])
        next_values = next_value if last else values[t + 1]
        delta = rewards[t] + gamma * next_values * going_on - values[t]
        advantages[t] = following = delta + gamma * gae_lambda * going_on * following
    return advantages, advantages + values


def of_stable_baselines3(
    rewards: Array, values: Array, episode_starts: Array, last_values: Array, last_dones: Array
) -> Array:
    """Compute as Stable-Baselines3's rollout buffer does, with CleanRL's convention under other names."""
    return of_cleanrl(rewards, values, episode_starts, last_values, last_dones, GAMMA, LAMBDA)[0]


def of_torchrl(
    gamma: float, lmbda: float, state_value: Array, next_state_value: Array, reward: Array, done: Array
) -> tuple[Array, Array]:
    """Compute with the values of all next states given, under TorchRL's names."""
    advantages, following = np.zeros_like(reward), np.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * next_state_value[t] * (1 - done[t]) - state_value[t]
        advantages[t] = following = delta + gamma * lmbda * (1 - done[t]) * following
    return advantages, advantages + state_value


class WithoutSignature:
    """A callable that does not tell its parameters, as some built-ins."""

    __signature__ = "lost"

    def __call__(self, *args: Any) -> Array:
        return compute_gae(*args)[0]


class Method:
    def gae(self, Rewards: Array, Values: Array, Dones: Array, Last_Values: Array) -> Array:  # noqa: N803
        return advantages_of(Rewards, Values, Dones, Last_Values)


@pytest.mark.parametrize(
    "function",
    [
        compute_gae,
        gae_float64,
        advantages_of,
        of_cleanrl,
        of_stable_baselines3,
        of_torchrl,
        WithoutSignature(),
        Method().gae,
        partial(compute_gae, gamma=0.5, lam=0.5),
        lambda rewards, values, dones, last_values: {"advantages": advantages_of(rewards, values, dones, last_values)},
    ],
)
@pytest.mark.parametrize(("n_steps", "n_envs"), [(1, 1), (128, 8)])
def test_conventions_of_gae_functions(function: Callable[..., Any], n_steps: int, n_envs: int) -> None:
    """Arguments reach a function by what its parameters are called, or by their place where names do not tell."""
    workload = gae_workload(function, n_steps, n_envs, "numpy")
    workload.check()
    assert (workload.items, workload.unit, workload.component) == (float(n_steps * n_envs), "transition", "gae")
    assert phase_paths(workload)[0] == "gae"


ALIASES = {
    "rewards": "rewards reward rews r",
    "values": "values value vals state_values state_value v",
    "dones": "dones done terminated terminations terminals",
    "last_values": "last_values last_value next_value last_val bootstrap_value bootstrap v_last",
    "gamma": "gamma discount discount_factor",
    "lam": "lam lambda_ lmbda gae_lambda lambd lamda",
}


@pytest.mark.parametrize(
    ("meaning", "alias"), [(meaning, alias) for meaning, aliases in ALIASES.items() for alias in aliases.split()]
)
def test_names_of_gae_parameters(meaning: str, alias: str) -> None:
    """The libraries' own names of arguments are known, in any order."""

    def function(**kwargs: Any) -> Any:
        return compute_gae(**{meaning if name == alias else name: value for name, value in kwargs.items()})

    names = [alias if name == meaning else name for name in reversed(ALIASES)]
    kind = inspect.Parameter.KEYWORD_ONLY
    function.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    gae_workload(function, 20, 4, "numpy").check()


@pytest.mark.torch
def test_gae_on_tensors() -> None:
    """With backend="torch" a function gets float32 tensors and may return some."""
    torch = pytest.importorskip("torch")
    seen: list[Any] = []

    def function(rewards: Any, values: Any, dones: Any, last_values: Any) -> Any:
        seen.extend((rewards, values, dones, last_values))
        arrays = [tensor.numpy() for tensor in (rewards, values, dones, last_values)]
        return torch.from_numpy(advantages_of(*arrays)).requires_grad_()

    gae_workload(function, 30, 4, "torch").check()
    assert all(isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float32 for tensor in seen)
    assert [tuple(tensor.shape) for tensor in seen] == [(30, 4)] * 3 + [(4,)]


def ignores_ends(rewards: Array, values: Array, dones: Array, last_values: Array) -> Array:
    return advantages_of(rewards, values, 0 * dones, last_values)


@pytest.mark.parametrize(
    "function",
    [
        lambda rewards, values: np.full_like(rewards, np.nan),
        lambda rewards, values: rewards / 0 * np.eye(128, 8),
        lambda rewards, values: rewards.T,
        lambda rewards, values: rewards[0],
        lambda rewards, values: None,
        lambda rewards, values: rewards,
        ignores_ends,
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_gae_function_that_is_wrong(function: Callable[..., Any], wording: Wording) -> None:
    """A wrong result is an error that says what is wrong with it, and never a time."""
    with wording.raises(ComponentError):
        gae_workload(function, 128, 8, "numpy").check()


def with_unknown_names(rew: Array, v_s: Array, end_flag: Array) -> Array:
    raise AssertionError


def test_a_gae_function_with_unknown_parameters_or_that_raises(wording: Wording) -> None:
    """A parameter that means nothing known is named, with the way out; a function's exception is left unchanged."""
    with wording.raises(ComponentError):
        gae_workload(with_unknown_names, 8, 2, "numpy")

    def function(rewards: Array, values: Array) -> Array:
        raise ZeroDivisionError("in the scan")

    with wording.raises(ZeroDivisionError):
        gae_workload(function, 8, 2, "numpy").check()


def sac_agent() -> Any:
    pytest.importorskip("torch")
    from pytest_rlperf.components.reference.sac import SAC, ReplayBuffer

    rows = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    buffer = ReplayBuffer(64, 3, 2)
    buffer.add(rows, np.tanh(rows[:, :2]), rows[:, 0], rows, np.zeros(64))
    return SAC(3, 2, buffer, hidden=8)


@pytest.mark.torch
def test_a_sac_agent_and_a_thunk() -> None:
    """An agent's update is checked and measured phase by phase; a thunk is one update of whatever it likes."""
    agent = sac_agent()
    workload = sac_workload(agent, 16)
    workload.check()
    assert (workload.items, workload.unit, workload.component) == (1.0, "update", "sac_update")
    paths = phase_paths(workload)
    steps = ("sample", "target_q", "critic", "actor", "alpha", "polyak")
    assert [path for path in paths if path.count("/") == 1] == [f"sac_update/{step}" for step in steps]
    assert "sac_update/critic/backward" in paths
    thunk = sac_workload(lambda: agent.update(16), None)
    thunk.check()
    assert phase_paths(thunk) == paths


@pytest.mark.torch
@pytest.mark.parametrize("own", [{}, {"batch_size": 16}])
def test_an_agent_whose_update_takes_nothing(own: dict[str, int]) -> None:
    """It is called as it is, whether or not the agent has a batch size."""
    agent = sac_agent()
    update = agent.update
    vars(agent).update(own, update=lambda: update(16))
    assert sac_workload(agent).check() is not None


def torch_agent(update: Callable[[Any], None]) -> Any:
    """Return an agent of one linear layer whose update is ``update``."""
    torch = pytest.importorskip("torch")

    class Agent:
        def __init__(self) -> None:
            self.net = torch.nn.Linear(2, 2)
            self.log_alpha = torch.zeros((), requires_grad=True)

        def update(self, batch_size: int) -> None:
            assert batch_size == 4
            with torch.no_grad():
                update(self)

    return Agent()


@pytest.mark.torch
def test_a_sac_update_that_does_nothing_or_diverges(wording: Wording) -> None:
    """An update that leaves every parameter as it was is none; one that leaves NaN or infinity names where."""
    with wording.raises(ComponentError):
        sac_workload(torch_agent(lambda agent: None), 4).check()
    sac_workload(torch_agent(lambda agent: agent.log_alpha.add_(1)), 4).check()
    with wording.raises(ComponentError):
        sac_workload(torch_agent(lambda agent: agent.net.bias.fill_(math.nan)), 4).check()
    with wording.raises(ComponentError):
        sac_workload(torch_agent(lambda agent: agent.log_alpha.fill_(math.inf)), 4).check()


@pytest.mark.parametrize(
    ("agent", "batch_size"),
    [
        (3, 4),
        (object(), None),
        (Buffer(lambda rows: rows), 4),
    ],
)
def test_what_does_not_update(agent: Any, batch_size: int | None, wording: Wording) -> None:
    """An object that is neither an agent nor a thunk is an error that names both."""
    with wording.raises(ComponentError):
        sac_workload(agent, batch_size)


class Collector:
    """Collects whatever ``make`` makes of (n_steps, 4) rewards."""

    def __init__(self, make: Callable[[Array], Any]) -> None:
        self.make = make

    def collect(self, n_steps: int) -> Any:
        return self.make(np.zeros((n_steps, 4), np.float32))


class Rewarded(NamedTuple):
    rewards: Any


class Learner:
    def update(self, batch_size: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    "make", [Rewarded, lambda rewards: {"rewards": rewards}, lambda rewards: Record(rewards, rewards)]
)
def test_env_steps_of_a_rollout(make: Callable[[Array], Any]) -> None:
    """A rollout of n_steps rows and 4 envs is 4 n_steps env steps, in whatever container."""
    workload = ppo_workload(Collector(make), 8, None)
    workload.check()
    assert workload.processed(1) == 32.0
    workload.call()
    workload.call()
    assert workload.processed(2) == 64.0


@pytest.mark.parametrize(
    "make",
    [
        lambda rewards: Rewarded(rewards[1:]),
        lambda rewards: Rewarded(rewards.T),
        lambda rewards: Rewarded(rewards / 0),
        lambda rewards: {"rewards": rewards, "info": {"logp": rewards + np.inf}},
        lambda rewards: None,
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_rollout_that_is_wrong(make: Callable[[Array], Any], wording: Wording) -> None:
    """A rollout that is not full, or holds no numbers, is an error that names the array."""
    with wording.raises(ComponentError):
        ppo_workload(Collector(make), 8, None).check()


given: Any = partial  # arguments that no type checker would let pass
THUNK: dict[str, Any] = {"fn": int, "items": 1, "unit": "call", "setup": None, "check": None}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        *((given(thunk_workload, **THUNK | {"items": items}), "items=") for items in (0, -1, math.nan, math.inf, "x")),
        *((given(thunk_workload, **THUNK | {"unit": unit}), "unit=") for unit in (5, None)),
        *((given(thunk_workload, **THUNK | {name: 3}), "int") for name in ("fn", "setup", "check")),
        *((given(replay_workload, Buffer(list), size), "batch_size=") for size in (0, -1, 2.5, "many", None)),
        (given(gae_workload, compute_gae, 0, 8, "numpy"), "n_steps=0"),
        (given(gae_workload, compute_gae, 8, -1, "numpy"), "n_envs=-1"),
        (given(gae_workload, compute_gae, 8, 2.5, "numpy"), r"n_envs=2\.5"),
        (given(gae_workload, compute_gae, "many", 8, "numpy"), "n_steps='many'"),
        (given(gae_workload, compute_gae, 8, 2, "jax"), "backend='jax'.*'numpy' or 'torch'"),
        (given(gae_workload, np.zeros(3), 8, 2, "numpy"), "ndarray"),
        *((given(sac_workload, Learner(), size), "batch_size=") for size in (None, 0, -1, "many")),
        (given(ppo_workload, 3, 8, None), "not int"),
        (given(ppo_workload, Collector(Rewarded), None, None), "needs n_steps="),
        *((given(ppo_workload, Collector(Rewarded), n_steps, None), "n_steps=") for n_steps in (0, "many")),
        (given(ppo_workload, int, None, None), "needs items="),
        *((given(ppo_workload, int, None, items), "items=") for items in (0, math.nan, "many")),
    ],
)
def test_arguments_that_make_no_sense(make: Callable[[], Any], says: str) -> None:
    """Sizes, counts, units and what should be callable are checked before anything runs."""
    with pytest.raises(ComponentError, match=says):
        make()


@pytest.mark.parametrize("make", [ppo_workload, train_workload])
def test_items_of_a_librarys_agent_are_checked(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of any other agent, before its adapter is made."""
    monkeypatch.setattr("pytest_rlperf.components.ppo.adapter_for", lambda *_: pytest.fail)
    with pytest.raises(ComponentError, match="items='many'"):
        make(object(), 8, "many")


def learner(method: str = "update", *, change: float = 0.1, given: bool = True, collects: bool = True) -> Any:
    """Return an agent of one linear layer whose ``method`` adds ``change`` to its bias, and notes its rollout."""
    torch = pytest.importorskip("torch")
    agent: Any = SimpleNamespace(net=torch.nn.Linear(2, 2), seen=[], collected=0)

    def collect(n_steps: int) -> Any:
        agent.collected += 1
        agent.rollout = {"rewards": np.zeros((n_steps, 3), np.float32)}
        return agent.rollout

    def update(rollout: Any) -> None:
        agent.seen.append((rollout, float(agent.net.bias[0].detach())))
        with torch.no_grad():
            agent.net.bias.add_(change)

    setattr(agent, method, update if given else lambda: update(agent.rollout))
    if collects:
        agent.collect = collect
    return agent


@pytest.mark.torch
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("method", ["update", "learn", "train"])
def test_an_own_ppo_update(method: str, given: bool) -> None:
    """A method of any of these names updates, on one rollout and from the same parameters every time."""
    agent = learner(method, given=given)
    workload = ppo_update_workload(agent, 8, None)
    workload.check()
    for _ in range(2):
        assert workload.setup is not None
        workload.setup()
        assert phase_paths(workload) == ["ppo_update"]
    rollouts, biases = zip(*agent.seen, strict=True)
    assert (len(set(biases)), agent.collected) == (1, 1)
    assert all(rollout is agent.rollout for rollout in rollouts)


@pytest.mark.torch
def test_a_ppo_update_by_a_thunk() -> None:
    """A function has its rollout from the test, and gives it back by setup."""
    given_back: list[int] = []
    agent = learner(given=False, collects=False)
    agent.rollout = None
    workload = ppo_update_workload(lambda: agent.update(), None, lambda: given_back.append(1))
    workload.check()
    assert workload.setup is not None
    workload.setup()
    workload.call()
    assert len(given_back) == 2
    assert len({bias for _, bias in agent.seen}) == 1


@pytest.mark.torch
def test_an_own_iteration_and_a_thunk() -> None:
    """Every call collects anew and goes on from where it was; a function says how many env steps it takes."""
    agent = learner()
    for workload, items in (
        (train_workload(agent, 8, None), 24),
        (train_workload(agent, 8, 16), 16),
        (train_workload(lambda: agent.update(None), None, 5), 5),
    ):
        workload.check()
        assert workload.processed(1) == items
        workload.call()
        assert workload.processed(1) == items
        assert workload.whole_machine
    assert agent.collected == 4
    assert len({bias for _, bias in agent.seen}) == 6


@pytest.mark.torch
@pytest.mark.parametrize("change", [0.0, math.nan, math.inf])
@pytest.mark.parametrize("workload", [ppo_update_workload, train_workload])
def test_learning_that_is_wrong(workload: Callable[..., Workload], change: float, wording: Wording) -> None:
    """A PPO update that moves nothing, or leaves NaN or infinity, is an error."""
    with wording.raises(ComponentError):
        workload(learner(change=change), 8, None).check()


@pytest.mark.torch
@pytest.mark.parametrize(
    "make",
    [
        lambda: ppo_update_workload(3, 8, None),
        lambda: ppo_update_workload(learner("step"), 8, None),
        lambda: ppo_update_workload(learner(), None, None),
        lambda: ppo_update_workload(learner(collects=False), 8, None),
        lambda: ppo_update_workload(learner(), 8, 3),  # type: ignore[arg-type]
        lambda: train_workload(3, 8, None),
        lambda: train_workload(lambda: None, None, None),
        lambda: train_workload(learner(), 0, None),
        lambda: train_workload(learner(), 8, -1),
    ],
)
def test_what_does_not_learn(make: Callable[[], Workload], wording: Wording) -> None:
    """An agent without an update is an error that names what to pass."""
    with wording.raises(ComponentError):
        make()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a package on this process's path alone, whose second module works as it is imported, and a third fails."""
    place = tmp_path / "imported"
    place.mkdir()
    (place / "__init__.py").write_text("from imported import working\n", encoding="utf-8")
    (place / "working.py").write_text("print('working')\nx = sum(range(1_000_000))\n", encoding="utf-8")
    (place / "broken.py").write_text(
        "import sys\nif 'pytest' not in sys.modules:\n    raise OSError('no licence')\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield place
    for name in [name for name in sys.modules if name.partition(".")[0] == "imported"]:
        del sys.modules[name]


def test_an_import(package: Path) -> None:
    """Every call is a new interpreter with this process's path, whose slowest modules are phases."""
    workload = imports_workload("imported")
    workload.check()
    assert "imported.working" in sys.modules  # so that the run verifies its file
    assert (workload.items, workload.unit, workload.component) == (1.0, "import", "import")
    assert phase_paths(workload, 2) == ["import"]
    phases = harvested(workload, 2)
    assert phases["import/imported/imported.working"].count == 1
    assert phases["import"].total_s > phases["import/imported"].total_s > 0.002


def test_times_of_an_imports_modules_are_no_counts(package: Path) -> None:
    """What a new interpreter takes is never equal; where calls are counted, modules have nothing."""
    workload = imports_workload("imported")
    assert workload.harvest is not None
    found = tally(
        workload.harvest.call, setup=None, probes=(), repetitions=2, names=["python_calls", "collections", "env_steps"]
    )
    one, other = ({(count.path, count.name): count.value for count in counts} for counts in found.repetitions)
    assert {path for path, _ in one} <= {"", "import"}
    assert one["", "collections"] == other["", "collections"] == 0
    assert one["", "python_calls"] < 10_000


def test_an_import_that_waits_takes_that_long(package: Path) -> None:
    """Its clock leaves out the time without a CPU, and no other."""
    (package / "working.py").write_text("import time\ntime.sleep(0.2)\n", encoding="utf-8")
    workload = imports_workload("imported")
    assert workload.children_ns is not None
    began_s = time.perf_counter()
    workload.call()
    assert 0.2 < workload.children_ns() / 1e9 < time.perf_counter() - began_s


@pytest.mark.parametrize("module", [3, "", "my library", "os;print()"])
def test_an_import_of_what_is_no_module(module: Any) -> None:
    """Text that is no name of a module is never run."""
    with pytest.raises(ComponentError, match="give the name of a module"):
        imports_workload(module)


def test_an_import_that_fails(package: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """One that fails in a new interpreter alone, or loads other files there, is an error."""
    with wording.raises(ComponentError):
        imports_workload("imported.broken").check()
    monkeypatch.setattr(importlib.import_module("imported.working"), "__file__", "/elsewhere/working.py")
    with pytest.raises(ComponentError, match=r"a new interpreter imports imported\.working from .*, and"):
        imports_workload("imported").check()
    with pytest.raises(ModuleNotFoundError, match=r"imported\.none"):
        imports_workload("imported.none").check()


@pytest.mark.parametrize(
    "stderr", ["sys.stderr.close()", "os.close(2)", "sys.stderr = None", "sys.stderr = io.StringIO()"]
)
def test_an_import_that_takes_stderr_away(package: Path, stderr: str) -> None:
    """In a new interpreter the module may do with it what it wants: its files are known all the same."""
    there = f"import io, os, sys\nif 'pytest' not in sys.modules:\n    {stderr}\n"
    (package / "working.py").write_text(there, encoding="utf-8")
    imports_workload("imported").check()


def test_an_import_that_ends_its_interpreter(package: Path) -> None:
    """It is an error that says so, although the exit code is that of success."""
    there = "import os, sys\nif 'pytest' not in sys.modules:\n    os._exit(0)\n"
    (package / "working.py").write_text(there, encoding="utf-8")
    with pytest.raises(ComponentError, match="importing imported in a new interpreter ends it with exit code 0"):
        imports_workload("imported").check()


def test_a_thunk_may_compute_gae_of_its_own_data() -> None:
    """A function without parameters is held to shape and finiteness alone."""
    gae_workload(lambda: np.zeros((8, 2)), 8, 2, "numpy").check()
    with pytest.raises(ComponentError, match="shape"):
        gae_workload(lambda: np.zeros((2, 8)), 8, 2, "numpy").check()
    with pytest.raises(ComponentError, match="NaN"):
        gae_workload(lambda: np.full((8, 2), np.nan), 8, 2, "numpy").check()
