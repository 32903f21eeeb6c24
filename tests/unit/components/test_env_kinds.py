"""Envs beside vector envs that `rlperf_vecenv_step` measures: single ones, those of many agents, JAX's functions."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from builders import ONE_CALL
from numpy.typing import NDArray
from wording import Wording

from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.timers import recording

pytestmark = pytest.mark.usefixtures("alone")

Array = NDArray[Any]
EPISODE = 4


def seeded_workload(env: Any, **given: Any) -> Workload:
    """Return the workload of an env as a worker makes it, whose seed is drawn from Python's generator."""
    random.seed(7)
    return vecenv_workload(env, **given)


def counted(workload: Workload, calls: int) -> float:
    """Return what ``calls`` of a checked workload count."""
    assert workload.count is not None
    workload.count()
    for _ in range(calls):
        workload.call()
    return workload.count()


def phase_paths(workload: Workload, calls: int) -> list[str]:
    """Return the paths of the phases that ``calls`` of a checked workload record."""
    with recording() as recorded:
        for _ in range(calls):
            workload.call()
    return [phase.path for phase in recorded.phases(calls)]


class Numbers:
    """A space of the numbers 0 to 4, which is no library's; seeded as gymnasium's are."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.generator = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def sample(self) -> int:
        return self.start + int(self.generator.integers(5))


class Unseeded:
    """A space that cannot be seeded."""

    def sample(self) -> int:
        return 3


# --------------------------------------------------------------------------- single envs


class Single:
    """One env with episodes of four steps, which must not be stepped after its end; ``told`` replaces what it has."""

    def __init__(self, **told: Any) -> None:
        self.generator = np.random.default_rng()
        self.left = self.n_resets = self.n_steps = 0
        self.taken: list[Any] = []
        self.closed = False
        vars(self).update({"action_space": Numbers()} | told)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.left = EPISODE
        self.n_resets += 1
        return self.generator.random(2), {}

    def reward(self) -> Any:
        return 1.0

    def results(self, obs: Array, reward: Any, ended: bool) -> Any:
        return obs, reward, ended, False, {}

    def step(self, action: Any) -> Any:
        assert self.left > 0, "stepped after its end"
        self.left -= 1
        self.n_steps += 1
        self.taken.append(action)
        return self.results(self.generator.random(2), self.reward(), self.left == 0)

    def close(self) -> None:
        self.closed = True


class Old(Single):
    """An env of gym's: reset() takes no seed and returns an observation alone, and a step returns four values."""

    def __init__(self, **told: Any) -> None:
        super().__init__(**told)
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)
        self.generator = np.random.default_rng(seed)

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]

    def results(self, obs: Array, reward: Any, ended: bool) -> Any:
        return obs, reward, ended, {}


@pytest.mark.parametrize("kind", [Single, Old])
@pytest.mark.parametrize(
    "told",
    [
        {},
        {"reward": lambda: np.array([1.0, -0.5])},
        {"reward": lambda: np.float32(1)},
        {"action_space": Unseeded()},
        {"results": lambda obs, reward, ended: (obs, reward, False, np.bool_(ended), {})},
        {"results": lambda obs, reward, ended: (obs, reward, np.array([ended]), {})},
    ],
    ids=["own", "rewards", "float32", "unseeded", "truncated", "array"],
)
def test_a_single_env(kind: type[Single], told: dict[str, Any]) -> None:
    """It is reset whenever its episode ends, each call is one step, and a reset has a phase."""
    env = kind(**told)
    workload = vecenv_workload(env)
    workload.check()
    assert (env.n_steps, env.n_resets) == (EPISODE, 2)
    assert (workload.items, workload.unit, workload.component) == (1.0, "env step", "vecenv_step")
    assert counted(workload, 10) == 10.0
    assert (env.n_steps, env.n_resets) == (14, 4)
    assert phase_paths(workload, EPISODE) == ["action", "env_step", "reset"]
    assert set(env.taken) <= set(range(5))
    workload.close()
    assert not env.closed


