"""Components of one's own: of no library's class, and with habits of their own."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from library_checks import write_documented_tests
from numpy.typing import NDArray

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.replay import replay_workload
from pytest_rlperf.components.sac import sac_workload
from pytest_rlperf.components.thunk import thunk_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import recording

Array = NDArray[Any]


# --------------------------------------------------------------------------- SAC updates


class Agent:
    """An agent of one layer; ``optimizer`` is made by the class of that name, at a learning rate."""

    def __init__(self, optimizer: str, lr: float, dtype: str = "float32") -> None:
        torch = pytest.importorskip("torch")
        self.net = torch.nn.Linear(2, 1, dtype=getattr(torch, dtype))
        self.optimizer = getattr(torch.optim, optimizer)(self.net.parameters(), lr=lr)

    def update(self) -> None:
        """Do one gradient step."""
        self.optimizer.zero_grad()
        self.net(self.net.weight.detach()).sum().backward()
        self.optimizer.step()


def out_of_sight(agent: Agent) -> Callable[[], None]:
    """Return an update of an agent in a module, where nothing is looked for."""
    module: Any = ModuleType("agents")
    module.agent = agent
    return lambda: module.agent.update()


def test_a_thunk_that_updates_nothing() -> None:
    """Where nothing is seen to change, the error says what was looked at and how to measure what trains unseen."""
    seen = r"nothing that can be seen: (no PyTorch optimizer took a step|PyTorch is not loaded)"
    rows = np.ones(3)
    for thunk, held in ((lambda: None, "it refers to no parameters"), (lambda: rows, "none of the 1 arrays of floats")):
        with pytest.raises(ComponentError, match=rf"{seen}, and {held}.*rlperf\(update, unit='update', check="):
            sac_workload(thunk, None).check()


@pytest.mark.torch
def test_an_update_that_is_not_called() -> None:
    """A thunk that only looks the update up changes nothing of the agent it refers to."""
    agent = Agent("SGD", 0.1)
    with pytest.raises(ComponentError, match="changed none of the agent's 2 trained parameters"):
        sac_workload(lambda: agent.update, None).check()
    sac_workload(agent.update, None).check()


@pytest.mark.torch
def test_an_optimizer_out_of_sight() -> None:
    """What a thunk does not refer to is checked by the optimizers that step."""
    sac_workload(out_of_sight(Agent("SGD", 0.1)), None).check()
    with pytest.raises(ComponentError, match="changed none of the agent's 2 trained parameters"):
        sac_workload(out_of_sight(Agent("SGD", 0.0)), None).check()
    with pytest.raises(ComponentError, match=r"SGD\.params\[0\] holds NaN or infinity"):
        sac_workload(out_of_sight(Agent("SGD", math.inf)), None).check()


@pytest.mark.torch
def test_a_frozen_network_beside_what_trains() -> None:
    """Parameters that stay are no error where an optimizer out of sight changes others."""
    frozen, update = Agent("SGD", 0.1).net, out_of_sight(Agent("SGD", 0.1))
    sac_workload(lambda: (update(), frozen), None).check()


@pytest.mark.torch
def test_parameters_that_numpy_has_no_type_for() -> None:
    """An agent in bfloat16 is compared as any other."""
    sac_workload(Agent("SGD", 0.5, "bfloat16").update, None).check()
    with pytest.raises(ComponentError, match="changed none"):
        sac_workload(Agent("SGD", 0.0, "bfloat16").update, None).check()


def test_an_update_of_numpy() -> None:
    """Without PyTorch some array has to change, in place or for another; what is large or no float is not compared."""
    agent = SimpleNamespace(params={"w": np.ones(3)}, steps=np.zeros(1, np.int64))

    def in_place() -> None:
        agent.params["w"] *= 0.5

    def replaced() -> None:
        agent.params = {name: 0.5 * array for name, array in agent.params.items()}

    def counted() -> None:
        agent.steps += 1

    sac_workload(in_place, None).check()
    sac_workload(replaced, None).check()
    with pytest.raises(ComponentError, match="none of the 1 arrays of floats"):
        sac_workload(counted, None).check()


class Learner:
    """Updates its weights in several manners."""

    def __init__(self) -> None:
        self.weights = np.ones(3)

    def by_batch(self, batch: Any) -> None:
        """Take a batch."""
        self.weights += batch["rewards"]

    def by_size(self, batch: int) -> None:
        """Take a batch size under a batch's name."""
        self.weights += np.ones(batch).sum()

    def by_keyword(self, *, batch_size: int) -> None:
        """Take a size by its name."""

    def broken(self, batch_size: int) -> None:
        """Fail."""
        raise KeyError("weights")


