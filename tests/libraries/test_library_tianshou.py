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
reinforce: Any = pytest.importorskip("tianshou.algorithm.modelfree.reinforce")
ppo_module: Any = pytest.importorskip("tianshou.algorithm.modelfree.ppo")
trainer_module: Any = pytest.importorskip("tianshou.trainer")
common: Any = pytest.importorskip("tianshou.utils.net.common")
continuous: Any = pytest.importorskip("tianshou.utils.net.continuous")
discrete: Any = pytest.importorskip("tianshou.utils.net.discrete")

from brief_env import BriefEnv  # noqa: E402 - where gymnasium is installed

ADAM = optim.AdamOptimizerFactory(lr=1e-3)


def vector_env(space: Any, **kwargs: Any) -> Any:
    return venvs.DummyVectorEnv([lambda: BriefEnv(space)] * 4, **kwargs)


def net(**kwargs: Any) -> Any:
    return common.Net(state_shape=(2,), hidden_sizes=[16], **kwargs)


def off_policy(rows: int = 64) -> Any:
    """Return the trainer of a small SAC, whose collector's buffer has ``rows`` transitions."""
    space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    actor = continuous.ContinuousActorProbabilistic(preprocess_net=net(), action_shape=(2,), unbounded=True)
    critic = continuous.ContinuousCritic(preprocess_net=net(action_shape=(2,), concat=True))
    policy = sac_module.SACPolicy(actor=actor, action_space=space)
    algorithm = sac_module.SAC(policy=policy, policy_optim=ADAM, critic=critic, critic_optim=ADAM)
    collector = data.Collector(algorithm, vector_env(space), data.VectorReplayBuffer(1000, 4))
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


def on_policy() -> Any:
    actor = discrete.DiscreteActor(preprocess_net=net(), action_shape=3)
    policy = reinforce.DiscreteActorPolicy(actor=actor, action_space=gymnasium.spaces.Discrete(3))
    return ppo_module.PPO(policy=policy, critic=discrete.DiscreteCritic(preprocess_net=net()), optim=ADAM)


class Short(data.Collector):  # type: ignore[misc]
    def collect(self, n_step: int) -> Any:
        return super().collect(n_step=n_step // 2)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(Short, 400), (data.Collector, 16)],
)
def test_a_rollout_that_is_wrong(kind: Any, size: int, wording: Wording) -> None:
    """Rollouts that are short or do not fit the buffer are errors."""
    with wording.raises(ComponentError):
        ppo_workload(kind(on_policy(), vector_env(None), data.VectorReplayBuffer(size, 4)), 8, None).check()


@pytest.mark.filterwarnings("ignore:Using async setting")
def test_an_async_collector(wording: Wording) -> None:
    """It collects more than the number of steps given, so the error names another way."""
    env = vector_env(None, wait_num=2)
    collector = data.AsyncCollector(on_policy(), env, data.VectorReplayBuffer(400, 4))
    with wording.raises(ComponentError):
        ppo_workload(collector, 8, None)
