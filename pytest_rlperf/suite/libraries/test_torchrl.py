"""TorchRL's six components; the updates are composed of its parts."""

from typing import Any

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work


def torchrl_vecenv(num_envs: int, env_id: str = work.ENV_ID) -> Any:
    """Return a SerialEnv of GymEnvs."""
    from torchrl.envs import GymEnv, SerialEnv

    return SerialEnv(num_envs, lambda: GymEnv(env_id))


def torchrl_replay(transitions: int) -> Any:
    """Return a full buffer; its storage has one tensor per key."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    obs, actions, rewards, next_obs, terminated = map(torch.from_numpy, work.random_transitions(transitions))
    ended = terminated.unsqueeze(-1)
    following = {"observation": next_obs, "reward": rewards.unsqueeze(-1), "done": ended, "terminated": ended.clone()}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(transitions), batch_size=work.BATCH_SIZE)
    buffer.extend(TensorDict({"observation": obs, "action": actions, "next": following}, [transitions]))
    return buffer


def torchrl_gae(n_steps: int, n_envs: int) -> Any:
    """Return the function that GAE modules use by default."""
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

    return vec_generalized_advantage_estimate


def torchrl_ppo(num_envs: int, n_steps: int) -> Any:
    """Return a collector that ends a rollout with a GAE module, and so with the values of all its observations."""
    env = torchrl_vecenv(num_envs)
    return torchrl_collector(env, *torchrl_actor_critic(env), n_steps * num_envs)


class TorchRLPPO:
    """An agent composed of TorchRL's collector and loss, like TorchRL's own PPO example."""

    def __init__(self, num_envs: int, n_steps: int) -> None:
        import torch
        from torchrl.objectives import ClipPPOLoss

        env = torchrl_vecenv(num_envs)
        actor, critic = torchrl_actor_critic(env)
        self.rollouts = iter(torchrl_collector(env, actor, critic, n_steps * num_envs))
        self.loss = ClipPPOLoss(actor, critic, normalize_advantage=True)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=3e-4)

    def collect(self, n_steps: int) -> Any:
        """Return the next rollout; the collector already knows its number of steps."""
        return next(self.rollouts)

    def update(self, rollout: Any) -> None:
        """Do all epochs."""
        import torch

        rows = rollout.reshape(-1)
        for _ in range(work.EPOCHS):
            for part in torch.chunk(torch.randperm(len(rows)), work.MINIBATCHES):
                losses = self.loss(rows[part])
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                torch.nn.utils.clip_grad_norm_(self.loss.parameters(), 0.5)
                self.optimizer.step()
                self.optimizer.zero_grad()


def torchrl_ppo_update(num_envs: int, n_steps: int) -> Any:
    """Return an agent."""
    return TorchRLPPO(num_envs, n_steps)


def torchrl_actor_critic(env: Any) -> tuple[Any, Any]:
    """Return a Gaussian policy and a value network."""
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torch import nn
    from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator

    sizes: dict[str, Any] = {"in_features": work.OBS_DIM, "num_cells": [64, 64], "activation_class": nn.Tanh}
    policy = nn.Sequential(MLP(out_features=work.ACT_DIM, **sizes), AddStateIndependentNormalScale(work.ACT_DIM))
    actor = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    return actor, ValueOperator(MLP(out_features=1, **sizes), in_keys=["observation"])


def torchrl_collector(env: Any, actor: Any, critic: Any, frames: int) -> Any:
    """Return a collector of rollouts with ``frames`` frames and their advantages."""
    from torchrl.collectors import Collector
    from torchrl.objectives.value import GAE

    return Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=-1,
        auto_register_policy_transforms=False,  # there are none to register
        postproc=GAE(gamma=0.99, lmbda=0.95, value_network=critic),
    )


class TorchRLSAC:
    """An agent composed of TorchRL's loss, buffer and target updater, like TorchRL's own SAC example."""

    def __init__(self, transitions: int) -> None:
        import torch
        from torchrl.objectives import SACLoss, SoftUpdate, group_optimizers

        self.buffer = torchrl_replay(transitions)
        self.loss = SACLoss(torchrl_actor(), torchrl_critic(), loss_function="l2")
        self.loss.make_value_estimator(gamma=0.99)
        self.targets = SoftUpdate(self.loss, tau=0.005)
        parts = [
            list(self.loss.actor_network_params.flatten_keys().values()),
            list(self.loss.qvalue_network_params.flatten_keys().values()),
            [self.loss.log_alpha],
        ]
        self.optimizer = group_optimizers(*(torch.optim.Adam(part, lr=3e-4) for part in parts))

    def update(self, batch_size: int) -> Any:
        """Do one gradient step on critics, actor and temperature from one batch, then move the targets."""
        losses = self.loss(self.buffer.sample(batch_size))
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.targets.step()
        return losses


def torchrl_actor() -> Any:
    """Return a squashed Gaussian policy."""
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch import nn
    from torchrl.data import Bounded
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal

    sizes: dict[str, Any] = {"num_cells": [256, 256], "activation_class": nn.ReLU}
    policy = nn.Sequential(
        MLP(in_features=work.OBS_DIM, out_features=2 * work.ACT_DIM, **sizes), NormalParamExtractor()
    )
    return ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=Bounded(-1.0, 1.0, (work.ACT_DIM,)),
        distribution_class=TanhNormal,
    )


def torchrl_critic() -> Any:
    """Return a Q-network."""
    from torch import nn
    from torchrl.modules import MLP, ValueOperator

    network = MLP(
        in_features=work.OBS_DIM + work.ACT_DIM, out_features=1, num_cells=[256, 256], activation_class=nn.ReLU
    )
    return ValueOperator(network, in_keys=["observation", "action"])


def torchrl_sac(transitions: int) -> Any:
    """Return an agent."""
    return TorchRLSAC(transitions)


@pytest.mark.parametrize("num_envs", [8, 64])
def test_torchrl_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env, in one process."""
    rlperf_vecenv_step(lambda: torchrl_vecenv(num_envs))


def test_torchrl_replay_sample(rlperf_replay_sample: Measure) -> None:
    """One batch of tensors."""
    rlperf_replay_sample(torchrl_replay(work.IN_BUFFER), batch_size=work.BATCH_SIZE)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
def test_torchrl_gae(rlperf_gae: Measure, n_steps: int, n_envs: int) -> None:
    """Advantages of a rollout."""
    rlperf_gae(torchrl_gae(n_steps, n_envs), n_steps=n_steps, n_envs=n_envs)


def test_torchrl_sac_update(rlperf_sac_update: Measure) -> None:
    """One gradient step of critics, actor and temperature, and of the targets."""
    rlperf_sac_update(torchrl_sac(work.IN_AGENT), batch_size=work.BATCH_SIZE)


def test_torchrl_ppo_collect_synthetic(rlperf_ppo_collect: Measure) -> None:
    """One rollout with its advantages."""
    rlperf_ppo_collect(torchrl_ppo(8, 128), n_steps=128)


def test_torchrl_ppo_update(rlperf_ppo_update: Measure) -> None:
    """All epochs on one rollout."""
    rlperf_ppo_update(torchrl_ppo_update(8, 128), n_steps=128)