def test_an_update_that_takes_a_batch() -> None:
    """It is told so, with what to write, where it fails by what it was given; its own errors stay as they are."""
    lines = re.escape("rlperf_sac_update(lambda: agent.update(buffer.sample(4)))")
    learner: Any = Learner()
    learner.update = learner.by_batch
    with pytest.raises(ComponentError, match=f"was given a batch size, and takes a batch: .*{lines}") as failure:
        sac_workload(learner, 4).check()
    assert isinstance(failure.value.__cause__, TypeError)
    learner.update = learner.by_keyword
    takes = re.escape("calls agent.update(4), but Learner.by_keyword(*, batch_size) does not take that")
    with pytest.raises(ComponentError, match=rf"{takes}.*rlperf_sac_update\(lambda: agent\.update\(…\)\)"):
        sac_workload(learner, 4)
    learner.update = learner.broken
    with pytest.raises(KeyError, match="weights"):
        sac_workload(learner, 4).check()
    learner.update = learner.by_size
    sac_workload(learner, 4).check()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda thunk: sac_workload(thunk, None), r"by_batch\(batch\).*rlperf_sac_update\(lambda: update\(batch\)\)"),
        (lambda thunk: ppo_workload(thunk, None, 8), r"by_batch\(batch\).*rlperf_ppo_collect\(lambda: agent\.collect"),
        (lambda thunk: replay_workload(thunk, 8), r"by_batch\(batch\).*rlperf_replay_sample\(lambda: buffer\.sample"),
        (lambda thunk: vecenv_workload(thunk), r"by_batch\(batch\).*rlperf_vecenv_step\(lambda: make"),
        (lambda thunk: vecenv_workload(thunk, 8), r"by_batch\(batch\).*rlperf_vecenv_step\(lambda: env\.step"),
        (
            lambda fn: thunk_workload(fn, items=1, unit="call", setup=None, check=None),
            r"by_batch\(batch\).*rlperf\(lambda: fn",
        ),
    ],
)
def test_a_thunk_that_wants_something(make: Callable[[Any], Any], says: str) -> None:
    """A function with parameters is no thunk, which is told before it is called, with what to write."""
    with pytest.raises(ComponentError, match=rf"without arguments, but Learner\.{says}"):
        make(Learner().by_batch)


# --------------------------------------------------------------------------- vector envs


class Space:
    """Actions of a shape, drawn by a generator of its own."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.generator = random.Random()

    def seed(self, seed: int) -> None:
        """Begin anew."""
        self.generator.seed(seed)

    def sample(self) -> Array:
        """Draw an action."""
        return np.full(self.shape, self.generator.random(), np.float32)


class VectorEnv:
    """Three envs of one's own with episodes of 4 steps, reset within the step; ``told`` is added to what it has."""

    def __init__(self, **told: Any) -> None:
        self.taken: list[Array] = []
        self.steps = 0
        self.seeded: int | None = None
        vars(self).update({"num_envs": 3, "single_action_space": Space(2)} | told)

    def reset(self, *, seed: int | None = None) -> Array:
        """Begin."""
        self.steps, self.seeded = 0, seed
        return np.zeros((3, 5))

    def ends(self) -> Array:
        """Return which envs have ended."""
        return np.array([self.steps % 4 == 0, False, False])

    def results(self, obs: Array, rewards: Array, ends: Array) -> Any:
        """Return what a step returns."""
        return obs, rewards, ends, np.zeros(3, np.bool_), {}

    def step(self, actions: Any) -> Any:
        """Step."""
        self.taken.append(np.asarray(actions))
        self.steps += 1
        return self.results(np.zeros((3, 5)), np.ones(3), self.ends())


