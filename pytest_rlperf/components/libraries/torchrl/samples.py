"""TorchRL's components for the suite."""

from __future__ import annotations

from typing import Any

from pytest_rlperf.components.samples import ACT_DIM, BATCH_SIZE, OBS_DIM, Samples, random_transitions

_GAMMA, _LAMBDA, _TAU, _LEARNING_RATE = 0.99, 0.95, 0.005, 3e-4


def _vecenv(num_envs: int) -> Any:
    """Return a SerialEnv of GymEnvs."""
    from torchrl.envs import GymEnv, SerialEnv

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    return SerialEnv(num_envs, lambda: GymEnv(SYNTHETIC_ID))


def _replay(transitions: int) -> Any:
    """Return a full buffer; its storage is one tensor a key."""
    return _buffer(transitions)


def _gae(n_steps: int, n_envs: int) -> Any:
    """Return the function that GAE modules use by default."""
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

    return vec_generalized_advantage_estimate


def _sac(transitions: int) -> Any:
    """Return an agent composed of TorchRL's loss, buffer and target updater, as its own example of SAC is."""
    return _SACAgent(transitions)


def _ppo(num_envs: int, n_steps: int) -> Any:
    """Return a collector that ends a rollout with a GAE module, and so with the values of all its observations."""
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives.value import GAE

    env = _vecenv(num_envs)
    sizes: dict[str, Any] = {"in_features": OBS_DIM, "num_cells": [64, 64], "activation_class": nn.Tanh}
    policy = nn.Sequential(MLP(out_features=ACT_DIM, **sizes), AddStateIndependentNormalScale(ACT_DIM))
    actor = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])
    return Collector(
        env,
        actor,
        frames_per_batch=n_steps * num_envs,
        total_frames=-1,
        auto_register_policy_transforms=False,  # there are none to register
        postproc=GAE(gamma=_GAMMA, lmbda=_LAMBDA, value_network=critic),
    )


class _SACAgent:
    """One gradient step of every part of TorchRL's SACLoss."""

    def __init__(self, transitions: int) -> None:
        import torch
        from torchrl.objectives import SACLoss, SoftUpdate, group_optimizers

        self.buffer = _buffer(transitions)
        self.loss = SACLoss(_actor(), _critic(), loss_function="l2")
        self.loss.make_value_estimator(gamma=_GAMMA)
        self.targets = SoftUpdate(self.loss, tau=_TAU)
        parts = [
            list(self.loss.actor_network_params.flatten_keys().values()),
            list(self.loss.qvalue_network_params.flatten_keys().values()),
            [self.loss.log_alpha],
        ]
        self.optimizer = group_optimizers(*(torch.optim.Adam(part, lr=_LEARNING_RATE) for part in parts))

    def update(self, batch_size: int) -> Any:
        """Do one gradient step on critics, actor and temperature from one batch, then move the targets."""
        losses = self.loss(self.buffer.sample(batch_size))
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.targets.step()
        return losses


def _actor() -> Any:
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch import nn
    from torchrl.data import Bounded
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal

    sizes: dict[str, Any] = {"num_cells": [256, 256], "activation_class": nn.ReLU}
    policy = nn.Sequential(MLP(in_features=OBS_DIM, out_features=2 * ACT_DIM, **sizes), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=Bounded(-1.0, 1.0, (ACT_DIM,)),
        distribution_class=TanhNormal,
    )


def _critic() -> Any:
    from torch import nn
    from torchrl.modules import MLP, ValueOperator

    network = MLP(in_features=OBS_DIM + ACT_DIM, out_features=1, num_cells=[256, 256], activation_class=nn.ReLU)
    return ValueOperator(network, in_keys=["observation", "action"])


def _buffer(count: int) -> Any:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    obs, actions, rewards, next_obs, terminated = map(torch.from_numpy, random_transitions(count))
    ended = terminated.unsqueeze(-1)
    following = {"observation": next_obs, "reward": rewards.unsqueeze(-1), "done": ended, "terminated": ended.clone()}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(count), batch_size=BATCH_SIZE)
    buffer.extend(TensorDict({"observation": obs, "action": actions, "next": following}, [count]))
    return buffer


SAMPLES = Samples(vecenv=_vecenv, replay=_replay, gae=_gae, sac=_sac, ppo=_ppo)

STARTER = """\
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives.value import GAE


def torchrl_envs():
    return SerialEnv(8, lambda: GymEnv("CartPole-v1"))


def test_torchrl_step(rlperf_vecenv_step):
    rlperf_vecenv_step(torchrl_envs)


def test_torchrl_sample(rlperf_replay_sample):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000))
    buffer.extend(TensorDict({"observation": torch.randn(1_000, 3), "action": torch.randn(1_000, 1)}, [1_000]))
    rlperf_replay_sample(buffer, batch_size=256)


def test_torchrl_gae(rlperf_gae):
    rlperf_gae(GAE(gamma=0.99, lmbda=0.95, value_network=None))


def test_torchrl_ppo(rlperf_ppo_collect):
    envs = torchrl_envs()
    net = TensorDictModule(MLP(4, 2, num_cells=[64, 64]), in_keys=["observation"], out_keys=["logits"])
    policy = ProbabilisticActor(
        net, in_keys=["logits"], spec=envs.action_spec, distribution_class=OneHotCategorical, return_log_prob=True
    )
    value = ValueOperator(MLP(4, 1, num_cells=[64, 64]), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    rlperf_ppo_collect(Collector(envs, policy, frames_per_batch=8 * 128, total_frames=-1, postproc=gae), n_steps=128)


# One SAC update is a method of an object of yours that holds a SACLoss; the documentation's page on TorchRL has one.
"""