@pytest.mark.parametrize(
    "name", ["agent_iter", "batch_size", "close", "default_params", "last", "metadata", "possible_agents", "seed"]
)
def test_an_attribute_of_an_env_may_be_an_array(name: str) -> None:
    """An env that a thunk makes may use the name of what an env is asked for, a method too, for data of its own."""
    env = Single()
    setattr(env, name, np.arange(4.0))
    workload = vecenv_workload(lambda: env)
    workload.check()
    assert counted(workload, 10) == 10.0
    workload.close()


@pytest.mark.parametrize("kind", [Single, Old])
def test_a_seed_decides_what_a_single_env_does(kind: type[Single]) -> None:
    """Two workloads of one seed draw the same actions and have the same outputs; another seed's differ."""
    envs = [kind(), kind(), kind()]
    first, second = (seeded_workload(env).check() for env in envs[:2])
    np.testing.assert_equal(first, second)
    assert envs[0].taken == envs[1].taken
    other: Any = vecenv_workload(envs[2]).check()
    assert not np.array_equal(other[0], first[0])  # type: ignore[index]


def test_a_single_env_is_checked_from_its_beginning() -> None:
    """A second check resets an env that is within an episode."""
    env = Single()
    workload = seeded_workload(env)
    first = workload.check()
    workload.call()
    np.testing.assert_equal(workload.check(), first)
    assert env.n_steps == 2 * EPISODE + 1


def test_a_single_env_of_a_thunk_is_closed() -> None:
    """The fixture makes it and closes it."""
    env = Single()
    workload = vecenv_workload(lambda: env)
    workload.check()
    workload.close()
    assert env.closed


@pytest.mark.torch
def test_an_env_of_gymnasiums() -> None:
    """An env that ends by termination and by truncation is not stepped after its end, with any space's actions."""
    spaces = pytest.importorskip("gymnasium").spaces
    from brief_env import BriefEnv

    for space in (None, spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])):
        env = BriefEnv(space)
        workload = vecenv_workload(env)
        workload.check()
        assert counted(workload, 50) == 50.0
        assert env.n_resets > 10
        assert phase_paths(workload, 5) == ["action", "env_step", "reset"]


@pytest.mark.parametrize(
    "told",
    [
        {"reward": lambda: float("nan")},
        {"reward": lambda: np.array([0.0, np.inf])},
        {"results": lambda obs, reward, ended: (obs, reward, ended)},
        {"results": lambda obs, reward, ended: [obs, reward, ended, False, {}]},
        {"results": lambda obs, reward, ended: obs},
        {"results": lambda obs, reward, ended: (obs, {"a": 1.0}, {"a": ended, "__all__": ended}, {"a": {}})},
        {"results": lambda obs, reward, ended: (obs, [1.0, 1.0], [ended, ended], {})},
        {"reset": lambda seed: 1 / 0},
    ],
)
def test_a_single_env_that_is_wrong(told: dict[str, Any], wording: Wording) -> None:
    """A reward that is not finite, another tuple, and flags of several agents are errors."""
    with wording.raises(ComponentError):
        seeded_workload(Single(**told)).check()


def test_a_single_env_without_actions(wording: Wording) -> None:
    """An env without num_envs and without actions to draw is an error that names both; one with num_envs needs none."""
    with wording.raises(ComponentError):
        vecenv_workload(Single(action_space=None))
    with wording.raises(ComponentError):
        vecenv_workload(Single(), num_envs=1)
    with wording.raises(ComponentError):
        vecenv_workload(Single)


# --------------------------------------------------------------------------- many agents, at once