class OldVectorEnv(VectorEnv):
    """Returns four values, as gym did and Stable-Baselines3 does."""

    def results(self, obs: Array, rewards: Array, ends: Array) -> Any:
        """Return one array of ends, and an info each."""
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
        ({"sample_actions": lambda: [[1], [2], [3]]}, (3, 1)),
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


def test_seeds_of_an_env_of_ones_own() -> None:
    """Equal seeds give equal actions, and reach reset(seed=) or seed()."""
    taken, seeds = [], []
    for kind in (VectorEnv, VectorEnv, NoSeedInReset):
        random.seed(3)
        env = kind()
        vecenv_workload(env).check()
        taken.append(np.stack(env.taken).tolist())
        seeds.append(env.seeded)
    assert taken[0] == taken[1] == taken[2]
    assert seeds[0] == seeds[1] == seeds[2] is not None


class NoSeedInReset(VectorEnv):
    """Is seeded by a method of its own."""

    def reset(self) -> Array:  # type: ignore[override]
        """Begin."""
        return np.zeros((3, 5))

    def seed(self, seed: int) -> None:
        """Seed."""
        self.seeded = seed


@pytest.mark.parametrize(
    ("results", "says"),
    [
        (lambda obs, rewards, ends: (obs[1:], rewards, ends, ends, {}), r"observation of shape \(2, 5\); 3 envs"),
        (lambda obs, rewards, ends: ([[0.0]], rewards, ends, ends, {}), r"observation of shape \(1,\)"),
        (lambda obs, rewards, ends: (obs, rewards[1:], ends, ends, {}), r"rewards of shape \(2,\)"),
        (lambda obs, rewards, ends: (obs, rewards, ends, False, {}), r"truncated of shape \(\)"),
        (lambda obs, rewards, ends: (obs, rewards, ends[:1], [{}] * 3), r"dones of shape \(1,\)"),
        (lambda obs, rewards, ends: (obs, rewards, ends, [{}]), r"infos of shape \(1,\)"),
        (
            lambda obs, rewards, ends: (obs, rewards, ends),
            r"returned 3 values, expected .*rlperf_vecenv_step\(step, num",
        ),
        (lambda obs, rewards, ends: {"obs": obs}, r"returned dict, expected \(obs, rewards, terminated, truncated"),
    ],
)
def test_a_step_that_is_wrong(results: Callable[..., Any], says: str) -> None:
    """Everything that a step returns has a row an env, in one of the two orders that are known."""
    with pytest.raises(ComponentError, match=says):
        vecenv_workload(VectorEnv(results=results)).check()


def test_columns_and_lists_of_a_step() -> None:
    """Rewards and ends may be columns, and anything may be a list."""

    def columns(obs: Array, rewards: Array, ends: Array) -> Any:
        return obs, rewards[:, None], ends[:, None], ends[:, None], {}

    def lists(obs: Array, rewards: Array, ends: Array) -> Any:
        return obs.tolist(), rewards.tolist(), ends.tolist(), [{}] * 3

    for results in (columns, lists):
        vecenv_workload(VectorEnv(results=results)).check()


def test_an_env_that_is_never_reset() -> None:
    """One that stays ended is told, with what would step and reset it; episodes of one step have a last observation."""
    stuck = VectorEnv(ends=lambda: np.array([False, True, False]))
    with pytest.raises(ComponentError, match=r"env 1 ended its episode in 11 steps in a row.*is it reset.*num_envs=3"):
        vecenv_workload(stuck).check()
    for results in (
        lambda obs, rewards, ends: (obs, rewards, ends, ends, {"final_obs": obs}),
        lambda obs, rewards, ends: (obs, rewards, ends, [{}, {"terminal_observation": obs[1]}, {}]),
    ):
        vecenv_workload(VectorEnv(ends=stuck.ends, results=results)).check()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"single_action_space": None}, r"nothing to draw actions from: give it action_space .*sample_actions\(\)"),
        ({"single_action_space": None, "action_space": Space(3)}, r"one action of 3 numbers, or one for each of the 3"),
        ({"sample_actions": lambda: np.zeros(2)}, r"sample_actions\(\) returned shape \(2,\), expected 3 rows"),
        ({"single_action_space": SimpleNamespace(sample=dict)}, "returned dict, which does not stack"),
        ({"num_envs": None}, "VectorEnv, which has no num_envs; for another, give a thunk"),
    ],
)
def test_an_env_that_lacks_something(told: Mapping[str, Any], says: str) -> None:
    """What an env would have to have is named, and what is not clear is not guessed."""
    with pytest.raises(ComponentError, match=says):
        vecenv_workload(VectorEnv(**told))


