from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from library_checks import assert_counts, harvested
from wording import Wording

from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.updates import sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError

pytestmark = pytest.mark.torch

pytest.importorskip("skrl")
torch: Any = pytest.importorskip("torch")
gymnasium: Any = pytest.importorskip("gymnasium")

from brief_env import BriefEnv  # noqa: E402 - where it is installed
from skrl.agents.torch.ppo import ppo as ppo_module  # noqa: E402
from skrl.agents.torch.sac import SAC  # noqa: E402
from skrl.envs.wrappers.torch import wrap_env  # noqa: E402
from skrl.memories.torch import RandomMemory  # noqa: E402
from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model  # noqa: E402

QUIET = {"write_interval": 0, "checkpoint_interval": 0}
MODES = gymnasium.vector.AutoresetMode


def vector_of(
    num_envs: int, mode: Any = MODES.NEXT_STEP, action_space: Any = None, kind: Callable[..., Any] = BriefEnv
) -> Any:
    makers = [lambda: kind(action_space)] * num_envs
    return wrap_env(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode), verbose=False)


def steps_of(env: Any) -> int:
    return sum(one.n_steps for one in env.envs)


SPACES = {
    "discrete": gymnasium.spaces.Discrete(3),
    "continuous": gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32),
    "several": gymnasium.spaces.MultiDiscrete([2, 3]),
}


@pytest.mark.parametrize("mode", [MODES.NEXT_STEP, MODES.SAME_STEP], ids=["next", "same"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_env_steps_of_a_vector(mode: Any, space: Any) -> None:
    """Resets are no steps, in whichever call they happen, whatever actions the envs take."""
    env = vector_of(4, mode, space)
    workload = vecenv_workload(env)
    taken = [0]
    step = env.step

    def noted(actions: Any) -> Any:
        before = steps_of(env)
        stepped = step(actions)
        taken.append(steps_of(env) - before)
        return stepped

    env.step = noted
    workload.check()
    assert (workload.items, workload.unit) == (4.0, "env step")
    assert workload.processed(1) == taken[-1]
    assert_counts(workload, lambda: steps_of(env))
    assert sum(one.n_resets for one in env.envs) > 10
    assert list(harvested(workload, 3)) == ["action", "env_step"]


def test_env_steps_of_a_single_env() -> None:
    """An env that is no vector is reset when its episode is over, as skrl's trainers do it."""
    one = BriefEnv()
    workload = vecenv_workload(lambda: wrap_env(one, verbose=False))
    workload.check()
    assert_counts(workload, lambda: one.n_steps)
    assert list(harvested(workload, 20)) == ["action", "env_step", "reset"]


def test_an_env_that_nobody_resets_is_told(wording: Wording) -> None:
    """Skrl's wrapper resets a vector env but once, so one that does not reset itself is measured on nothing."""
    with wording.raises(ComponentError):
        vecenv_workload(vector_of(2, MODES.DISABLED))


def test_an_env_that_does_not_reset_is_told(wording: Wording) -> None:
    """An env that says it resets itself and goes on after the end is seen to end again at once."""

    class Endless(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
        n_steps = 0

        def step(self, actions: Any) -> Any:
            observations, rewards, terminated, truncated, infos = self.env.step(actions)
            self.n_steps += 1
            return observations, rewards, np.full_like(terminated, self.n_steps > 2), truncated, infos

    env = wrap_env(Endless(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")), verbose=False)
    with wording.raises(ComponentError):
        vecenv_workload(env).check()


@pytest.mark.parametrize(
    "broken", [lambda advantages: advantages * advantages.abs(), lambda advantages: advantages[1:]]
)
def test_wrong_gae_is_told(broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """The normalised advantages may not be wrong."""
    compute_gae = ppo_module.compute_gae

    def wrong(**arguments: Any) -> Any:
        returns, advantages = compute_gae(**arguments)
        return returns, broken(advantages)

    monkeypatch.setattr(ppo_module, "compute_gae", wrong)
    with wording.raises(ComponentError):
        gae_workload(ppo_module.compute_gae, 64, 3, "torch").check()


def lazy_model(make: Any, env: Any, inputs: str, output: str) -> Any:
    """Return a small model, whose parameters its first input makes."""
    network = [{"name": "net", "input": inputs, "layers": [32], "activations": "relu"}]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return make(**spaces, device="cpu", network=network, output=output)


def lazy_sac() -> Any:
    env = wrap_env(gymnasium.make("Pendulum-v1"), verbose=False)
    joined = "concatenate([OBSERVATIONS, ACTIONS])"
    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    models = {name: lazy_model(deterministic_model, env, joined, "ONE") for name in names}
    models["policy"] = lazy_model(gaussian_model, env, "OBSERVATIONS", "ACTIONS")
    agent = SAC(
        models=models,
        memory=RandomMemory(memory_size=200, device="cpu"),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg={"batch_size": 16, "experiment": QUIET},
    )
    agent.init()
    for _ in range(100):
        observations = torch.randn(2, 1, 3)
        agent.memory.add_samples(
            observations=observations[0],
            next_observations=observations[1],
            actions=torch.rand(1, 1),
            rewards=torch.randn(1, 1),
            terminated=torch.zeros(1, 1, dtype=torch.bool),
        )
    return agent


def test_models_are_made_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that wait for their first input have had it before anything is timed, or checked."""
    agent = lazy_sac()
    workload = sac_workload(agent, 16)
    lazy = torch.nn.parameter.UninitializedTensorMixin
    assert not any(isinstance(value, lazy) for made in agent.models.values() for value in made.parameters())
    monkeypatch.setattr(lazy, "materialize", None)
    workload.check()
    workload.call()
