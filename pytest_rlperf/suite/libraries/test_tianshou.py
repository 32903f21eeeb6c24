"""Tianshou's six components; its rollout is a function that also adds advantages, as the update would first."""

from typing import Any

import numpy as np
import pytest

from pytest_rlperf import Measure
from pytest_rlperf.suite import work


def tianshou_vecenv(num_envs: int, env_id: str = work.ENV_ID) -> Any:
    """Return a DummyVectorEnv."""
    import gymnasium
    from tianshou.env import DummyVectorEnv

    return DummyVectorEnv([lambda: gymnasium.make(env_id)] * num_envs)


def tianshou_replay(transitions: int) -> Any:
    """Return a full buffer."""
    from tianshou.data import ReplayBuffer

    obs, actions, rewards, next_obs, terminated = work.random_transitions(transitions)
    return ReplayBuffer.from_data(
        obs=obs,
        act=actions,
        rew=rewards,
        terminated=terminated,
        truncated=np.zeros_like(terminated),
        done=terminated,
        obs_next=next_obs,
    )


def tianshou_gae(n_steps: int, n_envs: int) -> Any:
    """Return the function that algorithms share."""
    from tianshou.algorithm.algorithm_base import Algorithm

    return Algorithm.compute_episodic_return


def tianshou_sac(transitions: int) -> Any:
    """Return a trainer; its collector has the buffer."""
    from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    env = tianshou_vecenv(1)
    critics = [
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=work.OBS_DIM, action_shape=work.ACT_DIM, hidden_sizes=[256, 256], concat=True
            )
        )
        for _ in range(2)
    ]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=work.OBS_DIM, hidden_sizes=[256, 256]),
        action_shape=work.ACT_DIM,
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
        alpha=AutoAlpha(-float(work.ACT_DIM), 0.0, optimizer),
    )
    collector: Any = Collector(algorithm, env, tianshou_replay(transitions))
    return algorithm.create_trainer(OffPolicyTrainerParams(training_collector=collector))


def tianshou_ppo(num_envs: int, n_steps: int) -> Any:
    """Return a function that empties the buffer, collects into it, and adds advantages as the update would first."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.utils.torch_utils import policy_within_training_step

    env = tianshou_vecenv(num_envs)
    algorithm = tianshou_algorithm(env.action_space[0])
    collector: Any = Collector(algorithm, env, VectorReplayBuffer(num_envs * n_steps, num_envs))
    collector.reset()

    def collect() -> Any:
        collector.reset_buffer(keep_statistics=True)
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=n_steps * num_envs)
            batch, indices = collector.buffer.sample(0)  # all there is
            return algorithm._preprocess_batch(batch, collector.buffer, indices)

    return collect


def tianshou_ppo_update(num_envs: int, n_steps: int) -> Any:
    """Return a trainer."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams

    env = tianshou_vecenv(num_envs)
    algorithm = tianshou_algorithm(env.action_space[0])
    collector: Any = Collector(algorithm, env, VectorReplayBuffer(num_envs * n_steps, num_envs))
    params = OnPolicyTrainerParams(
        training_collector=collector,
        collection_step_num_env_steps=num_envs * n_steps,
        batch_size=num_envs * n_steps // work.MINIBATCHES,
        update_step_num_repetitions=work.EPOCHS,
    )
    return algorithm.create_trainer(params)


def tianshou_algorithm(action_space: Any) -> Any:
    """Return a PPO."""
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from torch import nn
    from torch.distributions import Independent, Normal

    networks = [Net(state_shape=work.OBS_DIM, hidden_sizes=[64, 64], activation=nn.Tanh) for _ in range(2)]
    actor = ContinuousActorProbabilistic(preprocess_net=networks[0], action_shape=work.ACT_DIM, unbounded=True)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
        action_space=action_space,
        action_scaling=False,
        action_bound_method="clip",
    )
    critic = ContinuousCritic(preprocess_net=networks[1])
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), gamma=0.99, gae_lambda=0.95)


@pytest.mark.parametrize("num_envs", [8, 64])
def test_tianshou_vecenv_step_synthetic(rlperf_vecenv_step: Measure, num_envs: int) -> None:
    """One step of every env, in one process."""
    rlperf_vecenv_step(lambda: tianshou_vecenv(num_envs))


def test_tianshou_replay_sample(rlperf_replay_sample: Measure) -> None:
    """One batch of NumPy arrays."""
    rlperf_replay_sample(tianshou_replay(work.IN_BUFFER), batch_size=work.BATCH_SIZE)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
def test_tianshou_gae(rlperf_gae: Measure, n_steps: int, n_envs: int) -> None:
    """Advantages of a rollout."""
    rlperf_gae(tianshou_gae(n_steps, n_envs), n_steps=n_steps, n_envs=n_envs)


def test_tianshou_sac_update(rlperf_sac_update: Measure) -> None:
    """One gradient step of critics, actor and temperature, and of the targets."""
    rlperf_sac_update(tianshou_sac(work.IN_AGENT), batch_size=work.BATCH_SIZE)


def test_tianshou_ppo_collect_synthetic(rlperf_ppo_collect: Measure) -> None:
    """One rollout with its advantages."""
    rlperf_ppo_collect(tianshou_ppo(8, 128), items=8 * 128)


def test_tianshou_ppo_update(rlperf_ppo_update: Measure) -> None:
    """All epochs on one rollout."""
    rlperf_ppo_update(tianshou_ppo_update(8, 128), n_steps=128)
