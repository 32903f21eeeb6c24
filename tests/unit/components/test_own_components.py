"""Components of one's own: of no library's class, and with habits of their own."""

from __future__ import annotations

import math
import random
import re
import sys
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from wording import Wording

from pytest_rlperf.components.calls import thunk_workload
from pytest_rlperf.components.ppo import ppo_update_workload, ppo_workload, train_workload
from pytest_rlperf.components.updates import replay_workload, sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import recording

pytestmark = pytest.mark.usefixtures("alone")

Array = NDArray[Any]


class Agent:
    """An agent of one layer; ``optimizer`` is made by the class of that name, at a learning rate."""

    def __init__(self, optimizer: str, lr: float, dtype: str = "float32") -> None:
        torch = pytest.importorskip("torch")
        self.net = torch.nn.Linear(2, 1, dtype=getattr(torch, dtype))
        self.optimizer = getattr(torch.optim, optimizer)(self.net.parameters(), lr=lr)

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.net(self.net.weight.detach()).sum().backward()
        self.optimizer.step()


def out_of_sight(agent: Agent) -> Callable[[], None]:
    """Return an update of an agent in a module, where nothing is looked for."""
    module: Any = ModuleType("agents")
    module.agent = agent
    return lambda: module.agent.update()


def test_a_size_that_an_own_object_has() -> None:
    """Its attribute is taken, a given size goes before it, and what is no size is none."""

    class Sized:
        batch_size, n_steps = np.int64(4), 3

        def __init__(self) -> None:
            self.asked: list[int] = []

        def sample(self, batch_size: int) -> Array:
            self.asked.append(batch_size)
            return np.zeros(batch_size)

        def update(self, given: object) -> None:
            if isinstance(given, int):
                self.asked.append(given)

        def collect(self, n_steps: int) -> dict[str, Array]:
            self.asked.append(n_steps)
            return {"rewards": np.zeros((n_steps, 2))}

    for makes, own in ((replay_workload, 4), (sac_workload, 4), (ppo_workload, 3), (ppo_update_workload, 3)):
        for given, expected in (((), own), ((2,), 2)):
            sized = Sized()
            makes(sized, *given).check()
            assert set(sized.asked) == {expected}
    for nothing in (0, True, 2.5, "4", None):
        unsized = Sized()
        vars(unsized).update(batch_size=nothing, n_steps=nothing)
        for makes in (replay_workload, sac_workload, ppo_workload, train_workload):
            with pytest.raises(ComponentError, match=r"also needs (batch_size|n_steps)="):
                makes(unsized)


@pytest.mark.torch
def test_an_update_that_is_not_called(wording: Wording) -> None:
    """A thunk that only looks the update up changes nothing of the agent it refers to."""
    agent = Agent("SGD", 0.1)
    with wording.raises(ComponentError):
        sac_workload(lambda: agent.update, None).check()
    sac_workload(agent.update, None).check()


@pytest.mark.torch
def test_an_optimizer_out_of_sight(wording: Wording) -> None:
    """Parameters that a thunk does not refer to are found by the optimizers that step."""
    sac_workload(out_of_sight(Agent("SGD", 0.1)), None).check()
    with wording.raises(ComponentError):
        sac_workload(out_of_sight(Agent("SGD", 0.0)), None).check()
    with wording.raises(ComponentError):
        sac_workload(out_of_sight(Agent("SGD", math.inf)), None).check()