class Parallel:
    """PettingZoo's parallel interface: agent ``i`` of three leaves after its ``i + 2`` steps."""

    metadata: dict[str, Any] = {}  # noqa: RUF012 - as PettingZoo's

    def __init__(self, **told: Any) -> None:
        self.possible_agents: list[str] | None = ["a0", "a1", "a2"]
        self.agents: list[str] = []
        self.spaces: dict[str, Any] = {}
        self.generator = np.random.default_rng()
        self.stepped = self.n_steps = self.n_resets = 0
        self.taken: list[dict[str, Any]] = []
        self.closed = False
        vars(self).update(told)

    def first_agents(self) -> list[str]:
        return ["a0", "a1", "a2"]

    def action_space(self, agent: str) -> Any:
        return self.spaces.setdefault(agent, Numbers())

    def observations(self) -> dict[str, Any]:
        return {agent: self.generator.random(2) for agent in self.agents}

    def infos(self) -> dict[str, Any]:
        return {agent: {} for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.agents = self.first_agents()
        self.stepped = 0
        self.n_resets += 1
        return self.observations(), self.infos()

    def ends(self) -> dict[str, bool]:
        return {agent: self.stepped >= 2 + int(agent[1:]) for agent in self.agents}

    def rewards(self) -> dict[str, Any]:
        return dict.fromkeys(self.agents, 1.0)

    def left(self, ends: dict[str, bool]) -> list[str]:
        return [agent for agent in self.agents if not ends[agent]]

    def results(self, *mappings: Any) -> Any:
        return mappings

    def step(self, actions: dict[str, Any]) -> Any:
        assert list(actions) == list(self.agents) != []
        self.taken.append(actions)
        self.stepped += 1
        self.n_steps += 1
        ends = self.ends()
        never = dict.fromkeys(ends, False)
        results = self.results(self.observations(), self.rewards(), ends, never, self.infos())
        self.agents = self.left(ends)
        return results

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("told", [{}, {"first_agents": lambda: np.array(["a0", "a1", "a2"])}], ids=["list", "array"])
def test_agents_that_act_at_once(told: dict[str, Any]) -> None:
    """The steps of those that are left are counted, and the env is reset when none is."""
    env = Parallel(**told)
    workload = vecenv_workload(lambda: env)
    workload.check()
    assert (env.n_steps, env.n_resets) == (4, 3)  # the first reset shows which agents there are
    assert (workload.items, workload.unit, workload.component) == (3.0, "agent step", "vecenv_step")
    assert [counted(workload, 1) for _ in range(4)] == [3.0, 3.0, 2.0, 1.0]
    assert counted(workload, 8) == 18.0
    assert phase_paths(workload, 4) == ["action", "env_step", "reset"]
    workload.close()
    assert env.closed


def test_agents_that_stay_when_all_have_ended() -> None:
    """An env that leaves ended agents in ``agents`` is reset once all of them have ended."""
    env = Parallel(left=lambda ends: list(ends))
    workload = vecenv_workload(env)
    workload.check()
    assert (env.n_steps, env.n_resets) == (4, 3)


def test_agents_that_come_and_go() -> None:
    """An agent that no one knew at the beginning gets actions, and counts."""

    def left(ends: dict[str, bool]) -> list[str]:
        return [*(agent for agent, ended in ends.items() if not ended), *(["a5"] if env.stepped == 1 else [])]

    env = Parallel(possible_agents=["a0"], first_agents=lambda: ["a0"], left=left)
    workload = vecenv_workload(env)
    workload.check()
    assert [len(actions) for actions in env.taken] == [1, 2, 1, 1, 1, 1, 1]
    assert counted(workload, 7) == 8.0


@pytest.mark.parametrize("told", [{}, {"action_space": lambda agent: Unseeded()}])
def test_a_seed_decides_what_agents_do(told: dict[str, Any]) -> None:
    """Two workloads of one seed draw the same actions, agents each their own, and have the same outputs."""
    envs = Parallel(**told), Parallel(**told)
    first, second = (seeded_workload(env).check() for env in envs)
    np.testing.assert_equal(first, second)
    assert envs[0].taken == envs[1].taken
    assert told or any(len(set(actions.values())) > 1 for actions in envs[0].taken)


class Masked(Parallel):
    """Allows each agent one action at a time, which the mask shows, in the observations or in the infos."""

    def __init__(self, place: str, start: int = 0) -> None:
        super().__init__()
        self.place, self.start = place, start
        self.allowed: dict[str, int] = {}

    def action_space(self, agent: str) -> Any:
        return Numbers(self.start)

    def _masks(self) -> dict[str, Any]:
        self.allowed = {agent: (self.n_steps + int(agent[1:])) % 5 for agent in self.agents}
        masks = {agent: np.eye(5, dtype=np.int8)[allowed] for agent, allowed in self.allowed.items()}
        return {agent: {"observation": np.zeros(2), "action_mask": mask} for agent, mask in masks.items()}

    def observations(self) -> dict[str, Any]:
        return self._masks() if self.place == "observations" else super().observations()

    def infos(self) -> dict[str, Any]:
        return self._masks() if self.place == "infos" else super().infos()

    def step(self, actions: dict[str, Any]) -> Any:
        for agent, action in actions.items():
            assert action == self.start + self.allowed[agent], "an illegal action"
        return super().step(actions)


@pytest.mark.parametrize("place", ["observations", "infos"])
@pytest.mark.parametrize("start", [0, 1])
def test_masks_of_agents_that_act_at_once(place: str, start: int) -> None:
    """Only actions that a mask allows are taken, after a reset too; a space's first action may not be 0."""
    workload = vecenv_workload(Masked(place, start))
    workload.check()
    assert counted(workload, 12) == 27.0


@pytest.mark.parametrize(
    "told",
    [
        {"rewards": lambda: {"a0": 1.0, "a1": float("nan")}},
        {"rewards": lambda: {"a0": np.array([1.0, np.inf])}},
        {"results": lambda obs, rewards, ends, truncations, infos: (obs, rewards, ends, infos)},
        {"results": lambda obs, rewards, *others: (obs, np.ones(3), *others)},
        {"results": lambda *mappings: None},
        {"first_agents": list},
        {"reset": lambda seed: 1 / 0},
    ],
)
def test_an_env_of_agents_that_is_wrong(told: dict[str, Any], wording: Wording) -> None:
    """Rewards that are not finite, other results than five mappings, and an env without agents are errors."""
    with wording.raises(ComponentError):
        seeded_workload(Parallel(**told)).check()


# --------------------------------------------------------------------------- many agents, in turns


class Turns:
    """PettingZoo's AEC interface: two agents take turns; the game ends after five, or for the first agent after three.

    A mask allows one action at a time where it is ``masked``. ``told`` replaces what it has.
    """

    def __init__(self, *, masked: bool = False, one_leaves: bool = False, **told: Any) -> None:
        self.possible_agents = ["white", "black"]
        self.masked, self.one_leaves = masked, one_leaves
        self.generator = np.random.default_rng()
        self.turns = self.n_resets = 0
        self.done: list[str] = []
        self.spaces = {agent: Numbers() for agent in self.possible_agents}
        self.taken: list[tuple[str, Any]] = []
        self.closed = False
        vars(self).update(told)

    def action_space(self, agent: str) -> Any:
        return self.spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.agent_selection = self.agents[0]
        self.rewards: dict[str, Any] = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.turns = 0
        self.n_resets += 1

    def agent_iter(self) -> Any:
        raise AssertionError("for loops only")

    def last(self) -> Any:
        agent = self.agent_selection
        allowed = np.arange(5) == (self.turns if self.masked else np.arange(5))
        observation = {"observation": self.generator.random(2), "action_mask": allowed}
        return observation, self.rewards[agent], self.terminations[agent], self.truncations[agent], {}

    def reward(self) -> Any:
        return float(self.generator.random())

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        self.taken.append((agent, action))
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None, "an ended agent gets None"
            self.remove(agent)
        else:
            assert not self.masked or action == self.turns, "an illegal action"
            self.turns += 1
            self.rewards = dict.fromkeys(self.agents, self.reward())
            if self.one_leaves and self.turns == 3:
                self.terminations[agent] = True
            if self.turns == 5:
                self.truncations = dict.fromkeys(self.agents, True)
        if self.agents:
            others = [other for other in self.agents if other != agent]
            self.agent_selection = others[0] if others else self.agents[0]

    def remove(self, agent: str) -> None:
        self.agents.remove(agent)
        for mapping in (self.rewards, self.terminations, self.truncations):
            del mapping[agent]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("one_leaves", [False, True])
def test_agents_that_take_turns(masked: bool, one_leaves: bool) -> None:
    """A call is the turn of one agent, with the turns of ended ones behind it; the env is reset when none is left."""
    env = Turns(masked=masked, one_leaves=one_leaves)
    workload = vecenv_workload(lambda: env)
    workload.check()
    assert (workload.items, workload.unit, workload.component) == (1.0, "agent step", "vecenv_step")
    assert workload.count is not None
    assert workload.count() == 1.0
    n_resets = env.n_resets
    assert counted(workload, 50) == 50.0
    assert env.n_resets == n_resets + 10
    assert len([action for _, action in env.taken if action is None]) == 2 * 10 + (0 if one_leaves else 2)
    assert phase_paths(workload, 5) == ["action", "env_step", "reset"]
    workload.close()
    assert env.closed


def test_a_seed_decides_what_agents_do_in_turns() -> None:
    """Two workloads of one seed draw the same actions, and have the same outputs, with the rewards of the last step."""
    envs = Turns(), Turns()
    first, second = (seeded_workload(env).check() for env in envs)
    np.testing.assert_equal(first, second)
    assert envs[0].taken == envs[1].taken
    assert first[1].keys() == {"white", "black"}  # type: ignore[index]


@pytest.mark.parametrize(
    "told",
    [
        {"reward": lambda: float("nan")},
        {"possible_agents": []},
        {"last": lambda: (np.zeros(2), 0.0, False, {})},
        {"remove": lambda agent: None},
    ],
)
def test_an_env_of_turns_that_is_wrong(told: dict[str, Any], wording: Wording) -> None:
    """A reward that is not finite, another tuple, and an ended agent that stays for ever are errors."""
    if told.get("possible_agents") == []:
        told = {"reset": lambda seed: None, "agents": []}
    with wording.raises(ComponentError):
        seeded_workload(Turns(**told)).check()


@pytest.mark.skipif(find_spec("pettingzoo") is None, reason="needs pettingzoo")
@pytest.mark.parametrize("name", ["rps_v2", "tictactoe_v3", "connect_four_v3", "leduc_holdem_v4"])
def test_an_env_of_pettingzoos(name: str) -> None:
    """Its own envs are stepped over the ends of games, with legal moves, in both interfaces where they have both."""
    module: Any = pytest.importorskip(f"pettingzoo.classic.{name}")
    makers: list[Callable[[], Any]] = [
        getattr(module, made) for made in ("env", "parallel_env") if hasattr(module, made)
    ]
    for make in makers:
        workload = seeded_workload(make)
        first = workload.check()
        n_agents = len(make().possible_agents)
        assert workload.items in (1.0, n_agents)
        assert counted(workload, 300) == 300 * workload.items
        again = seeded_workload(make)
        np.testing.assert_equal(again.check(), first)


# --------------------------------------------------------------------------- functional envs of JAX

FUNCTIONAL = """
    import random
    from typing import Any, NamedTuple

    import jax
    import jax.numpy as jnp
    import numpy as np
    import pytest

    from pytest_rlperf.components.vecenv import vecenv_workload
    from pytest_rlperf.errors import ComponentError
    from pytest_rlperf.timers import recording

    class Numbers:
        def sample(self, key):
            return jax.random.randint(key, (), 0, 5)

    class Params(NamedTuple):
        episode: Any = 4
        reward: Any = 1.0

    class Gymnax:
        default_params = Params()
        flags = 1

        def action_space(self, params):
            return Numbers()

        def reset(self, key, params):
            first = jax.random.uniform(key)
            return first, (first, 0)

        def step(self, key, state, action, params):
            x, steps = state
            ended = steps + 1 >= params.episode
            x = jnp.where(ended, jax.random.uniform(key), x + action)
            flags = (ended,) if self.flags == 1 else (jnp.zeros_like(ended), ended)
            return {"x": x}, (x, jnp.where(ended, 0, steps + 1)), params.reward * x, *flags, {}

    class State(NamedTuple):
        obs: Any
        reward: Any
        done: Any
        steps: Any
        key: Any

    class Brax:
        action_size = 2

        def reset(self, rng):
            return State(jax.random.uniform(rng, (3,)), jnp.zeros(()), jnp.zeros(()), jnp.zeros((), int), rng)

        def step(self, state, action):
            key, noise = jax.random.split(state.key)
            obs = state.obs + action.sum() + jax.random.uniform(noise, (3,))
            done = (state.steps + 1 >= 4).astype(float)
            return State(obs, obs.sum(), done, state.steps + 1, key)

    def workload_of(env, **given):
        random.seed(7)
        return vecenv_workload(env, **given)
"""

needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")


def run_functional(pytester: pytest.Pytester, text: str, *args: str) -> pytest.RunResult:
    """Run tests of functional envs in another process: where JAX has computed, later forks hang."""
    pytester.makepyfile(textwrap.dedent(FUNCTIONAL) + textwrap.dedent(text))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=150)


