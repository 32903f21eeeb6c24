from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from wording import Wording

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import sac_workload
from pytest_rlperf.errors import ComponentError

tianshou: Any = pytest.importorskip("tianshou")
gymnasium: Any = pytest.importorskip("gymnasium")
torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Which of Tianshou's names mypy finds depends on whether it is installed.
base: Any = pytest.importorskip("tianshou.algorithm.algorithm_base")
data: Any = pytest.importorskip("tianshou.data")
venvs: Any = pytest.importorskip("tianshou.env")
optim: Any = pytest.importorskip("tianshou.algorithm.optim")
sac_module: Any = pytest.importorskip("tianshou.algorithm.modelfree.sac")
discrete_sac: Any = pytest.importorskip("tianshou.algorithm.modelfree.discrete_sac")
reinforce: Any = pytest.importorskip("tianshou.algorithm.modelfree.reinforce")
ppo_module: Any = pytest.importorskip("tianshou.algorithm.modelfree.ppo")
trainer_module: Any = pytest.importorskip("tianshou.trainer")
common: Any = pytest.importorskip("tianshou.utils.net.common")
continuous: Any = pytest.importorskip("tianshou.utils.net.continuous")
discrete: Any = pytest.importorskip("tianshou.utils.net.discrete")

from brief_env import BriefEnv  # noqa: E402 - where gymnasium is installed

ADAM = optim.AdamOptimizerFactory(lr=1e-3)


def vector_env(num_envs: int = 4, kind: Any = venvs.DummyVectorEnv, make: Any = BriefEnv, **kwargs: Any) -> Any:
    return kind([make] * num_envs, **kwargs)


def off_policy(kind: Any = sac_module.SAC, *, auto_alpha: bool = True, rows: int = 64, hidden: int = 16) -> Any:
    """Return the trainer of a small SAC of a kind, whose collector's buffer has ``rows`` transitions."""
    is_discrete = issubclass(kind, discrete_sac.DiscreteSAC)
    space = gymnasium.spaces.Discrete(3) if is_discrete else gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    env = vector_env(make=lambda: BriefEnv(space))

    def net(**kwargs: Any) -> Any:
        return common.Net(state_shape=(2,), hidden_sizes=[hidden, hidden], **kwargs)

    if is_discrete:
        actor = discrete.DiscreteActor(preprocess_net=net(), action_shape=3, softmax_output=False)
        policy = discrete_sac.DiscreteSACPolicy(actor=actor, action_space=space)
        critic = discrete.DiscreteCritic(preprocess_net=net(), last_size=3)
    else:
        actor = continuous.ContinuousActorProbabilistic(
            preprocess_net=net(), action_shape=(2,), unbounded=True, conditioned_sigma=True
        )
        policy = sac_module.SACPolicy(actor=actor, action_space=space)
        critic = continuous.ContinuousCritic(preprocess_net=net(action_shape=(2,), concat=True))
    algorithm = kind(
        policy=policy,
        policy_optim=ADAM,
        critic=critic,
        critic_optim=ADAM,
        alpha=sac_module.AutoAlpha(-1.0, 0.0, ADAM) if auto_alpha else 0.2,
    )
    collector = data.Collector(algorithm, env, data.VectorReplayBuffer(1000, len(env)))
    if rows:
        collector.collect(n_step=rows, random=True, reset_before_collect=True)
    return algorithm.create_trainer(trainer_module.OffPolicyTrainerParams(training_collector=collector))


def test_what_cannot_update(wording: Wording) -> None:
    """Nothing collected, an algorithm without its trainer and one that is no SAC are errors."""
    with wording.raises(ComponentError):
        sac_workload(off_policy(rows=0), 32).check()
    with wording.raises(ComponentError):
        sac_workload(off_policy().algorithm, 32)
    trainer = off_policy()
    trainer.algorithm = base.RandomActionPolicy(trainer.algorithm.policy.action_space)
    with wording.raises(ComponentError):
        sac_workload(trainer, 32)


def on_policy(num_envs: int = 4) -> Any:
    space = gymnasium.spaces.Discrete(3)
    net = common.Net(state_shape=(2,), hidden_sizes=[16])
    actor = discrete.DiscreteActor(preprocess_net=net, action_shape=3)
    policy = reinforce.DiscreteActorPolicy(actor=actor, action_space=space)
    return ppo_module.PPO(policy=policy, critic=discrete.DiscreteCritic(preprocess_net=net), optim=ADAM)


def collecting(kind: Any = data.Collector, num_envs: int = 4, size: int = 400, **kwargs: Any) -> Any:
    return kind(on_policy(), vector_env(num_envs), data.VectorReplayBuffer(size, num_envs), **kwargs)


class Random(data.Collector):  # type: ignore[misc]
    def _collect(self, **kwargs: Any) -> Any:
        return super()._collect(**{**kwargs, "random": True})


class Overruled(data.Collector):  # type: ignore[misc]
    def _compute_action_policy_hidden(self, *args: Any, **kwargs: Any) -> Any:
        batch = super()._compute_action_policy_hidden(*args, **kwargs)
        batch.act = (batch.act + 1) % 3
        return batch


class Short(data.Collector):  # type: ignore[misc]
    def collect(self, n_step: int) -> Any:
        return super().collect(n_step=n_step // 2)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (Random, 400),
        (Overruled, 400),
        (Short, 400),
        (data.Collector, 16),
    ],
)
def test_a_rollout_that_is_wrong(kind: Any, size: int, wording: Wording) -> None:
    """Actions that are not the policy's, and rollouts that are short or do not fit the buffer, are errors."""
    with wording.raises(ComponentError):
        ppo_workload(collecting(kind, size=size), 8, None).check()


@pytest.mark.filterwarnings("ignore:Using async setting")
def test_an_async_collector(wording: Wording) -> None:
    """It collects more than the number of steps given, so the error names another way."""
    env = vector_env(4, wait_num=2)
    collector = data.AsyncCollector(on_policy(), env, data.VectorReplayBuffer(400, 4))
    with wording.raises(ComponentError):
        ppo_workload(collector, 8, None)