def test_an_update_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trains by NumPy alone has no optimizers that could be watched, and is measured as it is."""
    weights = np.ones(3)
    for _ in ("with PyTorch loaded, or not", "without"):
        sac_workload(lambda: np.add(weights, 1, out=weights), None).check()
        monkeypatch.delitem(sys.modules, "torch", raising=False)


class Config(dict[str, Any]):
    """A mapping with its keys for attributes, so that asking for any other is a KeyError."""

    __getattr__ = dict.__getitem__


class Remote:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no connection to ask for {name}")


@pytest.mark.parametrize(
    "beside", [Config(lr=0.1), Remote(), Config(gone=weakref.proxy(Remote()))], ids=["mapping", "proxy", "dead proxy"]
)
def test_what_an_agent_has_beside_what_it_trains(beside: Any) -> None:
    """Every component passes by objects that raise any exception when they are inspected."""
    learner: Any = SimpleNamespace(weights=np.ones(3), beside=beside)
    learner.update = lambda size: np.add(learner.weights, size, out=learner.weights)
    sac_workload(learner, 4).check()
    ppo_workload(Collector(lambda rewards: Config(rewards=rewards, beside=beside), beside=beside), 8, None).check()
    replay_workload(SimpleNamespace(sample=lambda size: Config(obs=np.ones((size, 3)), beside=beside)), 4).check()
    vecenv_workload(lambda: beside, 3).check()


class Learner:
    def __init__(self) -> None:
        self.weights = np.ones(3)

    def by_batch(self, batch: Any) -> None:
        self.weights += batch["rewards"]

    def by_keyword(self, *, batch_size: int) -> None:
        """Take a size by its name."""

    def broken(self, batch_size: int) -> None:
        raise KeyError("weights")


def test_an_update_that_takes_a_batch(wording: Wording) -> None:
    """It is told so before it is called, with what to write; an update's own errors stay as they are."""
    learner: Any = Learner()
    learner.update = learner.by_batch
    with wording.raises(ComponentError):
        sac_workload(learner, 4)
    learner.update = learner.by_keyword
    takes = re.escape("calls agent.update(4), but Learner.by_keyword(*, batch_size) does not take that")
    with pytest.raises(ComponentError, match=rf"{takes}.*rlperf_sac_update\(lambda: agent\.update\(…\)\)"):
        sac_workload(learner, 4)
    learner.update = learner.broken
    with pytest.raises(KeyError, match="weights"):
        sac_workload(learner, 4).check()


@pytest.mark.parametrize(
    "make",
    [
        lambda thunk: sac_workload(thunk, None),
        lambda thunk: ppo_workload(thunk, None, 8),
        lambda thunk: ppo_update_workload(thunk, None, None),
        lambda thunk: train_workload(thunk, None, 8),
        lambda thunk: replay_workload(thunk, 8),
        lambda thunk: vecenv_workload(thunk),
        lambda thunk: vecenv_workload(thunk, 8),
        lambda fn: thunk_workload(fn, items=1, unit="call", setup=None, check=None),
    ],
)
def test_a_thunk_that_wants_something(make: Callable[[Any], Any], wording: Wording) -> None:
    """A function with parameters is no thunk, which is told before it is called, with what to write."""
    with wording.raises(ComponentError):
        make(Learner().by_batch)


class Space:
    """Actions of a shape, drawn by a generator of its own."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.generator = random.Random()

    def seed(self, seed: int) -> None:
        self.generator.seed(seed)

    def sample(self) -> Array:
        return np.full(self.shape, self.generator.random(), np.float32)


class VectorEnv:
    """Three envs of one's own with episodes of 4 steps, reset within the step; ``told`` is added to what it has."""

    def __init__(self, **told: Any) -> None:
        self.taken: list[Array] = []
        self.steps = 0
        self.seeded: int | None = None
        vars(self).update({"num_envs": 3, "single_action_space": Space(2)} | told)

    def reset(self, *, seed: int | None = None) -> Array:
        self.steps, self.seeded = 0, seed
        return np.zeros((3, 5))

    def ends(self) -> Array:
        return np.array([self.steps % 4 == 0, False, False])

    def results(self, obs: Array, rewards: Array, ends: Array) -> Any:
        return obs, rewards, ends, np.zeros(3, np.bool_), {}

    def step(self, actions: Any) -> Any:
        self.taken.append(np.asarray(actions))
        self.steps += 1
        return self.results(np.zeros((3, 5)), np.ones(3), self.ends())


class OldVectorEnv(VectorEnv):
    """Returns four values, as gym did and Stable-Baselines3 does."""

    def results(self, obs: Array, rewards: Array, ends: Array) -> Any:
        return obs, rewards, ends, [{}, {}, {}]