@needs_jax
def test_functional_envs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All interfaces are stepped over the ends of episodes, for all states at once; a seed decides the outputs."""
    monkeypatch.setenv("RLPERF_TIMERS", "on")
    result = run_functional(
        pytester,
        """
        class Flags(Gymnax):
            flags = 2

        class WithoutParams(Gymnax):
            default_params = None

            def action_space(self):
                return Numbers()

            def reset(self, key):
                return super().reset(key, Params())

            def step(self, key, state, action):
                return super().step(key, state, action, Params())

        class Typed(Brax):
            def reset(self, rng):
                return super().reset(rng)._replace(key=jax.random.wrap_key_data(rng))

        class DictActions(Gymnax):
            def action_space(self, params):
                class Both:
                    def sample(self, key):
                        return {"x": jax.random.uniform(key), "y": jax.random.uniform(key)}
                return Both()

            def step(self, key, state, action, params):
                return super().step(key, state, action["x"] + action["y"], params)

        class Property(Gymnax):
            action_space = Numbers()

        class Jitted(Gymnax):
            reset = jax.jit(Gymnax.reset, static_argnums=0)
            step = jax.jit(Gymnax.step, static_argnums=0)

        class Spec(NamedTuple):
            shape: Any
            dtype: Any
            minimum: Any
            maximum: Any

        class TimeStep(NamedTuple):
            observation: Any
            reward: Any
            ended: Any

            def last(self):
                return self.ended

        class Jumanji(Brax):
            action_size = None
            action_spec = Spec((2,), jnp.int32, jnp.zeros(2, int), jnp.array([3, 5]))

            def reset(self, key):
                state = super().reset(key)
                return state, TimeStep(state.obs, state.reward, state.done)

            def step(self, state, action):
                state = super().step(state, action)
                return state, TimeStep(state.obs, state.reward, state.done)

        class Bounded(Jumanji):
            action_spec = Spec((), jnp.float32, -1.0, 1.0)

        KINDS = [Gymnax, Flags, WithoutParams, Brax, Typed, DictActions, Property, Jitted, Jumanji, Bounded]

        @pytest.mark.parametrize("kind", KINDS)
        def test_kind(kind):
            env = kind()
            workload = workload_of(env, num_envs=8)
            output = workload.check()
            assert (workload.items, workload.unit, workload.component) == (8.0, "env step", "vecenv_step")
            assert {len(leaf) for leaf in jax.tree_util.tree_leaves(output)} == {8}
            assert bool(output[-1].all())
            workload.count()
            with recording() as recorded:
                done = [bool(workload.call()[-2].all()) for _ in range(9)]
            assert done == 2 * [False, False, False, True] + [False]
            assert [phase.path for phase in recorded.phases(9)] == ["action", "env_step"]
            assert workload.count() == 72.0
            again = workload_of(kind(), num_envs=8)
            jax.tree_util.tree_map(np.testing.assert_array_equal, again.check(), output)
            first = output[0]["x"] if isinstance(output[0], dict) else output[0][:, 0]
            assert len(set(np.asarray(first).tolist())) == 8

        def test_without_a_number():
            for env in (Brax(), Gymnax(), lambda: Gymnax(), (Gymnax(), Params(2)), lambda: (Gymnax(), Params(2))):
                workload = vecenv_workload(env)
                workload.check()
                assert workload.items == 64.0

        def test_params():
            workload = vecenv_workload((Gymnax(), Params(episode=2)), num_envs=3)
            workload.check()
            assert [bool(workload.call()[-2].all()) for _ in range(4)] == [False, True, False, True]
            assert workload.items == 3.0
        """,
    )
    result.assert_outcomes(passed=12)


@needs_jax
def test_a_functional_env_that_is_wrong(pytester: pytest.Pytester, wording: Wording) -> None:
    """An error says what is not finite, missing or returned otherwise."""
    result = run_functional(
        pytester,
        """
        class Keyless(Gymnax):
            default_params = None

        class Spaceless(Gymnax):
            action_space = None

        class OfAgents(Gymnax):
            def action_space(self, agent, more):
                raise AssertionError

        class Tuples(Brax):
            def step(self, state, action):
                return state, 1.0

        class Batched(Brax):
            def step(self, state, action):
                state = super().step(state, action)
                return state._replace(reward=jnp.ones(5))

        class Mapped(Brax):
            batch_size = 8

        ENVS = [(Gymnax(), Params(reward=jnp.nan)), Keyless(), Spaceless(), OfAgents(), Tuples(), Batched(), Mapped()]

        @pytest.mark.parametrize("env", ENVS)
        def test_error(env):
            with pytest.raises(ComponentError) as caught:
                vecenv_workload(env, num_envs=4).check()
            print("ERROR", caught.value)

        def test_number():
            with pytest.raises(ComponentError) as caught:
                vecenv_workload(Brax(), num_envs=0)
            print("ERROR", caught.value)

        def test_class():
            with pytest.raises(ComponentError) as caught:
                vecenv_workload(Brax)
            print("ERROR", caught.value)

        class Own:
            num_envs, single_action_space = 2, type("Space", (), {"sample": lambda self: 1})()

            def reset(self, rng=None):
                return np.zeros((2, 1))

            def step(self, actions):
                return np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), {}

        def test_a_key_that_is_not_needed():
            assert vecenv_workload(Own()).items == 2.0
        """,
        "-s",
        "-q",
    )
    result.assert_outcomes(passed=10)
    assert [line.partition("ERROR ")[2] for line in result.outlines if "ERROR " in line] == wording


# --------------------------------------------------------------------------- through the fixture


# test_lifecycle: test_the_engine_closes_what_the_fixture_made measures one kind
@pytest.mark.parametrize("args", [(), pytest.param(ONE_CALL, marks=pytest.mark.slow)])
def test_the_fixture_measures_all_kinds(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    """A test just runs, or is measured, with each kind of env; what a thunk made is closed."""
    from pathlib import Path

    places = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "helpers")]
    pytester.makeconftest(f"import sys; sys.path += {places!r}")
    pytester.makepyfile(
        """
        import pytest
        from test_env_kinds import Masked, Old, Parallel, Single, Turns

        KINDS = {
            "single": (Single, "env step", 1.0), "old": (Old, "env step", 1.0),
            "parallel": (Parallel, "agent step", 3.0), "turns": (Turns, "agent step", 1.0),
            "masked": (lambda: Masked("infos"), "agent step", 3.0),
        }

        @pytest.mark.parametrize("name", KINDS)
        def test_kind(rlperf_vecenv_step, name):
            kind, unit, most = KINDS[name]
            made = []
            result = rlperf_vecenv_step(lambda: made.append(kind()) or made[0])
            assert made[0].closed
            assert result.unit == unit
            assert not result.measured or 0 < result.items <= most

        def test_wrong(rlperf_vecenv_step):
            rlperf_vecenv_step(Single(reward=lambda: float("nan")))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=150)
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*ComponentError: step() returned the reward nan, which is not finite*"])


@needs_jax
def test_the_fixture_measures_functional_envs(pytester: pytest.Pytester) -> None:
    """A test is measured with functional envs, on JAX's device, with the number of envs that it gives."""
    result = run_functional(
        pytester,
        """
        @pytest.mark.parametrize("kind", [Gymnax, Brax])
        def test_step(rlperf_vecenv_step, kind):
            result = rlperf_vecenv_step(kind(), num_envs=16)
            assert (result.unit, result.items) == ("env step", 16.0)
        """,
        *ONE_CALL,
        "-v",
    )
    result.assert_outcomes(passed=2)
