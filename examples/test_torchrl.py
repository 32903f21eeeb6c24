"""TorchRL: its envs, buffer, GAE and collector, and a SAC update that is composed of its losses."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import MLP, NormalParamExtractor, OneHotCategorical, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

from pytest_rlperf.timers import hierarchical_timer


def make_envs():
    return SerialEnv(4, [lambda: GymEnv("CartPole-v1")] * 4)


@pytest.fixture
def buffer():
    n = 1_000
    following = {"observation": torch.randn(n, 3), "reward": torch.randn(n, 1)}
    ends = {name: torch.zeros(n, 1, dtype=torch.bool) for name in ("done", "terminated")}
    rows = {"observation": torch.randn(n, 3), "action": torch.rand(n, 2) * 2 - 1, "next": following | ends}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n))
    buffer.extend(TensorDict(rows, [n]))
    return buffer


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(make_envs)


def test_sample(rlperf_replay_sample, buffer):
    rlperf_replay_sample(buffer, batch_size=256)


def test_gae(rlperf_gae):
    rlperf_gae(GAE(gamma=0.99, lmbda=0.95, value_network=None, vectorized=True), n_steps=128, n_envs=8)


def test_collect(rlperf_ppo_collect):
    envs = make_envs()
    net = TensorDictModule(MLP(4, 2, num_cells=[64, 64]), in_keys=["observation"], out_keys=["logits"])
    policy = ProbabilisticActor(
        net, in_keys=["logits"], spec=envs.action_spec, distribution_class=OneHotCategorical, return_log_prob=True
    )
    value = ValueOperator(MLP(4, 1, num_cells=[64, 64]), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    collector = Collector(envs, policy, frames_per_batch=4 * 32, total_frames=-1, postproc=gae)
    rlperf_ppo_collect(collector, n_steps=32)


class Agent:
    def __init__(self, buffer):
        net = TensorDictModule(
            nn.Sequential(MLP(3, 4, num_cells=[64, 64]), NormalParamExtractor()), ["observation"], ["loc", "scale"]
        )
        actor = ProbabilisticActor(
            net,
            in_keys=["loc", "scale"],
            spec=Bounded(-1, 1, (2,)),
            distribution_class=TanhNormal,
            return_log_prob=True,
        )
        critic = ValueOperator(MLP(5, 1, num_cells=[64, 64]), in_keys=["observation", "action"])
        self.buffer = buffer
        self.loss = SACLoss(actor, critic)
        self.loss.make_value_estimator(gamma=0.99)
        self.actor_optimizer = torch.optim.Adam(self.loss.actor_network_params.parameters(), lr=3e-4)
        self.critic_optimizer = torch.optim.Adam(self.loss.qvalue_network_params.parameters(), lr=3e-4)
        self.alpha_optimizer = torch.optim.Adam([self.loss.log_alpha], lr=3e-4)
        self.target_updater = SoftUpdate(self.loss, tau=0.005)

    def update(self, batch_size):
        batch = self.buffer.sample(batch_size)
        critic_loss, _ = self.loss.qvalue_v2_loss(batch)
        self.descend(self.critic_optimizer, critic_loss)
        actor_loss, info = self.loss.actor_loss(batch)
        self.descend(self.actor_optimizer, actor_loss)
        self.descend(self.alpha_optimizer, self.loss.alpha_loss(info["log_prob"]).mean())
        self.update_target()

    def update_target(self):
        self.target_updater.step()

    def descend(self, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_sac(rlperf_sac_update, buffer):
    rlperf_sac_update(Agent(buffer), batch_size=256)


class JointAgent(Agent):
    def __init__(self, buffer):
        super().__init__(buffer)
        del self.actor_optimizer, self.critic_optimizer, self.alpha_optimizer
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=3e-4)

    def update(self, batch_size):
        with hierarchical_timer("sample"):
            batch = self.buffer.sample(batch_size)
        with hierarchical_timer("losses"):
            losses = self.loss(batch)
        with hierarchical_timer("descend"):
            self.descend(self.optimizer, losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"])
        with hierarchical_timer("polyak"):
            self.update_target()


def test_joint_sac(rlperf_sac_update, buffer):
    rlperf_sac_update(JointAgent(buffer), batch_size=256)
