"""Tianshou's components."""

from __future__ import annotations

from functools import partial
from typing import Any

from pytest_rlperf.suite.libraries.transitions import ACT_DIM, IN_AGENT, IN_BUFFER, OBS_DIM, random_transitions


def vecenv(num_envs: int) -> Any:
    """Return a DummyVectorEnv."""
    import gymnasium
    from tianshou.env import DummyVectorEnv

    from pytest_rlperf.components.reference.envs import SYNTHETIC_ID

    return DummyVectorEnv([partial(gymnasium.make, SYNTHETIC_ID)] * num_envs)


def replay() -> Any:
    """Return a full buffer."""
    return _buffer(IN_BUFFER)


def gae(n_steps: int, n_envs: int) -> Any:
    """Return the function that algorithms share."""
    from tianshou.algorithm.algorithm_base import Algorithm

    return Algorithm.compute_episodic_return


def sac() -> Any:
    """Return a trainer, whose collector has the buffer."""
    from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    env = vecenv(1)
    critics = [
        ContinuousCritic(
            preprocess_net=Net(state_shape=OBS_DIM, action_shape=ACT_DIM, hidden_sizes=[256, 256], concat=True)
        )
        for _ in range(2)
    ]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=OBS_DIM, hidden_sizes=[256, 256]),
        action_shape=ACT_DIM,
        unbounded=True,
        conditioned_sigma=True,
    )
    optimizer = AdamOptimizerFactory(lr=3e-4)
    algorithm: Any = SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space[0]),
        policy_optim=optimizer,
        critic=critics[0],
        critic_optim=optimizer,
        critic2=critics[1],
        critic2_optim=optimizer,
        alpha=AutoAlpha(-float(ACT_DIM), 0.0, optimizer),
    )
    collector: Any = Collector(algorithm, env, _buffer(IN_AGENT))
    return algorithm.create_trainer(OffPolicyTrainerParams(training_collector=collector))


def ppo(num_envs: int, n_steps: int) -> Any:
    """Return a function that empties the buffer, collects into it, and adds advantages as the update would first."""
    from tianshou.utils.torch_utils import policy_within_training_step

    algorithm = _ppo(vecenv(1).action_space[0])
    collector = _collector(algorithm, num_envs, n_steps)

    def collect() -> Any:
        collector.reset_buffer(keep_statistics=True)
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=n_steps * num_envs)
            batch, indices = collector.buffer.sample(0)  # all there is
            return algorithm._preprocess_batch(batch, collector.buffer, indices)

    return collect


def _ppo(action_space: Any) -> Any:
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from torch import nn
    from torch.distributions import Independent, Normal

    networks = [Net(state_shape=OBS_DIM, hidden_sizes=[64, 64], activation=nn.Tanh) for _ in range(2)]
    actor = ContinuousActorProbabilistic(preprocess_net=networks[0], action_shape=ACT_DIM, unbounded=True)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
        action_space=action_space,
        action_scaling=False,
        action_bound_method="clip",
    )
    critic = ContinuousCritic(preprocess_net=networks[1])
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), gamma=0.99, gae_lambda=0.95)


def _collector(algorithm: Any, num_envs: int, n_steps: int) -> Any:
    from tianshou.data import Collector, VectorReplayBuffer

    collector: Any = Collector(algorithm, vecenv(num_envs), VectorReplayBuffer(num_envs * n_steps, num_envs))
    collector.reset()
    return collector


def _buffer(count: int) -> Any:
    import numpy as np
    from tianshou.data import ReplayBuffer

    obs, actions, rewards, next_obs, terminated = random_transitions(count)
    return ReplayBuffer.from_data(
        obs=obs,
        act=actions,
        rew=rewards,
        terminated=terminated,
        truncated=np.zeros_like(terminated),
        done=terminated,
        obs_next=next_obs,
    )