def test_the_number_of_envs_may_be_told() -> None:
    """With num_envs an env that does not say so is stepped, and a thunk that makes one is not taken for its step."""
    workload = vecenv_workload(VectorEnv(num_envs=None), num_envs=3)
    workload.check()
    assert workload.items == 3.0
    with pytest.raises(ComponentError, match=r"returned VectorEnv, an env, and steps nothing.*without num_envs"):
        vecenv_workload(VectorEnv, num_envs=3).check()
    with pytest.raises(ComponentError, match=r"the class VectorEnv \(give an instance, or lambda: VectorEnv\(…\)\)"):
        vecenv_workload(VectorEnv)


@pytest.mark.torch
def test_an_env_that_says_how_it_resets() -> None:
    """By metadata as gymnasium has them resets are left out of its steps, as of gymnasium's own."""
    spaces = pytest.importorskip("gymnasium").spaces
    space = spaces.MultiDiscrete([2] * 3)
    workload = vecenv_workload(VectorEnv(metadata={"autoreset_mode": "NextStep"}, action_space=space))
    workload.check()
    assert workload.count is not None
    workload.count()
    for _ in range(8):
        workload.call()
    assert workload.count() == 22.0  # 24 less a reset of one env each 4 steps


# --------------------------------------------------------------------------- replay buffers and rollouts


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


def test_a_buffer_that_is_told_no_size() -> None:
    """What sample() does not take is told before it is called, with the thunk that draws."""
    with pytest.raises(ComponentError, match=r"calls buffer\.sample\(8\), but .*rlperf_replay_sample\(lambda: "):
        replay_workload(SimpleNamespace(sample=lambda: None), 8)


class Collector:
    """Collects what ``make`` makes of (n_steps, 4) rewards; its env says that it has 4."""

    def __init__(self, make: Callable[[Array], Any], **held: Any) -> None:
        self.make = make
        self.env = SimpleNamespace(num_envs=4)
        vars(self).update(held)

    def collect(self, n_steps: int) -> Any:
        """Return a rollout."""
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
    """Steps of all envs may follow each other, and numbers are statistics, which a rollout without episodes has not."""
    workload = ppo_workload(Collector(make), 8, None)
    workload.check()
    assert workload.processed(1) == 32.0


def test_a_flat_rollout_that_is_not_full() -> None:
    """Half of the steps are told, and so is a flat rollout where nobody says how many envs there are."""

    def half(rewards: Array) -> Any:
        return {"rewards": rewards[:4].ravel()}

    def flat(rewards: Array) -> Any:
        return {"rewards": rewards.ravel()}

    with pytest.raises(ComponentError, match=r"\(16,\), expected 8 rows, or 32 of 4 envs.*lambda: agent\.collect"):
        ppo_workload(Collector(half), 8, None).check()
    for held in ({"env": None}, {"eval_env": SimpleNamespace(num_envs=2)}):
        with pytest.raises(ComponentError, match=r"shape \(32,\), expected 8 rows\. What is laid out otherwise"):
            ppo_workload(Collector(flat, **held), 8, None).check()


def test_a_collector_that_is_told_no_steps() -> None:
    """What collect() does not take is told before it is called; what it does not return, too."""
    with pytest.raises(ComponentError, match=r"calls agent\.collect\(8\), but .*rlperf_ppo_collect\(lambda: "):
        ppo_workload(SimpleNamespace(collect=lambda: None), 8, None)
    with pytest.raises(ComponentError, match=r"no arrays: NoneType; .*Return the rollout, or give a thunk"):
        ppo_workload(Collector(lambda rewards: None), 8, None).check()


# --------------------------------------------------------------------------- the page


def test_the_page_says_what_works(pytester: pytest.Pytester) -> None:
    """Every example passes as it stands, without PyTorch."""
    write_documented_tests(pytester, "your-own")
    pytester.runpytest_subprocess("-p", "no:benchmark").assert_outcomes(passed=4)