@pytest.mark.parametrize("kind", [VectorEnv, OldVectorEnv])
@pytest.mark.parametrize(
    ("told", "shape"),
    [
        ({}, (3, 2)),
        ({"single_action_space": None, "action_space": Space()}, (3,)),
        ({"single_action_space": None, "action_space": Space(2)}, (3, 2)),
        ({"single_action_space": None, "action_space": Space(3, 2)}, (3, 2)),
        ({"single_action_space": Space(3), "action_space": Space(3)}, (3, 3)),
        ({"single_action_space": None, "sample_actions": lambda: np.zeros((3, 4))}, (3, 4)),
        ({"sample_actions": lambda: [0, 1, 2]}, (3,)),
        ({"num_envs": None, "n_envs": 3}, (3, 2)),
    ],
)
def test_a_vector_env_of_ones_own(kind: type[VectorEnv], told: dict[str, Any], shape: tuple[int, ...]) -> None:
    """It is known by what it has, stepped with actions of a row an env, and every call is a step of each."""
    env = kind(**told)
    workload = vecenv_workload(env)
    workload.check()
    assert 4 < env.steps < 10  # an episode has ended, and another begun
    assert (workload.items, workload.unit, workload.component) == (3.0, "env step", "vecenv_step")
    assert workload.count is not None
    workload.count()
    with recording() as recorded:
        workload.call()
        workload.call()
    assert [phase.path for phase in recorded.phases(2)] == ["action", "env_step"]
    assert workload.count() == 6.0
    assert {actions.shape for actions in env.taken} == {shape}


@pytest.mark.parametrize(
    "results",
    [
        lambda obs, rewards, ends: (obs[1:], rewards, ends, ends, {}),
        lambda obs, rewards, ends: ([obs, obs[1:]], rewards, ends, ends, {}),
        lambda obs, rewards, ends: (obs, rewards[1:], ends, ends, {}),
        lambda obs, rewards, ends: (obs, rewards, ends, False, {}),
        lambda obs, rewards, ends: (obs, rewards, ends[:1], [{}] * 3),
        lambda obs, rewards, ends: (obs, rewards, ends),
        lambda obs, rewards, ends: {"obs": obs},
    ],
)
def test_a_step_that_is_wrong(results: Callable[..., Any], wording: Wording) -> None:
    """Everything that a step returns has a row an env, in one of the two orders that are known."""
    with wording.raises(ComponentError):
        vecenv_workload(VectorEnv(results=results)).check()


def test_an_env_that_is_never_reset(wording: Wording) -> None:
    """One that stays ended is told, with what would step and reset it."""
    with wording.raises(ComponentError):
        vecenv_workload(VectorEnv(ends=lambda: np.array([False, True, False]))).check()


@pytest.mark.parametrize(
    "told",
    [
        {"single_action_space": None},
        {"single_action_space": None, "action_space": Space(3)},
        {"num_envs": None},
        {"num_envs": 0},
        {"num_envs": -3},
        {"num_envs": True},
        {"sample_actions": lambda: np.zeros(2)},
        {"sample_actions": lambda: 1},
        {"sample_actions": lambda num_envs: np.zeros(num_envs)},
        {"metadata": {"autoreset_mode": "Disabled"}},
        {"metadata": {"autoreset_mode": "NextStep"}},
    ],
)
def test_an_env_that_lacks_something(told: Mapping[str, Any], wording: Wording) -> None:
    """An error names the missing attributes of an env, and nothing unclear is guessed."""
    with wording.raises(ComponentError):
        vecenv_workload(VectorEnv(**told))


def test_the_number_of_envs_is_a_thunks(wording: Wording) -> None:
    """With num_envs a thunk that makes an env is not taken for its step, and no env is; a class is no thunk."""
    with wording.raises(ComponentError):
        vecenv_workload(VectorEnv(), num_envs=3)
    with wording.raises(ComponentError):
        vecenv_workload(VectorEnv, num_envs=3).check()
    with wording.raises(ComponentError):
        vecenv_workload(VectorEnv)


