"""Tianshou: its vector env, buffer, GAE, SAC and PPO."""

import gymnasium
import pytest
from tianshou.algorithm import PPO, SAC
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

ADAM = AdamOptimizerFactory(lr=1e-3)


def vector_env(name, num_envs=4):
    return DummyVectorEnv([lambda: gymnasium.make(name) for _ in range(num_envs)])


@pytest.fixture
def sac_trainer():
    env = vector_env("Pendulum-v1")
    action_space, shape = env.action_space[0], env.observation_space[0].shape
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=shape, hidden_sizes=[64, 64]),
        action_shape=action_space.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    critic = ContinuousCritic(
        preprocess_net=Net(state_shape=shape, action_shape=action_space.shape, hidden_sizes=[64, 64], concat=True)
    )
    sac = SAC(
        policy=SACPolicy(actor=actor, action_space=action_space),
        policy_optim=ADAM,
        critic=critic,
        critic_optim=ADAM,
        alpha=AutoAlpha(-1.0, 0.0, ADAM),
    )
    collector = Collector(sac, env, VectorReplayBuffer(10_000, len(env)))
    collector.collect(n_step=1_000, random=True, reset_before_collect=True)
    return sac.create_trainer(OffPolicyTrainerParams(training_collector=collector))


@pytest.fixture
def ppo_trainer():
    env = vector_env("CartPole-v1")
    action_space, shape = env.action_space[0], env.observation_space[0].shape
    net = Net(state_shape=shape, hidden_sizes=[64, 64])
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(preprocess_net=net, action_shape=action_space.n), action_space=action_space
    )
    ppo = PPO(policy=policy, critic=DiscreteCritic(preprocess_net=net), optim=ADAM)
    collector = Collector(ppo, env, VectorReplayBuffer(2_048, len(env)))
    params = OnPolicyTrainerParams(training_collector=collector, collection_step_num_env_steps=32 * len(env))
    return ppo.create_trainer(params)


def test_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: vector_env("CartPole-v1"))


def test_sample(rlperf_replay_sample, sac_trainer):
    rlperf_replay_sample(sac_trainer.params.training_collector.buffer, batch_size=64)


def test_gae(rlperf_gae):
    rlperf_gae(PPO.compute_episodic_return, n_steps=64, n_envs=4)


def test_sac_update(rlperf_sac_update, sac_trainer):
    rlperf_sac_update(sac_trainer, batch_size=64)


def test_ppo_collect(rlperf_ppo_collect, ppo_trainer):
    rlperf_ppo_collect(ppo_trainer, n_steps=32)


def test_ppo_update(rlperf_ppo_update, ppo_trainer):
    rlperf_ppo_update(ppo_trainer, n_steps=32)


def test_train(rlperf_train, ppo_trainer):
    rlperf_train(ppo_trainer, n_steps=32)


def test_update_by_a_function(rlperf_sac_update, sac_trainer):
    sac, buffer = sac_trainer.algorithm, sac_trainer.params.training_collector.buffer

    def update():
        with policy_within_training_step(sac.policy):
            sac.update(buffer=buffer, sample_size=64)

    rlperf_sac_update(update)