class Bag:
    """A batch or rollout as an object with attributes."""

    def __init__(self, **arrays: Any) -> None:
        vars(self).update(arrays)


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: [(row, row[0], 1.0) for row in rows],
        lambda rows: [{"obs": row.tolist(), "reward": 1.0} for row in rows],
        lambda rows: Bag(obs=rows, info={"weights": rows[:, 0]}, size=len(rows)),
    ],
    ids=["tuples", "dicts of numbers", "object"],
)
def test_batches_of_ones_own(make: Callable[[Array], Any]) -> None:
    """A list of transitions has as many members as were asked for; an object's arrays are its attributes'."""
    buffer = SimpleNamespace(sample=lambda size: make(np.zeros((size, 3))))
    replay_workload(buffer, 8).check()
    short = SimpleNamespace(sample=lambda size: make(np.zeros((size // 2, 3))))
    with pytest.raises(ComponentError, match=r"wrong size: .* has shape \(4,.*expected 8 rows"):
        replay_workload(short, 8).check()


def test_a_buffer_or_collector_that_takes_no_size(wording: Wording) -> None:
    """An argument that it does not take is an error before the call, which proposes a thunk; so is no return value."""
    with pytest.raises(ComponentError, match=r"calls buffer\.sample\(8\), but .*rlperf_replay_sample\(lambda: "):
        replay_workload(SimpleNamespace(sample=lambda: None), 8)
    with pytest.raises(ComponentError, match=r"calls agent\.collect\(8\), but .*rlperf_ppo_collect\(lambda: "):
        ppo_workload(SimpleNamespace(collect=lambda: None), 8, None)
    with wording.raises(ComponentError):
        ppo_workload(Collector(lambda rewards: None), 8, None).check()


class Collector:
    """Collects what ``make`` makes of (n_steps, 4) rewards."""

    def __init__(self, make: Callable[[Array], Any], **held: Any) -> None:
        self.make = make
        vars(self).update(held)

    def collect(self, n_steps: int) -> Any:
        return self.make(np.zeros((n_steps, 4), np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda rewards: {"rewards": rewards.ravel(), "obs": np.zeros((rewards.size, 3))},
        lambda rewards: {"rewards": rewards.T, "obs": np.zeros((*rewards.T.shape, 3))},
        lambda rewards: Bag(rew=rewards.ravel()),
        lambda rewards: {"obs": rewards, "mean_return": np.float64("nan")},
    ],
    ids=["flat", "env by env", "object", "statistics"],
)
def test_rollouts_of_ones_own(make: Callable[[Array], Any]) -> None:
    """With ``items``, steps of all envs may follow each other; numbers are statistics, and may be none."""
    workload = ppo_workload(Collector(make), 8, 32)
    workload.check()
    assert workload.processed(1) == 32.0


FLAT = (
    lambda rewards: {"rewards": rewards.ravel(), "obs": np.zeros((rewards.size, 3))},
    lambda rewards: {"rewards": rewards.T, "obs": np.zeros((*rewards.T.shape, 3))},
    lambda rewards: Bag(rew=rewards.ravel()),
)


@pytest.mark.parametrize("make", FLAT, ids=["flat", "env by env", "no rewards"])
@pytest.mark.parametrize(
    "held", [{"env": VectorEnv(num_envs=4)}, {"num_envs": np.int64(4), "envs": VectorEnv(num_envs=4)}]
)
def test_rollouts_of_an_agent_whose_env_has_num_envs(make: Callable[[Array], Any], held: Mapping[str, Any]) -> None:
    """Rows may be the steps of all envs, or the envs; a whole iteration counts the same env steps."""
    workload = ppo_workload(Collector(make, **held), 8)
    workload.check()
    assert workload.processed(1) == 32.0
    weights = np.zeros(1)
    training = train_workload(Collector(make, update=lambda rollout: np.add(weights, 1, out=weights), **held), 8)
    training.check()
    assert training.processed(1) == 32.0


def test_a_rollout_of_another_number_of_envs(wording: Wording) -> None:
    """It is an error that names the steps of all envs; of two numbers that are held, `env` has the agent's."""
    with wording.raises(ComponentError):
        ppo_workload(Collector(FLAT[0], env=VectorEnv(num_envs=3)), 8).check()
    with pytest.raises(ComponentError, match=r"expected 8 rows\. If it has"):
        ppo_workload(Collector(FLAT[0], train_env=VectorEnv(num_envs=4), eval_env=VectorEnv(num_envs=1)), 8).check()
    ppo_workload(Collector(FLAT[0], eval_env=VectorEnv(num_envs=1), env=VectorEnv(num_envs=4)), 8).check()


@pytest.mark.parametrize(
    ("make", "items"),
    [
        (lambda rewards: {"rewards": rewards[:4].ravel()}, 32),
        (lambda rewards: {"rewards": rewards.ravel()}, None),
        (lambda rewards: {"rew": rewards}, None),
    ],
    ids=["half", "flat", "no rewards"],
)
def test_a_rollout_that_needs_its_env_steps(make: Callable[[Array], Any], items: int | None, wording: Wording) -> None:
    """A flat rollout, and one without rewards, is told that ``items`` is missing, as is half of one."""
    with wording.raises(ComponentError):
        ppo_workload(Collector(make), 8, items).check()
